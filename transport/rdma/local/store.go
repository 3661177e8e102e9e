package local

import (
	"errors"
	"fmt"
	"sync/atomic"

	"oneshot/backend"
	"oneshot/backend/durable"
	"oneshot/internal/iov"
	"oneshot/stag"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// stage is the part of a work that is under way.
//
//	start ─► [flush before] ─► main ─► [flush behind] ─► end
type stage uint8

const (
	stageStart  stage = iota
	stageBefore       // the flush of a barrier is under way
	stageMain         // its own operation, or operations
	stageBehind       // a flush that makes durable what cannot be asked of the operation itself
	stageEnd
)

// piece is a part of a long Read or Write.
type piece struct {
	w    *work
	op   backend.Op
	segs [][]byte
	next *piece // spare
}

// pieceCount counts operations under way.
type pieceCount struct{ atomic.Int32 }

var (
	_ backend.Corker   = (*work)(nil)
	_ backend.Corker   = (*piece)(nil)
	_ backend.Uncorker = (*endpoint)(nil)
	_ backend.Aged     = (*work)(nil)
	_ backend.Aged     = (*piece)(nil)
)

// Age is for the medium, within Submit, which the lock is held over.
func (w *work) Age() (uint8, backend.Guard) { return w.ticks, w.guard }

// Age is for the medium.
func (p *piece) Age() (uint8, backend.Guard) { return p.w.Age() }

// OpDone is for the store.
func (w *work) OpDone(*backend.Op) { w.e.push(w) }

// OpDone is for the store.
func (p *piece) OpDone(*backend.Op) {
	if w := p.w; w.left.Add(-1) == 0 {
		w.e.push(w)
	}
}

// push hands w to the endpoint, which goes on with it at once, or at the end of the batch that w belongs to.
func (e *endpoint) push(w *work) {
	for {
		w.below = e.ready.Load()
		if e.ready.CompareAndSwap(w.below, w) {
			break
		}
	}
	if e.corked.Load() == 0 && e.mu.TryLock() {
		e.unlock()
	}
}

// Cork is for the store.
func (w *work) Cork() backend.Uncorker {
	w.e.corked.Add(1)
	return w.e
}

// Cork is for the store.
func (p *piece) Cork() backend.Uncorker { return p.w.Cork() }

// Uncork is for the store.
func (e *endpoint) Uncork() {
	if e.corked.Add(-1) == 0 && e.mu.TryLock() {
		e.unlock()
	}
}

// step goes on with w, as far as it can: at the start, and whenever its operation has completed. The lock is
// held.
func (e *endpoint) step(w *work) {
	for {
		switch w.stage {
		case stageStart:
			w.stage = e.admit(w)
			if w.stage == stageBefore && !e.flush(w) {
				return
			}
			if w.stage == stageMain && !e.submit(w) {
				return
			}
		case stageBefore:
			if w.stage = stageMain; !e.flushed(w) {
				w.stage = stageEnd
			} else if !e.submit(w) {
				return
			}
		case stageMain:
			if w.stage = e.submitted(w); w.stage == stageBehind && !e.flush(w) {
				return
			}
		case stageBehind:
			e.flushed(w)
			w.stage = stageEnd
		default:
			e.letGo(w)
			e.done(w)
			return
		}
	}
}

// admit looks whether w may be done at all, and holds what it needs.
func (e *endpoint) admit(w *work) stage {
	chained := w.flags&(rdma.Fence|rdma.Barrier) != 0
	promises := w.flags&(rdma.Barrier|rdma.Durable) != 0 || w.opcode == rdma.OpFlush
	switch {
	case chained && *e.isBroken(w.chain - 1):
		w.status = rdma.StatusFenced // O6
		return stageEnd
	case e.gone.Load() != nil:
		e.refuse(w, *e.gone.Load())
		return stageEnd
	case e.info.Rights&w.rights() != w.rights():
		e.refuse(w, fmt.Errorf("local: %v wants the rights %v, granted are %v", w.opcode, w.rights(), e.info.Rights))
		return stageEnd
	case promises && e.seq.Lost():
		w.status, w.err = rdma.StatusLost, errLost
		return stageEnd
	case !soft.PinAll(w.regions):
		w.status, w.err = rdma.StatusLocalProtection, soft.ErrGone
		e.stop(soft.ErrGone)
		return stageEnd
	}
	w.pinned = true
	// The endpoint's own STag is valid as long as nobody has called gone, and prepare has checked the range. What any
	// other one is good for, the table says.
	if w.opcode != rdma.OpFlush && w.stag != stag.STag(e.info.STag) {
		op := stag.RemoteWrite
		if w.opcode == rdma.OpRead {
			op = stag.RemoteRead
		}
		var err error
		if w.ref, err = e.q.stream.Acquire(op, w.stag, e.info.Base+uint64(w.off), uint64(w.n)); err != nil {
			e.refuse(w, err)
			return stageEnd
		}
	}
	if w.flags&rdma.Barrier != 0 && w.opcode != rdma.OpFlush {
		return stageBefore
	}
	return stageMain
}

var errLost = errors.New("local: a flush has failed earlier: nothing can be made durable until the store is opened again")

// rights are those that w needs.
func (w *work) rights() (r rdma.Rights) {
	switch w.opcode {
	case rdma.OpRead:
		r = rdma.RightRead
	case rdma.OpWrite:
		r = rdma.RightWrite
	case rdma.OpFlush:
		r = rdma.RightFlush
	case rdma.OpCompareSwap, rdma.OpFetchAdd:
		r = rdma.RightAtomics
	case rdma.OpDiscard:
		r = rdma.RightDiscard
	}
	if w.opcode != rdma.OpFlush && w.n == 0 { // nothing is reached
		r = 0
	}
	if w.flags&(rdma.Barrier|rdma.Durable) != 0 {
		r |= rdma.RightFlush
	}
	return r
}

// refuse ends w and the queue pair: w asks for what it may not have.
func (e *endpoint) refuse(w *work, err error) {
	w.status, w.err = rdma.StatusRemoteAccess, err
	e.stop(err)
}

// flush submits a flush and reports whether it has completed.
func (e *endpoint) flush(w *work) bool {
	w.upTo = e.seq.Count()
	w.op = backend.Op{Kind: backend.Flush, Done: w}
	return e.m.Submit(&w.op)
}

// flushed notes how a flush has ended, and reports whether it has ended well.
func (e *endpoint) flushed(w *work) bool {
	if w.op.Err == nil {
		if e.info.Durability != rdma.DurabilityNone {
			e.seq.Flushed(w.upTo)
		}
		return true
	}
	if _, denied := errors.AsType[*backend.DeniedError](w.op.Err); !denied {
		e.seq.Lose()
	}
	e.fail(w, w.op.Err)
	return false
}

// submit submits what w is about and reports whether it has completed.
func (e *endpoint) submit(w *work) bool {
	if w.opcode != rdma.OpFlush && w.n == 0 {
		w.op.Err = nil
		return true
	}
	w.op.Kind, w.op.Flags, w.op.Off, w.op.Len, w.op.Segs, w.op.Done, w.op.Err = backend.Read, 0, w.off, w.n, w.segs, w, nil
	w.op.Durable = false
	if w.flags&(rdma.Barrier|rdma.Durable) != 0 && w.writes {
		w.op.Flags = backend.FUA // O7, O12
	}
	switch w.opcode {
	case rdma.OpFlush:
		return e.flush(w)
	case rdma.OpCompareSwap:
		return e.m.CompareSwap(&w.op, w.compare, w.operand)
	case rdma.OpFetchAdd:
		return e.m.FetchAdd(&w.op, w.operand)
	case rdma.OpDiscard:
		w.op.Kind, w.op.Flags = backend.Discard, 0
		return e.m.Submit(&w.op)
	case rdma.OpWrite:
		w.op.Kind = backend.Write
	}
	if w.cost > 1 {
		return e.submitPieces(w)
	}
	w.op.Flags |= backend.More
	if e.m.Submit(&w.op) {
		return true
	}
	e.kick = true
	return false
}

// submitPieces submits a long Read or Write in parts, which run in parallel.
func (e *endpoint) submitPieces(w *work) bool {
	size := e.q.dev.cfg.Parallel
	w.left.Store(int32(w.cost) + 1) // and we, so that nobody is done before all are submitted
	cur := iov.At(w.segs, 0)
	for off := int64(0); off < w.n; off += size {
		p := e.spare
		if p == nil {
			p = new(piece)
		} else {
			e.spare, p.next = p.next, nil
		}
		n := min(size, w.n-off)
		p.w, p.segs = w, p.segs[:0]
		for room := n; room > 0; {
			part := cur.Next(int(room))
			p.segs = append(p.segs, part)
			room -= int64(len(part))
		}
		p.op = backend.Op{Kind: w.op.Kind, Flags: w.op.Flags | backend.More, Off: w.off + off, Len: n, Segs: p.segs, Done: p}
		w.pieces = append(w.pieces, p)
		if e.m.Submit(&p.op) {
			w.left.Add(-1)
		} else {
			e.kick = true
		}
	}
	return w.left.Add(-1) == 0
}

// submitted notes how the main operation has ended.
func (e *endpoint) submitted(w *work) stage {
	if w.opcode == rdma.OpFlush {
		e.flushed(w)
		return stageEnd
	}
	err, lasts := w.op.Err, w.op.Durable || len(w.pieces) > 0
	for _, p := range w.pieces {
		if err == nil {
			err = p.op.Err // the first by offset
		}
		lasts = lasts && p.op.Durable
		clear(p.segs)
		p.w, p.op = nil, backend.Op{}
		p.next, e.spare = e.spare, p
	}
	clear(w.pieces)
	w.pieces = w.pieces[:0]
	if err != nil {
		e.fail(w, err)
		return stageEnd
	}
	e.count(w, lasts)
	if w.opcode == rdma.OpDiscard && w.flags&(rdma.Barrier|rdma.Durable) != 0 {
		return stageBehind
	}
	return stageEnd
}

// count notes that w has done what it is about. lasts: the store says that it is durable.
func (e *endpoint) count(w *work, lasts bool) {
	if w.n == 0 {
		return
	}
	switch {
	case !w.writes:
	case e.info.Durability != rdma.DurabilityNone && (lasts || w.op.Flags&backend.FUA != 0 || !e.cached):
		w.seq = e.seq.WrittenDurably()
	default:
		w.seq = e.seq.Written()
	}
	switch w.opcode {
	case rdma.OpRead:
		e.tally.reads++
		e.tally.bytesIn += uint64(w.n)
	case rdma.OpWrite:
		e.tally.bytesOut += uint64(w.n)
	default:
		return
	}
	if e.copies {
		e.tally.copies++
		e.tally.bytesCopied += uint64(w.n)
	}
}

// fail gives w the status of an error of the medium.
func (e *endpoint) fail(w *work, err error) {
	w.err = err
	denied, _ := errors.AsType[*backend.DeniedError](err)
	switch {
	case denied != nil && denied.Late && e.gone.Load() == nil:
		e.stop(err) // he cannot know that others have changed it, and has to begin anew
		w.status, w.err = rdma.StatusFlushed, e.err
	case is[*durable.LostError](err):
		w.status = rdma.StatusLost
	case is[*backend.MediumError](err):
		w.status = rdma.StatusMedium
	case is[*backend.SpaceError](err):
		w.status = rdma.StatusSpace
	case denied != nil, is[*backend.RangeError](err):
		e.refuse(w, err)
	default:
		w.status, w.err = rdma.StatusMedium, &backend.MediumError{Kind: w.op.Kind, Off: w.off, Err: err}
	}
}

// is reports whether err is an E, or wraps one.
func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// letGo gives back what admit holds.
func (e *endpoint) letGo(w *work) {
	if w.pinned {
		soft.UnpinAll(w.regions)
		w.pinned = false
	}
	if w.stag != stag.STag(e.info.STag) {
		e.q.dev.drop(&w.ref)
		w.ref = stag.Ref{}
	}
}
