//go:build verbs && !guest && cgo && linux

package verbs

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"io"
	"log/slog"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
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
	fake.BeginTest(t, fake.Config{IWARP: true, Siw: true})
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

// TestListensAgain: siw's socket goes, and comes back when it can.
func TestListensAgain(t *testing.T) {
	d := newDeaf(t)
	on, id, said := d.on, d.on.id, d.listen()
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
	fake.Fail("rdma_create_id", syscall.EMFILE, 0)
	d.look()
	fake.Fail("rdma_create_id", nil, 0)
	if on.id != id || !on.listens {
		t.Error("there is no other identifier, and the old one was not kept")
	}
	said("too many open files", 1)
	fake.Fail("rdma_listen", syscall.EADDRNOTAVAIL, 0)
	go func() { d.ends(guard) }() // or the look would wait for its end
	for range 2 {
		id = on.id
		d.look()
		if on.id == id || on.listens {
			t.Error("it does not try to listen again though the socket has gone")
		}
	}
	said("tried again", 2)
	fake.Fail("rdma_listen", nil, 0)
	socket, err := net.Listen("tcp", d.l.Addr().String())
	check(t, err)
	t.Cleanup(func() { _ = socket.Close() })
	on.sockets = 2 // as if one of two were still missing
	d.look()
	if !on.listens || on.sockets != 1 || len(on.guards) != 1 {
		t.Errorf("it listens: %t, with %d sockets and %d guards", on.listens, on.sockets, len(on.guards))
	}
	id = on.id
	d.look() // with as many sockets as there are now
	if on.id != id {
		t.Error("it listens again and again")
	}
	check(t, d.connect())
	said("tried again", 2)
	said("it listens again", 1)
	check(t, socket.Close())

	// Another time the log has it again.
	on.sockets, on.listens = 1, false // which needs no guard
	fake.Fail("rdma_listen", syscall.EADDRNOTAVAIL, 0)
	d.look()
	said("tried again", 3)
	fake.Fail("rdma_listen", nil, 0)
}

// listen keeps the log. The function that it returns checks how often something is in it.
func (d *deaf) listen() (said func(text string, times int)) {
	var log bytes.Buffer // written to while turn is held
	d.on.manager.log = slog.New(slog.NewTextHandler(&log, nil))
	return func(text string, times int) {
		d.t.Helper()
		d.on.turn.Lock()
		defer d.on.turn.Unlock()
		if n := strings.Count(log.String(), text); n != times {
			d.t.Errorf("the log has %q %d times, want %d:\n%s", text, n, times, log.String())
		}
	}
}

// TestLookWaitsForNobody: the goroutine of the device goes on while somebody else listens anew.
func TestLookWaitsForNobody(t *testing.T) {
	d := newDeaf(t)
	check(t, d.socket.Close()) // or the end of the test would wait for that of the guard
	d.on.turn.Lock()
	defer d.on.turn.Unlock()
	d.on.look(d.dev)
}

// TestGuardsThatCount: what the kernel may not survive is not tried later either, and nothing is made that nobody needs.
func TestGuardsThatCount(t *testing.T) {
	d := newDeaf(t)
	accepted := d.guard()
	if !d.on.isGuarded() {
		t.Error("an accepted guard does not count")
	}
	d.on.guards = append(d.on.guards, guards{conns: []*guard{{dev: d.dev, from: d.on.at}}})
	if !d.on.isGuarded() {
		t.Error("an accepted guard does not count when a newer one was not accepted")
	}
	d.on.guards = d.on.guards[:1]
	later := d.on.guards[0].since.Add(guardEvery) // not of the clock: by now the guard may be old
	siw, card := d.on.listeners, []*listener{{dev: &Device{}}}
	for what, set := range map[string]func(bool){
		"siw's sockets are unknown": func(v bool) { d.on.sockets = map[bool]int{true: 0, false: 1}[v] },
		"nothing listens":           func(v bool) { d.on.listens = !v },
		"it is lost":                func(v bool) { d.on.lost = v },
		"the device is not siw":     func(v bool) { d.on.listeners = map[bool][]*listener{true: card, false: siw}[v] },
	} {
		set(true)
		if d.on.keepGuards(later); len(d.on.guards) != 1 {
			t.Errorf("%s, and there are %d guards", what, len(d.on.guards))
		}
		set(false)
	}
	guard := d.on.guards[0].conns[0]
	from := guard.from
	guard.from = d.on.at // as the other end of the guard's connection has it
	if d.on.isGuarded() {
		t.Error("the guard's end of its connection counts")
	}
	d.on.listeners = card
	if !d.on.isGuarded() {
		t.Error("a device that is not siw needs guards")
	}
	d.on.listeners, guard.from = siw, from
	check(t, unix.Shutdown(guard.fd, unix.SHUT_WR))
	_, err := io.ReadAll(accepted) // until the other end knows
	check(t, err)
	if d.on.isGuarded() {
		t.Error("a guard counts that has ended")
	}

	check(t, d.socket.Close())
	d.on.lost = true
	id := d.on.id
	d.look()
	if d.on.id != id {
		t.Error("it is lost, and listens again")
	}
}

// TestGuardSockets: a guard knows its own address, waits for nothing, is inherited by nobody, and leaves no socket.
func TestGuardSockets(t *testing.T) {
	sockets := func() (n int) {
		open, err := os.ReadDir("/proc/self/fd")
		check(t, err)
		for _, f := range open {
			if to, _ := os.Readlink("/proc/self/fd/" + f.Name()); strings.HasPrefix(to, "socket:") {
				n++
			}
		}
		return n
	}
	const rounds = 20
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Log(err) // a machine without IPv6
			continue
		}
		before := sockets()
		for range rounds {
			g := newGuard(l.Addr().(*net.TCPAddr), "lo")
			if g == nil {
				t.Fatalf("no guard at %v", l.Addr())
			}
			c, err := l.Accept()
			check(t, err)
			if c.RemoteAddr().String() != g.from.String() {
				t.Errorf("a guard from %v says %v", c.RemoteAddr(), &g.from)
			}
			status, err := unix.FcntlInt(uintptr(g.fd), unix.F_GETFL, 0)
			check(t, err)
			flags, err := unix.FcntlInt(uintptr(g.fd), unix.F_GETFD, 0)
			check(t, err)
			if status&unix.O_NONBLOCK == 0 || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("flags %#x and %#x", status, flags)
			}
			if through, err := unix.GetsockoptString(g.fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE); err != nil || through != "lo" {
				t.Errorf("through %q, %v", through, err)
			}
			check(t, c.Close())
			g.end()
		}
		if n := sockets(); n >= before+rounds {
			t.Errorf("%d sockets more", n-before)
		}
		check(t, l.Close())
	}
	before := sockets()
	for range rounds {
		if newGuard(&net.TCPAddr{IP: net.IPv4bcast, Port: 1}, "") != nil {
			t.Error("a guard to everybody")
		}
	}
	if n := sockets(); n >= before+rounds {
		t.Errorf("%d sockets more", n-before)
	}
}

// TestGuardAddresses: how a guard reaches a socket for one address, or for all of a network interface.
func TestGuardAddresses(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	check(t, err)
	for _, c := range []struct {
		at     net.TCPAddr
		family int
		want   unix.Sockaddr
	}{
		{net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7}, unix.AF_INET, &unix.SockaddrInet4{Port: 7, Addr: [4]byte{192, 0, 2, 1}}},
		{net.TCPAddr{IP: net.IPv6loopback, Port: 8, Zone: "lo"}, unix.AF_INET6, &unix.SockaddrInet6{Port: 8, ZoneId: uint32(lo.Index), Addr: [16]byte{15: 1}}},
	} {
		if family, at := unixAddr(&c.at); family != c.family || !reflect.DeepEqual(at, c.want) {
			t.Errorf("%v is %d, %+v", &c.at, family, at)
		}
	}

	ip := func(text string) net.Addr { return &net.IPNet{IP: net.ParseIP(text)} }
	addrs := []net.Addr{&net.UnixAddr{}, ip("127.0.0.1"), ip("fe80::1"), ip("2001:db8::1"), ip("192.0.2.1")}
	for v4, want := range map[bool]string{true: "192.0.2.1", false: "2001:db8::1"} {
		if got := reachable(addrs, v4); got.String() != want {
			t.Errorf("IPv4: %t, and %v is reachable", v4, got)
		}
	}
	if got := reachable(addrs[:3], false); got != nil {
		t.Errorf("%v is reachable", got)
	}

	all := []net.Interface{{Name: "lo"}, {Name: "eth0", HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}, {Name: "eth1", HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 2}}}
	if i := interfaceOf("0200:0000:0002:0000:0000:0000:0000:0000", all); i == nil || i.Name != "eth1" {
		t.Errorf("%+v", i)
	}
	if i := interfaceOf("0200:0000:0002:0000:0000:0000:0000:0000", all[2:]); i == nil {
		t.Error("the first interface is not found")
	}
	if i := interfaceOf("", all); i != nil {
		t.Errorf("%+v without a GID", i)
	}

	fake.BeginTest(t, fake.Config{IWARP: true, Siw: true})
	d := openFake(t, Config{})
	if g := d.newGuard(&net.TCPAddr{IP: net.IPv6unspecified, Port: 1}); g != nil {
		t.Error("a guard of a device without a network interface")
	}
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
	id, said := d.on.id, d.listen()
	if d.on.isGuarded() {
		t.Error("a guard counts that was not accepted")
	}
	check(t, d.socket.Close()) // the guard is in its queue
	d.look()
	d.look()
	if d.on.id != id {
		t.Error("the identifier is destroyed without a guard")
	}
	said("could crash the kernel", 1)
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
	d.on.turn.Lock()
	defer d.on.turn.Unlock()
	if n := len(d.on.guards); n != 0 {
		t.Errorf("%d guards that have ended are kept", n)
	}
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
			guard, said := d.guard(), d.listen()
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
				said("the kernel hangs", 1)
			}
			go func() { d.ends(guard) }()
			check(t, d.l.Close())
			said("it listens again", 0)
			said("tried again", 0)
		})
	}
	t.Run("the device is closed first", func(t *testing.T) { // others listen, too
		d := newDeaf(t)
		d.guard() // which the end of the test ends
		said := d.listen()
		check(t, d.socket.Close())
		d.on.patience = time.Hour
		fake.Keep()
		defer fake.Forget()
		dev := &Device{closing: make(chan struct{})}
		close(dev.closing)
		d.on.look(dev)
		dev.work.Wait()
		said("tried again", 0)
	})
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

// TestSocketsListedTwice: a socket counts once. What was counted too often would be missed later.
func TestSocketsListedTwice(t *testing.T) {
	at := &net.TCPAddr{IP: net.IPv6zero, Port: 0x0cbc}
	one := tcpSocket{local: strings.Repeat("0", 32) + ":0CBC", state: "0A", inode: "1"}
	two, other, ended := one, one, one
	two.inode, other.local, other.inode, ended.state = "2", strings.Repeat("0", 32)+":0CBD", "3", "07"
	if n := listenersAt(at, slices.Values([]tcpSocket{one, one, other, two}), slices.Values([]tcpSocket{two, ended})); n != 2 {
		t.Errorf("%d sockets listen, want 2", n)
	}
}

// A socket is missing if two readings of the list lack it. One reading may lack a socket that is there.
func TestMissed(t *testing.T) {
	for _, c := range []struct {
		name     string
		readings []int
		missed   bool
	}{
		{"all are there", []int{2}, false},
		{"one reading lacks one", []int{1, 2}, false},
		{"both lack one", []int{1, 1}, true},
		{"both lack all", []int{0, 0}, true},
		{"there are more", []int{3}, false},
	} {
		on, left := &listening{sockets: 2}, c.readings
		got := on.missed(func(*net.TCPAddr) int {
			if len(left) == 0 {
				t.Errorf("%s: the list is read once more", c.name)
				return 0
			}
			n := left[0]
			left = left[1:]
			return n
		})
		if got != c.missed || len(left) != 0 || on.sockets != max(2, c.readings[0]) {
			t.Errorf("%s: %v, %d readings left, %d sockets from now on", c.name, got, len(left), on.sockets)
		}
	}
}

// What a kernel of another time might write into its tables does no harm.
func TestSocketLines(t *testing.T) {
	const line = "   0: 0100007F:0CBC 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 25391 1 0000000000000000 100 0 0 10 0"
	if s, ok := parseSocket(line); !ok || s != (tcpSocket{"0100007F:0CBC", "00000000:0000", "0A", "25391"}) {
		t.Errorf("%+v, %v", s, ok)
	}
	for _, line := range []string{"", "0:", "0: 0100007F:0CBC 00000000:0000 0A a b c d e"} {
		if s, ok := parseSocket(line); ok {
			t.Errorf("%q is %+v", line, s)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	lines := 0
	for range tcpSockets("tcp", "tcp") {
		lines++
		break // and no table is read any more
	}
	if lines != 1 {
		t.Errorf("%d lines", lines)
	}
	loopback := binary.NativeEndian.AppendUint32(nil, 0x7f000001)
	v4, v6 := hex.EncodeToString(loopback), strings.Repeat("00000000", 3)+hex.EncodeToString(binary.NativeEndian.AppendUint32(nil, 1))
	for _, c := range []struct {
		text string
		ip   net.IP
		want bool
	}{
		{v4 + ":0CBC", net.IPv4(127, 0, 0, 1), true},
		{v4 + ":0CBC", nil, true},
		{v6 + ":0CBC", net.IPv6loopback, true},
		{v4 + ":0CBD", nil, false},
		{v4 + ":0CBC", net.IPv4(127, 0, 0, 2), false},
		{v6 + ":0CBC", net.IPv4(127, 0, 0, 1), false},
		{v4 + ":", nil, false},
		{v4, nil, false},
		{v4 + ":10CBC", nil, false},
		{v4 + "00:0CBC", nil, false}, // no whole word
		{"x" + v4[1:] + ":0CBC", nil, false},
		{"", nil, false},
	} {
		if isAt(c.text, c.ip, 0xcbc) != c.want {
			t.Errorf("%q at %v: want %v", c.text, c.ip, c.want)
		}
	}
}
