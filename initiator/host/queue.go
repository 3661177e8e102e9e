package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"oneshot/mem"
	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
	"oneshot/transport/bytestream"
)

// queue is a queue of a controller: a connection.
type queue struct {
	c     *Controller
	id    uint16
	ic    pdu.IC // of the controller: CPDA, digests, MAXH2CDATA
	ended chan struct{}

	mu         sync.Mutex
	link       bytestream.Link[Command] // guarded by mu, as is what follows
	capsule    int                      // bytes of data in a capsule
	slots      []*Command               // by the low bits of their CID
	uses       []uint16                 // of each slot, so that a CID does not come again soon
	free       []uint16
	waiting    list // for a slot
	finished   list // Done is to be called
	delivering bool // somebody calls Done, and sends then what is queued
	err        error
	commands   uint64
}

var (
	_ bytestream.Mover = (*queue)(nil)
	_ bytestream.Conn  = (*queue)(nil)
)

const (
	// slotBits name a slot in a CID.
	slotBits = 10
	// adminCapsule is the data that a capsule of an admin queue may have (NVMe/TCP 1.0 §3.5.1.3), and any before Connect.
	adminCapsule = 8 << 10
	// maxUses keeps CIDs from being FFFFh, which names no command.
	maxUses = 1<<(16-slotBits) - 1
	// maxHeavy is how many bytes of control PDUs may wait for the socket, of which a host sends hardly any.
	maxHeavy = 64 << 10
	// maxData is the most data in one PDU that is taken: that of any command.
	maxData = 1 << 30
)

var sizes = bytestream.Sizes{Len: 128 << 10, Read: 128 << 10, Room: 4 << 10}

// open connects, and exchanges ICReq and ICResp (NVMe/TCP 1.0 §3.6.2.2).
func (c *Controller) open(ctx context.Context, qid uint16, depth int) (*queue, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", c.url.Address)
	if err != nil {
		return nil, err
	}
	q := &queue{
		c: c, id: qid, ended: make(chan struct{}), capsule: adminCapsule, slots: make([]*Command, depth), uses: make([]uint16, depth),
	}
	for i := range depth {
		q.free = append(q.free, uint16(depth-1-i))
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	q.ic, err = c.initialize(conn)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = q.link.Open(conn.(*net.TCPConn), q, sizes)
	}
	if err != nil {
		_ = conn.Close()
		return nil, errors.Join(ctx.Err(), err)
	}
	q.link.Heavy = maxHeavy
	q.link.Attach(q)
	c.wg.Go(func() {
		err := q.link.Read(q.link.Look)
		q.link.End(err)
		close(q.ended)
	})
	return q, nil
}

func (c *Controller) initialize(conn net.Conn) (answer pdu.IC, err error) {
	asked := c.url.ic()
	if _, err = conn.Write(asked.AppendTo(nil, pdu.ICReq)); err != nil {
		return answer, err
	}
	b := make([]byte, pdu.ICLen)
	if _, err = io.ReadFull(conn, b[:pdu.CommonLen]); err != nil {
		return answer, fmt.Errorf("no answer to ICReq: %w", err)
	}
	s, wrong := pdu.Header(b).CheckResponse(false, false, pdu.MaxTermData)
	if wrong != nil {
		return answer, wrong
	}
	if _, err = io.ReadFull(conn, b[pdu.CommonLen:s.Head]); err != nil {
		return answer, err
	}
	if pdu.Header(b).Type() != pdu.ICResp {
		return answer, ended(b)
	}
	answer = pdu.ParseIC(b)
	const least = 4096
	switch {
	case answer.Format != 0:
		return answer, fmt.Errorf("the controller answers with version %d of the PDU format", answer.Format)
	case answer.Align > pdu.MaxAlign || answer.Max < least || answer.Max%4 != 0:
		return answer, fmt.Errorf("the controller wants data aligned by %d, and at most %d bytes at a time, which the standard excludes", answer.Align, answer.Max)
	case answer.HeaderDigest != asked.HeaderDigest || answer.DataDigest != asked.DataDigest:
		return answer, errors.New("the controller does not agree to the digests that were asked for")
	}
	return answer, nil
}

// ended is the error of a termination request, or of another PDU out of place.
func ended(b []byte) error {
	if pdu.Header(b).Type() != pdu.C2HTermReq {
		return fmt.Errorf("a PDU of type %#02x out of place", b[0])
	}
	f, info := pdu.ParseTerm(b)
	return fmt.Errorf("the controller has ended the connection: %v (%#x)", f, info)
}

// connected says that capsules may have n bytes of data; 0: as many as before.
func (q *queue) connected(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.id != 0 {
		q.capsule = n
	}
}

// Lock implements bytestream.Conn.
func (q *queue) Lock() { q.mu.Lock() }

// Unlock sends what is queued and calls Done of what has ended, unless somebody is about to.
func (q *queue) Unlock() {
	for !q.delivering {
		if q.finished.head == nil {
			q.link.Flush()
		}
		if q.finished.head == nil {
			break
		}
		q.delivering = true
		for q.finished.head != nil {
			done := q.finished
			q.finished = list{}
			q.mu.Unlock()
			for x := done.pop(); x != nil; x = done.pop() {
				x.Done(x)
			}
			q.mu.Lock()
		}
		q.delivering = false
	}
	q.mu.Unlock()
}

// LeaseInput implements bytestream.Conn.
func (q *queue) LeaseInput(n int) *mem.Lease { return q.c.pool.Lease(n) }

// Heard implements bytestream.Conn.
func (q *queue) Heard() {}

// Lost implements bytestream.Conn: no command will be answered any more.
func (q *queue) Lost(err error) {
	if q.err == nil {
		if q.err = err; err == nil {
			q.err = errGone
		}
	}
	for i, x := range q.slots {
		if x != nil {
			q.slots[i] = nil
			x.Err = q.err
			q.finish(x)
		}
	}
	for x := q.waiting.pop(); x != nil; x = q.waiting.pop() {
		x.Err = q.err
		q.finished.push(x)
	}
}

// alive reports whether commands can be sent.
func (q *queue) alive() bool {
	select {
	case <-q.ended:
		return false
	default:
		return true
	}
}

// fail ends the connection, because of err if there is no reason yet.
func (q *queue) fail(err error) {
	q.Lock()
	if q.err == nil {
		q.err = err
	}
	q.link.Terminate(true)
	q.Unlock()
}

// close ends the connection, and returns when it has.
func (q *queue) close() {
	q.fail(errClosed)
	<-q.ended
}

// cause is why the queue has ended.
func (q *queue) cause() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}

// start sends commands.
func (q *queue) start(commands ...*Command) {
	q.Lock()
	for _, x := range commands {
		x.Err, x.CQE, x.Transferred = nil, nvme.CQE{}, 0
		x.state, x.unsent, x.over, x.last, x.bad = sendCapsule, 0, false, false, false
		switch {
		case q.err != nil:
			x.Err = q.err
		case x.Fuse != nvme.NotFused && len(q.slots) < 2: // the controller would wait for the second of the pair, and that one for the first one's slot
			x.Err = errOneSlot
		default:
			q.waiting.push(x)
			continue
		}
		q.finished.push(x)
	}
	q.issue()
	q.Unlock()
}

// issue gives slots to commands that wait for one.
func (q *queue) issue() {
	for len(q.free) > 0 && q.waiting.head != nil && q.err == nil {
		x := q.waiting.pop()
		i := q.free[len(q.free)-1]
		q.free = q.free[:len(q.free)-1]
		q.uses[i] = (q.uses[i] + 1) % maxUses
		x.cid = i | q.uses[i]<<slotBits
		q.slots[i] = x
		q.commands++
		if len(x.In) > 0 {
			x.piece[0] = x.In
			x.sink.Fill(x.piece[:])
		}
		q.send(x)
	}
}

// do executes commands; see Controller.Do.
func (q *queue) do(ctx context.Context, commands ...*Command) error {
	ended := make(chan struct{}, len(commands))
	for _, x := range commands {
		x.Done = func(*Command) { ended <- struct{}{} }
	}
	q.start(commands...)
	for range commands {
		select {
		case <-ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, x := range commands {
		if err := x.Failure(); err != nil {
			return err
		}
	}
	return nil
}

// find returns the command of a CID that is under way, or nil.
func (q *queue) find(cid uint16) *Command {
	if i := int(cid & (1<<slotBits - 1)); i < len(q.slots) {
		if x := q.slots[i]; x != nil && x.cid == cid {
			return x
		}
	}
	return nil
}

// named returns the CID with which x is under way.
func (q *queue) named(x *Command) (cid uint16, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return x.cid, q.find(x.cid) == x
}

// answered ends a command, which gives up its slot.
func (q *queue) answered(x *Command) {
	i := x.cid & (1<<slotBits - 1)
	q.slots[i] = nil
	q.free = append(q.free, i)
	if x.Transferred = x.sink.Got; x.bad && x.Err == nil {
		x.Err = errDataDigest
	}
	q.finish(x)
	q.issue()
}

// finish has Done called as soon as nothing of x waits for the socket.
func (q *queue) finish(x *Command) {
	q.link.In.Forget(x)
	x.over = true
	if x.unsent == 0 {
		x.sink.Reset()
		q.finished.push(x)
	}
}

// ---- sending ----

// send queues the next part of x.
func (q *queue) send(x *Command) {
	x.unsent++
	q.link.Answer(x)
}

// Fill implements bytestream.Mover.
func (q *queue) Fill() {
	for x := q.link.Out.Next(); x != nil; x = q.link.Out.Next() {
		if x.state == sendCapsule {
			q.cutCapsule(x)
		} else {
			q.cutData(x)
		}
		q.link.Out.Made()
	}
}

// flags are those of a PDU, with data or without.
func (q *queue) flags(data bool) (f uint8) {
	if q.ic.HeaderDigest {
		f |= pdu.FlagHeaderDigest
	}
	if data && q.ic.DataDigest {
		f |= pdu.FlagDataDigest
	}
	return f
}

// cutCapsule queues the capsule of x, with its data if they fit (NVMe/TCP 1.0 §3.6.2.4).
func (q *queue) cutCapsule(x *Command) {
	x.state = sendData
	e := nvme.Command{Opcode: x.Opcode, Fuse: x.Fuse, CID: x.cid, NSID: x.NSID, DWords: x.DWords}
	e.SGL = nvme.SGL{Length: uint32(max(len(x.Out), len(x.In))), Type: nvme.SGLTransport}
	inside := x.Out
	if len(x.Out) > q.capsule {
		inside = nil
	}
	pdo := 0
	if len(inside) > 0 {
		e.SGL.Type = nvme.SGLInCapsule
		pdo = pdu.DataStart(pdu.CapsuleCmdLen, q.ic.HeaderDigest, q.ic.Align)
	}
	b := pdu.AppendCommand(x.head[:0], q.flags(len(inside) > 0), &e, pdo, len(inside))
	q.cut(b, pdo, inside)
}

// cut queues the header b of a PDU, whose data begin at pdo, with digests. It returns b with them.
func (q *queue) cut(b []byte, pdo int, data []byte) []byte {
	if q.ic.HeaderDigest {
		b = pdu.Digest(0).Update(b).AppendTo(b)
	}
	for len(data) > 0 && len(b) < pdo {
		b = append(b, 0)
	}
	q.link.Out.Add(b)
	if len(data) == 0 {
		return b
	}
	q.link.Out.Add(data)
	if n := len(b); q.ic.DataDigest {
		b = pdu.Digest(0).Update(data).AppendTo(b)
		q.link.Out.Add(b[n:])
	}
	return b
}

// cutData queues the data that an R2T asks for (NVMe/TCP 1.0 §3.6.2.6).
func (q *queue) cutData(x *Command) {
	r := x.ready
	most := q.ic.Max
	pdo := pdu.DataStart(pdu.DataLen, q.ic.HeaderDigest, q.ic.Align)
	each := pdo + pdu.DigestLen
	// All headers are in memory before the first is queued: they must not move.
	pieces := int((r.Len-1)/most) + 1
	x.dataHead = slices.Grow(x.dataHead[:0], pieces*each)
	for off := uint32(0); off < r.Len; off += most {
		n := min(most, r.Len-off)
		flags := q.flags(true)
		if off+n == r.Len {
			flags |= pdu.FlagLast
		}
		at := r.Offset + off
		d := pdu.Data{CID: x.cid, Tag: r.Tag, Offset: at, Len: n}
		start := len(x.dataHead)
		b := d.AppendTo(x.dataHead[start:start:start+each], pdu.H2CData, flags, pdo)
		b = q.cut(b, pdo, x.Out[at:at+n])
		x.dataHead = x.dataHead[:start+len(b)]
	}
}

// Release implements bytestream.Mover.
func (q *queue) Release() {
	for x := q.link.Out.Left(); x != nil; x = q.link.Out.Left() {
		q.left(x)
	}
}

// Abandon implements bytestream.Mover.
func (q *queue) Abandon() {
	for x := q.link.Out.Drop(); x != nil; x = q.link.Out.Drop() {
		q.left(x)
	}
}

func (q *queue) left(x *Command) {
	if x.unsent--; x.unsent == 0 && x.over {
		x.sink.Reset()
		q.finished.push(x)
	}
}

// ---- receiving ----

// Parse implements bytestream.Mover.
func (q *queue) Parse() error {
	for {
		switch q.link.Step() {
		case bytestream.Wait:
			return nil
		case bytestream.Data:
			if x, good := q.link.In.Done(); x != nil {
				q.arrived(x, good)
			}
		case bytestream.Header:
			if more, err := q.header(); err != nil || !more {
				return err
			}
		}
	}
}

// header takes the next PDU's header. False: it has not come as a whole.
func (q *queue) header() (bool, error) {
	b := q.link.In.Bytes()
	if len(b) < pdu.CommonLen {
		return false, nil
	}
	h := pdu.Header(b)
	s, wrong := h.CheckResponse(q.ic.HeaderDigest, q.ic.DataDigest, maxData)
	if wrong != nil {
		return false, wrong
	}
	if len(b) < s.Head {
		return false, nil
	}
	n := h.HLen()
	if s.Head > n && !pdu.Digest(0).Update(b[:n]).Matches(b[n:]) {
		return false, &pdu.Error{Fatal: pdu.HeaderDigestError, What: "the digest of a header does not match"}
	}
	switch h.Type() {
	case pdu.CapsuleResp:
		q.link.In.Skip(s.Head)
		return true, q.response(nvme.ParseCQE(b[pdu.CommonLen:]))
	case pdu.C2HData:
		return true, q.dataIn(pdu.ParseData(b), h.Flags(), s)
	case pdu.R2T:
		q.link.In.Skip(s.Head)
		return true, q.readyToTransfer(pdu.ParseReady(b))
	}
	return false, ended(b)
}

// unknown is a PDU about a command that is not under way.
func unknown(what string, cid uint16) error {
	return &pdu.Error{Fatal: pdu.SequenceError, What: fmt.Sprintf("%s for the command %#04x, which is not under way", what, cid)}
}

// response ends a command (NVMe/TCP 1.0 §3.6.2.5).
func (q *queue) response(e nvme.CQE) error {
	x := q.find(e.CID)
	if x == nil {
		return unknown("a response", e.CID)
	}
	x.CQE = e
	q.answered(x)
	return nil
}

// dataIn takes a C2HData PDU (NVMe/TCP 1.0 §3.6.2.7).
func (q *queue) dataIn(d pdu.Data, flags uint8, s pdu.Shape) error {
	x := q.find(d.CID)
	switch {
	case x == nil:
		return unknown("data", d.CID)
	case d.Len != uint32(s.Len):
		return &pdu.Error{Fatal: pdu.InvalidHeaderField, Info: pdu.OffDataLen, What: fmt.Sprintf("%d bytes of data in a PDU that says %d", s.Len, d.Len)}
	case int(d.Offset) != x.sink.Got || s.Len > len(x.In)-x.sink.Got:
		return &pdu.Error{Fatal: pdu.DataOutOfRange, What: fmt.Sprintf("%d bytes of data at %d, after %d of %d", d.Len, d.Offset, x.sink.Got, len(x.In))}
	case flags&pdu.FlagSuccess != 0 && flags&pdu.FlagLast == 0:
		return &pdu.Error{Fatal: pdu.InvalidHeaderField, Info: 1, What: "the flag SUCCESS without LAST_PDU"}
	}
	x.last = flags&pdu.FlagSuccess != 0
	q.link.In.Begin(bytestream.Segment{Head: s.Head, Lead: s.Data - s.Head, Len: s.Len, Digest: s.End > s.Data+s.Len}, x, &x.sink, s.Len)
	return nil
}

// arrived says that the data of a PDU for x are in; good: their digest matched.
func (q *queue) arrived(x *Command, good bool) {
	x.bad = x.bad || !good
	if x.last {
		q.answered(x)
	}
}

// readyToTransfer has data sent (NVMe/TCP 1.0 §3.6.2.8). There is one R2T at a time, for that is what ICReq asks for.
func (q *queue) readyToTransfer(r pdu.Ready) error {
	x := q.find(r.CID)
	switch {
	case x == nil:
		return unknown("an R2T", r.CID)
	case x.unsent > 0:
		return &pdu.Error{Fatal: pdu.SequenceError, What: fmt.Sprintf("an R2T for the command %#04x, which is being sent", r.CID)}
	case r.Len == 0 || uint64(r.Offset)+uint64(r.Len) > uint64(len(x.Out)):
		return &pdu.Error{Fatal: pdu.DataOutOfRange, What: fmt.Sprintf("an R2T for %d bytes at %d of %d", r.Len, r.Offset, len(x.Out))}
	}
	x.ready = r
	q.send(x)
	return nil
}

// Blame implements bytestream.Mover: it tells the controller that it broke the rules, if that is what err says (NVMe/TCP 1.0 §3.5).
func (q *queue) Blame(err error) error {
	if q.err == nil && err != io.EOF {
		q.err = err
		q.c.opt.Logger.Warn("connection dropped", "reason", err, "queue", q.id)
	}
	e, broken := errors.AsType[*pdu.Error](err)
	if !broken {
		return err
	}
	offender := q.link.In.Bytes()
	c := q.link.Out.Control()
	c.Buf = pdu.AppendTerm(c.Buf, pdu.H2CTermReq, e, offender[:min(len(offender), pdu.MaxTermData)])
	q.link.Send(c)
	q.link.In.Drop()
	q.link.Terminate(false)
	return nil
}
