package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// Addr is the address of a listener or queue pair, or the name of an endpoint.
type Addr string

// Network implements net.Addr.
func (a Addr) Network() string { return "local" }

func (a Addr) String() string { return string(a) }

// scheme stands before the number of a listener.
const scheme = "pair:"

// listeners are those of the process, by number: its devices reach each other.
var listeners struct {
	sync.Mutex
	byPort map[uint64]*listener
	next   uint64 // the last number given out for 0
}

// listener waits for connections.
type listener struct {
	dev  *Device
	port uint64

	requests chan *request
	over     chan struct{} // closed by Close
	once     sync.Once
}

// Listen implements rdma.Device. The address is "pair:N"; N is 0 for one that is free.
func (d *Device) Listen(addr string) (rdma.Listener, error) {
	number, ok := strings.CutPrefix(addr, scheme)
	port, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil {
		return nil, fmt.Errorf("local: %q is no address to listen on: it has to be %sN", addr, scheme)
	}
	listeners.Lock()
	defer listeners.Unlock()
	if listeners.byPort == nil {
		listeners.byPort = make(map[uint64]*listener)
	}
	for port == 0 || number == "0" && listeners.byPort[port] != nil {
		listeners.next++
		port = listeners.next
	}
	if listeners.byPort[port] != nil {
		return nil, fmt.Errorf("local: somebody listens on %s already", addr)
	}
	l := &listener{dev: d, port: port, requests: make(chan *request), over: make(chan struct{})}
	listeners.byPort[port] = l
	return l, nil
}

// Accept implements rdma.Listener.
func (l *listener) Accept() (rdma.Request, error) {
	select {
	case <-l.over:
		return nil, net.ErrClosed
	default:
	}
	select {
	case r := <-l.requests:
		r.timer = time.AfterFunc(l.dev.cfg.AcceptTimeout, func() { _ = r.answer(nil, nil, errAcceptTimeout) })
		return r, nil
	case <-l.over:
		return nil, net.ErrClosed
	}
}

// Addr implements rdma.Listener.
func (l *listener) Addr() net.Addr { return l.addr() }

func (l *listener) addr() Addr { return Addr(scheme + strconv.FormatUint(l.port, 10)) }

// Close implements rdma.Listener.
func (l *listener) Close() error {
	l.once.Do(func() {
		listeners.Lock()
		delete(listeners.byPort, l.port)
		listeners.Unlock()
		close(l.over)
	})
	return nil
}

var (
	errAcceptTimeout = errors.New("local: the other end takes too long to accept")
	errOver          = errors.New("local: the request is answered, or was given up")
)

// request asks for a connection.
type request struct {
	l      *listener
	from   *queuePair
	p      rdma.ConnParams
	timer  *time.Timer
	result chan error // capacity 1

	mu   sync.Mutex // taken before queuePair.mu
	over bool       // answered, or given up; guarded by mu
}

// Origin returns the device of the queue pair that asks, with r, for a connection with a listener of this package. It is of this process.
func Origin(r rdma.Request) *Device { return r.(*request).from.dev }

// Device implements rdma.Request.
func (r *request) Device() rdma.Device { return r.l.dev }

// PeerData implements rdma.Request.
func (r *request) PeerData() []byte { return r.p.PrivateData }

// LocalAddr implements rdma.Request.
func (r *request) LocalAddr() net.Addr { return r.l.addr() }

// RemoteAddr implements rdma.Request.
func (r *request) RemoteAddr() net.Addr { return Addr(r.from.dev.cfg.Name) }

// answer ends the request; if q is set, with a link.
func (r *request) answer(q *queuePair, p *rdma.ConnParams, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return errOver
	}
	r.over = true
	if r.timer != nil {
		r.timer.Stop()
	}
	if q != nil {
		err = newLink(r, q, p)
	}
	r.result <- err
	return err
}

// Accept implements rdma.Request.
func (r *request) Accept(qp rdma.QueuePair, p rdma.ConnParams) error {
	q, ok := qp.(*queuePair)
	switch {
	case !ok || q.dev != r.l.dev:
		return soft.ErrForeign
	case len(p.PrivateData) > maxPrivate:
		return errTooMuch
	}
	if err := q.claim(); err != nil {
		return err
	}
	return r.answer(q, &p, nil)
}

// Reject implements rdma.Request.
func (r *request) Reject(data []byte) error {
	err := &rdma.RejectedError{Addr: r.l.addr().String(), PrivateData: append([]byte(nil), data...)}
	if got := r.answer(nil, nil, err); got != err {
		return got
	}
	return nil
}

var errTooMuch = fmt.Errorf("local: more than %d bytes of private data", maxPrivate)

// Connect implements rdma.Device. addr is "pair:N", or the name of an endpoint.
func (d *Device) Connect(ctx context.Context, qp rdma.QueuePair, addr string, p rdma.ConnParams) error {
	q, ok := qp.(*queuePair)
	former, isOurs := p.Former.(*queuePair)
	switch {
	case !ok || q.dev != d, p.Former != nil && (!isOurs || former.dev != d):
		return soft.ErrForeign
	case len(p.PrivateData) > maxPrivate:
		return errTooMuch
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := q.claim(); err != nil {
		return err
	}
	number, ok := strings.CutPrefix(addr, scheme)
	if !ok {
		return d.openEndpoint(ctx, q, addr, p.Rights, former)
	}
	port, err := strconv.ParseUint(number, 10, 64)
	listeners.Lock()
	l := listeners.byPort[port]
	listeners.Unlock()
	if err != nil || l == nil {
		return fmt.Errorf("local: nobody listens on %s", addr)
	}
	p.PrivateData = append([]byte(nil), p.PrivateData...)
	return q.ask(ctx, &request{l: l, from: q, p: p, result: make(chan error, 1)})
}

// ask hands the request to the listener and waits for the answer.
func (q *queuePair) ask(ctx context.Context, r *request) error {
	select {
	case r.l.requests <- r:
	case <-r.l.over:
		return fmt.Errorf("local: nobody listens on %s any more", r.l.addr())
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-r.result:
		return err
	case <-ctx.Done():
		if err := r.answer(nil, nil, ctx.Err()); errors.Is(err, errOver) {
			return <-r.result // it came at the same time
		}
		return ctx.Err()
	}
}
