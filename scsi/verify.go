package scsi

import (
	"bytes"

	"oneshot/backend"
)

// Values of BYTCHK in byte 1 of VERIFY and WRITE AND VERIFY (SBC-3 §5.38).
const (
	maskBYTCHK    = 0x06
	bytchkMedium  = 0x00 // the medium is read, nothing is compared
	bytchkCompare = 0x02 // it is compared with the data-out
)

// work is the state of commands that go through a range in pieces.
type work struct {
	done    int64 // bytes of the current range dealt with
	compare bool
	kind    backend.Kind
	ranges  []blockRange // UNMAP: the ranges after the current one
	status  []byte       // GET LBA STATUS: the answer so far
}

// ---- VERIFY ----

func (t *Task) verify10() Next {
	lba, blocks := t.range10()
	return t.verify(lba, blocks)
}

func (t *Task) verify12() Next {
	lba, blocks := t.range12()
	return t.verify(lba, blocks)
}

func (t *Task) verify16() Next {
	lba, blocks := t.range16()
	return t.verify(lba, blocks)
}

func (t *Task) verify(lba, blocks uint64) Next {
	if !t.verifyFlags() {
		return t.check(invalidField(1))
	}
	if s, ok := t.setRange(lba, blocks, t.maxTransfer()); !ok {
		return t.check(s)
	}
	if !t.compare {
		return t.verifyMedium()
	}
	return t.takeAll(t.n, t.verifyScratch(), (*Task).verifyPull)
}

// verifyFlags looks at byte 1. A BYTCHK that compares with one block only is not supported.
func (t *Task) verifyFlags() bool {
	check := t.CDB[1] & maskBYTCHK
	t.compare = check == bytchkCompare
	return t.CDB[1]&protectAll == 0 && (check == bytchkMedium || t.compare)
}

// takeAll gets the memory for a command that needs n bytes of data-out and not one less.
func (t *Task) takeAll(n int64, scratch int, then func(*Task) Next) Next {
	t.Transfer, t.TransferOut = uint64(n), true
	if int64(t.DataOutLen) < n {
		return t.check(senseInvalidIU)
	}
	if n == 0 {
		return t.good()
	}
	return t.withMemory(int(n), scratch, then)
}

// verifyScratch is how much memory it takes to look at the range; none if it is lent.
func (t *Task) verifyScratch() int {
	if t.lu.lender != nil {
		return 0
	}
	return int(min(t.n, scratchBytes))
}

// verifyMedium reads the range. Memory that the store lends can be read.
func (t *Task) verifyMedium() Next {
	if t.n == 0 || t.lu.lender != nil {
		return t.good()
	}
	// The piece that is read takes the place of the scratch memory.
	return t.withMemory(t.verifyScratch(), 0, (*Task).verifyOwn)
}

func (t *Task) verifyOwn() Next {
	t.scratch = t.lease.Bytes()
	return t.verifyLock()
}

func (t *Task) verifyPull() Next { return t.pull(int(t.n), (*Task).verifyLock) }

func (t *Task) verifyLock() Next { return t.lockRange(holdShared, t.off, t.n, (*Task).verifyRange) }

// verifyRange compares the range with t.lease, if t.compare is set, after having read it.
func (t *Task) verifyRange() Next {
	if t.lu.lender == nil {
		t.done = 0
		return t.verifyNext()
	}
	t.segs = t.lu.lender.Lend(t.segs[:0], t.off, t.n, false)
	if at := mismatch(t.segs, t.lease.Bytes()[:t.n]); at >= 0 {
		return t.check(miscompare(int64(at)))
	}
	return t.good()
}

func (t *Task) verifyNext() Next {
	if t.done == t.n {
		return t.good()
	}
	t.op.Flags = 0
	if t.cmd.Flags&writesMedium == 0 {
		t.op.Flags = backend.FUA // what is verified is the medium
	}
	return t.submit(backend.Read, t.off+t.done, min(t.n-t.done, scratchBytes), t.scratch, (*Task).verifyRead)
}

func (t *Task) verifyRead() Next {
	if t.op.Err != nil {
		return t.storeFailed()
	}
	if t.compare {
		want := t.lease.Bytes()[t.done : t.done+t.op.Len]
		if at := mismatch(t.op.Segs, want); at >= 0 {
			return t.check(miscompare(t.done + int64(at)))
		}
	}
	t.done += t.op.Len
	return t.verifyNext()
}

// miscompare says at which byte of the data-out the medium differs.
func miscompare(off int64) Sense {
	return Sense{Key: keyMiscompare, Code: 0x1d00, Info: uint64(off), InfoValid: true}
}

// mismatch is the offset of the first byte in which segs and want differ, or -1. They have the
// same length.
func mismatch(segs [][]byte, want []byte) int {
	at := 0
	for _, seg := range segs {
		part := want[at : at+len(seg)]
		if !bytes.Equal(seg, part) {
			for i := range seg {
				if seg[i] != part[i] {
					return at + i
				}
			}
		}
		at += len(seg)
	}
	return -1
}

// ---- WRITE AND VERIFY ----

func (t *Task) writeAndVerify10() Next {
	lba, blocks := t.range10()
	return t.writeAndVerify(lba, blocks)
}

func (t *Task) writeAndVerify12() Next {
	lba, blocks := t.range12()
	return t.writeAndVerify(lba, blocks)
}

func (t *Task) writeAndVerify16() Next {
	lba, blocks := t.range16()
	return t.writeAndVerify(lba, blocks)
}

func (t *Task) writeAndVerify(lba, blocks uint64) Next {
	if !t.verifyFlags() {
		return t.check(invalidField(1))
	}
	t.fua = true // it is the medium that is to be verified
	if t.lu.lender != nil {
		return t.write(lba, blocks) // a copy in memory differs from its original in nothing
	}
	if s, ok := t.setWriteRange(lba, blocks); !ok {
		return t.check(s)
	}
	if t.n == 0 {
		return t.good()
	}
	return t.withMemory(int(t.n), t.verifyScratch(), (*Task).verifyWritePull)
}

func (t *Task) verifyWritePull() Next { return t.pull(int(t.n), (*Task).verifyWriteLock) }

func (t *Task) verifyWriteLock() Next {
	return t.lockRange(holdShared, t.off, t.n, (*Task).verifyWrite)
}

func (t *Task) verifyWrite() Next {
	t.op.Flags = backend.FUA
	return t.submit(backend.Write, t.off, t.n, t.lease.Bytes(), (*Task).verifyWritten)
}

func (t *Task) verifyWritten() Next {
	if t.op.Err != nil {
		return t.storeFailed()
	}
	return t.verifyRange()
}
