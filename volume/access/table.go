package access

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// Event is what a subscriber is told; they are bits.
type Event uint32

// The events.
const (
	ReservationsPreempted  Event = 1 << iota // somebody has cleared registrations and reservation
	ReservationsReleased                     // a reservation that others than its holder had access through is gone
	RegistrationsPreempted                   // the subscriber's own registration is gone
	AccessChanged                            // the access state of a group
	ModesChanged                             // the mode parameters
)

// Subscriber is a session with a volume. Deny and Tell are called with the table's lock held: they
// must not block, nor call the table.
type Subscriber interface {
	Holder() Holder
	// Session is what a RESERVE belongs to; hosts of NVMe, which have no RESERVE: the host. Who has it in common is not
	// told of its changes. It can be compared.
	Session() any
	// Deny says which of the denials in mask are in force from now on.
	Deny(mask, denied Denial)
	Tell(Event)
	// Abort aborts all that is under way, and calls done when it is over, perhaps before Abort returns. The table is not
	// locked.
	Abort(done func())
}

// Table is who may do what with one volume. Its methods may be called from any goroutine.
type Table struct {
	keep      func(State) error // nil: nothing outlives a loss of power
	agreement Agreement         // nil: this process alone has the state; constant after Share
	modes     atomic.Uint32     // of state

	mu          sync.Mutex // taken before the locks of subscribers, which it never takes
	state       State      // guarded by mu
	changes     uint64     // Common.Changes of what Adopt took last; guarded by mu
	reserved    *Reserved  // by RESERVE; nil: it is not; guarded by mu
	conditions  Denial     // of the volume, for everybody; guarded by mu
	served      GroupState // of all groups here, unless it is active/optimized; guarded by mu
	elsewhere   []Group    // through which other processes show the volume; guarded by mu
	subscribers []Subscriber
	saving      bool      // a change waits until it is kept, and others for it; guarded by mu
	waiting     []*Change // guarded by mu
}

// Reserved is what one RESERVE has made.
type Reserved struct {
	session any
	over    bool      // lost, or taken back; guarded by Table.mu
	former  *Reserved // of one that was taken back: the RESERVE of its session that it had replaced; guarded by Table.mu
}

// of reports whether session has done the RESERVE. There may be none.
func (r *Reserved) of(session any) bool { return r != nil && r.session == session }

// NewTable returns a table in that state. keep, if set, keeps what State.Kept returns, durably. Its
// calls do not overlap.
func NewTable(state State, keep func(State) error) *Table { return &Table{state: state, keep: keep} }

// Keeps reports whether reservations can outlive a loss of power.
func (t *Table) Keeps() bool { return t.keep != nil || t.agreement != nil }

// Subscribe adds a subscriber, and tells it what it may not do.
func (t *Table) Subscribe(s Subscriber) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.subscribers = append(t.subscribers, s)
	t.deny(s)
}

// Unsubscribe takes it away.
func (t *Table) Unsubscribe(s Subscriber) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.subscribers, s); i >= 0 {
		last := len(t.subscribers) - 1
		t.subscribers[i], t.subscribers[last] = t.subscribers[last], nil
		t.subscribers = t.subscribers[:last]
	}
	same := func(o Subscriber) bool { return o.Session() == s.Session() }
	if t.reserved.of(s.Session()) && !slices.ContainsFunc(t.subscribers, same) { // by a command that was still waiting when the session was lost
		t.reserved = nil
		t.publish()
	}
}

// State returns the state in force.
func (t *Table) State() State {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state
}

// Modes are the State.Modes in force.
func (t *Table) Modes() uint32 { return t.modes.Load() }

// Group returns the state of a group, which may be another process's.
func (t *Table) Group(id uint16) Group {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.IndexFunc(t.elsewhere, func(g Group) bool { return g.ID == id }); i >= 0 {
		return t.elsewhere[i]
	}
	return t.own(id)
}

// OwnGroup returns the state of a group of this process. A group of another process may have the same number, and says nothing of the paths through this one.
func (t *Table) OwnGroup(id uint16) Group {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.own(id)
}

// own is OwnGroup. mu is held.
func (t *Table) own(id uint16) Group {
	g := t.state.group(id)
	if t.served != ActiveOptimized {
		g.State, g.Cause = t.served, ByTarget
	}
	return g
}

// Chosen returns the state that somebody has chosen for a group. It holds while this process serves the volume.
func (t *Table) Chosen(id uint16) Group {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state.group(id)
}

// Serve says in which state all groups of this process are, because it serves the volume or another process does.
// Active/optimized: in the one that was set for each. elsewhere are groups of other processes, which are only told of.
// Everybody is told of a change, and a RESERVE ends when this process stops to serve.
func (t *Table) Serve(s GroupState, elsewhere []Group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s == t.served && slices.Equal(elsewhere, t.elsewhere) {
		return
	}
	t.served, t.elsewhere = s, slices.Clone(elsewhere)
	t.conditions = t.conditions&^OfGroups | s.denies()
	if s != ActiveOptimized {
		t.reserved = nil
	}
	t.publish()
	for _, x := range t.subscribers {
		x.Tell(AccessChanged)
	}
}

// SetCondition says which conditions in mask the volume is in.
func (t *Table) SetCondition(mask, conditions Denial) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conditions = t.conditions&^mask | conditions
	t.publish()
}

// Reserved returns the RESERVE of a session, or of any, with nil. nil: there is none.
func (t *Table) Reserved(session any) *Reserved {
	t.mu.Lock()
	defer t.mu.Unlock()
	if session != nil && !t.reserved.of(session) {
		return nil
	}
	return t.reserved
}

// Lose ends a RESERVE, unless it has ended, or been done again. What was there before a RESERVE that was taken back ends with it.
func (t *Table) Lose(r *Reserved) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ; r != nil; r = r.former {
		r.over = true
		if t.reserved == r {
			t.reserved = nil
			t.publish()
		}
	}
}

// TakeBack undoes the RESERVE that c is, of which its session is not told. If the session had done one before, and not lost it, that stands.
func (t *Table) TakeBack(c *Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := c.reserved
	if r == nil || r.over {
		return
	}
	r.over, r.former = true, c.replaced
	if t.reserved != r {
		return // it was done again
	}
	for t.reserved = r; t.reserved != nil && t.reserved.over; t.reserved = t.reserved.former {
	}
	t.publish()
}

// deny tells s what it may not do. mu is held.
func (t *Table) deny(s Subscriber) {
	d := t.state.denies(s.Holder())
	if t.reserved != nil {
		d &^= ofReservations
		if !t.reserved.of(s.Session()) {
			d |= ofReservations
		}
	}
	s.Deny(Free-1, d|t.conditions)
}

// publish tells everybody. mu is held.
func (t *Table) publish() {
	t.modes.Store(t.state.Modes)
	for _, s := range t.subscribers {
		t.deny(s)
	}
}

// SetGroup sets the state of a group, by ByTarget, and returns when it is kept. Everybody is told if that is a change. If it cannot be kept,
// it holds nevertheless until the volume is closed.
func (t *Table) SetGroup(g Group) error {
	if !g.State.Valid() {
		return fmt.Errorf("there is no %v", g.State)
	}
	g.Cause = ByTarget
	c := &Change{Op: SetGroups, Groups: []Group{g}}
	over := make(chan struct{})
	if !t.Do(c, func() { close(over) }) {
		<-over
	}
	if c.Result == NotKept {
		return fmt.Errorf("the access state holds until the target stops, but cannot be kept longer: %w", c.Err)
	}
	return nil
}

// Do does a change, and reports whether it is over. If not, done is called when it is: when it is
// kept, and what it aborts has ended. Changes take effect one after the other, each when it is kept.
// One that cannot be kept has no effect, except SetGroups.
func (t *Table) Do(c *Change, done func()) bool {
	c.done = done
	if c.Op == Look {
		return t.look(c)
	}
	t.mu.Lock()
	if t.saving {
		t.waiting = append(t.waiting, c)
		t.mu.Unlock()
		return false
	}
	if !t.isShared(c) {
		c.apply(t)
		if !t.mustKeep(c) {
			t.commit(c)
			t.mu.Unlock()
			return c.abortOthers()
		}
	}
	t.saving = true
	t.mu.Unlock()
	go t.save(c)
	return false
}

// mustKeep reports whether what c changes is to outlive a loss of power. mu is held.
func (t *Table) mustKeep(c *Change) bool {
	return c.changed && t.keep != nil && (t.state.Persist || c.next.Persist || c.Op == SetGroups)
}

// save keeps a change, or has others agree to it, and then those that wait behind it.
func (t *Table) save(c *Change) {
	for c != nil {
		nobody := false // agrees to anything
		if t.isShared(c) {
			nobody = !t.agree(c)
			t.mu.Lock()
		} else {
			err := t.keep(c.next.Kept())
			t.mu.Lock()
			if err != nil {
				c.Result, c.Err = NotKept, err
			}
			if err == nil || c.Op == SetGroups { // paths fail over, whether or not a disk is full
				t.commit(c)
			}
		}
		over := []*Change{c}
		for c = nil; c == nil && len(t.waiting) > 0; {
			next := t.waiting[0]
			t.waiting = t.waiting[1:]
			if t.isShared(next) {
				if nobody { // else the last one would wait for the patience of all before it
					next.Result, next.Err = NotNow, over[0].Err
					over = append(over, next)
				} else {
					c = next
				}
				continue
			}
			next.apply(t)
			if t.mustKeep(next) {
				c = next
				continue
			}
			t.commit(next)
			over = append(over, next)
		}
		t.saving = c != nil
		t.mu.Unlock()
		for _, o := range over {
			if o.abortOthers() {
				o.done()
			}
		}
	}
}

// commit has a change take effect. mu is held.
func (t *Table) commit(c *Change) {
	if !c.changed {
		return
	}
	t.state = c.next
	if c.Op == ReserveUnit {
		c.replaced = t.reserved // by the same session
		c.reserved = &Reserved{session: c.By.Session()}
		t.reserved = c.reserved
	}
	t.publish()
	for _, n := range c.notices {
		for _, s := range t.subscribers {
			if (c.By == nil || s.Session() != c.By.Session()) && n.concerns(s.Holder()) {
				s.Tell(n.event)
			}
		}
	}
	if len(c.aborts) == 0 {
		return
	}
	for _, s := range t.subscribers {
		if s != c.By && slices.ContainsFunc(c.aborts, func(r Registration) bool { return r.Of(s.Holder()) }) {
			c.aborted = append(c.aborted, s)
		}
	}
}

// abortOthers aborts what the change aborts, and reports whether all of it is over.
func (c *Change) abortOthers() bool {
	if len(c.aborted) == 0 {
		return true
	}
	var left atomic.Int64
	left.Store(int64(len(c.aborted)) + 1)
	for _, s := range c.aborted {
		s.Abort(func() {
			if left.Add(-1) == 0 {
				c.done()
			}
		})
	}
	return left.Add(-1) == 0
}

// notice is an event for those who are registered in a list; nil: for all.
type notice struct {
	event Event
	list  []Registration
	all   bool
}

func (n *notice) concerns(h Holder) bool {
	return n.all || slices.ContainsFunc(n.list, func(r Registration) bool { return r.Of(h) })
}
