package scsi

import "oneshot/volume/access"

// A condition of a logical unit refuses most commands: its medium is not there, it is being
// sanitized, the target port of the command gives no access to it, or the initiator takes it for another one.
//
// Conditions are bits of the word in which reservations say what a nexus may not do, so that
// a command without trouble looks at all of them with one load.

// What reservations keep from, and the conditions, the one that is reported before others first. All
// but the last two are the volume's.
const (
	denyReads          = uint32(access.Reads)
	denyWrites         = uint32(access.Writes)
	denyMost           = uint32(access.Most)
	denyTransition     = uint32(access.InTransition)
	denyOffline        = uint32(access.IsOffline)
	denyUnavailable    = uint32(access.IsUnavailable)
	denyStandby        = uint32(access.InStandby)
	denySanitizing     = uint32(access.Sanitizing)
	denySanitizeFailed = uint32(access.SanitizeFailed)
	denyNoMedium       = uint32(access.Free)
	denyOther          = denyNoMedium << 1 // is reported before all others

	denyReserved   = denyReads | denyWrites | denyMost
	denyConditions = denyTransition | denyOffline | denyUnavailable | denyStandby |
		denySanitizing | denySanitizeFailed | denyNoMedium | denyOther
)

// conditions says which commands pass a condition, and with what others fail.
var conditions = [...]struct {
	deny   uint32
	passes commandFlags
	code   Sense
}{
	{denyOther, anyLUN, senseNoLUN},
	{denyTransition, passesTransition, senseTransition},
	{denyOffline, passesUnavailable, Sense{Key: keyNotReady, Code: 0x0412}},
	{denyUnavailable, passesUnavailable, Sense{Key: keyNotReady, Code: 0x040c}},
	{denyStandby, passesStandby, Sense{Key: keyNotReady, Code: 0x040b}},
	{denySanitizing, passesSanitize, Sense{Key: keyNotReady, Code: 0x041b}},
	{denySanitizeFailed, passesSanitize | leavesSanitize, Sense{Key: keyMediumError, Code: 0x3103}},
	{denyNoMedium, passesNoMedium, senseNoMedium},
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
		if c.deny == denySanitizing {
			s.Progress, s.InProgress = lu.v.Progress()
		}
		return s
	}
	return Sense{}
}
