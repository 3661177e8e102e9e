package card

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/shm"
)

// writes posts as many requests to a queue pair as its queue has slots. They are done at once: RDMA Writes of nothing.
func (p *program) writes(number uint32) {
	q := p.queues[number]
	w := shm.Descriptor{Op: uint8(rdma.OpWrite), Flags: uint16(rdma.Signaled)}
	for i := range q.Slots() {
		w.Put(q.Slot(i))
	}
	q.Tail.Store(q.Tail.Load() + q.Slots())
	p.hint(number)
	p.look()
}

// A program that takes no completions is turned out when it posts more than it knows to be done: else the card would keep the
// completions of all that it ever posts.
func TestRequestsBounded(t *testing.T) {
	p := newProgram(t, true, true)
	defer p.close()
	for rounds := 0; !p.c.gone.Load(); rounds++ {
		if rounds > 10*shm.Completions/itsDepth {
			t.Fatal("the card takes all requests of a program that takes no completions")
		}
		p.writes(first)
	}
}

// take takes all completions that there are.
func (p *program) take() { p.ctl.CompletionHead.Store(p.ctl.CompletionTail.Load()) }

// Who takes all completions may post on, also behind the end of the connection, of which it has not heard yet: the device gets none of that.
func TestRequestsAfterTheEnd(t *testing.T) {
	p := newProgram(t, true, true)
	defer p.close()
	x := p.pair(first)
	x.qp.Abort(nil)
	for isOver := false; !isOver; runtime.Gosched() {
		p.c.mu.Lock()
		isOver = x.over
		p.c.mu.Unlock()
	}
	for range 10 {
		p.writes(first)
		p.c.drain()
		p.take()
	}
	if p.c.gone.Load() {
		t.Error("it is turned out: ", p.c.why)
	}
}

// Who has taken completions from a ring that was full may post as many requests, though the card has not looked at that yet.
func TestRingWasFull(t *testing.T) {
	p := newProgram(t, true, true)
	defer p.close()
	for n := uint32(0); n < shm.Completions; {
		p.writes(first)
		for n += p.queues[first].Slots(); p.ctl.CompletionTail.Load()-p.ctl.CompletionHead.Load() < min(n, shm.Completions); {
			runtime.Gosched()
		}
	}
	p.take()
	p.writes(first)
	if p.c.gone.Load() {
		t.Error("it is turned out: ", p.c.why)
	}
}

// What queue pairs have left that are closed counts as long as the program does not take it. When it has, there is room again.
func TestClosedBounded(t *testing.T) {
	p := newProgram(t, true, true)
	defer p.close()
	for rounds := 0; ; rounds++ {
		if rounds > 10*shm.Completions/itsDepth {
			t.Fatal("the card makes queue pairs without end for a program that takes no completions")
		}
		p.writes(first)
		p.closePair(first)
		p.closePair(second)
		if p.newPairs() != nil {
			break
		}
		p.connect()
	}
	if p.c.gone.Load() {
		t.Fatal("it is turned out: ", p.c.why)
	}
	for range 10 * shm.Completions / itsDepth {
		p.take()
		p.c.drain()
	}
	check(t, p.newPairs())
}

// All programs of a user together have a bound, so that there is memory for those of others.
func TestMemoryOfUser(t *testing.T) {
	const n = 6 << 20
	s := New(Config{Together: 4 * n, TogetherOfUser: 2 * n})
	var programs []*client
	share := func(uid uint32) error {
		here, there := socketpair(t)
		t.Cleanup(func() { _ = there.Close() })
		c, err := newClient(s, here, Peer{UID: uid})
		check(t, err)
		programs = append(programs, c)
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.share(n)
	}
	check(t, share(1))
	check(t, share(1))
	if share(1) == nil {
		t.Error("a user shares more than his part")
	}
	check(t, share(2))
	end := func(c *client) {
		c.end(nil)
		c.takeDown()
	}
	end(programs[0])
	check(t, share(1))
	for _, c := range programs[1:] {
		end(c)
	}
	if n := s.Counters.MemoryRefused.Load(); n != 1 {
		t.Errorf("%d requests for memory are refused, want 1", n)
	}
	if s.shared != 0 || len(s.ofUser) != 0 {
		t.Errorf("%d bytes are shared by programs that have gone, %v", s.shared, s.ofUser)
	}
}

// listenAt returns a socket for a card, and what connects to it.
func listenAt(t *testing.T) (l *net.UnixListener, dial func() *net.UnixConn) {
	t.Helper()
	at := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "card"), Net: "unixpacket"}
	l, err := net.ListenUnix("unixpacket", at)
	check(t, err)
	return l, func() *net.UnixConn {
		u, err := net.DialUnix("unixpacket", nil, at)
		check(t, err)
		t.Cleanup(func() { _ = u.Close() })
		return u
	}
}

// A program that never says hello loses its place.
func TestSilent(t *testing.T) {
	l, dial := listenAt(t)
	s := New(Config{Programs: 1, HelloTimeout: func() time.Duration { return time.Millisecond }})
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- s.Serve(ctx, l) }()
	if n, err := dial().Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("%d octets from the card, %v", n, err)
	}
	if n := s.Counters.Silent.Load(); n != 1 {
		t.Errorf("%d programs without a hello, want 1", n)
	}
	cancel()
	check(t, <-over)
}

// Who has come is told, and who was turned away is counted.
func TestPrograms(t *testing.T) {
	for _, config := range []Config{{Programs: 1}, {ProgramsOfUser: 1}} {
		l, dial := listenAt(t)
		s := New(config)
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- s.Serve(ctx, l) }()
		dial()
		if n, err := dial().Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("%d octets from the card, %v", n, err)
		}
		if n := s.Counters.Refused.Load(); n != 1 {
			t.Errorf("%d programs are refused, want 1", n)
		}
		if list := s.Programs(); len(list) != 1 || list[0].UID != uint32(os.Geteuid()) || list[0].QueuePairs != 0 || list[0].Shared != 0 {
			t.Errorf("%+v", list)
		}
		cancel()
		check(t, <-over)
	}
}

// A program that has said hello keeps its place when the time for that is over.
func TestSaidHello(t *testing.T) {
	here, there := socketpair(t)
	defer func() { _ = there.Close() }()
	c, err := newClient(New(Config{}), here, Peer{})
	check(t, err)
	_, fds, err := c.hello(&shm.Message{Version: shm.Version}, nil)
	check(t, err)
	shm.CloseAll(fds)
	c.expectHello()
	if c.gone.Load() {
		t.Error("it is turned out: ", c.why)
	}
	c.end(nil)
	c.takeDown()
}
