package iwarp

import (
	"errors"
	"slices"
	"sync"

	"oneshot/stag"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

var errBound = errors.New("iwarp: window is bound; invalidate it first")

// domain is a protection domain.
type domain struct {
	soft.Domain
	dev *Device
}

// NewWindow implements rdma.Domain.
func (d *domain) NewWindow() (rdma.Window, error) { return &window{domain: d}, nil }

// waiter wants to know when memory that was invalidated has no references any more.
type waiter struct{ f func() }

// whenQuiet has f called in a goroutine of its own when the last reference to memory behind
// s is released. It has to be asked for before access is taken away, so that no release is
// missed; forget takes it back.
func (d *Device) whenQuiet(s stag.STag, f func()) *waiter {
	w := &waiter{f}
	d.mu.Lock()
	d.waiters[s] = append(d.waiters[s], w)
	d.mu.Unlock()
	return w
}

func (d *Device) forget(s stag.STag, w *waiter) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiters[s] = slices.DeleteFunc(d.waiters[s], func(x *waiter) bool { return x == w })
	if len(d.waiters[s]) == 0 {
		delete(d.waiters, s)
	}
}

// quiet notes that the last reference to memory that allows no access is released.
func (d *Device) quiet(s stag.STag) {
	d.mu.Lock()
	ws := d.waiters[s]
	delete(d.waiters, s)
	d.mu.Unlock()
	for _, w := range ws {
		d.work.Go(w.f) // it takes locks of its own; ours may be held
	}
}

// window is a memory window of type 2.
type window struct {
	domain *domain

	mu    sync.Mutex // taken after queuePair.mu
	qp    *queuePair // to which it is bound
	tag   stag.STag
	base  *soft.Region // pinned while bound
	going bool         // an invalidation is posted
}

// STag implements rdma.Window.
func (w *window) STag() rdma.STag {
	w.mu.Lock()
	defer w.mu.Unlock()
	return rdma.STag(w.tag)
}

// bind gives the window a new STag for b, which lies in r.
func (w *window) bind(q *queuePair, r *soft.Region, b []byte, a rdma.Access) (stag.STag, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.qp != nil && !w.going {
		return 0, errBound
	}
	off, _ := r.Offset(b)
	if !r.Pin() {
		return 0, soft.ErrGone
	}
	// The slot of the last binding is on its way out and has an owner of its own.
	t := q.unbound
	if t == nil {
		t = new(bound)
	}
	t.memory[0] = b
	s, err := q.dev.memory.Table.Register(q.domain.Tag, q.stream, stag.Region{
		Segments: t.memory[:], Base: off, Access: soft.TagAccess(a) | stag.AccessRemoteInvalidate, Owner: t,
	})
	if err != nil {
		r.Unpin()
		return 0, err
	}
	if q.unbound == t {
		q.unbound = t.next
	}
	t.next, t.window, t.region = nil, w, r
	w.qp, w.tag, w.base, w.going = q, s, r, false
	return s, nil
}

// bound is what an STag of a window stands for. It is guarded by the lock of the queue pair.
type bound struct {
	window *window
	region *soft.Region
	memory [1][]byte
	quiet  func() // to be called when no reference is left
	next   *bound // free ones
}

// Free implements rdma.Window.
func (w *window) Free() error {
	w.mu.Lock()
	q, s := w.qp, w.tag
	w.mu.Unlock()
	if q == nil {
		return nil
	}
	done := make(chan struct{})
	q.mu.Lock()
	quiet, err := q.invalidate(s, func() { close(done) })
	q.unlock()
	if err == nil && !quiet {
		<-done
	}
	return nil // an error: it has ended otherwise
}
