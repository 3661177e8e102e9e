package sim

import (
	"testing"
	"time"
)

// TestGone: a read may fail when a copy went without its block, nobody can read it, and what was written there since was taken by power cuts, though that be
// known only after the read has begun.
func TestGone(t *testing.T) {
	const block = 2
	lost, written := pos{5, 296}, pos{6, 358}
	for _, x := range []struct {
		name     string
		began    pos // when the read began
		now      pos
		readable bool // by somebody
		gone     bool
	}{
		{"never written since", lost, lost, false, true},
		{"never written since, and there", lost, lost, true, false},
		{"written since", written, written, false, false},
		{"written meanwhile", lost, written, true, true},
		{"written, and taken meanwhile", written, lost, false, true},
		{"written, and taken meanwhile, and what was before is there", written, lost, true, false},
	} {
		r := newRun(Options{Seed: 1})
		r.setUp()
		for _, n := range r.nodes {
			n.disk.bad[block] = !x.readable
		}
		r.gone[block], r.floors[block].pos = lost, x.now
		a := &attempt{command: &command{block: block, n: 1}, floor: []pos{x.began}, began: time.Second}
		if got := r.isGone(a); got != x.gone {
			t.Errorf("%s: gone is %v", x.name, got)
		}
	}
}
