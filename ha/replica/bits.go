package replica

import (
	"iter"
	mathbits "math/bits"
	"slices"
)

// Bits is a set of small numbers. Nil is the empty set.
type Bits []uint64

func (b Bits) Has(i int) bool { return i>>6 < len(b) && b[i>>6]&(1<<(i&63)) != 0 }

// Set adds i.
func (b *Bits) Set(i int) {
	for i>>6 >= len(*b) {
		*b = append(*b, 0)
	}
	(*b)[i>>6] |= 1 << (i & 63)
}

// Clear removes i.
func (b Bits) Clear(i int) {
	if i>>6 < len(b) {
		b[i>>6] &^= 1 << (i & 63)
	}
}

// Add adds all of o.
func (b *Bits) Add(o Bits) {
	for len(*b) < len(o) {
		*b = append(*b, 0)
	}
	for i, w := range o {
		(*b)[i] |= w
	}
}

func (b Bits) Clone() Bits { return slices.Clone(b) }

// Empty says whether there is none.
func (b Bits) Empty() bool { return b.next(0) < 0 }

// next returns the first number that is at least i, or -1.
func (b Bits) next(i int) int {
	for w := i >> 6; w < len(b); w++ {
		word := b[w]
		if w == i>>6 {
			word &= ^uint64(0) << (i & 63)
		}
		if word != 0 {
			return w<<6 + mathbits.TrailingZeros64(word)
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
