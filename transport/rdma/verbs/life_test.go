//go:build verbs && !guest && cgo && linux

package verbs

import (
	"testing"

	"oneshot/internal/invariant"
)

// From every state a queue pair comes to its end, which nothing follows.
func TestLife(t *testing.T) {
	ends := [states]bool{ended: true}
	for range states {
		for s, next := range life {
			for _, to := range next {
				ends[s] = ends[s] || ends[to]
				if to == fresh || to == state(s) {
					t.Errorf("%d follows %d", to, s)
				}
			}
		}
	}
	for s, it := range ends {
		if !it {
			t.Errorf("state %d has no end", s)
		}
	}
	if len(life[ended]) > 0 {
		t.Error("there is life after the end")
	}
}

func TestLifeGoesOneWay(t *testing.T) {
	q := &queuePair{state: ended}
	defer func() {
		if r := recover(); (r != nil) != invariant.Enabled {
			t.Errorf("recovered %v", r)
		}
	}()
	q.become(connected)
}
