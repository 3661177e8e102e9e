// Package ring is a queue in a ring of slots that grows when it is full. Positions run freely, so
// that owners can keep places of their own in it.
package ring

// Ring holds elements at positions from Head on, up to Tail; both wrap at 2³². The zero value is
// empty. Its user may move Head and Tail: slots keep their contents, so memory in them can be
// used again. It has no lock.
type Ring[T any] struct {
	slots      []T // a power of two
	Head, Tail uint32
}

// first is how many slots there are when there are any.
const first = 16

// Len returns how many elements there are.
func (r *Ring[T]) Len() int { return int(r.Tail - r.Head) }

// At returns the slot of a position from Head on, before Tail. It stays where it is until the ring
// grows.
func (r *Ring[T]) At(pos uint32) *T { return &r.slots[pos&uint32(len(r.slots)-1)] }

// Next returns the slot at Tail, for which it makes room, without making it an element.
func (r *Ring[T]) Next() *T {
	if r.Len() == len(r.slots) {
		r.grow()
	}
	return r.At(r.Tail)
}

// Push adds x at Tail.
func (r *Ring[T]) Push(x T) {
	*r.Next() = x
	r.Tail++
}

// Back returns the slot before Head, for which it makes room, as the first element.
func (r *Ring[T]) Back() *T {
	if r.Len() == len(r.slots) {
		r.grow()
	}
	r.Head--
	return r.At(r.Head)
}

func (r *Ring[T]) grow() {
	slots := make([]T, max(first, 2*len(r.slots)))
	for i := r.Head; i != r.Tail; i++ {
		slots[i&uint32(len(slots)-1)] = *r.At(i)
	}
	r.slots = slots
}
