package scsi

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"

	"oneshot/backend"
)

// Journal keeps a write until it is durable, so that WRITE ATOMIC leaves all of its blocks or none
// of them on a store that a power cut can leave half written. It may be called from any goroutine.
type Journal interface {
	// Begin keeps, durably, that data are about to be written at off (bytes). It waits for the End
	// of another Begin. When it fails nothing is kept, and End does not follow.
	Begin(off int64, data []byte) error
	// End forgets it, durably.
	End() error
	// Pending returns what another process has begun and not ended; nil if nothing. End follows
	// when that has been done.
	Pending() (off int64, data []byte, err error)
}

// half is an atomic write that was begun and neither completed nor undone: the journal has it, and a
// restart completes it. Until then its blocks can be neither read nor written, and there is no other
// atomic write. If the store is whole and only the journal is not, the next atomic write elsewhere
// tries to mend that.
type half struct {
	off, n int64
	whole  bool // the store has all of it, or nothing; only the journal cannot forget it
}

// refuses returns the sense data for a command of t that needs a range with a half-written part.
func (lu *LogicalUnit) refuses(t *Task, off, n int64) (Sense, bool) {
	h := lu.half.Load()
	if h == nil || off >= h.off+h.n || h.off >= off+n {
		return Sense{}, false
	}
	s := Sense{Key: keyMediumError, Code: 0x1100, Info: uint64(max(off, h.off)) >> lu.blockShift, InfoValid: true}
	if t.cmd.Flags&writesMedium != 0 {
		s.Code = 0x0c00
	}
	return s, true
}

// replay does the write that was begun when the power went.
func (lu *LogicalUnit) replay() error {
	if lu.journal == nil {
		return nil
	}
	off, data, err := lu.journal.Pending()
	if err != nil || data == nil {
		return err
	}
	err = lu.writeThrough(off, data)
	if _, outside := errors.AsType[*backend.RangeError](err); outside {
		return fmt.Errorf("scsi: an atomic write cannot be completed after a restart: %w", err)
	}
	if err != nil {
		lu.leaveHalf(off, int64(len(data)), false, err)
		return nil
	}
	return lu.journal.End()
}

// leaveHalf gives up on a write that the journal has.
func (lu *LogicalUnit) leaveHalf(off, n int64, whole bool, err error) {
	lu.half.Store(&half{off, n, whole})
	lu.log.halfWritten(lu, off, n, err)
}

var errHalf = errors.New("an earlier atomic write is neither complete nor undone: restart the target to have it completed")

// journaled writes data, all or nothing. The caller has the range for itself, and may be blocked. old
// is memory for as many bytes.
func (lu *LogicalUnit) journaled(off int64, data, old []byte) error {
	lu.journaling.Lock()
	defer lu.journaling.Unlock()
	n := int64(len(data))
	if h := lu.half.Load(); h != nil {
		if !h.whole || lu.journal.End() != nil {
			return errHalf
		}
		lu.half.Store(nil)
	}
	cannot := lu.wait(&backend.Op{Kind: backend.Read, Off: off, Len: n, Segs: [][]byte{old}}) // be undone
	if err := lu.journal.Begin(off, data); err != nil {
		return err
	}
	err := lu.writeThrough(off, data)
	if err != nil {
		if cannot == nil {
			cannot = lu.undo(off, old)
		}
		if cannot != nil {
			lu.leaveHalf(off, n, false, cannot)
			return err
		}
	}
	// A journal that keeps the write would have a restart overwrite what is written from now on.
	if end := lu.journal.End(); end != nil {
		lu.leaveHalf(off, n, true, end)
		return cmp.Or(err, end)
	}
	return err
}

// undo makes the bytes at off what they were, as far as they are not. What has not been written is
// left alone: it may have no space on the medium, and need none.
func (lu *LogicalUnit) undo(off int64, old []byte) error {
	unit := int64(lu.info.BlockSize)
	now := alignedBytes(undoBytes)
	for at := int64(0); at < int64(len(old)); {
		n := min(int64(len(old))-at, undoBytes)
		if err := lu.wait(&backend.Op{Kind: backend.Read, Off: off + at, Len: n, Segs: [][]byte{now[:n]}}); err != nil {
			return err
		}
		same := func(i int64) bool { return bytes.Equal(now[i:i+unit], old[at+i:at+i+unit]) }
		for i := int64(0); i < n; {
			end := i
			for end < n && !same(end) {
				end += unit
			}
			if end > i {
				if err := lu.writeThrough(off+at+i, old[at+i:at+end]); err != nil {
					return err
				}
			}
			for i = end; i < n && same(i); {
				i += unit
			}
		}
		at += n
	}
	return nil
}

const undoBytes = 64 << 10 // looked at in one piece by undo

// writeThrough writes and waits until the bytes are durable.
func (lu *LogicalUnit) writeThrough(off int64, data []byte) error {
	return lu.wait(&backend.Op{Kind: backend.Write, Flags: backend.FUA, Off: off, Len: int64(len(data)), Segs: [][]byte{data}})
}

// wait does op and waits for it.
func (lu *LogicalUnit) wait(op *backend.Op) error {
	done := make(opWaiter, 1)
	op.Done = done
	if !lu.store.Submit(op) {
		<-done
	}
	return op.Err
}

// opWaiter waits for an operation.
type opWaiter chan struct{}

// OpDone is for the store.
func (w opWaiter) OpDone(*backend.Op) { w <- struct{}{} }

// writeAtomicJournaled is the end of WRITE ATOMIC on a store with a journal, whose files may take
// their time.
func (t *Task) writeAtomicJournaled() Next {
	t.phase = phaseOthers
	t.then = (*Task).opGood
	lu, off, data, old, owner := t.lu, t.off, t.lease.Bytes()[:t.n], t.scratch[:t.n], t.Owner
	go func() {
		t.op.Kind, t.op.Off, t.op.Len, t.op.Err = backend.Write, off, int64(len(data)), lu.journaled(off, data, old)
		t.granted.Store(true)
		owner.TaskReady(t)
	}()
	return Wait
}
