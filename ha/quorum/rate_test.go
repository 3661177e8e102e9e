package quorum

import (
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// TestRate: a clock whose rate is wrong is noticed within some minutes, by how much, and for as long as it is. One that is right, or nearly, is not; neither is one that stands
// still at times, here or there, nor one of which nothing comes for a while.
func TestRate(t *testing.T) {
	const beatEach = uint64(reportTime)
	for _, c := range []struct {
		name    string
		rate    float64
		stops   uint64 // ns for which a machine is stopped once in 7 minutes; with its clock, so the other one seems to jump
		here    bool
		silence uint64 // ns for which nothing comes, as often
		alarm   bool
	}{
		{name: "right"},
		{name: "nearly right", rate: 0.0045},
		{name: "a little fast", rate: 0.0055, alarm: true},
		{name: "fast", rate: 0.015, alarm: true},
		{name: "slow", rate: -0.015, alarm: true},
		{name: "very fast", rate: 0.2, alarm: true},
		{name: "stopped there", stops: 30e9},
		{name: "stopped for a moment there", stops: 2e9},
		{name: "stopped here", stops: 30e9, here: true},
		{name: "nothing comes", silence: 150e9},
		{name: "nothing comes for a moment", rate: 0.015, silence: 10e9, alarm: true},
	} {
		r, random := rate{}, rand.New(rand.NewPCG(1, 0))
		there, here, alarms := uint64(1<<62), uint64(1<<63), 0
		beat := func(faster float64) {
			here += beatEach
			there += uint64(float64(beatEach) * (1 + faster))
			r.add(moment{there, here + random.Uint64N(200e6)})
		}
		for n := range 60 * 60e9 / beatEach {
			if n%(7*60e9/beatEach) == 1000 {
				if c.here {
					there += c.stops
				} else {
					here += c.stops
				}
				here += c.silence
				there += uint64(float64(c.silence) * (1 + c.rate))
			}
			beat(c.rate)
			if w := r.wrong(); w != 0 {
				alarms++
				if math.Abs(w-c.rate) > 0.003 {
					t.Fatalf("%s: the rate is said to differ by %v, and does by %v", c.name, w, c.rate)
				}
			}
		}
		if (alarms > 0) != c.alarm {
			t.Errorf("%s: %d alarms", c.name, alarms)
		}
		for range 3 * 60e9 / beatEach { // it is right again
			beat(0)
		}
		if w := r.wrong(); w != 0 {
			t.Errorf("%s: the rate is said to differ by %v, though it does not any more", c.name, w)
		}
	}
}

// TestClocksAgree: nodes whose clocks agree say nothing of them, and measure that they do.
func TestClocksAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		time.Sleep((ratesKept + 2) * time.Minute)
		if s := l.nodes["a"].Status(); len(s.Clocks) != 0 {
			t.Errorf("clocks differ: %v", s.Clocks)
		}
		for _, p := range l.nodes["a"].peers {
			p.mu.Lock()
			if len(p.rate.found) != ratesKept {
				t.Errorf("of node %s %d minutes were measured", p.name, len(p.rate.found))
			}
			p.mu.Unlock()
		}
	})
}
