//go:build !race

package main

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"oneshot/initiator"
	"oneshot/mgmt"
)

// narrow lets the switch between the nodes send no more than rate octets per second to each of two machines. What is too much waits in the switch,
// for wait at most, and is lost otherwise.
func (n *network) narrow(rate uint64, wait time.Duration) {
	n.t.Helper()
	for _, name := range []string{"a", "b"} {
		port, err := netlink.LinkByName("port1" + name)
		n.must(err)
		const burst = 16 << 10
		n.must(netlink.QdiscReplace(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: port.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate:       rate, Buffer: uint32(burst * 1000000000 / rate / 64), Limit: uint32(float64(rate)*wait.Seconds()) + burst,
		}))
	}
}

// overNarrow is a test of a mirror whose nodes have a link that takes 8 Mbit/s, and which a host writes to as much as it can. No copy leaves: beats do
// not wait behind what is written. When the link is cut, or the other process is gone, the primary goes on alone as soon as over any other link.
func overNarrow(t *testing.T, text func(string) string) {
	if !isApart(t) {
		return
	}
	n := newNetwork(t)
	s := n.site(mirrorText)
	s.text = text(s.text)
	for _, name := range machines {
		s.write(name, s.text)
	}
	s.startAll()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	primary := s.level("a")
	n.narrow(1_000_000, 50*time.Millisecond)
	before := s.mirror(primary)

	session, err := newHost(ctx, s, "slow").login(primary)
	if err != nil {
		t.Fatal(err)
	}
	lu, err := session.LU(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	const depth, size = 8, 1 << 20
	begin := func(writes int64) (end func()) { // without waiting
		var next atomic.Int64
		var hosts sync.WaitGroup
		for range depth {
			hosts.Go(func() {
				b := make([]byte, size)
				for i := next.Add(1); i <= writes; i = next.Add(1) {
					fill(b, int(i), uint64(i))
					c := &initiator.Command{Out: b, Attentions: 8}
					err := lu.Prepare(c, i*size%mirrorSize)
					if err == nil {
						err = session.Do(ctx, c)
					}
					if err != nil {
						t.Errorf("write %d: %v", i, err)
						return
					}
				}
			})
		}
		return hosts.Wait
	}
	began := time.Now()
	begin(24)()
	t.Logf("24 MiB were written in %d ms", time.Since(began).Milliseconds())
	if m := s.mirror(primary); m.Role != "primary" || m.Term != before.Term || m.Copied != before.Copied || copiesText(&m) != "a in sync, b in sync" {
		t.Errorf("a copy has left meanwhile: term %d and then %d, %d and then %d octets were copied; now %s, %s", before.Term, m.Term, before.Copied, m.Copied, m.Role, copiesText(&m))
	}

	for what, f := range map[string]struct{ lose, back func() }{
		"is killed":  {func() { s.kill(other(primary)) }, func() { s.start(other(primary)) }},
		"is cut off": {func() { n.pull(other(primary), 1, true) }, func() { n.pull(other(primary), 1, false) }},
	} {
		end := begin(24)
		for s.mirror(primary).LogBytes < 4*size { // what was written is on its way
		}
		f.lose()
		lost := time.Now()
		s.untilCluster(primary, "the primary is alone", func(c *mgmt.Cluster) bool {
			return c.Mirrors[0].Role == "primary" && !strings.Contains(copiesText(&c.Mirrors[0]), other(primary)+" in sync")
		})
		t.Logf("the other node %s: the primary was alone after %d ms", what, time.Since(lost).Milliseconds())
		end()
		f.back()
		if now := s.level("w"); now != primary {
			t.Errorf("%s is primary, and was %s", now, primary)
		}
	}
}

// mirror returns what a node knows of its mirror.
func (s *site) mirror(name string) (m mgmt.Mirror) {
	s.t.Helper()
	s.untilCluster(name, "it is known how the mirror is", func(c *mgmt.Cluster) bool { m = c.Mirrors[0]; return true })
	return m
}

func TestMirrorSlowLink(t *testing.T) { overNarrow(t, func(text string) string { return text }) }

func TestMirrorSlowLinkIWARP(t *testing.T) {
	overNarrow(t, func(text string) string {
		return strings.NewReplacer("state: consensus", "state: consensus\n  transport: iwarp",
			`{address: "10.1.0.1:7260"}`, `{address: "10.1.0.1:7260", data: "10.1.0.1:7261"}`,
			`{address: "10.1.0.2:7260"}`, `{address: "10.1.0.2:7260", data: "10.1.0.2:7261"}`).Replace(text)
	})
}
