package mem

import (
	"sync/atomic"
	"unsafe"

	"oneshot/internal/invariant"
)

// Lease is the right to use a piece of memory, from Pool.Lease to Release. It has one owner at a
// time. Whoever passes it to another goroutine has to order the two.
type Lease struct {
	pool   *Pool
	arena  *Arena
	first  int32 // number of the block's first page
	order  uint8
	leased atomic.Bool
	kept   bool // it is one of Pool.Keep
	bytes  []byte
	next   *Lease // in the free list of a shard, or among the spare ones
}

// Bytes returns the memory, as many bytes as were asked for, at an address that is a
// multiple of PageSize. Its contents are what the last owner left there. It is the same
// slice each time, and nobody may use it after Release.
func (l *Lease) Bytes() []byte {
	if invariant.Enabled {
		invariant.Check(l.leased.Load(), "Bytes of a lease that was released")
	}
	return l.bytes
}

// Arena returns where the memory lies: its first byte is byte off of a's. With it one
// finds the registration that a device made of the arena.
func (l *Lease) Arena() (a *Arena, off int) {
	return l.arena, int(l.first%arenaPages) * PageSize
}

// Release gives the memory back. A second call panics.
func (l *Lease) Release() {
	if !l.leased.CompareAndSwap(true, false) {
		panic("mem: lease released twice")
	}
	invariant.Fill(l.bytes)
	l.bytes = nil
	if l.kept {
		l.kept = false
		l.pool.kept.Add(-int64(PageSize) << l.order)
	}
	l.pool.release(l)
}

// bind makes l stand for a block.
func (l *Lease) bind(a *Arena, first int32, order int) {
	l.arena, l.first, l.order = a, first, uint8(order)
}

// begin starts the term of l over n bytes.
func (l *Lease) begin(n int) *Lease {
	_, off := l.Arena()
	l.bytes = unsafe.Slice(&l.arena.bytes[off], n)
	l.leased.Store(true)
	return l
}
