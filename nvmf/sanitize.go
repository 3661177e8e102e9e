package nvmf

import (
	"encoding/binary"
	"sync/atomic"

	"oneshot/nvme"
	"oneshot/volume"
	"oneshot/volume/access"
)

// Sanitize destroys what the namespaces of a subsystem hold (Base 2.0 §5.24, §8.20). The work is the volumes' (volume.Sanitize), and so
// is what a restart has to know: this file is how NVMe asks for it, and how several volumes are one subsystem.

// sanitize begins the operation, or leaves one that has failed.
func (t *Task) sanitize() volume.Next {
	s := nvme.Sanitize(t.SQE.DWord(10))
	if s.Reserved() || s.NoDeallocate() || t.Len != 0 { // the mistake of a command that destroys everything is not overlooked
		return t.refuse(nvme.InvalidField)
	}
	order := volume.Order{Action: volume.BlockErase, Unrestricted: s.Unrestricted()}
	switch s.Action() {
	case nvme.ExitFailure:
		return t.leaveSanitize()
	case nvme.BlockErase:
	case nvme.EraseOverwrite:
		const block = 512
		order.Action, order.Block, order.Count, order.Invert = volume.Overwrite, block, s.Passes(), s.Invert()
		order.Pattern = binary.LittleEndian.AppendUint32(nil, t.SQE.DWord(11))
	default:
		return t.refuse(nvme.InvalidField)
	}
	all := *t.Queue.ctrl.attached.Load()
	for _, a := range all {
		denied := access.Denial(a.denied.Load()) &^ (access.SanitizeFailed | unknown)
		switch state, failed, _ := a.ns.v.SanitizeState(); {
		case a.ns.readOnly:
			return t.refuse(nvme.WriteProtected)
		case refusal(denied, true, true) != nvme.Success:
			return t.end(refusal(denied, true, true))
		case state == volume.SanitizeHasFailed && !failed.Unrestricted && order.Unrestricted:
			return t.refuse(nvme.SanitizeFailed)
		}
	}
	t.Queue.log.Warn("a host destroys what all namespaces of the subsystem hold (Sanitize)", "host", t.Queue.ctrl.hostNQN, "subsystem", t.Queue.ctrl.sub.nqn, "namespaces", len(all))
	w := t.awaitVolumes(len(all))
	for _, a := range all {
		switch err := a.ns.v.Sanitize(order, w.done, nil); err {
		case nil:
		case volume.ErrSanitizing: // somebody else has begun to destroy this one
			w.done(nil)
		default:
			w.done(err)
		}
	}
	w.done(nil)
	return volume.Wait
}

// leaveSanitize is Exit Failure Mode.
func (t *Task) leaveSanitize() volume.Next {
	all := *t.Queue.ctrl.attached.Load()
	for _, a := range all {
		switch state, failed, _ := a.ns.v.SanitizeState(); {
		case state == volume.SanitizeUnderWay:
			return t.refuse(nvme.SanitizeInProgress)
		case state == volume.SanitizeHasFailed && !failed.Unrestricted:
			return t.refuse(nvme.SanitizeFailed)
		}
	}
	t.hold(*t.Queue.paths.Load()...)
	w := t.awaitVolumes(len(t.held))
	for _, p := range t.held {
		if _, failed := p.ns.v.MayLeaveSanitize(); !failed {
			w.done(nil)
			continue
		}
		go func() { w.done(p.ns.v.LeaveSanitize()) }() // the task waits for it
	}
	w.done(nil)
	return volume.Wait
}

// volumesWait is a command that waits until each of some volumes has kept what it asks for.
type volumesWait struct {
	t      *Task
	left   atomic.Int64 // volumes, and one for the command
	failed atomic.Bool
}

func (t *Task) awaitVolumes(n int) *volumesWait {
	w := &volumesWait{t: t}
	w.left.Store(int64(n) + 1)
	t.elsewhere = true
	return w
}

// done notes that a volume has ended. The last one ends the command.
func (w *volumesWait) done(err error) {
	if err != nil {
		w.failed.Store(true)
	}
	if w.left.Add(-1) > 0 {
		return
	}
	q := w.t.Queue
	q.post(func() {
		w.t.elsewhere = false
		s := nvme.Success
		if w.failed.Load() {
			s = nvme.InternalError // the volume has logged why
		}
		q.step(w.t, w.t.end(s))
	})
}

// sanitizeLog says how the last operation of the subsystem went: as that of the volume of which there is the worst to tell. It is under way as
// long as one volume is at it, and done when all are.
func (c *Controller) sanitizeLog() nvme.SanitizeLog {
	all := *c.attached.Load()
	var worst volume.SanitizeStatus
	var order volume.Order
	var progress uint16
	done := 0
	for _, a := range all {
		state, o, p := a.ns.v.SanitizeState()
		switch {
		case state == volume.SanitizeDone:
			done++
		case state == worst && p >= progress:
			continue
		}
		if state >= worst {
			worst, order, progress = state, o, p
		}
	}
	l := nvme.SanitizeLog{Progress: progress, Passes: uint8(order.Count)}
	switch worst {
	case volume.NeverSanitized:
		return nvme.SanitizeLog{}
	case volume.SanitizeDone:
		if done < len(all) {
			return nvme.SanitizeLog{}
		}
		l.Status = nvme.Sanitized
	case volume.SanitizeUnderWay:
		l.Status, l.Passes = nvme.SanitizeUnderWay, uint8(int(progress)*order.Count>>16)
	case volume.SanitizeHasFailed:
		l.Status, l.Passes = nvme.SanitizeFailure, 0
	}
	action := nvme.BlockErase
	if order.Action == volume.Overwrite {
		action = nvme.EraseOverwrite
	}
	l.Command = nvme.NewSanitize(action, order.Unrestricted, order.Count, order.Invert)
	return l
}

// sanitizeOver has hosts told when no namespace is at it any more. It takes no lock but a leaf.
func (s *Subsystem) sanitizeOver() {
	s.dirtyMu.Lock()
	s.sanitized = true
	s.dirtyMu.Unlock()
	s.node.notify()
}

// tellSanitized tells the controllers, unless another volume is still at it, whose end comes.
func (s *Subsystem) tellSanitized() {
	for _, c := range s.list() {
		c.admin.post(func() {
			if c.sanitizeLog().Status != nvme.SanitizeUnderWay {
				c.raise(eventSanitize)
			}
		})
	}
}
