package nvme

// ANAState is the asymmetric namespace access state of a group (Base 2.0 §8.1.3).
type ANAState uint8

// ANA states.
const (
	ANAOptimized      ANAState = 0x1
	ANANonOptimized   ANAState = 0x2
	ANAInaccessible   ANAState = 0x3
	ANAPersistentLoss ANAState = 0x4
	ANAChange         ANAState = 0xf
)

// ANAGroup is a group of the ANA log: one namespace, whose number it has.
type ANAGroup struct {
	NSID    uint32
	State   ANAState
	Changes uint64 // of the state
}

// ANAGroupsOnly in the field LSP of Get Log Page leaves the namespaces of the groups out (RGO).
const ANAGroupsOnly = 1

// AppendANA appends the ANA log: changes of it, and groups, which ascend (Base 2.0 figure 217).
func AppendANA(b []byte, changes uint64, groups []ANAGroup, groupsOnly bool) []byte {
	b = le.AppendUint64(b, changes)
	b = le.AppendUint16(b, uint16(len(groups)))
	b = append(b, make([]byte, 6)...)
	for _, g := range groups {
		listed := uint32(1)
		if groupsOnly {
			listed = 0
		}
		b = le.AppendUint32(b, g.NSID)
		b = le.AppendUint32(b, listed)
		b = le.AppendUint64(b, g.Changes)
		b = append(b, byte(g.State))
		b = append(b, make([]byte, 15)...)
		if !groupsOnly {
			b = le.AppendUint32(b, g.NSID)
		}
	}
	return b
}
