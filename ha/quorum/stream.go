package quorum

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A stream is a connection between two members for somebody else than consensus: the copies of a mirror, say. It comes
// to the same address, with the same certificates. Who has dialed says hello and names the stream; behind the answer
// the bytes are those of its users.
//
//	member ── hello, name ──►  ◄── hello or refusal ──  … bytes in both directions …
//
// A stream ends when one of the two leaves the cluster, or is refused by it.

// Dial makes a stream with the member of that name, where Listen has taken the name of the stream.
func (n *Node) Dial(ctx context.Context, member, stream string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeIn)
	defer cancel()
	raw, err := n.opts.Dial(ctx, member)
	if err != nil {
		return nil, err
	}
	g := newGathered(raw)
	conn := tls.Client(g, n.tls.streams)
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(handshakeIn))
	s, err := n.openStream(ctx, conn, g, member, stream)
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	if !stop() {
		return nil, errors.Join(context.Cause(ctx), s.Close())
	}
	_ = conn.SetDeadline(time.Time{})
	return s, nil
}

func (n *Node) openStream(ctx context.Context, conn *tls.Conn, g *gathered, member, stream string) (*Stream, error) {
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	state := conn.ConnectionState()
	number, name, ok := memberOf(&state)
	if !ok || name != member {
		return nil, fmt.Errorf("at the address of node %s is node %s: look at `cluster.nodes`", member, name)
	}
	var h Hello
	if !n.do(func() { h = n.core.Hello() }) {
		return nil, net.ErrClosed
	}
	if _, err := conn.Write(frame(frameStream, appendBytes(h.encode(), stream))); err != nil {
		return nil, err
	}
	r := bufio.NewReader(conn)
	kind, b, err := readFrame(r, maxGreeting)
	switch {
	case err != nil:
		return nil, err
	case kind == frameRefusal:
		return nil, decodeRefusal(b)
	case kind != frameHello:
		return nil, fmt.Errorf("a frame of type %d came in place of a hello", kind)
	}
	if h, err = decodeHello(b); err != nil {
		return nil, err
	}
	if h.Number != number {
		return nil, fmt.Errorf("node %s says that it is number %d", member, h.Number)
	}
	return n.addStream(conn, g, r, h)
}

// Stream is a connection that Dial or a listener of Listen has returned.
type Stream struct {
	*tls.Conn
	g      *gathered // below it
	writes sync.Mutex
	r      *bufio.Reader
	n      *Node
	number uint64 // of the other member
	once   sync.Once
	ended  chan struct{}
}

// addStream makes a stream of a connection with the member that h is of. An error says that it is none.
func (n *Node) addStream(conn *tls.Conn, g *gathered, r *bufio.Reader, h Hello) (*Stream, error) {
	s := &Stream{Conn: conn, g: g, r: r, n: n, number: h.Number, ended: make(chan struct{})}
	err := net.ErrClosed
	n.do(func() {
		if err = n.core.Knows(h); err == nil {
			n.streaming.Lock()
			n.streams[s] = true
			n.streaming.Unlock()
		}
	})
	return s, err
}

// Read implements net.Conn.
func (s *Stream) Read(b []byte) (int, error) { return s.r.Read(b) }

// Close implements net.Conn. It waits neither for the peer nor for the disk.
func (s *Stream) Close() error {
	s.once.Do(func() {
		close(s.ended)
		s.n.streaming.Lock()
		delete(s.n.streams, s)
		s.n.streaming.Unlock()
	})
	return s.NetConn().Close()
}

// Knows says whether h is the hello of a member in the life in which this one knows it. It changes nothing: who is not
// known yet may be soon.
func (c *Core) Knows(h Hello) error {
	if c.refused != nil {
		return &StrangerError{"this node takes no part in the cluster"}
	}
	m := c.state.member(h.Number)
	switch {
	case h.Cluster != c.log.id.Cluster || h.Number == c.log.id.Number:
		return &StrangerError{"the node is not another one of this cluster"}
	case m == nil:
		return &StrangerError{fmt.Sprintf("node %d is no member, as far as this one knows", h.Number)}
	case m.Leaving != Stays:
		return &StrangerError{fmt.Sprintf("node %s was replaced or removed, and this machine is the former one", m.Name)}
	}
	seen := c.log.seenOf(h.Number)
	if m.Incarnation > seen.Incarnation {
		seen.Incarnation, seen.Nonce = m.Incarnation, m.Nonce
	}
	if h.Incarnation != seen.Incarnation || h.Nonce != seen.Nonce {
		return &StrangerError{fmt.Sprintf("node %s is known in another life than this one: consensus has to hear of it first", m.Name)}
	}
	return nil
}

// endStreams closes streams with those who are no members any more, and all when this node is refused. Owner only.
func (n *Node) endStreams() {
	n.streaming.Lock()
	defer n.streaming.Unlock()
	for s := range n.streams {
		m := n.core.state.member(s.number)
		if n.core.Refused() != nil || m == nil || m.Leaving != Stays {
			delete(n.streams, s)
			_ = s.NetConn().Close()
		}
	}
}

// StreamListener takes streams of one name. Close ends it; streams that it has returned stay.
type StreamListener struct {
	n     *Node
	name  string
	conns chan net.Conn
	ended chan struct{}
	once  sync.Once
}

// Listen takes streams of that name; nobody else may have it. Close the listener before the Node.
func (n *Node) Listen(stream string) (*StreamListener, error) {
	l := &StreamListener{n: n, name: stream, conns: make(chan net.Conn), ended: make(chan struct{})}
	n.tls.mu.Lock()
	defer n.tls.mu.Unlock()
	if n.tls.listeners[stream] != nil {
		return nil, fmt.Errorf("streams %q are taken by somebody else", stream)
	}
	n.tls.listeners[stream] = l
	return l, nil
}

// Accept implements net.Listener.
func (l *StreamListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *StreamListener) Close() error {
	l.once.Do(func() {
		close(l.ended)
		l.n.tls.mu.Lock()
		delete(l.n.tls.listeners, l.name)
		l.n.tls.mu.Unlock()
	})
	return nil
}

// Addr implements net.Listener.
func (l *StreamListener) Addr() net.Addr { return l.n.opts.Listener.Addr() }

// stream hands a connection of a member to whom it is for, and waits for its end.
func (a *acceptor) stream(raw net.Conn, g *gathered, conn *tls.Conn, r *bufio.Reader, number uint64, b []byte) error {
	c := cursor{b: b}
	h := Hello{c.u64(), c.u64(), c.u64(), c.u64(), c.u64(), c.u64()}
	name := c.string()
	if err := c.end(); err != nil {
		return err
	}
	if h.Number != number {
		return fmt.Errorf("node %d says that it is number %d", number, h.Number)
	}
	a.mu.Lock()
	l := a.listeners[name]
	a.mu.Unlock()
	var s *Stream
	err := fmt.Errorf("this node has no %s now", name)
	if l != nil {
		s, err = a.n.addStream(conn, g, r, h)
	}
	if err != nil {
		_, _ = conn.Write(refusal(err)) // who cannot be told finds out
		return err
	}
	defer func() { _ = s.Close() }()
	var own Hello
	if !a.n.do(func() { own = a.n.core.Hello() }) {
		return net.ErrClosed
	}
	a.leave(raw)
	if _, err := conn.Write(frame(frameHello, own.encode())); err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Time{})
	select {
	case l.conns <- s:
	case <-l.ended:
		return net.ErrClosed
	case <-a.n.ctx.Done():
		return net.ErrClosed
	}
	select {
	case <-s.ended:
	case <-a.n.ctx.Done():
	}
	return nil
}

// leave gives up the place of a connection, which has become a stream. Streams have bounds of their users: a mirror has
// one with each node.
func (a *acceptor) leave(c net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forget(c)
}

// Quiet says for how long the other machine has acknowledged nothing, in order or not, and has sent no octets in order. ok is false if the connection
// is no socket.
func (s *Stream) Quiet() (acked, came time.Duration, ok bool) {
	if s.g.raw == nil {
		return 0, 0, false
	}
	var info *unix.TCPInfo
	err := s.g.raw.Control(func(fd uintptr) { info, _ = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err != nil || info == nil {
		return 0, 0, false
	}
	return time.Duration(info.Last_ack_recv) * time.Millisecond, time.Duration(info.Last_data_recv) * time.Millisecond, true
}
