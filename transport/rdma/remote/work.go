package remote

import (
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// workState is where a work is.
type workState uint8

const (
	waiting  workState = iota // something of it is to be sent
	running                   // all of it is sent
	complete                  // waits for earlier ones to be retired
)

// work is a work request. Its lists keep their memory for the next use.
type work struct {
	prev, next *work // in the list; next also among the free
	state      workState
	id         uint64
	opcode     rdma.Opcode
	flags      rdma.Flags
	fence      bool
	chain      uint32 // the works since a fence, with it
	stag       rdma.STag
	off, n     int64
	compare    uint64
	operand    uint64
	sgl        []rdma.SGE // of the device below
	old        *region    // of the last of these
	durable    bool

	direct bool // it goes without a request
	gate   gate
	sent   int64 // octets that are sent
	began  bool  // a request was made
	left   int   // requests without a response
	flushs uint64

	status rdma.Status
	err    error
	failed int64 // where the first failure is
	// harmless: a fence behind it is executed although it has failed.
	harmless bool
	// behind: a work before it was given up that had waited for the Reads before that one. This one waits for them in its place.
	behind bool
	seq    uint64
}

// gate is how far a request of no octets has come that carries the fence in place of its work. There is one if the
// work takes several requests, because only the first of them would wait, and if it is known already that the work
// is not to be executed.
type gate uint8

const (
	noGate gate = iota
	gateDue
	gateSent   // what is posted behind the work waits, if the work is not doomed
	gatePassed // the requests may be sent
	gateDoomed // none will be
)

// Post implements rdma.QueuePair.
func (q *queuePair) Post(ws []rdma.Work) (n int, err error) {
	q.mu.Lock()
	for ; n < len(ws); n++ {
		if err = q.postOne(ws, n); err != nil {
			break
		}
	}
	if n > 0 {
		q.n.Doorbells.Add(1)
	}
	q.unlock()
	q.n.Posts.Add(1)
	q.n.Works.Add(uint64(n))
	return n, err
}

func (q *queuePair) postOne(ws []rdma.Work, i int) error {
	switch {
	case q.state != connected || q.over || q.leaving:
		return rdma.ErrDisconnected
	case q.posted >= q.maxWork:
		return rdma.ErrFull
	}
	w := q.free
	if w == nil {
		w = new(work)
	} else {
		q.free = w.next
	}
	if what := q.prepare(w, &ws[i]); what != "" {
		q.recycle(w)
		return &rdma.WorkError{Index: i, Op: ws[i].Op, What: what}
	}
	w.behind, q.behind = q.behind, false
	if w.prev, w.next = q.last, nil; q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
	q.posted++
	if q.unsent == nil {
		q.unsent = w
	}
	if w.flags&(rdma.Fence|rdma.Barrier) != 0 {
		q.chain++
		*q.isBroken(q.chain) = false
	}
	w.chain = q.chain
	return nil
}

// isBroken is whether a work of a chain has failed. There are never more chains than works, and one.
func (q *queuePair) isBroken(chain uint32) *bool { return &q.broken[chain&uint32(len(q.broken)-1)] }

// prepare fills in w, and says what is wrong with p.
func (q *queuePair) prepare(w *work, p *rdma.Work) (what string) {
	sgl := w.sgl[:0]
	*w = work{id: p.ID, opcode: p.Op, flags: p.Flags, stag: p.RemoteSTag, compare: p.Compare, operand: p.Operand, sgl: sgl}
	w.fence = p.Flags&(rdma.Fence|rdma.Barrier) != 0
	w.durable = p.Flags&(rdma.Durable|rdma.Barrier) != 0
	need, _, what := soft.EndpointWork(p)
	if what != "" {
		return what
	}
	switch p.Op {
	case rdma.OpFlush:
		return ""
	case rdma.OpDiscard:
		return q.prepareRange(w, p, p.Length)
	}
	if len(p.SGL) > q.maxSGE {
		return "scatter/gather list is too long"
	}
	n := int64(0)
	for i := range p.SGL {
		if len(p.SGL[i].Bytes) == 0 {
			continue
		}
		e, what := q.domain.sge(&p.SGL[i], need)
		n += int64(len(e.Bytes))
		switch {
		case what != "":
			return what
		case n > 1<<30:
			return "message is too long"
		case q.dev.static && len(e.Bytes)%q.info.Unit != 0 && p.Op != rdma.OpCompareSwap && p.Op != rdma.OpFetchAdd:
			return "element that is not of whole units (Endpoint.Unit), on a device without one-shot"
		}
		w.sgl = append(w.sgl, e)
		w.old = p.SGL[i].Region.(*region)
	}
	if p.Op == rdma.OpCompareSwap || p.Op == rdma.OpFetchAdd {
		w.n = 8
		w.off, what = soft.EndpointAtomic(&q.info, p, n, len(w.sgl))
		return what
	}
	return q.prepareRange(w, p, n)
}

// prepareRange checks a range in units. What is wrong with an STag, the service says.
func (q *queuePair) prepareRange(w *work, p *rdma.Work, n int64) (what string) {
	if n < 0 {
		return "negative length"
	}
	if w.n = n; n == 0 {
		return ""
	}
	w.off, what = soft.EndpointRange(&q.info, p.RemoteOffset, n)
	return what
}

// recycle keeps w for the next use.
func (q *queuePair) recycle(w *work) {
	clear(w.sgl)
	w.sgl, w.old, w.err, w.prev = w.sgl[:0], nil, nil, nil
	w.next, q.free = q.free, w
}

// finished is the end of w: it is retired, or waits for those before it.
func (q *queuePair) finished(w *work) {
	if w.status != rdma.StatusOK && w.status != rdma.StatusFenced && !w.harmless {
		*q.isBroken(w.chain) = true
	}
	w.state = complete
	if q.order&rdma.FreeFinish != 0 {
		q.retire(w)
		return
	}
	for q.first != nil && q.first.state == complete {
		q.retire(q.first)
	}
}

// retire takes w out of the list and tells its owner, if that is wanted.
func (q *queuePair) retire(w *work) {
	if q.unsent == w {
		q.unsent = w.next
	}
	if w.prev == nil {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	q.posted--
	if w.flags&rdma.Signaled != 0 || w.status != rdma.StatusOK {
		c := rdma.Completion{ID: w.id, Op: w.opcode, Status: w.status, QueuePair: q, Seq: w.seq, Durable: q.durable, Err: w.err}
		if w.opcode == rdma.OpRead && w.status == rdma.StatusOK {
			c.Bytes = int(w.n)
		}
		q.sendCQ.Push(&c)
		q.ready = true
	}
	q.recycle(w)
}
