package nvmf

import (
	"crypto/sha256"
	"fmt"

	"oneshot/nvme"
	"oneshot/volume"
	"oneshot/volume/access"
)

// Reservations belong to the volume (volume/access), where initiators of SCSI have theirs, too. This file is how NVMe spells them
// (Base 2.0 §8.19).

// reservationKinds are the types of reservations by their number in NVMe.
var reservationKinds = [...]access.Kind{
	nvme.WriteExclusive:             access.WriteExclusive,
	nvme.ExclusiveAccess:            access.ExclusiveAccess,
	nvme.WriteExclusiveRegistrants:  access.WriteExclusiveRegistrants,
	nvme.ExclusiveAccessRegistrants: access.ExclusiveAccessRegistrants,
	nvme.WriteExclusiveAll:          access.WriteExclusiveAll,
	nvme.ExclusiveAccessAll:         access.ExclusiveAccessAll,
}

// kindOf translates a type; 0: there is none such.
func kindOf(t nvme.ReservationType) access.Kind {
	if int(t) >= len(reservationKinds) {
		return 0
	}
	return reservationKinds[t]
}

// typeOf translates a kind.
func typeOf(k access.Kind) nvme.ReservationType {
	for t, kind := range reservationKinds {
		if kind == k {
			return nvme.ReservationType(t)
		}
	}
	return 0
}

// reservation is what the command asks for.
func (t *Task) reservation() nvme.Reservation { return nvme.Reservation(t.SQE.DWord(10)) }

// withKeys has n bytes of keys fetched, and goes on with then. Hosts may send more. If the keys are late nothing is done: the host may have given the
// command up, and what has been done since is not known.
func (t *Task) withKeys(n int, then func(*Task) volume.Next) volume.Next {
	if int64(t.Len) < int64(n) {
		return t.refuse(nvme.DataSGLLength)
	}
	return t.pullOwn(make([]byte, n), func(t *Task) volume.Next {
		if t.isOverdue() {
			return t.end(t.path.ns.statusOf(volume.ErrOvertaken))
		}
		return then(t)
	})
}

// change does c to the volume of a, and goes on with finish when that is over.
func (t *Task) change(a *attached, c *access.Change, finish func(*Task) volume.Next) volume.Next {
	c.By = a
	t.changing = c
	next := t.r.Park(nil, t.before(finish))
	if a.ns.v.Access().Do(c, t.r.Grant) {
		return finish(t)
	}
	return next
}

// changed ends the command as its change has ended.
func (t *Task) changed() volume.Next {
	c := t.changing
	switch c.Result {
	case access.Done:
		return t.end(nvme.Success)
	case access.Conflict:
		return t.refuse(nvme.ReservationConflict)
	case access.Full:
		return t.refuse(nvme.InternalError) // there is no status of its own
	case access.NotKept:
		t.Queue.log.Error("a change of reservations could not be kept over a loss of power, and has no effect", "reason", c.Err)
		return t.end(nvme.InternalError)
	case access.NotNow: // the nodes of a mirror do not agree at present: the host may try again, here or on another path
		t.Queue.log.Warn("a change of reservations is not agreed on", "reason", c.Err)
		return t.end(nvme.PathInTransition)
	}
	return t.refuse(nvme.InvalidField)
}

// reservationRegister is Base 2.0 §7.3.
func (t *Task) reservationRegister() volume.Next {
	const reserved = nvme.PersistUnchanged + 1
	if r := t.reservation(); r.Action() > nvme.ReplaceKey || r.Persist() == reserved {
		return t.refuse(nvme.InvalidField)
	}
	return t.withKeys(nvme.ReservationDataLen, (*Task).register)
}

func (t *Task) register() volume.Next {
	r, data := t.reservation(), t.data[0]
	c := &access.Change{
		Op: access.ReplaceKey, Key: nvme.CurrentKey(data), NewKey: nvme.OtherKey(data), IgnoreKey: r.IgnoreKey(),
		Persist: r.Persist() == nvme.PersistSet, LeavePersist: r.Persist() == nvme.PersistUnchanged,
		Ports: []access.PortOf{{}}, // whatever way the host comes
	}
	switch {
	case r.Action() == nvme.UnregisterKey:
		c.NewKey = 0
	case r.Action() == nvme.ReplaceKey: // no key: Linux has its users end a registration so
	case c.NewKey == 0:
		return t.refuse(nvme.InvalidField)
	case c.IgnoreKey:
		c.Op = access.RegisterAndIgnore
	default:
		c.Op = access.RegisterHost
	}
	return t.change(t.path.at, c, (*Task).changed)
}

// reservationAcquire is Base 2.0 §7.2.
func (t *Task) reservationAcquire() volume.Next {
	r := t.reservation()
	if r.Action() > nvme.PreemptAndAbort || r.IgnoreKey() || kindOf(r.Type()) == 0 {
		return t.refuse(nvme.InvalidField)
	}
	return t.withKeys(nvme.ReservationDataLen, (*Task).acquire)
}

func (t *Task) acquire() volume.Next {
	r, data := t.reservation(), t.data[0]
	op := [...]access.Op{nvme.Acquire: access.Reserve, nvme.Preempt: access.Preempt, nvme.PreemptAndAbort: access.PreemptAndAbort}
	return t.change(t.path.at, &access.Change{
		Op: op[r.Action()], Key: nvme.CurrentKey(data), NewKey: nvme.OtherKey(data), Kind: kindOf(r.Type()), ZeroIsOwn: true,
	}, (*Task).changed)
}

// reservationRelease is Base 2.0 §7.4.
func (t *Task) reservationRelease() volume.Next {
	r := t.reservation()
	if r.Action() > nvme.Clear || r.IgnoreKey() || r.Action() == nvme.Release && kindOf(r.Type()) == 0 {
		return t.refuse(nvme.InvalidField)
	}
	return t.withKeys(nvme.ReleaseDataLen, (*Task).releaseReservation)
}

func (t *Task) releaseReservation() volume.Next {
	r := t.reservation()
	c := &access.Change{Op: access.Release, Key: nvme.CurrentKey(t.data[0]), Kind: kindOf(r.Type()), Whole: true}
	if r.Action() == nvme.Clear {
		c.Op = access.Clear
	}
	return t.change(t.path.at, c, (*Task).changed)
}

// reservationReport is Base 2.0 §7.5. Host identifiers have 16 bytes over fabrics. What does not fit is cut off.
func (t *Task) reservationReport() volume.Next {
	want := (int64(t.SQE.DWord(10)) + 1) * 4
	switch {
	case t.SQE.DWord(11)&nvme.ExtendedReport == 0:
		return t.refuse(nvme.HostIDFormat)
	case want < nvme.ReservationStatusLen, want > int64(t.Queue.node.most):
		return t.refuse(nvme.InvalidField)
	case want > int64(t.Len) || t.InCapsule:
		return t.refuse(nvme.DataSGLLength)
	}
	return t.change(t.path.at, &access.Change{Op: access.Look}, (*Task).report)
}

// report ends Reservation Report with what is in force.
func (t *Task) report() volume.Next {
	if t.changing.Result != access.Done {
		return t.changed()
	}
	s := t.changing.State
	return t.build((int(t.SQE.DWord(10))+1)*4, func(b []byte) {
		head := nvme.ReservationStatus{Generation: s.Generation, Type: typeOf(s.Kind), Registrants: len(s.Registrations), Persist: s.Persist}
		entry := head.AppendTo(make([]byte, 0, nvme.RegistrantLen))
		b = b[copy(b, entry):]
		for i := range s.Registrations {
			if len(b) == 0 {
				return
			}
			x := nvme.Registrant{Holder: s.Held(i), Key: s.Registrations[i].Key, HostID: reportedID(&s.Registrations[i])}
			b = b[copy(b, x.AppendTo(entry[:0])):]
		}
		clear(b)
	})
}

// reportedID is the host identifier of a registrant. One of SCSI has none; what stands for it depends on who and where it is.
func reportedID(r *access.Registration) [16]byte {
	if id, ok := r.Initiator.HostID(); ok {
		return id
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s,i,0x%s\x00%s,t,0x%04x", r.Initiator.Name, r.Initiator.Port, r.Port.Target, r.Port.Group))
	return [16]byte(sum[:])
}

// ---- features ----

// noticeKey names a mask of notifications: it belongs to a host, whatever controllers it has.
type noticeKey struct {
	host [16]byte
	nsid uint32
}

// noticeMask is which reservation notifications about a namespace are kept from a host.
func (s *Subsystem) noticeMask(host [16]byte, nsid uint32) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.masks[noticeKey{host, nsid}]
}

// setNoticeMask changes that, for namespaces that are there.
func (s *Subsystem) setNoticeMask(host [16]byte, list []heldPath, mask uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range list {
		s.masks[noticeKey{host, p.nsid}] = mask
	}
}

// forgetMasks forgets the masks of a host, or of a namespace, that is gone. mu is held.
func (s *Subsystem) forgetMasks(gone func(noticeKey) bool) {
	for k := range s.masks {
		if gone(k) {
			delete(s.masks, k)
		}
	}
}

// hold keeps the namespaces of an admin command from being closed before it ends.
func (t *Task) hold(list ...*path) {
	t.held = make([]heldPath, len(list))
	for i, p := range list {
		t.held[i] = p.hold()
	}
}

// persistence says whether reservations outlive a loss of power.
func (t *Task) persistence() volume.Next {
	t.r.Begin(t, nil, 0, t.Queue.node.most, false, false)
	return t.change(t.held[0].at, &access.Change{Op: access.Look}, func(t *Task) volume.Next {
		if t.changing.Result != access.Done {
			return t.changed()
		}
		if t.changing.State.Persist {
			t.CQE.DW0 = 1
		}
		return t.end(nvme.Success)
	})
}

// setPersistence has the reservations of namespaces outlive a loss of power, or not.
func (t *Task) setPersistence() volume.Next {
	t.r.Begin(t, nil, 0, t.Queue.node.most, false, false)
	t.others = t.held
	t.changing = &access.Change{}
	return t.persistNext()
}

// persistNext goes on after the last change.
func (t *Task) persistNext() volume.Next {
	if t.changing.Result != access.Done || len(t.others) == 0 {
		return t.changed()
	}
	p := t.others[0]
	t.others = t.others[1:]
	return t.change(p.at, &access.Change{Op: access.SetPersist, Persist: t.SQE.DWord(11)&1 != 0}, (*Task).persistNext)
}
