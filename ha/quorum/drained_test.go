package quorum

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// TestDrained: all nodes learn who is drained; who leads and is drained has another one lead, and is not chosen again.
func TestDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		a := l.nodes["a"]
		drained := func(name string) Drained {
			all := l.nodes[name].Records(KindCluster)
			if len(all) == 0 {
				return nil
			}
			d, err := DecodeDrained(all[0].Value)
			if err != nil {
				t.Error(err)
			}
			return d
		}
		may := func(Drained) error { return nil }
		drain := func(name string, on bool) {
			if err := a.Drain(l.ctx(), name, on, may); err != nil {
				t.Fatalf("%s %t: %v", name, on, err)
			}
		}
		if err := a.Drain(l.ctx(), "b", true, func(d Drained) error { return errors.New("no " + strings.Join(d, " ")) }); err == nil || err.Error() != "no b" {
			t.Errorf("refused: %v", err)
		}
		drain("w", false)
		for _, name := range []string{"w", "b", "w"} {
			drain(name, true)
		}
		l.until("a", "a leads", func(s *Status) bool { return s.Leader == 1 })
		l.until("b", "b knows", func(*Status) bool { return true })
		if d := drained("a"); !slices.Equal(d, Drained{"b", "w"}) {
			t.Errorf("drained are %v", d)
		}
		drain("b", false)
		drain("a", true)
		l.until("a", "b leads", func(s *Status) bool { return s.Leader == 2 })
		drain("b", true)
		if err := l.nodes["b"].Close(); err != nil {
			t.Fatal(err)
		}
		l.until("a", "somebody leads, though all are drained", func(s *Status) bool { return s.Leader != 0 && s.Leader != 2 })
		l.open("b")
		l.put("b", "unit", 0, "one")
		if d := drained("b"); !slices.Equal(d, Drained{"a", "b", "w"}) {
			t.Errorf("drained are %v", d)
		}
		ctx, cancel := context.WithCancel(l.ctx())
		cancel()
		if err := a.Drain(ctx, "a", false, may); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
	for _, b := range [][]byte{{2}, {1, 0}, {1, 0, 0, 0, 9, 1}} {
		if _, err := DecodeDrained(b); err == nil {
			t.Errorf("% x is read", b)
		}
	}
}
