package replica

import (
	"fmt"
	"math/bits"
)

// heap allocates the memory of the log, in blocks of a power of two of units (buddies). Only the primary allocates;
// a new primary begins with what the records still need (claim).
type heap struct {
	unit   int64
	orders int
	free   []Bits // by order: numbers of free blocks of 1<<order units
	used   int64  // units
	size   int64
}

// newHeap allocates from one address to another.
func newHeap(from, to, unit int64) *heap {
	end := to / unit
	h := &heap{unit: unit, size: end - from/unit}
	h.orders = bits.Len64(uint64(end))
	h.free = make([]Bits, h.orders)
	for at := from / unit; at < end; {
		o := bits.TrailingZeros64(uint64(at) | 1<<(h.orders-1))
		for at+1<<o > end {
			o--
		}
		h.free[o].Set(int(at >> o))
		at += 1 << o
	}
	return h
}

// order returns the smallest order whose blocks hold n bytes.
func (h *heap) order(n int64) int { return bits.Len64(uint64((n+h.unit-1)/h.unit) - 1) }

// alloc returns the address of n bytes, or false if there is no block that is large enough.
func (h *heap) alloc(n int64) (int64, bool) {
	want := h.order(n)
	for o := want; o < h.orders; o++ {
		i := h.free[o].next(0)
		if i < 0 {
			continue
		}
		h.free[o].Clear(i)
		for o > want { // the upper half of each split stays free
			o--
			i *= 2
			h.free[o].Set(i + 1)
		}
		h.used += 1 << want
		return int64(i) << want * h.unit, true
	}
	return 0, false
}

// release gives back what alloc or claim took.
func (h *heap) release(addr, n int64) {
	o := h.order(n)
	i := int(addr / h.unit >> o)
	h.used -= 1 << o
	for ; o < h.orders-1 && h.free[o].Has(i^1); o++ {
		h.free[o].Clear(i ^ 1)
		i >>= 1
	}
	if h.free[o].Has(i) {
		panic(fmt.Sprintf("replica: heap block %#x released twice", addr))
	}
	h.free[o].Set(i)
}

// claim takes a block at a given address.
func (h *heap) claim(addr, n int64) {
	want := h.order(n)
	at := int(addr / h.unit >> want)
	for o := want; o < h.orders; o++ {
		i := at >> (o - want)
		if !h.free[o].Has(i) {
			continue
		}
		h.free[o].Clear(i)
		for o > want {
			o--
			half := at >> (o - want)
			h.free[o].Set(half ^ 1)
		}
		h.used += 1 << want
		return
	}
	panic(fmt.Sprintf("replica: two records in the heap block %#x", addr))
}
