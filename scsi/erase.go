package scsi

import (
	"bytes"
	"encoding/binary"

	"oneshot/backend"
)

// The commands in this file write much more than they are sent. They work in pieces, between
// which other commands of the connection get their turn.

// eraseBytes is how much is unmapped or zeroed in one piece.
const eraseBytes = 8 << 20

// blockRange is a range of bytes that UNMAP is to give back.
type blockRange struct{ off, n int64 }

// ---- WRITE SAME ----

const (
	bitAnchor = 0x10
	bitUnmap  = 0x08
	bitNDOB   = 0x01
)

func (t *Task) writeSame10() Next {
	lba, blocks := t.range10()
	return t.writeSame(lba, blocks, false)
}

func (t *Task) writeSame16() Next {
	lba, blocks := t.range16()
	return t.writeSame(lba, blocks, t.CDB[1]&bitNDOB != 0)
}

// writeSame is SBC-3 §5.49. Without a data-out buffer (ndob) the block is one of zeroes.
func (t *Task) writeSame(lba, blocks uint64, ndob bool) Next {
	flags := t.CDB[1]
	// Nothing can be anchored here (ANC_SUP = 0).
	if flags&(protectAll|bitAnchor) != 0 || flags&bitUnmap != 0 && !t.lu.thin() {
		return t.check(invalidField(1))
	}
	if blocks == 0 { // WSNZ = 0: up to the last block
		capacity := t.lu.blocks()
		if lba >= capacity {
			return t.check(senseLBAOutOfRange)
		}
		blocks = capacity - lba
	}
	if s, ok := t.setRange(lba, blocks, maxWriteSameBytes); !ok {
		return t.check(s)
	}
	t.kind = backend.WriteZeroes
	if flags&bitUnmap != 0 {
		t.kind = backend.Discard
	}
	if ndob {
		return t.erase()
	}
	t.Transfer, t.TransferOut = uint64(t.lu.blockSize), true
	if int64(t.DataOutLen) != t.lu.blockSize {
		return t.check(senseInvalidIU)
	}
	return t.withMemory(int(min(t.n, workBytes, t.maxTransfer())), 0, (*Task).writeSamePull)
}

func (t *Task) writeSamePull() Next { return t.pull(int(t.lu.blockSize), (*Task).writeSameStart) }

func (t *Task) writeSameStart() Next {
	piece := t.lease.Bytes()
	block := piece[:t.lu.blockSize]
	if allZero(block) {
		return t.erase()
	}
	// SBC-3 §4.7.3.4.3: what would not read back as zeroes is written, UNMAP or not.
	for n := len(block); n < len(piece); n *= 2 {
		copy(piece[n:], piece[:n])
	}
	t.kind = backend.Write
	return t.erase()
}

func allZero(b []byte) bool { return b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1]) }

// erase does t.kind to [t.off, t.off+t.n) and to t.ranges.
func (t *Task) erase() Next {
	t.done = 0
	return t.eraseNext()
}

func (t *Task) eraseNext() Next {
	for t.done == t.n {
		if len(t.ranges) == 0 {
			return t.good()
		}
		t.off, t.n, t.done = t.ranges[0].off, t.ranges[0].n, 0
		t.ranges = t.ranges[1:]
	}
	off, n := t.erasePiece()
	return t.lockRange(holdShared, off, n, (*Task).eraseSubmit)
}

// erasePiece is the next piece. Pieces end at multiples of their size, so that what can be
// given back in whole units is not divided.
func (t *Task) erasePiece() (off, n int64) {
	piece := int64(eraseBytes)
	if t.kind == backend.Write {
		piece = workBytes
	}
	off = t.off + t.done
	n = min(t.n-t.done, piece-off%piece)
	if t.kind == backend.Write {
		n = min(n, int64(len(t.lease.Bytes())))
	}
	return off, n
}

func (t *Task) eraseSubmit() Next {
	off, n := t.erasePiece()
	var data []byte
	if t.kind == backend.Write {
		data = t.lease.Bytes()
	}
	t.op.Flags = 0
	return t.submit(t.kind, off, n, data, (*Task).eraseDone)
}

func (t *Task) eraseDone() Next {
	t.leaveRange()
	if t.op.Err != nil {
		return t.storeFailed()
	}
	t.done += t.op.Len
	if t.done == t.n && len(t.ranges) == 0 {
		return t.good()
	}
	return t.yield((*Task).eraseNext)
}

// ---- UNMAP ----

const (
	unmapHeader     = 8
	unmapDescriptor = 16
	maxUnmapList    = unmapHeader + maxUnmapDescriptors*unmapDescriptor
)

// unmapBlocks is SBC-3 §5.28.
func (t *Task) unmapBlocks() Next {
	if t.CDB[1]&0x01 != 0 { // ANCHOR
		return t.check(invalidField(1))
	}
	n := int64(binary.BigEndian.Uint16(t.CDB[7:]))
	t.Transfer, t.TransferOut = uint64(n), true
	switch {
	case n == 0:
		return t.good()
	case n < unmapHeader:
		return t.check(senseParameterLen)
	case n > maxUnmapList:
		return t.check(invalidField(7))
	}
	t.n = n
	return t.takeAll(n, 0, (*Task).unmapPull)
}

func (t *Task) unmapPull() Next { return t.pull(int(t.n), (*Task).unmapParse) }

func (t *Task) unmapParse() Next {
	ranges, s, ok := t.lu.parseUnmap(t.lease.Bytes()[:t.n])
	if !ok {
		return t.check(s)
	}
	for _, r := range ranges {
		t.lu.touch(r.off, r.n)
	}
	t.n, t.ranges, t.kind = 0, ranges, backend.Discard
	return t.erase()
}

// parseUnmap reads an UNMAP parameter list (SBC-3 §5.28.2). Nothing is unmapped if any
// descriptor is bad.
func (lu *LogicalUnit) parseUnmap(list []byte) (ranges []blockRange, s Sense, ok bool) {
	descriptors := list[unmapHeader:]
	n := int(binary.BigEndian.Uint16(list[2:]))
	if n > len(descriptors) {
		return nil, senseParameterLen, false
	}
	// SBC-3 §5.28.2: a remainder shorter than a descriptor is ignored.
	descriptors = descriptors[:n-n%unmapDescriptor]
	total := uint64(0)
	for at := unmapHeader; len(descriptors) > 0; at += unmapDescriptor {
		lba, blocks := binary.BigEndian.Uint64(descriptors), uint64(binary.BigEndian.Uint32(descriptors[8:]))
		descriptors = descriptors[unmapDescriptor:]
		if capacity := lu.blocks(); lba > capacity || blocks > capacity-lba {
			return nil, senseLBAOutOfRange, false
		}
		if total += blocks; total > maxUnmapBlocks {
			return nil, invalidParameter(at + 8), false
		}
		if blocks != 0 {
			ranges = append(ranges, blockRange{int64(lba) << lu.blockShift, int64(blocks) << lu.blockShift})
		}
	}
	return ranges, Sense{}, true
}
