package quorum

import (
	"slices"
	"testing"
	"testing/cryptotest"
	"time"
)

// TestOrphan: the leader and another voter do not hear each other, and a third one hears both. Soon all have one leader again, and the voter that was
// cut off learns what is agreed on. If it was for a moment, when the link is back, and while a node is gone, nobody changes the leader.
func TestOrphan(t *testing.T) {
	for seed := range uint64(3) {
		cryptotest.SetGlobalRandom(t, seed)
		w := newWorld(seed, nil)
		w.witness = "" // nobody is better than another one
		w.setUp()
		w.quiet = true
		until := func(what string, holds func() bool) {
			t.Helper()
			if !w.run(w.now+10*time.Second, holds) || w.bad != "" {
				t.Fatalf("seed %d, %s: %s", seed, what, w.bad)
			}
		}
		until("three vote", func() bool { return len(w.nodes) == 3 && w.level() && w.led(nil) != nil })
		leader := w.led(nil)
		var orphan, third *simNode
		for _, n := range w.nodes {
			switch {
			case n == leader:
			case orphan == nil:
				orphan = n
			default:
				third = n
			}
		}
		ends := [2]uint64{leader.place, orphan.place}
		stays := func(what string, leader, but *simNode) {
			t.Helper()
			w.run(w.now+10*time.Second, func() bool {
				for _, n := range w.nodes {
					if n == but {
						continue
					}
					if number, _ := n.core.Leader(); number != leader.number && number != 0 {
						t.Fatalf("seed %d, %s: another one leads", seed, what)
					}
				}
				return false
			})
		}
		w.cut[ends] = true
		w.run(w.now+1100*time.Millisecond, nil) // for a part of it the orphan says still that it hears the leader
		delete(w.cut, ends)
		stays("they do not hear each other for a moment", leader, nil)
		w.cut[ends] = true
		until("the third one leads", func() bool { return w.led(nil) == third })
		puts := w.puts
		until("changes succeed", func() bool { return w.puts > puts+20 && w.level() })
		delete(w.cut, ends)
		stays("the link is back", third, nil)
		orphan.core = nil // for good
		orphan.life++
		stays("one is gone", third, orphan)
	}
}

// led returns the node that all but one take for the leader, nil if they do not agree, or one of them does not run.
func (w *world) led(but *simNode) (leader *simNode) {
	for _, n := range w.nodes {
		if n == but {
			continue
		}
		if n.core == nil {
			return nil
		}
		number, _ := n.core.Leader()
		i := slices.IndexFunc(w.nodes, func(o *simNode) bool { return o.number == number })
		if i < 0 || leader != nil && leader != w.nodes[i] {
			return nil
		}
		leader = w.nodes[i]
	}
	return leader
}
