package server

import (
	"net"
	"sync"
)

// maxServed is how many connections the metrics, and the management API, may have at a time. Others wait in the
// kernel's backlog, because most descriptors are for initiators.
const maxServed = 32

// limitedListener accepts at most maxServed connections at a time.
type limitedListener struct {
	net.Listener
	slots  chan struct{} // one element for each connection
	closed chan struct{}
	once   sync.Once
}

func newLimitedListener(l net.Listener) *limitedListener {
	return &limitedListener{Listener: l, slots: make(chan struct{}, maxServed), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitedConn{Conn: c, leave: sync.OnceFunc(func() { <-l.slots })}, nil
}

// Close implements net.Listener.
func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
