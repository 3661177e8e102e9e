package quorum

import (
	"testing"
	"testing/cryptotest"
	"time"
)

// TestFar: nodes are far from each other, and packets are lost now and then, which holds up what is behind them. A leader goes on all the same, with all voters and
// without one, and changes succeed.
func TestFar(t *testing.T) {
	seeds := number("ONESHOT_SIM_RUNS", 1)
	for seed := range seeds {
		for _, far := range []time.Duration{0, 100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond} {
			cryptotest.SetGlobalRandom(t, seed)
			w := newWorld(seed, nil)
			w.setUp()
			w.quiet = true
			until := func(what string, holds func() bool) {
				t.Helper()
				if !w.run(w.now+time.Minute, holds) || w.bad != "" {
					t.Fatalf("seed %d, %v, %s: %s", seed, far, what, w.bad)
				}
			}
			goesOn := func(what string) {
				t.Helper()
				elections, puts := w.elections, w.puts
				if w.run(w.now+time.Minute, nil); w.elections > elections+3 || w.puts < puts+60 || w.bad != "" {
					t.Errorf("seed %d, %v, %s: %d elections and %d changes in a minute: %s", seed, far, what, w.elections-elections, w.puts-puts, w.bad)
				}
			}
			until("three vote", func() bool { return len(w.nodes) == 3 && w.level() })
			for _, n := range w.nodes {
				n.far = far / 2
			}
			goesOn("all are there")
			until("one leads", func() bool { return w.led(nil) != nil })
			leader := w.led(nil)
			leader.core = nil // for good
			leader.life++
			until("another one leads", func() bool { l := w.led(leader); return l != nil && l != leader })
			goesOn("one is lost")
			for _, n := range w.nodes {
				n.far = 0
			}
			until("ticks are short again", func() bool {
				for _, n := range w.nodes {
					if n.core != nil && n.core.pace != 1 {
						return false
					}
				}
				return true
			})
		}
	}
}

// TestFarFormer: among voters is one of a version that does not know of longer ticks. All keep short ones: it would follow no leader of longer ones.
func TestFarFormer(t *testing.T) {
	cryptotest.SetGlobalRandom(t, 1)
	w := newWorld(1, nil)
	w.witness = ""
	w.setUp()
	w.quiet, w.idle = true, true
	if !w.run(time.Minute, func() bool { return len(w.nodes) == 3 && w.level() && w.led(nil) != nil }) {
		t.Fatal("there are not three voters")
	}
	for _, n := range w.nodes {
		n.former, n.far = n.name == "b", 50*time.Millisecond
	}
	w.run(w.now+10*time.Second, nil)
	for _, n := range w.nodes {
		if !n.former && n.core.pace != 1 {
			t.Errorf("%s has ticks of %d calls", n.name, n.core.pace)
		}
	}
	n := w.elections
	for _, n := range w.nodes {
		n.former = false
	}
	if !w.run(w.now+time.Minute, func() bool {
		for _, n := range w.nodes {
			if n.core.pace != 2 {
				return false
			}
		}
		return true
	}) {
		t.Error("not all have ticks of two calls")
	}
	if w.run(w.now+time.Minute, nil); w.elections > n+1 {
		t.Errorf("%d elections", w.elections-n)
	}
}

// TestPaceStays: round trips that are about as long as some ticks, now a little shorter and now a little longer for as long as they are remembered, do not have ticks
// change again and again. Ticks follow round trips that are longer at once, and shorter ones that are clearly shorter.
func TestPaceStays(t *testing.T) {
	w, until := idleWorld(t)
	until("three vote", func() bool { return len(w.nodes) == 3 && w.level() && len(w.nodes[0].core.conf.GetVoters()) == 3 })
	c := w.nodes[0].core
	changes := 0
	lasts := func(us ...time.Duration) { // the shortest of those that are remembered
		for _, d := range us {
			for i := range time.Duration(samples) {
				for _, v := range c.conf.GetVoters() {
					if v != c.log.id.Number {
						c.Reported(v, Report{Pace: 1}, d*time.Microsecond+i*7%5*time.Millisecond)
					}
				}
				was := c.pace
				if c.setPace(); c.pace != was {
					changes++
				}
			}
		}
	}
	expect := func(pace, most int) {
		t.Helper()
		if c.pace != pace || changes > most {
			t.Errorf("ticks are of %d calls, and have changed %d times; expected %d calls, and %d changes", c.pace, changes, pace, most)
		}
		changes = 0
	}
	lasts(900)
	expect(1, 0)
	lasts(59_930, 60_110, 59_870, 60_060, 59_990, 60_180, 59_940, 60_020)
	expect(2, 1)
	lasts(54_000)
	expect(2, 0)
	lasts(52_000, 900)
	expect(1, 1)
	lasts(239_700, 240_400, 239_900, 240_050, 239_500, 240_300)
	expect(5, 4)
	lasts(59_000)
	expect(2, 9)
	lasts(900)
	expect(1, 1)
}
