package scsi

import "encoding/binary"

const (
	statusMapped      = 0
	statusDeallocated = 1

	// maxStatusDescriptors is how many the heap part of an answer has room for.
	maxStatusDescriptors = (maxHeapAnswer - 8) / 16
	// statusBytes is how far one look of GET LBA STATUS reaches.
	statusBytes = 16 << 30
)

// getLBAStatus is SBC-3 §5.4. There may be more to tell than the descriptors it returns; the
// initiator goes on from the end of the last one.
func (t *Task) getLBAStatus() Next {
	lba := binary.BigEndian.Uint64(t.CDB[2:])
	if lba >= t.lu.blocks() {
		return t.check(senseLBAOutOfRange)
	}
	t.off = int64(lba) << t.lu.blockShift
	t.status = make([]byte, 8, 8+16)
	return t.statusNext()
}

func (t *Task) statusNext() Next {
	rest := int64(t.lu.blocks())<<t.lu.blockShift - t.off
	return t.r.Status(t.off, min(rest, statusBytes), t.before((*Task).statusDone))
}

func (t *Task) statusDone() Next {
	if t.r.Err != nil {
		return t.storeFailed()
	}
	n, state := t.lu.statusOf(t.r.Extent())
	t.status = binary.BigEndian.AppendUint64(t.status, uint64(t.off)>>t.lu.blockShift)
	t.status = binary.BigEndian.AppendUint32(t.status, uint32(n>>t.lu.blockShift))
	t.status = append(t.status, state, 0, 0, 0)
	t.off += n
	alloc := int(min(binary.BigEndian.Uint32(t.CDB[10:]), 8+16*maxStatusDescriptors))
	if len(t.status)+16 <= alloc && t.off < int64(t.lu.blocks())<<t.lu.blockShift {
		return t.statusNext()
	}
	binary.BigEndian.PutUint32(t.status, uint32(len(t.status)-4))
	return t.reply(t.status, alloc)
}

// statusOf is the state of a whole number of blocks. A block of which the store maps a part is
// mapped.
func (lu *LogicalUnit) statusOf(extent int64, mapped bool) (n int64, state byte) {
	n = extent &^ (lu.blockSize - 1)
	switch {
	case n == 0:
		return lu.blockSize, statusMapped
	case mapped:
		return n, statusMapped
	}
	return n, statusDeallocated
}
