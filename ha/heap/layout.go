package heap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"oneshot/ha/heap/wire"
)

const (
	superLen = 4096 // room of a superblock, of which superUsed octets count: they are in one sector
	tableOff = 2 * superLen
	// Clients is how many clients are remembered.
	Clients    = 1024
	entryLen   = 64
	tableLen   = Clients * entryLen
	journalOff = tableOff + tableLen
	page       = 4096 // octets of places that are written at once

	minJournal, maxJournal = 1 << 20, 64 << 20
	// MinSize and MaxSize bound a store with a heap, in octets. Places of 64 GiB have addresses of their own.
	MinSize = journalOff + minJournal + wire.MaxPlace
	MaxSize = 64 << 30

	magic   = "OSHEAP1\n"
	version = 1

	// FirstAddress is where the memory of heap 0 begins; AddressStep is between two heaps.
	FirstAddress = 0x5000_0000_0000
	AddressStep  = 64 << 30
	// Heaps is how many addresses there are.
	Heaps = 256
	// FirstKey is the lowest of the Keys STags that heaps have: those with the highest indexes, which are kept for this.
	FirstKey = 0xfff000 << 8
	Keys     = 4096 << 8
)

// super is a superblock.
//
//	 0  magic        8
//	 8  version      4
//	12  checksum     4  CRC32C of the 128 octets, with 0 here
//	16  UUID        16
//	32  size         8  of the store
//	40  epoch        8
//	48  used         8  octets of places that were ever given to an object
//	56  sequence     8  of the last change
//	64  number       4  of the address
//	68  key          4
//	72  zero        56
type super struct {
	uuid   [16]byte
	size   int64
	epoch  uint64
	used   int64
	seq    uint64
	number uint32
	key    uint32
}

const superUsed = 128

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (s *super) encode() []byte {
	b := make([]byte, superLen)
	copy(b, magic)
	binary.BigEndian.PutUint32(b[8:], version)
	copy(b[16:], s.uuid[:])
	binary.BigEndian.PutUint64(b[32:], uint64(s.size))
	binary.BigEndian.PutUint64(b[40:], s.epoch)
	binary.BigEndian.PutUint64(b[48:], uint64(s.used))
	binary.BigEndian.PutUint64(b[56:], s.seq)
	binary.BigEndian.PutUint32(b[64:], s.number)
	binary.BigEndian.PutUint32(b[68:], s.key)
	binary.BigEndian.PutUint32(b[12:], crc32.Checksum(b[:superUsed], castagnoli))
	return b
}

// off is where the superblock of an epoch is.
func superOff(epoch uint64) int64 { return int64(epoch%2) * superLen }

func decodeSuper(b []byte) (s super, ok bool) {
	b = append([]byte(nil), b[:superUsed]...)
	sum := binary.BigEndian.Uint32(b[12:])
	binary.BigEndian.PutUint32(b[12:], 0)
	if string(b[:8]) != magic || binary.BigEndian.Uint32(b[8:]) != version || crc32.Checksum(b, castagnoli) != sum {
		return s, false
	}
	s = super{
		size: int64(binary.BigEndian.Uint64(b[32:])), epoch: binary.BigEndian.Uint64(b[40:]), used: int64(binary.BigEndian.Uint64(b[48:])),
		seq: binary.BigEndian.Uint64(b[56:]), number: binary.BigEndian.Uint32(b[64:]), key: binary.BigEndian.Uint32(b[68:]),
	}
	copy(s.uuid[:], b[16:])
	return s, true
}

// journalLen returns the octets of the journal in a store of that size.
func journalLen(size int64) int64 { return min(max(size/8, minJournal), maxJournal) / page * page }

// placesOff returns where the places begin.
func placesOff(size int64) int64 { return journalOff + journalLen(size) }

// MemoryLen returns how much memory the places of a store of that size need, in octets: whole pages.
func MemoryLen(size int64) int64 { return (size - placesOff(size)) / page * page }

// CheckSize says what is wrong with a store of that size and with such blocks.
func CheckSize(size int64, block int) error {
	switch {
	case size < MinSize || size > MaxSize:
		return fmt.Errorf("a heap needs a store of %d KiB to %d GiB, and this one has %d bytes", MinSize>>10, MaxSize>>30, size)
	case block > page:
		return fmt.Errorf("a heap needs a store with blocks of at most %d bytes, and this one has blocks of %d", page, block)
	}
	return nil
}

// entry is that of a client in the table.
//
//	 0  client     8  0: none
//	 8  number     8  of its last change; 0: there is none
//	16  sequence   8  of that, or of when it joined
//	24  pointer   16  the answer
//	40  operation  1
//	41  zero      23
type entry struct {
	client, number, seq uint64
	pointer             wire.Pointer
	op                  wire.Op
}

func (e *entry) put(b []byte) {
	clear(b[:entryLen])
	binary.BigEndian.PutUint64(b, e.client)
	binary.BigEndian.PutUint64(b[8:], e.number)
	binary.BigEndian.PutUint64(b[16:], e.seq)
	e.pointer.AppendTo(b[24:24])
	b[40] = byte(e.op)
}

func entryOf(b []byte) entry {
	return entry{
		binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:]), wire.PointerOf(b[24:]), wire.Op(b[40]),
	}
}

// record is a change in the journal.
//
//	 0  operation       1
//	 1  class           1  of the place
//	 2  class           1  of the old place
//	 3  zero            1
//	 4  slot            4  of the client in the table
//	 8  client          8
//	16  number          8
//	24  sequence        8
//	32  place           8  its offset in the memory
//	40  generation      4
//	44  size            4  of the object, which follows, filled up to 8 octets
//	48  old place       8  which becomes free; noPlace: there is none
//	56  old generation  4
//	60  zero            4
type record struct {
	op         wire.Op
	class      int
	oldClass   int
	slot       int
	client     uint64
	number     uint64
	seq        uint64
	off        int64
	generation uint32
	old        int64
	oldGen     uint32
	data       []byte
}

const (
	recordLen = 64
	noPlace   = -1
)

// len returns its octets in a batch.
func (r *record) len() int { return recordLen + (len(r.data)+7)&^7 }

func (r *record) appendTo(b []byte) []byte {
	b = append(b, byte(r.op), byte(r.class), byte(r.oldClass), 0)
	b = binary.BigEndian.AppendUint32(b, uint32(r.slot))
	b = binary.BigEndian.AppendUint64(b, r.client)
	b = binary.BigEndian.AppendUint64(b, r.number)
	b = binary.BigEndian.AppendUint64(b, r.seq)
	b = binary.BigEndian.AppendUint64(b, uint64(r.off))
	b = binary.BigEndian.AppendUint32(b, r.generation)
	b = binary.BigEndian.AppendUint32(b, uint32(len(r.data)))
	b = binary.BigEndian.AppendUint64(b, uint64(r.old))
	b = binary.BigEndian.AppendUint32(b, r.oldGen)
	b = append(b, 0, 0, 0, 0)
	b = append(b, r.data...)
	return append(b, make([]byte, -len(r.data)&7)...)
}

var errRecord = errors.New("the journal of the heap has a record that cannot be")

// cutRecord reads the first record of b, for a memory of so many octets.
func cutRecord(b []byte, memory int64) (r record, rest []byte, err error) {
	if len(b) < recordLen {
		return r, nil, errRecord
	}
	size := binary.BigEndian.Uint32(b[44:])
	r = record{
		op: wire.Op(b[0]), class: int(b[1]), oldClass: int(b[2]), slot: int(binary.BigEndian.Uint32(b[4:])),
		client: binary.BigEndian.Uint64(b[8:]), number: binary.BigEndian.Uint64(b[16:]), seq: binary.BigEndian.Uint64(b[24:]),
		off: int64(binary.BigEndian.Uint64(b[32:])), generation: binary.BigEndian.Uint32(b[40:]),
		old: int64(binary.BigEndian.Uint64(b[48:])), oldGen: binary.BigEndian.Uint32(b[56:]),
	}
	fits := func(off int64, class int) bool {
		return class < wire.Classes && off >= 0 && off%wire.Unit == 0 && off <= memory-int64(wire.PlaceLen(class))
	}
	switch {
	case uint64(size)+7 > uint64(len(b)-recordLen)+7, r.slot >= Clients:
		return r, nil, errRecord
	case r.op != wire.Join && !fits(r.off, r.class), r.old != noPlace && !fits(r.old, r.oldClass):
		return r, nil, errRecord
	case r.op == wire.Insert || r.op == wire.Update:
		if int(size) > wire.PlaceLen(r.class)-wire.HeaderLen {
			return r, nil, errRecord
		}
	case r.op == wire.Join || r.op == wire.Delete:
		if size != 0 {
			return r, nil, errRecord
		}
	default:
		return r, nil, errRecord
	}
	r.data = b[recordLen : recordLen+size]
	if n := r.len(); n <= len(b) {
		return r, b[n:], nil
	}
	return r, nil, errRecord
}

// A batch is what is written to the journal at once: a header, and records.
//
//	 0  magic     8
//	 8  epoch     8
//	16  index     8  in the epoch, from 0 on
//	24  length    4  octets of the records
//	28  checksum  4  CRC32C of the header, with 0 here, and of the records
const (
	batchLen   = 32
	batchMagic = "OSHPBTCH"
)

// sealBatch writes the header of a batch, and fills it up to whole blocks.
func sealBatch(b []byte, epoch, index uint64, block int) []byte {
	copy(b, batchMagic)
	binary.BigEndian.PutUint64(b[8:], epoch)
	binary.BigEndian.PutUint64(b[16:], index)
	binary.BigEndian.PutUint32(b[24:], uint32(len(b)-batchLen))
	binary.BigEndian.PutUint32(b[28:], 0)
	binary.BigEndian.PutUint32(b[28:], crc32.Checksum(b, castagnoli))
	return append(b, make([]byte, -len(b)&(block-1))...)
}

// openBatch returns the records of the batch at the beginning of b, and its length in blocks of so many octets. False: there is
// no such batch, or not all of it.
func openBatch(b []byte, epoch, index uint64, block int) (records []byte, n int, ok bool) {
	if len(b) < batchLen || string(b[:8]) != batchMagic || binary.BigEndian.Uint64(b[8:]) != epoch || binary.BigEndian.Uint64(b[16:]) != index {
		return nil, 0, false
	}
	length := binary.BigEndian.Uint32(b[24:])
	if uint64(length) > uint64(len(b)-batchLen) {
		return nil, 0, false
	}
	end := batchLen + int(length)
	sum := crc32.Checksum(b[:28], castagnoli)
	sum = crc32.Update(sum, castagnoli, []byte{0, 0, 0, 0})
	if crc32.Update(sum, castagnoli, b[batchLen:end]) != binary.BigEndian.Uint32(b[28:]) {
		return nil, 0, false
	}
	return b[batchLen:end], (end + block - 1) &^ (block - 1), true
}
