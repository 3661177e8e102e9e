package scsi

import (
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

// replay does the write that was begun when the power went.
func (lu *LogicalUnit) replay() error {
	if lu.journal == nil {
		return nil
	}
	off, data, err := lu.journal.Pending()
	if err != nil || data == nil {
		return err
	}
	if err := lu.writeThrough(off, data); err != nil {
		return fmt.Errorf("scsi: an atomic write cannot be completed after a restart: %w", err)
	}
	return lu.journal.End()
}

// journaled writes data, all or nothing. The caller has the range for itself, and may be blocked.
func (lu *LogicalUnit) journaled(off int64, data []byte) error {
	j := lu.journal
	if err := j.Begin(off, data); err != nil {
		return err
	}
	if err := lu.writeThrough(off, data); err != nil {
		// The command fails, and what is there is the initiator's to repair: a restart must not
		// overwrite what it has written since.
		if end := j.End(); end != nil {
			lu.log.journalFailed(lu, end)
		}
		return err
	}
	return j.End()
}

// writeThrough writes and waits until the bytes are durable.
func (lu *LogicalUnit) writeThrough(off int64, data []byte) error {
	done := make(opWaiter, 1)
	op := &backend.Op{Kind: backend.Write, Flags: backend.FUA, Off: off, Len: int64(len(data)), Segs: [][]byte{data}, Done: done}
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
	lu, off, data, owner := t.lu, t.off, t.lease.Bytes()[:t.n], t.Owner
	go func() {
		t.op.Kind, t.op.Off, t.op.Len, t.op.Err = backend.Write, off, int64(len(data)), lu.journaled(off, data)
		t.granted.Store(true)
		owner.TaskReady(t)
	}()
	return Wait
}
