//go:build !race

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"oneshot/initiator"
	"oneshot/iscsi/pdu"
	"oneshot/mgmt"
)

const addressText = `
stores:
  disk: {type: mirror, size: 16MiB, copies: {a: {type: file, path: disk.img}, b: {type: file, path: disk.img}}}
targets:
  - {iqn: "iqn.2026-11.example.oneshot:lab", luns: {0: disk}}
portals:
  - {node: a, listen: "192.0.2.1:3260", group: 1}
  - {node: b, listen: "192.0.2.2:3260", group: 2}
  - {mirror: disk, listen: "192.0.2.10:3260", group: 10, interface: eth0}
  - {mirror: disk, listen: "[2001:db8::a]:3260", group: 10, interface: eth0}
`

const moves4, moves6 = "192.0.2.10", "2001:db8::a"

// newAddresses makes a mirror whose addresses move, on machines of their own, and starts it.
func newAddresses(t *testing.T) (*site, *segment) {
	n := newSegment(t, "a", "b", "w")
	s := newSiteAt(t, addressText, []string{"192.0.2.1:7260", "192.0.2.2:7260", "192.0.2.3:7260"})
	s.within = n.inside
	s.startAll()
	return s, n
}

// hasAddresses waits until the machine of the primary has the addresses, as its node says, and returns the node.
func (s *site) hasAddresses() (primary string) {
	s.t.Helper()
	for has := false; !has; { // on a busy machine another node may take over meanwhile
		primary = s.level("w")
		s.untilCluster(primary, "it has the addresses, or is not the primary", func(c *mgmt.Cluster) bool {
			m := &c.Mirrors[0]
			has = strings.Join(m.Addresses, ", ") == moves4+" on eth0, "+moves6+" on eth0" && m.Role == mgmt.RolePrimary
			return has || m.Primary != "" && m.Primary != primary
		})
	}
	return primary
}

// newFollower is a host that has one path only: the address that moves. It may be told of no error but by the end of its session.
func newFollower(ctx context.Context, s *site, at string) *multipath {
	m := newMultipathAt(ctx, s, at, at)
	m.strict = true
	return m
}

// leaves waits until a machine has neither address.
func (s *site) leaves(n *segment, name string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	for n.has(name, moves4) || n.has(name, moves6) {
		if ctx.Err() != nil {
			s.t.Fatalf("%s keeps the addresses", name)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestMirrorAddresses: hosts with no path but an address that moves go on when the primary is killed, stopped and ended, though
// they ask nobody where the address is; and there is no machine that keeps it.
func TestMirrorAddresses(t *testing.T) {
	if !inSegment(t) {
		return
	}
	s, n := newAddresses(t)
	n.trusting()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	var l *load
	for _, at := range []string{moves4 + ":3260", "[" + moves6 + "]:3260"} {
		address, _, _ := net.SplitHostPort(at)
		m := newFollower(ctx, s, at)
		s.hasAddresses()
		l = newLoadAfter(t, m, l)
		l.more(50)
		for _, how := range []struct {
			what       string
			lose, back func(string)
		}{
			{"killed", s.kill, func(name string) { s.start(name) }},
			{"stopped", func(name string) { s.signal(name, syscall.SIGSTOP) }, func(name string) { s.signal(name, syscall.SIGCONT) }},
			{"ended", s.stop, func(name string) { s.start(name) }},
		} {
			s.hasAddresses()
			before := n.mac(address)
			lost := s.loses(how.lose, how.back)
			l.more(50)
			if now := n.mac(address); now == before {
				t.Errorf("%s: the neighbour is %s still", how.what, now)
			}
			s.leaves(n, lost)
			how.back(lost)
			if now := s.hasAddresses(); now != lost {
				s.leaves(n, lost)
			}
			l.more(50)
		}
		l.end()
	}
	primary := s.hasAddresses()

	// What a former process has left is removed, before anything is known of the mirror.
	away := other(primary)
	s.kill(away)
	n.inside(away, func() {
		l, err := netlink.LinkByName("eth0")
		n.must(err)
		a, err := netlink.ParseAddr(moves4 + "/32")
		n.must(err)
		a.ValidLft, a.PreferedLft = 3600, 3600
		n.must(netlink.AddrAdd(l, a))
	})
	s.start(away)
	s.leaves(n, away)
	s.stopAll()
	s.leaves(n, primary)
}

// TestMirrorAddressRemoved: a reload takes the mirror from the configuration of the primary. It hands the mirror and its addresses over before, so
// hosts that have no other path go on.
func TestMirrorAddressRemoved(t *testing.T) {
	if !inSegment(t) {
		return
	}
	s, n := newAddresses(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	s.hasAddresses()
	l := newLoad(t, newFollower(ctx, s, moves4+":3260"))
	l.more(50)
	primary := s.hasAddresses()
	s.write(primary, strings.TrimSuffix(s.text, addressText)+strings.ReplaceAll(strings.ReplaceAll(`
stores: {spare: {node: NAME, type: memory, size: 1MiB}}
targets: [{node: NAME, iqn: "iqn.2026-11.example.oneshot:spare", luns: {0: spare}}]
portals: [{node: NAME, listen: "192.0.2.AT:3260"}]
`, "NAME", primary), "AT", fmt.Sprint(strings.Index("ab", primary)+1)))
	s.must(s.asked(primary, "reload")...)
	l.more(50)
	s.leaves(n, primary)
	const left = "the addresses of the mirror have left this machine"
	if text := s.told(primary); !strings.Contains(text, left) || !strings.Contains(s.told(other(primary)), "the one before has handed over") {
		t.Errorf("%s has not handed the mirror over: %s", primary, text)
	}
	s.write(primary, s.text)
	s.must(s.asked(primary, "reload")...)
	s.level("w")
	l.end()
	s.stopAll()
	s.equal()
}

// TestMirrorAddressForGood: a daemon does not take from its machine an address that the administrator has given it for good, though the
// configuration says that it moves. It does not start, and says why.
func TestMirrorAddressForGood(t *testing.T) {
	if !inSegment(t) {
		return
	}
	s, n := newAddresses(t)
	s.hasAddresses()
	s.stop("a")
	s.leaves(n, "a")
	n.inside("a", func() {
		l, err := netlink.LinkByName("eth0")
		n.must(err)
		a, err := netlink.ParseAddr(moves4 + "/24")
		n.must(err)
		n.must(netlink.AddrAdd(l, a))
	})
	cmd := s.command("serve", "--config", s.path("a", "t.yaml"), "--node", "a")
	var says bytes.Buffer
	cmd.Stderr = &says
	s.there("a", cmd.Start)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(says.String(), "is on the interface for good") || !n.has("a", moves4) {
				t.Errorf("%v; it says %s", err, &says)
			}
			return
		case <-time.After(20 * time.Millisecond):
			if !n.has("a", moves4) {
				_ = cmd.Process.Kill()
				t.Fatalf("the address has been taken from the machine; the daemon ends with %v", <-ended)
			}
		}
	}
}

// hears logs in, and wants unit attentions, in this order.
func hears(ctx context.Context, u initiator.URL, isid pdu.ISID, want []uint16) error {
	session, err := initiator.Dial(ctx, u, initiator.Options{ISID: isid})
	if err != nil {
		return err
	}
	for _, code := range want {
		err := session.Do(ctx, &initiator.Command{CDB: make([]byte, 6)})
		if s, ok := errors.AsType[*initiator.StatusError](err); !ok || s.Key != 6 || uint16(s.ASC)<<8|uint16(s.ASCQ) != code {
			return errors.Join(fmt.Errorf("TEST UNIT READY wants the unit attention %04xh, and ends with %s", code, fmt.Sprint(err)), session.Close())
		}
	}
	return session.Close()
}

// TestMirrorTickle: a connection that only waits learns that its address has moved, though the machine that had it is not there to say
// so.
func TestMirrorTickle(t *testing.T) {
	if !inSegment(t) {
		return
	}
	s, n := newAddresses(t)
	for _, at := range []string{moves4 + ":3260", "[" + moves6 + "]:3260"} {
		primary := s.hasAddresses()
		u, err := initiator.ParseURL("iscsi://" + at + "/iqn.2026-11.example.oneshot:lab/0")
		n.must(err)
		isid := initiator.RandomISID()
		session, err := initiator.Dial(t.Context(), u, initiator.Options{ISID: isid})
		n.must(err)
		c, err := (&net.Dialer{KeepAlive: -1}).DialContext(t.Context(), "tcp", at)
		n.must(err)
		s.untilCluster(other(primary), "it knows both connections", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Guests == 2 })
		n.cable(primary, false)
		if !s.takesOver(other(primary)) {
			t.Fatal("the other node has not taken over")
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the connection ends with %v", err)
		}
		_ = c.Close()
		_ = session.Close()
		for _, who := range []struct {
			isid  pdu.ISID
			hears []uint16
		}{{isid, []uint16{0x2907, 0x2a06}}, {initiator.RandomISID(), []uint16{0x2900}}, {isid, []uint16{0x2900}}} {
			n.must(hears(t.Context(), u, who.isid, who.hears))
		}
		s.leaves(n, primary)
		n.cable(primary, true)
		s.level("w")
	}
}

// TestMirrorAddressSwitch: a mirror is switched again and again under load of a host with one path, the address that moves. It is
// told of no error; how long its slowest write took in each switch is logged. ONESHOT_SWITCHES says how often.
func TestMirrorAddressSwitch(t *testing.T) {
	if !inSegment(t) {
		return
	}
	n := switchesWanted(t)
	s, _ := newAddresses(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute+time.Duration(n)*2*time.Second)
	defer cancel()
	s.hasAddresses()
	m := newFollower(ctx, s, moves4+":3260")
	l := newLoad(t, m)
	var waits []time.Duration
	for i, refused := 0, 0; i < n; {
		primary := s.hasAddresses()
		l.more(50)
		l.slowest.Store(0)
		text, err := s.run(s.asked("w", "ha", "switch", "disk")...)
		if refused++; err != nil && refused < 20+n { // on a busy machine a copy may be late
			t.Logf("%s", text)
			continue
		}
		if !strings.HasPrefix(text, "Node "+other(primary)+" serves disk; ") {
			t.Fatalf("switch from %s says %q", primary, text)
		}
		l.more(50)
		waits = append(waits, time.Duration(l.slowest.Load()))
		i++
	}
	l.end()
	slices.Sort(waits)
	t.Logf("%d switches: the slowest write took %v to %v, in half of them at most %v and in 99 %% at most %v; the host lost its session %d times",
		n, waits[0], waits[n-1], waits[n/2], waits[n*99/100], m.moves)
	t.Logf("half of them were %s", s.steps())
	s.stopAll()
}

// TestMirrorCarrier: the primary's cable to the hosts is pulled, and the nodes hear each other still. The other node, which has its cable, serves by itself, and
// goes on when the first one has its own again. Without any such cable nobody hands anything over. That is so where an address moves, and where none does, and, later, if
// the other node shows hosts something else.
func TestMirrorCarrier(t *testing.T) {
	for _, c := range []struct {
		name, portal string
		differs      bool
	}{
		{name: "an address moves", portal: "  - {mirror: disk, listen: \"10.2.0.100:3260\", group: 10, interface: eth2}\n"},
		{name: "no address moves"},
		{name: "the configurations differ", differs: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !isApartBeside(t) {
				return
			}
			n := newNetwork(t)
			s := n.site(mirrorText + c.portal)
			s.startAll()
			primary := s.level("w")
			next := other(primary)
			if c.differs {
				s.write(next, strings.Replace(s.text, "luns: {0: disk}", "luns: {1: disk}", 1))
				s.must(s.asked(next, "reload")...)
				s.until(primary, "it has heard of that", func(m map[string]*mgmt.Member) bool { return len(m[next].Differs) > 0 })
			}
			n.pull(primary, 2, true)
			s.untilCluster(next, "it serves", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Role == mgmt.RolePrimary })
			if words := "has no link, so another node serves it"; !strings.Contains(s.told(primary), words) {
				t.Errorf("node %s does not say that its interface %s", primary, words)
			}
			n.pull(next, 2, true)
			s.untilCluster(next, "it says that nobody can take over", func(*mgmt.Cluster) bool {
				return strings.Contains(s.told(next), "eth2 of node "+primary+" has no link")
			})
			n.pull(primary, 2, false)
			s.untilCluster(primary, "it serves, and has its cable", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Role == mgmt.RolePrimary })
			n.pull(next, 2, false)
			s.level("w")
			s.stopAll()
		})
	}
}
