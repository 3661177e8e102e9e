package local

import (
	"slices"
	"sync"

	"oneshot/internal/ring"
	"oneshot/transport/rdma"
)

// receives is a queue of receives, of one queue pair or shared.
type receives struct {
	domain *domain
	depth  int
	maxSGE int

	mu      sync.Mutex // taken after link.mu
	ring    ring.Ring[receive]
	waiting []*half // whose peers have Sends that found the queue empty, in order
	users   int
	ended   bool
}

// receive is memory for one message.
type receive struct {
	id      uint64
	n       int // octets
	segs    [][]byte
	regions []*region
}

var _ rdma.ReceiveQueue = (*receives)(nil)

// NewReceiveQueue implements rdma.Device.
func (d *Device) NewReceiveQueue(rd rdma.Domain, depth int) (rdma.ReceiveQueue, error) {
	dom, ok := rd.(*domain)
	if !ok || dom.dev != d {
		return nil, errForeign
	}
	return &receives{domain: dom, depth: depth, maxSGE: maxSGE}, nil
}

// PostReceive implements rdma.ReceiveQueue.
func (r *receives) PostReceive(rs []rdma.Receive) (int, error) {
	n, err := r.post(rs)
	r.wake()
	return n, err
}

func (r *receives) post(rs []rdma.Receive) (n int, err error) {
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
		slot.id = rs[i].ID
		slot.segs, slot.regions, slot.n, what = appendSGL(
			slot.segs[:0], slot.regions[:0], rs[i].SGL, r.domain, rdma.AccessLocalWrite, r.maxSGE)
		if what != "" {
			return i, &rdma.WorkError{Index: i, Op: rdma.OpReceive, What: what}
		}
		r.ring.Tail++
	}
	return len(rs), nil
}

// take moves the oldest receive to into. False: there is none, and h, if set, is told when there is one.
func (r *receives) take(into *receive, h *half) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ring.Len() == 0 {
		if h != nil && !slices.Contains(r.waiting, h) {
			r.waiting = append(r.waiting, h)
		}
		return false
	}
	slot := r.ring.At(r.ring.Head)
	*into, *slot = *slot, *into // the lists change places, so that their memory is used again
	r.ring.Head++
	return true
}

// wake goes on with those that wait, as long as there are receives. No lock is held.
func (r *receives) wake() {
	for {
		r.mu.Lock()
		if r.ring.Len() == 0 || len(r.waiting) == 0 {
			r.mu.Unlock()
			return
		}
		h := r.waiting[0]
		r.waiting = slices.Delete(r.waiting, 0, 1)
		r.mu.Unlock()
		h.received()
	}
}

// leave takes h off the list of those that wait.
func (r *receives) leave(h *half) {
	r.mu.Lock()
	r.waiting = slices.DeleteFunc(r.waiting, func(x *half) bool { return x == h })
	r.mu.Unlock()
}

// end refuses further receives.
func (r *receives) end() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
}

func (r *receives) use(n int) {
	r.mu.Lock()
	r.users += n
	r.mu.Unlock()
}

// Close implements rdma.ReceiveQueue.
func (r *receives) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users > 0 {
		return errInUse
	}
	r.ended = true
	return nil
}
