package scsi

import (
	"encoding/binary"
	"math"

	"oneshot/volume"
)

// Bits of byte 1 of the commands that read and write.
const (
	bitDPO     = 0x10 // also BYTCHK's neighbour in VERIFY
	bitFUA     = 0x08
	protectAll = 0xe0 // RDPROTECT, WRPROTECT, VRPROTECT, ORPROTECT
)

// form is where a CDB has its LBA and its number of blocks.
type form uint8

const (
	formOfLength form = iota // as CDBs of the row's length have them
	form6                    // 21 bits; 0 stands for 256 blocks
	form10
	form12
	form16
	formCompare // as form16, the number of blocks in one byte, 13
	formAtomic  // as form16, the number of blocks in bytes 12 and 13
)

// blocksAt is the byte in which the number of blocks begins.
var blocksAt = [...]int{form6: 4, form10: 7, form12: 6, form16: 10, formCompare: 13, formAtomic: 12}

// formOf returns what the row says, or what its length does.
func (c *command) formOf() form {
	if c.form != formOfLength {
		return c.form
	}
	switch len(c.Usage) {
	case 6:
		return form6
	case 10:
		return form10
	case 12:
		return form12
	}
	return form16
}

// blockRange is the LBA and the number of blocks of the CDB.
func (t *Task) blockRange() (lba, blocks uint64) { return t.cmd.blockRange(t.CDB) }

func (c *command) blockRange(b []byte) (lba, blocks uint64) {
	switch c.form {
	case form6:
		if blocks = uint64(b[4]); blocks == 0 {
			blocks = 256
		}
		return uint64(binary.BigEndian.Uint32(b) & 0x1fffff), blocks
	case form10:
		return uint64(binary.BigEndian.Uint32(b[2:])), uint64(binary.BigEndian.Uint16(b[7:]))
	case form12:
		return uint64(binary.BigEndian.Uint32(b[2:])), uint64(binary.BigEndian.Uint32(b[6:]))
	case formCompare:
		return binary.BigEndian.Uint64(b[2:]), uint64(b[13])
	case formAtomic:
		return binary.BigEndian.Uint64(b[2:]), uint64(binary.BigEndian.Uint16(b[12:]))
	}
	return binary.BigEndian.Uint64(b[2:]), uint64(binary.BigEndian.Uint32(b[10:]))
}

// flags looks at byte 1 of a command that reads or writes: false, it asks for protection
// information, which there is none of (SBC-3 §5.11). Commands of six bytes have no such flags.
func (t *Task) flags() (ok bool) {
	if t.cmd.form == form6 {
		return true
	}
	t.fua = t.CDB[1]&bitFUA != 0
	return t.CDB[1]&protectAll == 0
}

// maxTransfer is how many bytes one command can transfer.
func (t *Task) maxTransfer() int64 { return int64(t.Nexus.most) }

// noLimit is for commands that may be about any number of blocks.
const noLimit = math.MaxInt64

// setRange checks lba and blocks against the capacity, also when there are no blocks (SBC-3
// §5.x: "an LBA of the command beyond the capacity"), and sets off and n. most is the
// limit in bytes for one command. False: it has ended the command with CHECK CONDITION.
func (t *Task) setRange(lba, blocks uint64, most int64) bool {
	lu := t.lu
	capacity := lu.blocks() // read once, for it may change
	if lba >= capacity && !(blocks == 0 && lba == capacity) || blocks > capacity-lba {
		return t.refuse(senseLBAOutOfRange)
	}
	if blocks > uint64(most)>>lu.blockShift {
		return t.refuse(invalidField(blocksAt[t.cmd.form]))
	}
	t.off, t.n = int64(lba)<<lu.blockShift, int64(blocks)<<lu.blockShift
	return true
}

// ---- READ ----

func (t *Task) read() Next {
	lba, blocks := t.blockRange()
	if !t.flags() {
		return t.check(invalidField(1))
	}
	if !t.setRange(lba, blocks, t.maxTransfer()) {
		return Done
	}
	t.Transfer = uint64(t.n)
	room := min(t.n, int64(t.DataInLen))
	if room == 0 {
		return t.good()
	}
	// Only the blocks that the initiator has room for.
	n := (room + t.lu.blockSize - 1) &^ (t.lu.blockSize - 1)
	return t.r.Read(t.off, n, room, t.fua, readDone)
}

func readDone(r *volume.Request) Next {
	t := taskOf(r)
	if t.outrun || !t.listed && t.preempted() { // PREEMPT AND ABORT has not found it, and it may have read what was written since
		return t.conflict()
	}
	t.In = r.In
	return t.transferred()
}

// ---- WRITE ----

func (t *Task) write() Next {
	lba, blocks := t.blockRange()
	if !t.flags() {
		return t.check(invalidField(1))
	}
	if !t.setWriteRange(lba, blocks) {
		return Done
	}
	if t.n == 0 {
		return t.good()
	}
	return t.r.Write(t.off, t.n, t.fua, transferred)
}

// setWriteRange is setRange for a command that writes its data-out. The blocks that the
// initiator does not send are not written; a part of a block cannot be (RFC 7143 §11.4.5.1
// leaves it to the device server).
func (t *Task) setWriteRange(lba, blocks uint64) bool {
	if !t.setRange(lba, blocks, t.maxTransfer()) {
		return false
	}
	t.Transfer, t.TransferOut = uint64(t.n), true
	if offered := int64(t.DataOutLen); offered < t.n {
		if offered&(t.lu.blockSize-1) != 0 {
			return t.refuse(senseInvalidIU)
		}
		t.n = offered
	}
	return true
}
