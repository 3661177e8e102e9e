package scsi

import (
	"encoding/binary"

	"oneshot/volume"
)

// ---- WRITE SAME ----

const (
	bitAnchor = 0x10
	bitUnmap  = 0x08
	bitNDOB   = 0x01
)

// writeSame is SBC-3 §5.49. Without a data-out buffer (NDOB, of the form with 16 bytes) the block is
// one of zeroes.
func (t *Task) writeSame() Next {
	lba, blocks := t.blockRange()
	flags := t.CDB[1]&t.cmd.Usage[1] | t.CDB[1]&(protectAll|bitAnchor)
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
	if !t.setRange(lba, blocks, maxWriteSameBytes) {
		return Done
	}
	discard := flags&bitUnmap != 0
	if flags&bitNDOB != 0 {
		return t.r.Erase([]volume.Range{{Off: t.off, N: t.n}}, discard, transferred)
	}
	t.Transfer, t.TransferOut = uint64(t.lu.blockSize), true
	if int64(t.DataOutLen) != t.lu.blockSize {
		return t.check(senseInvalidIU)
	}
	return t.r.WriteSame(t.off, t.n, t.lu.blockSize, discard, transferred)
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
	return t.takeParameters(n, (*Task).unmapParse)
}

func (t *Task) unmapParse() Next {
	ranges, s, ok := t.lu.parseUnmap(t.parameters())
	if !ok {
		return t.check(s)
	}
	return t.r.Erase(ranges, true, transferred)
}

// parseUnmap reads an UNMAP parameter list (SBC-3 §5.28.2). Nothing is unmapped if any
// descriptor is bad.
func (lu *LogicalUnit) parseUnmap(list []byte) (ranges []volume.Range, s Sense, ok bool) {
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
			ranges = append(ranges, volume.Range{Off: int64(lba) << lu.blockShift, N: int64(blocks) << lu.blockShift})
		}
	}
	return ranges, Sense{}, true
}
