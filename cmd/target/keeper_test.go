//go:build !race

package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/ha/front"
	"oneshot/ha/keeper"
	"oneshot/mgmt"
)

// newKept makes a mirror on machines of their own, which have keepers, and starts all of them. The daemons may not add addresses themselves.
func newKept(t *testing.T, text string) (*site, *segment) {
	t.Helper()
	n := newSegment(t, "a", "b", "w")
	s := newSiteAt(t, text, []string{"192.0.2.1:7260", "192.0.2.2:7260", "192.0.2.3:7260"})
	s.text = strings.Replace(s.text, "  state: consensus\n", "  state: consensus\n  keeper: {socket: k.sock}\n", 1)
	for _, name := range []string{"a", "b", "w"} {
		s.write(name, s.text)
	}
	for _, name := range []string{"a", "b"} {
		s.startKeeper(n, name)
	}
	s.within = func(name string, f func()) {
		n.inside(name, func() { // on a thread that ends with it
			for _, c := range []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW} {
				if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
					s.t.Errorf("a daemon keeps its capabilities: %v", err)
				}
			}
			f()
		})
	}
	s.startAll()
	n.trusting()
	return s, n
}

// endKept ends all of them in good order. The addresses are gone before the keepers are.
func (s *site) endKept(n *segment) {
	s.t.Helper()
	s.stopAll()
	for _, name := range []string{"a", "b"} {
		s.leaves(n, name)
		s.stop(keeperOf(name))
	}
}

func keeperOf(name string) string { return name + ".keeper" }

func (s *site) startKeeper(n *segment, name string) {
	s.t.Helper()
	daemons := s.within
	s.within = n.inside
	defer func() { s.within = daemons }()
	s.launch(name, keeperOf(name), "keeper", "--config", s.path(name, "t.yaml"))
}

// knocker connects at an address again and again, as long as it is told to.
type knocker struct {
	wg              sync.WaitGroup
	end             context.CancelFunc
	refused, opened atomic.Int64
}

// newKnocker begins to connect at addresses.
func newKnocker(ctx context.Context, addresses ...string) *knocker {
	k := new(knocker)
	ctx, k.end = context.WithCancel(ctx)
	for _, at := range addresses {
		k.wg.Go(func() {
			again := time.NewTicker(2 * time.Millisecond)
			defer again.Stop()
			for ctx.Err() == nil {
				c, err := (&net.Dialer{Timeout: 200 * time.Millisecond}).DialContext(ctx, "tcp", at)
				switch {
				case err == nil:
					k.opened.Add(1)
					_ = c.Close()
				case errors.Is(err, syscall.ECONNREFUSED):
					k.refused.Add(1)
				}
				<-again.C
			}
		})
	}
	return k
}

func (k *knocker) stop() {
	k.end()
	k.wg.Wait()
}

// TestMirrorKeeper: while a primary is killed, and while it is stopped, nobody is refused at the addresses that move: whoever comes before the other node
// has them waits, with the keeper of the former one, and comes to the other one then. The daemons have no capabilities. A keeper that is killed or stopped
// is missed, and a new one goes on.
func TestMirrorKeeper(t *testing.T) {
	if !inSegment(t) {
		return
	}
	s, n := newKept(t, addressText)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	s.hasAddresses()
	k := newKnocker(ctx, moves4+":3260", "["+moves6+"]:3260")
	defer k.stop()
	l := newLoad(t, newFollower(ctx, s, moves4+":3260"))
	l.more(50)
	for _, how := range []struct {
		what       string
		lose, back func(string)
	}{
		{"killed", s.kill, func(name string) { s.start(name) }},
		{"stopped", func(name string) { s.signal(name, syscall.SIGSTOP) }, func(name string) { s.signal(name, syscall.SIGCONT) }},
	} {
		s.hasAddresses()
		lost := s.loses(how.lose, how.back)
		l.more(50)
		s.leaves(n, lost)
		how.back(lost)
		if now := s.hasAddresses(); now != lost {
			s.leaves(n, lost)
		}
		l.more(50)
		if got := k.refused.Swap(0); got > 0 {
			t.Errorf("%s: %d connections were refused", how.what, got)
		}
	}
	for _, how := range []struct {
		what       string
		lose, back func(string)
	}{
		{"killed", s.kill, func(string) {}},
		{"stopped", func(name string) { s.signal(name, syscall.SIGSTOP) }, func(name string) { s.signal(name, syscall.SIGCONT) }},
	} {
		primary := s.hasAddresses()
		how.lose(keeperOf(primary))
		s.untilCluster(primary, "it misses the keeper", func(c *mgmt.Cluster) bool { return c.Keeper.Trouble != "" })
		s.leaves(n, primary)
		if how.back(keeperOf(primary)); how.what == "killed" {
			s.startKeeper(n, primary)
		}
		s.untilCluster(primary, "it has a keeper", func(c *mgmt.Cluster) bool { return c.Keeper.Trouble == "" })
		s.hasAddresses()
		l.more(50)
	}
	l.end()
	k.stop()
	if got := k.refused.Load(); got > 0 || k.opened.Load() == 0 {
		t.Errorf("with keepers that end %d connections were refused, of %d", got, k.opened.Load())
	}
	s.endKept(n)
}

// TestMirrorKeeperISER: hosts of iSER over RDMA in user space go on, too, with no path but an address that moves, when the primary is killed, stopped and
// ended. The keepers hold the sockets. The other node knows of the connections, so that it can have them reset.
func TestMirrorKeeperISER(t *testing.T) {
	if !inSegment(t) {
		return
	}
	s, n := newKept(t, addressText+"  - {mirror: disk, transport: iwarp, listen: \"192.0.2.10:3261\", group: 10, interface: eth0}\n")
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	s.hasAddresses()
	k := newKnocker(ctx, moves4+":3261")
	defer k.stop()
	l := newLoad(t, newFollower(ctx, s, "iser+iwarp://"+moves4+":3261"))
	for _, how := range []struct {
		what       string
		lose, back func(string)
	}{
		{"killed", s.kill, func(name string) { s.start(name) }},
		{"stopped", func(name string) { s.signal(name, syscall.SIGSTOP) }, func(name string) { s.signal(name, syscall.SIGCONT) }},
		{"ended", s.stop, func(name string) { s.start(name) }},
	} {
		l.more(50)
		for isKnown := false; !isKnown; { // on a busy machine another node may take over meanwhile
			away := other(s.hasAddresses())
			s.untilCluster(away, "it knows the connection", func(c *mgmt.Cluster) bool {
				m := &c.Mirrors[0]
				isKnown = m.Guests > 0 && m.Role != mgmt.RolePrimary
				return isKnown || m.Role == mgmt.RolePrimary
			})
		}
		lost := s.loses(how.lose, how.back)
		l.more(50)
		s.leaves(n, lost)
		how.back(lost)
		s.hasAddresses()
		if got := k.refused.Swap(0); got > 0 {
			t.Errorf("%s: %d connections were refused", how.what, got)
		}
	}
	l.more(50)
	l.end()
	k.stop()
	s.endKept(n)
}

// TestMirrorKeeperReload: a reload has an address that a portal has had among all of the machine go with a mirror from then on, and the other way round,
// on the same port. A daemon begins with the one though its keeper has a socket of the other.
func TestMirrorKeeperReload(t *testing.T) {
	if !inSegment(t) {
		return
	}
	before, portals, _ := strings.Cut(addressText, "portals:")
	s, n := newKept(t, before+"portals: [{node: a, listen: \"*:3260\", group: 1}, {node: b, listen: \"*:3260\", group: 2}]\n")
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	before, _, _ = strings.Cut(s.text, "portals:")
	stays, moves := s.text, before+"portals:"+portals
	reload := func(text string, names ...string) {
		t.Helper()
		for _, name := range names {
			s.write(name, text)
			s.must(s.asked(name, "reload")...)
		}
	}
	reaches := func(m *multipath) {
		t.Helper()
		if !m.write(1, make([]byte, block)) {
			t.Error("a host does not reach the disk")
		}
	}
	for range 2 {
		reload(moves, "a", "b")
		s.hasAddresses()
		reaches(newFollower(ctx, s, moves4+":3260"))
		reaches(newFollower(ctx, s, "["+moves6+"]:3260"))
		reload(stays, "a", "b")
		s.leaves(n, "a")
		s.leaves(n, "b")
		reaches(newMultipathAt(ctx, s, "192.0.2.1:3260", "192.0.2.2:3260"))
	}
	for _, text := range []string{moves, stays, moves} {
		s.stop("a")
		s.write("a", text)
		s.start("a")
	}
	reload(moves, "b")
	s.hasAddresses()
	reaches(newFollower(ctx, s, moves4+":3260"))
	s.endKept(n)
}

// TestKeeper: what a keeper does for its daemon, which is this test.
func TestKeeper(t *testing.T) {
	if !inSegment(t) {
		return
	}
	n := newSegment(t, "a", "b")
	s := newSiteAt(t, addressText, []string{"192.0.2.1:7260", "192.0.2.2:7260", "192.0.2.3:7260"})
	s.text = strings.Replace(s.text, "  state: consensus\n", "  state: consensus\n  keeper: {socket: k.sock}\n", 1)
	s.write("a", s.text)
	s.startKeeper(n, "a")
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	for _, at := range []string{moves4, moves6} {
		p := keeper.Portal{Address: front.Address{IP: netip.MustParseAddr(at), Interface: "eth0"}, Port: 3260}
		d := s.newKeptDaemon("a", p)
		wrong := p.Address
		wrong.IP = netip.MustParseAddr("192.0.2.1")
		if _, err := d.Hold(wrong, front.Now()); err == nil || !strings.Contains(err.Error(), "has no portal with the address") {
			t.Errorf("an address that the configuration does not have: %v", err)
		}
		if _, err := d.Hold(p.Address, front.Now()-keeper.Patience); err == nil || !strings.Contains(err.Error(), "was asked for as of") {
			t.Errorf("as of a time that is over: %v", err)
		}
		if err := d.Announce(p.Address); err == nil || !strings.Contains(err.Error(), "is not held") {
			t.Errorf("an address that is not held is announced: %v", err)
		}
		d.begin()

		// Nobody accepts, and then the daemon is gone, and the next one.
		first := s.connects(p)
		d.end()
		n.must(d.listener.Close())
		n.must(d.Close())
		d = s.newKeptDaemon("a", p)
		d.begin()
		second := s.connects(p)
		d.end()
		n.must(d.listener.Close())
		n.must(d.Close())
		for _, c := range []net.Conn{first, second} {
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("who has waited at %s is told %v", at, err)
			}
		}
		if n.has("a", at) {
			t.Errorf("the machine has %s still, and nobody asks for it", at)
		}

		// Another machine has the address meanwhile, and says so until the keeper has heard it.
		for !strings.Contains(s.told(keeperOf("a")), "another machine has announced the address\" address=\""+p.Address.String()) {
			d = s.newKeptDaemon("a", p)
			d.begin()
			c := s.connects(p)
			d.end()
			n.must(d.listener.Close())
			n.must(d.Close())
			reset := make(chan error, 1)
			go func() {
				_, err := c.Read(make([]byte, 1))
				reset <- err
			}()
			for waits := true; waits; {
				n.inside("b", func() { n.must(p.Address.Announce()) })
				select {
				case err := <-reset:
					if waits = false; !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("who has waited at %s is told %v", at, err)
					}
				case <-time.After(10 * time.Millisecond):
				}
			}
			if ctx.Err() != nil {
				t.Fatal("it is not heard that another machine has the address")
			}
		}

		// The keeper is gone. The next one has the socket from the daemon, and nobody else listens when that one is gone.
		d = s.newKeptDaemon("a", p)
		s.kill(keeperOf("a"))
		s.startKeeper(n, "a")
		d.begin()
		d.end()
		n.must(d.listener.Close())
		n.must(d.Close())
		d = s.newKeptDaemon("a", p)
		d.begin()
		_ = s.connects(p).Close()
		d.end()
		n.must(d.listener.Close())
		n.must(d.Close())
	}
	s.stop(keeperOf("a"))
}

// keptDaemon is the part of a daemon that a keeper sees.
type keptDaemon struct {
	*keeper.Client
	s        *site
	portal   keeper.Portal
	listener *net.TCPListener
	end      func() // of asking for the address
}

func (s *site) newKeptDaemon(name string, p keeper.Portal) *keptDaemon {
	s.t.Helper()
	d := &keptDaemon{Client: keeper.NewClient(s.path(name, "k.sock"), slog.New(slog.DiscardHandler)), s: s, portal: p}
	var err error
	if d.listener, err = d.Listen(p, func() (*net.TCPListener, error) { return nil, errors.New("it makes none") }); err != nil {
		s.t.Fatal(err)
	}
	return d
}

// begin asks for the address, again and again until end is called, and waits until it was added and announced.
func (d *keptDaemon) begin() {
	ctx, cancel := context.WithCancel(d.s.t.Context())
	done, added := make(chan struct{}), make(chan struct{})
	d.end = func() {
		cancel()
		<-done
	}
	d.s.t.Cleanup(d.end)
	go func() {
		defer close(done)
		t := time.NewTicker(keeper.Renewal)
		defer t.Stop()
		for isAdded := false; ctx.Err() == nil; <-t.C {
			if _, err := d.Hold(d.portal.Address, front.Now()); err == nil && !isAdded { // on a busy machine one may come too late
				isAdded = true
				_ = d.Announce(d.portal.Address) // on a busy machine it may be gone again
				close(added)
			}
		}
	}()
	<-added
}

// connects connects at a portal of a machine that is busy, perhaps, and has the address most of the time. It is not refused.
func (s *site) connects(p keeper.Portal) net.Conn {
	s.t.Helper()
	for {
		c, err := (&net.Dialer{Timeout: time.Second, KeepAlive: -1}).DialContext(s.t.Context(), "tcp", p.AddrPort().String())
		if err == nil {
			return c
		}
		if errors.Is(err, syscall.ECONNREFUSED) || s.t.Context().Err() != nil {
			s.t.Fatal(err)
		}
	}
}
