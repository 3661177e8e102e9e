//go:build verbs && !guest && cgo && linux

package verbs

import (
	"bytes"
	"context"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/verbs/fake"
)

// deaf is a listener over siw, with a TCP socket of the test in the place of the kernel's.
type deaf struct {
	t      *testing.T
	dev    *Device
	socket net.Listener
	l      *listener
	on     *listening
}

func newDeaf(t *testing.T) *deaf {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { _ = socket.Close() })
	begin(t, fake.Config{IWARP: true, Siw: true})
	dev := openFake(t, Config{})
	l, err := dev.Listen(socket.Addr().String())
	check(t, err)
	t.Cleanup(func() { _ = l.Close() })
	dev.remove(l.(*listener)) // the device does not look by itself
	return &deaf{t, dev, socket, l.(*listener), l.(*listener).on}
}

// look looks, and waits until all that follows is done.
func (d *deaf) look() {
	d.on.look(d.dev)
	d.on.turn.Lock()
	d.on.turn.Unlock() //nolint:staticcheck // it was held
}

// guard returns siw's end of the next guard.
func (d *deaf) guard() net.Conn {
	c, err := d.socket.Accept()
	check(d.t, err)
	d.t.Cleanup(func() { _ = c.Close() })
	return c
}

// ends checks that what a guard sends, if anything, ends it.
func (d *deaf) ends(c net.Conn) {
	b := make([]byte, 20)
	_, err := io.ReadFull(c, b)
	check(d.t, err)
	if !bytes.Equal(b, make([]byte, 20)) {
		d.t.Errorf("a guard ends with % x", b)
	}
	check(d.t, c.Close())
}

// isSilent checks that a guard has not been ended.
func (d *deaf) isSilent(c net.Conn) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	check(d.t, err)
	check(d.t, raw.Control(func(fd uintptr) {
		if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); n != 0 || err != nil {
			d.t.Errorf("a guard has sent %d octets: %v", n, err)
		}
	}))
}

// connect makes a connection to the listener.
func (d *deaf) connect() error {
	client, server := newSide(d.t, d.dev), newSide(d.t, d.dev)
	accepted := make(chan error, 1)
	go func() {
		r, err := d.l.Accept()
		if err == nil {
			err = r.Accept(server.qp, rdma.ConnParams{})
		}
		accepted <- err
	}()
	if err := d.dev.Connect(context.Background(), client.qp, d.l.Addr().String(), rdma.ConnParams{}); err != nil {
		return err
	}
	return <-accepted
}

// TestListensAgain: siw's socket goes, and comes back at the second attempt.
func TestListensAgain(t *testing.T) {
	d := newDeaf(t)
	on, id := d.on, d.on.id
	if on.sockets != 1 {
		t.Fatalf("%d sockets listen at %v", on.sockets, d.l.Addr())
	}
	d.look()
	if on.id != id {
		t.Error("it listens again though the socket is there")
	}
	check(t, d.connect())
	guard := d.guard()
	check(t, d.socket.Close())
	fake.Fail("rdma_listen", syscall.EADDRINUSE, 0)
	go func() { d.ends(guard) }() // or the look would wait for its end
	d.look()
	failed := on.id
	fake.Fail("rdma_listen", nil, 0)
	d.look()
	if on.id == failed || failed == id {
		t.Error("it does not listen again though the socket has gone")
	}
	check(t, d.connect())
}

// TestGuards: there are always connections to siw's socket that have sent nothing, and each ends before siw's patience.
func TestGuards(t *testing.T) {
	d := newDeaf(t)
	one := d.guard()
	begin := d.on.guards[0].since
	for _, c := range []struct {
		after time.Duration
		count int
	}{{guardEvery - 1, 1}, {guardTime - 1, 2}, {guardTime - 1, 2}} {
		d.on.keepGuards(begin.Add(c.after))
		if n := len(d.on.guards); n != c.count {
			t.Errorf("%d guards after %v, want %d", n, c.after, c.count)
		}
	}
	two := d.guard()
	d.isSilent(one)
	d.on.keepGuards(begin.Add(guardTime + guardEvery))
	d.ends(one)
	three := d.guard()
	d.isSilent(two)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		check(t, d.l.Close())
	}()
	d.ends(two)
	d.ends(three)
	<-closed
	d.on.keepGuards(begin.Add(time.Hour))
	if len(d.on.guards) != 0 {
		t.Error("a closed listener has guards")
	}
	check(t, d.socket.Close())
	d.look() // which may be late
}

// TestUnguarded: while siw has accepted no guard, the identifier is not destroyed.
func TestUnguarded(t *testing.T) {
	d := newDeaf(t)
	id := d.on.id
	if d.on.isGuarded() {
		t.Error("a guard counts that was not accepted")
	}
	check(t, d.socket.Close()) // the guard is in its queue
	d.look()
	d.look()
	if d.on.id != id {
		t.Error("the identifier is destroyed without a guard")
	}
	since := d.on.guards[0].since
	if d.on.keepGuards(time.Now().Add(time.Hour)); len(d.on.guards) != 1 || d.on.guards[0].since != since {
		t.Error("new guards of a socket that is gone")
	}
}

// TestGuardsOutlive: siw's memory of the socket is there until the identifier is destroyed.
func TestGuardsOutlive(t *testing.T) {
	d := newDeaf(t)
	guard := d.guard()
	check(t, d.socket.Close())
	d.on.patience = 0
	fake.Keep()
	defer fake.Forget()
	d.look()
	destroyed := d.on.stuck
	d.isSilent(guard)
	fake.Forget()
	<-destroyed
	d.isSilent(guard)
	d.on.patience = time.Hour
	go func() { d.on.look(d.dev) }()
	d.ends(guard)
}

// TestDestroyHangs: the kernel does not destroy the identifier. It is asked once, and the listener can be closed.
func TestDestroyHangs(t *testing.T) {
	for _, c := range []struct {
		name     string
		patience time.Duration
		stuck    bool
	}{{"the patience ends", 0, true}, {"the listener is closed first", time.Hour, false}} {
		t.Run(c.name, func(t *testing.T) {
			d := newDeaf(t)
			guard := d.guard()
			check(t, d.socket.Close())
			d.on.patience = c.patience
			fake.Keep()
			defer fake.Forget()
			d.on.look(d.dev)
			if c.stuck {
				d.look()
				if id := d.on.id; d.on.stuck == nil {
					t.Error("it does not know that the kernel hangs")
				} else if d.look(); d.on.id != id {
					t.Error("it makes one identifier after another")
				}
			}
			go func() { d.ends(guard) }()
			check(t, d.l.Close())
		})
	}
}

func TestSockets(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "127.1.2.3:0", "[::1]:0", "0.0.0.0:0", "[::]:0"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Log(err) // a machine without IPv6
			continue
		}
		a := l.Addr().(*net.TCPAddr)
		if n := sockets(a); n != 1 {
			t.Errorf("%d sockets listen at %v", n, a)
		}
		if n := sockets(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 9), Port: a.Port}); n != 0 {
			t.Errorf("%d sockets listen at 127.0.0.9", n)
		}
		check(t, l.Close())
		if n := sockets(a); n != 0 {
			t.Errorf("%d sockets listen at %v, which is closed", n, a)
		}
	}
}
