package remote

import (
	"errors"
	"fmt"

	"oneshot/backend"
	"oneshot/partition/wire"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

var (
	errTag    = errors.New("remote: the service answers a request that was not made")
	errClosed = errors.New("remote: the service closes other memory than that of the request that it answers, or does not close it")
	errDone   = errors.New("remote: the service says that it has done more or less than was asked")
)

// response handles a message of the service. An error ends the connection.
func (q *queuePair) response(b []byte, c *rdma.Completion) error {
	r, _, err := wire.ParseResponse(b)
	if err != nil {
		return fmt.Errorf("remote: %w", err)
	}
	p := q.pieces[r.Tag%maxCredits]
	if p.tag != r.Tag || p.w == nil && !p.ack || !p.posted || p.r.Op != r.Op {
		return errTag
	}
	if closed := c.Flags&rdma.Closed != 0; closed != (p.stag != 0) || closed && c.STag != p.stag || c.Flags&^rdma.Closed != 0 {
		return errClosed
	}
	if r.Status == wire.OK && (r.Op == wire.Read || r.Op == wire.Write || r.Op == wire.Discard) && r.Done != p.r.Length {
		return errDone
	}
	q.link.flying--
	q.credits = int(max(min(r.Credits, uint32(len(q.pieces))), 1))
	if rdma.Generation(r.Durable) == q.generation {
		q.durable = max(q.durable, r.Durable)
	}
	q.placed(p.behind)
	if p.ack {
		if q.acked(p); r.Status != wire.OK { // what is placed is placed
			q.stop(&Error{r.Status})
		}
		return nil
	}
	asks := p.gate && p.again
	if asks {
		p.w.status, p.w.err = rdma.StatusOK, nil
	}
	switch {
	case r.Status != wire.OK:
		q.failed(p, &r)
	case asks && r.Value == 0: // the request itself was executed, which has no number
		p.w.status = rdma.StatusFenced
	case p.w.fence && !p.w.changes() && !p.gate && *q.isBroken(p.w.chain - 1):
		p.w.status = rdma.StatusFenced // of the failure before it, the client alone knows (waitsForForgotten)
	case asks || !p.gate:
		q.succeeded(p.w, &r)
	}
	q.answered(p)
	return nil
}

// succeeded notes what a good response says.
func (q *queuePair) succeeded(w *work, r *wire.Response) {
	if w.flags&rdma.Barrier != 0 {
		q.flushed(w)
	}
	switch r.Op {
	case wire.Read:
		q.n.Reads.Add(1)
		q.n.BytesIn.Add(uint64(r.Done))
	case wire.Write:
		q.n.BytesOut.Add(uint64(r.Done))
		fallthrough
	case wire.Discard:
		w.seq = max(w.seq, r.Value)
		if !w.durable {
			q.highest = max(q.highest, r.Value)
		}
	case wire.Swap, wire.Add:
		if !w.durable {
			q.unnumbered++
		}
		if !w.old.put(w.sgl[0].Bytes, r.Value) {
			w.status, w.err = rdma.StatusLocalProtection, soft.ErrGone
			q.stop(w.err)
		}
	case wire.Flush:
		q.flushed(w)
	}
}

// flushed notes that a flush or a barrier has made durable what was complete when its request was made.
func (q *queuePair) flushed(w *work) {
	if q.info.Durability != rdma.DurabilityNone {
		q.settled = max(q.settled, w.flushs)
	}
}

// statuses of the service, as those of completions. What is not here is a StatusTransport.
var statuses = [...]rdma.Status{
	wire.Malformed: rdma.StatusRemoteOperation,
	wire.NoHandle:  rdma.StatusRemoteAccess, wire.Denied: rdma.StatusRemoteAccess, wire.Outside: rdma.StatusRemoteAccess,
	wire.NotUnits: rdma.StatusRemoteAccess, wire.Gone: rdma.StatusRemoteAccess, wire.Replaced: rdma.StatusRemoteAccess,
	wire.Medium: rdma.StatusMedium, wire.NoSpace: rdma.StatusSpace, wire.Lost: rdma.StatusLost, wire.Fenced: rdma.StatusFenced,
	wire.Ended: rdma.StatusFlushed, wire.Busy: rdma.StatusTransport,
}

// failed gives a work the status of a response. Of several that fail the first by offset counts.
func (q *queuePair) failed(p *piece, r *wire.Response) {
	w, s := p.w, statuses[r.Status]
	var err error = &Error{r.Status}
	if s == rdma.StatusMedium {
		err = &backend.MediumError{Kind: kinds[w.opcode], Off: int64(r.Value), Err: err}
	}
	switch s {
	case rdma.StatusFenced:
		if p.forgotten { // now, but it may have been done before
			s, err = rdma.StatusTransport, errUnknown
		}
	case rdma.StatusRemoteAccess, rdma.StatusRemoteOperation, rdma.StatusTransport:
		q.stop(err)
	case rdma.StatusFlushed: // the service does nothing more of the handle, though the connection is good
		q.stop(err)
		err = q.err
	}
	if w.status == rdma.StatusOK || p.off < w.failed {
		w.status, w.err, w.failed = s, err, p.off
	}
	if w.status != rdma.StatusFenced { // should the connection be lost before the rest has an answer, nobody else will know
		*q.isBroken(w.chain) = true
	}
}

var kinds = [...]backend.Kind{
	rdma.OpRead: backend.Read, rdma.OpWrite: backend.Write, rdma.OpFlush: backend.Flush,
	rdma.OpCompareSwap: backend.Write, rdma.OpFetchAdd: backend.Write, rdma.OpDiscard: backend.Discard,
}

// answered frees p, and ends its work if that was the last of it.
func (q *queuePair) answered(p *piece) {
	w := p.w
	clear(p.memory)
	clear(p.sgl[1:])
	p.w, p.memory, p.sgl = nil, p.memory[:0], p.sgl[:1]
	if p.forgotten {
		p.forgotten = false
		q.forgotten--
	}
	q.freeTag(p)
	w.left--
	if p.gate && w.gate == gateSent {
		if w.gate = gatePassed; w.status != rdma.StatusOK {
			w.gate, w.sent = gateDoomed, w.n
		}
		if w.status == rdma.StatusOK {
			return
		}
		if q.unsent == w {
			q.unsent = w.next
		}
		w.state = running
	}
	if w.left == 0 && w.state == running {
		q.finished(w)
	}
}
