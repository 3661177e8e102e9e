package replica

import (
	"encoding/binary"
	"errors"
)

// chunkSize is the length of a chunk's bytes: its place, and its words.
const chunkSize = 8 + 8*8

// maxChunk bounds the place of a chunk from outside: a number times the bytes of a granule, at most 128 KiB, is an int64.
const maxChunk = 1 << 36

// AppendTo appends the set to p: the number of its parts (4 bytes), and of each its place (8) and 512 bits. Numbers
// are big-endian.
func (b Bits) AppendTo(p []byte) []byte {
	p = binary.BigEndian.AppendUint32(p, uint32(len(b)))
	for i := range b {
		p = binary.BigEndian.AppendUint64(p, uint64(b[i].at))
		for _, w := range b[i].bits {
			p = binary.BigEndian.AppendUint64(p, w)
		}
	}
	return p
}

// CutBits reads a set that AppendTo has written, and returns what is behind it.
func CutBits(p []byte) (b Bits, rest []byte, err error) {
	if len(p) < 4 {
		return nil, nil, errors.New("a set of numbers is cut off")
	}
	n := int(binary.BigEndian.Uint32(p))
	if p = p[4:]; n > len(p)/chunkSize {
		return nil, nil, errors.New("a set of numbers is cut off")
	}
	for range n {
		at := binary.BigEndian.Uint64(p)
		if at > maxChunk || len(b) > 0 && int(at) <= b[len(b)-1].at {
			return nil, nil, errors.New("the parts of a set of numbers are not in order")
		}
		c := chunk{at: int(at)}
		for i := range c.bits {
			c.bits[i] = binary.BigEndian.Uint64(p[8+8*i:])
		}
		b, p = append(b, c), p[chunkSize:]
	}
	return b, p, nil
}
