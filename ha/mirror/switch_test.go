package mirror

import (
	"errors"
	"testing"
	"testing/synctest"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/ha/replica"
)

// TestMinCopiesDiffer: min_copies is changed on one node after the other. The copies stay level meanwhile, and who serves goes by its own.
func TestMinCopiesDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		least := 1
		l.tune = func(c *replica.Config) { c.MinCopies = least }
		a.start()
		least = 2
		b.start()
		l.level(a)
		want := bytesOf(4096, 1)
		l.write(a, 0, want)
		if err := a.mirror.SwitchTo(t.Context(), b.id); err != nil {
			t.Fatal(err)
		}
		l.level(b)
		a.kill()
		l.alone(b)
		if err := l.do(b, backend.Op{Kind: backend.Write, Len: 4096, Segs: [][]byte{bytesOf(4096, 2)}}); !isMoved(err) {
			t.Errorf("a write to one copy of two ends with %v", err)
		}
		a.start()
		l.level(b)
	})
}

// TestSwitchToOneOf: the first of two other copies does not get durable in time what was flushed. The second one takes over, whether an
// administrator wants it, the node ends or it is drained.
func TestSwitchToOneOf(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, m *Mirror){
		"by order": func(t *testing.T, m *Mirror) {
			if err := m.SwitchTo(t.Context(), 1); !errors.Is(err, ErrTooLate) {
				t.Fatal(err)
			}
			if to, err := m.SwitchToOneOf(t.Context(), replica.NodesOf(0, 1, 2)); to != 2 || err != nil {
				t.Errorf("node %d: %v", to, err)
			}
		},
		"at the end": func(_ *testing.T, m *Mirror) { m.HandOver() },
		"drained":    func(_ *testing.T, m *Mirror) { m.Drain(replica.NodesOf(0)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, 3)
				l.tune = func(c *replica.Config) { c.SlowCopy *= 100 } // the late one stays in S
				store := l.withFaults()
				l.begin()
				defer l.end()
				a, b, c := l.nodes[0], l.nodes[1], l.nodes[2]
				hang := store(b).Hold(faulty.Match{Kinds: []backend.Kind{backend.Flush}})
				defer hang.Release()
				l.write(a, 0, bytesOf(4096, 1))
				l.flush(a)
				leave(t, a.mirror)
				l.serves(c)
				hang.Release()
				l.level(c)
			})
		})
	}
	if to, err := new(Mirror).SwitchToOneOf(t.Context(), replica.NodesOf(0)); to != 0 || err != ErrCannotTake {
		t.Errorf("nobody else: %d %v", to, err)
	}
}
