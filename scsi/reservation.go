package scsi

import (
	"encoding/hex"

	"oneshot/volume/access"
)

// Reservations belong to the volume (volume/access): persistent ones (SPC-4 §5.13), and those of RESERVE
// and RELEASE (SPC-2 §5.5). This file and prout.go, prin.go are how SCSI spells them.
//
// What a nexus may not do because of them stands in its itl, where each command looks with
// one atomic load; the table tells it at every change.

// Initiator is an initiator port, or a device with all of its ports.
type Initiator = access.Initiator

// ISCSIPort is the initiator port of an iSCSI session: its initiator's name, in lower case, and ISID.
func ISCSIPort(name string, isid [6]byte) Initiator {
	return Initiator{Protocol: access.ISCSI, Name: name, Port: hex.EncodeToString(isid[:])}
}

// change has t do c to the volume's table, and ends it with finish when that is over.
func (t *Task) change(c *access.Change, finish func(*Task, *access.Change) Next) Next {
	c.By = t.itl
	t.changing, t.finish = c, finish
	next := t.r.Park(nil, t.before((*Task).changed))
	if t.lu.v.Access().Do(c, t.r.Grant) {
		return t.changed()
	}
	return next
}

func (t *Task) changed() Next { return t.finish(t, t.changing) }

// notKept ends a command whose change cannot be kept over a loss of power.
func (t *Task) notKept(err error) Next {
	t.lu.log.notKept(err)
	return t.check(senseInternal)
}

// notNow ends a command about reservations on which several nodes do not agree at present. The initiator sends it again.
func (t *Task) notNow(err error) Next {
	t.lu.log.notAgreed(err)
	t.Status = Busy
	t.In = nil
	return Done
}

// conflict ends the command with RESERVATION CONFLICT.
func (t *Task) conflict() Next {
	t.Status = ReservationConflict
	t.In = nil
	return Done
}

// ---- RESERVE and RELEASE (SPC-2 §7.20 to §7.24) ----

// reserve is RESERVE(6) and (10) of a whole logical unit; extents and third parties are not
// supported, as SPC-2 allows.
func (t *Task) reserve() Next { return t.reserveUnit(access.ReserveUnit) }

// releaseUnit is RELEASE(6) and (10). Who has not reserved releases nothing. What was aborted of the nexus leaves the store before others
// may come.
func (t *Task) releaseUnit() Next {
	m := &manager{deaf: true, done: func(TMFResponse) { t.r.Grant() }}
	m.left.Store(1)
	t.itl.await(m)
	if m.left.Load() == 1 {
		return t.releaseNow()
	}
	next := t.r.Park(nil, t.before((*Task).releaseNow))
	m.released()
	return next
}

func (t *Task) releaseNow() Next { return t.reserveUnit(access.ReleaseUnit) }

func (t *Task) reserveUnit(op access.Op) Next {
	if t.CDB[1]&t.cmd.Usage[1] != 0 {
		return t.check(invalidField(1))
	}
	return t.change(&access.Change{Op: op}, (*Task).reserved)
}

func (t *Task) reserved(c *access.Change) Next {
	if c.Result != access.Done {
		return t.conflict()
	}
	return t.good()
}

// ---- the nexus as a subscriber of the table ----

var _ access.Subscriber = (*itl)(nil)

// Holder is for the table.
func (i *itl) Holder() access.Holder {
	return access.Holder{Initiator: i.nexus.initiator, Port: i.nexus.port.port()}
}

// Session is for the table.
func (i *itl) Session() any { return i.nexus }

// Deny is for the table. What it says of groups matters to logical units that have such.
func (i *itl) Deny(mask, denied access.Denial) {
	if !i.lu.hasALUA() {
		denied &^= access.OfGroups
	}
	i.deny(uint32(mask), uint32(denied))
}

// deny says which of the denials in mask hold.
func (i *itl) deny(mask, denied uint32) {
	for {
		old := i.denied.Load()
		if i.denied.CompareAndSwap(old, old&^mask|denied) {
			return
		}
	}
}

// Tell is for the table.
func (i *itl) Tell(e access.Event) {
	for _, x := range [...]struct {
		event access.Event
		ua    uint32
	}{
		{access.ReservationsPreempted, uaReservationsPreempted},
		{access.ReservationsReleased, uaReservationsReleased},
		{access.RegistrationsPreempted, uaRegistrationsPreempted},
		{access.AccessChanged, uaAccessState},
		{access.ModesChanged, uaModeChanged},
	} {
		if e&x.event != 0 && (x.ua != uaAccessState || i.lu.hasALUA()) {
			i.ua.Or(x.ua)
		}
	}
}

// Abort is for the table. Copies that are commands to other logical units write to this one, too. What the nexus prevents ends with its
// commands (SPC-4 §5.13.11.2.5).
func (i *itl) Abort(done func()) {
	i.lu.allowRemoval(i.nexus)
	m := &manager{done: func(TMFResponse) { done() }}
	m.left.Store(1)
	i.abortAll(m)
	i.abortCopies(m)
	if i.lends { // those, too, that have ended within Start, and whose answers are in the store's memory
		m.left.Add(1)
		i.tasks.Await(m.released)
	}
	m.finish()
}
