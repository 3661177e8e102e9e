package scsi

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync"

	"oneshot/volume/access"
)

// Asymmetric logical unit access (SPC-4 §5.15). The target ports through which a logical unit
// is reached form groups, each with an access state of its own; here each port is a group
// by itself (targetPort). What a state keeps commands from is a condition (condition.go).

// TPGS says who changes access states; it is the TPGS field of the INQUIRY data.
type TPGS uint8

// Values of TPGS; both may be set.
const (
	ALUAImplicit TPGS = 1 << iota // the target does: access.Table.SetGroup
	ALUAExplicit                  // initiators do: SET TARGET PORT GROUPS
)

// AccessState is a target port asymmetric access state.
type AccessState = access.GroupState

// Access states.
const (
	ActiveOptimized    = access.ActiveOptimized
	ActiveNonOptimized = access.ActiveNonOptimized
	Standby            = access.Standby
	Unavailable        = access.Unavailable
	Offline            = access.Offline
	Transitioning      = access.Transitioning
)

const (
	supportedAccess     = 0xcf // T_SUP, O_SUP, U_SUP, S_SUP, AN_SUP, AO_SUP
	maxPortGroupChanges = 256  // of one SET TARGET PORT GROUPS
)

// PortGroupState is the state of a target port group as far as one volume goes.
type PortGroupState struct {
	Group     uint16
	State     AccessState
	Preferred bool
	Ports     []uint16 // relative target port identifiers, sorted; of AccessStates only

	cause access.Cause
}

// alua is what a logical unit knows of its target port groups; their states are the volume's.
type alua struct {
	tpgs    TPGS
	mu      sync.Mutex // a leaf
	targets []*Target  // through which the unit is reached, once for each LUN; guarded by mu
}

func (lu *LogicalUnit) hasALUA() bool     { return lu.alua.tpgs != 0 }
func (lu *LogicalUnit) hasExplicit() bool { return lu.alua.tpgs&ALUAExplicit != 0 }

// connect notes that the logical unit can be reached through target, and disconnect that it
// cannot (through that LUN) any more.
func (lu *LogicalUnit) connect(target *Target) {
	lu.alua.mu.Lock()
	defer lu.alua.mu.Unlock()
	lu.alua.targets = append(lu.alua.targets, target)
}

func (lu *LogicalUnit) disconnect(target *Target) {
	lu.alua.mu.Lock()
	defer lu.alua.mu.Unlock()
	if i := slices.Index(lu.alua.targets, target); i >= 0 {
		lu.alua.targets = slices.Delete(lu.alua.targets, i, i+1)
	}
}

// appendPort enters a port into a sorted list of groups.
func (lu *LogicalUnit) appendPort(list []PortGroupState, p targetPort) []PortGroupState {
	i, found := slices.BinarySearchFunc(list, p.tag, func(s PortGroupState, g uint16) int { return cmp.Compare(s.Group, g) })
	if !found {
		list = slices.Insert(list, i, lu.AccessState(p.tag))
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

// AccessStates returns the groups with a port through which the logical unit is reached, sorted by
// number. It may be called from any goroutine.
func (lu *LogicalUnit) AccessStates() (list []PortGroupState) {
	lu.alua.mu.Lock()
	targets := slices.Clone(lu.alua.targets)
	lu.alua.mu.Unlock()
	for _, t := range targets {
		for _, p := range *t.ports.Load() {
			list = lu.appendPort(list, p)
		}
	}
	return list
}

// AccessState returns the state of a target port group for this logical unit, without its ports.
// It may be called from any goroutine.
func (lu *LogicalUnit) AccessState(group uint16) PortGroupState {
	if !lu.hasALUA() {
		return PortGroupState{Group: group}
	}
	g := lu.v.Access().Group(group)
	return PortGroupState{Group: g.ID, State: g.State, Preferred: g.Preferred, cause: g.Cause}
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
	b = append(b, first, supportedAccess, byte(s.Group>>8), byte(s.Group), 0, byte(s.cause), 0, byte(len(s.Ports)))
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
	groups := t.lu.AccessStates()
	c := &access.Change{Op: access.SetGroups}
	for i, x := range changes {
		if !slices.ContainsFunc(groups, func(g PortGroupState) bool { return g.Group == x.Group }) {
			return t.check(invalidParameter(4 + 4*i + 2))
		}
		c.Groups = append(c.Groups, access.Group{ID: x.Group, State: x.State, Cause: access.ByInitiator})
	}
	if len(changes) == 0 {
		return t.good()
	}
	return t.change(c, (*Task).proutEnd)
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
