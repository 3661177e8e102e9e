package remote

import (
	"slices"
	"testing"

	"oneshot/internal/invariant"
)

// A queue pair goes forwards only, and from everywhere to its end.
func TestLife(t *testing.T) {
	for s, next := range life {
		for _, to := range next {
			if to <= state(s) {
				t.Errorf("%d follows %d", to, s)
			}
		}
		if state(s) < ending && !slices.Contains(next, ending) || state(s) == ending && !slices.Contains(next, ended) {
			t.Errorf("state %d has no end", s)
		}
	}
}

func TestLifeGoesOneWay(t *testing.T) {
	q := &queuePair{state: ending}
	defer func() {
		if r := recover(); (r != nil) != invariant.Enabled {
			t.Errorf("recovered %v", r)
		}
	}()
	q.become(connected)
}
