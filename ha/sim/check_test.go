package sim

import (
	"testing"
	"time"

	"oneshot/ha/replica"
)

// TestHasLost: a power cut excuses who held a block, if what others do with what it has told could not be told from what they do after a later cut.
func TestHasLost(t *testing.T) {
	const at = 10 * time.Second // of the floor
	held, other := pos{2, 1}, pos{2, 2}
	for _, x := range []struct {
		name  string
		cut   time.Duration // before the floor; less than 0: behind it
		pos   pos           // of the floor
		isOff bool
		want  bool
	}{
		{"behind it", -time.Second, other, false, true},
		{"a moment before", underWay, held, false, true},
		{"a moment before, and it did not hold that", underWay, other, false, false},
		{"before, and it is back", 2 * underWay, held, false, false},
		{"before, and it is off", 2 * time.Second, held, true, true},
		{"before, it is off, and did not hold that", 2 * time.Second, other, true, false},
		{"long before", 3 * time.Second, held, true, false},
	} {
		r := newRun(Options{Seed: 1})
		r.setUp()
		n := r.nodes[0]
		n.wasAt, n.cutOff = at-x.cut, &replica.Memory{Log: []replica.Record{{Term: held.term, Seq: held.seq}}}
		if n.core = nil; !x.isOff {
			n.core = new(replica.Core)
		}
		if got := n.hasLost(&floor{pos: x.pos, at: at}); got != x.want {
			t.Errorf("%s: %v", x.name, got)
		}
	}
}
