package volume

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"

	"oneshot/backend"
	"oneshot/mem"
)

// The transfers in this file read the medium and compare it, or change it depending on what they found.
// Those that change it hold their range exclusively: nobody gets in between.

// scratchBytes of the store are looked at in one piece.
const scratchBytes = 256 << 10

// scratchOf is how much memory it takes to look at n bytes; none if they are lent.
func (r *Request) scratchOf(n int64) int {
	if r.v.lender != nil {
		return 0
	}
	return int(min(n, scratchBytes))
}

// mismatch is the offset of the first byte in which segs and want differ, or -1. They have the
// same length.
func mismatch(segs [][]byte, want []byte) int64 {
	at := 0
	for _, seg := range segs {
		part := want[at : at+len(seg)]
		if !bytes.Equal(seg, part) {
			for i := range seg {
				if seg[i] != part[i] {
					return int64(at + i)
				}
			}
		}
		at += len(seg)
	}
	return -1
}

// differs ends the transfer: byte at of the data is not what the medium has.
func (r *Request) differs(at int64) Next {
	r.Mismatch = at
	return r.end(nil)
}

// ---- compare and write ----

// CompareAndWrite pulls twice n bytes: what must be at off, and what replaces it. Mismatch says that it
// was not there, and nothing has changed. by names the initiator: if the node that has done the command is lost before it has answered, the initiator
// sends the same again to another one, and learns there that it was done.
func (r *Request) CompareAndWrite(off, n int64, fua bool, by string, then Step) Next {
	r.begins(off, n, fua, then)
	r.use()
	r.by = by
	return r.Memory(int(2*n), int(n), (*Request).comparePull)
}

func (r *Request) comparePull() Next { return r.pull(int(2*r.n), (*Request).compareLock) }

func (r *Request) compareLock() Next {
	return r.lockRange(holdExclusive, r.off, r.n, (*Request).compareStart)
}

func (r *Request) compareStart() Next {
	if r.v.lender != nil {
		return r.compareLent()
	}
	r.op.Flags = 0
	if r.v.termed != nil {
		r.op.Key = r.compareKey()
	}
	return r.submit(backend.Read, r.off, r.n, r.scratch, (*Request).compareRead)
}

// compareLent compares and writes in the store's own memory.
func (r *Request) compareLent() Next {
	r.segs = r.v.lender.Lend(r.segs[:0], r.off, r.n, false)
	data := r.lease.Bytes()
	if at := mismatch(r.segs, data[:r.n]); at >= 0 {
		return r.differs(at)
	}
	r.segs = r.v.lender.Lend(r.segs[:0], r.off, r.n, true)
	data = data[r.n:]
	for _, seg := range r.segs {
		data = data[copy(seg, data):]
	}
	r.v.lender.Commit(r.off, r.n)
	return r.changedLent()
}

// changedLent ends a transfer that has changed lent memory.
func (r *Request) changedLent() Next {
	r.leaveRange() // the store may take its time
	return r.writePlaced()
}

func (r *Request) compareRead() Next {
	if r.op.Err != nil {
		return r.opEnd()
	}
	data := r.lease.Bytes()
	if at := mismatch(r.op.Segs, data[:r.n]); at >= 0 {
		if r.op.Did && mismatch(r.op.Segs, data[r.n:]) < 0 {
			return r.submit(backend.Flush, 0, 0, nil, (*Request).opEnd) // with fua it may not have been durable yet
		}
		return r.differs(at)
	}
	r.op.Flags = r.writeFlag()
	return r.submit(backend.Write, r.off, r.n, data[r.n:], (*Request).opEnd)
}

// compareKey names the command: the same one has the same name on all nodes.
func (r *Request) compareKey() uint64 {
	data := sha256.Sum256(r.lease.Bytes()[:2*r.n])
	var b [512]byte
	name := sha256.Sum256(append(binary.BigEndian.AppendUint64(append(b[:0], data[:]...), uint64(r.off)), r.by...))
	return binary.BigEndian.Uint64(name[:]) | 1
}

// ---- or ----

// OrWrite pulls n bytes and sets their bits at off.
func (r *Request) OrWrite(off, n int64, fua bool, then Step) Next {
	r.begins(off, n, fua, then)
	return r.Memory(int(n), r.scratchOf(n), (*Request).orWritePull)
}

func (r *Request) orWritePull() Next { return r.pull(int(r.n), (*Request).orWriteLock) }

func (r *Request) orWriteLock() Next {
	return r.lockRange(holdExclusive, r.off, r.n, (*Request).orWriteStart)
}

func (r *Request) orWriteStart() Next {
	if r.v.lender == nil {
		r.done = 0
		return r.orWriteNext()
	}
	r.segs = r.v.lender.Lend(r.segs[:0], r.off, r.n, true)
	data := r.lease.Bytes()
	for _, seg := range r.segs {
		or(seg, data)
		data = data[len(seg):]
	}
	r.v.lender.Commit(r.off, r.n)
	return r.changedLent()
}

func (r *Request) orWriteNext() Next {
	if r.done == r.n {
		return r.end(nil)
	}
	r.op.Flags = 0
	return r.submit(backend.Read, r.off+r.done, min(r.n-r.done, scratchBytes), r.scratch, (*Request).orWriteRead)
}

func (r *Request) orWriteRead() Next {
	if r.op.Err != nil {
		return r.opEnd()
	}
	piece := r.op.Segs[0]
	or(piece, r.lease.Bytes()[r.done:])
	r.op.Flags = r.writeFlag()
	return r.submit(backend.Write, r.op.Off, r.op.Len, piece, (*Request).orWriteWritten)
}

func (r *Request) orWriteWritten() Next {
	if r.op.Err != nil {
		return r.opEnd()
	}
	r.done += r.op.Len
	return r.orWriteNext()
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

// ---- atomic writes ----

// Atomic reports whether a power cut leaves all or nothing of an atomic write. It does with a
// journal, where the store sees to it, and where the bytes are in memory: there it leaves nothing of anything.
func (v *Volume) Atomic() bool { return v.lender != nil || v.whole != nil || v.journal != nil }

// MaxAtomic is how many bytes an atomic write can have whose request leases at most most at once: with
// a journal, what was there before has to fit into the same lease.
func (v *Volume) MaxAtomic(most int64) int64 {
	switch {
	case v.lender != nil:
		return most
	case v.whole != nil:
		return min(most, v.whole.MaxAtomic())
	}
	return most / 2 &^ (mem.PageSize - 1)
}

// WriteAtomic is Write of which others see all of the bytes, or none. Only if Atomic.
func (r *Request) WriteAtomic(off, n int64, fua bool, then Step) Next {
	r.begins(off, n, fua, then)
	old := 0
	if r.v.lender == nil && r.v.whole == nil {
		old = int(n) // bytes that are written back should the store fail half-way
	}
	return r.Memory(int(n), old, (*Request).writeAtomicPull)
}

func (r *Request) writeAtomicPull() Next { return r.pull(int(r.n), (*Request).writeAtomicLock) }

func (r *Request) writeAtomicLock() Next {
	return r.lockRange(holdExclusive, r.off, r.n, (*Request).writeAtomicStart)
}

func (r *Request) writeAtomicStart() Next {
	switch {
	case r.v.lender != nil:
	case r.v.whole != nil:
		r.op.Flags = r.writeFlag() | backend.Atomic
		return r.submit(backend.Write, r.off, r.n, r.lease.Bytes(), (*Request).opEnd)
	default:
		return r.writeAtomicJournaled()
	}
	r.segs = r.v.lender.Lend(r.segs[:0], r.off, r.n, true)
	data := r.lease.Bytes()
	for _, seg := range r.segs {
		data = data[copy(seg, data):]
	}
	r.v.lender.Commit(r.off, r.n)
	return r.changedLent()
}

// ---- verify ----

// Verify reads [off, off+n) from the medium. With compare it pulls as many bytes, and Mismatch tells of
// the first that is another one.
func (r *Request) Verify(off, n int64, compare bool, then Step) Next {
	r.use()
	r.after, r.writes, r.fua = then, false, false
	r.off, r.n, r.compare, r.fresh = off, n, compare, true
	switch {
	case compare:
		return r.Memory(int(n), r.scratchOf(n), (*Request).verifyPull)
	case r.v.lender != nil: // memory that the store lends can be read
		return r.end(nil)
	}
	// The piece that is read takes the place of the scratch memory.
	return r.Memory(r.scratchOf(n), 0, (*Request).verifyOwn)
}

func (r *Request) verifyOwn() Next {
	r.scratch = r.lease.Bytes()
	return r.verifyLock()
}

func (r *Request) verifyPull() Next { return r.pull(int(r.n), (*Request).verifyLock) }

func (r *Request) verifyLock() Next {
	return r.lockRange(holdShared, r.off, r.n, (*Request).verifyRange)
}

// verifyRange compares the range with the lease, if r.compare is set, after having read it.
func (r *Request) verifyRange() Next {
	if r.v.lender == nil {
		r.done = 0
		return r.verifyNext()
	}
	r.segs = r.v.lender.Lend(r.segs[:0], r.off, r.n, false)
	return r.differs(mismatch(r.segs, r.lease.Bytes()[:r.n]))
}

func (r *Request) verifyNext() Next {
	if r.done == r.n {
		return r.end(nil)
	}
	r.op.Flags = 0
	if r.fresh {
		r.op.Flags = backend.FUA // what is verified is the medium
	}
	return r.submit(backend.Read, r.off+r.done, min(r.n-r.done, scratchBytes), r.scratch, (*Request).verifyRead)
}

func (r *Request) verifyRead() Next {
	if r.op.Err != nil {
		return r.opEnd()
	}
	if r.compare {
		want := r.lease.Bytes()[r.done : r.done+r.op.Len]
		if at := mismatch(r.op.Segs, want); at >= 0 {
			return r.differs(r.done + at)
		}
	}
	r.done += r.op.Len
	return r.verifyNext()
}

// WriteAndVerify is Write with fua, and then reads the bytes. With compare it compares them, too.
func (r *Request) WriteAndVerify(off, n int64, compare bool, then Step) Next {
	if r.v.lender != nil {
		return r.Write(off, n, true, then) // a copy in memory differs from its original in nothing
	}
	r.begins(off, n, true, then)
	r.compare, r.fresh = compare, false
	return r.Memory(int(n), r.scratchOf(n), (*Request).verifyWritePull)
}

func (r *Request) verifyWritePull() Next { return r.pull(int(r.n), (*Request).verifyWriteLock) }

func (r *Request) verifyWriteLock() Next {
	return r.lockRange(holdShared, r.off, r.n, (*Request).verifyWrite)
}

func (r *Request) verifyWrite() Next {
	r.op.Flags = backend.FUA
	return r.submit(backend.Write, r.off, r.n, r.lease.Bytes(), (*Request).verifyWritten)
}

func (r *Request) verifyWritten() Next {
	if r.op.Err != nil {
		return r.opEnd()
	}
	return r.verifyRange()
}
