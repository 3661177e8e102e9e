package scsi

import (
	"encoding/binary"

	"oneshot/backend"
	"oneshot/mem"
)

// The commands in this file read the medium and change it depending on what they found, and
// nobody gets in between: they hold their range exclusively.

// ---- COMPARE AND WRITE ----

// compareAndWrite is SBC-3 §5.2. The data-out is what must be there, then what replaces it.
func (t *Task) compareAndWrite() Next {
	lba, blocks := binary.BigEndian.Uint64(t.CDB[2:]), uint64(t.CDB[13])
	if t.CDB[1]&protectAll != 0 {
		return t.check(invalidField(1))
	}
	if s, ok := t.setRange(lba, blocks, t.maxTransfer()); !ok {
		return t.check(s)
	}
	if int64(blocks) > t.maxCompareBlocks() {
		return t.check(invalidField(13))
	}
	t.fua = t.CDB[1]&bitFUA != 0
	if int64(t.DataOutLen) != 2*t.n {
		// Sent by somebody who means another number of blocks.
		t.Transfer, t.TransferOut = uint64(2*t.n), true
		return t.check(invalidField(13))
	}
	return t.takeAll(2*t.n, int(t.n), (*Task).compareAndWritePull)
}

func (t *Task) compareAndWritePull() Next {
	return t.pull(int(2*t.n), (*Task).compareAndWriteLock)
}

func (t *Task) compareAndWriteLock() Next {
	return t.lockRange(holdExclusive, t.off, t.n, (*Task).compareStart)
}

func (t *Task) compareStart() Next {
	if t.lu.lender != nil {
		return t.compareLent()
	}
	t.op.Flags = 0
	return t.submit(backend.Read, t.off, t.n, t.scratch, (*Task).compareRead)
}

// compareLent compares and writes in the store's own memory.
func (t *Task) compareLent() Next {
	t.segs = t.lu.lender.Lend(t.segs[:0], t.off, t.n, false)
	data := t.lease.Bytes()
	if at := mismatch(t.segs, data[:t.n]); at >= 0 {
		return t.check(miscompare(int64(at)))
	}
	t.segs = t.lu.lender.Lend(t.segs[:0], t.off, t.n, true)
	data = data[t.n:]
	for _, seg := range t.segs {
		data = data[copy(seg, data):]
	}
	t.lu.lender.Commit(t.off, t.n)
	return t.changedLent()
}

// changedLent ends a command that has changed lent memory.
func (t *Task) changedLent() Next {
	t.leaveRange() // the store may take its time
	return t.writePlaced()
}

func (t *Task) compareRead() Next {
	if t.op.Err != nil {
		return t.storeFailed()
	}
	data := t.lease.Bytes()
	if at := mismatch(t.op.Segs, data[:t.n]); at >= 0 {
		return t.check(miscompare(int64(at)))
	}
	t.op.Flags = t.writeFlag()
	return t.submit(backend.Write, t.off, t.n, data[t.n:], (*Task).opGood)
}

// writeFlag is FUA of the CDB for the store.
func (t *Task) writeFlag() backend.Flags {
	if t.fua {
		return backend.FUA
	}
	return 0
}

// ---- ORWRITE ----

// orWrite16 is SBC-3 §5.8.
func (t *Task) orWrite16() Next {
	lba, blocks := t.range16()
	if t.CDB[1]&protectAll != 0 {
		return t.check(invalidField(1))
	}
	if s, ok := t.setRange(lba, blocks, t.maxTransfer()); !ok {
		return t.check(s)
	}
	t.fua = t.CDB[1]&bitFUA != 0
	return t.takeAll(t.n, t.verifyScratch(), (*Task).orWritePull)
}

func (t *Task) orWritePull() Next { return t.pull(int(t.n), (*Task).orWriteLock) }

func (t *Task) orWriteLock() Next {
	return t.lockRange(holdExclusive, t.off, t.n, (*Task).orWriteStart)
}

func (t *Task) orWriteStart() Next {
	if t.lu.lender == nil {
		t.done = 0
		return t.orWriteNext()
	}
	t.segs = t.lu.lender.Lend(t.segs[:0], t.off, t.n, true)
	data := t.lease.Bytes()
	for _, seg := range t.segs {
		or(seg, data)
		data = data[len(seg):]
	}
	t.lu.lender.Commit(t.off, t.n)
	return t.changedLent()
}

func (t *Task) orWriteNext() Next {
	if t.done == t.n {
		return t.good()
	}
	t.op.Flags = 0
	return t.submit(backend.Read, t.off+t.done, min(t.n-t.done, scratchBytes), t.scratch, (*Task).orWriteRead)
}

func (t *Task) orWriteRead() Next {
	if t.op.Err != nil {
		return t.storeFailed()
	}
	piece := t.op.Segs[0]
	or(piece, t.lease.Bytes()[t.done:])
	t.op.Flags = t.writeFlag()
	return t.submit(backend.Write, t.op.Off, t.op.Len, piece, (*Task).orWriteWritten)
}

func (t *Task) orWriteWritten() Next {
	if t.op.Err != nil {
		return t.storeFailed()
	}
	t.done += t.op.Len
	return t.orWriteNext()
}

// or sets in dst the bits that are set in src, which is at least as long.
func or(dst, src []byte) {
	for len(dst) >= 8 {
		v := binary.NativeEndian.Uint64(dst) | binary.NativeEndian.Uint64(src)
		binary.NativeEndian.PutUint64(dst, v)
		dst, src = dst[8:], src[8:]
	}
	for i := range dst {
		dst[i] |= src[i]
	}
}

// ---- WRITE ATOMIC ----

// atomicWrites reports whether a power cut leaves all or nothing of a write. It does with a
// journal, and where the bytes are in memory: there it leaves nothing of anything.
func (lu *LogicalUnit) atomicWrites() bool { return lu.lender != nil || lu.journal != nil }

// maxAtomic is how many bytes WRITE ATOMIC can write: with a journal, what was there before has to fit
// into the same lease.
func (t *Task) maxAtomic() int64 {
	if t.lu.lender == nil {
		return t.maxTransfer() / 2 &^ (mem.PageSize - 1)
	}
	return t.maxTransfer()
}

// writeAtomic16 is SBC-4 §5.48: other commands see all of the blocks changed, or none.
func (t *Task) writeAtomic16() Next {
	if t.CDB[1]&protectAll != 0 {
		return t.check(invalidField(1))
	}
	lba, blocks := binary.BigEndian.Uint64(t.CDB[2:]), uint64(binary.BigEndian.Uint16(t.CDB[12:]))
	if blocks > uint64(t.maxAtomic())>>t.lu.blockShift {
		return t.check(invalidField(12))
	}
	if s, ok := t.setRange(lba, blocks, t.maxAtomic()); !ok {
		return t.check(s)
	}
	if t.CDB[10]|t.CDB[11] != 0 { // ATOMIC BOUNDARY: none is supported
		return t.check(invalidField(10))
	}
	t.fua = t.CDB[1]&bitFUA != 0
	old := 0
	if t.lu.lender == nil {
		old = int(t.n) // bytes that are written back should the store fail half-way
	}
	return t.takeAll(t.n, old, (*Task).writeAtomicPull)
}

func (t *Task) writeAtomicPull() Next { return t.pull(int(t.n), (*Task).writeAtomicLock) }

func (t *Task) writeAtomicLock() Next {
	return t.lockRange(holdExclusive, t.off, t.n, (*Task).writeAtomicStart)
}

func (t *Task) writeAtomicStart() Next {
	if t.lu.lender == nil {
		return t.writeAtomicJournaled()
	}
	t.segs = t.lu.lender.Lend(t.segs[:0], t.off, t.n, true)
	data := t.lease.Bytes()
	for _, seg := range t.segs {
		data = data[copy(seg, data):]
	}
	t.lu.lender.Commit(t.off, t.n)
	return t.changedLent()
}
