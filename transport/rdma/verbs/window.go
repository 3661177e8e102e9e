//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"oneshot/transport/rdma"
)

// window is a memory window of type 2. The window of the device is made when it is first bound. When its queue
// pair ends it is destroyed, because devices want windows to be destroyed first, and the next bind makes it again.
type window struct {
	domain *domain

	mu  sync.Mutex // taken after queuePair.mu
	mw  *C.struct_ibv_mw
	tag rdma.STag
	qp  *queuePair // the queue pair to which it is bound

	// going says that its invalidation is posted. Guarded by qp.mu.
	going bool
}

// NewWindow implements rdma.Domain.
func (d *domain) NewWindow() (rdma.Window, error) {
	if !d.dev.limits.Windows {
		return nil, fmt.Errorf("%w: memory windows", rdma.ErrUnsupported)
	}
	return &window{domain: d}, nil
}

// STag implements rdma.Window.
func (w *window) STag() rdma.STag {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tag
}

// Free implements rdma.Window.
func (w *window) Free() error {
	w.mu.Lock()
	q := w.qp
	w.mu.Unlock()
	if q != nil {
		q.mu.Lock()
		defer q.mu.Unlock()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.qp != nil {
		delete(w.qp.windows, w.tag)
	}
	return w.release()
}

// release destroys the window of the device. w.mu is held.
func (w *window) release() (err error) {
	if w.mw != nil {
		err = errno(C.os_dealloc_mw(w.mw))
	}
	w.mw, w.qp = nil, nil
	return err
}

// prepareBind makes w from p. q.mu is held.
func (q *queuePair) prepareBind(w *C.struct_os_work, p *rdma.Work) (what string, err error) {
	win, ok := p.Window.(*window)
	switch {
	case !ok || win.domain != q.domain:
		return "no window of this protection domain", nil
	case len(p.SGL) != 1 || len(p.SGL[0].Bytes) == 0:
		return "a window is bound to exactly one piece of memory", nil
	case p.Access&^allAccess != 0:
		return errBadAccess.Error(), nil
	}
	var need rdma.Access
	if p.Access&rdma.AccessRemoteWrite != 0 {
		need = rdma.AccessLocalWrite
	}
	var room [1]C.struct_ibv_sge
	sges, n, what := appendSGL(room[:0], p.SGL, q.domain, need, 1)
	if what != "" {
		return what, nil
	}
	win.mu.Lock()
	defer win.mu.Unlock()
	if win.qp != nil && win.qp != q || q.windows[win.tag] == win && !win.going {
		return "window is bound; invalidate it first", nil
	}
	if win.mw == nil {
		if win.mw, err = C.os_alloc_mw(q.domain.pd); win.mw == nil {
			return "", fmt.Errorf("verbs: memory window on %s: %w", q.dev.cfg.Name, err)
		}
		win.tag = rdma.STag(win.mw.rkey)
	}
	delete(q.windows, win.tag)
	win.tag = rdma.STag(C.os_next_rkey(C.uint32_t(win.tag)))
	win.qp, win.going = q, false
	q.windows[win.tag] = win
	p.STag = win.tag
	p.PutStamp(win.tag)
	w.opcode = C.IBV_WR_BIND_MW
	w.mw, w.mr = C.uintptr_t(uintptr(unsafe.Pointer(win.mw))), C.uintptr_t(uintptr(unsafe.Pointer(p.SGL[0].Region.(*region).mr)))
	w.remote, w.length, w.rkey, w.access = sges[0].addr, C.uint64_t(n), C.uint32_t(win.tag), C.uint32_t(flags(p.Access&^rdma.AccessLocalWrite))
	return "", nil
}

// unbind frees the windows that are bound to q, which has ended.
func (q *queuePair) unbind() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for tag, w := range q.windows {
		delete(q.windows, tag)
		w.mu.Lock()
		if err := w.release(); err != nil {
			q.dev.log.Error("free memory window", "reason", err)
		}
		w.mu.Unlock()
	}
}
