package quorum

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sys/unix"
)

// Bounds of connections.
const (
	maxConns    = 64 // that were accepted, strangers among them
	maxQueue    = 4 << 20
	longFrame   = 4 * partSize // a longer one is sent in parts
	handshakeIn = 5 * time.Second
	silence     = 5 * time.Second // after which a connection is given up
	firstPause  = 50 * time.Millisecond
	lastPause   = time.Second
)

// peer is the connection on which this node sends to a member.
type peer struct {
	n      *Node
	number uint64
	name   string
	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	queue  [][]byte // guarded by mu; frames
	bytes  int      // of queue; guarded by mu
	long   *long    // is sent beside queue; guarded by mu
	takes  taking   // guarded by mu
	linked bool     // guarded by mu
	why    string   // there is no connection; guarded by mu
	echo   uint64   // Sent of the newest beat of the member; guarded by mu
	rate   rate     // of its clock; guarded by mu
	echoAt uint64   // when it came, by the clock of beats; guarded by mu
	wake   chan struct{}
	again  chan struct{} // a token: there is reason to dial now
}

// taking is how a member takes a long frame.
type taking uint8

const (
	takesUnknown taking = iota // it has said nothing in this life yet
	takesWhole                 // it is of a former version
	takesParts
)

func newPeer(n *Node, number uint64, name string) *peer {
	p := &peer{n: n, number: number, name: name, wake: make(chan struct{}, 1), again: make(chan struct{}, 1)}
	p.ctx, p.cancel = context.WithCancel(n.ctx)
	n.wg.Go(p.run)
	return p
}

// send has the frame of a message sent. One long frame at a time is on its way, in parts; a snapshot takes the place of another one, and the core is told
// when it is written, or the connection has ended. false: there is no connection, or it is too slow, or entries would come before others that a long
// frame has; raft sends again.
func (p *peer) send(kind raftpb.MessageType, frame []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	isLong := len(frame) > longFrame
	switch {
	case !p.linked:
		return false
	case kind == raftpb.MsgSnap, isLong && p.long == nil:
		p.long = &long{b: frame[4:], snapshot: kind == raftpb.MsgSnap}
	case isLong, kind == raftpb.MsgApp && p.long != nil, p.bytes+len(frame) > maxQueue:
		return false
	default:
		p.queue, p.bytes = append(p.queue, frame), p.bytes+len(frame)
	}
	p.wakeUp()
	return true
}

// wakeUp has pump look again.
func (p *peer) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// part returns the next part of the long frame, nil if there is none, or the member has not said yet how it takes it.
func (p *peer) part() (l *long, part []byte, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch l = p.long; {
	case l == nil || p.takes == takesUnknown:
		return nil, nil, 0
	case p.takes == takesWhole && l.sent == 0:
		return l, frame(l.b[0], l.b[1:]), len(l.b)
	}
	part, n = l.next()
	return l, part, n
}

// wrote notes that so many octets of a long frame were written, and says whether those were the last ones of a snapshot.
func (p *peer) wrote(l *long, n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.long != l { // another one has taken its place
		return false
	}
	if l.sent += n; l.sent == len(l.b) {
		p.long = nil
		return l.snapshot
	}
	p.wakeUp()
	return false
}

// isNew notes that the member has begun a life.
func (p *peer) isNew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.takes, p.rate = takesUnknown, rate{}
}

// clock returns rate.wrong of the member.
func (p *peer) clock() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rate.wrong()
}

func (p *peer) take() [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.queue
	p.queue, p.bytes = nil, 0
	return q
}

// link notes that there is a connection, or none any more, and says whether a snapshot is lost with it.
func (p *peer) link(up bool) (lost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	lost = p.long != nil && p.long.snapshot
	p.linked, p.queue, p.bytes, p.long = up, nil, 0, nil
	if up {
		p.why = ""
		select { // whoever had reason to want a connection has it
		case <-p.again:
		default:
		}
	}
	return lost
}

// fails notes why there is no connection, and says whether that is news.
func (p *peer) fails(err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.why
	p.why = err.Error()
	return p.why != was
}

// reason returns why there is no connection; empty: there is one, or none was tried.
func (p *peer) reason() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.why
}

// run keeps a connection until the member or this node leaves.
func (p *peer) run() {
	pause := firstPause
	for p.ctx.Err() == nil {
		linked, err := p.connect()
		if linked {
			pause = firstPause
		}
		if err != nil && p.ctx.Err() == nil && p.fails(err) {
			p.n.opts.Log.Warn("no connection with another node", "node", p.name, "reason", err)
		}
		select {
		case <-p.ctx.Done():
		case <-p.again:
			pause = firstPause
		case <-time.After(pause):
			pause = min(2*pause, lastPause)
		}
	}
}

// dialNow ends the pause before the next connection, unless there is one.
func (p *peer) dialNow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.linked {
		return
	}
	select {
	case p.again <- struct{}{}:
	default:
	}
}

// connect makes a connection, and uses it to its end.
func (p *peer) connect() (linked bool, err error) {
	ctx, cancel := context.WithTimeout(p.ctx, handshakeIn)
	defer cancel()
	raw, err := p.n.opts.Dial(ctx, p.name)
	if err != nil {
		return false, err
	}
	hasLittle(raw)
	conn := tls.Client(newGathered(raw), p.n.tls.config)
	defer func() { _ = raw.Close() }() // TLS would want to say so, and wait until somebody reads that
	stop := context.AfterFunc(p.ctx, func() { _ = raw.Close() })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(handshakeIn))
	if err := conn.HandshakeContext(ctx); err != nil {
		return false, err
	}
	state := conn.ConnectionState()
	if number, name, ok := memberOf(&state); !ok || number != p.number {
		return false, fmt.Errorf("at the address of node %s is node %s: look at `cluster.nodes`", p.name, name)
	}
	if err := p.greet(conn); err != nil {
		return false, err
	}
	_ = conn.SetDeadline(time.Time{})
	p.link(true)
	defer func() {
		lost := p.link(false)
		p.n.do(func() {
			p.n.core.Unreachable(p.number)
			if lost {
				p.n.core.SnapshotSent(p.number, false)
			}
		})
	}()
	return true, p.pump(conn)
}

// greet says hello, and checks what the other one says.
func (p *peer) greet(conn net.Conn) error {
	var h Hello
	var before Seen
	if !p.n.do(func() { h, before = p.n.core.Hello(), p.n.core.Seen()[p.number] }) {
		return context.Canceled
	}
	if _, err := conn.Write(frame(frameHello, h.encode())); err != nil {
		return err
	}
	kind, b, err := readFrame(bufio.NewReader(conn), maxGreeting)
	if err != nil {
		return err
	}
	switch kind {
	case frameRefusal:
		err := decodeRefusal(b)
		p.n.do(func() { p.n.core.Refuse(err) })
		return err
	case frameHello:
		h, err := decodeHello(b)
		if err != nil {
			return err
		}
		return p.admit(h, before)
	case frameUnmet:
		h, why, err := decodeUnmet(b)
		if err != nil {
			return err
		}
		return cmp.Or(p.admit(h, before), why)
	}
	return fmt.Errorf("a frame of type %d came in place of a hello", kind)
}

// admit takes the life in which the member answers at its address.
func (p *peer) admit(h Hello, before Seen) error {
	if h.Number != p.number {
		return fmt.Errorf("node %s says that it is number %d", p.name, h.Number)
	}
	refused := context.Canceled
	p.n.do(func() { refused = p.n.core.Admit(h, before, p.n.hears(h), true) })
	return refused
}

// pump writes what is queued, and beats.
func (p *peer) pump(conn net.Conn) error {
	gone := make(chan error, 1)
	p.n.wg.Go(func() { // nothing more comes, but the end
		_, err := conn.Read(make([]byte, 1))
		if err == nil {
			err = errors.New("the other node has sent something that it should not")
		}
		gone <- err
	})
	idle := time.NewTicker(reportTime)
	defer idle.Stop()
	out, err := [][]byte{frame(frameIdle, p.beat())}, error(nil) // the member knows at once how this node takes long frames
	for ; err == nil; out, err = p.next(gone, idle.C) {
		for _, b := range out {
			if err := write(conn, b); err != nil {
				return err
			}
		}
		l, part, n := p.part()
		if l == nil {
			continue
		}
		if err := write(conn, part); err != nil {
			return err
		}
		if p.wrote(l, n) {
			p.n.do(func() { p.n.core.SnapshotSent(p.number, true) })
		}
	}
	return err
}

// hasLittle has a socket take little that it cannot send yet: what comes later, a heartbeat, is behind it.
func hasLittle(c net.Conn) {
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { // without it all is only later
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, 4*partSize)
			})
		}
	}
}

// next waits for what is to be written, which may be nothing but a part of a long frame.
func (p *peer) next(gone <-chan error, idle <-chan time.Time) ([][]byte, error) {
	select {
	case err := <-gone:
		return nil, err
	case <-p.ctx.Done():
		return nil, p.ctx.Err()
	case <-p.wake:
		return p.take(), nil
	case <-idle:
		return [][]byte{frame(frameIdle, p.beat())}, nil
	}
}

// write writes a frame. Each part of it has its time: over a slow link all of it may take longer.
func write(conn net.Conn, b []byte) error {
	for part := range slices.Chunk(b, partSize) {
		_ = conn.SetWriteDeadline(time.Now().Add(silence))
		if _, err := conn.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// patient is a connection of which each part may take its time.
type patient struct{ net.Conn }

func (p patient) Read(b []byte) (int, error) {
	_ = p.SetReadDeadline(time.Now().Add(silence))
	return p.Conn.Read(b)
}

// now is the clock of beats.
func (n *Node) now() uint64 { return n.clock + uint64(time.Since(n.began)) }

// beat returns the payload of an idle frame.
func (p *peer) beat() []byte {
	b := beat{Parts: true}
	p.n.look(func() {
		b.Report = p.n.core.Report()
		b.Stuck = p.n.why() != nil
		b.Lame = b.Lame || b.Stuck
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	b.Sent = p.n.now()
	if b.Echo = p.echo; b.Echo != 0 {
		b.Held = b.Sent - p.echoAt
	}
	return b.encode()
}

// beats takes a beat of the member, and returns the round trip that it shows, less than 0 if it shows none.
func (p *peer) beats(b *beat) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.echo, p.echoAt = b.Sent, p.n.now()
	if p.takes = takesWhole; b.Parts {
		p.takes = takesParts
	}
	if p.long != nil {
		p.wakeUp()
	}
	if b.Sent != 0 {
		was := p.rate.wrong()
		p.rate.add(moment{b.Sent, p.echoAt})
		switch is := p.rate.wrong(); {
		case was == 0 && is != 0:
			p.n.opts.Log.Warn("the clock of another node goes at another rate than that of this one; leases bear up to 16 %", "node", p.name, "percent", 100*is)
		case was != 0 && is == 0:
			p.n.opts.Log.Info("the clock of another node goes at the rate of this one again", "node", p.name)
		}
	}
	return b.roundTrip(p.echoAt)
}

// DialTCP returns a Dial of Options. where says at which host:port a member is. A connection whose bytes are not
// acknowledged for 2 s ends: the kernel by itself would try again after pauses of up to two minutes.
func DialTCP(where func(name string) (string, error)) func(ctx context.Context, name string) (net.Conn, error) {
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var option error
		err := raw.Control(func(fd uintptr) {
			option = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledged/time.Millisecond))
		})
		return cmp.Or(err, option)
	}}
	return func(ctx context.Context, name string) (net.Conn, error) {
		at, err := where(name)
		if err != nil {
			return nil, err
		}
		return d.DialContext(ctx, "tcp", at)
	}
}

const unacknowledged = 2 * time.Second
