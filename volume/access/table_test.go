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

// newHost is a controller of a host of NVMe.
func newHost(t *Table, id byte, group uint16) *session {
	s := &session{holder: Holder{Host([16]byte{id}), Port{"nqn.s", group}}}
	t.Subscribe(s)
	return s
}

// A host of NVMe registers once for all of its controllers, whatever their ports; a port of SCSI is another holder, though it is in the same table.
func TestHosts(t *testing.T) {
	table := NewTable(Nothing(), func(State) error { return nil })
	a, again, b, port := newHost(table, 1, 1), newHost(table, 1, 2), newHost(table, 2, 1), newSession(table, "a", 1)
	every := []PortOf{{}}
	const keep, drop, leave = 1, 2, 3
	for i, x := range []struct {
		c       Change
		persist int
		want    Result
		after   string // generation, whether it persists, keys, kind, holder
	}{
		{Change{Op: RegisterHost, By: a, Key: 99, NewKey: 1}, leave, Done, "1 false [1] 0 -1"},
		{Change{Op: RegisterHost, By: again, NewKey: 1}, leave, Done, "2 false [1] 0 -1"},
		{Change{Op: RegisterHost, By: again, Key: 1, NewKey: 2}, leave, Conflict, "2 false [1] 0 -1"},
		{Change{Op: ReplaceKey, By: again, Key: 2, NewKey: 3}, leave, Conflict, "2 false [1] 0 -1"},
		{Change{Op: ReplaceKey, By: again, Key: 1, NewKey: 3}, keep, Done, "3 true [3] 0 -1"},
		{Change{Op: ReplaceKey, By: b, IgnoreKey: true, NewKey: 3}, leave, Conflict, "3 true [3] 0 -1"},
		{Change{Op: ReplaceKey, By: a, IgnoreKey: true, NewKey: 4}, leave, Done, "4 true [4] 0 -1"},
		{Change{Op: RegisterHost, By: b, NewKey: 5}, drop, Done, "5 false [4 5] 0 -1"},
		{Change{Op: Register, By: port, NewKey: 6}, drop, Done, "6 false [4 5 6] 0 -1"},
		{Change{Op: Reserve, By: a, Key: 4, Kind: WriteExclusive}, leave, Done, "6 false [4 5 6] 1 0"},
		{Change{Op: Preempt, By: b, Key: 5, ZeroIsOwn: true, Kind: ExclusiveAccess}, leave, NoKey, "6 false [4 5 6] 1 0"},
		{Change{Op: Preempt, By: again, Key: 4, Kind: ExclusiveAccess}, leave, NoKey, "6 false [4 5 6] 1 0"},
		{Change{Op: Preempt, By: again, Key: 4, ZeroIsOwn: true, Kind: ExclusiveAccess}, leave, Done, "7 false [4 5 6] 3 0"},
		{Change{Op: SetPersist, By: b}, keep, Done, "7 true [4 5 6] 3 0"},
		{Change{Op: SetPersist, By: b}, drop, Done, "7 false [4 5 6] 3 0"},
		{Change{Op: ReplaceKey, By: again, Key: 4}, leave, Done, "8 false [5 6] 0 -1"},
		{Change{Op: ReplaceKey, By: b, Key: 6}, leave, Conflict, "8 false [5 6] 0 -1"},
		{Change{Op: ReplaceKey, By: b, IgnoreKey: true}, leave, Done, "9 false [6] 0 -1"},
	} {
		c, over := x.c, make(chan struct{})
		c.Ports, c.Persist, c.LeavePersist = every, x.persist == keep, x.persist == leave
		if c.By == port {
			c.Ports = []PortOf{{port.holder.Port, 1}}
		}
		if !table.Do(&c, func() { close(over) }) {
			<-over
		}
		s := table.State()
		var keys []uint64
		for _, r := range s.Registrations {
			keys = append(keys, r.Key)
		}
		if got := fmt.Sprint(s.Generation, s.Persist, keys, s.Kind, s.Holder); c.Result != x.want || got != x.after {
			t.Errorf("%d, %+v: %d and %s, want %d and %s", i, x.c, c.Result, got, x.want, x.after)
		}
	}
	table = NewTable(Nothing(), nil)
	a = newHost(table, 1, 1)
	for _, op := range []Op{RegisterHost, SetPersist} {
		must(t, table, &Change{Op: op, By: a, NewKey: 1, Persist: true, Ports: every}, CannotKeep)
	}
	full := Nothing()
	full.Registrations = make([]Registration, MaxRegistrations)
	table = NewTable(full, nil)
	must(t, table, &Change{Op: RegisterHost, By: newHost(table, 1, 1), NewKey: 1, Ports: every}, Full)
}

// Changing the kind of one's own reservation tells those who had access through it.
func TestOwnKindChanges(t *testing.T) {
	table := NewTable(Nothing(), nil)
	a, again, b := newHost(table, 1, 1), newHost(table, 1, 2), newHost(table, 2, 1)
	for i, s := range []*session{a, b} {
		must(t, table, &Change{Op: RegisterHost, By: s, NewKey: uint64(i + 1), Ports: []PortOf{{}}}, Done)
	}
	must(t, table, &Change{Op: Reserve, By: a, Key: 1, Kind: WriteExclusiveRegistrants}, Done)
	must(t, table, &Change{Op: Preempt, By: a, Key: 1, ZeroIsOwn: true, Kind: WriteExclusiveRegistrants}, Done)
	if b.told != 0 || b.denied != 0 {
		t.Errorf("told %x, denied %x", b.told, b.denied)
	}
	must(t, table, &Change{Op: Preempt, By: a, Key: 1, ZeroIsOwn: true, Kind: WriteExclusive}, Done)
	if b.told != ReservationsReleased || b.denied != Writes || again.denied != 0 {
		t.Errorf("told %x, denied %x and %x", b.told, b.denied, again.denied)
	}
}

func TestHostID(t *testing.T) {
	id := [16]byte{0xab, 15: 1}
	if got, ok := Host(id).HostID(); !ok || got != id || Host(id).Name != "ab000000000000000000000000000001" {
		t.Errorf("%x %v", got, ok)
	}
	for _, i := range []Initiator{{ISCSI, Host(id).Name, ""}, {NVMe, "ab", ""}, {NVMe, Host(id).Name + "00", ""}, {NVMe, "xy000000000000000000000000000001", ""}} {
		if _, ok := i.HostID(); ok {
			t.Errorf("%+v has a host identifier", i)
		}
	}
}

// Mode parameters that are not what they were are told of whatever the change was: a process of a former version does not know that there are
// any, and drops them when it has a host register.
func TestModesDropped(t *testing.T) {
	table := NewTable(Nothing(), nil)
	a := newSession(table, "a", 1)
	with := Nothing()
	with.Modes = 2
	for i, s := range []State{with, Nothing()} {
		a.told = 0
		table.Adopt(&Common{Changes: uint64(i) + 1, State: s, By: Holder{Initiator: Initiator{ISCSI, "b", "400000000001"}}}, true)
		if a.told != ModesChanged || table.Modes() != s.Modes {
			t.Errorf("modes %d: the session is told %#x, and they are %d", s.Modes, a.told, table.Modes())
		}
	}
}

// A host of NVMe comes to each node by another port, and is one host: what it has done through one node it is not told through another, and what it sends
// again there, because the answer was lost with the first one, is not done twice.
func TestHostOnOtherNode(t *testing.T) {
	nodes := [2]*Table{NewTable(Nothing(), nil), NewTable(Nothing(), nil)}
	var own, other [2]*session
	for i, n := range nodes {
		own[i], other[i] = newHost(n, 1, uint16(i+1)), newHost(n, 2, uint16(i+1))
	}
	n := Common{State: Nothing()}
	do := func(c *Change, through int, repeated bool) (changes, again bool) {
		t.Helper()
		c.Ports = []PortOf{{}}
		changes, again = nodes[through].Amend(c, &n, repeated)
		if c.Result != Done {
			t.Fatalf("%+v: result %d", c, c.Result)
		}
		for _, node := range nodes {
			node.Adopt(&n, true)
		}
		return changes, again
	}
	for i, s := range []*session{own[0], other[0]} {
		do(&Change{Op: RegisterHost, By: s, NewKey: uint64(i + 1)}, 0, false)
	}
	do(&Change{Op: Clear, By: own[0], Key: 1}, 0, false)
	for i := range nodes {
		if own[i].told != 0 || other[i].told != ReservationsPreempted {
			t.Errorf("on node %d who has done it is told %#x, and the other %#x", i, own[i].told, other[i].told)
		}
	}
	if changes, again := do(&Change{Op: Clear, By: own[1], Key: 1}, 1, true); changes || !again {
		t.Errorf("what it sends again changes: %t, and is the same one: %t", changes, again)
	}
	c := &Change{Op: Clear, By: other[1], Key: 1, Ports: []PortOf{{}}}
	if changes, again := nodes[1].Amend(c, &n, true); changes || again || c.Result != Conflict {
		t.Errorf("of another host it changes: %t, and is the same one: %t, result %d", changes, again, c.Result)
	}
}
