package access

import (
	"fmt"
	"slices"
)

// Kind is the kind of a reservation, numbered as in SPC-4 table 73; 0: there is none.
type Kind uint8

// The kinds of reservations.
const (
	WriteExclusive             Kind = 1
	ExclusiveAccess            Kind = 3
	WriteExclusiveRegistrants  Kind = 5
	ExclusiveAccessRegistrants Kind = 6
	WriteExclusiveAll          Kind = 7
	ExclusiveAccessAll         Kind = 8
)

// Valid reports whether there is such a kind.
func (k Kind) Valid() bool {
	return k == WriteExclusive || k == ExclusiveAccess || k >= WriteExclusiveRegistrants && k <= ExclusiveAccessAll
}

// registrants: everybody who is registered has access. All: and holds the reservation.
func (k Kind) registrants() bool { return k >= WriteExclusiveRegistrants }

// All reports whether everybody who is registered holds the reservation.
func (k Kind) All() bool { return k >= WriteExclusiveAll }

// exclusive: reading is for those who have access, too.
func (k Kind) exclusive() bool {
	return k == ExclusiveAccess || k == ExclusiveAccessRegistrants || k == ExclusiveAccessAll
}

// GroupState is the access state of a group of target ports, numbered as in SPC-4 §6.37.
type GroupState uint8

// Access states.
const (
	ActiveOptimized    GroupState = 0x0
	ActiveNonOptimized GroupState = 0x1
	Standby            GroupState = 0x2
	Unavailable        GroupState = 0x3
	Offline            GroupState = 0xe
	Transitioning      GroupState = 0xf
)

var stateNames = map[GroupState]string{
	ActiveOptimized: "active/optimized", ActiveNonOptimized: "active/non-optimized", Standby: "standby",
	Unavailable: "unavailable", Offline: "offline", Transitioning: "transitioning",
}

func (s GroupState) String() string {
	if name, ok := stateNames[s]; ok {
		return name
	}
	return fmt.Sprintf("access state %#x", uint8(s))
}

// Valid reports whether there is such a state.
func (s GroupState) Valid() bool { return stateNames[s] != "" }

// ParseGroupState returns the state of that name, which String gives it.
func ParseGroupState(name string) (GroupState, bool) {
	for s, n := range stateNames {
		if n == name {
			return s, true
		}
	}
	return 0, false
}

// Cause is what changed the state of a group last, numbered as in SPC-4 §6.37.
type Cause uint8

// What changes the states of groups.
const (
	ByNobody    Cause = iota // since the start
	ByInitiator              // SET TARGET PORT GROUPS
	ByTarget                 // the administrator
)

// Group is a group of target ports. Which it has belongs to those who show the volume.
type Group struct {
	ID        uint16
	State     GroupState
	Preferred bool
	Cause     Cause `json:"-"`
}

// State is all that is known of who may do what, except sessions. It is a value: what it points
// to is never changed.
type State struct {
	Generation    uint32         `json:",omitempty"`
	Persist       bool           `json:",omitempty"` // reservations outlive a loss of power: the last registration asked for it
	Registrations []Registration `json:",omitempty"`
	Kind          Kind           `json:",omitempty"` // 0: there is no reservation
	Holder        int            // index of a registration; -1: there is none, or all hold it
	Groups        []Group        `json:",omitempty"` // sorted by ID; what is missing is active/optimized
	Modes         uint32         `json:",omitempty"` // mode parameters that processes have in common; their bits belong to package scsi
}

// Nothing is the state at the start.
func Nothing() State { return State{Holder: -1} }

// Check returns an error if s is none that can have been kept.
func (s *State) Check() error {
	if s.Kind != 0 && !s.Kind.Valid() || s.Holder >= len(s.Registrations) ||
		s.Kind != 0 && (!s.Kind.All() && s.Holder < 0 || len(s.Registrations) == 0) {
		return fmt.Errorf("persistent reservations: type %d, holder %d of %d make no sense", s.Kind, s.Holder, len(s.Registrations))
	}
	for _, g := range s.Groups {
		if !g.State.Valid() {
			return fmt.Errorf("the state that was kept has %v for group %d", g.State, g.ID)
		}
	}
	return nil
}

// Kept is what of s outlives a loss of power.
func (s State) Kept() State {
	kept := Nothing()
	if s.Persist {
		kept = s
	}
	kept.Groups, kept.Modes = nil, 0
	for _, g := range s.Groups {
		if g.State != ActiveOptimized || g.Preferred {
			kept.Groups = append(kept.Groups, g)
		}
	}
	return kept
}

// Empty reports whether there is nothing to keep in what Kept has returned.
func (s *State) Empty() bool { return !s.Persist && len(s.Groups) == 0 }

// Merge is the state of two tables that turn out to be of one volume. A reservation of s goes before
// that of o; conflict says that there were two.
func Merge(s, o State) (merged State, conflict bool) {
	merged = s
	merged.Generation = max(s.Generation, o.Generation)
	merged.Persist = s.Persist || o.Persist
	merged.Registrations = slices.Clone(s.Registrations)
	holder := -1
	for i, r := range o.Registrations {
		at := slices.IndexFunc(merged.Registrations, func(x Registration) bool { return x.Holder == r.Holder })
		if at < 0 {
			at = len(merged.Registrations)
			merged.Registrations = append(merged.Registrations, r)
		}
		if i == o.Holder {
			holder = at
		}
	}
	if merged.Kind == 0 {
		merged.Kind, merged.Holder = o.Kind, holder
	}
	merged.Groups = slices.Clone(s.Groups)
	for _, g := range o.Groups {
		if s.group(g.ID) == (Group{ID: g.ID}) {
			merged.setGroup(g)
		}
	}
	return merged, s.Kind != 0 && o.Kind != 0
}

// Held reports whether registration i holds the reservation.
func (s *State) Held(i int) bool { return i >= 0 && s.Kind != 0 && (s.Kind.All() || s.Holder == i) }

// find returns the registration of h, or -1.
func (s *State) find(h Holder) int {
	return slices.IndexFunc(s.Registrations, func(r Registration) bool { return r.Of(h) })
}

// group returns the state of a group.
func (s *State) group(id uint16) Group {
	for _, g := range s.Groups {
		if g.ID == id {
			return g
		}
	}
	return Group{ID: id}
}

// setGroup notes a state, in a list of s's own.
func (s *State) setGroup(g Group) {
	at, found := slices.BinarySearchFunc(s.Groups, g.ID, func(x Group, id uint16) int { return int(x.ID) - int(id) })
	if found {
		s.Groups[at] = g
	} else {
		s.Groups = slices.Insert(s.Groups, at, g)
	}
}

// Denial is a set of what somebody may not do, and why.
type Denial uint32

// What reservations keep from, then the conditions that refuse most commands, the one that is
// reported before others first.
const (
	Reads  Denial = 1 << iota // looking at the medium
	Writes                    // changing it
	Most                      // all but the few that RESERVE of another initiator allows
	InTransition
	IsOffline
	IsUnavailable
	InStandby
	Sanitizing
	SanitizeFailed

	ofReservations = Reads | Writes | Most
	// OfGroups are the conditions of groups of target ports.
	OfGroups = InTransition | IsOffline | IsUnavailable | InStandby
	// Free is the first that this package does not use.
	Free = SanitizeFailed << 1
)

// denies is what h may not do, except RESERVE.
func (s *State) denies(h Holder) Denial {
	d := s.deniesThrough(h.Port.Group)
	i := s.find(h)
	switch {
	case s.Kind == 0, s.Held(i), i >= 0 && s.Kind.registrants():
		return d
	case s.Kind.exclusive():
		return d | Reads | Writes
	}
	return d | Writes
}

func (s *State) deniesThrough(group uint16) Denial { return s.group(group).State.denies() }

// denies is what nobody may do through a group in the state.
func (s GroupState) denies() Denial {
	switch s {
	case Standby:
		return InStandby
	case Unavailable:
		return IsUnavailable
	case Offline:
		return IsOffline
	case Transitioning:
		return InTransition
	}
	return 0
}
