package remote

import (
	"errors"

	"oneshot/partition/wire"
	"oneshot/transport/rdma"
)

// piece is a request on its way, or a part of a work without one. A request has its tag, and the memory of its
// message, for good.
type piece struct {
	tag    uint32
	w      *work // nil: free, or ack
	gate   bool
	off, n int64 // of the work
	stag   rdma.STag
	r      wire.Request
	sgl    []rdma.SGE // the message: its header, and what follows
	memory []rdma.SGE // what is advertised, or goes without a request
	direct bool       // it goes without a request; its tag is its position in queuePair.directs
	ack    bool       // it is a READ of no octets behind RDMA Writes, of no work
	posted bool       // it was given to the device below on this connection; before that nobody can answer it
	again  bool       // it was sent on an earlier connection, and is done once; a gate: it asks whether its work was done there
	// forgotten: it was sent on an earlier connection, of which the service knows nothing.
	forgotten bool   // queuePair.forgotten counts it
	behind    uint64 // number of the last RDMA Write before it
}

// flush sends what may be sent, as far as there are credits. The lock is held.
func (q *queuePair) flush() {
	if q.link == nil || !q.link.attached {
		if q.over {
			q.flushUnsent()
		}
		return
	}
	for w := q.unsent; w != nil; w = q.unsent {
		if q.over {
			q.flushUnsent()
			break
		}
		if !q.sendMore(w) {
			break
		}
		w.state = running
		q.unsent = w.next
	}
	if q.link.direct.stag != 0 && q.isUnasked() {
		q.ask()
	}
	q.post()
}

// flushUnsent ends the works of which nothing has been sent, and what is missing of others.
func (q *queuePair) flushUnsent() {
	for w := q.unsent; w != nil; w = q.unsent {
		q.unsent = w.next
		w.state = running
		if w.status == rdma.StatusOK {
			w.status, w.err = rdma.StatusFlushed, q.err
		}
		if w.left == 0 {
			q.finished(w)
		}
	}
}

// sendMore makes requests of w, and reports whether all of it is sent.
func (q *queuePair) sendMore(w *work) bool {
	if !w.began { // what is before it may have ended since it was here last, and found no credits
		w.direct, w.gate = false, noGate
		switch {
		case w.fence && *q.isBroken(w.chain - 1):
			w.status, w.gate = rdma.StatusFenced, gateDue // O6
			w.sent = w.n
		case q.isDirect(w):
			w.direct = true
		case w.fence && q.several(w):
			w.gate = gateDue
		}
	}
	if q.waitsForDirect(w) || q.waitsForForgotten(w) || w.waitsInPlace() {
		return false
	}
	if w.direct {
		return q.sendDirect(w)
	}
	if w.gate == gateDue {
		p := q.newPiece(w)
		if p == nil {
			return false
		}
		p.gate = true
		q.request(p, q.gateOp(), 0, 0)
		w.gate = gateSent
		if w.status == rdma.StatusFenced {
			w.gate = gateDoomed
		}
	}
	switch w.gate {
	case gateSent:
		return false
	case gateDoomed:
		return true
	}
	for first := w.n == 0 && w.sent == 0; first || w.sent < w.n; first = false {
		p := q.newPiece(w)
		if p == nil {
			return false
		}
		p.off, p.n = w.sent, q.next(w)
		w.sent += p.n
		q.request(p, opOf(w.opcode), w.off+p.off, p.n)
	}
	return true
}

// waitsForForgotten reports whether w has a fence, and it is not known yet whether the service executes the fence before it, which was forgotten. If it does
// not, nobody knows whether that work was done, but the service would execute w.
func (q *queuePair) waitsForForgotten(w *work) bool {
	if q.forgotten == 0 || w.began || !w.fence {
		return false
	}
	for _, p := range q.pieces {
		if p.forgotten && p.w.fence && p.w.chain == w.chain-1 {
			return true
		}
	}
	return false
}

// waitsInPlace reports whether w has to wait for a Read in the place of a work that was given up. The service knows nothing of that one, so it may
// execute w before the Read.
func (w *work) waitsInPlace() bool {
	if !w.behind || w.began {
		return false
	}
	for v := w.prev; v != nil; v = v.prev {
		if v.opcode == rdma.OpRead && v.state != complete {
			return true
		}
	}
	return false
}

// bound is how many octets one request of w may have.
func (q *queuePair) bound(w *work) int64 {
	switch w.opcode {
	case rdma.OpRead, rdma.OpWrite:
		return q.most
	case rdma.OpDiscard:
		return maxDiscard
	}
	return w.n
}

// several reports whether w takes more than one request.
func (q *queuePair) several(w *work) bool {
	return w.n > q.bound(w) || q.dev.static && len(w.sgl) > 1
}

// next is how many octets the next request of w has. Where memory is named, it lies in one element.
func (q *queuePair) next(w *work) int64 {
	n := min(w.n-w.sent, q.bound(w))
	if !q.dev.static || w.opcode != rdma.OpRead && w.opcode != rdma.OpWrite {
		return n
	}
	at := w.sent
	for _, e := range w.sgl {
		if at < int64(len(e.Bytes)) {
			return min(n, int64(len(e.Bytes))-at)
		}
		at -= int64(len(e.Bytes))
	}
	return n
}

// newPiece takes a tag. Nil: there are no more credits.
func (q *queuePair) newPiece(w *work) *piece {
	p := q.newTag()
	if p != nil {
		p.w, w.began = w, true
		w.left++
	}
	return p
}

func (q *queuePair) newTag() *piece {
	if q.out >= q.credits || len(q.tags) == 0 {
		return nil
	}
	k := len(q.tags) - 1
	p := q.pieces[q.tags[k]]
	q.tags = q.tags[:k]
	p.gate, p.off, p.n, p.stag, p.again, p.forgotten, p.posted = false, 0, 0, 0, false, false, false
	// So the service does not take it for one before, of which it has the result. A tag comes again after 2^26 uses of its position. By then
	// the service has forgotten the result (service.tagLife), and its answer has come long ago: answers come in order, each once, on
	// the connection of their request alone.
	p.tag += maxCredits
	q.out++
	return p
}

// freeTag is the end of newTag.
func (q *queuePair) freeTag(p *piece) {
	q.tags = append(q.tags, p.tag%maxCredits)
	q.out--
}

var ops = [...]wire.Op{
	rdma.OpRead: wire.Read, rdma.OpWrite: wire.Write, rdma.OpFlush: wire.Flush, rdma.OpCompareSwap: wire.Swap,
	rdma.OpFetchAdd: wire.Add, rdma.OpDiscard: wire.Discard,
}

func opOf(o rdma.Opcode) wire.Op { return ops[o] }

// gateOp is an operation that may be asked for on no octets, and does nothing then.
func (q *queuePair) gateOp() wire.Op {
	switch r := q.info.Rights; {
	case r&rdma.RightRead != 0:
		return wire.Read
	case r&rdma.RightWrite != 0:
		return wire.Write
	case r&rdma.RightDiscard != 0:
		return wire.Discard
	case r&rdma.RightFlush != 0:
		return wire.Flush
	}
	return wire.Read // for which services ask for no right by now
}

// request makes the message of p and queues it.
func (q *queuePair) request(p *piece, op wire.Op, off, n int64) {
	w := p.w
	p.r = wire.Request{Op: op, Tag: p.tag, Handle: q.handle, Length: uint32(n), Offset: uint64(off)}
	if w.stag != q.info.STag && op != wire.Flush {
		p.r.Handle = uint32(w.stag) // the service will say what it thinks of it
	}
	if w.gate == noGate || p.gate {
		if w.flags&rdma.Fence != 0 {
			p.r.Flags |= wire.Fence
		}
		if w.flags&rdma.Barrier != 0 {
			p.r.Flags |= wire.Barrier
		}
	}
	if w.flags&rdma.RelaxedOrder != 0 {
		p.r.Flags |= wire.Relaxed
	}
	if p.r.Flags&wire.Barrier != 0 && !p.again { // else it may have been executed when less was complete
		w.flushs = q.unnumbered
	}
	if w.durable && !p.gate && op != wire.Read && op != wire.Flush {
		p.r.Flags |= wire.Durable
	}
	if !p.gate {
		switch op {
		case wire.Swap, wire.Add:
			p.r.Compare, p.r.New = w.compare, w.operand
			if op == wire.Add {
				p.r.Compare = 0
			}
		case wire.Flush:
			w.flushs = q.unnumbered
		}
	}
	q.resend(p)
}

// resend queues the message of p, with its memory.
func (q *queuePair) resend(p *piece) {
	w := p.w
	p.r.Handle = q.handleOf(p)
	if p.r.Flags &^= wire.Inline | wire.Again; p.again {
		p.r.Flags |= wire.Again
	}
	p.r.STag, p.r.TO, p.stag, p.posted = 0, 0, 0, false
	x := rdma.Work{Op: rdma.OpSend}
	if q.link.direct.stag != 0 && q.waitsForReads(w) {
		x.Flags = rdma.Fence
	}
	p.sgl = p.sgl[:1]
	if !p.gate && p.n > 0 && (w.opcode == rdma.OpRead || w.opcode == rdma.OpWrite) {
		p.memory = slice(p.memory[:0], w.sgl, p.off, p.n)
		switch {
		case w.opcode == rdma.OpWrite && p.n <= q.inline && len(p.memory) < q.dev.limits.MaxSGE:
			p.r.Flags |= wire.Inline
			p.sgl = append(p.sgl, p.memory...)
		case q.dev.static:
			r := p.memory[0].Region
			at, _ := offset(p.memory[0].Bytes, r.Bytes())
			p.r.STag, p.r.TO = uint32(r.STag()), r.Base()+at
		default:
			x.Flags |= rdma.Advertise
			x.Memory, x.Access = p.memory, rdma.AccessRemoteRead
			if w.opcode == rdma.OpRead {
				x.Access = rdma.AccessRemoteWrite
			}
		}
	}
	b := p.sgl[0].Bytes
	p.r.AppendTo(b[:0])
	x.SGL = p.sgl
	q.sends = append(q.sends, x)
	q.senders = append(q.senders, p)
}

// handleOf is the handle of a request: that of the connection, unless the owner has asked for another STag.
func (q *queuePair) handleOf(p *piece) uint32 {
	if p.w.stag != q.info.STag && p.r.Op != wire.Flush {
		return uint32(p.w.stag)
	}
	return q.handle
}

// slice appends [off, off+n) of a scatter/gather list.
func slice(to, sgl []rdma.SGE, off, n int64) []rdma.SGE {
	for _, e := range sgl {
		if off >= int64(len(e.Bytes)) {
			off -= int64(len(e.Bytes))
			continue
		}
		k := min(n, int64(len(e.Bytes))-off)
		to = append(to, rdma.SGE{Bytes: e.Bytes[off : off+k : off+k], Region: e.Region})
		if n -= k; n == 0 {
			break
		}
		off = 0
	}
	return to
}

// signalEvery is how often a Send is signalled, so that the device below frees the others.
const signalEvery = 16

// due is how much of what is queued may be posted. All of it, unless the service has come back with fewer credits than there are requests to be repeated.
func (q *queuePair) due() int {
	credits := q.credits - q.link.flying
	for i, p := range q.senders {
		if p.direct {
			continue
		}
		if credits--; credits < 0 {
			return i
		}
	}
	return len(q.senders)
}

// post posts what is queued.
func (q *queuePair) post() {
	due := q.due()
	if due == 0 {
		return
	}
	l := q.link
	for i := range q.sends[:due] {
		if l.sends++; l.sends%signalEvery == 0 && q.sends[i].Flags&rdma.Advertise == 0 {
			q.sends[i].Flags |= rdma.Signaled
		}
	}
	n, err := l.qp.Post(q.sends[:due])
	for i, p := range q.senders[:n] {
		if p.stag, p.posted = q.sends[i].STag, true; !p.direct {
			l.flying++
		}
		l.direct.posted(p)
	}
	k := copy(q.sends, q.sends[n:])
	clear(q.sends[k:])
	q.sends = q.sends[:k]
	k = copy(q.senders, q.senders[n:])
	clear(q.senders[k:])
	q.senders = q.senders[:k]
	switch {
	case err == nil || errors.Is(err, rdma.ErrFull) || errors.Is(err, rdma.ErrWindow) || errors.Is(err, rdma.ErrDisconnected):
		return // there will be a completion, or the end of the connection
	}
	// The owner has deregistered memory of this work. That ends the queue pair, and is the fault of this work alone.
	q.stop(err)
	if w := q.senders[0].w; w != nil && w.status == rdma.StatusOK {
		w.status, w.err = rdma.StatusLocalProtection, err
	}
	for len(q.senders) > 0 {
		q.unqueue(0)
	}
}

// unqueue ends a request that was not sent and will not be.
func (q *queuePair) unqueue(i int) {
	p := q.senders[i]
	q.sends = append(q.sends[:i], q.sends[i+1:]...)
	q.senders = append(q.senders[:i], q.senders[i+1:]...)
	if p.ack {
		q.acked(p)
		return
	}
	if w := p.w; w.status == rdma.StatusOK {
		w.status, w.err = rdma.StatusFlushed, q.err
	}
	if p.direct {
		q.ended(p)
		return
	}
	q.answered(p)
}
