package replica

import (
	"testing"
	"time"
)

// TestDuel: two members that have lost their power at once, stand at once and ask each other in vain do not stand at once again, though their clocks go
// alike: the primary of before waits longer.
func TestDuel(t *testing.T) {
	if primary, other := standsAgain(t, 0), standsAgain(t, 1); primary < other+turn {
		t.Errorf("the primary of before stands again after %v, and the other one after %v", primary, other)
	}
}

// standsAgain has node 0, one of two without memory, stand in vain, and returns how long after that it stands again.
func standsAgain(t *testing.T, primary ID) time.Duration {
	s := begin(t, 2, nil, Saved{View: View{Version: 2, Term: 2, Primary: primary, InSync: NodesOf(0, 1), First: 1}})
	s.alive = 0
	s.do(Up{Peer: 1})
	v := s.until(func(a []Action) bool { return len(proposals(a)) > 0 })
	next := proposals(v)[0]
	s.do(Agreed{View: next})
	began := s.now
	s.until(func(a []Action) bool { return len(said[Ask](a)) > 0 })
	return s.now - began
}

// until lets time pass until what is done is what is waited for.
func (s *solo) until(is func([]Action) bool) []Action {
	s.Helper()
	for range 1000 {
		if a := s.wait(19 * time.Millisecond); is(a) {
			return a
		}
	}
	s.Fatal("it does not happen")
	return nil
}
