//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"oneshot/transport/rdma"
)

// backlog is the number of requests that may wait for Accept.
const backlog = 128

// listening is an identifier of the connection manager that listens, for one device or for several.
type listening struct {
	manager *manager
	addr    *net.TCPAddr
	at      net.TCPAddr   // addr with the zone that was asked for
	device  string        // the device that has the address; empty: all
	closed  chan struct{} // closed with the last listener
	// patience is how long the kernel may take to destroy an identifier whose socket is gone.
	patience time.Duration

	mu        sync.Mutex
	listeners []*listener // guarded by mu; the open ones

	// turn is held by whoever destroys the identifier or makes another (relisten.go). It is taken before mu. It guards
	// what follows.
	turn    sync.Mutex
	id      *C.struct_rdma_cm_id
	handle  uintptr
	listens bool            // the identifier listens, or has done so
	lost    bool            // it listens no more, and never will again
	sockets int             // the most that siw has had to listen with; 0: none, or not counted yet
	guards  []guards        // the oldest first
	ending  sync.WaitGroup  // guards that end
	failed  string          // why it does not listen, as the log has it
	stuck   <-chan struct{} // the former identifier is still being destroyed; closed at the end of that
}

// listener waits for connections over its device.
type listener struct {
	dev    *Device
	on     *listening
	queue  chan *request
	closed chan struct{}
	once   sync.Once
	err    error // set before closed is closed
}

// Listen implements rdma.Device. The address has to belong to the device; without one, all addresses of
// the device are meant. Requests over other devices are refused.
func (d *Device) Listen(address string) (rdma.Listener, error) {
	ls, err := listen([]*Device{d}, address)
	if err != nil {
		return nil, err
	}
	return ls[0], nil
}

// ListenAll is Listen for several devices at one address, or, without one, at all addresses of these
// devices. It returns a listener for each device, in their order.
func ListenAll(devices []rdma.Device, address string) ([]rdma.Listener, error) {
	own := make([]*Device, len(devices))
	for i, d := range devices {
		own[i] = d.(*Device)
	}
	ls, err := listen(own, address)
	if err != nil {
		return nil, err
	}
	all := make([]rdma.Listener, len(ls))
	for i, l := range ls {
		all[i] = l
	}
	return all, nil
}

func listen(devices []*Device, address string) ([]*listener, error) {
	at, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, err
	}
	on := &listening{closed: make(chan struct{}), patience: destroyTime}
	if on.manager, err = newManager(devices[0].cfg.Logger); err != nil {
		return nil, err
	}
	defer on.manager.end() // connections keep the manager; they may outlive the listeners and their devices
	for _, d := range devices {
		on.listeners = append(on.listeners, &listener{dev: d, on: on, queue: make(chan *request, backlog), closed: make(chan struct{}), err: net.ErrClosed})
	}
	all := on.listeners
	if on.id, on.handle, err = on.manager.newID(on); err != nil {
		return nil, err
	}
	sa := sockaddr(at)
	err = errno(C.os_cm_listen(on.id, unsafe.Pointer(&sa), backlog))
	met(on.id)
	if err != nil {
		on.destroy()
		return nil, fmt.Errorf("verbs: listen at %s: %w; is that an address of a network interface with an RDMA device, and free?", address, err)
	}
	if on.device = C.GoString(C.os_cm_device(on.id)); on.device != "" && on.of(on.device) == nil {
		err := fmt.Errorf("verbs: listen at %s: that is an address of %s, not of %s", address, on.device, devices[0].cfg.Name)
		on.destroy()
		return nil, err
	}
	on.listens = true
	on.addr = addr(on.id, false)
	on.at = net.TCPAddr{IP: on.addr.IP, Port: on.addr.Port, Zone: at.Zone}
	if i := slices.IndexFunc(devices, func(d *Device) bool { return d.siw }); i >= 0 {
		on.look(devices[i]) // now its sockets are all there
	}
	for _, l := range all {
		if err := l.dev.add(l); err != nil {
			for _, l := range all {
				_ = l.Close()
			}
			return nil, err
		}
	}
	return all, nil
}

// of returns the listener of a device, or nil.
func (on *listening) of(device string) *listener {
	on.mu.Lock()
	defer on.mu.Unlock()
	for _, l := range on.listeners {
		if l.dev.cfg.Name == device {
			return l
		}
	}
	return nil
}

// destroy destroys the identifier. turn is held, or nobody else knows on yet.
func (on *listening) destroy() {
	on.manager.destroy(on.id, on.handle)
	on.release()
	on.ending.Wait()
}

// happened implements owner.
func (on *listening) happened(e *event) {
	switch e.kind {
	case C.RDMA_CM_EVENT_CONNECT_REQUEST:
	case C.RDMA_CM_EVENT_DEVICE_REMOVAL:
		// Closing the last listener may already have destroyed the identifier.
		if l := on.of(on.device); l != nil {
			l.dev.removed()
		}
		return
	default:
		return
	}
	met(e.id)
	name := C.GoString(C.os_cm_device(e.id))
	l := on.of(name)
	if l == nil {
		on.manager.log.Warn("connection refused: it came over another device", "over", name)
		_ = refuse(e.id, nil)
		return
	}
	c := newConn(l.dev, on.manager)
	c.id = e.id
	r := &request{conn: c, data: e.data, depth: e.depth, resources: e.resources, local: addr(e.id, false), remote: addr(e.id, true)}
	c.handle = on.manager.enter(c)
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
		return nil, l.err
	default:
	}
	select {
	case <-l.closed:
		return nil, l.err
	case r := <-l.queue:
		return r, nil
	}
}

func (l *listener) Addr() net.Addr { return l.on.addr }

// Close implements rdma.Listener.
func (l *listener) Close() error {
	l.close(net.ErrClosed)
	return nil
}

// close makes Accept return err.
func (l *listener) close(err error) {
	l.once.Do(func() {
		l.err = err
		close(l.closed)
		l.dev.remove(l)
		on := l.on
		on.mu.Lock()
		on.listeners = slices.DeleteFunc(slices.Clone(on.listeners), func(x *listener) bool { return x == l })
		last := len(on.listeners) == 0
		on.mu.Unlock()
		if last {
			close(on.closed)
			on.turn.Lock()
			on.destroy()
			on.turn.Unlock()
		}
		for {
			select {
			case r := <-l.queue:
				_ = r.Reject(nil)
			default:
				return
			}
		}
	})
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
	defer c.manager.remove(c.handle)
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
		_ = refuse(r.conn.id, nil)
		r.conn.manager.remove(r.conn.handle)
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
		q.unmade()
		return fmt.Errorf("ready the queue pair: %w", err)
	}
	q.attach(c, r.data, depth)
	q.mu.Lock()
	q.become(connected) // messages may come before the kernel reports that the connection is made
	q.mu.Unlock()
	if err := errno(C.os_cm_accept(c.id, &params.c)); err != nil {
		q.mu.Lock()
		if q.state == connected {
			q.become(unconnected)
			q.making = false
			q.mu.Unlock()
			return err
		}
		q.mu.Unlock() // the connection has ended meanwhile; Disconnected tells its owner
	}
	c.live(q)
	q.made()
	return nil
}
