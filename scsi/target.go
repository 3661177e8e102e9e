package scsi

import (
	"fmt"
	"slices"
	"sync"
)

// TargetConfig says what a target tells about itself.
type TargetConfig struct {
	Name         string // SCSI device name: the iSCSI name
	RelativePort uint16 // relative target port identifier, 1 or more; 0 stands for 1
	PortGroup    uint16 // target portal group tag, which is also the target port group; 0 stands for 1
	// Copies holds the tokens for data. Targets that have it in common take each other's. Nil: one
	// of its own.
	Copies *CopyManager
}

// Target is a SCSI target device with one target port. Its methods may be called from any
// goroutine.
type Target struct {
	name         string
	portName     string
	relativePort uint16
	portGroup    uint16
	copies       *CopyManager

	mu      sync.Mutex // taken before LogicalUnit.mu and itl.mu
	luns    []lunEntry // guarded by mu; sorted by lun
	nexuses map[*Nexus]struct{}
	history // of nexuses that ended; guarded by mu
}

type lunEntry struct {
	lun uint16
	lu  *LogicalUnit
}

// NewTarget returns a target without logical units.
func NewTarget(cfg TargetConfig) *Target {
	group, port := max(cfg.PortGroup, 1), max(cfg.RelativePort, 1)
	copies := cfg.Copies
	if copies == nil {
		copies = NewCopyManager()
	}
	return &Target{
		name: cfg.Name,
		// RFC 7143 §3.2.6: the SCSI port name of an iSCSI target port.
		portName:     fmt.Sprintf("%s,t,0x%04x", cfg.Name, group),
		relativePort: port,
		portGroup:    group,
		copies:       copies,
		nexuses:      make(map[*Nexus]struct{}),
	}
}

// maxLUN is the highest logical unit number of the flat space addressing method.
const maxLUN = 1<<14 - 1

// LUChange puts a logical unit at a LUN; nil takes away what is there.
type LUChange struct {
	LUN uint16 // 0 to 16383
	LU  *LogicalUnit
}

// SetLU makes lu the logical unit lun (0 to 16383) of the target in place of the one that
// was there; nil takes it away. Every nexus is told with unit attention 3F/0E. Commands that
// have started finish on the logical unit they started on.
func (t *Target) SetLU(lun uint16, lu *LogicalUnit) { t.SetLUs([]LUChange{{lun, lu}}) }

// SetLUs is SetLU for several LUNs at once: no nexus sees some of the changes only.
func (t *Target) SetLUs(changes []LUChange) {
	t.mu.Lock()
	defer t.mu.Unlock()
	luns := slices.Clone(t.luns)
	for _, c := range changes {
		if c.LUN > maxLUN {
			panic(fmt.Sprintf("scsi: LUN %d is above %d", c.LUN, maxLUN))
		}
		i, found := slices.BinarySearchFunc(luns, c.LUN, func(e lunEntry, l uint16) int { return int(e.lun) - int(l) })
		if found {
			luns[i].lu.disconnect(t)
			luns = slices.Delete(luns, i, i+1)
		}
		if c.LU != nil {
			c.LU.connect(t)
			luns = slices.Insert(luns, i, lunEntry{c.LUN, c.LU})
		}
	}
	t.luns = luns
	for n := range t.nexuses {
		n.setLUs(changes)
	}
}
