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

// TestRaise: what a block is said to have was there before, if who says so is in a term that is over: power cuts behind that excuse those who have lost it.
func TestRaise(t *testing.T) {
	const before, now = 40 * time.Second, 41 * time.Second
	had, left, newer := pos{9, 703}, pos{9, 700}, pos{9, 704}
	for _, x := range []struct {
		name   string
		isOver bool // the term of who answers
		pos    pos
		want   time.Duration
	}{
		{"in a former term", true, had, before},
		{"in a former term, something newer", true, newer, now},
		{"by who has it back", false, had, now},
	} {
		r := newRun(Options{Seed: 1})
		r.setUp()
		r.now, r.view.Term = now, uint64(b2i(x.isOver))
		r.floors[0] = floor{pos: had, at: before}
		r.setBack(0, left)
		n := r.nodes[0]
		n.core = new(replica.Core)
		r.raise(n, 0, x.pos)
		if f := &r.floors[0]; f.pos != x.pos || f.at != x.want {
			t.Errorf("%s: %v since %v, want %v", x.name, f.pos, f.at, x.want)
		}
	}
}
