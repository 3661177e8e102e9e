package scsi

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"oneshot/internal/iostat"
	"oneshot/mem"
	"oneshot/volume"
)

// Nexus is an I_T nexus: what the target knows of one initiator port. Its methods may be
// called from any goroutine.
type Nexus struct {
	target    *Target
	initiator Initiator
	port      targetPort
	taken     *taken

	// table holds the logical units that are there, sorted by LUN. It is replaced, never
	// changed, so that the data path reads it without a lock.
	table    atomic.Pointer[[]*itl]
	batching bool                // constant: BatchOps was called
	most     int                 // constant: bytes of the largest lease that its tasks can get
	begun    atomic.Pointer[itl] // those with operations that wait for Kick, linked by nextBegun

	// retired are the places of logical units that were taken away, until they are closed and others are taken away; past is what
	// those that are not kept any more have counted. Both are guarded by Target.mu.
	retired []*itl
	past    iostat.Stats

	// shown, if set, says which logical units the initiator sees, and their numbers for it, by
	// their numbers of the target's.
	shown map[uint16]uint16

	copies copyResults

	copiersMu sync.Mutex // taken before itl.mu
	copiers   []*Task    // of copies under way: each reads and writes other logical units than its own, too; guarded by copiersMu
}

// itl is an I_T_L nexus: the part of a logical unit's state that belongs to one initiator.
type itl struct {
	nexus *Nexus
	lu    *LogicalUnit
	lun   uint16 // as the initiator sees it
	of    uint16 // as the target numbers it
	lends bool   // the store of the volume lends its memory

	begun     atomic.Bool // in the list of the nexus, or about to be; who sets it links nextBegun
	nextBegun *itl

	ua     atomic.Uint32 // pending unit attentions, a set of attention bits
	denied atomic.Uint32 // a set of denials
	copies atomic.Int32  // answers that are not sent from the memory of the store (Task.answerByCopy)
	counts iostat.Lazy   // of its commands

	// tasks counts the tasks. They run until they end (Task.leaveOrder), dormant ones excepted. It has a cache line that only this nexus writes.
	tasks volume.Commands

	prevents bool // PREVENT ALLOW MEDIUM REMOVAL; guarded by LogicalUnit.mu

	mu    sync.Mutex // taken after LogicalUnit.mu
	first *Task      // tasks that have left Start unfinished; guarded by mu
}

// NewNexus adds the I_T nexus of a new session. Unit attention 29/00 is pending for it on all logical units.
func (t *Target) NewNexus(initiator Initiator) *Nexus {
	return t.NewMappedNexus(initiator, nil)
}

// NewMappedNexus is NewNexus for an initiator that sees only some logical units, and under
// numbers of its own: luns has the target's number for each of those. nil: all, as they are.
func (t *Target) NewMappedNexus(initiator Initiator, luns map[uint16]uint16) *Nexus {
	return t.NewNexusThrough(0, initiator, luns)
}

// NewNexusThrough is NewMappedNexus for an initiator that has come through the portal group with
// the tag; 0: that of NewTarget.
func (t *Target) NewNexusThrough(tag uint16, initiator Initiator, luns map[uint16]uint16) *Nexus {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := &Nexus{target: t, initiator: initiator, port: t.port(tag), most: mem.MaxLease}
	n.taken = t.takenBy(initiator, n.port.tag)
	if luns != nil {
		n.shown = make(map[uint16]uint16, len(luns))
		for own, theirs := range luns {
			n.shown[theirs] = own
		}
	}
	table := make([]*itl, 0, len(t.luns))
	for _, e := range t.luns {
		if lun, ok := n.number(e.lun); ok {
			table = append(table, n.join(lun, e.lun, e.lu))
		}
	}
	slices.SortFunc(table, func(a, b *itl) int { return int(a.lun) - int(b.lun) })
	n.table.Store(&table)
	t.nexuses[n] = struct{}{}
	return n
}

// BoundMemory says that Owner.Lease never has more than most bytes for one task, and has as many once
// the other tasks have ended. Commands that would need more are refused; the Block Limits page
// announces the limit. It is called before the first task.
func (n *Nexus) BoundMemory(most int) { n.most = min(most, mem.MaxLease) }

// number returns the number by which the initiator sees the target's LUN. False: it does not.
func (n *Nexus) number(lun uint16) (uint16, bool) {
	if n.shown == nil {
		return lun, true
	}
	own, ok := n.shown[lun]
	return own, ok
}

// join makes the I_T_L nexus of n with lu. Target.mu is held.
func (n *Nexus) join(lun, of uint16, lu *LogicalUnit) *itl {
	i := &itl{nexus: n, lu: lu, lun: lun, of: of, lends: lu.v.Lends()}
	i.ua.Store(uaPowerOn)
	lu.addITL(i)
	i.meet()
	return i
}

// Return says, before the first command, that the initiator port had this nexus with the target, on another machine: it hears of the loss
// (SAM-5 §5.14.5), and of the access states that it may not know, instead of a reset of what it can see has not been reset.
func (n *Nexus) Return() {
	for _, i := range *n.table.Load() {
		i.ua.Store(uaNexusLoss | uaAccessState)
	}
}

// setLUs follows Target.SetLUs. Target.mu is held.
func (n *Nexus) setLUs(changes []LUChange) {
	table := slices.Clone(*n.table.Load())
	changed := false
	n.forgetClosed()
	for _, c := range changes {
		lun, ok := n.number(c.LUN)
		if !ok {
			continue
		}
		at, found := slices.BinarySearchFunc(table, lun, compareLUN)
		if found {
			n.retired = append(n.retired, table[at])
			table = slices.Delete(table, at, at+1)
		}
		if c.LU != nil {
			table = slices.Insert(table, at, n.join(lun, c.LUN, c.LU))
		}
		changed = changed || found || c.LU != nil
	}
	if !changed {
		return
	}
	n.table.Store(&table)
	for _, i := range table { // not before: REPORT LUNS takes these away and then looks at the table
		i.ua.Or(uaLUNsChanged)
	}
}

// forgetClosed forgets the places of logical units that are closed. Target.mu is held.
func (n *Nexus) forgetClosed() {
	n.retired = slices.DeleteFunc(n.retired, func(i *itl) bool {
		if !i.lu.closed.Load() {
			return false
		}
		i.lu.dropITL(i)
		i.counts.AddTo(&n.past)
		n.target.keep(i)
		return true
	})
}

func compareLUN(i *itl, lun uint16) int { return int(i.lun) - int(lun) }

// lookup finds the logical unit that a LUN as on the wire stands for, or nil.
func (n *Nexus) lookup(lun uint64) *itl {
	number, ok := decodeLUN(lun)
	if !ok {
		return nil
	}
	table := *n.table.Load()
	if at := int(number); at < len(table) && table[at].lun == number { // they are numbered from 0, without gaps
		return table[at]
	}
	lo, hi := 0, len(table)
	for lo < hi {
		mid := (lo + hi) / 2
		if table[mid].lun < number {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(table) && table[lo].lun == number {
		return table[lo]
	}
	return nil
}

// decodeLUN understands single level LUN structures of the peripheral device (00b, bus 0)
// and flat space (01b) addressing methods (SAM-5 §4.7.7).
func decodeLUN(lun uint64) (number uint16, ok bool) {
	if lun<<16 != 0 {
		return 0, false
	}
	top := uint16(lun >> 48)
	switch top >> 14 {
	case 0:
		return top, top <= 0xff
	case 1:
		return top & maxLUN, true
	}
	return 0, false
}

// encodeLUN is how REPORT LUNS names a logical unit.
func encodeLUN(number uint16) uint64 {
	if number <= 0xff {
		return uint64(number) << 48
	}
	return uint64(0x4000|number) << 48
}

// Unit attention conditions, the most important one in the lowest bit. A condition of a
// reset stands for everything that a reset changes, so reporting it clears the rest.
const (
	uaPowerOn                uint32 = 1 << iota // POWER ON, RESET, OR BUS DEVICE RESET OCCURRED
	uaTargetReset                               // SCSI BUS RESET OCCURRED
	uaLUReset                                   // BUS DEVICE RESET FUNCTION OCCURRED
	uaNexusLoss                                 // I_T NEXUS LOSS OCCURRED
	uaCommandsCleared                           // COMMANDS CLEARED BY ANOTHER INITIATOR
	uaReservationsPreempted                     // RESERVATIONS PREEMPTED
	uaReservationsReleased                      // RESERVATIONS RELEASED
	uaRegistrationsPreempted                    // REGISTRATIONS PREEMPTED
	uaModeChanged                               // MODE PARAMETERS CHANGED
	uaAccessState                               // ASYMMETRIC ACCESS STATE CHANGED
	uaMediumChanged                             // NOT READY TO READY CHANGE, MEDIUM MAY HAVE CHANGED
	uaCapacityChanged                           // CAPACITY DATA HAS CHANGED
	uaLUNsChanged                               // REPORTED LUNS DATA HAS CHANGED

	uaResets = uaPowerOn | uaTargetReset | uaLUReset | uaNexusLoss
)

// uaCodes are the additional sense codes in the order of the bits.
var uaCodes = [...]uint16{0x2900, 0x2902, 0x2903, 0x2907, 0x2f00, 0x2a03, 0x2a04, 0x2a05, 0x2a01, 0x2a06, 0x2800, 0x2a09, 0x3f0e}

// takeUA removes the first pending unit attention and returns its sense data, and all that is not pending any more: taken, 0 if
// nothing was.
func (i *itl) takeUA() (s Sense, taken uint32) {
	for {
		pending := i.ua.Load()
		if pending == 0 {
			return Sense{}, 0
		}
		first := bits.TrailingZeros32(pending)
		rest := pending &^ (1 << first)
		if 1<<first&uaResets != 0 {
			rest &^= uaResets
		}
		if i.ua.CompareAndSwap(pending, rest) {
			return Sense{Key: keyUnitAttention, Code: uaCodes[first]}, pending &^ rest
		}
	}
}
