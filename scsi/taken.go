package scsi

import "slices"

// An initiator repeats a command that a unit attention has ended, and goes on, also over a new session: what it writes would reach another disk that
// has come to the LUN meanwhile. So an initiator port takes each LUN for the disk that it has found there first. Another one is to it as if
// there were none (denyOther) until it has asked which one it is: INQUIRY for page 83h, which no path checker of multipathd sends.

// disk is what an initiator has to know of a logical unit, or its commands would reach other bytes than it means.
type disk struct {
	naa        [16]byte
	blockShift uint
}

func (lu *LogicalUnit) disk() disk { return disk{lu.naa, lu.blockShift} }

// taken is what an initiator port takes LUNs for, at a target port. It outlives the nexus.
type taken struct {
	initiator Initiator
	group     uint16
	nexuses   int             // that there are
	disks     map[uint16]disk // by LUN, as the initiator sees it; guarded by Target.mu
}

// maxTaken bounds what is remembered of those that have no nexus.
const maxTaken = 256

// takenBy is for a nexus that begins. mu is held.
func (t *Target) takenBy(initiator Initiator, group uint16) *taken {
	at := slices.IndexFunc(t.taken, func(o *taken) bool { return o.initiator == initiator && o.group == group })
	if at < 0 {
		at = len(t.taken)
		t.taken = append(t.taken, &taken{initiator: initiator, group: group, disks: make(map[uint16]disk)})
	}
	t.taken[at].nexuses++
	return t.taken[at]
}

// keepTaken is for a nexus that has ended. mu is held.
func (t *Target) keepTaken(ended *taken) {
	ended.nexuses--
	idle := 0
	for _, o := range t.taken {
		if o.nexuses == 0 {
			idle++
		}
	}
	t.taken = append(slices.DeleteFunc(t.taken, func(o *taken) bool { return o == ended }), ended) // the oldest first
	if idle > maxTaken {
		at := slices.IndexFunc(t.taken, func(o *taken) bool { return o.nexuses == 0 })
		t.taken = slices.Delete(t.taken, at, at+1)
	}
}

// rename has a disk that has got another name be the same one. mu is held.
func (t *Target) rename(was, now disk) {
	for _, o := range t.taken {
		for lun, d := range o.disks {
			if d == was {
				o.disks[lun] = now
			}
		}
	}
}

// meet denies the logical unit to an initiator that takes the LUN for another disk. Target.mu is held.
func (i *itl) meet() {
	disks, is := i.nexus.taken.disks, i.lu.disk()
	if _, has := disks[i.lun]; !has {
		disks[i.lun] = is
	}
	if disks[i.lun] == is {
		i.deny(denyOther, 0)
	} else {
		i.deny(denyOther, denyOther)
	}
}

// identified notes that the initiator is told which disk this is. Another one may have come to the LUN since.
func (i *itl) identified() {
	if i.denied.Load()&denyOther == 0 {
		return
	}
	n := i.nexus
	n.target.mu.Lock()
	defer n.target.mu.Unlock()
	n.taken.disks[i.lun] = i.lu.disk()
	table := *n.table.Load()
	if at, found := slices.BinarySearchFunc(table, i.lun, compareLUN); found {
		table[at].meet()
	}
}
