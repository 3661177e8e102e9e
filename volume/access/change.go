package access

import "slices"

// Op is what a change does.
type Op uint8

// The changes. The first eight are numbered as the service actions of PERSISTENT RESERVE OUT.
const (
	Register Op = iota
	Reserve
	Release
	Clear
	Preempt
	PreemptAndAbort
	RegisterAndIgnore
	RegisterAndMove
	ReserveUnit // RESERVE(6) and (10), until the session ends
	ReleaseUnit
	SetGroups
	RegisterHost // by a host of NVMe: anew, or the key that it has
	ReplaceKey   // by a host of NVMe that is registered; no new key: its registration ends
	SetPersist   // changes nothing else
	Look         // changes nothing: State is what is in force
	SetModes     // of a shared table: nothing else
)

// Result is how a change has ended.
type Result uint8

// The results.
const (
	Done         Result = iota
	Conflict            // the reservation of somebody else, or a wrong key
	WrongRelease        // of another reservation than there is
	NoKey               // the key is missing
	CannotKeep          // nothing outlives a loss of power here
	BadOthers           // this change cannot register others
	BadList             // the list of others cannot be parsed (Change.Bad)
	BadPort             // there is no such target port
	BadRequest          // Change.Malformed
	Full                // of registrations
	NotKept             // Err says why
	NotNow              // nobody agrees to it at present: Err says why
)

// MaxRegistrations bounds those of a volume, which outlive their sessions: those of a large
// cluster, on every path.
const MaxRegistrations = 4096

// Change is a change of who may do what, by one subscriber.
type Change struct {
	Op Op
	By Subscriber // nil: the target itself

	Key    uint64 // that the subscriber is registered with
	NewKey uint64 // what is to be registered, or whose registration is to be preempted
	Kind   Kind
	Whole  bool // Release: of the whole unit, as every reservation is
	// Persist has reservations outlive a loss of power. With LeavePersist that stays as it is.
	Persist, LeavePersist bool
	IgnoreKey             bool // ReplaceKey: Key need not be that of the subscriber
	// ZeroIsOwn has a NewKey of 0 preempt nobody and change the kind, if the subscriber alone holds the reservation.
	ZeroIsOwn bool

	Ports    []PortOf    // Register: for these, that of the subscriber first
	Others   []Initiator // Register: these, too
	Besides  bool        // Register: others were given
	Bad      bool        // Register: the list of Others cannot be parsed; RegisterAndMove: To cannot
	To       Holder      // RegisterAndMove
	Relative uint16      // of To
	NoPort   bool        // RegisterAndMove: there is no such port
	Leave    bool        // RegisterAndMove: the subscriber's own registration ends
	// Malformed: the request cannot be parsed. Only those who are registered are told so.
	Malformed bool

	Groups []Group // SetGroups: these have changed
	Modes  uint32  // SetModes

	// Result is valid when the change is over.
	Result Result
	Err    error // NotKept, NotNow
	State  State // Look

	reserved *Reserved // what a RESERVE has made
	replaced *Reserved // the one that its session had done before; may be nil
	done     func()
	changed  bool
	next     State
	self     int // registration of the subscriber, or -1
	notices  []notice
	aborts   []Registration // whose commands are to be aborted
	aborted  []Subscriber
}

// PortOf is a target port with its relative identifier.
type PortOf struct {
	Port
	Relative uint16
}

// apply works out what the change comes to: Result, and next if anything changes. t.mu is held.
func (c *Change) apply(t *Table) { c.applyTo(t, t.state) }

// applyTo is apply to that state, of which it changes nothing. For changes that isShared reports it needs no lock.
func (c *Change) applyTo(t *Table, s State) {
	c.changed, c.notices, c.aborts = false, nil, nil
	c.next = s
	c.next.Registrations = slices.Clone(s.Registrations)
	c.self = -1
	if c.By != nil {
		c.self = c.next.find(c.By.Holder())
	}
	c.Result = c.run(t)
}

func (c *Change) run(t *Table) Result {
	switch c.Op {
	case SetGroups:
		return c.setGroups()
	case ReserveUnit, ReleaseUnit:
		return c.reserveUnit(t)
	case SetPersist:
		return c.setPersist(t)
	case SetModes:
		return c.setModes()
	}
	if c.Besides && (c.Op == RegisterAndIgnore || c.Op == Register && c.self >= 0) {
		return BadOthers
	}
	if c.Op <= RegisterAndMove && t.agreement == nil && t.reserved != nil {
		return Conflict // SPC-2 §5.5.1: whoever has done the RESERVE
	}
	if fits, registers := c.fits(); registers {
		if !fits {
			return Conflict
		}
		return c.register(t)
	}
	if c.self < 0 || c.own().Key != c.Key { // SPC-4 table 67
		return Conflict
	}
	switch c.Op {
	case RegisterAndMove:
		if c.Malformed {
			return BadRequest
		}
		return c.move(t)
	case Reserve:
		return c.reserve()
	case Release:
		return c.release()
	case Clear:
		return c.clear()
	}
	return c.preempt()
}

// own is the subscriber's registration.
func (c *Change) own() *Registration { return &c.next.Registrations[c.self] }

// fits reports, of a change that registers, whether the subscriber and its key are those that may.
func (c *Change) fits() (fits, registers bool) {
	registered := c.self >= 0
	switch c.Op {
	case Register:
		return !registered && c.Key == 0 || registered && c.Key == c.own().Key, true
	case RegisterAndIgnore:
		return true, true
	case RegisterHost:
		return !registered || c.NewKey == c.own().Key, true
	case ReplaceKey:
		return registered && (c.IgnoreKey || c.Key == c.own().Key), true
	}
	return false, false
}

// register is SPC-4 §5.13.7 and §5.13.11.2.3.
func (c *Change) register(t *Table) Result {
	registered := c.self >= 0
	switch {
	case c.Persist && !t.Keeps():
		return CannotKeep
	case !registered && c.NewKey == 0:
		return Done
	case c.Bad:
		return BadList
	case !registered && len(c.next.Registrations)+(1+len(c.Others))*len(c.Ports) > MaxRegistrations:
		return Full
	}
	c.changed = true
	if !c.LeavePersist {
		c.next.Persist = c.Persist
	}
	c.next.Generation++
	switch {
	case c.NewKey == 0:
		c.remove(c.ours())
	case registered:
		ours := c.ours()
		for i := range c.next.Registrations { // ours goes by the former key
			if r := &c.next.Registrations[i]; ours(i) {
				r.Key = c.NewKey
			}
		}
	default:
		for _, who := range append(slices.Clone(c.Others), c.By.Holder().Initiator) {
			for _, p := range c.Ports {
				c.add(Holder{who, p.Port}, p.Relative)
			}
		}
	}
	return Done
}

// ours tells the registrations that a registered subscriber changes or gives up: its own, and those of its
// initiator port with the same key on the other ports.
func (c *Change) ours() func(i int) bool {
	self, own := c.self, *c.own()
	list := slices.Clone(c.next.Registrations)
	return func(i int) bool {
		r := &list[i]
		return i == self || r.Initiator == own.Initiator && r.Key == own.Key &&
			slices.ContainsFunc(c.Ports, func(p PortOf) bool { return p.Port == r.Port })
	}
}

// add registers h with the new key, and returns its index.
func (c *Change) add(h Holder, relative uint16) int {
	i := slices.IndexFunc(c.next.Registrations, func(r Registration) bool { return r.Holder == h })
	if i >= 0 {
		c.next.Registrations[i].Key = c.NewKey
		return i
	}
	c.next.Registrations = append(c.next.Registrations, Registration{h, relative, c.NewKey})
	return len(c.next.Registrations) - 1
}

// remove takes registrations away, and the reservation with its last holder.
func (c *Change) remove(gone func(i int) bool) (removed []Registration) {
	s := &c.next
	var left []Registration
	holder, held := -1, false
	for i, r := range s.Registrations {
		switch {
		case gone(i):
			removed = append(removed, r)
			held = held || i == s.Holder
			continue
		case i == s.Holder:
			holder = len(left)
		}
		left = append(left, r)
	}
	s.Registrations, s.Holder = left, holder
	if s.Kind == 0 || s.Kind.All() && len(left) > 0 || !s.Kind.All() && !held {
		return removed
	}
	if s.Kind.registrants() { // SPC-4 §5.13.11.2.3
		c.tell(ReservationsReleased, left)
	}
	s.Kind, s.Holder = 0, -1
	return removed
}

func (c *Change) tell(e Event, list []Registration) {
	c.notices = append(c.notices, notice{event: e, list: slices.Clone(list)})
}

// reserve is SPC-4 §5.13.9.
func (c *Change) reserve() Result {
	switch {
	case c.next.Kind == 0:
		c.take()
	case !c.next.Held(c.self) || c.next.Kind != c.Kind:
		return Conflict
	}
	return Done
}

// take makes the subscriber the holder.
func (c *Change) take() {
	c.changed = true
	c.next.Kind, c.next.Holder = c.Kind, -1
	if !c.Kind.All() {
		c.next.Holder = c.self
	}
}

// release is SPC-4 §5.13.11.2.2.
func (c *Change) release() Result {
	s := &c.next
	switch {
	case !s.Held(c.self):
		return Done
	case c.Kind != s.Kind || !c.Whole:
		return WrongRelease
	}
	if s.Kind.registrants() {
		c.tell(ReservationsReleased, s.Registrations)
	}
	c.changed = true
	s.Kind, s.Holder = 0, -1
	return Done
}

// clear is SPC-4 §5.13.11.2.6.
func (c *Change) clear() Result {
	c.tell(ReservationsPreempted, c.next.Registrations)
	c.changed = true
	c.next.Registrations = nil
	c.next.Kind, c.next.Holder = 0, -1
	c.next.Generation++
	return Done
}

// preempt is SPC-4 §5.13.11.2.4 and .5.
func (c *Change) preempt() Result {
	s := &c.next
	old := s.Kind
	if c.ZeroIsOwn && c.NewKey == 0 && old != 0 && !old.All() && s.Holder == c.self {
		c.take()
		if old != c.Kind {
			c.tell(ReservationsReleased, s.Registrations)
		}
		s.Generation++
		return Done
	}
	takes := old != 0 && !old.All() && c.NewKey == s.Registrations[s.Holder].Key || old.All() && c.NewKey == 0
	if c.NewKey == 0 && !takes {
		return NoKey
	}
	self := c.self
	gone := func(i int) bool {
		return i != self && (s.Registrations[i].Key == c.NewKey || c.NewKey == 0)
	}
	any := false
	for i := range s.Registrations {
		any = any || gone(i)
	}
	if !takes && !any && c.own().Key != c.NewKey {
		return Conflict
	}
	if takes { // before its holder goes, so that it is not released
		c.take()
	}
	c.changed = true
	removed := c.remove(gone)
	c.tell(RegistrationsPreempted, removed)
	if takes && old != c.Kind {
		c.tell(ReservationsReleased, s.Registrations)
	}
	if c.Op == PreemptAndAbort {
		c.aborts = removed
	}
	s.Generation++
	return Done
}

// move is SPC-4 §5.13.8.
func (c *Change) move(t *Table) Result {
	s := &c.next
	switch {
	case s.Kind.All() || !s.Held(c.self):
		return Conflict
	case c.NewKey == 0:
		return NoKey
	case c.Persist && !t.Keeps():
		return CannotKeep
	case c.NoPort:
		return BadPort
	case c.Bad || c.To == c.own().Holder:
		return BadList
	case len(s.Registrations) >= MaxRegistrations:
		return Full
	}
	c.changed = true
	s.Persist = c.Persist
	s.Holder = c.add(c.To, c.Relative)
	if c.Leave {
		self := c.self
		c.remove(func(i int) bool { return i == self })
	}
	s.Generation++
	return Done
}

// reserveUnit is SPC-2 §5.5 of a whole logical unit.
func (c *Change) reserveUnit(t *Table) Result {
	if len(c.next.Registrations) > 0 { // SPC-4 §5.13.3: without CRH
		return Conflict
	}
	mine := t.reserved.of(c.By.Session())
	switch {
	case c.Op == ReleaseUnit:
		if mine { // who has not reserved releases nothing
			t.reserved = nil
			t.publish()
		}
	case t.reserved != nil && !mine:
		return Conflict
	default:
		c.changed = true
	}
	return Done
}

func (c *Change) setPersist(t *Table) Result {
	if c.Persist && !t.Keeps() {
		return CannotKeep
	}
	c.changed = c.Persist != c.next.Persist
	c.next.Persist = c.Persist
	return Done
}

func (c *Change) setModes() Result {
	if c.changed = c.next.Modes != c.Modes; c.changed {
		c.next.Modes = c.Modes
		c.notices = append(c.notices, notice{event: ModesChanged, all: true})
	}
	return Done
}

func (c *Change) setGroups() Result {
	c.next.Groups = slices.Clone(c.next.Groups)
	for _, g := range c.Groups {
		if c.By != nil { // which group is preferred is not the initiator's to say
			g.Preferred = c.next.group(g.ID).Preferred
		}
		if c.By == nil && c.next.group(g.ID).State == g.State && c.next.group(g.ID).Preferred == g.Preferred {
			continue
		}
		c.next.setGroup(g)
		c.changed = true
	}
	c.notices = append(c.notices, notice{event: AccessChanged, all: true})
	return Done
}
