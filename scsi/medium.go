package scsi

// removableMedium is what there is to know of a medium that can be removed. It is guarded by
// LogicalUnit.mu.
type removableMedium struct {
	removable bool // by configuration
	ejected   bool
}

func (lu *LogicalUnit) removable() bool { return lu.medium.removable }

// ---- START STOP UNIT ----

// startStopUnit is SBC-3 §5.23. Power conditions are accepted and change nothing, and the
// medium never stops. Stopping makes everything durable, for an initiator that stops a unit is
// about to remove power.
func (t *Task) startStopUnit() Next {
	const start, loej, noFlush = 0x01, 0x02, 0x04
	flags := t.CDB[4]
	switch {
	case (flags>>4 != 0 || flags&start == 0) && t.itl.denied.Load()&denyWrites != 0: // SBC-3 table 13
		return t.conflict()
	case flags>>4 != 0: // POWER CONDITION: START and LOEJ are ignored
		return t.good()
	case flags&loej != 0 && t.lu.removable():
		return t.startLoadEject(flags&start != 0)
	case t.itl.denied.Load()&denyNoMedium != 0:
		return t.check(senseNoMedium)
	case flags&(start|noFlush) != 0:
		return t.good()
	}
	return t.flush()
}

// startLoadEject loads the medium, or makes it durable and ejects it.
func (t *Task) startLoadEject(load bool) Next {
	if load {
		return t.moveMedium(false)
	}
	if t.itl.denied.Load()&denyNoMedium != 0 {
		return t.moveMedium(true)
	}
	return t.r.Flush(t.before((*Task).eject))
}

func (t *Task) eject() Next {
	if t.r.Err != nil {
		return t.storeFailed()
	}
	return t.moveMedium(true)
}

// moveMedium ejects or loads, unless a nexus prevents it.
func (t *Task) moveMedium(eject bool) Next {
	lu := t.lu
	lu.mu.Lock()
	defer lu.mu.Unlock()
	if lu.prevented() {
		return t.check(Sense{Key: keyIllegalRequest, Code: 0x5302}) // MEDIUM REMOVAL PREVENTED
	}
	if lu.medium.ejected == eject {
		return t.good()
	}
	lu.medium.ejected = eject
	lu.v.RevokeAll()
	for _, i := range lu.itls {
		i.deny(denyNoMedium, lu.medium.denies())
		if !eject && i.nexus != t.Nexus { // SPC-4 §6.47: whoever has not asked for it
			i.ua.Or(uaMediumChanged)
		}
	}
	return t.good()
}

// ---- PREVENT ALLOW MEDIUM REMOVAL ----

// preventAllow is SPC-3 §6.13, per nexus.
func (t *Task) preventAllow() Next {
	const prevent, obsolete = 0x01, 0x02
	switch {
	case t.CDB[4]&obsolete != 0:
		return t.check(invalidField(4))
	case t.CDB[4]&prevent != 0 && t.itl.denied.Load()&denyWrites != 0: // SBC-3 table 13
		return t.conflict()
	}
	t.lu.mu.Lock()
	defer t.lu.mu.Unlock()
	t.itl.prevents = t.CDB[4]&prevent != 0
	return t.good()
}

func (m *removableMedium) denies() uint32 {
	if m.ejected {
		return denyNoMedium
	}
	return 0
}

// prevented reports whether any nexus prevents the removal. mu is held.
func (lu *LogicalUnit) prevented() bool {
	for _, i := range lu.itls {
		if i.prevents {
			return true
		}
	}
	return false
}

// allowRemoval ends what n prevents; nil: what anybody does.
func (lu *LogicalUnit) allowRemoval(n *Nexus) {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	for _, i := range lu.itls {
		if n == nil || i.nexus == n {
			i.prevents = false
		}
	}
}
