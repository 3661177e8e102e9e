package local

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"oneshot/internal/invariant"
	"oneshot/stag"
	"oneshot/transport/rdma"
)

// domain is a protection domain.
type domain struct {
	dev *Device
	tag *stag.Domain
}

const allAccess = rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite | rdma.AccessRemoteInvalidate

// tagAccess translates access rights to those of the STag table.
func tagAccess(a rdma.Access) (t stag.Access) {
	if a&rdma.AccessLocalWrite != 0 {
		t |= stag.AccessLocalWrite
	}
	if a&rdma.AccessRemoteRead != 0 {
		t |= stag.AccessRemoteRead
	}
	if a&rdma.AccessRemoteWrite != 0 {
		t |= stag.AccessRemoteWrite
	}
	if a&rdma.AccessRemoteInvalidate != 0 {
		t |= stag.AccessRemoteInvalidate
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
	s, err := d.dev.table.Register(d.tag, nil, stag.Region{Segments: [][]byte{b}, Access: tagAccess(a)})
	if err != nil {
		return nil, err
	}
	d.dev.registrations.Add(1)
	r := &region{domain: d, bytes: b, access: a, addr: address(b), tag: s, idle: make(chan struct{})}
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
	bytes  []byte
	access rdma.Access
	addr   uintptr
	tag    stag.STag

	// pins counts the uses by our own requests; those of peers are the STag table's. Above them is the bit
	// that says that the region is being deregistered.
	pins atomic.Int64
	idle chan struct{} // closed when the last pin is gone after that
}

const deregistering = 1 << 32

func (r *region) Bytes() []byte   { return r.bytes }
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
	return off, off <= uint64(len(r.bytes)) && uint64(len(b)) <= uint64(len(r.bytes))-off
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
	invariant.Check(n >= 0, "local: a region is unpinned more often than pinned")
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

// Deregister implements rdma.Region.
func (r *region) Deregister() error {
	old := r.pins.Or(deregistering)
	if old&deregistering != 0 {
		return errGone
	}
	if old != 0 {
		<-r.idle
	}
	dev := r.domain.dev
	if r.access&rdma.AccessRemoteInvalidate != 0 {
		dev.mu.Lock()
		delete(dev.tags, r.tag)
		dev.mu.Unlock()
	}
	dev.deregistrations.Add(1)
	return dev.table.Deregister(r.tag)
}

// drop releases a reference, and tells those who wait for the last one.
func (d *Device) drop(r *stag.Ref) {
	if r.Release() {
		d.still.L.Lock()
		d.still.Broadcast()
		d.still.L.Unlock()
	}
}

// quiet waits until nothing refers to the memory of s, which allows no access any more. References last no
// longer than a copy takes.
func (d *Device) quiet(s stag.STag) {
	d.still.L.Lock()
	defer d.still.L.Unlock()
	for {
		if still, err := d.table.Invalidate(s); still || err != nil {
			return
		}
		d.still.Wait()
	}
}

// appendSGL checks a scatter/gather list, and appends its memory and regions, and the sum of its octets.
// What is not empty says what is wrong.
func appendSGL(segs [][]byte, regions []*region, sgl []rdma.SGE, d *domain, need rdma.Access, most int,
) (_ [][]byte, _ []*region, n int, what string) {
	if len(sgl) > most {
		return segs, regions, 0, "scatter/gather list is too long"
	}
	for i := range sgl {
		b := sgl[i].Bytes
		if len(b) == 0 {
			continue
		}
		r, ok := sgl[i].Region.(*region)
		switch {
		case !ok:
			return segs, regions, 0, "memory without a region of this device"
		case r.domain != d:
			return segs, regions, 0, "region of another protection domain"
		case r.access&need != need:
			return segs, regions, 0, "region does not allow local writes"
		case len(b) > maxMessage-n:
			return segs, regions, 0, "message is too long"
		}
		if _, ok := r.offset(b); !ok {
			return segs, regions, 0, "memory is not inside of its region"
		}
		segs = append(segs, b)
		regions = append(regions, r)
		n += len(b)
	}
	return segs, regions, n, ""
}

// window is a memory window of type 2.
type window struct {
	domain *domain

	mu    sync.Mutex // taken after link.mu
	half  *half      // to which it is bound
	tag   stag.STag
	going bool // an invalidation is posted
}

// STag implements rdma.Window.
func (w *window) STag() rdma.STag {
	w.mu.Lock()
	defer w.mu.Unlock()
	return rdma.STag(w.tag)
}

// bound is what an STag of a window stands for.
type bound struct {
	window *window
	region *region // pinned
}

// bind gives the window a new STag for b, which lies in r. The link's lock is held.
func (w *window) bind(h *half, r *region, b []byte, a rdma.Access) (stag.STag, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.half != nil && !w.going {
		return 0, errBound
	}
	off, _ := r.offset(b)
	if !r.pin() {
		return 0, errGone
	}
	q := h.q
	s, err := q.dev.table.Register(q.domain.tag, q.stream, stag.Region{
		Segments: [][]byte{b}, Base: off, Access: tagAccess(a) | stag.AccessRemoteInvalidate,
	})
	if err != nil {
		r.unpin()
		return 0, err
	}
	w.half, w.tag, w.going = h, s, false
	h.windows[s] = bound{w, r}
	return s, nil
}

// unbind frees an STag of a window, to which nothing refers any more. The link's lock is held.
func (h *half) unbind(s stag.STag) {
	b, ok := h.windows[s]
	if !ok {
		return
	}
	delete(h.windows, s)
	_ = h.q.dev.table.Deregister(s) // it is there: it was in windows
	b.region.unpin()
	w := b.window
	w.mu.Lock()
	if w.tag == s && w.half != nil {
		w.half, w.going = nil, false
	}
	w.mu.Unlock()
}

// Free implements rdma.Window.
func (w *window) Free() error {
	w.mu.Lock()
	h, s := w.half, w.tag
	w.mu.Unlock()
	if h == nil {
		return nil
	}
	h.link.mu.Lock()
	defer h.link.mu.Unlock()
	if _, ok := h.windows[s]; ok {
		h.q.dev.quiet(s)
		h.unbind(s)
		h.q.n.invalidations.Add(1)
	}
	return nil
}
