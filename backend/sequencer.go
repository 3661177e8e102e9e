package backend

import (
	"sync"
	"sync/atomic"
)

// Sequencer holds operations with Fence or Barrier back until all earlier ones have
// completed; other operations pass it, at the price of two atomic additions. Stores whose
// operations outlive Submit use one.
//
// Operations are counted by epoch. A fence at the head of the queue has begun a new epoch,
// to which it belongs itself, and waits until nothing of the epoch before is left:
//
//	epoch 4      │ epoch 5
//	R W W R … R  │ F R W R … F   the second F begins epoch 6 as soon as the first starts
//
// No operation without a fence ever waits, so every epoch ends. An operation that comes
// after a fence which is second in the queue may count as earlier than it; that fence then
// starts later than it might, never too early.
type Sequencer struct {
	start   func(*Op)
	epoch   atomic.Uint64
	running [2]atomic.Int64 // operations of the epoch with this parity
	waiting atomic.Bool     // there are fences in the queue

	mu     sync.Mutex // taken last; not held over start
	fences Queue      // the head is counted in epoch, and waits for the end of epoch-1
}

// NewSequencer returns a sequencer that calls start for each operation that had to wait,
// when it may start. start is called from within Enter or Leave and must not block.
func NewSequencer(start func(*Op)) *Sequencer { return &Sequencer{start: start} }

// Enter counts op in and reports whether it may start now; if not, start(op) follows. It
// uses op.Private, which the store hands to Leave.
func (q *Sequencer) Enter(op *Op) bool {
	if op.Flags&(Fence|Barrier) != 0 {
		return q.enterFence(op)
	}
	for {
		e := q.epoch.Load()
		q.running[e&1].Add(1)
		if q.epoch.Load() == e {
			op.Private = e
			return true
		}
		q.Leave(e) // a fence came in between, and may not wait for us
	}
}

// Leave counts an operation out that has completed; private is what Enter left in
// Op.Private.
func (q *Sequencer) Leave(private uint64) {
	if q.running[private&1].Add(-1) == 0 && q.waiting.Load() {
		if op := q.next(); op != nil {
			q.start(op)
		}
	}
}

func (q *Sequencer) enterFence(op *Op) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting.Store(true) // before the epoch ends: its last operation has to see it
	q.fences.Push(op)
	if q.fences.Len() > 1 {
		return false
	}
	q.turn()
	return q.pop() != nil
}

func (q *Sequencer) next() *Op {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pop()
}

// pop takes the head of the queue out if it need not wait any more. Called with mu held.
func (q *Sequencer) pop() *Op {
	if q.fences.Len() == 0 || q.running[(q.epoch.Load()-1)&1].Load() != 0 {
		return nil
	}
	op := q.fences.Pop()
	if q.fences.Len() > 0 {
		q.turn()
	} else {
		q.waiting.Store(false)
	}
	return op
}

// turn begins an epoch with the head of the queue. Nothing of the epoch before the current
// one is left. Called with mu held.
func (q *Sequencer) turn() {
	e := q.epoch.Load() + 1
	q.fences.head.Private = e
	q.running[e&1].Add(1)
	q.epoch.Store(e)
}
