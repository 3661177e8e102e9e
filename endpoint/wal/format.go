package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// A segment begins with a block that describes it. Numbers are big-endian.
//
//	 0  16  "oneshot log 2\n", 2 octets 0; "oneshot log 1\n" in a log whose entries do not say where batches begin
//	16   4  block: what headers and entries are padded to
//	20   4  segments of the log
//	24   8  bytes of a segment
//	32   8  serial: the segments that there ever were are numbered from 1 on; number s stands at place (s-1) mod segments
//	40   8  epoch of the entries, until a mark
//	48   8  LSN of the first record
//	56   8  serial of the oldest segment that is kept
//	64   8  LSN below which records are not needed
//	72   4  CRC32C of octets 0 to 71
//	76   8  life: chosen by chance by who has opened the log and has written this; 0 in older logs
//
// Entries follow, each at a multiple of the block, until one does not parse.
//
//	 0   4  length of what follows the sequence; of a mark, length | 1<<31; of the first entry of a batch, length | 1<<30
//	 4   4  CRC32C of the epoch, 8 octets, the length, the sequence, and what follows it
//	 8   8  sequence: the LSN of a record; of a mark, that of the next record
//	16      payload; of a mark: epoch from here on, oldest serial, LSN below which records are not needed
//
// Behind the payload of a mark stands the life, 8 octets, and zeroes behind all others.
const (
	magic      = "oneshot log 2\n\x00\x00"
	magic1     = "oneshot log 1\n\x00\x00"
	headerSize = 76
	entrySize  = 16
	markSize   = 24
	markBit    = 1 << 31
	firstBit   = 1 << 30
)

// header describes a segment.
type header struct {
	batches  bool // entries say where batches begin
	block    uint32
	segments uint32
	segment  uint64
	serial   uint64
	epoch    uint64
	first    uint64 // LSN
	oldest   uint64 // serial
	needed   uint64 // LSN
	life     uint64
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// put writes h to the block b.
func (h *header) put(b []byte) {
	clear(b)
	copy(b, magic)
	if !h.batches {
		copy(b, magic1)
	}
	binary.BigEndian.PutUint32(b[16:], h.block)
	binary.BigEndian.PutUint32(b[20:], h.segments)
	for i, v := range []uint64{h.segment, h.serial, h.epoch, h.first, h.oldest, h.needed} {
		binary.BigEndian.PutUint64(b[24+8*i:], v)
	}
	binary.BigEndian.PutUint32(b[headerSize-4:], crc32.Checksum(b[:headerSize-4], castagnoli))
	binary.BigEndian.PutUint64(b[headerSize:], h.life)
}

// What stands where a header is looked for.
var (
	errBlank   = errors.New("zeroes")
	errForeign = errors.New("something that is no segment of a log, or one that was not written to its end")
)

// parseHeader reads a block.
func parseHeader(b []byte) (h header, err error) {
	blank := true
	for _, c := range b[:headerSize] {
		blank = blank && c == 0
	}
	if blank {
		return h, errBlank
	}
	h.batches = string(b[:len(magic)]) == magic
	if !h.batches && string(b[:len(magic)]) != magic1 || binary.BigEndian.Uint32(b[headerSize-4:]) != crc32.Checksum(b[:headerSize-4], castagnoli) {
		return h, errForeign
	}
	h.block, h.segments = binary.BigEndian.Uint32(b[16:]), binary.BigEndian.Uint32(b[20:])
	for i, v := range []*uint64{&h.segment, &h.serial, &h.epoch, &h.first, &h.oldest, &h.needed} {
		*v = binary.BigEndian.Uint64(b[24+8*i:])
	}
	h.life = binary.BigEndian.Uint64(b[headerSize:])
	if h.block < minBlock || h.block > maxEntry || h.block&(h.block-1) != 0 || h.segments < 2 || h.segment%uint64(h.block) != 0 ||
		h.segment < minSegment*uint64(h.block) || h.serial == 0 || h.oldest == 0 || h.oldest > h.serial || h.first == 0 || h.needed > h.first {
		return h, fmt.Errorf("a segment of a log that makes no sense: %+v", h)
	}
	return h, nil
}

// place is where in the ring of segments the one with a serial stands.
func (h *header) place() uint64 { return (h.serial - 1) % uint64(h.segments) }

// entry is what parseEntry finds.
type entry struct {
	mark    bool
	first   bool   // of a batch
	payload []byte // aliases what was parsed
}

// checksum is that of an entry: the epoch is a part of it, so that what was written in another epoch, at the
// same place with the same sequence, is none. That is certain if the epochs differ in 32 bits that adjoin each
// other, for it is a CRC.
func checksum(epoch uint64, b []byte) uint32 {
	sum := ^uint32(0)
	for shift := 56; shift >= 0; shift -= 8 { // crc32.Update would have the octets in memory of the heap
		sum = castagnoli[byte(sum)^byte(epoch>>shift)] ^ sum>>8
	}
	sum = crc32.Update(^sum, castagnoli, b[:4])
	return crc32.Update(sum, castagnoli, b[8:])
}

// putEntry writes an entry to b, which has its size, and zeroes behind it.
func putEntry(b []byte, epoch, seq uint64, length uint32, payload []byte) {
	binary.BigEndian.PutUint32(b, length)
	binary.BigEndian.PutUint64(b[8:], seq)
	n := entrySize + copy(b[entrySize:], payload)
	clear(b[n:])
	binary.BigEndian.PutUint32(b[4:], checksum(epoch, b[:n]))
}

// entryLength returns how many octets the entry at b has, without padding, if it is one.
func entryLength(b []byte) (n int64, mark bool) {
	v := binary.BigEndian.Uint32(b)
	return entrySize + int64(v&^(markBit|firstBit)), v&markBit != 0
}

// entrySequence returns the sequence of the entry at b, if it is one.
func entrySequence(b []byte) uint64 { return binary.BigEndian.Uint64(b[8:]) }

// parseEntry reads the entry that begins b, if there is one of that epoch and sequence. b has at least the
// octets that entryLength says.
func parseEntry(b []byte, epoch, seq uint64) (e entry, ok bool) {
	n, mark := entryLength(b)
	if entrySequence(b) != seq || mark && n != entrySize+markSize {
		return e, false
	}
	if binary.BigEndian.Uint32(b[4:]) != checksum(epoch, b[:n]) {
		return e, false
	}
	return entry{mark, binary.BigEndian.Uint32(b)&firstBit != 0, b[entrySize:n:n]}, true
}

// mark is the payload of a mark.
type mark struct {
	epoch, oldest, needed uint64
}

func (m mark) bytes() (b [markSize]byte) {
	binary.BigEndian.PutUint64(b[:], m.epoch)
	binary.BigEndian.PutUint64(b[8:], m.oldest)
	binary.BigEndian.PutUint64(b[16:], m.needed)
	return b
}

func parseMark(b []byte) mark {
	return mark{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])}
}
