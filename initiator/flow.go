package initiator

import (
	"errors"
	"fmt"

	"oneshot/internal/iserhdr"
	"oneshot/iscsi/pdu"
	"oneshot/transport/rdma"
)

// step is where a command is on its way through the flow of its connection.
//
//	FlowConventional  register ─► Binding ─► Sent ─► answer ─► Unbinding ─► deregister
//	FlowRegister      register ────────────► Sent ─► answer ─► deregister
//	FlowStatic        Sent ─► answer
//	FlowWindow        Sent, with the bind in one post ─► answer, which invalidates; if not: Unbinding
//	FlowOneShot       Sent ─► answer, which closes; if not: Revoke
type step uint8

const (
	stepSent      step = iota // or about to be
	stepBinding               // the window has no name yet
	stepUnbinding             // the answer has come; the target may still reach the memory
)

// frame appends what precedes a PDU.
func (m *conn) frame(b []byte, h iserhdr.Header) []byte {
	if m.flow == FlowOneShot {
		return b
	}
	return h.AppendTo(b)
}

// command implements mover.
func (m *conn) command(c *Command, immediate int) {
	if m.closed {
		return // Session.lost ends it
	}
	t := &c.rdma
	w := rdma.Work{ID: idSend, Op: rdma.OpSend}
	if immediate < c.size() {
		err := m.bounce(c)
		if err == nil {
			err = m.reach(c, &w)
		}
		if err != nil {
			m.broken(err)
			return
		}
	}
	m.write(c, immediate, t.stag, t.offset)
	w.SGL = t.sgl[:1]
	if immediate > 0 && t.sgl[1].Bytes != nil {
		w.SGL = t.sgl[:2]
	}
	if m.flow == FlowWindow && t.bind.Window != nil {
		// The name of the window is known when it is bound, which is before the message leaves.
		t.bind.Stamp = t.sgl[0].Bytes[stagAt(c) : stagAt(c)+4]
		m.queue(t.bind, c)
	}
	m.queue(w, c)
}

func (m *conn) queue(w rdma.Work, c *Command) {
	m.sends = append(m.sends, w)
	m.senders = append(m.senders, c)
}

// stagAt is where the STag of c's memory stands in the iSER header.
func stagAt(c *Command) int {
	if c.writes() {
		return iserhdr.OffWriteSTag
	}
	return iserhdr.OffReadSTag
}

func (c *Command) access() rdma.Access {
	if c.writes() {
		return rdma.AccessRemoteRead
	}
	return rdma.AccessRemoteWrite
}

// reach makes c's memory reachable, as far as that happens before the command is sent; w is
// the request that will send it.
func (m *conn) reach(c *Command, w *rdma.Work) (err error) {
	t := &c.rdma
	if m.flow == FlowOneShot {
		m.list(c)
		w.Flags, w.Memory, w.Access = rdma.Advertise, t.memory, c.access()
		return nil
	}
	r, data := rdma.Region(nil), c.data()
	if t.bounce != nil {
		data = t.bounce.b
	}
	switch {
	case m.flow == FlowConventional || m.flow == FlowRegister:
	case t.bounce != nil:
		r = t.bounce.region
	case c.Memory != nil:
		r = c.Memory.region
	}
	if r == nil {
		access := rdma.AccessLocalWrite
		if m.flow != FlowConventional {
			access |= rdma.AccessRemoteRead | rdma.AccessRemoteWrite
		}
		if t.region, err = m.domain.Register(data, access); err != nil {
			return fmt.Errorf("memory of a command: %w", err)
		}
		r = t.region
	}
	t.memory = append(t.single[:0], rdma.SGE{Bytes: data, Region: r})
	t.offset = offset(r, data)
	switch m.flow {
	case FlowRegister, FlowStatic:
		t.stag = r.STag()
		if m.flow == FlowStatic {
			m.static++
		}
	case FlowWindow:
		t.stag = stamped
		return m.bind(c)
	default:
		t.step = stepBinding
		if err = m.bind(c); err != nil {
			return err
		}
		t.bind.Flags = rdma.Signaled
		m.binds = append(m.binds, t.bind)
		m.bound = append(m.bound, c)
	}
	return nil
}

// list makes the list of c's memory that the call which sends c makes reachable. None of it has to
// be registered.
func (m *conn) list(c *Command) {
	t := &c.rdma
	if t.bounce != nil {
		t.memory = append(t.single[:0], rdma.SGE{Bytes: t.bounce.b, Region: t.bounce.region})
		return
	}
	var r rdma.Region
	if c.Memory != nil {
		r = c.Memory.region
	}
	if len(c.OutV)+len(c.InV) == 0 {
		t.memory = append(t.single[:0], rdma.SGE{Bytes: c.data(), Region: r})
		return
	}
	t.memory = t.memory[:0]
	for _, v := range [...][][]byte{c.OutV, c.InV} {
		for _, p := range v {
			t.memory = append(t.memory, rdma.SGE{Bytes: p, Region: r})
		}
	}
}

// stamped stands in a header for an STag that Post will put there.
const stamped = 1

// bind makes the request that binds a window to c's memory.
func (m *conn) bind(c *Command) (err error) {
	slot := uint16(c.itt)
	if m.windows[slot] == nil {
		if m.windows[slot], err = m.domain.NewWindow(); err != nil {
			return err
		}
	}
	c.rdma.bind = rdma.Work{
		ID: idBind | uint64(slot), Op: rdma.OpBind, Window: m.windows[slot], SGL: c.rdma.memory,
		Access: c.access() | rdma.AccessRemoteInvalidate,
	}
	return nil
}

// haveBound notes that the first n binds are posted.
func (m *conn) haveBound(n int) {
	for i := range m.binds[:n] {
		m.bound[i].rdma.stag = m.binds[i].STag
	}
	m.binds = m.binds[:copy(m.binds, m.binds[n:])]
	m.bound = m.bound[:copy(m.bound, m.bound[n:])]
}

// isBound: the window has been bound; now the command can be sent.
func (m *conn) isBound(c *Command) error {
	if c == nil || c.rdma.step != stepBinding {
		return errors.New("a window was bound for no command")
	}
	c.rdma.step = stepSent
	m.write(c, c.fields.DataSegmentLength, c.rdma.stag, c.rdma.offset)
	return nil
}

// write writes the message of a command to its slot, and where its parts are to t.sgl.
func (m *conn) write(c *Command, immediate int, stag rdma.STag, off uint64) {
	slot := int(uint16(c.itt))
	at := m.receives*receiveLen + slot*m.slotLen
	b := m.ring.b[at : at : at+m.slotLen]
	switch {
	case c.writes():
		b = m.frame(b, iserhdr.Header{Write: uint32(stag), WriteOffset: off})
	default:
		b = m.frame(b, iserhdr.Header{Read: uint32(stag), ReadOffset: off})
	}
	b = c.fields.AppendTo(b)
	c.rdma.sgl[1] = rdma.SGE{}
	if immediate > 0 {
		if len(c.OutV) > 0 && !c.joined {
			for _, p := range c.OutV { // all of it: less than all is never taken along
				b = append(b, p...)
			}
		} else if c.Memory != nil && c.Memory.region != nil && !c.joined {
			c.rdma.sgl[1] = rdma.SGE{Bytes: c.Out[:immediate], Region: c.Memory.region}
		} else {
			b = append(b, c.Out[:immediate]...)
		}
	}
	c.rdma.sgl[0] = rdma.SGE{Bytes: b, Region: m.ring.region}
}

// haveSent notes that the first n Sends and invalidations are posted.
func (m *conn) haveSent(n int) {
	for i := range m.sends[:n] {
		c := m.senders[i]
		if c == nil {
			continue
		}
		if m.sends[i].Op == rdma.OpBind || m.sends[i].Flags&rdma.Advertise != 0 {
			c.rdma.stag = m.sends[i].STag
		}
		c.rdma.sent = m.sends[i].Op == rdma.OpSend
	}
	m.sends = m.sends[:copy(m.sends, m.sends[n:])]
	m.senders = m.senders[:copy(m.senders, m.senders[n:])]
}

// isClosed: the target has closed an STag with h. The device knows that it was advertised
// here; that it is the one of the command that h ends is for us to see (one-shot.md §5.2).
func (m *conn) isClosed(h pdu.Header, data []byte) error {
	itt := uint32(pdu.ReservedTag)
	switch h.Opcode() {
	case pdu.OpSCSIResponse:
		itt = h.ITT()
	case pdu.OpReject:
		if bad, err := pdu.ParseHeader(data); err == nil && bad.Opcode() == pdu.OpSCSICommand {
			itt = bad.ITT()
		}
	case pdu.OpTaskManagementResponse:
		if call := m.s.calls[h.ITT()]; call != nil {
			itt = call.task
		}
	default:
		return &closeError{m.current.STag, fmt.Sprintf("a %v, which ends no command", h.Opcode())}
	}
	c := m.s.find(itt)
	if c == nil || c.rdma.stag != m.current.STag {
		return &closeError{m.current.STag, fmt.Sprintf("a %v about the ITT %#x, whose memory is another", h.Opcode(), itt)}
	}
	c.rdma.stag = 0
	return nil
}

// closeError says that the target has closed memory with a PDU that does not end the command of that
// memory. Such a target mixes up its tasks, and nothing that it says can be trusted.
type closeError struct {
	stag rdma.STag
	with string
}

func (e *closeError) Error() string {
	return fmt.Sprintf("the target closes STag %#x with %s", uint32(e.stag), e.with)
}

// Terminate is what the target is told (one-shot.md §6, C6).
func (e *closeError) Terminate() (layer, etype, code uint8) { return 0, 2, 7 }

// answered implements mover: it takes the target's access back, where its answer has not.
func (m *conn) answered(c *Command) {
	t := &c.rdma
	if t.answered {
		return
	}
	if !t.sent && !m.closed { // otherwise it would leave after its end, and show memory that is its owner's again
		m.broken(fmt.Errorf("the target answers the command with the ITT %#x, which has not been sent", c.itt))
		return
	}
	t.answered = true
	switch {
	case t.stag == 0 || m.closed:
		m.released(c)
	case m.flow == FlowRegister || m.flow == FlowStatic:
		m.released(c)
	case m.flow == FlowOneShot:
		m.revoke(c)
	case m.current != nil && m.current.Flags&rdma.Invalidated != 0 && m.current.STag == t.stag:
		m.released(c)
	default:
		t.step = stepUnbinding
		m.queue(rdma.Work{
			ID: idInvalidate | uint64(uint16(c.itt)), Op: rdma.OpLocalInvalidate, Flags: rdma.Signaled, STag: t.stag,
		}, nil)
	}
}

// isUnbound: the access that c's memory was reachable by has ended.
func (m *conn) isUnbound(c *Command) {
	if c != nil && c.rdma.step == stepUnbinding {
		m.released(c)
	}
}

// revoke takes an STag back that the target has not closed: the task was aborted.
func (m *conn) revoke(c *Command) {
	s := m.s
	err := m.qp.Revoke(c.rdma.stag, func() {
		go func() { // the lock may be held by who calls
			s.mu.Lock()
			if m.closed || s.slots[uint16(c.itt)] != c {
				s.mu.Unlock()
				return
			}
			m.released(c)
			if s.incoming {
				s.mu.Unlock()
				return
			}
			over := s.finished.remove(c)
			if !over { // it is sent again
				s.issue()
				m.flush()
			}
			s.mu.Unlock()
			if over {
				s.tell(list{c, c})
			}
		}()
	})
	if err != nil {
		m.broken(err)
	}
}

// released gives c's memory back to its owner.
func (m *conn) released(c *Command) {
	if m.closed {
		return // Session.lost ends it
	}
	if r := c.rdma.region; r != nil {
		c.rdma.region = nil
		if err := r.Deregister(); err != nil {
			m.broken(err)
		}
	}
	if b := c.rdma.bounce; b != nil {
		c.rdma.bounce = nil
		c.fill(b.b)
		m.freeing.Go(func() { m.freeBounce(b) })
	}
	m.s.finish(c)
}

// bounce is memory for the data of one command, where the device reaches none but its own.
type bounce struct {
	b      []byte
	region rdma.Region
}

// bounce gives c such memory, if it needs some. Commands with Memory need none, which are those that have to be fast.
func (m *conn) bounce(c *Command) error {
	if m.shares == nil || c.Memory != nil {
		return nil
	}
	b, err := m.shares.Alloc(c.size())
	if err != nil {
		return fmt.Errorf("memory of a command: %w", err)
	}
	c.take(b)
	x := &bounce{b: b}
	x.region, err = m.domain.Register(b, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
	if err != nil {
		_ = m.shares.Free(b)
		return fmt.Errorf("memory of a command: %w", err)
	}
	c.rdma.bounce = x
	return nil
}

func (m *conn) freeBounce(b *bounce) {
	_ = b.region.Deregister()
	_ = m.shares.Free(b.b)
}

// take copies what c writes to b.
func (c *Command) take(b []byte) {
	b = b[copy(b, c.Out):]
	if !c.joined {
		for _, p := range c.OutV {
			b = b[copy(b, p):]
		}
	}
}

// fill copies b to where c reads to.
func (c *Command) fill(b []byte) {
	b = b[copy(c.In, b):]
	if !c.joined {
		for _, p := range c.InV {
			b = b[copy(p, b):]
		}
	}
}
