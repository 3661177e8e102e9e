//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"oneshot/transport/rdma"
)

// backlog is how many requests may wait for Accept.
const backlog = 128

// listener waits for connections over its device.
type listener struct {
	dev    *Device
	id     *C.struct_rdma_cm_id
	handle uintptr
	addr   *net.TCPAddr

	queue  chan *request
	closed chan struct{}
	once   sync.Once
}

// Listen implements rdma.Device. The address has to be the device's, or none for all it has.
func (d *Device) Listen(address string) (rdma.Listener, error) {
	at, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, err
	}
	l := &listener{dev: d, queue: make(chan *request, backlog), closed: make(chan struct{})}
	if l.id, l.handle, err = d.manager.newID(l); err != nil {
		return nil, err
	}
	sa := sockaddr(at)
	if err := errno(C.os_cm_listen(l.id, unsafe.Pointer(&sa), backlog)); err != nil {
		l.destroy()
		return nil, fmt.Errorf("verbs: listen at %s: %w; is that an address of the interface of %s?", address, err, d.cfg.Name)
	}
	if name := C.os_cm_device(l.id); name != nil && C.GoString(name) != d.cfg.Name {
		err := fmt.Errorf("verbs: listen at %s: that is an address of %s, not of %s", address, C.GoString(name), d.cfg.Name)
		l.destroy()
		return nil, err
	}
	l.addr = addr(l.id, false)
	return l, nil
}

func (l *listener) destroy() {
	l.dev.manager.remove(l.handle)
	C.os_cm_destroy(l.id)
}

// happened implements owner.
func (l *listener) happened(e *event) {
	switch e.kind {
	case C.RDMA_CM_EVENT_CONNECT_REQUEST:
	case C.RDMA_CM_EVENT_DEVICE_REMOVAL:
		l.dev.lost(fmt.Errorf("verbs: %s has been removed", l.dev.cfg.Name))
		return
	default:
		return
	}
	if name := C.GoString(C.os_cm_device(e.id)); name != l.dev.cfg.Name {
		l.dev.log.Warn("connection refused: it came over another device", "over", name)
		_ = refuse(e.id, nil)
		return
	}
	c := newConn(l.dev)
	c.id = e.id
	r := &request{conn: c, data: e.data, depth: e.depth, resources: e.resources, local: addr(e.id, false), remote: addr(e.id, true)}
	c.handle = l.dev.manager.enter(c)
	C.os_cm_set_handle(e.id, C.uintptr_t(c.handle))
	r.timer = time.AfterFunc(l.dev.cfg.AcceptTimeout, func() { _ = r.Reject(nil) })
	select {
	case l.queue <- r:
	default:
		_ = r.Reject(nil)
	}
}

// Accept implements rdma.Listener.
func (l *listener) Accept() (rdma.Request, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	case r := <-l.queue:
		return r, nil
	}
}

func (l *listener) Addr() net.Addr { return l.addr }

// Close implements rdma.Listener.
func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.destroy()
		for {
			select {
			case r := <-l.queue:
				_ = r.Reject(nil)
			default:
				return
			}
		}
	})
	return nil
}

// request is a connection that a peer wants.
type request struct {
	conn             *conn
	data             []byte
	depth, resources int
	local, remote    *net.TCPAddr
	timer            *time.Timer
	taken            atomic.Bool
}

var errTaken = errors.New("verbs: the request was answered before, or has been waiting for too long")

func (r *request) Device() rdma.Device  { return r.conn.dev }
func (r *request) PeerData() []byte     { return r.data }
func (r *request) LocalAddr() net.Addr  { return r.local }
func (r *request) RemoteAddr() net.Addr { return r.remote }

// Reject implements rdma.Request.
func (r *request) Reject(data []byte) error {
	if r.taken.Swap(true) {
		return errTaken
	}
	r.timer.Stop()
	c := r.conn
	c.dev.manager.remove(c.handle)
	if len(data) > c.dev.limits.MaxPrivate {
		data = data[:c.dev.limits.MaxPrivate]
	}
	return refuse(c.id, data)
}

// Accept implements rdma.Request.
func (r *request) Accept(qp rdma.QueuePair, p rdma.ConnParams) error {
	if r.taken.Swap(true) {
		return errTaken
	}
	r.timer.Stop()
	err := r.accept(qp, p)
	if err != nil {
		r.conn.dev.manager.remove(r.conn.handle)
		_ = refuse(r.conn.id, nil)
		return fmt.Errorf("verbs: accept %s: %w", r.remote, err)
	}
	return nil
}

func (r *request) accept(qp rdma.QueuePair, p rdma.ConnParams) error {
	c := r.conn
	q, ok := qp.(*queuePair)
	if !ok {
		return errForeign
	}
	if len(p.PrivateData) > c.dev.limits.MaxPrivate {
		return fmt.Errorf("%d bytes of private data, %s carries %d", len(p.PrivateData), c.dev.cfg.Name, c.dev.limits.MaxPrivate)
	}
	if err := q.claim(c.dev); err != nil {
		return err
	}
	most := c.dev.limits.MaxReads
	depth, resources := min(orMost(p.InitiatorDepth, most), r.depth), min(orMost(p.ResponderResources, most), r.resources)
	params := q.params(p, depth, resources)
	var pin runtime.Pinner
	defer pin.Unpin()
	params.pin(&pin, p.PrivateData)
	if err := errno(C.os_cm_ready(c.id, q.qp, C.int(depth), C.int(resources))); err != nil {
		q.settle(unconnected)
		return fmt.Errorf("ready the queue pair: %w", err)
	}
	q.attach(c, r.data, depth)
	q.settle(connected) // messages may come before the kernel says that it is
	if err := errno(C.os_cm_accept(c.id, &params.c)); err != nil {
		q.settle(unconnected)
		return err
	}
	c.live(q)
	return nil
}
