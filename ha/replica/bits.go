package replica

import (
	"cmp"
	"iter"
	mathbits "math/bits"
	"slices"
)

// Bits is a set of numbers, of which many neighbours are members, and long ranges are not. Nil is the empty set.
type Bits []chunk

// chunk holds the numbers from at*chunkBits on. Chunks are in order.
type chunk struct {
	at   int
	bits [8]uint64
}

const chunkBits = 8 * 64

func (b Bits) find(at int) (int, bool) {
	return slices.BinarySearchFunc(b, at, func(c chunk, at int) int { return cmp.Compare(c.at, at) })
}

func (b Bits) Has(i int) bool {
	k, ok := b.find(i / chunkBits)
	return ok && b[k].bits[i%chunkBits>>6]&(1<<(i&63)) != 0
}

// Set adds i.
func (b *Bits) Set(i int) {
	k, ok := b.find(i / chunkBits)
	if !ok {
		*b = slices.Insert(*b, k, chunk{at: i / chunkBits})
	}
	(*b)[k].bits[i%chunkBits>>6] |= 1 << (i & 63)
}

// Clear removes i.
func (b Bits) Clear(i int) {
	if k, ok := b.find(i / chunkBits); ok {
		b[k].bits[i%chunkBits>>6] &^= 1 << (i & 63)
	}
}

// Add adds all of o.
func (b *Bits) Add(o Bits) {
	for _, c := range o {
		k, ok := b.find(c.at)
		if !ok {
			*b = slices.Insert(*b, k, chunk{at: c.at})
		}
		for i, w := range c.bits {
			(*b)[k].bits[i] |= w
		}
	}
}

func (b Bits) Clone() Bits { return slices.Clone(b) }

// Empty says whether there is none.
func (b Bits) Empty() bool { return b.next(0) < 0 }

// Len counts the members.
func (b Bits) Len() int {
	n := 0
	for _, c := range b {
		for _, w := range c.bits {
			n += mathbits.OnesCount64(w)
		}
	}
	return n
}

// next returns the first number that is at least i, or -1.
func (b Bits) next(i int) int {
	for k, _ := b.find(i / chunkBits); k < len(b); k++ {
		first := b[k].at * chunkBits
		for w := max(i-first, 0) >> 6; w < len(b[k].bits); w++ {
			word := b[k].bits[w]
			if base := first + w<<6; base < i {
				word &= ^uint64(0) << (i - base)
			}
			if word != 0 {
				return first + w<<6 + mathbits.TrailingZeros64(word)
			}
		}
	}
	return -1
}

// All yields the numbers in order.
func (b Bits) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := b.next(0); i >= 0 && yield(i); i = b.next(i + 1) {
		}
	}
}
