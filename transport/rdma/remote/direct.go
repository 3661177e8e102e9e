package remote

import (
	"errors"

	"oneshot/partition/wire"
	"oneshot/transport/rdma"
)

// A partition in memory has an STag at the wire. A Read or Write of it is an RDMA Read or Write, and no request, if
// that keeps the order: what comes behind it on the connection finds it done, but it does not wait for requests that
// are under way. So on a strict queue pair it goes in that way if no request is outstanding, and so it does with a
// fence; with FreeStart it does in any case.
//
//	what is posted             on the wire                                  is complete when
//	Read                       Read Request ─► Read Response                the Response is here
//	Write                      RDMA Write                                   something sent behind it is answered:
//	Write, and nothing behind  RDMA Write, READ of no octets ─► response    a Response, or a response
//
// A request that may not pass Reads has the device below hold it back until they are complete (rdma.Fence).
type direct struct {
	stag rdma.STag // of the partition at this connection; 0: there is none
	base uint64

	// Numbers of RDMA Writes that were posted on this connection.
	written  uint64
	answered uint64   // up to this one they are known to be placed
	asked    uint64   // up to this one something behind them is on its way that will be answered
	writes   []*piece // that are not known to be placed, in order
	reads    int      // RDMA Reads under way
	acks     int      // READs of no octets under way
}

const (
	// idDirect is the ID of RDMA Reads and Writes; the position in queuePair.directs is added.
	idDirect = 1 << 62
	// maxDirects is how many parts of works may be under way without a request.
	maxDirects = 128
	// maxAcks is how many READs of no octets are under way at most. While there are as many, Writes wait for the
	// next one.
	maxAcks = 4
)

// isDirect reports whether w goes without a request, now that it is about to be sent.
func (q *queuePair) isDirect(w *work) bool {
	l := q.link
	right := rdma.RightRead
	switch {
	case l.direct.stag == 0:
		return false
	case w.opcode == rdma.OpWrite:
		right = rdma.RightWrite
	case w.opcode != rdma.OpRead || l.qp.Reads() == 0:
		return false
	}
	switch {
	case w.n == 0 || w.stag != q.info.STag || q.info.Rights&right == 0 || w.flags&(rdma.Barrier|rdma.Durable) != 0:
		return false
	}
	return !q.isStrict(w) && !w.fence || q.out == l.direct.acks
}

// waitsForDirect reports whether w would change what an RDMA Write changes that is not known to be placed, or may tell others that what is before it
// is done. Should the connection be lost, the Write is repeated, and what w has done is there already: w would be undone, or the Write would come on
// top of what others have written who have seen w. So w waits, if it changes octets and has a fence, and so does an atomic operation that comes
// behind any such Write: it may release a lock.
func (q *queuePair) waitsForDirect(w *work) bool {
	if !w.changes() {
		return false
	}
	behind := w.fence || w.isAtomic() && q.isStrict(w)
	for _, list := range [...][]*piece{q.link.direct.writes, q.senders} {
		for _, p := range list {
			if !p.direct || p.w == w || p.w.opcode != rdma.OpWrite {
				continue
			}
			if behind || !w.direct && w.off < p.w.off+p.off+p.n && p.w.off+p.off < w.off+w.n {
				return true
			}
		}
	}
	return false
}

// sendDirect sends parts of w, and reports whether all of it is sent.
func (q *queuePair) sendDirect(w *work) bool {
	for w.sent < w.n {
		p := q.newDirect(w)
		if p == nil {
			return false
		}
		p.off, p.n = w.sent, q.directLen(w)
		w.sent += p.n
		q.resendDirect(p)
	}
	return true
}

// directLen is how many octets the next part of w has.
func (q *queuePair) directLen(w *work) int64 {
	n := min(w.n-w.sent, q.most)
	most := q.dev.limits.MaxSGE
	if w.opcode == rdma.OpRead {
		most = q.dev.limits.MaxReadSGE
	}
	if len(w.sgl) <= most {
		return n
	}
	at, sum := w.sent, int64(0)
	for _, e := range w.sgl {
		k := int64(len(e.Bytes))
		if at >= k {
			at -= k
			continue
		}
		if most--; most < 0 {
			break
		}
		sum += k - at
		at = 0
	}
	return min(n, sum)
}

// newDirect returns a piece of w that has no tag. Nil: there are too many.
func (q *queuePair) newDirect(w *work) *piece {
	var p *piece
	if k := len(q.freeDirects); k > 0 {
		p = q.freeDirects[k-1]
		q.freeDirects = q.freeDirects[:k-1]
	} else if len(q.directs) < maxDirects {
		p = &piece{tag: uint32(len(q.directs)), direct: true}
		q.directs = append(q.directs, p)
	} else {
		return nil
	}
	p.w, w.began = w, true
	w.left++
	return p
}

// resendDirect queues the RDMA Read or Write of p.
func (q *queuePair) resendDirect(p *piece) {
	w, d := p.w, &q.link.direct
	p.memory = slice(p.memory[:0], w.sgl, p.off, p.n)
	x := rdma.Work{
		ID: idSend | idDirect | uint64(p.tag), Op: w.opcode, SGL: p.memory,
		RemoteSTag: d.stag, RemoteOffset: d.base + uint64(w.off+p.off),
	}
	if w.opcode == rdma.OpRead {
		x.Flags |= rdma.Signaled
	}
	if (w.fence || w.behind) && p.off == 0 {
		x.Flags |= rdma.Fence
	}
	q.sends = append(q.sends, x)
	q.senders = append(q.senders, p)
}

// waitsForReads reports whether a request of w has to wait for RDMA Reads before it: if it has a fence, and if it
// does on a strict queue pair what only a Write may do before an earlier Read has read (O1), or is the first behind one that did.
func (q *queuePair) waitsForReads(w *work) bool {
	return w.behind || w.fence || q.isStrict(w) && w.opcode != rdma.OpRead && w.opcode != rdma.OpWrite
}

// isStrict reports whether w comes behind what was posted before (O1).
func (q *queuePair) isStrict(w *work) bool {
	return q.order&rdma.FreeStart == 0 && w.flags&rdma.RelaxedOrder == 0
}

// posted notes that p was posted.
func (d *direct) posted(p *piece) {
	switch {
	case !p.direct:
		p.behind = d.written
		d.asked = d.written
	case p.w.opcode == rdma.OpRead:
		p.behind = d.written
		d.asked = d.written
		d.reads++
	default:
		d.written++
		d.writes = append(d.writes, p)
	}
}

// ask queues a READ of no octets if there are Writes behind which nothing comes that will be answered.
func (q *queuePair) ask() {
	if q.link.direct.acks >= maxAcks {
		return
	}
	p := q.newTag()
	if p == nil {
		return // the response that frees a tag brings us here
	}
	p.ack = true
	q.link.direct.acks++
	p.r = wire.Request{Op: q.gateOp(), Tag: p.tag, Handle: q.handle}
	p.sgl = p.sgl[:1]
	p.r.AppendTo(p.sgl[0].Bytes[:0])
	q.sends = append(q.sends, rdma.Work{Op: rdma.OpSend, SGL: p.sgl})
	q.senders = append(q.senders, p)
}

// acked is the end of ask.
func (q *queuePair) acked(p *piece) {
	p.ack = false
	q.link.direct.acks--
	q.freeTag(p)
}

// isUnasked reports whether there are Writes of which nobody will hear, when all of sends is posted.
func (q *queuePair) isUnasked() bool {
	d := &q.link.direct
	unasked := d.written > d.asked
	for _, p := range q.senders {
		unasked = p.direct && p.w.opcode == rdma.OpWrite
	}
	return unasked
}

// placed notes that the RDMA Writes up to number n are in the partition.
func (q *queuePair) placed(n uint64) {
	d := &q.link.direct
	k := int(n - min(n, d.answered))
	d.answered += uint64(k)
	for _, p := range d.writes[:k] {
		q.n.BytesOut.Add(uint64(p.n))
		q.ended(p)
	}
	d.writes = d.writes[:copy(d.writes, d.writes[k:])]
}

// ended frees p, which went without a request, and ends its work if that was the last of it.
func (q *queuePair) ended(p *piece) {
	w := p.w
	clear(p.memory)
	p.w, p.memory = nil, p.memory[:0]
	q.freeDirects = append(q.freeDirects, p)
	if w.left--; w.left == 0 && w.state == running {
		if w.opcode == rdma.OpWrite && w.status == rdma.StatusOK {
			q.unnumbered++
		}
		q.finished(w)
	}
}

// directDone handles the completion of an RDMA Read or Write.
func (q *queuePair) directDone(c *rdma.Completion) {
	p := q.directs[c.ID&^uint64(idSend|idDirect)]
	if c.Op != rdma.OpRead {
		return // a Write is complete when it is placed; what is not good is followed by the end of the connection
	}
	d := &q.link.direct
	d.reads--
	switch c.Status {
	case rdma.StatusOK:
		q.placed(p.behind)
		q.n.Reads.Add(1)
		q.n.BytesIn.Add(uint64(p.n))
	case rdma.StatusRemoteAccess:
		q.refused(p, c.Err)
	default:
		return // it is repeated on another connection, or fails with the queue pair
	}
	q.ended(p)
}

// refused ends the use of the partition, because of p.
func (q *queuePair) refused(p *piece, err error) {
	if err == nil {
		err = rdma.ErrRemoteAccess
	}
	q.stop(err)
	if w := p.w; w.status == rdma.StatusOK {
		w.status, w.err = rdma.StatusRemoteAccess, err
	}
}

// refusedDirect looks whether the connection has ended because the service has refused an RDMA Read or Write.
func (q *queuePair) refusedDirect(l *link) bool {
	if l.direct.stag == 0 || !errors.Is(l.why, rdma.ErrRemoteAccess) {
		return false
	}
	for w := q.first; w != nil; w = w.next { // the oldest that it may have been
		for _, p := range q.directs {
			if p.w == w && w.status == rdma.StatusOK {
				q.refused(p, l.why)
				return true
			}
		}
	}
	q.stop(l.why)
	return true
}
