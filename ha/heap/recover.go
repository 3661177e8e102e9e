package heap

import (
	"encoding/binary"
	"errors"
	"fmt"

	"oneshot/ha/heap/wire"
)

// Reader fills b with what the store has from off on: whole blocks.
type Reader func(b []byte, off int64) error

// errForeign: the store has something that is no heap.
var errForeign = errors.New("the store has something that is not a heap, at its beginning: give the heap a store of its own, and erase it if what it has may be lost")

// Blank reports whether a store holds no heap and nothing else either, as far as its first megabyte tells.
func blank(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

const blankLen = 1 << 20

// isNew reads whether a store has no heap yet.
func isNew(read Reader) (bool, error) {
	b := make([]byte, blankLen)
	if err := read(b, 0); err != nil {
		return false, err
	}
	_, even := decodeSuper(b)
	_, odd := decodeSuper(b[superLen:])
	if even || odd {
		return false, nil
	}
	if !blank(b) {
		return false, errForeign
	}
	return true, nil
}

// format returns what makes a heap of a new store. random is 24 octets that nobody knows before.
func format(size int64, random [24]byte) []Work {
	// What an earlier heap has left in the journal is of other epochs: nobody may have erased more than the beginning of the store.
	s := super{size: size, epoch: uint64(binary.BigEndian.Uint32(random[20:])) << 30}
	copy(s.uuid[:], random[:16])
	s.uuid[6], s.uuid[8] = s.uuid[6]&0xf|0x40, s.uuid[8]&0x3f|0x80 // RFC 9562 §5.4
	s.number = uint32(random[16]) % Heaps
	s.key = FirstKey + (uint32(random[17])<<16|uint32(random[18])<<8|uint32(random[19]))%Keys
	return []Work{{Off: superOff(s.epoch), Data: s.encode()}, {Flush: true}}
}

// recovered makes a Core of what a store has. memory is all zero. The Core begins with a checkpoint; nothing may be submitted
// before that is done.
func recovered(read Reader, size int64, block int, memory []byte) (*Core, error) {
	b := make([]byte, journalOff)
	if err := read(b, 0); err != nil {
		return nil, err
	}
	s, ok := decodeSuper(b)
	if odd, isOdd := decodeSuper(b[superLen:]); isOdd && (!ok || odd.epoch > s.epoch) {
		s, ok = odd, true
	}
	switch {
	case !ok:
		return nil, errForeign
	case s.size > size:
		return nil, fmt.Errorf("the heap was made in a store of %d bytes, and this one has %d", s.size, size)
	case s.used > MemoryLen(s.size) || s.used < 0 || s.number >= Heaps:
		return nil, errors.New("the superblock of the heap cannot be")
	}
	memory = memory[:MemoryLen(s.size)]
	c := newCore(s, block, memory)
	used := (s.used + page - 1) / page * page
	for at := int64(0); at < used; at += maxWrite {
		if err := read(memory[at:min(at+maxWrite, used)], placesOff(s.size)+at); err != nil {
			return nil, err
		}
	}
	clear(memory[s.used:used]) // of what is behind, only the journal knows
	for i := range c.table {
		if e := entryOf(b[tableOff+i*entryLen:]); e.client != 0 {
			c.table[i] = e
			c.slots[e.client] = i
		}
	}
	c.carved = s.used
	if err := c.replay(read); err != nil {
		return nil, err
	}
	if err := c.walk(); err != nil {
		return nil, err
	}
	c.checkpoint()
	return c, nil
}

// replay does the records of the journal again.
func (c *Core) replay(read Reader) error {
	journal := make([]byte, journalLen(c.super.size))
	for at := 0; at < len(journal); at += maxWrite {
		if err := read(journal[at:min(at+maxWrite, len(journal))], journalOff+int64(at)); err != nil {
			return err
		}
	}
	for index := uint64(0); ; index++ {
		records, n, ok := openBatch(journal, c.super.epoch, index, c.block)
		if !ok {
			return nil
		}
		for len(records) > 0 {
			var r record
			var err error
			if r, records, err = cutRecord(records, int64(len(c.memory))); err != nil {
				return err
			}
			c.apply(&r)
			c.seq = r.seq
		}
		journal = journal[min(n, len(journal)):]
	}
}

// walk finds the places and the free ones among them.
func (c *Core) walk() error {
	clear(c.starts)
	clear(c.slots)
	for i := range c.table {
		if c.table[i].client != 0 {
			c.slots[c.table[i].client] = i
		}
	}
	for class := range c.free {
		c.free[class] = nil
	}
	c.objects, c.octets = 0, 0
	for off := int64(0); off < c.carved; {
		h := wire.HeaderOf(c.memory[off:])
		class, ok := h.Class()
		if !ok || off > c.carved-int64(wire.PlaceLen(class)) || h.State != wire.StateUsed && h.State != wire.StateFree {
			return fmt.Errorf("the heap is damaged: there is no place at %#x of its memory", off)
		}
		c.starts[off/wire.Unit/64] |= 1 << (off / wire.Unit % 64)
		c.count(off, 1)
		if h.State == wire.StateFree {
			c.free[class] = append(c.free[class], off)
		}
		off += int64(wire.PlaceLen(class))
	}
	c.planned = c.carved
	return nil
}
