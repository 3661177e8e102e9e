package reservations

import (
	"encoding/json"
	"fmt"
	"slices"

	"oneshot/ha/quorum"
	"oneshot/volume/access"
)

// Core decides what a node makes of the records of consensus, what it says there, and when a change is in force. It has no clock, goroutine
// or lock: one goroutine at a time owns it. Who owns it brings it the records in their order (Learn), has consensus do what Enter,
// Keep and Begin return, and calls these again whenever something may have changed.
type Core struct {
	set   string // of views, whose primary serves the volume
	self  life
	table *access.Table

	view    quorum.Set // the newest that this node has learned of
	newest  record
	current bool  // a majority has confirmed, in this life, that nothing newer was there
	broken  error // the record cannot be read
	kept    kept
	ending  map[uint64]bool // changes whose aborts are not over
	doubt   uint64          // the ticket of the newest change of this node that was not answered; 0: none
}

// record is the value of quorum.KindUnit, by the name of the set.
type record struct {
	Format int // 1
	access.Common

	// Of the last change: the view that its node knew, and a random number. Tickets are the numbers of each node's last one.
	Lineage, Term, Ticket uint64
	Tickets               map[string]uint64 `json:",omitempty"`

	// Warm processes have known the state without a gap since it began, or was kept over a loss of power. Cold ones have
	// begun since, and become warm when a warm one says so, or when they serve the volume: hosts rely on what they keep to.
	Warm, Cold []life `json:",omitempty"`
}

// life is a process.
type life struct {
	Node  string
	Nonce uint64
}

// kept is the value of quorum.KindUnit, by the name of the set and keptSuffix: what the primary keeps to.
type kept struct {
	Format  int // 1
	Changes uint64
}

const keptSuffix = " kept"

// NewCore returns what a process of a node knows that has learned nothing yet. nonce is a random number, not 0. The table is one that was
// shared, and has no subscribers.
func NewCore(t *access.Table, set, node string, nonce uint64) *Core {
	return &Core{
		set: set, self: life{node, nonce}, table: t, ending: map[uint64]bool{},
		newest: record{Format: 1, Common: access.Common{State: access.Nothing()}},
	}
}

// RecordKey is that of the state of a set.
func RecordKey(set string) quorum.Key { return quorum.Key{Kind: quorum.KindUnit, Name: set} }

// RecordKey is that of the state, and KeptKey that of the number of changes to which the primary keeps.
func (c *Core) RecordKey() quorum.Key { return RecordKey(c.set) }

// KeptKey is that of what the primary says.
func (c *Core) KeptKey() quorum.Key {
	return quorum.Key{Kind: quorum.KindUnit, Name: c.set + keptSuffix}
}

// Abort is what a change aborts here. Run ends it, and calls over when it has ended; then Aborted is to be called.
type Abort struct {
	Changes uint64
	Run     func(over func())
}

// Learn takes a record of consensus, and reports whether it is one of the set's. serves says whether this node serves the volume. abort is
// nil if there is nothing to abort.
func (c *Core) Learn(x *quorum.Record, serves bool) (abort *Abort, isOurs bool) {
	if x.Deleted {
		return nil, false
	}
	switch x.Key {
	case quorum.Key{Kind: quorum.KindSet, Name: c.set}:
		if s, err := quorum.DecodeSet(x.Value); err == nil {
			c.view = s
		}
	case c.KeptKey():
		var k kept
		if err := json.Unmarshal(x.Value, &k); err == nil && k.Format == 1 {
			c.kept = k
		}
	case c.RecordKey():
		abort = c.adopt(x.Value, serves)
	default:
		return nil, false
	}
	return abort, true
}

// adopt takes a state.
func (c *Core) adopt(value []byte, serves bool) *Abort {
	n, err := decode(value)
	if c.broken = err; err != nil {
		return nil
	}
	c.newest = n
	// Who serves has learned in this life that nothing newer was there, too, and may have commands that the change aborts.
	abort := c.table.Adopt(&n.Common, c.current || serves)
	if abort == nil {
		return nil
	}
	c.ending[n.Changes] = true
	return &Abort{n.Changes, abort}
}

// Aborted says that what a change aborts has ended.
func (c *Core) Aborted(changes uint64) { delete(c.ending, changes) }

// Confirmed says that a majority has confirmed, in this life, that nothing newer was there than what was learned.
func (c *Core) Confirmed() { c.current = true }

// Newest returns the newest state that this node has learned of, and its number. An error: it cannot be read.
func (c *Core) Newest() (s access.State, changes uint64, err error) {
	return c.newest.State, c.newest.Changes, c.broken
}

func decode(value []byte) (record, error) {
	n := record{Format: 1, Common: access.Common{State: access.Nothing()}}
	if value == nil {
		return n, nil
	}
	if err := json.Unmarshal(value, &n); err != nil {
		return n, fmt.Errorf("the record of reservations cannot be read: %w", err)
	}
	if n.Format != 1 {
		return n, fmt.Errorf("the record of reservations has format %d, which this version does not know: bring all nodes to the same version", n.Format)
	}
	return n, n.State.Check()
}

// First returns the value of the record of a volume that begins with a state which was kept before. Who begins first is the first to know it.
func First(s access.State) ([]byte, error) {
	return (&record{Format: 1, Common: access.Common{Changes: 1, State: s}}).encode()
}

func (n *record) encode() ([]byte, error) {
	b, err := json.Marshal(n)
	if err == nil && len(b) > quorum.MaxValue {
		err = access.ErrNoRoom
	}
	return b, err
}

// Enter returns a change of the state by which this process notes that it has begun, and as a warm one takes others in; nil: there is
// nothing to note. What is to end with a loss of power ends when all nodes have begun anew since it was noted that one of them knew it, unless
// one of these serves the volume by then. term is that in which this node serves it, 0: it does not.
func (c *Core) Enter(term uint64) func(old []byte) ([]byte, error) {
	warm, cold := slices.Contains(c.newest.Warm, c.self), slices.Contains(c.newest.Cold, c.self)
	serves := c.isPrimary(term)
	if c.broken != nil || warm && len(c.newest.Cold) == 0 || cold && !serves {
		return nil
	}
	return func(old []byte) ([]byte, error) { return c.self.enter(old, serves) }
}

// isPrimary reports whether this node serves the volume in the newest view that it knows; term is that in which it does, 0: it does not.
func (c *Core) isPrimary(term uint64) bool { return term != 0 && c.view.View.Term == term }

func (l life) enter(old []byte, serves bool) ([]byte, error) {
	n, err := decode(old)
	if err != nil {
		return nil, err
	}
	switch cold := slices.Contains(n.Cold, l); {
	case cold && !serves, len(n.Cold) == 0 && slices.Contains(n.Warm, l):
		return old, nil
	case cold, slices.Contains(n.Warm, l):
		n.Warm, n.Cold = append(n.Warm, n.Cold...), nil
	default:
		former := func(o life) bool { return o.Node == l.Node }
		n.Warm, n.Cold = slices.DeleteFunc(n.Warm, former), slices.DeleteFunc(n.Cold, former)
		n.Cold = append(n.Cold, l)
		if len(n.Warm) == 0 {
			n.Warm, n.Cold = n.Cold, nil
			n.losePower()
		}
	}
	return n.encode()
}

// losePower ends what ends with a loss of power of all nodes.
func (n *record) losePower() {
	var event access.Event
	s := n.State
	if s.Modes != 0 { // none is saved
		s.Modes, event = 0, access.ModesChanged
	}
	if !s.Persist {
		s, event = access.Nothing(), event|access.RegistrationsPreempted|access.ReservationsReleased
	}
	if event != 0 {
		n.Common = access.Common{Changes: n.Changes + 1, State: s, Event: event}
	}
}

// Keep returns a change of the record at KeptKey by which this node says what it keeps to, if it is the primary and nobody has said so; else
// nil. term is that in which it serves the volume, 0: it does not.
func (c *Core) Keep(term uint64) func(old []byte) ([]byte, error) {
	k := kept{1, c.newest.Changes}
	for n := range c.ending {
		k.Changes = min(k.Changes, n-1)
	}
	if c.kept.Changes >= k.Changes || !c.isPrimary(term) {
		return nil
	}
	return func(old []byte) ([]byte, error) {
		var was kept
		if old != nil && json.Unmarshal(old, &was) == nil && was.Changes >= k.Changes {
			return old, nil
		}
		return json.Marshal(k)
	}
}

// Holds reports whether the primary keeps to so many changes.
func (c *Core) Holds(changes uint64) bool { return c.kept.Changes >= changes }

// Pending is a change on its way. One of a node is begun when the one before has ended.
type Pending struct {
	c      *Core
	change func(n *access.Common, repeated bool) (changes, again bool)
	ticket uint64

	changes      uint64
	isNew, again bool
}

// Begin begins a change, which is one of access.Agreement. ticket is a random number, not 0. Consensus does Make; when it has, and Holds says
// so of Changes, the change is in force. However it ends, Ended is to be called.
func (c *Core) Begin(change func(n *access.Common, repeated bool) (changes, again bool), ticket uint64) *Pending {
	return &Pending{c: c, change: change, ticket: ticket}
}

// Make replaces the state. It may be called several times.
func (p *Pending) Make(old []byte) ([]byte, error) {
	c := p.c
	n, err := decode(old)
	if err != nil {
		return nil, err
	}
	p.changes = n.Changes
	if n.Tickets[c.self.Node] == p.ticket { // it has taken place, and the answer was lost
		return old, nil
	}
	v := &c.view
	repeated := n.Ticket != 0 && (n.Ticket == c.doubt || n.Term != v.View.Term || n.Lineage != v.Lineage)
	if p.isNew, p.again = p.change(&n.Common, repeated); !p.isNew {
		if old == nil {
			return n.encode()
		}
		return old, nil
	}
	p.changes = n.Changes
	if n.Tickets == nil {
		n.Tickets = map[string]uint64{}
	}
	if !slices.Contains(n.Warm, c.self) { // what it has changed must not end with those who are not there
		n.Warm, n.Cold = append(n.Warm, c.self), slices.DeleteFunc(n.Cold, func(l life) bool { return l == c.self })
	}
	n.Tickets[c.self.Node], n.Ticket, n.Lineage, n.Term = p.ticket, p.ticket, v.Lineage, v.View.Term
	return n.encode()
}

// Changes is the number of the state in which the change has taken place.
func (p *Pending) Changes() uint64 { return p.changes }

// Ended says whether the change was answered, or what has kept it from that.
func (p *Pending) Ended(err error) {
	switch { // else it is nothing new, and the change before has not been answered for that
	case err != nil && p.isNew:
		p.c.doubt = p.ticket
	case err == nil && p.again:
		p.c.doubt = 0
	}
}
