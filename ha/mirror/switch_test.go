package mirror

import (
	"errors"
	"testing"
	"testing/synctest"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/ha/replica"
)

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
				l.write(a, 0, bytesOf(4096, 1))
				if err := l.do(a, backend.Op{Kind: backend.Flush}); err != nil {
					t.Fatal(err)
				}
				leave(t, a.mirror)
				l.await(c, "it takes over", func(s replica.State) bool { return s.Role == replica.Primary })
				hang.Release()
				l.level(c)
			})
		})
	}
	if to, err := new(Mirror).SwitchToOneOf(t.Context(), replica.NodesOf(0)); to != 0 || err != ErrCannotTake {
		t.Errorf("nobody else: %d %v", to, err)
	}
}
