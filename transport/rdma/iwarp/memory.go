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

// waiter waits until memory that was invalidated has no references any more; then f is called.
type waiter struct{ f func() }

// whenQuiet has a goroutine of its own call f when the last reference to the memory of s is
// released. Call it before access is taken away, so that no release is missed; forget undoes
// it.
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
		d.work.Go(w.f) // f takes locks that the caller may hold
	}
}

// window is a memory window of type 2.
type window struct {
	domain *domain

	mu    sync.Mutex // taken after queuePair.mu
	qp    *queuePair // to which it is bound
	tag   stag.STag
	base  *soft.Region // pinned while the window is bound
	going bool         // an invalidation is posted
}

// STag implements rdma.Window.
func (w *window) STag() rdma.STag {
	w.mu.Lock()
	defer w.mu.Unlock()
	return rdma.STag(w.tag)
}

// bind gives the window a new STag for b, which lies in r: s, if the owner of q chooses STags.
func (w *window) bind(q *queuePair, r *soft.Region, b []byte, a rdma.Access, s stag.STag) (stag.STag, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.qp != nil && !w.going {
		return 0, errBound
	}
	off, _ := r.Offset(b)
	if !r.Pin() {
		return 0, soft.ErrGone
	}
	// The slot of the last binding is still being freed, and has another owner.
	t := q.unbound
	if t == nil {
		t = new(bound)
	}
	t.memory[0] = b
	region := stag.Region{Segments: t.memory[:], Base: off, Access: soft.TagAccess(a) | stag.AccessRemoteInvalidate, Owner: t}
	var err error
	if q.chooses {
		err = q.stream.RegisterAs(s, region)
	} else {
		s, err = q.dev.memory.Table.Register(q.domain.Tag, q.stream, region)
	}
	if err != nil {
		r.Unpin()
		return 0, err
	}
	if q.unbound == t {
		q.unbound = t.next
	}
	t.next, t.window, t.region, t.quiet = nil, w, r, t.quiet[:0]
	w.qp, w.tag, w.base, w.going = q, s, r, false
	return s, nil
}

// bound is the owner of the STag of a window in the table. The lock of the queue pair guards it.
type bound struct {
	window *window
	region *soft.Region
	memory [1][]byte
	quiet  []func() // to be called when no reference is left; its memory is kept
	next   *bound   // in the list of free ones
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
	return nil // an error means that the binding has already ended
}
