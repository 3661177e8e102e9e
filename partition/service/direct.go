package service

import (
	"errors"
	"sync"
	"sync/atomic"

	"oneshot/backend"
	"oneshot/transport/rdma"
)

// direct is a partition in memory that the client reaches by RDMA Read and Write, without a request. Each part of a
// transfer is an operation of the endpoint, which completes at once: so what is denied is denied here, too, octets
// change under the store's locks, and everything counts. It has no number: a FLUSH behind it answers for it.
type direct struct {
	medium Endpoint

	hide atomic.Pointer[func()] // ends the STag, if there is one

	mu   sync.RWMutex // read-held over an access, and so over calls of the endpoint
	over bool         // guarded by mu
}

var errOver = errors.New("the use of the partition has ended")

// expose gives the client an STag for the partition, if it is memory and the device can do that. 0: it does not, and
// the client uses requests.
func (h *handle) expose() rdma.STag {
	x, ok := h.c.qp.(rdma.Exposer)
	if !ok || h.direct == nil {
		return 0
	}
	a := rdma.Access(0)
	if h.info.Rights&rdma.RightRead != 0 {
		a |= rdma.AccessRemoteRead
	}
	if h.info.Rights&rdma.RightWrite != 0 {
		a |= rdma.AccessRemoteWrite
	}
	if a == 0 {
		return 0
	}
	d := h.direct
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return 0
	}
	s, err := x.Expose(d, h.info.Size, a)
	if err != nil {
		return 0
	}
	hide := func() { x.Withdraw(s) }
	d.hide.Store(&hide)
	return s
}

// revoke refuses further access, without waiting for what is under way.
func (d *direct) revoke() {
	if hide := d.hide.Load(); hide != nil {
		(*hide)()
	}
}

// end refuses further access, and returns when none is under way.
func (d *direct) end() {
	d.revoke()
	d.mu.Lock()
	d.over = true
	d.mu.Unlock()
}

// ReadAt implements rdma.Exposed.
func (d *direct) ReadAt(b []byte, off int64) error { return d.do(backend.Read, b, off) }

// WriteAt implements rdma.Exposed.
func (d *direct) WriteAt(b []byte, off int64) error { return d.do(backend.Write, b, off) }

// access is an operation, and the wait for it.
type access struct {
	op   backend.Op
	segs [1][]byte
	done chan struct{}
}

// OpDone is for the endpoint.
func (a *access) OpDone(*backend.Op) { a.done <- struct{}{} }

var accesses = sync.Pool{New: func() any { return &access{done: make(chan struct{}, 1)} }}

func (d *direct) do(kind backend.Kind, b []byte, off int64) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.over {
		return errOver
	}
	a := accesses.Get().(*access)
	a.segs[0] = b
	a.op = backend.Op{Kind: kind, Off: off, Len: int64(len(b)), Segs: a.segs[:], Done: a}
	if !d.medium.Submit(&a.op) { // memory completes at once, whatever wraps it may not
		d.medium.Kick()
		<-a.done
	}
	err := a.op.Err
	a.op, a.segs[0] = backend.Op{}, nil
	accesses.Put(a)
	return err
}
