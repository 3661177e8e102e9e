package scsi

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
)

// Asymmetric logical unit access (SPC-4 §5.15). The target ports through which a logical unit
// is reached form groups, each with an access state of its own; here each port is a group
// by itself (targetPort). What a state keeps commands from is a condition (condition.go).

// TPGS says who changes access states; it is the TPGS field of the INQUIRY data.
type TPGS uint8

// Values of TPGS; both may be set.
const (
	ALUAImplicit TPGS = 1 << iota // the target does: LogicalUnit.SetAccessState
	ALUAExplicit                  // initiators do: SET TARGET PORT GROUPS
)

// AccessState is a target port asymmetric access state, numbered as in SPC-4 §6.37.
type AccessState uint8

// Access states.
const (
	ActiveOptimized    AccessState = 0x0
	ActiveNonOptimized AccessState = 0x1
	Standby            AccessState = 0x2
	Unavailable        AccessState = 0x3
	Offline            AccessState = 0xe
	Transitioning      AccessState = 0xf
)

var accessStateNames = map[AccessState]string{
	ActiveOptimized: "active/optimized", ActiveNonOptimized: "active/non-optimized", Standby: "standby",
	Unavailable: "unavailable", Offline: "offline", Transitioning: "transitioning",
}

func (s AccessState) String() string {
	if name, ok := accessStateNames[s]; ok {
		return name
	}
	return fmt.Sprintf("access state %#x", uint8(s))
}

// ParseAccessState returns the state of that name, which String gives it.
func ParseAccessState(name string) (AccessState, bool) {
	for s, n := range accessStateNames {
		if n == name {
			return s, true
		}
	}
	return 0, false
}

// Status codes of REPORT TARGET PORT GROUPS: what changed a state last.
const (
	changedByNobody     = 0 // since the target started
	changedBySTPG       = 1
	changedImplicitly   = 2
	supportedAccess     = 0xcf // T_SUP, O_SUP, U_SUP, S_SUP, AN_SUP, AO_SUP
	maxPortGroupChanges = 256  // of one SET TARGET PORT GROUPS
)

// PortGroupState is the state of a target port group as far as one logical unit goes.
type PortGroupState struct {
	Group     uint16
	State     AccessState
	Preferred bool
	Ports     []uint16 // relative target port identifiers, sorted; of AccessStates only

	status byte
}

// alua is what a logical unit knows of its target port groups. It is guarded by
// reservations.mu.
type alua struct {
	tpgs    TPGS
	targets []*Target                  // through which the unit is reached, once for each LUN
	states  map[uint16]*PortGroupState // by group; missing: active/optimized
}

func (lu *LogicalUnit) hasALUA() bool      { return lu.alua.tpgs != 0 }
func (lu *LogicalUnit) hasExplicit() bool  { return lu.alua.tpgs&ALUAExplicit != 0 }
func (a *alua) state(g uint16) AccessState { return a.get(g).State }

func (a *alua) get(group uint16) PortGroupState {
	if s := a.states[group]; s != nil {
		return *s
	}
	return PortGroupState{Group: group}
}

func (a *alua) denies(group uint16) uint32 {
	switch a.state(group) {
	case Standby:
		return denyStandby
	case Unavailable:
		return denyUnavailable
	case Offline:
		return denyOffline
	case Transitioning:
		return denyTransition
	}
	return 0
}

// connect notes that the logical unit can be reached through target, and disconnect that it
// cannot (through that LUN) any more.
func (lu *LogicalUnit) connect(target *Target) {
	lu.reservations.mu.Lock()
	defer lu.reservations.mu.Unlock()
	lu.alua.targets = append(lu.alua.targets, target)
}

func (lu *LogicalUnit) disconnect(target *Target) {
	lu.reservations.mu.Lock()
	defer lu.reservations.mu.Unlock()
	if i := slices.Index(lu.alua.targets, target); i >= 0 {
		lu.alua.targets = slices.Delete(lu.alua.targets, i, i+1)
	}
}

// groups are the groups with a port through which the logical unit is reached, sorted.
func (a *alua) groups() (list []PortGroupState) {
	for _, t := range a.targets {
		for _, p := range *t.ports.Load() {
			list = a.appendPort(list, p)
		}
	}
	return list
}

// appendPort enters a port into a sorted list of groups.
func (a *alua) appendPort(list []PortGroupState, p targetPort) []PortGroupState {
	i, found := slices.BinarySearchFunc(list, p.tag, func(s PortGroupState, g uint16) int { return cmp.Compare(s.Group, g) })
	if !found {
		list = slices.Insert(list, i, a.get(p.tag))
		list[i].Ports = nil
	}
	ports := list[i].Ports
	if at, found := slices.BinarySearch(ports, p.relative); !found {
		list[i].Ports = slices.Insert(ports, at, p.relative)
	}
	return list
}

// multiport reports whether the logical unit is reached through several ports.
func (lu *LogicalUnit) multiport() bool {
	groups := lu.AccessStates()
	return len(groups) > 1 || len(groups) == 1 && len(groups[0].Ports) > 1
}

// AccessStates returns the target port groups of the logical unit, sorted by number. It may
// be called from any goroutine.
func (lu *LogicalUnit) AccessStates() []PortGroupState {
	lu.reservations.mu.Lock()
	defer lu.reservations.mu.Unlock()
	return lu.alua.groups()
}

// AccessState returns the state of a target port group for this logical unit, without its ports.
// It may be called from any goroutine.
func (lu *LogicalUnit) AccessState(group uint16) PortGroupState {
	lu.reservations.mu.Lock()
	defer lu.reservations.mu.Unlock()
	return lu.alua.get(group)
}

// SetAccessState sets the access state of a target port group for this logical unit, and
// whether it is the preferred one. Every nexus is told with unit attention 2A/06 if that is a
// change. Commands that run already end as they would have. A group without ports keeps its
// state for the ports that it gets.
//
// It may be called from any goroutine, and waits until the state is kept if the logical unit has
// where (LUConfig.Reservations). It fails without implicit ALUA, for a state that does not exist,
// and if the state, which then has changed nevertheless, cannot be kept.
func (lu *LogicalUnit) SetAccessState(group uint16, state AccessState, preferred bool) error {
	if lu.alua.tpgs&ALUAImplicit == 0 {
		return fmt.Errorf("scsi: logical unit %s has no implicit ALUA, so its access states cannot be set", lu.serial)
	}
	if _, ok := accessStateNames[state]; !ok {
		return fmt.Errorf("scsi: there is no %v", state)
	}
	if !lu.changeAccess(group, state, preferred) || lu.reservations.store == nil {
		return nil
	}
	if err := lu.reservations.save(); err != nil {
		return fmt.Errorf("the access state holds until the target stops, but cannot be kept longer: %w", err)
	}
	return nil
}

// changeAccess reports whether that is another state than the one there was.
func (lu *LogicalUnit) changeAccess(group uint16, state AccessState, preferred bool) bool {
	lu.reservations.mu.Lock()
	defer lu.reservations.mu.Unlock()
	if was := lu.alua.get(group); was.State == state && was.Preferred == preferred {
		return false
	}
	lu.alua.set(group, state, changedImplicitly).Preferred = preferred
	lu.accessChanged(nil)
	return true
}

// InheritAccessStates takes over the access states of a logical unit whose place lu is to have. No
// nexus may reach lu yet.
func (lu *LogicalUnit) InheritAccessStates(from *LogicalUnit) {
	if !lu.hasALUA() {
		return
	}
	from.reservations.mu.Lock()
	states := maps.Clone(from.alua.states) // what they point to stays as it is
	from.reservations.mu.Unlock()
	lu.reservations.mu.Lock()
	defer lu.reservations.mu.Unlock()
	lu.alua.states = states
}

// savedAccess is the form in which the state of a target port group is kept.
type savedAccess struct {
	Group     uint16
	State     AccessState
	Preferred bool `json:",omitempty"`
}

// keep is what is to be kept, sorted by group: what is not as it is at first. reservations.mu is
// held.
func (a *alua) keep() (kept []savedAccess) {
	for _, group := range slices.Sorted(maps.Keys(a.states)) {
		if s := a.states[group]; s.State != ActiveOptimized || s.Preferred {
			kept = append(kept, savedAccess{group, s.State, s.Preferred})
		}
	}
	return kept
}

// restore takes back what was kept; without ALUA nobody could change it any more.
func (a *alua) restore(kept []savedAccess) error {
	for _, k := range kept {
		if _, ok := accessStateNames[k.State]; !ok {
			return fmt.Errorf("scsi: the state that was kept has %v for group %d", k.State, k.Group)
		}
		if a.tpgs != 0 {
			a.set(k.Group, k.State, changedByNobody).Preferred = k.Preferred
		}
	}
	return nil
}

// set notes a state; status is what changed it.
func (a *alua) set(group uint16, state AccessState, status byte) *PortGroupState {
	if a.states == nil {
		a.states = make(map[uint16]*PortGroupState)
	}
	s := a.get(group)
	s.State, s.status = state, status
	a.states[group] = &s
	return &s
}

// accessChanged publishes changed states. reservations.mu is held.
func (lu *LogicalUnit) accessChanged(by *Nexus) {
	lu.reservations.changed()
	lu.attention(uaAccessState, by)
}

// ---- REPORT TARGET PORT GROUPS ----

// reportTargetPortGroups is SPC-4 §6.37. The length that it reports is that of all groups,
// however many fit.
func (t *Task) reportTargetPortGroups() Next {
	var data []byte
	switch t.CDB[1] >> 5 { // PARAMETER DATA FORMAT
	case 0:
		data = make([]byte, 4)
	case 1:
		data = []byte{0, 0, 0, 0, 0x10, 0, 0, 0} // no implicit transition time is known
	default:
		return t.check(invalidField(1))
	}
	for _, g := range t.lu.AccessStates() {
		data = g.appendTo(data)
	}
	binary.BigEndian.PutUint32(data, uint32(len(data)-4))
	return t.reply(data, int(min(binary.BigEndian.Uint32(t.CDB[6:]), 1<<24)))
}

func (s *PortGroupState) appendTo(b []byte) []byte {
	first := byte(s.State)
	if s.Preferred {
		first |= 0x80
	}
	b = append(b, first, supportedAccess, byte(s.Group>>8), byte(s.Group), 0, s.status, 0, byte(len(s.Ports)))
	for _, p := range s.Ports {
		b = append(b, 0, 0, byte(p>>8), byte(p))
	}
	return b
}

// ---- SET TARGET PORT GROUPS ----

// setTargetPortGroups is SPC-4 §6.45.
func (t *Task) setTargetPortGroups() Next {
	n := int64(binary.BigEndian.Uint32(t.CDB[6:]))
	switch {
	case n == 0:
		return t.good()
	case n < 4 || n > 4+4*maxPortGroupChanges:
		return t.check(senseParameterLen)
	}
	return t.takeParameters(n, (*Task).setTargetPortGroupsRun)
}

func (t *Task) setTargetPortGroupsRun() Next {
	changes, s, ok := parsePortGroups(t.parameters())
	if !ok {
		return t.check(s)
	}
	lu := t.lu
	lu.reservations.mu.Lock()
	defer lu.reservations.mu.Unlock()
	groups := lu.alua.groups()
	for i, c := range changes {
		if !slices.ContainsFunc(groups, func(g PortGroupState) bool { return g.Group == c.Group }) {
			return t.check(invalidParameter(4 + 4*i + 2))
		}
	}
	if len(changes) == 0 {
		return t.good()
	}
	for _, c := range changes {
		lu.alua.set(c.Group, c.State, changedBySTPG)
	}
	lu.accessChanged(t.Nexus)
	if lu.reservations.store == nil {
		return t.good()
	}
	return t.finishSaved(true, nil)
}

// parsePortGroups reads the parameter list of SET TARGET PORT GROUPS.
func parsePortGroups(list []byte) (changes []PortGroupState, s Sense, ok bool) {
	c := cursor{b: list}
	c.skip(4)
	for c.more() {
		at := c.at
		state := AccessState(c.u8() & 0x0f)
		c.skip(1)
		group := c.u16()
		if state > Unavailable { // offline and transitioning come about by themselves
			c.fail(invalidParameter(at))
		}
		changes = append(changes, PortGroupState{Group: group, State: state})
	}
	if c.err != (Sense{}) {
		return nil, c.err, false
	}
	return changes, Sense{}, true
}
