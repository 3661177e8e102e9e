package mem

import (
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Arena is a piece of address space that leases are cut from. It stays where it is, and
// mapped, until Pool.Close.
type Arena struct {
	index int
	bytes []byte
	pages [arenaPages]page // guarded by the buddies' lock
	dirty [arenaPages >> maxOrder]bool
}

// Index numbers the arenas of a pool from 0 in the order of their making.
func (a *Arena) Index() int { return a.index }

// Bytes returns all of the arena, to be registered with a device. Only the holder of a
// lease may look inside.
func (a *Arena) Bytes() []byte { return a.bytes }

// mapArena maps the memory of a new arena, aligned to MaxLease so that blocks are aligned
// to their size. No page of it exists before it is touched.
func mapArena(index int) (*Arena, error) {
	const span = ArenaSize + MaxLease
	p, err := unix.MmapPtr(-1, 0, nil, span, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of I/O memory: %w", span, err)
	}
	head := -uintptr(p) & (MaxLease - 1)
	if head > 0 {
		unmap(p, head)
	}
	unmap(unsafe.Add(p, head+ArenaSize), MaxLease-head)
	b := unsafe.Slice((*byte)(unsafe.Add(p, head)), ArenaSize)
	// Huge pages spare TLB misses and, when registered with a device, table entries. A
	// kernel without them says EINVAL, and small pages do as well.
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	// A child must not share pages that a device writes to.
	_ = unix.Madvise(b, unix.MADV_DONTFORK)
	return &Arena{index: index, bytes: b}, nil
}

func unmap(p unsafe.Pointer, n uintptr) {
	if err := unix.MunmapPtr(p, n); err != nil {
		panic(fmt.Sprintf("mem: unmap %d bytes at %p: %v", n, p, err)) // our own range
	}
}

// Arenas calls f for every arena of the pool, those of today before it returns and those
// of the future before anything is leased from them. Calls come one at a time, in the
// order of Index, from any goroutine that leases; f must not block for long and must not
// call into the pool. Since f may pin the pages, Trim leaves them alone from now on.
// Calling stop ends this; no call is under way when it returns.
func (p *Pool) Arenas(f func(*Arena)) (stop func()) {
	b := &p.buddies
	b.mu.Lock()
	defer b.mu.Unlock()
	h := &f
	b.hooks = append(b.hooks, h)
	for _, a := range b.arenas {
		f(a)
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if i := slices.Index(b.hooks, h); i >= 0 {
			b.hooks = slices.Delete(b.hooks, i, i+1)
		}
	}
}
