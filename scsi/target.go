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
}

// Target is a SCSI target device with one target port. Its methods may be called from any
// goroutine.
type Target struct {
	name         string
	portName     string
	relativePort uint16
	portGroup    uint16

	mu      sync.Mutex // taken before LogicalUnit.mu and itl.mu
	luns    []lunEntry // guarded by mu; sorted by lun
	nexuses map[*Nexus]struct{}
}

type lunEntry struct {
	lun uint16
	lu  *LogicalUnit
}

// NewTarget returns a target without logical units.
func NewTarget(cfg TargetConfig) *Target {
	group, port := max(cfg.PortGroup, 1), max(cfg.RelativePort, 1)
	return &Target{
		name: cfg.Name,
		// RFC 7143 §3.2.6: the SCSI port name of an iSCSI target port.
		portName:     fmt.Sprintf("%s,t,0x%04x", cfg.Name, group),
		relativePort: port,
		portGroup:    group,
		nexuses:      make(map[*Nexus]struct{}),
	}
}

// maxLUN is the highest logical unit number of the flat space addressing method.
const maxLUN = 1<<14 - 1

// SetLU makes lu the logical unit lun (0 to 16383) of the target in place of the one that
// was there; nil takes it away. Every nexus is told with unit attention 3F/0E. Commands that
// have started finish on the logical unit they started on.
func (t *Target) SetLU(lun uint16, lu *LogicalUnit) {
	if lun > maxLUN {
		panic(fmt.Sprintf("scsi: LUN %d is above %d", lun, maxLUN))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	i, found := slices.BinarySearchFunc(t.luns, lun, func(e lunEntry, l uint16) int { return int(e.lun) - int(l) })
	switch {
	case lu == nil && found:
		t.luns = slices.Delete(slices.Clone(t.luns), i, i+1)
	case lu == nil:
		return
	case found:
		t.luns = slices.Clone(t.luns)
		t.luns[i].lu = lu
	default:
		t.luns = slices.Insert(slices.Clone(t.luns), i, lunEntry{lun, lu})
	}
	for n := range t.nexuses {
		n.setLU(lun, lu)
	}
}
