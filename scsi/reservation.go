package scsi

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Reservations of a logical unit: persistent ones (SPC-4 §5.13), and those of RESERVE and
// RELEASE (SPC-2 §5.5).
//
// What a nexus may not do because of them stands in its itl, where each command looks with
// one atomic load; it is computed anew at every change.

// denial says what the reservations keep a nexus from. A command says in its row which of
// them matter to it.
const (
	denyReads  uint32 = 1 << iota // commands that look at the medium
	denyWrites                    // commands that change it
	denyMost                      // all but the few that RESERVE of another initiator allows

	// Bits above are conditions of the logical unit (condition.go).
	denyFirstCondition
)

// reservationType is the type of a persistent reservation (SPC-4 table 73).
type reservationType uint8

const (
	writeExclusive             reservationType = 1
	exclusiveAccess            reservationType = 3
	writeExclusiveRegistrants  reservationType = 5
	exclusiveAccessRegistrants reservationType = 6
	writeExclusiveAll          reservationType = 7
	exclusiveAccessAll         reservationType = 8
)

func (k reservationType) valid() bool {
	return k == writeExclusive || k == exclusiveAccess || k >= writeExclusiveRegistrants && k <= exclusiveAccessAll
}

// registrants: every registered nexus has access. all: and holds the reservation.
func (k reservationType) registrants() bool { return k >= writeExclusiveRegistrants }
func (k reservationType) all() bool         { return k >= writeExclusiveAll }

// exclusive: reading is for those who have access, too.
func (k reservationType) exclusive() bool {
	return k == exclusiveAccess || k == exclusiveAccessRegistrants || k == exclusiveAccessAll
}

// registrant is a registered I_T nexus. It outlives the session.
type registrant struct {
	Initiator string // SCSI initiator port name, or a device name, which stands for all of its ports
	Target    string // SCSI target port name
	Port      uint16 // relative target port identifier
	Key       uint64
}

// is reports whether n is the nexus that is registered.
func (r *registrant) is(n *Nexus) bool {
	return r.Target == n.port.name && (r.Initiator == n.initiatorPort ||
		strings.HasPrefix(n.initiatorPort, r.Initiator) && strings.HasPrefix(n.initiatorPort[len(r.Initiator):], ",i,"))
}

// reservations is the state of a logical unit.
type reservations struct {
	lu *LogicalUnit

	mu         sync.Mutex // taken before LogicalUnit.mu; guards the conditions of the logical unit too
	generation uint32
	persist    bool // APTPL of the last registration
	list       []*registrant
	kind       reservationType // 0: there is no persistent reservation
	holder     *registrant     // nil if kind.all() or there is none
	legacy     *Nexus          // has done RESERVE

	store   ReservationStore // nil: nothing outlives a power loss
	saving  sync.Mutex       // held while the store is written, so that the newest state ends there
	version uint64           // of the state, guarded by mu
	saved   uint64           // version that the store has, guarded by saving
}

// ReservationStore keeps the persistent reservations of a logical unit over restarts, for
// initiators that ask for it (APTPL), access states of target port groups, and a sanitize
// operation that is to be ended. Save replaces what is there atomically and durably; an
// empty state removes it. Calls of one logical unit do not overlap.
type ReservationStore interface {
	Load() (state []byte, err error)
	Save(state []byte) error
}

// savedReservations is the form in which they are kept.
type savedReservations struct {
	Format      int // 1
	Generation  uint32
	Type        reservationType `json:",omitempty"`
	Holder      int             // index in Registrants; -1: none
	Registrants []registrant
	Volatile    bool           `json:",omitempty"` // there is no APTPL: only what follows is kept
	Access      []savedAccess  `json:",omitempty"` // by group
	Sanitize    *sanitizeOrder `json:",omitempty"` // is under way, or has failed
}

// load restores what was kept. It returns the sanitize operation to go on with, or nil.
func (r *reservations) load(s ReservationStore) (*sanitizeOrder, error) {
	r.store = s
	if s == nil {
		return nil, nil
	}
	state, err := s.Load()
	if err != nil || len(state) == 0 {
		return nil, err
	}
	kept := savedReservations{Holder: -1}
	if err := json.Unmarshal(state, &kept); err != nil {
		return nil, fmt.Errorf("scsi: persistent reservations: %w", err)
	}
	bad := kept.Format != 1 || kept.Type != 0 && !kept.Type.valid() || kept.Holder >= len(kept.Registrants) ||
		kept.Type != 0 && (!kept.Type.all() && kept.Holder < 0 || len(kept.Registrants) == 0)
	if bad {
		return nil, fmt.Errorf("scsi: persistent reservations: format %d, type %d, holder %d of %d make no sense",
			kept.Format, kept.Type, kept.Holder, len(kept.Registrants))
	}
	if o := kept.Sanitize; o != nil && !o.valid(int(r.lu.blockSize)) {
		return nil, fmt.Errorf("scsi: the sanitize operation that was kept makes no sense: action %d, %d passes of %d bytes", o.Action, o.Count, len(o.Pattern))
	}
	r.generation, r.kind, r.persist = kept.Generation, kept.Type, !kept.Volatile
	for i := range kept.Registrants {
		r.list = append(r.list, &kept.Registrants[i])
	}
	if kept.Holder >= 0 && !r.kind.all() && r.kind != 0 {
		r.holder = r.list[kept.Holder]
	}
	return kept.Sanitize, r.lu.alua.restore(kept.Access)
}

// state is what is to be kept; nil: nothing. mu is held.
func (r *reservations) state() []byte {
	kept := savedReservations{Format: 1, Holder: -1, Volatile: !r.persist, Access: r.lu.alua.keep(), Sanitize: r.lu.sanitizer.keep()}
	if kept.Volatile && kept.Access == nil && kept.Sanitize == nil {
		return nil
	}
	if r.persist {
		kept.Generation, kept.Type, kept.Holder = r.generation, r.kind, slices.Index(r.list, r.holder)
		for _, x := range r.list {
			kept.Registrants = append(kept.Registrants, *x)
		}
	}
	b, err := json.Marshal(kept)
	if err != nil {
		panic(err) // numbers and strings
	}
	return b
}

// save brings the store up to date, and reports what went wrong.
func (r *reservations) save() error {
	r.saving.Lock()
	defer r.saving.Unlock()
	r.mu.Lock()
	state, version := r.state(), r.version
	r.mu.Unlock()
	if version == r.saved {
		return nil // by somebody who came later
	}
	if err := r.store.Save(state); err != nil {
		return err
	}
	r.saved = version
	return nil
}

// find returns the registration of n, or nil. mu is held.
func (r *reservations) find(n *Nexus) *registrant {
	for _, x := range r.list {
		if x.is(n) {
			return x
		}
	}
	return nil
}

// held reports whether x holds the reservation there is. mu is held.
func (r *reservations) held(x *registrant) bool {
	return x != nil && r.kind != 0 && (r.kind.all() || r.holder == x)
}

// denies computes what n may not do. mu is held.
func (r *reservations) denies(n *Nexus) uint32 {
	if r.legacy != nil {
		if r.legacy == n {
			return 0
		}
		return denyReads | denyWrites | denyMost
	}
	x := r.find(n)
	switch {
	case r.kind == 0, r.held(x), x != nil && r.kind.registrants():
		return 0
	case r.kind.exclusive():
		return denyReads | denyWrites
	}
	return denyWrites
}

// changed publishes a change to all nexuses. mu is held.
func (r *reservations) changed() {
	r.version++
	r.lu.publish()
}

// tell raises ua for the nexuses of all registrants of list but the one of except. mu is held.
func (r *reservations) tell(ua uint32, list []*registrant, except *Nexus) {
	r.lu.mu.Lock()
	defer r.lu.mu.Unlock()
	for _, i := range r.lu.itls {
		if i.nexus != except && slices.ContainsFunc(list, func(x *registrant) bool { return x.is(i.nexus) }) {
			i.ua.Or(ua)
		}
	}
}

// release ends the persistent reservation. mu is held.
func (r *reservations) release() { r.kind, r.holder = 0, nil }

// remove takes registrants away, and the reservation with its last holder. n, which may be
// nil, is who does it. mu is held.
func (r *reservations) remove(n *Nexus, gone func(*registrant) bool) (removed []*registrant) {
	var left []*registrant
	for _, x := range r.list {
		if gone(x) {
			removed = append(removed, x)
		} else {
			left = append(left, x)
		}
	}
	r.list = left
	if r.kind == 0 || r.kind.all() && len(left) > 0 || !r.kind.all() && !slices.Contains(removed, r.holder) {
		return removed
	}
	if r.kind.registrants() { // SPC-4 §5.13.11.2.3
		r.tell(uaReservationsReleased, left, n)
	}
	r.release()
	return removed
}

// dropLegacy ends the reservation of RESERVE if n has it; nil: whoever has it.
func (r *reservations) dropLegacy(n *Nexus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.legacy != nil && (n == nil || r.legacy == n) {
		r.legacy = nil
		r.changed()
	}
}

// conflict ends the command with RESERVATION CONFLICT.
func (t *Task) conflict() Next {
	t.Status = ReservationConflict
	t.In = nil
	return Done
}

// ---- RESERVE and RELEASE (SPC-2 §7.20 to §7.24) ----

// reserve is RESERVE(6) and (10) of a whole logical unit; extents and third parties are not
// supported, as SPC-2 allows.
func (t *Task) reserve() Next {
	if t.CDB[1]&t.cmd.Usage[1] != 0 {
		return t.check(invalidField(1))
	}
	r := &t.lu.reservations
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) > 0 { // SPC-4 §5.13.3: without CRH
		return t.conflict()
	}
	if r.legacy != t.Nexus { // nobody's: begin has looked
		if r.legacy != nil {
			return t.conflict()
		}
		r.legacy = t.Nexus
		r.changed()
	}
	return t.good()
}

// releaseUnit is RELEASE(6) and (10). Who has not reserved releases nothing.
func (t *Task) releaseUnit() Next {
	if t.CDB[1]&t.cmd.Usage[1] != 0 {
		return t.check(invalidField(1))
	}
	r := &t.lu.reservations
	r.mu.Lock()
	persistent := len(r.list) > 0
	r.mu.Unlock()
	if persistent {
		return t.conflict()
	}
	r.dropLegacy(t.Nexus)
	return t.good()
}
