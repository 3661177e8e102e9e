package iwarp

import (
	"context"
	"log/slog"

	"oneshot/ddp"
	"oneshot/internal/invariant"
	"oneshot/internal/iov"
	"oneshot/stag"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// Offences that only a connection can see (iwarp.md §6, one-shot.md §6), made once so that
// hostile octets cost no allocation.
var (
	errMSN          = &ddp.Error{Cause: ddp.UntaggedMSN, Detail: "MSN is not the one that is due"}
	errMO           = &ddp.Error{Cause: ddp.UntaggedMO, Detail: "MO is not what has come of the message"}
	errNoBuffer     = &ddp.Error{Cause: ddp.UntaggedNoBuffer, Detail: "Send without a posted receive"}
	errTooLong      = &ddp.Error{Cause: ddp.UntaggedTooLong, Detail: "Send is longer than its receive"}
	errSegments     = &ddp.Error{Cause: ddp.OpCatastrophicStream, Detail: "segments of one message differ in control word or STag field"}
	errInterleaved  = &ddp.Error{Cause: ddp.NoTerminate, Detail: "messages are interleaved"}
	errNextSTag     = &ddp.Error{Cause: ddp.TaggedInvalidSTag, Detail: "STag changes within a message"}
	errNextTO       = &ddp.Error{Cause: ddp.TaggedBounds, Detail: "TO does not continue the message"}
	errNoRead       = &ddp.Error{Cause: ddp.DDPLocalCatastrophic, Detail: "Read Response without a Read outstanding"}
	errResponseSTag = &ddp.Error{Cause: ddp.TaggedInvalidSTag, Detail: "Read Response for another STag than was asked"}
	errResponseTO   = &ddp.Error{Cause: ddp.TaggedBounds, Detail: "Read Response is not what was asked"}
	errIRD          = &ddp.Error{Cause: ddp.OpCatastrophicStream, Detail: "more Read Requests outstanding than the IRD"}
	errUnknown      = &ddp.Error{Cause: ddp.OpUnexpectedOpcode, Detail: "message that this end does not know"}
	errReceiveGone  = &ddp.Error{Cause: ddp.DDPLocalCatastrophic, Detail: "memory of a receive is no longer registered"}
)

// place determines where the payload of rx.seg goes. b begins with its FPDU, and holds at least as much of
// it as Format.Prefix asks for. errStall: it has to wait, and nothing has changed.
func (q *queuePair) place(b []byte) error {
	x := &q.rx
	x.left, x.cur = 0, iov.Cursor{}
	if !x.open {
		// RFC 5044 §7.1.2: now a responder may send as well.
		x.open = true
		q.mu.Lock()
		q.opened = true
		q.mu.Unlock()
	}
	switch m := x.seg.Message; {
	case m.IsSend():
		return q.placeSend()
	case m == ddp.Write:
		return q.placeWrite(len(b) >= ddp.FPDULen(x.seg.ULPDU))
	case m == ddp.ReadResponse:
		return q.placeResponse()
	case m == ddp.ReadRequest:
		return q.checkReadRequest(b)
	case m == ddp.Terminate:
		return q.terminated(b[x.seg.PayloadOffset() : ddp.LengthLen+x.seg.ULPDU])
	}
	return errUnknown
}

// placed is called when the payload is in its place and the CRC was good.
func (q *queuePair) placed() {
	x := &q.rx
	n := x.seg.PayloadLen()
	last := x.seg.Header.Control().Last()
	switch m := x.seg.Message; {
	case m.IsSend():
		x.bytes += uint64(n)
		if x.got += n; last {
			x.sending, x.pending, x.asked = false, true, false
		}
	case m == ddp.Write:
		q.releaseRx()
		x.bytes += uint64(n)
		q.endTagged(last, n)
		if last && (x.greeted || n > 0) {
			x.messages++
		}
		x.greeted = true
	case m == ddp.ReadResponse:
		x.bytes += uint64(n)
		q.endTagged(last, n)
		q.responsePlaced(n, last)
	}
}

func (q *queuePair) endTagged(last bool, n int) {
	x := &q.rx
	h := x.seg.Header
	x.tagged, x.taggedIs = !last, x.seg.Message
	x.tagSTag, x.tagTO = stag.STag(h.STag()), h.TO()+uint64(n)
}

// releaseRx releases the memory of a tagged segment.
func (q *queuePair) releaseRx() {
	x := &q.rx
	tag := x.ref.STag()
	if x.ref.Release() {
		q.mu.Lock()
		q.lastReference(tag)
		q.unlock()
	}
	x.ref = stag.Ref{}
}

// dropRx is releaseRx with the lock held.
func (q *queuePair) dropRx() {
	x := &q.rx
	tag := x.ref.STag()
	if x.ref.Release() {
		q.lastReference(tag)
	}
	x.ref = stag.Ref{}
}

func (q *queuePair) placeSend() error {
	x := &q.rx
	h, n := x.seg.Header, x.seg.PayloadLen()
	switch {
	case h.MSN() != x.msn-b2u(x.sending):
		return errMSN
	case x.sending && ((h.Control()^x.control)&^ddp.ControlLast != 0 || stag.STag(h.STag()) != x.stag):
		return errSegments
	case int(h.MO()) != b2i(x.sending)*x.got:
		return errMO
	case !x.sending:
		if err := q.takeReceive(); err != nil {
			return err
		}
	}
	if n > x.recv.N-x.got {
		q.closeReceive(rdma.StatusLocalLength, errTooLong)
		return errTooLong
	}
	x.left = n
	x.cur = iov.At(x.recv.Segs, x.got)
	return nil
}

func b2u(b bool) uint32 { return uint32(b2i(b)) }

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// takeReceive takes the receive for the Send that rx.seg begins.
func (q *queuePair) takeReceive() error {
	x := &q.rx
	var waiter *soft.Waiter
	if q.shared {
		waiter = &q.waiter
	}
	taken := q.recv.Take(&x.recv, waiter)
	if !taken && !q.shared && q.onEmpty != nil {
		q.onEmpty()
		taken = q.recv.Take(&x.recv, nil)
	}
	switch {
	case !taken && q.shared:
		return errStall
	case !taken:
		return errNoBuffer
	}
	h := x.seg.Header
	x.sending, x.got = true, 0
	x.msg, x.control, x.stag = x.seg.Message, h.Control(), stag.STag(h.STag())
	x.msn++
	return q.pinReceive()
}

// pinReceive pins the memory of the receive that was taken.
func (q *queuePair) pinReceive() error {
	x := &q.rx
	if !soft.PinAll(x.recv.Regions) {
		x.sending = false
		q.receiveFailed(rdma.StatusLocalProtection, errReceiveGone)
		return errReceiveGone
	}
	x.taken = true
	return nil
}

// placeWrite determines where a Write goes; whole: the FPDU is in the buffer, and its CRC was good.
func (q *queuePair) placeWrite(whole bool) error {
	x := &q.rx
	h, n := x.seg.Header, x.seg.PayloadLen()
	if err := x.continues(h); err != nil {
		return err
	}
	ref, err := q.stream.Acquire(stag.RemoteWrite, stag.STag(h.STag()), h.TO(), uint64(n))
	if err != nil {
		return err
	}
	x.ref = ref
	if x.to, x.toOff = exposed(&x.ref); x.to != nil {
		if !whole {
			x.to = nil
			q.releaseRx()
			return errGather
		}
		return nil
	}
	x.pieces = x.ref.Append(x.pieces[:0], 0, uint64(n))
	x.left, x.cur = n, iov.At(x.pieces, 0)
	return nil
}

// hand gives the payload of a Write to an Exposed.
func (q *queuePair) hand(b []byte) error {
	x := &q.rx
	to := x.to
	x.to = nil
	if err := to.WriteAt(b, x.toOff); err != nil {
		return refused(stag.RemoteWrite, x.ref.STag(), err)
	}
	return nil
}

// continues checks whether a tagged segment continues the message that is under way.
func (x *rx) continues(h ddp.Header) error {
	switch {
	case !x.tagged:
	case x.taggedIs != x.seg.Message:
		return errInterleaved
	case stag.STag(h.STag()) != x.tagSTag:
		return errNextSTag
	case h.TO() != x.tagTO:
		return errNextTO
	}
	return nil
}

func (q *queuePair) placeResponse() error {
	x := &q.rx
	h, n := x.seg.Header, x.seg.PayloadLen()
	if x.tagged && x.taggedIs != x.seg.Message {
		return errInterleaved
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	s := &q.sq
	if len(s.reads) == x.answered {
		return errNoRead
	}
	w := s.At(s.reads[x.answered])
	if w.n == 0 { // RFC 5040 §5.2: STag and TO mean nothing
		if n != 0 || !h.Control().Last() {
			return errResponseTO
		}
		return nil
	}
	r := q.readRequest(w)
	switch {
	case h.STag() != r.SinkSTag:
		return errResponseSTag
	case h.TO() != r.SinkTO+uint64(x.readGot), n > w.n-x.readGot, h.Control().Last() != (x.readGot+n == w.n):
		return errResponseTO
	}
	x.pieces = append(x.pieces[:0], w.segs...) // a copy, because the send queue may move
	x.left, x.cur = n, iov.At(x.pieces, x.readGot)
	return nil
}

// responsePlaced notes what is in its place of a Read Response.
func (q *queuePair) responsePlaced(n int, last bool) {
	x := &q.rx
	if x.readGot += n; !last {
		return
	}
	if x.in.n > 0 {
		q.tell() // of what came before
	}
	x.readGot = 0
	x.answered++
	x.messages++
}

// readsDone ends the Reads that have their Responses.
func (q *queuePair) readsDone() {
	s, n := &q.sq, q.rx.answered
	q.rx.answered = 0
	q.mu.Lock()
	for _, i := range s.reads[:n] {
		w := s.At(i)
		q.unhold(w)
		w.done = true
	}
	s.reads = s.reads[:copy(s.reads, s.reads[n:])]
	q.retire()
	q.mu.Unlock()
}

// checkReadRequest checks a Read Request and queues its Response. It takes everything that it needs from the
// FPDU, which is there as a whole, so the FPDU needs no second step.
func (q *queuePair) checkReadRequest(b []byte) error {
	x := &q.rx
	if x.sending {
		return errInterleaved
	}
	if x.seg.Header.MSN() != x.readMSN {
		return errMSN
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	// The peer may have a Response, and ask again, before the system call that sent it has
	// returned.
	for q.answers.Len() >= q.ird && q.inWrite {
		q.settled.Wait()
	}
	if q.answers.Len() >= q.ird {
		return errIRD
	}
	r := ddp.ParseReadRequest(b[x.seg.PayloadOffset():])
	ref, err := q.stream.Acquire(stag.RemoteRead, stag.STag(r.SrcSTag), r.SrcTO, uint64(r.Size))
	if err != nil {
		return &readError{err, r}
	}
	x.readMSN++
	q.answers.Push(answer{ref: ref, req: r})
	x.messages++
	return nil
}

// readError is an offence of a Read Request, with the request, which the Terminate quotes.
type readError struct {
	error
	request ddp.RDMARead
}

func (e *readError) Unwrap() error { return e.error }

// deliver hands a complete message to its owner. errStall: memory that the message takes back is
// still referenced.
func (q *queuePair) deliver() error {
	x := &q.rx
	invariant.Check(x.taken && x.got <= x.recv.N, "iwarp: a message is delivered that has no receive, or not room in it")
	var flags rdma.CompletionFlags
	switch {
	case x.msg == ddp.SendAdvertise:
		if err := q.hear(x.stag); err != nil {
			return err
		}
		flags = rdma.Advertised
		q.n.Advertises.Add(1)
	case x.msg == ddp.SendClose, x.msg.Invalidates():
		if err := q.ended(); err != nil {
			return err
		}
		flags = rdma.Invalidated
		if x.msg == ddp.SendClose {
			flags = rdma.Closed
			q.n.Closes.Add(1)
		}
	}
	x.pending, x.taken = false, false
	soft.UnpinAll(x.recv.Regions)
	x.messages++
	c := q.received()
	c.ID, c.Op, c.Flags, c.Bytes, c.QueuePair = x.recv.ID, rdma.OpReceive, flags, x.got, q
	if flags != 0 {
		c.STag = rdma.STag(x.stag)
	}
	return nil
}

// hear notes an STag that the peer advertises. The peer may do so because of a closing message whose
// system call has not returned yet, so that the closed STag still counts here.
func (q *queuePair) hear(s stag.STag) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		err := q.peer.Advertise(s)
		if err == nil || !q.inWrite {
			return err
		}
		q.settled.Wait()
	}
}

// ended ends the STag that the message closes or invalidates.
func (q *queuePair) ended() error {
	x := &q.rx
	if x.asked {
		if !x.freed.Load() {
			return errStall
		}
		return nil
	}
	free, err := q.takeBack(x.msg, x.stag)
	if err != nil {
		return err
	}
	if x.asked = true; !free {
		return errStall
	}
	x.freed.Store(true)
	return nil
}

// PeerError is the error that the peer's Terminate message reports.
type PeerError struct {
	Cause ddp.Cause
	read  *ddp.RDMARead // the Read Request that it quotes, if it does
}

// Is reports whether target is rdma.ErrRemoteAccess and the peer has refused access: remote protection (RFC 5040 §4.8),
// or a tagged buffer error (RFC 5041 §7).
func (e *PeerError) Is(target error) bool {
	return target == rdma.ErrRemoteAccess && e.Cause.Layer() <= 1 && e.Cause.Etype() == 1
}

func (e *PeerError) Error() string { return "iwarp: the peer terminates: " + e.Cause.String() }

// terminated handles the peer's Terminate message.
func (q *queuePair) terminated(payload []byte) error {
	t, err := q.format.ParseTerminate(payload)
	if err != nil {
		return err
	}
	q.n.Terminates.Add(1)
	e := &PeerError{Cause: t.Cause}
	attrs := []slog.Attr{
		slog.String("peer", q.tc.RemoteAddr().String()),
		slog.String("reason", t.Cause.String()), slog.Bool("siw_order", t.SiwOrder),
	}
	if t.HasRead {
		attrs = append(attrs, slog.Uint64("src_stag", uint64(t.Read.SrcSTag)))
		e.read = &t.Read
	}
	q.dev.log.LogAttrs(context.Background(), slog.LevelWarn, "iwarp: peer terminates the connection", attrs...)
	return e
}
