package memory

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bitmap is a set of n small numbers that any number of goroutines use. It lies outside
// the Go heap, so that the bitmap of a large, empty store takes no memory either.
type bitmap struct {
	n     int64
	words []atomic.Uint64
	raw   []byte
}

func newBitmap(n int64) (bitmap, error) {
	words := (n + 63) / 64
	raw, err := reserve(words * 8)
	if err != nil {
		return bitmap{}, err
	}
	return bitmap{
		n: n, raw: raw,
		words: unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(raw))), words),
	}, nil
}

func (b *bitmap) close() {
	if err := unix.Munmap(b.raw); err != nil {
		panic(err) // our own mapping
	}
	*b = bitmap{}
}

// mask returns the bits of word w that stand for members of [first, end).
func mask(w, first, end int64) uint64 {
	m := ^uint64(0)
	if base := w * 64; first > base {
		m <<= first - base
	}
	if over := (w+1)*64 - end; over > 0 {
		m &= ^uint64(0) >> over
	}
	return m
}

func (b *bitmap) get(i int64) bool { return b.words[i/64].Load()>>(i%64)&1 == 1 }

// set adds [first, end). What is there already is only read: most writes go to pages that
// are mapped, and the words stay in every processor's cache.
func (b *bitmap) set(first, end int64) {
	for w := first / 64; w*64 < end; w++ {
		if m := mask(w, first, end); b.words[w].Load()&m != m {
			b.words[w].Or(m)
		}
	}
}

// clear removes [first, end).
func (b *bitmap) clear(first, end int64) {
	for w := first / 64; w*64 < end; w++ {
		if m := mask(w, first, end); b.words[w].Load()&m != 0 {
			b.words[w].And(^m)
		}
	}
}

// count returns how many members there are.
func (b *bitmap) count() (n int64) {
	for w := range b.words {
		n += int64(bits.OnesCount64(b.words[w].Load()))
	}
	return n
}

// run returns whether first is a member, and where in [first, end), not empty, that ends. Others may change it meanwhile.
func (b *bitmap) run(first, end int64) (member bool, until int64) {
	w := first / 64
	v := b.words[w].Load() // once: the answer is about the state that first has in it
	var flip uint64        // makes a member that differs from first a 1
	if member = v>>(first%64)&1 == 1; member {
		flip = ^uint64(0)
	}
	for {
		if d := (v ^ flip) & mask(w, first, end); d != 0 {
			return member, w*64 + int64(bits.TrailingZeros64(d))
		}
		if w++; w*64 >= end {
			return member, end
		}
		v = b.words[w].Load()
	}
}
