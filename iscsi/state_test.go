package iscsi

import (
	"testing"

	"oneshot/internal/invariant"
)

// From every state a connection comes to its end, and only forwards, except for a login that was held up.
func TestConnStates(t *testing.T) {
	for s := stateLogin; s < connStates; s++ {
		out := 0
		for e, next := range nextState[s] {
			if next == stateNone {
				continue
			}
			out++
			if next <= s && connEvent(e) != eventGoesOn {
				t.Errorf("event %d leads from %v to %v", e, s, next)
			}
		}
		switch {
		case s == stateFree && out > 0:
			t.Errorf("%v is left", s)
		case s < stateCleanup && nextState[s][eventLost] != stateCleanup:
			t.Errorf("%v does not notice that the connection is lost", s)
		}
	}
}

// An event that does not occur in a state changes nothing, and is found in builds with assertions.
func TestImpossibleEvent(t *testing.T) {
	c := &Conn{state: stateCleanup}
	defer func() {
		if r := recover(); (r != nil) != invariant.Enabled || c.state != stateCleanup {
			t.Errorf("%v, and the state is %v", r, c.state)
		}
	}()
	c.enter(eventLoggedIn)
}
