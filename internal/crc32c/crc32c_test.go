package crc32c

import (
	"hash/crc32"
	"math/rand/v2"
	"strconv"
	"testing"
)

// TestUpdate: both ways have the CRC of RFC 3720 appendix B.4, and agree on whatever there is.
func TestUpdate(t *testing.T) {
	zeroes, ones, up := make([]byte, 32), make([]byte, 32), make([]byte, 32)
	for i := range up {
		ones[i], up[i] = 0xff, byte(i)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for _, tables := range []bool{false, true} {
		t.Run("by tables "+strconv.FormatBool(tables), func(t *testing.T) {
			defer func(was bool) { tablesAreFaster = was }(tablesAreFaster)
			tablesAreFaster = tables
			for _, c := range []struct {
				of   []byte
				want uint32
			}{{nil, 0}, {zeroes, 0x8a9136aa}, {ones, 0x62a8ab43}, {up, 0x46dd794e}} {
				if got := Update(0, c.of); got != c.want {
					t.Errorf("%x has %#x, want %#x", c.of, got, c.want)
				}
			}
			b := make([]byte, 300)
			for range 2000 {
				for i := range b {
					b[i] = byte(r.Uint32())
				}
				from, to := r.IntN(len(b)), r.IntN(len(b))
				p, crc := b[min(from, to):max(from, to)], r.Uint32()
				cut := r.IntN(len(p) + 1)
				if got, want := Update(Update(crc, p[:cut]), p[cut:]), crc32.Update(crc, castagnoli, p); got != want {
					t.Fatalf("%x after %#x, in two pieces of which the first has %d octets: %#x, want %#x", p, crc, cut, got, want)
				}
			}
		})
	}
}

// TestUpdateAllocatesNothing: it is on every path of data.
func TestUpdateAllocatesNothing(t *testing.T) {
	b := make([]byte, 4096)
	if n := testing.AllocsPerRun(100, func() { byTables(Update(0, b), b) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkUpdate(b *testing.B) {
	p := make([]byte, 256<<10)
	for name, f := range map[string]func(){
		"chosen":      func() { Update(0, p) },
		"instruction": func() { crc32.Update(0, castagnoli, p) },
		"tables":      func() { byTables(0, p) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				f()
			}
		})
	}
}
