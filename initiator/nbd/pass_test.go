package nbd

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/initiator"
	"oneshot/test/targettest"
)

// passing is a Conn whose commands the test ends by itself, and a socket that data comes through.
type passing struct {
	t      *testing.T
	c      *Conn
	k      *kernelEnd
	begun  chan *initiator.Command
	source int // what a Sink takes from
	feed   int // the other end of it
	serves chan error
	wg     sync.WaitGroup
}

func newPassing(t *testing.T) *passing {
	t.Helper()
	p := &passing{t: t, begun: make(chan *initiator.Command, 8), serves: make(chan error, 1)}
	ours, fd, err := socketPair()
	check(t, err)
	f := os.NewFile(uintptr(fd), "")
	theirs, err := net.FileConn(f)
	check(t, err)
	check(t, f.Close())
	m := newModel(4 << 20)
	m.most = 1 << 20
	p.c, err = NewConn(ours, Disk{
		Unit: func() Unit { return m },
		Start: func(cs ...*initiator.Command) {
			for _, c := range cs {
				p.begun <- c
			}
		},
		Alloc:    func(n int) (*initiator.Memory, []byte, error) { return nil, make([]byte, n), nil },
		Patience: time.Hour, Log: slog.New(slog.DiscardHandler),
	})
	check(t, err)
	p.k = &kernelEnd{t: t, c: theirs.(*net.UnixConn)}
	go func() { p.serves <- p.c.Serve() }()
	p.connect()
	t.Cleanup(func() {
		_ = theirs.Close()
		p.c.Shut()
		<-p.serves
		p.c.Close()
		_, _ = unix.Close(p.source), unix.Shutdown(p.feed, unix.SHUT_RDWR)
		p.wg.Wait()
		_ = unix.Close(p.feed)
	})
	return p
}

// connect makes a connection that data comes through.
func (p *passing) connect() {
	p.t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	check(p.t, err)
	p.source, p.feed = fds[0], fds[1]
}

// request sends a request, and returns its command.
func (p *passing) request(r Request) *initiator.Command {
	p.t.Helper()
	p.k.send(r, nil)
	return <-p.begun
}

// take has the sink take what is fed, which is not all.
func (p *passing) take(c *initiator.Command, fed []byte) {
	p.t.Helper()
	_, err := unix.Write(p.feed, fed)
	check(p.t, err)
	if all, err := c.Sink.Take(p.source); all || err != nil {
		p.t.Fatalf("Take returns %v, %v", all, err)
	}
}

// end ends a command.
func (p *passing) end(c *initiator.Command, err error) {
	c.Err, c.Status = err, initiator.StatusGood
	c.Done(c)
	p.c.Flush()
}

// expect reads what the kernel is sent.
func (p *passing) expect(what string, want []byte) {
	p.t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(p.k.c, got); err != nil || !bytes.Equal(got, want) {
		p.t.Fatalf("%s: %v, or other bytes", what, err)
	}
}

func reply(cookie uint64) []byte { return (&Reply{Cookie: cookie}).AppendTo(nil) }

const passLen = 256 << 10

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// feedAll feeds b from another goroutine, until all is taken or nobody takes it.
func (p *passing) feedAll(b []byte) {
	p.wg.Go(func() {
		for len(b) > 0 {
			n, err := unix.Write(p.feed, b[:min(len(b), 10_000)])
			if err != nil && err != unix.EAGAIN {
				return
			}
			b = b[max(n, 0):]
		}
	})
}

// takeAll has the sink take what is fed until it has everything.
func (p *passing) takeAll(c *initiator.Command) {
	p.t.Helper()
	for all := false; !all; {
		var err error
		all, err = c.Sink.Take(p.source)
		check(p.t, err)
	}
}

// The data of a READ passes when all of it is there, and until then others are answered. What a connection that ends leaves in the
// pipe is nobody's.
func TestPass(t *testing.T) {
	want := randomBytes(passLen)
	read := Request{Type: Read, Cookie: 1, Length: passLen}

	for name, first := range map[string]int{"all": 0, "all but what was read before": 100} {
		t.Run(name, func(t *testing.T) {
			p := newPassing(t)
			c, flush := p.request(read), p.request(Request{Type: Flush, Cookie: 2})
			other := p.request(Request{Type: Read, Cookie: 3, Length: passLen})
			if !c.Sink.Accept(want[:first]) {
				t.Fatal("not accepted")
			}
			p.take(c, want[first:5000])
			p.end(flush, nil)
			p.expect("a reply meanwhile", reply(2))
			p.feedAll(want[5000:])
			p.takeAll(c)
			clear(c.In[first:]) // memory that nobody is to look at
			copy(other.In, want)
			other.Status = initiator.StatusGood
			c.Done(c)
			other.Done(other) // both are answered with one call of Flush
			if other.Sink.Accept(nil) {
				t.Error("the pipe has data of two replies")
			}
			p.c.Flush()
			p.expect("the reply from memory", append(reply(3), want...))
			p.expect("the reply that passes", append(reply(1), want...))
			if n := p.c.passes.Load(); n != 1 {
				t.Errorf("%d have passed", n)
			}
		})
	}

	t.Run("cut", func(t *testing.T) {
		p := newPassing(t)
		c := p.request(read)
		c.Sink.Accept(nil)
		_, err := unix.Write(p.feed, make([]byte, 5000))
		check(t, err)
		check(t, unix.Close(p.feed))
		if all, err := c.Sink.Take(p.source); all || err != io.EOF {
			t.Errorf("Take returns %v, %v", all, err)
		}
		check(t, unix.Close(p.source))
		p.connect()
		c.Sink.Accept(want[:100])
		p.feedAll(want[100:])
		p.takeAll(c)
		p.end(c, nil)
		p.expect("the data of the second connection", append(reply(1), want...))

		c = p.request(read)
		c.Sink.Accept(nil)
		p.take(c, want[:5000])
		p.end(c, errors.New("no session"))
		p.expect("the failure", (&Reply{Cookie: 1, Errno: errnoIO}).AppendTo(nil))
	})

	// A target may send all of the data and then say that it is less.
	t.Run("failed in the end", func(t *testing.T) {
		p := newPassing(t)
		c := p.request(read)
		c.Sink.Accept(nil)
		p.feedAll(make([]byte, passLen))
		p.takeAll(c)
		p.end(c, errors.New("the target has moved less"))
		p.expect("the failure", (&Reply{Cookie: 1, Errno: errnoIO}).AppendTo(nil))
		c = p.request(read)
		c.Sink.Accept(want[:100])
		p.feedAll(want[100:])
		p.takeAll(c)
		p.end(c, nil)
		p.expect("the next reply", append(reply(1), want...))
	})

	t.Run("short pipe", func(t *testing.T) {
		p := newPassing(t)
		_, err := unix.FcntlInt(uintptr(p.c.pass.pipe[1]), unix.F_SETPIPE_SZ, 4096)
		check(t, err)
		c := p.request(read)
		c.Sink.Accept(want[:100])
		p.feedAll(want[100:])
		p.takeAll(c)
		p.end(c, nil)
		p.expect("a reply from memory", append(reply(1), want...))
		if n := p.c.passes.Load(); n != 0 {
			t.Errorf("%d have passed", n)
		}
	})

	t.Run("several commands", func(t *testing.T) {
		p := newPassing(t)
		p.k.send(Request{Type: Read, Length: 2 << 20}, nil)
		for range 2 {
			c := <-p.begun
			if c.Sink != nil {
				t.Error("a part of a reply would be a reply")
			}
			p.end(c, nil)
		}
	})
}

// A kernel that does not read keeps what passes in the pipe, until it reads or the socket ends.
func TestPassFull(t *testing.T) {
	want := randomBytes(passLen)
	for _, ends := range []bool{false, true} {
		p := newPassing(t)
		check(t, unix.SetsockoptInt(p.c.sock.FD, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096))
		c, other := p.request(Request{Type: Read, Cookie: 1, Length: passLen}), p.request(Request{Type: Read, Cookie: 2, Length: passLen})
		c.Sink.Accept(nil)
		p.feedAll(want)
		p.takeAll(c)
		p.end(c, nil) // does not block
		if other.Sink.Accept(nil) {
			t.Error("the pipe has data of two replies")
		}
		if ends {
			p.c.Shut()
			p.end(other, errors.New("closed"))
			continue
		}
		copy(other.In, want)
		p.end(other, nil)
		p.expect("all", append(append(reply(1), want...), append(reply(2), want...)...))
	}
}

// Long READs over TCP pass, unless they come in several PDUs, or with a digest.
func TestPassTCP(t *testing.T) {
	tg := targettest.Start(t, config)
	want := randomBytes(2 * passLen)
	for _, c := range []struct {
		length int
		digest bool
		passes bool
	}{{passLen, false, true}, {2 * passLen, false, false}, {passLen, true, false}} {
		d := newDriver(t)
		_, o := through(t, tg, "iscsi", 0, d)
		o.URL.DataDigest = c.digest
		a, err := Attach(t.Context(), o)
		check(t, err)
		leave := serving(a)
		check(t, d.do(0, Request{Type: Write}, want))
		for range 3 { // the first may come in one piece, before long ones are expected
			got := make([]byte, c.length)
			check(t, d.do(0, Request{Type: Read}, got))
			if !bytes.Equal(got, want[:c.length]) {
				t.Errorf("%+v: other bytes", c)
			}
		}
		if n := a.conns[0].passes.Load(); c.passes != (n >= 2) || !c.passes && n > 0 {
			t.Errorf("%+v: %d of 3 have passed", c, n)
		}
		_ = leave()
		check(t, a.Close())
	}
}
