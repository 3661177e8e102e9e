package scsi

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"oneshot/volume/access"
)

// TargetConfig says what a target tells about itself.
type TargetConfig struct {
	Name         string // SCSI device name: the iSCSI name
	RelativePort uint16 // relative target port identifier of the port, 1 or more; 0 stands for PortGroup
	PortGroup    uint16 // target portal group tag of the port, which is also its target port group; 0 stands for 1
	// Copies holds the tokens for data. Targets that have it in common take each other's. Nil: one
	// of its own.
	Copies *CopyManager
}

// Target is a SCSI target device with one target port or, after SetPorts, several. Its methods
// may be called from any goroutine.
type Target struct {
	name   string
	copies *CopyManager
	ports  atomic.Pointer[[]targetPort] // replaced, never changed; the first is that of NewTarget

	mu      sync.Mutex // taken before LogicalUnit.mu and itl.mu
	luns    []lunEntry // guarded by mu; sorted by lun
	nexuses map[*Nexus]struct{}
	history          // of nexuses that ended; guarded by mu
	taken   []*taken // guarded by mu
}

type lunEntry struct {
	lun uint16
	lu  *LogicalUnit
}

// NewTarget returns a target without logical units.
func NewTarget(cfg TargetConfig) *Target {
	copies := cfg.Copies
	if copies == nil {
		copies = NewCopyManager()
	}
	t := &Target{name: cfg.Name, copies: copies, nexuses: make(map[*Nexus]struct{})}
	p := t.newPort(max(cfg.PortGroup, 1))
	if cfg.RelativePort != 0 {
		p.relative = cfg.RelativePort
	}
	t.ports.Store(&[]targetPort{p})
	return t
}

// targetPort is a SCSI target port: a portal group of the iSCSI target (RFC 7143 §3.2.6). Each
// is a target port group by itself, and the tag stands for both.
type targetPort struct {
	target   string // name of the target
	tag      uint16
	relative uint16 // relative target port identifier
}

func (t *Target) newPort(tag uint16) targetPort { return targetPort{t.name, tag, tag} }

// name is the SCSI target port name (RFC 7143 §3.2.6).
func (p *targetPort) name() string { return fmt.Sprintf("%s,t,0x%04x", p.target, p.tag) }

func (p *targetPort) port() access.Port { return access.Port{Target: p.target, Group: p.tag} }

func (p *targetPort) portOf() access.PortOf {
	return access.PortOf{Port: p.port(), Relative: p.relative}
}

// port returns the port with the tag; 0: the first one. A nexus may come through a port that the target
// does not know any more, or not yet.
func (t *Target) port(tag uint16) targetPort {
	ports := *t.ports.Load()
	for _, p := range ports {
		if p.tag == tag || tag == 0 {
			return p
		}
	}
	return t.newPort(tag)
}

// SetPorts says through which portal groups the target is reached: their tags, at least one. It
// is what REPORT TARGET PORT GROUPS tells and what ALL_TG_PT registers for.
func (t *Target) SetPorts(tags []uint16) {
	ports := make([]targetPort, len(tags))
	for i, tag := range tags {
		ports[i] = t.port(tag)
	}
	t.ports.Store(&ports)
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
			if was := luns[i].lu; c.LU != nil && was.v == c.LU.v && was.blockShift == c.LU.blockShift {
				t.rename(was.disk(), c.LU.disk())
			}
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
