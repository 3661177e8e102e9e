package scsi

import (
	"encoding/binary"
	"errors"

	"oneshot/volume"
)

// SANITIZE, SBC-3 §4.11 and §5.34. The work is the volume's (volume.Sanitize).

// Service actions.
const (
	sanitizeOverwrite  = volume.Overwrite
	sanitizeBlockErase = volume.BlockErase
	sanitizeExit       = 0x1f
)

// ---- the commands ----

const (
	sanitizeIMMED = 0x80
	sanitizeAUSE  = 0x20
)

// sanitizeReserved is the first byte of the CDB in which a reserved bit is set, or 0. The mistake
// of a command that destroys everything is not overlooked.
func (t *Task) sanitizeReserved() int {
	for i := 1; i < 7; i++ {
		if b := t.CDB[i]; i == 1 && b&0x40 != 0 || i > 1 && b != 0 {
			return i
		}
	}
	return 0
}

func (t *Task) sanitizeBlockErase() Next {
	if t.CDB[7]|t.CDB[8] != 0 {
		return t.check(invalidField(7))
	}
	return t.sanitize(volume.Order{Action: sanitizeBlockErase})
}

func (t *Task) sanitizeOverwrite() Next {
	n := int64(binary.BigEndian.Uint16(t.CDB[7:]))
	if n <= 4 || n > 4+t.lu.blockSize {
		return t.check(invalidField(7))
	}
	return t.takeParameters(n, (*Task).sanitizeParse)
}

func (t *Task) sanitizeParse() Next {
	order, s, ok := parseOverwrite(t.parameters(), int(t.lu.blockSize))
	if !ok {
		return t.check(s)
	}
	return t.sanitize(order)
}

// parseOverwrite reads the parameter list of an overwrite, SBC-3 §5.34.2.2.
func parseOverwrite(list []byte, blockSize int) (order volume.Order, s Sense, ok bool) {
	c := cursor{b: list}
	flags := c.u8()
	c.skip(1)
	n := int(c.u16())
	switch {
	case flags&0x60 != 0: // TEST
		c.fail(invalidParameter(0))
	case flags&0x1f == 0:
		c.fail(invalidParameter(0))
	case n == 0 || n > blockSize:
		c.fail(invalidParameter(2))
	}
	if c.err != (Sense{}) {
		return order, c.err, false
	}
	order = volume.Order{Action: sanitizeOverwrite, Block: blockSize, Count: int(flags & 0x1f), Invert: flags&0x80 != 0}
	order.Pattern = append(order.Pattern, c.bytes(n)...)
	return order, c.err, c.err == Sense{}
}

// sanitize begins the operation, and waits for its end unless IMMED is set.
func (t *Task) sanitize(order volume.Order) Next {
	if at := t.sanitizeReserved(); at != 0 {
		return t.check(invalidField(at))
	}
	order.Unrestricted = t.CDB[1]&sanitizeAUSE != 0
	w := &sanitizeWaiter{lu: t.lu, task: t}
	t.waiter = w
	begun, over := w.over, w.over
	if t.CDB[1]&sanitizeIMMED != 0 { // answered when it is certain to be done
		over = nil
	} else {
		begun = nil
	}
	t.r.Park(withdrawSanitize, t.before((*Task).sanitizeEnded))
	w.exempt(1)
	err := t.lu.v.Sanitize(order, begun, over)
	if err == nil {
		return Wait
	}
	w.exempt(-1)
	if err == volume.ErrRestricted {
		return t.check(invalidField(1))
	}
	return t.check(t.lu.conditionOf(denySanitizing)) // of a command that came at the same time
}

// sanitizeWaiter is a command that waits for the beginning or the end of a sanitize operation, which
// does not wait for it.
type sanitizeWaiter struct {
	lu   *LogicalUnit
	task *Task // nil: it has been told, or waits no more; guarded by lu.mu
	err  error
}

func (w *sanitizeWaiter) exempt(n int64) {
	w.lu.mu.Lock()
	defer w.lu.mu.Unlock()
	w.lu.exempt += n
	w.lu.checkDrained()
}

// over tells the command.
func (w *sanitizeWaiter) over(err error) {
	if t := w.take(); t != nil {
		w.err = err
		t.r.Grant()
	}
}

// take returns the command if it waits.
func (w *sanitizeWaiter) take() *Task {
	w.lu.mu.Lock()
	defer w.lu.mu.Unlock()
	t := w.task
	if t != nil {
		w.task = nil
		w.lu.exempt--
	}
	return t
}

// withdrawSanitize: the command does not wait any more. False: it is being told.
func withdrawSanitize(r *volume.Request) bool { return taskOf(r).waiter.take() != nil }

func (t *Task) sanitizeEnded() Next {
	switch err := t.waiter.err; {
	case errors.Is(err, volume.ErrNotKept):
		return t.check(senseInternal)
	case errors.Is(err, volume.ErrSanitizing):
		return t.check(t.lu.conditionOf(denySanitizing))
	case err != nil:
		return t.check(t.lu.conditionOf(denySanitizeFailed))
	}
	return t.good()
}

// sanitizeExit is EXIT FAILURE MODE, SBC-3 §5.34.2.5.
func (t *Task) sanitizeExit() Next {
	if t.CDB[7]|t.CDB[8] != 0 {
		return t.check(invalidField(7))
	}
	allowed, failed := t.lu.v.MayLeaveSanitize()
	switch {
	case !allowed:
		return t.check(invalidField(1))
	case !failed:
		return t.good()
	}
	next := t.r.Park(nil, t.before((*Task).sanitizeEnded))
	t.waiter = &sanitizeWaiter{}
	go func() {
		switch err := t.lu.v.LeaveSanitize(); err {
		case nil, volume.ErrSanitizing, volume.ErrRestricted:
			t.waiter.err = err
		default:
			t.lu.log.notKept(err)
			t.waiter.err = volume.ErrNotKept
		}
		t.r.Grant()
	}()
	return next
}
