package agent

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
)

// NewBytes returns a source of bytes without end, which depend on two numbers alone. Read fills what it is given;
// what one call takes depends on its length, so the same lengths give the same bytes. It uses no vector
// instructions, which QEMU is slow with.
func NewBytes(a, b uint64) io.Reader { return byteSource{rand.NewPCG(a, b)} }

type byteSource struct{ *rand.PCG }

func (s byteSource) Read(b []byte) (int, error) {
	rest := b
	for ; len(rest) >= 8; rest = rest[8:] {
		binary.LittleEndian.PutUint64(rest, s.Uint64())
	}
	if len(rest) > 0 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], s.Uint64())
		copy(rest, word[:])
	}
	return len(b), nil
}
