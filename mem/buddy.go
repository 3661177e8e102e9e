package mem

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"oneshot/internal/invariant"
)

const arenaPages = ArenaSize / PageSize

// page is what is known of one page of an arena: as the first page of a free block its
// links in the list of free blocks of its order. Pages are numbered through all arenas.
type page struct {
	next, prev int32 // page numbers, or none
	order      uint8
	free       bool // first page of a free block
}

const none = -1

// buddies is a binary buddy allocator over the arenas: a block is free as a whole, split
// into two halves of the next order below, or leased; two free halves become one again.
type buddies struct {
	mu     sync.Mutex // taken after shard.mu; nothing is taken under it
	limit  int        // arenas
	arenas []*Arena
	heads  [orders]int32 // page numbers of the first free blocks
	hooks  []*func(*Arena)
}

func (b *buddies) init(limitArenas int) {
	b.limit = limitArenas
	for o := range b.heads {
		b.heads[o] = none
	}
}

func (b *buddies) page(n int32) *page { return &b.arenas[n/arenaPages].pages[n%arenaPages] }

// alloc returns the number of the first page of a block that is now the caller's, mapping
// an arena if need be. Called with mu held.
func (b *buddies) alloc(order int) (int32, bool) {
	from := order
	for from < orders && b.heads[from] == none {
		from++
	}
	if from == orders {
		if !b.grow() {
			return none, false
		}
		from = maxOrder
	}
	n := b.heads[from]
	b.unlink(n)
	if from == maxOrder {
		b.arenas[n/arenaPages].dirty[n%arenaPages>>maxOrder] = true
	}
	for from > order {
		from--
		b.link(n+1<<from, from)
	}
	return n, true
}

// free takes a block back and joins it with its buddies. Called with mu held.
func (b *buddies) free(n int32, order int) {
	for order < maxOrder {
		other := n ^ 1<<order
		if p := b.page(other); !p.free || int(p.order) != order {
			break
		}
		b.unlink(other)
		n &^= 1 << order
		order++
	}
	b.link(n, order)
}

// link puts a block at the head of its list: what was used last is still in the caches.
func (b *buddies) link(n int32, order int) {
	p := b.page(n)
	if invariant.Enabled {
		invariant.Check(!p.free, "a block is freed once")
		invariant.Check(n&(1<<order-1) == 0, "a block is aligned to its size")
	}
	*p = page{next: b.heads[order], prev: none, order: uint8(order), free: true}
	if p.next != none {
		b.page(p.next).prev = n
	}
	b.heads[order] = n
}

func (b *buddies) unlink(n int32) {
	p := b.page(n)
	invariant.Check(p.free, "a listed block is free")
	if p.prev == none {
		b.heads[p.order] = p.next
	} else {
		b.page(p.prev).next = p.next
	}
	if p.next != none {
		b.page(p.next).prev = p.prev
	}
	p.free = false
}

// grow maps another arena and reports whether it could. Called with mu held.
func (b *buddies) grow() bool {
	if len(b.arenas) == b.limit {
		return false
	}
	a, err := mapArena(len(b.arenas))
	if err != nil {
		// Out of address space or mappings: for the caller the same as a pool used up.
		return false
	}
	b.arenas = append(b.arenas, a)
	for _, f := range b.hooks {
		(*f)(a)
	}
	for i := arenaPages - 1<<maxOrder; i >= 0; i -= 1 << maxOrder {
		b.link(int32(a.index*arenaPages+i), maxOrder)
	}
	return true
}

// trim gives the pages of wholly free blocks of the highest order back to the kernel.
// Called with mu held.
func (b *buddies) trim() {
	if len(b.hooks) > 0 {
		return // a device may have pinned the pages: it would go on with pages nobody sees
	}
	for n := b.heads[maxOrder]; n != none; n = b.page(n).next {
		a, i := b.arenas[n/arenaPages], int(n%arenaPages)
		if dirty := &a.dirty[i>>maxOrder]; *dirty {
			// Fails only for locked memory, which is then meant to stay.
			_ = unix.Madvise(a.bytes[i*PageSize:][:MaxLease], unix.MADV_DONTNEED)
			*dirty = false
		}
	}
}

// unmap ends all arenas. Called with mu held.
func (b *buddies) unmap() {
	for _, a := range b.arenas {
		unmap(unsafe.Pointer(unsafe.SliceData(a.bytes)), ArenaSize)
	}
	b.init(0)
	b.arenas = nil
}
