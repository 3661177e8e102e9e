//go:build !race

package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"oneshot/initiator"
	"oneshot/mgmt"
)

// alone returns three machines of which a has the only copy in sync, serves it, and hears neither of the others: only its hosts. b runs.
func alone(t *testing.T) (*network, *site, *load) {
	n := newNetwork(t)
	s := n.site(strings.Replace(mirrorText, "type: mirror,", "type: mirror, cache: writethrough,", 1))
	s.startAll()
	l := s.beginLoad()
	s.servedBy("a")
	s.kill("b")
	l.more(50) // which b lacks
	n.pull("a", 1, true)
	s.untilCluster("w", "a is not heard", func(c *mgmt.Cluster) bool {
		return !c.Members[0].Up
	})
	l.more(50) // a goes on
	l.stop.Store(true)
	l.wg.Wait()
	s.start("b")
	s.untilCluster("w", "a majority agrees", func(c *mgmt.Cluster) bool {
		return c.Members[1].Up && (c.Members[1].Leads || c.Members[2].Leads)
	})
	return n, s, l
}

// refuses sees that a node answers no read of the mirror.
func (s *site) refuses(l *load, at int) {
	s.t.Helper()
	session, err := initiator.Dial(l.m.ctx, l.m.urls[at], initiator.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	defer session.Close()
	ctx, cancel := context.WithTimeout(l.m.ctx, pathTime)
	defer cancel()
	lu, err := session.LU(ctx, 0)
	if err == nil {
		c := &initiator.Command{In: make([]byte, block)}
		if err = lu.Prepare(c, 0); err == nil {
			err = session.Do(ctx, c)
		}
	}
	if err == nil || !allowed(err) {
		s.t.Errorf("node %d answers a read with %v", at, err)
	}
}

// TestMirrorSentAway: a, which has the only copy in sync, is cut off from the others, but not from its hosts, and the others go on without
// it. When the cable is back a learns of that, in whichever way it was left out, and serves nothing.
func TestMirrorSentAway(t *testing.T) {
	// force has b go on, behind the cable that is cut.
	force := func(s *site) {
		s.stop("b")
		s.there("b", func() error {
			_, err := s.run(s.on("b", "ha", "force", "disk", "--confirm", "disk")...)
			return err
		})
		s.start("b")
		s.untilCluster("b", "b serves", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Role == mgmt.RolePrimary })
	}
	for _, c := range []struct {
		name, says string
		gone       func(n *network, s *site)
	}{
		{"forced", "target ha rejoin", func(_ *network, s *site) { force(s) }},
		{"replaced", "was replaced or removed", func(_ *network, s *site) {
			s.fails("node a has the only copy in sync of disk", s.asked("w", "ha", "replace", "a")...)
			s.fails("add --lose disk", s.asked("b", "ha", "remove", "a")...)
			s.must(s.asked("w", "ha", "replace", "a", "--lose", "disk")...)
			force(s)
		}},
		{"cloned", "is a clone", func(n *network, s *site) {
			n.open("c")
			for net := 1; net <= 2; net++ {
				n.plug("c", net, 1) // where a was
			}
			n.pull("c", 2, true)
			if err := os.CopyFS(s.path("c", "consensus"), os.DirFS(s.path("a", "consensus"))); err != nil {
				s.t.Fatal(err)
			}
			if err := os.WriteFile(s.path("c", "disk.img"), make([]byte, mirrorSize), 0o600); err != nil {
				s.t.Fatal(err)
			}
			s.write("c", s.text)
			s.startAs("c", "a")
			s.untilCluster("c", "the clone is a member", func(c *mgmt.Cluster) bool {
				return c.Trouble == "" && c.Members[1].Up && c.Members[2].Up
			})
			s.kill("c")
			n.pull("c", 1, true)
			force(s)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !isApartBeside(t) {
				return
			}
			n, s, l := alone(t)
			c.gone(n, s)
			n.pull("a", 1, false)
			s.untilCluster("a", "a learns of it", func(now *mgmt.Cluster) bool {
				return strings.Contains(now.Trouble+now.Mirrors[0].Trouble, c.says)
			})
			s.untilCluster("a", "a serves nothing", func(now *mgmt.Cluster) bool { return now.Mirrors[0].Role != mgmt.RolePrimary })
			s.refuses(l, 0)
			s.stop("b")
			s.there("b", func() error { // a lives, whether it is a member or not
				s.fails("somebody answers at the address of a, w", s.on("b", "ha", "force", "--confirm", "lab")...)
				return nil
			})
		})
	}
}
