package initiator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
	"oneshot/iscsi/text"
	"oneshot/transport/rdma"
)

// mover moves PDUs. All but receive, enable, stop, adopt and counters are called with Session.mu held, and do not
// block; what they queue leaves in order, at the latest at flush.
type mover interface {
	// control queues a PDU, which is copied.
	control(bhs, data []byte)
	// command queues c, whose fields are set, with the first immediate bytes of its data.
	command(c *Command, immediate int)
	// answered is called when the status of c has come. The mover calls Session.finish when
	// c's memory is the owner's again.
	answered(c *Command)
	// flush starts sending.
	flush()
	// receive waits for the next PDU of a login.
	receive(ctx context.Context) (pdu.Header, []byte, error)
	// enable begins the full feature phase: PDUs go to Session.take from now on.
	enable(p *text.Params)
	// stop ends the connection. Session.lost is called when nothing refers to memory of
	// commands any more; perhaps it has been already.
	stop(err error)
	// adopt makes memory known to the connection's device, to which no other connection's knows it now.
	// detach, unless it is nil, takes it from the device again, and returns what is to be deregistered.
	adopt(m *Memory) (detach func() rdma.Region, err error)
	// memoryOf returns the device that adopt registers memory with; nil: there is none.
	memoryOf() rdma.Device
	counters() Counters
}

// Session is a session of one connection. Its methods may be called from any goroutine.
type Session struct {
	url   URL
	opt   Options
	log   *slog.Logger
	mover mover
	p     text.Params // as negotiated
	// immediate and burst are how much data leaves unasked, with and after a command.
	immediate, burst int
	ended            chan struct{} // closed when nothing refers to memory of commands any more
	looks            sync.WaitGroup

	mu        sync.Mutex // guards what follows; not held while Done is called
	cmdSN     serial.SN
	maxCmdSN  serial.SN
	expStatSN serial.SN
	slots     []*Command // by the lower half of the ITT
	free      []uint16
	turn      uint16 // the upper half of the next ITT
	waiting   list   // commands that the window or the depth keeps back
	doubted   list   // commands to a disk that may be another one; see doubt.go
	doubts    int    // unit attentions that raised doubt
	looking   bool   // somebody looks whether it is
	// disks are what was found at LUNs, as LU.is has it; empty: there has been news since. known is a unit that is one of these.
	disks    map[int]string
	known    *LU
	news     int  // unit attentions that other commands had, and that raise doubt
	finished list // Done is to be called
	incoming bool // the goroutine of the connection will flush
	calls    map[uint32]*call
	callITT  uint32
	echoes   int   // bytes of answers to pings since all of these had left
	err      error // why the session has ended
}

// list is a queue of commands.
type list struct{ head, tail *Command }

func (l *list) push(c *Command) {
	c.next = nil
	if l.tail == nil {
		l.head = c
	} else {
		l.tail.next = c
	}
	l.tail = c
}

func (l *list) pop() *Command {
	c := l.head
	if c != nil {
		if l.head = c.next; l.head == nil {
			l.tail = nil
		}
		c.next = nil
	}
	return c
}

// remove takes c out, if it is there.
func (l *list) remove(c *Command) bool {
	var kept list
	found := false
	for x := l.pop(); x != nil; x = l.pop() {
		if x == c {
			found = true
		} else {
			kept.push(x)
		}
	}
	*l = kept
	return found
}

// done calls Done of all. It does not look at a command afterwards.
func (l list) done() {
	for c := l.pop(); c != nil; c = l.pop() {
		c.Done(c)
	}
}

// The upper half of the ITT of a command is below turns; calls have ITTs above.
const (
	turns    = 0x8000
	firstITT = turns << 16
	loginITT = 1
)

// ErrClosed is the end of a session by Close.
var ErrClosed = errors.New("the session is closed")

// Start begins commands, in order. Their outcome is told to Done of each.
func (s *Session) Start(cs ...*Command) {
	var l list
	for _, c := range cs {
		c.heir = nil
		l.push(c)
	}
	s.start(l)
}

// start begins commands. Those that have an heir go to it if the session has ended.
func (s *Session) start(cs list) {
	var failed, orphans list
	s.mu.Lock()
	for c := cs.pop(); c != nil; c = cs.pop() {
		c.Err, c.Status, c.Transferred, c.Sense = s.unfit(c), 0, 0, nil
		c.told = 0
		c.got, c.asked, c.more, c.issued, c.rdma = 0, 0, false, false, transfer{memory: c.rdma.memory[:0]}
		switch {
		case c.Err == nil:
			s.waiting.push(c)
		case s.err != nil && c.heir != nil:
			orphans.push(c)
		default:
			failed.push(c)
		}
	}
	s.issue()
	if !s.incoming {
		s.mover.flush()
	}
	s.mu.Unlock()
	failed.done()
	s.bequeath(orphans)
}

// bequeath gives commands of s, which has ended, to their heir, which all have the same.
func (s *Session) bequeath(l list) {
	if l.head != nil {
		l.head.heir.adopt(s, l)
	}
}

// unfit says why c cannot be sent.
func (s *Session) unfit(c *Command) error {
	switch {
	case s.err != nil:
		return s.err
	case len(c.CDB) < 6 || len(c.CDB) > pdu.CDBLen:
		return fmt.Errorf("a CDB of %d bytes: there are those of 6 to %d", len(c.CDB), pdu.CDBLen)
	case c.writes() && c.reads():
		return errors.New("a command with data both ways, which this initiator has none of")
	case len(c.Out)+len(c.In) > 0 && len(c.OutV)+len(c.InV) > 0:
		return errors.New("a command whose data is given both in one piece and in several")
	case c.size() > maxTransfer:
		return fmt.Errorf("a command with %d bytes of data: %d is the most", c.size(), maxTransfer)
	case c.LUN < 0 || c.LUN > maxLUN:
		return fmt.Errorf("LUN %d: there are those from 0 to %d", c.LUN, maxLUN)
	}
	return nil
}

// maxTransfer is the most data of a command.
const maxTransfer = 1 << 30

// issue sends what may be sent.
func (s *Session) issue() {
	for s.waiting.head != nil && len(s.free) > 0 && !s.maxCmdSN.Less(s.cmdSN) {
		switch c := s.waiting.pop(); {
		case c.unit == nil || !s.looking && s.knows(c.unit):
			s.send(c)
		case s.looking:
			s.doubted.push(c)
		default:
			s.doubt(c)
		}
	}
}

// send gives a command its tags and queues it.
func (s *Session) send(c *Command) {
	slot := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	if s.turn++; s.turn == turns {
		s.turn = 0
	}
	c.itt = uint32(s.turn)<<16 | uint32(slot)
	c.issued = true
	s.slots[slot] = c
	if s.opt.Flow != FlowOneShot {
		c.join()
	}
	immediate := s.taken(c)
	c.fields = pdu.SCSICommandFields{
		Final: true, Read: c.reads(), Write: c.writes(), Attr: c.Attr, DataSegmentLength: immediate,
		LUN: wireLUN(c.LUN), ITT: c.itt, EDTL: uint32(c.size()), CmdSN: s.cmdSN, ExpStatSN: s.expStatSN, CDB: c.CDB,
	}
	s.cmdSN++
	s.mover.command(c, immediate)
}

// taken is how much data a command takes along: over RDMA all of it or none.
func (s *Session) taken(c *Command) int {
	n := 0
	if c.writes() {
		n = c.size()
	}
	if n > s.immediate && s.url.Transport != TCP {
		return 0
	}
	return min(n, s.immediate)
}

// maxLUN is the highest LUN of the flat address space (SAM-5 §4.7.7).
const maxLUN = 0x3fff

// wireLUN encodes a LUN: below 256 as peripheral device, above with flat addressing.
func wireLUN(n int) uint64 {
	if n > 0xff {
		n |= 0x4000
	}
	return uint64(n) << 48
}

// find returns the command that a PDU is about, or nil.
func (s *Session) find(itt uint32) *Command {
	slot := itt & 0xffff
	if int(slot) >= len(s.slots) || s.slots[slot] == nil || s.slots[slot].itt != itt {
		return nil
	}
	return s.slots[slot]
}

// begin and end enclose what the goroutine of the connection does with what has come.
func (s *Session) begin() {
	s.mu.Lock()
	s.incoming = true
}

// end calls Done of what has ended, and sends what that has started.
func (s *Session) end() {
	for {
		s.issue()
		if s.finished.head == nil {
			s.mover.flush()
		}
		if s.finished.head == nil {
			break
		}
		s.deliver()
		s.mu.Lock()
	}
	s.incoming = false
	s.mu.Unlock()
}

// deliver calls Done of what has ended. It is called with the lock held and returns without.
func (s *Session) deliver() {
	l := s.finished
	s.finished = list{}
	s.mu.Unlock()
	s.tell(l)
}

// tell calls Done of all, and says that these were all for now.
func (s *Session) tell(l list) {
	if l.head == nil {
		return
	}
	l.done()
	if s.opt.Delivered != nil {
		s.opt.Delivered()
	}
}

// finish ends a command whose memory is the owner's again.
func (s *Session) finish(c *Command) {
	s.vacate(c)
	doubt := c.isAttention() && raisesDoubt(c.Sense)
	repeat := s.err == nil && c.isAttention() && c.told < c.Attentions && !c.hasOtherMedium()
	if doubt && !(repeat && c.unit != nil) {
		s.heard(c.LUN)
	}
	if repeat {
		c.told++
		again := c.unit == nil || !doubt
		s.log.Info("unit attention", "lun", c.LUN, "sense", c.Failure())
		c.Status, c.Transferred, c.Sense = 0, 0, nil
		c.got, c.asked, c.more, c.rdma = 0, 0, false, transfer{memory: c.rdma.memory[:0]}
		if again {
			s.waiting.push(c)
		} else {
			s.doubt(c)
		}
		return
	}
	s.finished.push(c)
}

// vacate takes c out of its slot.
func (s *Session) vacate(c *Command) {
	slot := uint16(c.itt)
	s.slots[slot] = nil
	s.free = append(s.free, slot)
	c.issued = false
	c.part()
}

// isAttention reports whether c has ended with a unit attention: the logical unit had something to
// tell, and has not executed the command.
func (c *Command) isAttention() bool {
	if c.Err != nil || c.Status != StatusCheckCondition {
		return false
	}
	key, _, _ := senseCodes(c.Sense)
	return key == keyUnitAttention
}

// hasOtherMedium reports whether a READ or WRITE of LU has ended because the medium may have changed.
func (c *Command) hasOtherMedium() bool {
	_, asc, _ := senseCodes(c.Sense)
	return c.unit != nil && asc == ascMedium
}

const keyUnitAttention = 6 // SPC-4 §4.5.6

// numbers takes the sequence numbers that every PDU of a target has (RFC 7143 §4.2.2).
func (s *Session) numbers(h pdu.Header, status bool) {
	if status {
		if n := h.StatSN() + 1; s.expStatSN.Less(n) {
			s.expStatSN = n
		}
	}
	if m := h.MaxCmdSN(); s.maxCmdSN.Less(m) {
		s.maxCmdSN = m
	}
}

// take takes a PDU, other than Data-In and R2T.
func (s *Session) take(h pdu.Header, data []byte) error {
	op := h.Opcode()
	switch op {
	case pdu.OpSCSIResponse:
		return s.response(pdu.SCSIResponse{Header: h}, data)
	case pdu.OpNOPIn:
		return s.nopIn(pdu.NOPIn{Header: h}, data)
	case pdu.OpTextResponse, pdu.OpLogoutResponse, pdu.OpTaskManagementResponse:
		s.numbers(h, true)
		return s.answerCall(h, data)
	case pdu.OpReject:
		s.numbers(h, true)
		return s.rejected(pdu.Reject{Header: h}, data)
	case pdu.OpAsync:
		s.numbers(h, true)
		return s.async(pdu.Async{Header: h})
	default:
		return fmt.Errorf("the target sends a %v", op)
	}
}

// response ends a command.
func (s *Session) response(h pdu.SCSIResponse, data []byte) error {
	s.numbers(h.Header, true)
	c := s.find(h.ITT())
	if c == nil {
		return fmt.Errorf("a SCSI Response to the ITT %#x, which is not under way", h.ITT())
	}
	if h.Response() != pdu.ResponseCommandCompleted {
		c.Err = fmt.Errorf("LUN %d: command %02xh: the target has failed (iSCSI response %#x)", c.LUN, c.CDB[0], h.Response())
	}
	if len(data) >= 2 {
		n := int(data[0])<<8 | int(data[1])
		c.Sense = append(c.sense[:0], data[2:][:min(n, len(data)-2, len(c.sense))]...)
	}
	c.more = h.Overflow()
	s.status(c, h.Status(), h.Underflow(), h.ResidualCount())
	return nil
}

// status notes how a command has ended.
func (s *Session) status(c *Command, status byte, underflow bool, residual uint32) {
	c.Status = status
	c.Transferred = c.size()
	if underflow {
		c.Transferred -= min(int(residual), c.Transferred)
	}
	if s.url.Transport == TCP && c.reads() {
		c.Transferred = min(c.Transferred, c.got)
	}
	s.mover.answered(c)
}

// nopIn answers a ping (RFC 7143 §11.19).
func (s *Session) nopIn(h pdu.NOPIn, data []byte) error {
	if h.ITT() != pdu.ReservedTag {
		s.numbers(h.Header, true)
		return s.answerCall(h.Header, data)
	}
	s.numbers(h.Header, false)
	if h.TTT() == pdu.ReservedTag {
		return nil
	}
	if s.echoes += pdu.BHSLen + len(data); s.echoes > maxEchoes {
		return fmt.Errorf("the target has sent pings of %d bytes, and takes no answers", s.echoes)
	}
	f := pdu.NOPOutFields{
		Immediate: true, ITT: pdu.ReservedTag, TTT: h.TTT(), LUN: h.LUN(), CmdSN: s.cmdSN, ExpStatSN: s.expStatSN,
		DataSegmentLength: len(data),
	}
	s.mover.control(f.AppendTo(nil), data)
	return nil
}

// maxEchoes bounds what waits for a target that pings and does not read.
const maxEchoes = 1 << 20

// rejected ends the request that the target has rejected; of a PDU that is none the session.
func (s *Session) rejected(h pdu.Reject, data []byte) error {
	err := fmt.Errorf("the target rejects a PDU: %v", h.Reason())
	bad, short := pdu.ParseHeader(data)
	if short != nil {
		return err
	}
	err = fmt.Errorf("the target rejects a %v: %v", bad.Opcode(), h.Reason())
	if c := s.calls[bad.ITT()]; c != nil {
		delete(s.calls, bad.ITT())
		c.err = err
		close(c.done)
		return nil
	}
	if c := s.find(bad.ITT()); c != nil && bad.Opcode() == pdu.OpSCSICommand {
		c.Err = err
		s.mover.answered(c)
		return nil
	}
	return err
}

// async handles what the target says on its own: it ends the session, or does not matter here (RFC 7143 §11.9).
func (s *Session) async(h pdu.Async) error {
	switch h.Event() {
	case pdu.AsyncLogoutRequest, pdu.AsyncConnectionDrop, pdu.AsyncAllConnectionsDrop, pdu.AsyncRenegotiation:
		return fmt.Errorf("the target ends the session: %v", h.Event())
	case pdu.AsyncTaskTermination:
		return errors.New("the target has ended all tasks") // without responses: they are lost
	case pdu.AsyncSCSIEvent, pdu.AsyncVendor:
	}
	return nil
}

// Do runs a command and waits for its end. Done is replaced. If ctx ends first, the task is
// aborted; Do returns when it has, for until then the target may use the memory.
func (s *Session) Do(ctx context.Context, c *Command) error {
	done := make(chan struct{})
	c.Done = func(*Command) { close(done) }
	s.Start(c)
	select {
	case <-done:
		return c.Failure()
	case <-ctx.Done():
	}
	s.abort(c, done)
	<-done
	if c.Failure() == nil {
		return nil // it was faster
	}
	return ctx.Err()
}

// stop ends the session with err.
func (s *Session) stop(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	s.mu.Unlock()
	s.mover.stop(err)
}

// lost is called by the mover, once, when the connection has ended and nothing refers to
// memory of commands any more.
func (s *Session) lost(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	s.log.Debug("session has ended", "target", s.url.String(), "reason", s.err)
	var left []*Command
	for _, c := range s.slots {
		if c != nil {
			left = append(left, c)
		}
	}
	slices.SortFunc(left, func(a, b *Command) int { return int(int32(a.fields.CmdSN - b.fields.CmdSN)) }) // RFC 1982
	for _, c := range left {
		s.vacate(c)
	}
	for _, l := range []*list{&s.doubted, &s.waiting} {
		for c := l.pop(); c != nil; c = l.pop() {
			left = append(left, c)
		}
	}
	var orphans list
	for _, c := range left {
		if c.heir != nil {
			orphans.push(c)
		} else {
			c.Err = s.err
			s.finished.push(c)
		}
	}
	for itt, c := range s.calls {
		delete(s.calls, itt)
		c.err = s.err
		close(c.done)
	}
	s.deliver()
	s.bequeath(orphans)
	close(s.ended)
}

// reason returns why the session has ended; nil: it has not.
func (s *Session) reason() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// logoutTimeout is how long a target may take to answer a logout.
const logoutTimeout = 5 * time.Second

// Close logs out and ends the session. Commands under way end with ErrClosed. It must not be
// called from Done.
func (s *Session) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), logoutTimeout)
	defer cancel()
	_, _, err := s.ask(ctx, func(itt uint32, cmdSN, expStatSN serial.SN) []byte {
		f := pdu.LogoutRequestFields{Immediate: true, Reason: pdu.LogoutCloseSession, ITT: itt, CmdSN: cmdSN, ExpStatSN: expStatSN}
		return f.AppendTo(nil)
	}, nil)
	s.stop(ErrClosed)
	<-s.ended
	s.looks.Wait()
	if errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}

// Counters returns what has crossed between this end and its network, since Dial.
func (s *Session) Counters() Counters { return s.mover.counters() }
