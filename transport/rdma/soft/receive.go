package soft

import (
	"slices"
	"sync"

	"oneshot/internal/invariant"
	"oneshot/internal/ring"
	"oneshot/transport/rdma"
)

// Receives is a queue of receives, of one queue pair or shared.
type Receives struct {
	domain *Domain
	depth  int
	maxSGE int

	mu      sync.Mutex // taken after the locks of queue pairs
	ring    ring.Ring[Receive]
	waiting []*Waiter // that found the queue empty, in order
	users   int
	ended   bool
}

// Receive is memory for one message.
type Receive struct {
	ID      uint64
	N       int // octets
	Segs    [][]byte
	Regions []*Region
}

// Waiter is a queue pair that waits for a receive.
type Waiter struct {
	Wake  func() // has it look again; does not change
	waits bool   // guarded by Receives.mu
}

// Init makes a queue for depth receives of d, with at most maxSGE elements each.
func (r *Receives) Init(d *Domain, depth, maxSGE int) {
	r.domain, r.depth, r.maxSGE = d, depth, maxSGE
}

// Of reports whether the queue is of m's device.
func (r *Receives) Of(m *Memory) bool { return r.domain.memory == m }

// Post adds rs, in order, and returns how many were taken, as rdma.ReceiveQueue says. The caller wakes those who
// wait (WakeOne).
func (r *Receives) Post(rs []rdma.Receive) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range rs {
		switch {
		case r.ended:
			return i, rdma.ErrDisconnected
		case r.ring.Len() >= r.depth:
			return i, rdma.ErrFull
		}
		slot := r.ring.Next()
		var what string
		slot.ID = rs[i].ID
		slot.Segs, slot.Regions, slot.N, what = AppendSGL(
			slot.Segs[:0], slot.Regions[:0], rs[i].SGL, r.domain, rdma.AccessLocalWrite, r.maxSGE)
		if what != "" {
			return i, &rdma.WorkError{Index: i, Op: rdma.OpReceive, What: what}
		}
		r.ring.Tail++
	}
	return len(rs), nil
}

// Take moves the oldest receive to into. False: there is none, and w, if set, waits until there is one.
func (r *Receives) Take(into *Receive, w *Waiter) bool {
	r.mu.Lock() // without defer, which would cost as much as the rest
	if r.ring.Len() == 0 {
		if w != nil && !w.waits {
			w.waits = true
			r.waiting = append(r.waiting, w)
		}
		r.mu.Unlock()
		return false
	}
	slot := r.ring.At(r.ring.Head)
	*into, *slot = *slot, *into // the lists change places, so that their memory is used again
	r.ring.Head++
	r.mu.Unlock()
	return true
}

// Len returns how many receives there are.
func (r *Receives) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ring.Len()
}

// Scarce reports whether less than half of the receives are here, so that none may be kept for a
// message of which the rest may never come.
func (r *Receives) Scarce() bool {
	return r.Len() < r.depth/2
}

// PutBack makes a receive that was taken the oldest one again. The caller wakes those who wait (WakeOne).
func (r *Receives) PutBack(from *Receive) {
	r.mu.Lock()
	slot := r.ring.Back()
	*from, *slot = *slot, *from
	invariant.Check(r.ring.Len() <= r.depth, "rdma: more receives in a queue than were posted")
	r.mu.Unlock()
}

// WakeOne wakes the one that has waited longest, if there is one and there are receives. No lock is held.
func (r *Receives) WakeOne() bool {
	r.mu.Lock()
	if r.ring.Len() == 0 || len(r.waiting) == 0 {
		r.mu.Unlock()
		return false
	}
	w := r.waiting[0]
	w.waits = false
	r.waiting = slices.Delete(r.waiting, 0, 1)
	r.mu.Unlock()
	w.Wake()
	return true
}

// Leave takes w off the list of those that wait, and returns how many receives there are: others may have
// to be woken in its place.
func (r *Receives) Leave(w *Waiter) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = slices.DeleteFunc(r.waiting, func(x *Waiter) bool { return x == w })
	w.waits = false
	return r.ring.Len()
}

// End refuses further receives.
func (r *Receives) End() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
}

// Flush ends the queue and completes all receives that are in it.
func (r *Receives) Flush(cq *CompletionQueue, q rdma.QueuePair, err error) {
	r.End()
	var x Receive
	for r.Take(&x, nil) {
		cq.Push(&rdma.Completion{ID: x.ID, Op: rdma.OpReceive, Status: rdma.StatusFlushed, QueuePair: q, Err: err})
	}
}

// Use counts the queue pairs that use the queue.
func (r *Receives) Use(n int) {
	r.mu.Lock()
	r.users += n
	r.mu.Unlock()
}

// Close implements rdma.ReceiveQueue.
func (r *Receives) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users > 0 {
		return ErrInUse
	}
	r.ended = true
	return nil
}
