// Package walk has the places where a load reads and writes.
package walk

import "math/rand/v2"

// Walk gives offsets in a disk or partition: one block after the other, from the start again at the end, or at random.
// It is for one goroutine.
type Walk struct {
	size, span, next int64
	rnd              *rand.Rand // nil: one after the other
}

// New returns a walk over the blocks of size bytes that lie within the first span bytes of all; a span of 0 stands for
// all. rnd still belongs to the caller; nil: one block after the other.
func New(size int, all, span int64, rnd *rand.Rand) Walk {
	if span == 0 {
		span = all
	}
	span = min(span, all)
	return Walk{size: int64(size), span: span - span%int64(size), rnd: rnd}
}

// IsEmpty reports whether there is no whole block, and so no next offset.
func (w *Walk) IsEmpty() bool { return w.span == 0 }

// Next returns the next offset, in bytes.
func (w *Walk) Next() int64 {
	if w.rnd != nil {
		return w.rnd.Int64N(w.span/w.size) * w.size
	}
	at := w.next
	if w.next += w.size; w.next >= w.span {
		w.next = 0
	}
	return at
}
