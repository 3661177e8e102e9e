package server

import (
	"testing"
	"time"

	"oneshot/mgmt"
)

// TestTroubleOfAnotherCopy: status says what another node has told of its copy, until that is over, or was not told for long.
func TestTroubleOfAnotherCopy(t *testing.T) {
	text, on := mirrorOn(t)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	primary(t, s)
	m := s.member
	tell := func(reason string) {
		t.Helper()
		if err := (here{s}).KnowTrouble("d", "b", mgmt.CopyTrouble{State: mgmt.CopyDoubted, Reason: reason}); err != nil {
			t.Fatal(err)
		}
	}
	copyOf := func() mgmt.Copy { return s.clusterStatus().Mirrors[0].Copies[1] }
	was := copyOf()
	for _, over := range []func(){
		func() { tell("") },
		func() {
			long := m.trouble.known[troubled{"d", "b"}]
			long.at = long.at.Add(-troubleTime - time.Second)
			m.trouble.known[troubled{"d", "b"}] = long
		},
	} {
		tell("its disk is full")
		if c := copyOf(); c.Node != "b" || c.Reason != "its disk is full" || c.State == mgmt.CopyInSync {
			t.Errorf("%+v", c)
		}
		over()
		if c := copyOf(); c != was {
			t.Errorf("%+v, and it was %+v", c, was)
		}
	}
	for _, of := range []troubled{{"d", "a"}, {"d", "c"}, {"e", "b"}} {
		if err := (here{s}).KnowTrouble(of.mirror, of.node, mgmt.CopyTrouble{Reason: "lies"}); err == nil {
			t.Errorf("%v: nobody has such a copy but this node", of)
		}
	}
}
