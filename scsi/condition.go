package scsi

// A condition of a logical unit refuses most commands: its medium is not there, it is being
// sanitized, or the target port of the command gives no access to it.
//
// Conditions are bits of the word in which reservations say what a nexus may not do, so that
// a command without trouble looks at all of them with one load. They are guarded by
// reservations.mu; publish tells the nexuses of a change.

// The conditions, the one that is reported before others first.
const (
	denyTransition uint32 = denyFirstCondition << iota
	denyOffline
	denyUnavailable
	denyStandby
	denySanitizing
	denySanitizeFailed
	denyNoMedium

	denyConditions = denyTransition | denyOffline | denyUnavailable | denyStandby |
		denySanitizing | denySanitizeFailed | denyNoMedium
)

// conditions says which commands pass a condition, and with what others fail.
var conditions = [...]struct {
	deny   uint32
	passes commandFlags
	code   Sense
}{
	{denyTransition, passesTransition, Sense{Key: keyNotReady, Code: 0x040a}},
	{denyOffline, passesUnavailable, Sense{Key: keyNotReady, Code: 0x0412}},
	{denyUnavailable, passesUnavailable, Sense{Key: keyNotReady, Code: 0x040c}},
	{denyStandby, passesStandby, Sense{Key: keyNotReady, Code: 0x040b}},
	{denySanitizing, passesSanitize, Sense{Key: keyNotReady, Code: 0x041b}},
	{denySanitizeFailed, passesSanitize | leavesSanitize, Sense{Key: keyMediumError, Code: 0x3103}},
	{denyNoMedium, passesNoMedium, senseNoMedium},
}

// denials is what the nexus may not do. reservations.mu is held.
func (lu *LogicalUnit) denials(n *Nexus) uint32 {
	d := lu.reservations.denies(n) | lu.alua.denies(n.port.tag)
	if lu.medium.ejected {
		d |= denyNoMedium
	}
	if lu.sanitizer.job.Load() != nil {
		d |= denySanitizing
	}
	if lu.sanitizer.failed {
		d |= denySanitizeFailed
	}
	return d
}

// publish tells all nexuses what they may not do now. reservations.mu is held.
func (lu *LogicalUnit) publish() {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	for _, i := range lu.itls {
		i.denied.Store(lu.denials(i.nexus))
	}
}

// deny ends a command that denied, not zero, keeps from running.
func (t *Task) deny(denied uint32) Next {
	if denied&denyConditions == 0 {
		return t.conflict()
	}
	return t.check(t.lu.conditionOf(denied))
}

// condition is the sense data for the condition that the logical unit is in for this nexus, "no
// sense" if it is ready.
func (i *itl) condition() Sense { return i.lu.conditionOf(i.denied.Load()) }

func (lu *LogicalUnit) conditionOf(denied uint32) Sense {
	for _, c := range conditions {
		if denied&c.deny == 0 {
			continue
		}
		s := c.code
		if job := lu.sanitizer.job.Load(); c.deny == denySanitizing && job != nil {
			s.Progress, s.InProgress = job.progress(), true
		}
		return s
	}
	return Sense{}
}

// loseNexus ends what does not outlive the nexus n: its RESERVE and what it prevents.
func (lu *LogicalUnit) loseNexus(n *Nexus) {
	lu.reservations.dropLegacy(n)
	lu.allowRemoval(n)
}
