package iwarp

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"oneshot/internal/invariant"
	"oneshot/stag"
	"oneshot/transport/rdma"
)

var (
	errInUse     = errors.New("iwarp: still in use")
	errGone      = errors.New("iwarp: memory is no longer registered")
	errBound     = errors.New("iwarp: window is bound; invalidate it first")
	errForeign   = errors.New("iwarp: object of another device")
	errNoMemory  = errors.New("iwarp: no memory to register")
	errBadAccess = errors.New("iwarp: access rights that do not exist")
)

// domain is a protection domain.
type domain struct {
	dev *Device
	tag *stag.Domain
}

const allAccess = rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite | rdma.AccessRemoteInvalidate

// tagAccess translates access rights to those of the STag table.
func tagAccess(a rdma.Access) (t stag.Access) {
	for _, p := range [...]struct {
		from rdma.Access
		to   stag.Access
	}{
		{rdma.AccessLocalWrite, stag.AccessLocalWrite},
		{rdma.AccessRemoteRead, stag.AccessRemoteRead},
		{rdma.AccessRemoteWrite, stag.AccessRemoteWrite},
		{rdma.AccessRemoteInvalidate, stag.AccessRemoteInvalidate},
	} {
		if a&p.from != 0 {
			t |= p.to
		}
	}
	return t
}

// Register implements rdma.Domain. Tagged offsets are zero based: a peer learns no addresses.
func (d *domain) Register(b []byte, a rdma.Access) (rdma.Region, error) {
	switch {
	case len(b) == 0:
		return nil, errNoMemory
	case a&^allAccess != 0:
		return nil, errBadAccess
	}
	r := &region{domain: d, memory: [1][]byte{b}, access: a, addr: address(b)}
	s, err := d.dev.table.Register(d.tag, nil, stag.Region{Segments: r.memory[:], Access: tagAccess(a)})
	if err != nil {
		return nil, err
	}
	r.tag = s
	d.dev.registrations.Add(1)
	if a&rdma.AccessRemoteInvalidate != 0 {
		d.dev.mu.Lock()
		d.dev.tags[s] = r
		d.dev.mu.Unlock()
	}
	return r, nil
}

// NewWindow implements rdma.Domain.
func (d *domain) NewWindow() (rdma.Window, error) { return &window{domain: d}, nil }

// Close implements rdma.Domain.
func (d *domain) Close() error { return nil }

// region is registered memory.
type region struct {
	domain *domain
	memory [1][]byte
	access rdma.Access
	addr   uintptr
	tag    stag.STag

	// pins counts the uses by our own requests, those of the peer are the STag table's.
	// Above them is the bit that says that the region is being deregistered.
	pins atomic.Int64
	idle chan struct{} // closed when the last pin is gone after that; made if there are any
}

const deregistering = 1 << 32

func (r *region) Bytes() []byte   { return r.memory[0] }
func (r *region) STag() rdma.STag { return rdma.STag(r.tag) }
func (r *region) Base() uint64    { return 0 }

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// offset returns where b begins in the region. False: b is not inside.
func (r *region) offset(b []byte) (uint64, bool) {
	a := address(b)
	if a < r.addr {
		return 0, false
	}
	off := uint64(a - r.addr)
	return off, off <= uint64(len(r.memory[0])) && uint64(len(b)) <= uint64(len(r.memory[0]))-off
}

// pin keeps the memory registered. False: it is not any more.
func (r *region) pin() bool {
	for {
		n := r.pins.Load()
		if n&deregistering != 0 {
			return false
		}
		if r.pins.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (r *region) unpin() {
	n := r.pins.Add(-1)
	invariant.Check(n >= 0, "iwarp: a region is unpinned more often than pinned")
	if n == deregistering {
		close(r.idle)
	}
}

// pinAll pins all regions or none.
func pinAll(rs []*region) bool {
	for i, r := range rs {
		if !r.pin() {
			unpinAll(rs[:i])
			return false
		}
	}
	return true
}

func unpinAll(rs []*region) {
	for _, r := range rs {
		r.unpin()
	}
}

// end refuses further pins, and waits for those there are. False: that was done before.
func (r *region) end() bool {
	if r.pins.CompareAndSwap(0, deregistering) {
		return true
	}
	dev := r.domain.dev
	dev.mu.Lock() // two may be here
	if r.idle == nil {
		r.idle = make(chan struct{})
	}
	old := r.pins.Or(deregistering)
	dev.mu.Unlock()
	if old&deregistering != 0 {
		return false
	}
	if old != 0 {
		<-r.idle
	}
	return true
}

// Deregister implements rdma.Region.
func (r *region) Deregister() error {
	if !r.end() {
		return errGone
	}
	invariant.Check(r.pins.Load() == deregistering, "iwarp: a region goes while it is pinned")
	dev := r.domain.dev
	if r.access&rdma.AccessRemoteInvalidate != 0 {
		dev.mu.Lock()
		delete(dev.tags, r.tag)
		dev.mu.Unlock()
	}
	dev.deregistrations.Add(1)
	return dev.table.Deregister(r.tag)
}

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
	base  *region // pinned while bound
	going bool    // an invalidation is posted
}

// STag implements rdma.Window.
func (w *window) STag() rdma.STag {
	w.mu.Lock()
	defer w.mu.Unlock()
	return rdma.STag(w.tag)
}

// bind gives the window a new STag for b, which lies in r.
func (w *window) bind(q *queuePair, r *region, b []byte, a rdma.Access) (stag.STag, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.qp != nil && !w.going {
		return 0, errBound
	}
	off, _ := r.offset(b)
	if !r.pin() {
		return 0, errGone
	}
	// The slot of the last binding is on its way out and has an owner of its own.
	t := q.unbound
	if t == nil {
		t = new(bound)
	}
	t.memory[0] = b
	s, err := q.dev.table.Register(q.domain.tag, q.stream, stag.Region{
		Segments: t.memory[:], Base: off, Access: tagAccess(a) | stag.AccessRemoteInvalidate, Owner: t,
	})
	if err != nil {
		r.unpin()
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
	region *region
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
