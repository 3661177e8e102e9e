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
	file   int           // that arenas are mapped from, or noFile

	watches []*watch
}

func (b *buddies) init(limitArenas int) {
	b.limit, b.file = limitArenas, noFile
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
	a := b.arenas[n/arenaPages]
	a.quiet = 0
	if dirty := &a.dirty[n%arenaPages>>maxOrder]; from == maxOrder && !*dirty {
		*dirty = true
		a.back(int(n%arenaPages), b.file)
	}
	if a.away {
		b.fetch(a)
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
	a, err := mapArena(len(b.arenas), b.file)
	if err != nil {
		// Out of address space or mappings: for the caller the same as a pool used up.
		return false
	}
	b.arenas = append(b.arenas, a)
	b.fetch(a)
	for i := arenaPages - 1<<maxOrder; i >= 0; i -= 1 << maxOrder {
		b.link(int32(a.index*arenaPages+i), maxOrder)
	}
	return true
}

// fetch tells those who watch that a is about to be used. Called with mu held.
func (b *buddies) fetch(a *Arena) {
	a.away = false
	for _, w := range b.watches {
		w.mapped(a)
	}
}

// quietTrims is the number of Trims without a lease from an arena after which its watchers let go of it:
// to get it back costs them more than pages cost the kernel.
const quietTrims = 10

// trim gives the pages of wholly free blocks of the highest order back to the kernel; where
// somebody watches, those of arenas that nobody uses. Called with mu held.
func (b *buddies) trim() {
	if len(b.watches) > 0 { // a device may have pinned the pages: it would go on with pages nobody sees
		b.trimArenas()
		return
	}
	for n := b.heads[maxOrder]; n != none; n = b.page(n).next {
		b.arenas[n/arenaPages].trim(int(n%arenaPages), b.file)
	}
}

// trimArenas is trim where somebody watches.
func (b *buddies) trimArenas() {
	for _, a := range b.arenas {
		if a.away || !a.free() {
			continue
		}
		if a.quiet++; a.quiet < quietTrims {
			continue
		}
		for _, w := range b.watches {
			w.idle(a)
		}
		a.away = true
		for i := 0; i < arenaPages; i += 1 << maxOrder {
			a.trim(i, b.file)
		}
	}
}

// free reports whether nothing of the arena is leased, nor kept by a shard.
func (a *Arena) free() bool {
	for i := 0; i < arenaPages; i += 1 << maxOrder {
		if p := &a.pages[i]; !p.free || p.order != maxOrder {
			return false
		}
	}
	return true
}

// trim gives the pages of the free block at page i back, if it has any.
func (a *Arena) trim(i, file int) {
	if dirty := &a.dirty[i>>maxOrder]; *dirty {
		a.giveBack(i, file)
		*dirty = false
	}
}

// unmap ends all arenas. Called with mu held.
func (b *buddies) unmap() {
	for _, a := range b.arenas {
		unmap(unsafe.Pointer(unsafe.SliceData(a.bytes)), ArenaSize)
	}
	if b.file != noFile {
		_ = unix.Close(b.file)
	}
	b.init(0)
	b.arenas = nil
}
