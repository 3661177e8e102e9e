package local

import (
	"sync"

	"oneshot/stag"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// domain is a protection domain.
type domain struct {
	soft.Domain
	dev *Device
}

// NewWindow implements rdma.Domain.
func (d *domain) NewWindow() (rdma.Window, error) { return &window{domain: d}, nil }

// drop releases a reference, and tells those who wait for the last one.
func (d *Device) drop(r *stag.Ref) {
	if r.Release() {
		d.still.L.Lock()
		d.still.Broadcast()
		d.still.L.Unlock()
	}
}

// quiet invalidates s, if nobody has, and waits until nothing refers to its memory. References last no longer
// than a copy takes.
func (d *Device) quiet(s stag.STag) {
	d.still.L.Lock()
	defer d.still.L.Unlock()
	for {
		if still, err := d.memory.Table.Invalidate(s); still || err != nil {
			return
		}
		d.still.Wait()
	}
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
	region *soft.Region // pinned
}

// bind gives the window a new STag for b, which lies in r. The link's lock is held.
func (w *window) bind(h *half, r *soft.Region, b []byte, a rdma.Access) (stag.STag, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.half != nil && !w.going {
		return 0, errBound
	}
	off, _ := r.Offset(b)
	if !r.Pin() {
		return 0, soft.ErrGone
	}
	q := h.q
	s, err := q.dev.memory.Table.Register(q.domain.Tag, q.stream, stag.Region{
		Segments: [][]byte{b}, Base: off, Access: soft.TagAccess(a) | stag.AccessRemoteInvalidate,
	})
	if err != nil {
		r.Unpin()
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
	_ = h.q.dev.memory.Table.Deregister(s) // it is there: it was in windows
	b.region.Unpin()
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
		h.q.n.Invalidations.Add(1)
	}
	return nil
}
