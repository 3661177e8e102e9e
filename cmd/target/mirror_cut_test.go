//go:build !race

package main

import (
	"context"
	"testing"
	"time"

	"oneshot/mgmt"
)

// TestMirrorCut: three machines whose cables are pulled, or lose what goes one way, under load. Somebody serves the mirror whenever
// two of them hear each other, with all that was acknowledged, and when all is mended the copies are equal.
func TestMirrorCut(t *testing.T) {
	if !isApart(t) {
		return
	}
	n := newNetwork(t)
	s := n.site(mirrorText)
	s.startAll()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	s.level("a")
	l := newLoad(t, newMultipath(ctx, s))
	p := newProbe(ctx, s, l)
	l.more(200)

	// serves waits for an answer, lets the load go on, and says how long it took.
	serves := func(what, primary string, wait func() time.Duration) {
		t.Helper()
		took := wait()
		l.more(100)
		t.Logf("%s (%s was primary): the first answer came %d ms afterwards", what, primary, took.Milliseconds())
	}
	// mended waits until the copies are level again.
	mended := func() {
		t.Helper()
		s.level("w")
		l.more(50)
	}
	isolate := func(name string, cut bool) { n.pull(name, 1, cut) }

	for _, c := range []struct {
		what string
		cut  func(primary, other string, cut bool)
	}{
		{"the link between the copies is cut", func(p, o string, cut bool) { n.lose(p, o, cut); n.lose(o, p, cut) }},
		{"what the primary sends to the other copy is lost", func(p, o string, cut bool) { n.lose(p, o, cut) }},
		{"what the other copy sends to the primary is lost", func(p, o string, cut bool) { n.lose(o, p, cut) }},
		{"the other copy is cut off", func(_, o string, cut bool) { isolate(o, cut) }},
		{"the witness is cut off", func(_, _ string, cut bool) { isolate("w", cut) }},
	} {
		primary := s.level("a")
		serves(c.what, primary, p.after(func() { c.cut(primary, other(primary), true) }))
		c.cut(primary, other(primary), false)
		mended()
	}

	var wait func() time.Duration
	lost := s.loses(func(name string) { wait = p.after(func() { isolate(name, true) }) }, func(name string) { isolate(name, false) })
	serves("the primary is cut off", lost, wait)
	isolate(lost, false)
	s.untilCluster(lost, "it follows", func(c *mgmt.Cluster) bool {
		return c.Mirrors[0].Primary == other(lost) && c.Mirrors[0].Role != "primary"
	})
	mended()

	lost = s.loses(func(name string) {
		wait = p.after(func() { n.pull(name, 1, true); n.pull(name, 2, true) })
		s.kill(name)
	}, func(name string) { n.pull(name, 1, false); n.pull(name, 2, false); s.start(name) })
	serves("the primary's machine is gone", lost, wait)
	n.pull(lost, 1, false)
	n.pull(lost, 2, false)
	s.start(lost)
	mended()

	primary := s.level("a")
	for _, name := range machines {
		isolate(name, true)
	}
	for _, name := range machines {
		s.untilCluster(name, "it knows no leader", func(c *mgmt.Cluster) bool {
			for _, m := range c.Members {
				if m.Leads {
					return false
				}
			}
			return true
		})
	}
	wait = p.after(func() {
		for _, name := range machines {
			isolate(name, false)
		}
	})
	serves("all are connected again after all were apart", primary, wait)
	mended()

	primary = s.level("a")
	wait = p.after(func() { n.pull(primary, 2, true) })
	s.servedBy(other(primary))
	serves("the hosts lose the primary, and it is switched", primary, wait)
	n.pull(primary, 2, false)
	mended()

	l.end()
	s.settle(l.m)
	s.stopAll()
	s.equal()
}
