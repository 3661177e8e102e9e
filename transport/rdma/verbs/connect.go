//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"oneshot/transport/rdma"
)

// conn is an identifier of the connection manager for one connection.
type conn struct {
	dev     *Device
	manager *manager // of dev, or of the listener that it came through
	id      *C.struct_rdma_cm_id
	handle  uintptr
	gone    chan struct{} // closed when the kernel has said that the connection is over

	mu    sync.Mutex
	over  bool        // guarded by mu; gone is closed
	q     *queuePair  // guarded by mu; nil: events go to steps
	steps chan *event // while the connection is made
}

func newConn(d *Device, m *manager) *conn {
	return &conn{dev: d, manager: m, gone: make(chan struct{}), steps: make(chan *event, 16)}
}

// happened implements owner.
func (c *conn) happened(e *event) {
	c.mu.Lock()
	if isEnd(e.kind) && !c.over {
		c.over = true
		close(c.gone)
	}
	q := c.q
	if q == nil {
		select {
		case c.steps <- e:
		default: // whoever makes the connection has given up
		}
	}
	c.mu.Unlock()
	if q != nil {
		q.happened(e)
	}
}

func isEnd(kind int) bool {
	switch kind {
	case C.RDMA_CM_EVENT_DISCONNECTED, C.RDMA_CM_EVENT_DEVICE_REMOVAL, C.RDMA_CM_EVENT_REJECTED,
		C.RDMA_CM_EVENT_CONNECT_ERROR, C.RDMA_CM_EVENT_UNREACHABLE:
		return true
	}
	return false
}

// live hands all events to q from now on, first those that have already come.
func (c *conn) live(q *queuePair) {
	c.mu.Lock()
	c.q = q
	c.mu.Unlock()
	for {
		select {
		case e := <-c.steps:
			q.happened(e)
		default:
			return
		}
	}
}

// happened handles an event of a connection that has been made.
func (q *queuePair) happened(e *event) {
	switch e.kind {
	case C.RDMA_CM_EVENT_DISCONNECTED:
		if e.status != 0 {
			q.end(byError, fmt.Errorf("verbs: %v", e))
			return
		}
		q.end(byPeer, nil)
	case C.RDMA_CM_EVENT_DEVICE_REMOVAL:
		q.dev.removed()
	case C.RDMA_CM_EVENT_ADDR_CHANGE:
		q.dev.log.Warn("the address of an RDMA connection has changed", "local", q.local.String(), "peer", q.remote.String())
	case C.RDMA_CM_EVENT_CONNECT_ERROR, C.RDMA_CM_EVENT_UNREACHABLE, C.RDMA_CM_EVENT_REJECTED:
		q.end(byError, fmt.Errorf("verbs: %v", e))
	}
}

// PeerEnded implements rdma.PeerEnder. The connection manager may have an event about the peer's end that its goroutine
// has not read yet: each portal has such a goroutine, so an initiator that comes back through another portal may be faster.
func (q *queuePair) PeerEnded() bool {
	q.mu.Lock()
	c, over := q.conn, q.state == ended
	q.mu.Unlock()
	if over || c == nil {
		return over
	}
	c.manager.catchUp()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

// destroy frees the identifier. No events come after that.
func (c *conn) destroy() {
	C.os_cm_destroy(c.id)
	c.manager.remove(c.handle)
}

// claim begins to connect q.
func (q *queuePair) claim(d *Device) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.dev != d:
		return errForeign
	case q.state != fresh:
		return errors.New("verbs: the queue pair was connected before")
	}
	q.become(connecting)
	q.making = true
	return nil
}

// unmade ends claim: there is no connection.
func (q *queuePair) unmade() {
	q.mu.Lock()
	q.become(unconnected)
	q.making, q.early = false, nil
	q.mu.Unlock()
}

// made ends claim: there is a connection. If something has ended it meanwhile, or the device is lost, it ends now.
func (q *queuePair) made() {
	q.mu.Lock()
	q.making = false
	early := q.early
	switch {
	case q.state != connecting: // Accept has connected it already
	case early != nil:
		q.become(ended)
	default:
		q.become(connected)
	}
	q.mu.Unlock()
	if early != nil {
		q.dev.work.Go(early)
	} else if err := q.dev.lostFor(); err != nil { // lost may not have found q
		q.end(byError, err)
	}
}

// Connect implements rdma.Device.
func (d *Device) Connect(ctx context.Context, qp rdma.QueuePair, address string, p rdma.ConnParams) error {
	q, ok := qp.(*queuePair)
	if !ok {
		return errForeign
	}
	if len(p.PrivateData) > d.limits.MaxPrivate {
		return fmt.Errorf("verbs: %d bytes of private data, %s carries %d", len(p.PrivateData), d.cfg.Name, d.limits.MaxPrivate)
	}
	to, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return err
	}
	if err := q.claim(d); err != nil {
		return err
	}
	var c *conn
	for range portTries {
		if c, err = d.connect(ctx, q, to, p); !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		q.unmade()
		if e, ok := errors.AsType[*rdma.RejectedError](err); ok {
			e.Addr = address
			return e
		}
		return fmt.Errorf("verbs: connect to %s: %w", address, err)
	}
	c.live(q)
	q.made()
	return nil
}

// portTries is how often a port of our own is drawn. The connection manager draws it at random and knows only of
// its own ports; siw binds a TCP socket to it, which fails when some other socket has the port (siw_cm.c, kernel_bindconnect).
const portTries = 8

// connect connects q over a new identifier.
func (d *Device) connect(ctx context.Context, q *queuePair, to *net.TCPAddr, p rdma.ConnParams) (c *conn, err error) {
	c = newConn(d, d.manager)
	if c.id, c.handle, err = d.manager.newID(c); err != nil {
		return nil, err
	}
	if err = c.connect(ctx, q, to, p); err != nil {
		c.destroy()
		return nil, err
	}
	return c, nil
}

func (c *conn) connect(ctx context.Context, q *queuePair, to *net.TCPAddr, p rdma.ConnParams) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	timeout := c.dev.cfg.ConnectTimeout
	ms := C.int(timeout / time.Millisecond)
	sa := sockaddr(to)
	if err := errno(C.os_cm_resolve_addr(c.id, unsafe.Pointer(&sa), ms)); err != nil {
		return fmt.Errorf("resolve the address: %w", err)
	}
	if _, err := c.await(ctx, timeout, C.RDMA_CM_EVENT_ADDR_RESOLVED); err != nil {
		return err
	}
	met(c.id)
	if name := C.GoString(C.os_cm_device(c.id)); name != c.dev.cfg.Name {
		return fmt.Errorf("the way there is over %s, not %s", name, c.dev.cfg.Name)
	}
	if err := errno(C.os_cm_resolve_route(c.id, ms)); err != nil {
		return fmt.Errorf("resolve the route: %w", err)
	}
	if _, err := c.await(ctx, timeout, C.RDMA_CM_EVENT_ROUTE_RESOLVED); err != nil {
		return err
	}
	most := c.dev.limits.MaxReads
	params := q.params(p, orMost(p.InitiatorDepth, most), orMost(p.ResponderResources, most))
	var pin runtime.Pinner
	defer pin.Unpin()
	params.pin(&pin, p.PrivateData)
	if err := errno(C.os_cm_connect(c.id, &params.c)); err != nil {
		return err
	}
	e, err := c.await(ctx, 0, C.RDMA_CM_EVENT_CONNECT_RESPONSE, C.RDMA_CM_EVENT_ESTABLISHED)
	if err != nil {
		return err
	}
	if e.kind == C.RDMA_CM_EVENT_CONNECT_RESPONSE {
		if err := errno(C.os_cm_ready(c.id, q.qp, -1, -1)); err != nil {
			return fmt.Errorf("ready the queue pair: %w", err)
		}
	}
	q.attach(c, e.data, min(e.depth, int(params.c.initiator_depth)))
	if e.kind == C.RDMA_CM_EVENT_CONNECT_RESPONSE {
		if err := errno(C.os_cm_establish(c.id)); err != nil {
			return err
		}
	}
	return nil
}

// orMost returns n, or most if n is 0 or more than most.
func orMost(n, most int) int {
	if n <= 0 {
		return most
	}
	return min(n, most)
}

// params holds the parameters of a connection for the shim.
type params struct{ c C.struct_os_params }

func (q *queuePair) params(p rdma.ConnParams, depth, resources int) *params {
	v := &params{C.struct_os_params{
		private_len: C.uint32_t(len(p.PrivateData)), initiator_depth: C.uint32_t(min(depth, 255)),
		responder_resources: C.uint32_t(min(resources, 255)), qpn: q.number,
	}}
	if q.recv.srq != nil {
		v.c.srq = 1
	}
	return v
}

// pin sets the private data, which pin keeps in its place until it is unpinned. They are a copy, as cgo wants it: the owner's may be a part of
// something with pointers.
func (v *params) pin(pin *runtime.Pinner, data []byte) {
	if len(data) > 0 {
		data = bytes.Clone(data)
		pin.Pin(unsafe.SliceData(data))
		v.c.private_data = unsafe.Pointer(unsafe.SliceData(data))
	}
}

// attach stores the properties of a connection in its queue pair.
func (q *queuePair) attach(c *conn, data []byte, depth int) {
	q.mu.Lock() // against PeerEnded
	q.conn = c
	q.mu.Unlock()
	q.peerData, q.depth = data, depth
	q.local, q.remote = addr(c.id, false), addr(c.id, true)
}

// await waits for one of the wanted events. Another event, unless it is mere progress, is an error. With
// limit 0 it waits until ctx ends.
func (c *conn) await(ctx context.Context, limit time.Duration, want ...int) (*event, error) {
	var late <-chan time.Time
	if limit > 0 {
		t := time.NewTimer(limit)
		defer t.Stop()
		late = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-late:
			return nil, errors.New("the connection manager does not answer")
		case e := <-c.steps:
			if slices.Contains(want, e.kind) {
				return e, nil
			}
			if err := c.refused(e); err != nil {
				return nil, err
			}
		}
	}
}

// consumerReject is the IBTA's reason (12.6.7.2) for a refusal by the program that listens.
const consumerReject = 28

// refused returns the error for an event that says that there will be no connection.
func (c *conn) refused(e *event) error {
	switch e.kind {
	case C.RDMA_CM_EVENT_REJECTED:
		if e.status == consumerReject || c.dev.iwarp && e.status != -int(syscall.ECONNREFUSED) {
			return &rdma.RejectedError{PrivateData: e.data}
		}
	case C.RDMA_CM_EVENT_TIMEWAIT_EXIT, C.RDMA_CM_EVENT_ADDR_CHANGE:
		return nil
	}
	return errors.New(e.String())
}
