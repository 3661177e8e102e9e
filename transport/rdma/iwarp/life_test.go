package iwarp

import (
	"testing"

	"oneshot/internal/invariant"
)

// In the table of states every state has a name, can be reached, and leads to the end; no later state allows
// more than an earlier one.
func TestLife(t *testing.T) {
	reached := map[state]bool{idle: true}
	for range states {
		for s := range states {
			for to := range states {
				if reached[s] && s.may(to) {
					reached[to] = true
				}
			}
		}
	}
	ends := map[state]bool{ended: true}
	for range states {
		for s := range states {
			for to := range states {
				if ends[to] && s.may(to) {
					ends[s] = true
				}
			}
		}
	}
	for s := range states {
		if s.String() == "" || !reached[s] || !ends[s] || s.may(s) || s.may(idle) {
			t.Errorf("state %d (%v): reached %v, ends %v", s, s, reached[s], ends[s])
		}
		p := life[s]
		if p.posts && !p.sends || p.sends && !p.speaks || p.speaks && !p.lives || p.drains && (!p.lives || p.sends) {
			t.Errorf("%v: %+v", s, p)
		}
		for to := range states {
			n := life[to]
			if s >= connected && s.may(to) && (n.posts && !p.posts || n.sends && !p.sends || n.lives && !p.lives || p.drains && n.lives && !n.drains) {
				t.Errorf("from %v to %v something is gained", s, to)
			}
		}
	}
	if ended.may(ended) || life[ended].next != 0 {
		t.Error("there is life after the end")
	}
}

func TestLifeGoesOneWay(t *testing.T) {
	q := &queuePair{state: told}
	defer func() {
		if r := recover(); (r != nil) != invariant.Enabled {
			t.Errorf("recovered %v", r)
		}
	}()
	q.become(connected)
}
