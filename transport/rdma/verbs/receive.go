//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
// #cgo noescape os_post_recv
// #cgo nocallback os_post_recv
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"oneshot/transport/rdma"
)

// receiveQueue is a queue of receives, shared by queue pairs or of one queue pair.
type receiveQueue struct {
	dev    *Device
	domain *domain
	srq    *C.struct_ibv_srq // nil: of qp
	qp     *queuePair

	mu    sync.Mutex // taken after completionQueue.mu
	slots []receive  // by the ID that was given to the device
	free  []uint32
	next  uint64 // number of the next receive
	users int
	dead  bool // qp has ended

	posts, receives uint64
	batch           [batch]C.struct_os_receive
	sges            [batchSGE]C.struct_ibv_sge
}

type receive struct {
	id     uint64
	number uint64
	posted bool
}

func newReceives(d *Device, dom *domain, depth int) *receiveQueue {
	r := &receiveQueue{dev: d, domain: dom, slots: make([]receive, depth), free: make([]uint32, depth)}
	for i := range r.free {
		r.free[i] = uint32(depth - 1 - i)
	}
	return r
}

// NewReceiveQueue implements rdma.Device.
func (d *Device) NewReceiveQueue(dom rdma.Domain, depth int) (rdma.ReceiveQueue, error) {
	own, ok := dom.(*domain)
	if !ok || own.dev != d {
		return nil, errForeign
	}
	r := newReceives(d, own, depth)
	var err error
	if r.srq, err = C.os_create_srq(own.pd, C.int(depth), C.int(d.limits.MaxSGE)); r.srq == nil {
		return nil, fmt.Errorf("verbs: queue of %d shared receives on %s: %w", depth, d.cfg.Name, err)
	}
	return r, nil
}

// PostReceive implements rdma.ReceiveQueue.
func (r *receiveQueue) PostReceive(rs []rdma.Receive) (int, error) { return r.post(rs) }

func (r *receiveQueue) post(rs []rdma.Receive) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n < len(rs) && err == nil {
		var k int
		k, err = r.postBatch(rs, n)
		n += k
	}
	r.posts++
	r.receives += uint64(n)
	return n, err
}

// postBatch posts as many of rs[from:] as one call of the shim takes, and returns how many were posted.
func (r *receiveQueue) postBatch(rs []rdma.Receive, from int) (n int, err error) {
	sges := r.sges[:0]
	most := r.dev.limits.MaxSGE
	if r.qp != nil {
		most = r.qp.maxSGE
	}
	for i := from; i < len(rs) && n < batch && len(sges)+most <= batchSGE; i++ {
		if err = r.full(n); err != nil {
			break
		}
		before := len(sges)
		var what string
		if sges, _, what = appendSGL(sges, rs[i].SGL, r.domain, rdma.AccessLocalWrite, most); what != "" {
			err = &rdma.WorkError{Index: i, Op: rdma.OpReceive, What: what}
			break
		}
		if len(sges) == before {
			sges = r.dev.placeholder(sges)
		}
		slot := r.free[len(r.free)-1-n]
		r.slots[slot] = receive{id: rs[i].ID, number: r.next + uint64(n), posted: true}
		r.batch[n] = C.struct_os_receive{id: receiveBit | C.uint64_t(slot), sges: C.uint64_t(len(sges) - before)}
		n++
	}
	if n == 0 {
		return 0, err
	}
	done, postErr := r.doorbell(n)
	if postErr != nil {
		return done, postErr
	}
	return n, err
}

// full returns why no receive can follow n receives that are about to be posted.
func (r *receiveQueue) full(n int) error {
	switch {
	case r.dead:
		return rdma.ErrDisconnected
	case n == len(r.free):
		return rdma.ErrFull
	}
	return nil
}

// doorbell posts the first n of r.batch and returns how many the device has taken.
func (r *receiveQueue) doorbell(n int) (int, error) {
	var qp *C.struct_ibv_qp
	if r.qp != nil {
		qp = r.qp.qp
	}
	var done C.int
	rc := C.os_post_recv(qp, r.srq, &r.batch[0], C.int(n), &r.sges[0], &done)
	if rc == 0 {
		done = C.int(n)
	}
	for i := int(done); i < n; i++ {
		r.slots[r.free[len(r.free)-1-i]].posted = false
	}
	// The slots of receives that were not taken stay free.
	rest := r.free[len(r.free)-n : len(r.free)-int(done)]
	r.free = append(r.free[:len(r.free)-n], rest...)
	r.next += uint64(done)
	switch err := errno(rc); {
	case err == nil:
		return n, nil
	case errors.Is(err, syscall.ENOMEM):
		return int(done), rdma.ErrFull
	default:
		return int(done), fmt.Errorf("verbs: post receives: %w", err)
	}
}

// completed frees a slot and returns the ID that its owner gave it.
func (r *receiveQueue) completed(slot uint32) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.slots[slot]
	s.posted = false
	r.free = append(r.free, slot)
	return s.id
}

// stop makes further posts fail.
func (r *receiveQueue) stop() {
	r.mu.Lock()
	r.dead = true
	r.mu.Unlock()
}

// flush completes all posted receives as flushed, in order. The lock of c is held.
func (r *receiveQueue) flush(c *completionQueue) {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := slices.DeleteFunc(slices.Clone(r.slots), func(s receive) bool { return !s.posted })
	slices.SortFunc(left, func(a, b receive) int { return cmp.Compare(a.number, b.number) })
	for _, s := range left {
		c.push(&rdma.Completion{ID: s.id, Op: rdma.OpReceive, Status: rdma.StatusFlushed, QueuePair: r.qp})
	}
	clear(r.slots)
}

// use counts the queue pairs that share the queue.
func (r *receiveQueue) use(n int) {
	r.mu.Lock()
	r.users += n
	r.mu.Unlock()
}

// Close implements rdma.ReceiveQueue.
func (r *receiveQueue) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.users > 0:
		return errInUse
	case r.dead:
		return nil
	}
	r.dead = true
	r.dev.mu.Lock()
	r.dev.past.ReceivePosts += r.posts
	r.dev.past.Receives += r.receives
	r.dev.mu.Unlock()
	return errno(C.os_destroy_srq(r.srq))
}
