package local

import (
	"time"

	"oneshot/backend"
	"oneshot/stag"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// workState is where a work is.
type workState uint8

const (
	waiting workState = iota
	running
	complete // waits for earlier ones to be retired
)

// work is a work request of an endpoint. The lists in it keep their memory for the next use.
type work struct {
	e          *endpoint
	prev, next *work // in the list of the endpoint; next also among the free
	below      *work // in ready

	state  workState
	stage  stage
	id     uint64
	opcode rdma.Opcode
	flags  rdma.Flags
	fence  bool // starts when all before it are complete
	free   bool // starts whatever is before it
	writes bool
	chain  uint32 // the works since a fence, with it
	off, n int64

	segs    [][]byte
	regions []*soft.Region
	pinned  bool
	ref     stag.Ref
	stag    stag.STag
	compare uint64
	operand uint64
	cost    int // operations of the store
	charged int // of these, counted in endpoint.ops

	op     backend.Op
	pieces []*piece
	left   pieceCount

	ticks uint8         // seconds since it was posted, or earlier (Opened.Age), at most backend.OverdueTicks
	guard backend.Guard // of its range, if it had not come to the medium by then; nil: there is none

	upTo   uint64 // number that a flush under way makes durable
	seq    uint64
	status rdma.Status
	err    error
}

// newWork returns a work that is in no list.
func (e *endpoint) newWork() *work {
	w := e.free
	if w == nil {
		return &work{e: e, segs: make([][]byte, 0, 1), regions: make([]*soft.Region, 0, 1)}
	}
	e.free, w.next = w.next, nil
	return w
}

// recycle keeps w for the next use.
func (e *endpoint) recycle(w *work) {
	clear(w.segs)
	clear(w.regions)
	w.segs, w.regions = w.segs[:0], w.regions[:0]
	w.next, e.free = e.free, w
	w.err, w.prev = nil, nil
}

// prepare fills in w, and says what is wrong with p.
func (e *endpoint) prepare(w *work, p *rdma.Work) (what string) {
	w.id, w.opcode, w.flags = p.ID, p.Op, p.Flags
	w.state, w.stage, w.status, w.err, w.seq, w.cost, w.charged = waiting, stageStart, rdma.StatusOK, nil, 0, 1, 0
	w.stag, w.compare, w.operand = stag.STag(p.RemoteSTag), p.Compare, p.Operand
	w.off, w.n, w.writes, w.pinned = 0, 0, false, false
	w.ticks, w.guard = 0, nil
	w.fence = p.Flags&(rdma.Fence|rdma.Barrier) != 0
	w.free = e.order&rdma.FreeStart != 0 || p.Flags&rdma.RelaxedOrder != 0
	var need rdma.Access
	if need, w.writes, what = soft.EndpointWork(p); what != "" {
		return what
	}
	switch p.Op {
	case rdma.OpDiscard:
		return e.prepareRange(w, p, p.Length)
	case rdma.OpFlush:
		w.fence = w.fence || e.order&rdma.FreeStart == 0 // O8
		return ""
	}
	var n int
	w.segs, w.regions, n, what = soft.AppendSGL(w.segs, w.regions, p.SGL, &e.q.domain.Domain, need, e.q.maxSGE)
	if what != "" {
		return what
	}
	if p.Op == rdma.OpCompareSwap || p.Op == rdma.OpFetchAdd {
		w.n = 8
		w.off, what = soft.EndpointAtomic(&e.info, p, int64(n), len(w.segs))
		return what
	}
	return e.prepareRange(w, p, int64(n))
}

// prepareRange checks a range in units. What is wrong with an STag, the table says when it is used.
func (e *endpoint) prepareRange(w *work, p *rdma.Work, n int64) (what string) {
	if n < 0 {
		return "negative length"
	}
	if w.n = n; n == 0 {
		return "" // nothing is reached, nothing is checked
	}
	if w.off, what = soft.EndpointRange(&e.info, p.RemoteOffset, n); what != "" {
		return what
	}
	if w.opcode != rdma.OpDiscard {
		w.cost = int((n + e.q.dev.cfg.Parallel - 1) / e.q.dev.cfg.Parallel)
	}
	return ""
}

// enlist puts w behind what is posted.
func (e *endpoint) enlist(w *work) {
	if w.prev, w.next = e.last, nil; e.last == nil {
		e.first = w
	} else {
		e.last.next = w
	}
	e.last = w
	e.n++
	e.waiting++
	if w.flags&(rdma.Fence|rdma.Barrier) != 0 {
		e.chain++ // it is the first of its chain: should it fail, the next fence knows
		*e.isBroken(e.chain) = false
	}
	w.chain = e.chain
	if e.age != nil {
		w.ticks, w.guard = e.age(w.id)
	}
	if e.ager != nil && !e.ticking {
		e.ticking = true
		e.clock.Reset(time.Second)
	}
}

// isBroken is whether a work of a chain has failed. There are never more chains than works, and one.
func (e *endpoint) isBroken(chain uint32) *bool { return &e.broken[chain&uint32(len(e.broken)-1)] }

// mayStart reports whether w may start now.
func (e *endpoint) mayStart(w *work) bool {
	switch {
	case e.n == 1:
		return true
	case e.ops > 0 && e.ops+w.cost > e.maxOps:
		return false
	case w.fence: // O5: those before it that are complete are not in the list any more
		return e.first == w
	case w.free: // O2, O10
		return true
	}
	// O1, O4: in order, and not beside what it meets. Others run in parallel.
	for p := e.first; p != w; p = p.next {
		if p.state == waiting && (!p.free || w.isAtomic()) || p.state == running && p.meets(w) {
			return false
		}
	}
	return true
}

// meets reports whether the two may not run at a time on a strict queue pair. An atomic operation may release a lock, or take one, and so
// meets everything.
func (w *work) meets(o *work) bool {
	return w.isAtomic() || o.isAtomic() || (w.writes || o.writes) && w.off < o.off+o.n && o.off < w.off+w.n
}

func (w *work) isAtomic() bool {
	return w.opcode == rdma.OpCompareSwap || w.opcode == rdma.OpFetchAdd
}

// startOne starts a work that waits and may start now, or flushes it if nothing may start any more, and
// reports whether there was one.
func (e *endpoint) startOne() bool {
	if e.waiting == 0 {
		return false
	}
	for w := e.first; w != nil; w = w.next {
		if w.state != waiting {
			continue
		}
		if e.over {
			e.waiting--
			e.running++ // until it is done
			w.state, w.stage = running, stageEnd
			w.status, w.err = rdma.StatusFlushed, e.err
			e.step(w)
			return true
		}
		if e.mayStart(w) {
			e.start(w)
			return true
		}
	}
	return false
}

// start starts w.
func (e *endpoint) start(w *work) {
	e.waiting--
	e.running++
	w.charged = w.cost
	e.ops += w.charged
	w.state = running
	e.step(w)
}

// done is the end of w: it is retired, or waits for those before it. The lock is held.
func (e *endpoint) done(w *work) {
	if w.status != rdma.StatusOK && w.status != rdma.StatusFenced {
		*e.isBroken(w.chain) = true
	}
	if w.guard != nil {
		w.guard.Revoke()
		w.guard = nil
	}
	e.running--
	e.ops -= w.charged
	w.state = complete
	if e.order&rdma.FreeFinish != 0 { // O3
		e.retire(w)
		return
	}
	for e.first != nil && e.first.state == complete {
		e.retire(e.first)
	}
}

// completion returns one more, blank, to be filled in: unlock pushes it. The list keeps its memory, cleared.
func (e *endpoint) completion() *rdma.Completion {
	if n := len(e.out); n < cap(e.out) {
		e.out = e.out[:n+1]
	} else {
		e.out = append(e.out, rdma.Completion{})
	}
	return &e.out[len(e.out)-1]
}

// retire takes w out of the list and tells its owner, if that is wanted.
func (e *endpoint) retire(w *work) {
	if w.prev == nil {
		e.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		e.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	e.n--
	if w.flags&rdma.Signaled != 0 || w.status != rdma.StatusOK {
		c := e.completion()
		c.ID, c.Op, c.Status, c.QueuePair, c.Seq, c.Durable, c.Err = w.id, w.opcode, w.status, e.q, w.seq, e.seq.Durable(), w.err
		if w.opcode == rdma.OpRead && w.status == rdma.StatusOK {
			c.Bytes = int(w.n)
		}
	}
	e.recycle(w)
}
