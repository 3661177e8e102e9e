package backendtest

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"oneshot/backend"
)

// modelSize is the part of the store that the model is of; small, so that operations meet.
const modelSize = 96 << 10

// model is the store as it should be: bytes.
type model struct {
	c     *client
	block int64
	bytes []byte
	n     uint64 // operations
}

// testModel runs random operations against a slice of bytes. Each run starts from the
// store as the last one has left it.
func testModel(t *testing.T, f func(*testing.T) backend.Store) {
	c := open(t, f)
	m := &model{c: c, block: int64(c.s.Info().BlockSize), bytes: make([]byte, modelSize)}
	rapid.Check(t, func(t *rapid.T) {
		t.Repeat(map[string]func(*rapid.T){
			"read":         m.read,
			"write":        m.write,
			"write-zeroes": func(t *rapid.T) { m.zero(t, backend.WriteZeroes) },
			"discard":      func(t *rapid.T) { m.zero(t, backend.Discard) },
			"flush":        func(t *rapid.T) { m.run(t, backend.Op{Kind: backend.Flush}) },
			"status":       m.status,
		})
		m.run(t, backend.Op{Kind: backend.Read, Len: modelSize, Segs: [][]byte{make([]byte, modelSize)}})
		c.check()
		c.calls = nil // looked at
	})
}

// run does op, with any flags, and compares what it reads.
func (m *model) run(t *rapid.T, op backend.Op) *call {
	op.Flags = backend.Flags(rapid.SampledFrom([]uint8{0, 0, 0, 0, 1, 2, 4, 7}).Draw(t, "flags"))
	k := m.c.submit(op)
	if err := k.wait(); err != nil {
		t.Fatalf("%v of %d bytes at %d: %v", op.Kind, op.Len, op.Off, err)
	}
	if op.Kind == backend.Read {
		if want := m.bytes[op.Off : op.Off+op.Len]; !bytes.Equal(k.after, want) {
			t.Fatalf("read of %d bytes at %d differs from the model", op.Len, op.Off)
		}
	}
	return k
}

func (m *model) draw(t *rapid.T) (off, n int64) {
	blocks := modelSize / m.block
	first := rapid.Int64Range(0, blocks-1).Draw(t, "block")
	n = rapid.OneOf(rapid.Int64Range(0, min(16, blocks-first)), rapid.Int64Range(0, blocks-first)).Draw(t, "blocks")
	return first * m.block, n * m.block
}

// segs cuts b at random places.
func segs(t *rapid.T, b []byte) [][]byte {
	lens := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(1, 700), rapid.Just(4096), rapid.Just(512)), 1, 5).Draw(t, "segments")
	if rapid.Bool().Draw(t, "whole") {
		lens = []int{modelSize}
	}
	return cut(b, lens...)
}

func (m *model) read(t *rapid.T) {
	off, n := m.draw(t)
	m.run(t, backend.Op{Kind: backend.Read, Off: off, Len: n, Segs: segs(t, filled(n, 0xA5))})
}

func (m *model) write(t *rapid.T) {
	off, n := m.draw(t)
	m.n++
	b := pattern(n, m.n)
	m.run(t, backend.Op{Kind: backend.Write, Off: off, Len: n, Segs: segs(t, b)})
	copy(m.bytes[off:], b)
}

func (m *model) zero(t *rapid.T, kind backend.Kind) {
	off, n := m.draw(t)
	m.run(t, backend.Op{Kind: kind, Off: off, Len: n})
	clear(m.bytes[off : off+n])
}

func (m *model) status(t *rapid.T) {
	off, n := m.draw(t)
	k := m.run(t, backend.Op{Kind: backend.Status, Off: off, Len: n})
	if e := k.op.Extent; e < m.block || e > max(n, m.block) || e%m.block != 0 {
		t.Fatalf("status of %d bytes at %d: extent %d", n, off, e)
	}
	if k.op.Mapped {
		return
	}
	if blank := m.bytes[off : off+k.op.Extent]; bytes.Count(blank, []byte{0}) != len(blank) {
		t.Fatalf("of %d bytes at %d not all are 0, and they are not mapped", len(blank), off)
	}
}
