package baton

import (
	"sync"
	"sync/atomic"
)

// Ready are tasks that want to be resumed. Any goroutine puts them there; who holds the baton takes them out. The zero value
// has none. Nothing of it allocates but a list that grows.
type Ready[T any] struct {
	mu      sync.Mutex // taken after the baton; a leaf
	put     []entry[T] // guarded by mu
	pending atomic.Bool
	corks   atomic.Int32 // stores that are about to complete more

	// The holder's.
	taken []entry[T] // taken[next:] are to be resumed
	next  int
}

type entry[T any] struct {
	t *T
	m *Mark
}

// Mark belongs to a task, and says whether that is among those that want to be resumed.
type Mark struct{ queued atomic.Bool }

// Queued reports whether the task is still to be returned by Next, after a Take that is to come.
func (m *Mark) Queued() bool { return m.queued.Load() }

// Put puts t among the tasks, unless it is there: m is its mark. The holder is to be awoken.
func (r *Ready[T]) Put(t *T, m *Mark) {
	r.mu.Lock()
	if !m.queued.Load() {
		m.queued.Store(true)
		r.put = append(r.put, entry[T]{t, m})
		r.pending.Store(true)
	}
	r.mu.Unlock()
}

// Take takes all tasks out. Next returns them, until it returns nil, before the next call of Take.
func (r *Ready[T]) Take() {
	if !r.pending.Load() {
		return
	}
	r.mu.Lock()
	r.put, r.taken = r.taken[:0], r.put
	for _, e := range r.taken {
		e.m.queued.Store(false)
	}
	r.pending.Store(false)
	r.mu.Unlock()
}

// Next returns a task that was taken; nil: there is no other one.
func (r *Ready[T]) Next() *T {
	if r.next == len(r.taken) {
		r.taken, r.next = r.taken[:0], 0
		return nil
	}
	t := r.taken[r.next].t
	r.taken[r.next] = entry[T]{}
	r.next++
	return t
}

// Pending reports whether Take has something to take.
func (r *Ready[T]) Pending() bool { return r.pending.Load() }

// Cork has tasks wait for Uncork, unless somebody drives before: answers to completions that come together leave together.
func (r *Ready[T]) Cork() { r.corks.Add(1) }

// Corked reports whether a task that was put here is to wait for Uncork.
func (r *Ready[T]) Corked() bool { return r.corks.Load() != 0 }

// Uncork reverses Cork, and reports whether the holder is to be awoken. Whoever takes the last cork out sees what the others
// have left: they put it there before they looked at the corks.
func (r *Ready[T]) Uncork() bool { return r.corks.Add(-1) == 0 && r.pending.Load() }
