package nic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/shm"
	"oneshot/transport/rdma/soft"
)

// Connect implements rdma.Device. The card connects, with its network and its rights.
func (d *Device) Connect(ctx context.Context, rq rdma.QueuePair, addr string, p rdma.ConnParams) error {
	q, ok := rq.(*queuePair)
	if !ok || q.dev != d {
		return soft.ErrForeign
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	a, fds, err := d.callContext(ctx, &shm.Message{Op: shm.OpConnect, Number: q.number, Address: addr, Params: &p})
	shm.CloseAll(fds)
	if r, ok := errors.AsType[*rdma.RejectedError](err); ok {
		r.Addr = addr
		return err
	}
	switch {
	case err == nil:
		return q.begins(a)
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("connect to %s: %w", addr, err)
}

// listener waits for connections.
type listener struct {
	dev    *Device
	number uint32
	addr   net.Addr
	came   chan *request
	done   chan struct{}
	once   sync.Once
}

// maxRequests is how many requests wait here; the card keeps no more.
const maxRequests = 256

// Listen implements rdma.Device. The card listens, with its network and its rights.
func (d *Device) Listen(at string) (rdma.Listener, error) {
	d.mu.Lock()
	n, ok := d.listenIDs.take()
	l := &listener{dev: d, number: n, came: make(chan *request, maxRequests), done: make(chan struct{})}
	if ok {
		d.listeners[n] = l // a request may come before the answer
	}
	d.mu.Unlock()
	if !ok {
		return nil, errMany
	}
	a, err := d.ask(&shm.Message{Op: shm.OpListen, Number: n, Address: at})
	if err != nil {
		l.forget()
		return nil, err
	}
	l.addr = addr(a.Address)
	return l, nil
}

func (l *listener) forget() {
	d := l.dev
	d.mu.Lock()
	delete(d.listeners, l.number)
	d.listenIDs.give(l.number)
	d.mu.Unlock()
}

// offer hands a request to Accept. If nobody takes any, the card gives up on those that are not offered.
func (l *listener) offer(m *shm.Message) {
	select {
	case l.came <- &request{dev: l.dev, number: m.Number, data: m.Data, local: addr(m.Local), remote: addr(m.Remote)}:
	default:
	}
}

// Accept implements rdma.Listener.
func (l *listener) Accept() (rdma.Request, error) {
	select {
	case <-l.done:
		return nil, net.ErrClosed
	default:
	}
	select {
	case r := <-l.came:
		return r, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-l.dev.lost:
		return nil, l.dev.lostErr
	}
}

// Addr implements rdma.Listener.
func (l *listener) Addr() net.Addr { return l.addr }

// Close implements rdma.Listener.
func (l *listener) Close() (err error) {
	l.once.Do(func() {
		close(l.done)
		_, err = l.dev.ask(&shm.Message{Op: shm.OpCloseListener, Number: l.number})
		err = notLost(err)
		l.forget()
	})
	return err
}

// request is a connection that a peer wants.
type request struct {
	dev           *Device
	number        uint32
	data          []byte
	local, remote net.Addr
}

// Device implements rdma.Request.
func (r *request) Device() rdma.Device { return r.dev }

// PeerData implements rdma.Request.
func (r *request) PeerData() []byte { return r.data }

// LocalAddr implements rdma.Request.
func (r *request) LocalAddr() net.Addr { return r.local }

// RemoteAddr implements rdma.Request.
func (r *request) RemoteAddr() net.Addr { return r.remote }

// Accept implements rdma.Request.
func (r *request) Accept(rq rdma.QueuePair, p rdma.ConnParams) error {
	q, ok := rq.(*queuePair)
	if !ok || q.dev != r.dev {
		return soft.ErrForeign
	}
	a, err := r.dev.ask(&shm.Message{Op: shm.OpAccept, Request: r.number, Number: q.number, Params: &p})
	if err != nil {
		return err
	}
	return q.begins(a)
}

// Reject implements rdma.Request.
func (r *request) Reject(data []byte) error {
	_, err := r.dev.ask(&shm.Message{Op: shm.OpReject, Request: r.number, Data: data})
	return err
}
