package quorum

import (
	"encoding/binary"
	"errors"
)

// Numbers are big-endian; bytes have their length (uint32) before them.

func appendBytes[T ~string | ~[]byte](b []byte, p T) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(p)))
	return append(b, p...)
}

func appendU64(b []byte, v ...uint64) []byte {
	for _, x := range v {
		b = binary.BigEndian.AppendUint64(b, x)
	}
	return b
}

var errShort = errors.New("it ends in the middle")

// cursor reads what append functions wrote. After the first mistake it returns zeroes; err says which it was.
type cursor struct {
	b   []byte
	err error
}

func (c *cursor) take(n int) []byte {
	if c.err != nil || n > len(c.b) {
		c.err, c.b = errShort, nil
		return nil
	}
	p := c.b[:n:n]
	c.b = c.b[n:]
	return p
}

func (c *cursor) u8() uint8 {
	if p := c.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if p := c.take(4); p != nil {
		return binary.BigEndian.Uint32(p)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if p := c.take(8); p != nil {
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

// bytes aliases what is read.
func (c *cursor) bytes() []byte {
	n := c.u32()
	if uint64(n) > uint64(len(c.b)) {
		c.err, c.b = errShort, nil
		return nil
	}
	return c.take(int(n))
}

// fixed returns n bytes, zeroes after a mistake.
func (c *cursor) fixed(n int) []byte {
	if p := c.take(n); p != nil {
		return p
	}
	return make([]byte, n)
}

func (c *cursor) string() string { return string(c.bytes()) }

// end returns the first mistake; bytes that are left are one.
func (c *cursor) end() error {
	if c.err == nil && len(c.b) > 0 {
		c.err = errors.New("there are bytes behind its end")
	}
	return c.err
}
