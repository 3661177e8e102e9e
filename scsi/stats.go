package scsi

import "oneshot/internal/iostat"

// classes has one entry for each operation code.
var classes = func() (c [256]iostat.Class) {
	for i := range c {
		c[i] = iostat.Other
	}
	for _, op := range []byte{0x08, 0x28, 0xa8, 0x88} {
		c[op] = iostat.Read
	}
	for _, op := range []byte{0x0a, 0x2a, 0xaa, 0x8a, 0x2e, 0xae, 0x8e, 0x9c} {
		c[op] = iostat.Write
	}
	return c
}()

// Account counts a command that has been answered took nanoseconds after it came. The
// transport calls it at most once for each command, between Done and Release. It allocates
// at the first command of an I_T_L nexus only.
func (t *Task) Account(took int64) {
	if t.itl == nil {
		return
	}
	c := t.itl.counts.Get()
	class := classes[t.CDB[0]]
	c.Answered(class, took)
	switch {
	case t.Status != Good && t.Status != ConditionMet:
		c.Failed(t.failure())
	case class == iostat.Read:
		c.Moved(class, min(t.Transfer, uint64(t.DataInLen)))
	case class == iostat.Write:
		c.Moved(class, min(t.Transfer, uint64(t.DataOutLen)))
	}
}

// AccountAborted counts a command that ends without an answer.
func (t *Task) AccountAborted() {
	if t.itl != nil {
		t.itl.counts.Get().Failed(iostat.AbortedCommand)
	}
}

var senseFailures = [16]iostat.Failure{
	keyNoSense: iostat.OtherSense, 0x1: iostat.OtherSense, 0x2: iostat.OtherSense, keyMediumError: iostat.MediumError,
	keyHardwareError: iostat.HardwareError, keyIllegalRequest: iostat.IllegalRequest, keyUnitAttention: iostat.UnitAttention,
	keyDataProtect: iostat.DataProtect, 0x8: iostat.OtherSense, 0x9: iostat.OtherSense, 0xa: iostat.OtherSense,
	keyAbortedCommand: iostat.AbortedCommand, 0xc: iostat.OtherSense, 0xd: iostat.OtherSense, keyMiscompare: iostat.Miscompare,
	0xf: iostat.OtherSense,
}

func (t *Task) failure() iostat.Failure {
	switch {
	case t.Status == ReservationConflict:
		return iostat.ReservationConflict
	case t.Status == TaskSetFull || t.Status == Busy:
		return iostat.TaskSetFull
	case t.Status == TaskAborted:
		return iostat.AbortedCommand
	case len(t.Sense) < 3:
		return iostat.OtherSense
	case t.Sense[0]&0x7f >= 0x72: // descriptor format (SPC-4 §4.5.2)
		return senseFailures[t.Sense[1]&0xf]
	}
	return senseFailures[t.Sense[2]&0xf]
}

// LUNStats is what happened on one LUN of a target since the target exists.
type LUNStats struct {
	LUN uint16
	LU  *LogicalUnit // which is there now
	iostat.Stats
}

// Stats returns one entry for each LUN, in their order.
func (t *Target) Stats() []LUNStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]LUNStats, len(t.luns))
	at := make(map[uint16]*LUNStats, len(t.luns))
	for k, e := range t.luns {
		all[k].LUN, all[k].LU = e.lun, e.lu
		if past := t.past[e.lun]; past != nil {
			all[k].Stats = *past
		}
		at[e.lun] = &all[k]
	}
	add := func(places []*itl) {
		for _, i := range places {
			if s := at[i.of]; s != nil {
				i.addTo(&s.Stats)
			}
		}
	}
	for n := range t.nexuses {
		add(n.places())
	}
	for _, places := range t.leaving {
		add(places)
	}
	return all
}

func (i *itl) addTo(s *iostat.Stats) {
	_, all := i.tasks.Count()
	s.InFlight += all
	i.counts.AddTo(s)
}

// Stats returns what the nexus did on all logical units.
func (n *Nexus) Stats() (s iostat.Stats) {
	n.target.mu.Lock()
	defer n.target.mu.Unlock()
	s = n.past
	for _, i := range n.places() {
		i.addTo(&s)
	}
	return s
}

// history is what nexuses that have ended counted, so that the counts of a target never go
// back.
type history struct {
	past    map[uint16]*iostat.Stats // by LUN
	leaving map[*Nexus][]*itl        // closed, with tasks that are still to be released
}

// leave notes that n has been closed. Target.mu is held.
func (t *Target) leave(n *Nexus, places []*itl) {
	if t.leaving == nil {
		t.leaving = make(map[*Nexus][]*itl)
	}
	t.leaving[n] = places
}

// remember keeps the counts of n, whose last task has been released.
func (t *Target) remember(n *Nexus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, i := range t.leaving[n] {
		t.keep(i)
	}
	delete(t.leaving, n)
}

// keep adds up what a place has counted in which nothing happens any more. Target.mu is held.
func (t *Target) keep(i *itl) {
	if t.past == nil {
		t.past = make(map[uint16]*iostat.Stats)
	}
	if t.past[i.of] == nil {
		t.past[i.of] = new(iostat.Stats)
	}
	i.counts.AddTo(t.past[i.of])
}
