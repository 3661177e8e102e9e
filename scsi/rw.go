package scsi

import "encoding/binary"

// Bits of byte 1 of the commands that read and write.
const (
	bitDPO     = 0x10 // also BYTCHK's neighbour in VERIFY
	bitFUA     = 0x08
	protectAll = 0xe0 // RDPROTECT, WRPROTECT, VRPROTECT, ORPROTECT
)

// The LBA and length fields of the command groups.

func (t *Task) range6() (lba, blocks uint64) {
	lba = uint64(binary.BigEndian.Uint32(t.CDB) & 0x1fffff)
	if blocks = uint64(t.CDB[4]); blocks == 0 {
		blocks = 256
	}
	return lba, blocks
}

func (t *Task) range10() (lba, blocks uint64) {
	return uint64(binary.BigEndian.Uint32(t.CDB[2:])), uint64(binary.BigEndian.Uint16(t.CDB[7:]))
}

func (t *Task) range12() (lba, blocks uint64) {
	return uint64(binary.BigEndian.Uint32(t.CDB[2:])), uint64(binary.BigEndian.Uint32(t.CDB[6:]))
}

func (t *Task) range16() (lba, blocks uint64) {
	return binary.BigEndian.Uint64(t.CDB[2:]), uint64(binary.BigEndian.Uint32(t.CDB[10:]))
}

// lengthField is where the CDB says how many blocks.
func (t *Task) lengthField() int {
	switch len(t.cmd.Usage) {
	case 6:
		return 4
	case 10:
		return 7
	case 12:
		return 6
	}
	return 10
}

// maxTransfer is how many bytes one command can transfer.
func (t *Task) maxTransfer() int64 { return int64(t.Nexus.most) }

// setRange checks lba and blocks against the capacity, also when there are no blocks (SBC-3
// §5.x: "an LBA of the command beyond the capacity"), and sets off and n. most is the
// limit in bytes for one command.
func (t *Task) setRange(lba, blocks uint64, most int64) (Sense, bool) {
	lu := t.lu
	capacity := lu.blocks() // read once, for it may change
	if lba >= capacity && !(blocks == 0 && lba == capacity) || blocks > capacity-lba {
		return senseLBAOutOfRange, false
	}
	if blocks > uint64(most)>>lu.blockShift {
		return invalidField(t.lengthField()), false
	}
	t.off, t.n = int64(lba)<<lu.blockShift, int64(blocks)<<lu.blockShift
	return Sense{}, true
}

// ---- READ ----

func (t *Task) read6() Next {
	lba, blocks := t.range6()
	return t.read(lba, blocks)
}

func (t *Task) read10() Next {
	lba, blocks := t.range10()
	return t.readFlags(lba, blocks)
}

func (t *Task) read12() Next {
	lba, blocks := t.range12()
	return t.readFlags(lba, blocks)
}

func (t *Task) read16() Next {
	lba, blocks := t.range16()
	return t.readFlags(lba, blocks)
}

func (t *Task) readFlags(lba, blocks uint64) Next {
	if t.CDB[1]&protectAll != 0 {
		return t.check(invalidField(1)) // SBC-3 §5.11: no protection information
	}
	t.fua = t.CDB[1]&bitFUA != 0
	return t.read(lba, blocks)
}

func (t *Task) read(lba, blocks uint64) Next {
	if s, ok := t.setRange(lba, blocks, t.maxTransfer()); !ok {
		return t.check(s)
	}
	t.Transfer = uint64(t.n)
	room := min(t.n, int64(t.DataInLen))
	if room == 0 {
		return t.good()
	}
	// Only the blocks that the initiator has room for.
	n := (room + t.lu.blockSize - 1) &^ (t.lu.blockSize - 1)
	return t.r.Read(t.off, n, room, t.fua, t.before((*Task).readDone))
}

func (t *Task) readDone() Next {
	t.In = t.r.In
	return t.transferred()
}

// ---- WRITE ----

func (t *Task) write6() Next {
	lba, blocks := t.range6()
	return t.write(lba, blocks)
}

func (t *Task) write10() Next {
	lba, blocks := t.range10()
	return t.writeFlags(lba, blocks)
}

func (t *Task) write12() Next {
	lba, blocks := t.range12()
	return t.writeFlags(lba, blocks)
}

func (t *Task) write16() Next {
	lba, blocks := t.range16()
	return t.writeFlags(lba, blocks)
}

func (t *Task) writeFlags(lba, blocks uint64) Next {
	if t.CDB[1]&protectAll != 0 {
		return t.check(invalidField(1))
	}
	t.fua = t.CDB[1]&bitFUA != 0
	return t.write(lba, blocks)
}

func (t *Task) write(lba, blocks uint64) Next {
	if s, ok := t.setWriteRange(lba, blocks); !ok {
		return t.check(s)
	}
	if t.n == 0 {
		return t.good()
	}
	return t.r.Write(t.off, t.n, t.fua, t.before((*Task).transferred))
}

// setWriteRange is setRange for a command that writes its data-out. The blocks that the
// initiator does not send are not written; a part of a block cannot be (RFC 7143 §11.4.5.1
// leaves it to the device server).
func (t *Task) setWriteRange(lba, blocks uint64) (Sense, bool) {
	if s, ok := t.setRange(lba, blocks, t.maxTransfer()); !ok {
		return s, false
	}
	t.Transfer, t.TransferOut = uint64(t.n), true
	if offered := int64(t.DataOutLen); offered < t.n {
		if offered&(t.lu.blockSize-1) != 0 {
			return senseInvalidIU, false
		}
		t.n = offered
	}
	return Sense{}, true
}
