package volume

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"oneshot/backend"
	"oneshot/mem"
)

// Journal keeps a write until it is durable, so that an atomic write leaves all of its bytes or none
// of them on a store that a power cut can leave half written. It may be called from any goroutine.
type Journal interface {
	// Begin keeps, durably, that data are about to be written at off (bytes). It waits for the End
	// of another Begin. When it fails nothing is kept, and End does not follow, unless the error has a method
	// MayBeKept: then it is as after a Begin whose End has failed.
	Begin(off int64, data []byte) error
	// End forgets it, durably.
	End() error
	// Pending returns what another process has begun and not ended, or what was left; nil if nothing. End follows
	// when that has been done.
	Pending() (off int64, data []byte, err error)
	// Leave says that who has begun a write does not end it: who opens the store next in this process has to complete it, before
	// anybody writes there.
	Leave()
}

// mayBeKept is an error of a Begin, or of a Keeper's Save, of which nobody knows whether a restart finds what was to be kept. It may until an
// End, or another Save, succeeds.
type mayBeKept interface {
	error
	MayBeKept()
}

// half is an atomic write that was begun and neither completed nor undone: the journal has it. The volume completes it when the store
// takes writes again, or who opens the store next does, after a restart say. Until then its bytes can be neither read nor written, and
// there is no other atomic write.
type half struct {
	off, n int64
	data   []byte // nil: the store has all of it, or nothing; only the journal cannot forget it. Guarded by Volume.journaling
}

// mendEvery is how long a half-written range is left alone between two attempts to complete it.
const mendEvery = 5 * time.Second

// refuses returns the error of a request that needs a range with a half-written part; nil: it does not.
func (v *Volume) refuses(off, n int64, writes bool) error {
	h := v.half.Load()
	if h == nil || off >= h.off+h.n || h.off >= off+n {
		return nil
	}
	kind := backend.Read
	if writes {
		kind = backend.Write
	}
	return &backend.MediumError{Kind: kind, Off: max(off, h.off), Err: errHalf}
}

// Whole returns nil, or why the volume itself, or a restart, will write to it before anybody else can.
func (v *Volume) Whole() error {
	if v.half.Load() != nil {
		return errHalf
	}
	return nil
}

// replay does the write that was begun when the power went.
func (v *Volume) replay(j Journal) error {
	if j == nil {
		return nil
	}
	off, data, err := j.Pending()
	if err != nil || data == nil {
		return err
	}
	if v.unsure != "" && !v.hasPartOf(off, data) {
		v.log.Warn("an atomic write was under way, and the disk has nothing of it: it is given up", "offset", off, "bytes", len(data))
		return j.End()
	}
	err = v.writeThrough(off, data)
	if _, outside := errors.AsType[*backend.RangeError](err); outside || err != nil && j != v.journal {
		return fmt.Errorf("volume: an atomic write cannot be completed after a restart: %w", err)
	}
	if err != nil {
		v.leaveHalf(&half{off, int64(len(data)), data}, err)
		return nil
	}
	return j.End()
}

// hasPartOf reports whether a block of data is on the store already, or may be. If none is, the write was not begun there, and nobody was told
// that it was done.
func (v *Volume) hasPartOf(off int64, data []byte) bool {
	now, unit := alignedBytes(len(data)), v.info.BlockSize
	err := v.wait(&backend.Op{Kind: backend.Read, Off: off, Len: int64(len(data)), Segs: [][]byte{now}})
	if err != nil {
		_, outside := errors.AsType[*backend.RangeError](err)
		return !outside
	}
	for i := 0; i < len(data); i += unit {
		if end := min(i+unit, len(data)); bytes.Equal(now[i:end], data[i:end]) {
			return true
		}
	}
	return false
}

// leaveHalf leaves a write that the journal has as it is, for a while. journaling is held, or there is nobody else yet.
func (v *Volume) leaveHalf(h *half, err error) {
	v.half.Store(h)
	v.mendLater(h)
	v.log.Error("an atomic write can be neither completed nor undone; its blocks are refused until the disk takes it, or the target is started anew",
		"offset", h.off, "bytes", h.n, "reason", err, "tried_again_every", mendEvery)
}

// mendLater has h be completed, unless that was done meanwhile, or the volume is closed.
func (v *Volume) mendLater(h *half) {
	time.AfterFunc(mendEvery, func() {
		v.journaling.Lock()
		defer v.journaling.Unlock()
		if v.half.Load() == h && v.complete(h) != nil {
			v.mendLater(h)
		}
	})
}

// complete does what is left of h, whose bytes nobody else reads or writes. journaling is held.
func (v *Volume) complete(h *half) error {
	if h.data != nil {
		if err := v.writeThrough(h.off, h.data); err != nil {
			return err
		}
		h.data = nil
	}
	if err := v.journal.End(); err != nil {
		return err
	}
	v.half.Store(nil)
	v.log.Info("the atomic write is complete", "offset", h.off, "bytes", h.n)
	return nil
}

// endMending ends what leaveHalf has begun. What is not complete is left to who opens the store next.
func (v *Volume) endMending() {
	v.journaling.Lock()
	defer v.journaling.Unlock()
	if v.half.Swap(nil) != nil {
		v.journal.Leave()
	}
}

var errHalf = errors.New("an earlier atomic write is neither complete nor undone: the target completes it as soon as the disk takes it")

// journaled writes data, all or nothing. The caller holds the range exclusively, and may be blocked.
// old is memory for as many bytes.
func (v *Volume) journaled(off int64, data, old []byte) error {
	v.journaling.Lock()
	defer v.journaling.Unlock()
	n := int64(len(data))
	if h := v.half.Load(); h != nil && v.complete(h) != nil {
		return errHalf
	}
	cannot := v.wait(&backend.Op{Kind: backend.Read, Off: off, Len: n, Segs: [][]byte{old}}) // be undone
	if err := v.journal.Begin(off, data); err != nil {
		if kept, ok := errors.AsType[mayBeKept](err); ok {
			v.leaveHalf(&half{off, n, nil}, kept)
		}
		return err
	}
	err := v.writeThrough(off, data)
	if err != nil {
		if cannot == nil {
			cannot = v.undo(off, old)
		}
		if cannot != nil {
			v.leaveHalf(&half{off, n, bytes.Clone(data)}, cannot)
			return err
		}
	}
	// A journal that keeps the write would have a restart overwrite what is written from now on.
	if end := v.journal.End(); end != nil {
		v.leaveHalf(&half{off, n, nil}, end)
		return cmp.Or(err, end)
	}
	return err
}

// undo makes the bytes at off what they were, as far as they are not. What has not been written is
// left alone: it may have no space on the medium, and need none.
func (v *Volume) undo(off int64, old []byte) error {
	unit := int64(v.info.BlockSize)
	now := alignedBytes(undoBytes)
	for at := int64(0); at < int64(len(old)); {
		n := min(int64(len(old))-at, undoBytes)
		if err := v.wait(&backend.Op{Kind: backend.Read, Off: off + at, Len: n, Segs: [][]byte{now[:n]}}); err != nil {
			return err
		}
		same := func(i int64) bool { return bytes.Equal(now[i:i+unit], old[at+i:at+i+unit]) }
		for i := int64(0); i < n; {
			end := i
			for end < n && !same(end) {
				end += unit
			}
			if end > i {
				if err := v.writeThrough(off+at+i, old[at+i:at+end]); err != nil {
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
func (v *Volume) writeThrough(off int64, data []byte) error {
	return v.wait(&backend.Op{Kind: backend.Write, Flags: backend.FUA, Off: off, Len: int64(len(data)), Segs: [][]byte{data}})
}

// wait does op and waits for it.
func (v *Volume) wait(op *backend.Op) error {
	done := make(opWaiter, 1)
	op.Done = done
	if !v.store.Submit(op) {
		<-done
	}
	return op.Err
}

// opWaiter waits for an operation.
type opWaiter chan struct{}

// OpDone is for the store.
func (w opWaiter) OpDone(*backend.Op) { w <- struct{}{} }

// writeAtomicJournaled is the end of an atomic write on a store with a journal, whose files may take
// their time.
func (r *Request) writeAtomicJournaled() Next {
	v, off, data, old := r.v, r.off, r.lease.Bytes()[:r.n], r.scratch[:r.n]
	next := r.Park(nil, (*Request).opEnd)
	go func() {
		r.op.Kind, r.op.Off, r.op.Len, r.op.Err = backend.Write, off, int64(len(data)), v.journaled(off, data, old)
		r.Grant()
	}()
	return next
}

// alignedBytes returns n bytes that direct I/O can be done with.
func alignedBytes(n int) []byte {
	b := make([]byte, n+mem.PageSize)
	head := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (mem.PageSize - 1))
	return b[head : head+n : head+n]
}
