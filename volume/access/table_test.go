package access

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// session is a subscriber that notes what it is told.
type session struct {
	holder Holder
	denied Denial
	told   Event
	abort  func(done func())
}

func (s *session) Holder() Holder           { return s.holder }
func (s *session) Session() any             { return s }
func (s *session) Deny(mask, denied Denial) { s.denied = s.denied&^mask | denied }
func (s *session) Tell(e Event)             { s.told |= e }
func (s *session) Abort(done func()) {
	if s.abort == nil {
		done()
		return
	}
	s.abort(done)
}

func newSession(t *Table, name string, group uint16) *session {
	s := &session{holder: Holder{Initiator{ISCSI, name, "400000000001"}, Port{"iqn.t", group}}}
	t.Subscribe(s)
	return s
}

func (s *session) change(op Op, key, newKey uint64) *Change {
	return &Change{Op: op, By: s, Key: key, NewKey: newKey, Kind: ExclusiveAccess, Whole: true, Ports: []PortOf{{s.holder.Port, s.holder.Port.Group}}}
}

// must does a change that is over at once.
func must(t *testing.T, table *Table, c *Change, want Result) {
	t.Helper()
	if !table.Do(c, nil) {
		t.Fatalf("%+v waits", c)
	}
	if c.Result != want {
		t.Errorf("%+v: %d, want %d", c, c.Result, want)
	}
}

// Changes take effect one after the other, each when it is kept. One that cannot be kept has no
// effect, and those behind it are worked out without it.
func TestChangesWaitUntilKept(t *testing.T) {
	states, ends := make(chan State), make(chan error)
	table := NewTable(Nothing(), func(s State) error { states <- s; return <-ends })
	a, b := newSession(table, "a", 1), newSession(table, "b", 1)
	over := make(chan *Change, 3)
	do := func(c *Change) {
		t.Helper()
		c.Persist = c.Op == Register
		if table.Do(c, func() { over <- c }) {
			t.Fatalf("%+v is over at once", c)
		}
	}
	first, second, third := a.change(Register, 0, 1), b.change(Register, 0, 2), b.change(Reserve, 2, 0)
	do(first)
	if s := <-states; len(s.Registrations) != 1 {
		t.Errorf("%+v is kept", s)
	}
	do(second)
	do(third)
	if s := table.State(); len(s.Registrations) != 0 || b.denied != 0 {
		t.Errorf("%+v is in force before it is kept", s)
	}
	ends <- errors.New("full")
	if s := <-states; len(s.Registrations) != 1 || s.Registrations[0].Key != 2 {
		t.Errorf("%+v is kept behind a change that was not", s)
	}
	ends <- nil
	if c := <-over; c != first || c.Result != NotKept || c.Err == nil {
		t.Errorf("%+v", c)
	}
	if s := <-states; s.Kind != ExclusiveAccess {
		t.Errorf("%+v is kept", s)
	}
	ends <- nil
	for _, want := range []*Change{second, third} {
		if c := <-over; c != want || c.Result != Done {
			t.Errorf("%+v", c)
		}
	}
	if a.denied != Reads|Writes || b.denied != 0 {
		t.Errorf("denied: %x and %x", a.denied, b.denied)
	}
}

// PREEMPT AND ABORT is over when what it aborts is, at once or later.
func TestAbortIsWaitedFor(t *testing.T) {
	for _, late := range []bool{false, true} {
		table := NewTable(Nothing(), nil)
		a, b, c := newSession(table, "a", 1), newSession(table, "b", 1), newSession(table, "c", 1)
		for i, s := range []*session{a, b, c} {
			must(t, table, s.change(Register, 0, uint64(min(i, 1)+1)), Done)
		}
		var aborts []func()
		for _, s := range []*session{b, c} {
			s.abort = func(done func()) {
				if late {
					aborts = append(aborts, done)
				} else {
					done()
				}
			}
		}
		over := false
		if table.Do(a.change(PreemptAndAbort, 1, 2), func() { over = true }) == late {
			t.Errorf("late %v: over at once: %v", late, !late)
		}
		for i, done := range aborts {
			if over {
				t.Errorf("over after %d", i)
			}
			done()
		}
		if over != late || b.told != RegistrationsPreempted || a.told != 0 || len(table.State().Registrations) != 1 {
			t.Errorf("late %v: over %v, told %x and %x", late, over, b.told, a.told)
		}
	}
}

// RESERVE belongs to a session, even if another one comes from the same port; a condition of the volume
// holds for everybody, and that of a group for those who come through it.
func TestDenials(t *testing.T) {
	table := NewTable(Nothing(), nil)
	a, b, seven := newSession(table, "a", 1), newSession(table, "a", 1), newSession(table, "a", 7)
	denied := func(want ...Denial) {
		t.Helper()
		if got := []Denial{a.denied, b.denied, seven.denied}; !slices.Equal(got, want) {
			t.Errorf("denied: %x, want %x", got, want)
		}
	}
	must(t, table, a.change(ReserveUnit, 0, 0), Done)
	must(t, table, b.change(ReserveUnit, 0, 0), Conflict)
	must(t, table, b.change(ReleaseUnit, 0, 0), Done)
	denied(0, Reads|Writes|Most, Reads|Writes|Most)
	table.SetCondition(Sanitizing, Sanitizing)
	denied(Sanitizing, Sanitizing|Reads|Writes|Most, Sanitizing|Reads|Writes|Most)
	table.SetCondition(Sanitizing, 0)
	table.Unsubscribe(a)
	a.denied = 0
	denied(0, 0, 0)
	must(t, table, &Change{Op: SetGroups, Groups: []Group{{ID: 7, State: Standby, Preferred: true}}}, Done)
	must(t, table, &Change{Op: SetGroups, By: b, Groups: []Group{{ID: 7, State: Unavailable}}}, Done)
	denied(0, 0, IsUnavailable)
	if g := table.Group(7); !g.Preferred || g.State != Unavailable || seven.told != AccessChanged {
		t.Errorf("%+v, told %x", g, seven.told)
	}
}

// What is merged is sound, whichever of the two had the reservation.
func TestMerge(t *testing.T) {
	reg := func(name string, key uint64) Registration {
		return Registration{Holder: Holder{Initiator{ISCSI, name, ""}, Port{"iqn.t", 1}}, Relative: 1, Key: key}
	}
	one := State{Generation: 3, Registrations: []Registration{reg("a", 1), reg("b", 2)}, Holder: -1}
	two := State{Generation: 2, Persist: true, Registrations: []Registration{reg("b", 9), reg("c", 3)}, Kind: WriteExclusive, Holder: 1}
	m, conflict := Merge(one, two)
	if err := m.Check(); err != nil || conflict || fmt.Sprint(m.Generation, " ", m.Persist, " ", len(m.Registrations), " ", m.Kind, " ", m.Registrations[m.Holder].Initiator.Name, " ", m.Registrations[1].Key) != "3 true 3 1 c 2" {
		t.Errorf("%+v, %v", m, err)
	}
	if m, conflict := Merge(two, m); !conflict || m.Registrations[m.Holder].Initiator.Name != "c" || len(m.Registrations) != 3 {
		t.Errorf("%+v, conflict %v", m, conflict)
	}
}
