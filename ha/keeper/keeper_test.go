package keeper

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"oneshot/ha/front"
)

// bench is a keeper with its clients. It has no capabilities: addresses are added in tests of cmd/target.
type bench struct {
	t       *testing.T
	path    string
	portals atomic.Pointer[[]Portal]
	stop    func()
}

var quiet = slog.New(slog.DiscardHandler)

func newBench(t *testing.T) *bench {
	b := &bench{t: t, path: filepath.Join(t.TempDir(), "k.sock")}
	b.begin()
	return b
}

// begin starts the keeper, after its end perhaps.
func (b *bench) begin() {
	b.t.Helper()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: b.path, Net: "unixpacket"})
	b.must(err)
	k, err := New(Options{Socket: l, Log: quiet, Portals: func() ([]Portal, error) {
		if list := b.portals.Load(); list != nil {
			return *list, nil
		}
		return nil, nil
	}})
	b.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- k.Serve(ctx) }()
	b.stop = func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Error(err)
		}
		b.stop = func() {}
	}
	b.t.Cleanup(func() { b.stop() })
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// portal makes a portal of the configuration, at a port of this machine that is free.
func (b *bench) portal() Portal {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	b.must(err)
	defer l.Close()
	p := Portal{front.Address{IP: netip.MustParseAddr("127.0.0.1"), Interface: "lo"}, uint16(l.Addr().(*net.TCPAddr).Port)}
	b.portals.Store(&[]Portal{p})
	return p
}

func (b *bench) client() *Client {
	c := NewClient(b.path, quiet)
	b.t.Cleanup(func() { _ = c.Close() })
	return c
}

// refuses wants that nobody listens at a portal, or that somebody does.
func (b *bench) refuses(p Portal, want bool) {
	b.t.Helper()
	c, err := net.Dial("tcp", p.AddrPort().String())
	if err == nil {
		_ = c.Close()
	}
	if errors.Is(err, syscall.ECONNREFUSED) != want {
		b.t.Errorf("a connection with %v ends with %v", p.AddrPort(), err)
	}
}

// cannot is a daemon that cannot listen itself.
func cannot() (*net.TCPListener, error) { return nil, errors.New("it may not") }

// TestSocketOfDaemon: the keeper keeps the socket that the daemon has made, and gives that to the next one, for which its own does not count. The socket
// lets another one of its maker listen beside it.
func TestSocketOfDaemon(t *testing.T) {
	b := newBench(t)
	p := b.portal()
	number := func(l *net.TCPListener) uint64 { // of the socket
		raw, err := l.SyscallConn()
		b.must(err)
		var s unix.Stat_t
		b.must(raw.Control(func(fd uintptr) { b.must(unix.Fstat(int(fd), &s)) }))
		return s.Ino
	}
	var made uint64
	c := b.client()
	l, err := c.Listen(p, func() (*net.TCPListener, error) {
		l, err := open(p)
		if err == nil {
			made = number(l)
		}
		return l, err
	})
	b.must(err)
	if got := number(l); got != made {
		t.Errorf("the daemon has made socket %d, and gets %d", made, got)
	}
	unwanted := func() (*net.TCPListener, error) { // whoever connects to it for the moment that it is there would be reset
		t.Error("a second socket is made beside the first one")
		return nil, errors.New("unwanted")
	}
	again, err := c.Listen(p, unwanted)
	b.must(err)
	b.must(again.Close())
	b.must(l.Close())
	b.must(c.Close())
	b.refuses(p, false)
	l, err = b.client().Listen(p, unwanted)
	b.must(err)
	if got := number(l); got != made {
		t.Errorf("the keeper has socket %d, and the next daemon gets %d", made, got)
	}
	b.must(l.Close())
}

// TestSockets: a socket is open as long as the keeper or the daemon has it, and goes with the portal.
func TestSockets(t *testing.T) {
	b := newBench(t)
	c := b.client()
	if _, err := c.Listen(Portal{front.Address{IP: netip.MustParseAddr("127.0.0.1"), Interface: "lo"}, 1}, cannot); err == nil || !strings.Contains(err.Error(), "has no portal") {
		t.Errorf("a portal that the configuration does not have: %v", err)
	}
	p := b.portal() // the keeper reads the configuration again
	l, err := c.Listen(p, cannot)
	b.must(err)
	b.must(l.Close())
	b.refuses(p, false)
	b.must(c.Close())
	b.refuses(p, false)

	d := b.client()
	l, err = d.Listen(p, cannot)
	b.must(err)
	b.stop()
	b.refuses(p, false)
	b.begin()
	if _, _, err = d.ask(&request{Op: opHello}); err != nil { // it notices that the keeper is another one
		t.Error(err)
	}
	b.must(l.Close())
	b.must(d.Close())
	b.refuses(p, false)

	e := b.client()
	b.portals.Store(nil)
	b.must(e.Keep(nil))
	b.refuses(p, true)
}

// TestAbandonedReload: a portal that the configuration names from now on does not make the keeper let go of those of the daemon, which goes on with
// what it has when a reload fails. Only the daemon says when it has done without them.
func TestAbandonedReload(t *testing.T) {
	b := newBench(t)
	p := b.portal()
	c := b.client()
	l, err := c.Listen(p, cannot)
	b.must(err)
	b.must(l.Close())
	next := b.portal()
	next.IP = netip.MustParseAddr("127.0.0.2")
	b.portals.Store(&[]Portal{next})
	l, err = c.Listen(next, cannot)
	b.must(err)
	b.must(l.Close())
	if err := c.Announce(p.Address); err == nil || !strings.Contains(err.Error(), "is not held") {
		t.Errorf("an address that the daemon has by a former configuration: %v", err)
	}
	b.must(c.Close())
	b.refuses(p, false)
	c = b.client()
	b.must(c.Keep([]Portal{next}))
	b.refuses(p, true)
	if err := c.Announce(p.Address); err == nil || !strings.Contains(err.Error(), "has no portal") {
		t.Errorf("an address that the daemon has no more: %v", err)
	}
}

// TestMissed: a keeper that is not there is missed, and found again.
func TestMissed(t *testing.T) {
	b := newBench(t)
	c := b.client()
	b.stop()
	if _, err := c.Hold(address, front.Now()); err == nil || c.Status().Trouble == nil {
		t.Errorf("without a keeper: %v, %+v", err, c.Status())
	}
	b.begin()
	if _, err := c.Hold(address, front.Now()); err == nil || c.Status().Trouble != nil {
		t.Errorf("the keeper has no such address: %v, and is there: %+v", err, c.Status())
	}
}

// TestHostile: what is not a request ends its connection, and nothing else; and the keeper keeps no socket that is not what it is said to be.
func TestHostile(t *testing.T) {
	b := newBench(t)
	p := b.portal()
	dial := func() *net.UnixConn {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: b.path, Net: "unixpacket"})
		b.must(err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	for _, text := range []string{"no JSON", strings.Repeat("x", maxMessage+1), `{"Op":"hold","IP":"nonsense"}`} {
		c := dial()
		_, err := c.Write([]byte(text))
		b.must(err)
		if n, err := c.Read(make([]byte, maxMessage)); n != 0 || !errors.Is(err, io.EOF) && err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%.20q is answered: %d bytes, %v", text, n, err)
		}
		b.must(c.Close())
	}
	for _, ask := range []string{`{"Op":"remove all"}`, `{}`, `{"Op":"tickle","IP":"127.0.0.1","Interface":"lo","Remote":"192.0.2.1:1"}`, `{"Op":"announce","IP":"127.0.0.1","Interface":"lo"}`, `{"Op":"hold","IP":"127.0.0.1","Interface":"eth0"}`} {
		c := dial()
		_, err := c.Write([]byte(ask))
		b.must(err)
		var a answer
		if _, err := receive(c, &a); err != nil || a.Error == "" {
			t.Errorf("%s is answered by %+v, %v", ask, a, err)
		}
		b.must(c.Close())
	}

	open := func(kind int, at netip.AddrPort, listen bool) *os.File {
		fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
		b.must(err)
		b.must(unix.Bind(fd, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}))
		if listen {
			b.must(unix.Listen(fd, 1))
		}
		return os.NewFile(uintptr(fd), "socket")
	}
	elsewhere := netip.MustParseAddrPort("127.0.0.1:0")
	for what, f := range map[string]*os.File{
		"one of UDP":                  open(unix.SOCK_DGRAM, p.AddrPort(), false),
		"one that listens elsewhere":  open(unix.SOCK_STREAM, elsewhere, true),
		"one that does not listen":    open(unix.SOCK_STREAM, p.AddrPort(), false),
		"no socket, but a directory ": func() *os.File { f, err := os.Open("."); b.must(err); return f }(),
	} {
		c := dial()
		b.must(send(c, &request{Op: opListen, Portal: p}, f))
		var a answer
		got, err := receive(c, &a)
		if err != nil || a.Error == "" || got != nil {
			t.Errorf("%s is taken: %+v, %v", what, a, err)
		}
		b.must(f.Close())
		b.must(c.Close())
	}
	l, err := b.client().Listen(p, cannot)
	b.must(err)
	b.must(l.Close())
	b.refuses(p, false)
}

// TestAdmits: who may ask.
func TestAdmits(t *testing.T) {
	for _, c := range []struct {
		uid, gid uint32
		want     bool
	}{{0, 7, true}, {50, 60, true}, {50, 7, true}, {51, 60, true}, {51, 61, false}} {
		if got := admits(&unix.Ucred{Uid: c.uid, Gid: c.gid}, 50, 60) == nil; got != c.want {
			t.Errorf("user %d and group %d may ask a keeper of user 50 and group 60: %t", c.uid, c.gid, got)
		}
	}
}

// TestCrowd: who connects and says nothing keeps no more than his places.
func TestCrowd(t *testing.T) {
	b := newBench(t)
	var crowd []net.Conn
	for range 3 * maxPeers {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: b.path, Net: "unixpacket"})
		b.must(err)
		crowd = append(crowd, c)
	}
	for _, c := range crowd {
		b.must(c.Close())
	}
	c := b.client()
	for err := errors.New("not asked yet"); err != nil; { // the places are free when the keeper has noticed
		_, _, err = c.ask(&request{Op: opHello})
	}
}

// TestNoWatchdog: what is no watchdog is not opened as one, and nothing is written to it.
func TestNoWatchdog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenWatchdog(path); err == nil || !strings.Contains(err.Error(), "is no watchdog") {
		t.Error(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "kept" {
		t.Errorf("the file has %q, %v", b, err)
	}
	if _, err := OpenWatchdog("/dev/null"); err == nil || !strings.Contains(err.Error(), "is no watchdog") {
		t.Error(err)
	}
}
