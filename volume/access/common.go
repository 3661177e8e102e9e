package access

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"slices"
	"sync/atomic"
)

// Common is the state that the tables of several processes have in common, and what its last change tells everybody. It
// is a value that can be encoded.
type Common struct {
	Changes uint64 // so far
	State   State  // without groups of ports, which are each process's own

	By    Holder   // who has made the last change
	Sum   [16]byte // of what it asked for
	Event Event    // for those whom it concerns
	Abort bool     // what those had under way whose registrations it took away
}

// Agreement keeps the state of a volume the same for all processes that show it.
type Agreement interface {
	// Change replaces the newest state by what change makes of it, and returns when the outcome is in force: when the
	// process that serves the volume keeps to it, what it aborts has ended, and this process has adopted it. change may be
	// called several times; false: it changes nothing. repeated says that the answer to the last change may have been
	// lost, and again that this is the same one. It returns ErrNoRoom if the state is too large.
	Change(change func(n *Common, repeated bool) (changes, again bool)) error
	// Look returns what is in force.
	Look() (State, error)
}

// ErrNoRoom is the error of a state that is too large to be kept.
var ErrNoRoom = errors.New("there are too many registrations")

// Share has the reservations agreed on with other processes from now on. It is called before anybody subscribes, on a table
// that keeps nothing by itself. The agreement calls Adopt.
func (t *Table) Share(a Agreement) { t.agreement = a }

// Shared reports whether Share was called.
func (t *Table) Shared() bool { return t.agreement != nil }

// isShared reports whether others have to agree to a change.
func (t *Table) isShared(c *Change) bool { return t.agreement != nil && c.Op != SetGroups }

// look does a Look.
func (t *Table) look(c *Change) bool {
	if t.agreement == nil {
		c.State = t.State()
		return true
	}
	go func() {
		if c.State, c.Err = t.agreement.Look(); c.Err != nil {
			c.Result = NotNow
		}
		c.done()
	}()
	return false
}

// agree does a change that others have to agree to, and reports whether anybody has.
func (t *Table) agree(c *Change) bool {
	err := t.agreement.Change(func(n *Common, repeated bool) (changes, again bool) { return t.Amend(c, n, repeated) })
	switch {
	case errors.Is(err, ErrNoRoom):
		c.Result = Full
	case err != nil:
		c.Result, c.Err = NotNow, err
		return false
	}
	return true
}

// Amend has c take place in n, which is no table's yet, and sets its Result: it is the change of Agreement.Change. The table is one that is
// shared, and stays as it is. Amend takes no lock.
func (t *Table) Amend(c *Change, n *Common, repeated bool) (changes, again bool) {
	sum := c.sum()
	var by Holder // the target itself
	if c.By != nil {
		by = c.By.Holder()
	}
	if repeated && by.is(n.By) && n.Sum == sum { // it is not done twice
		c.Result = Done
		return false, true
	}
	c.applyTo(t, n.State)
	if !c.changed {
		return false, false
	}
	n.Changes++
	n.State, n.By, n.Sum, n.Event, n.Abort = c.next, by, sum, 0, len(c.aborts) != 0
	for _, x := range c.notices {
		n.Event |= x.event
	}
	return true, false
}

// sum is a digest of what the change asks for.
func (c *Change) sum() (sum [16]byte) {
	fields := []any{
		c.Op, c.Key, c.NewKey, c.Kind, c.Whole, c.Persist, c.LeavePersist, c.IgnoreKey, c.ZeroIsOwn, c.Ports, c.Others, c.Besides,
		c.To, c.Relative, c.Leave,
	}
	if c.Op == SetModes { // former versions have the others
		fields = append(fields, c.Modes)
	}
	text, err := json.Marshal(fields)
	if err != nil {
		panic(err) // numbers and strings
	}
	full := sha256.Sum256(text)
	copy(sum[:], full[:])
	return sum
}

// Adopt has a state take effect on which the processes have agreed, unless a newer one has. Of what happens now everybody is
// told, and abort, unless it is nil, ends what the change aborts, and calls over when it has. A change of the past, of which this
// process only learns now, concerns nobody who is here.
func (t *Table) Adopt(n *Common, now bool) (abort func(over func())) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n.Changes <= t.changes {
		return nil
	}
	old, next := t.state, n.State
	next.Groups = old.Groups
	if !now {
		t.state, t.changes = next, n.Changes
		t.publish()
		return nil
	}
	event, aborts := n.Event, n.Abort
	var removed []Registration
	for _, r := range old.Registrations {
		if !slices.ContainsFunc(next.Registrations, func(x Registration) bool { return x.Holder == r.Holder }) {
			removed = append(removed, r)
		}
	}
	if n.Changes != t.changes+1 { // what was jumped over may have told anything
		event, aborts = 0, len(removed) != 0
		if aborts {
			event |= RegistrationsPreempted
		}
		if old.Kind.registrants() && old.Kind != next.Kind {
			event |= ReservationsReleased
		}
	}
	if old.Modes != next.Modes { // a process of a former version does not know them, and drops them with its next change
		event |= ModesChanged
	}
	t.state, t.changes = next, n.Changes
	t.publish()
	for _, x := range []notice{
		{event: ReservationsPreempted, list: old.Registrations},
		{event: ReservationsReleased, list: next.Registrations},
		{event: RegistrationsPreempted, list: removed},
	} {
		for _, s := range t.subscribers {
			if event&x.event != 0 && !s.Holder().is(n.By) && x.concerns(s.Holder()) {
				s.Tell(x.event)
			}
		}
	}
	for _, s := range t.subscribers {
		if event&ModesChanged != 0 && !s.Holder().is(n.By) {
			s.Tell(ModesChanged)
		}
	}
	if !aborts {
		return nil
	}
	var whose []Subscriber
	for _, s := range t.subscribers {
		if !s.Holder().is(n.By) && slices.ContainsFunc(removed, func(r Registration) bool { return r.Of(s.Holder()) }) {
			whose = append(whose, s)
		}
	}
	return func(over func()) {
		var left atomic.Int64
		left.Store(int64(len(whose)) + 1)
		ended := func() {
			if left.Add(-1) == 0 {
				over()
			}
		}
		for _, s := range whose {
			s.Abort(ended)
		}
		ended()
	}
}
