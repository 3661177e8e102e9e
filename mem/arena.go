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
	quiet int  // Trims since something was leased, up to quietTrims; guarded by the buddies' lock
	away  bool // those who watch were told that it is idle; guarded by the buddies' lock
}

// Index numbers the arenas of a pool from 0 in the order of their making.
func (a *Arena) Index() int { return a.index }

// Offset is where the arena begins in the file of a shared pool; bytes.
func (a *Arena) Offset() int64 { return int64(a.index) * ArenaSize }

// Bytes returns all of the arena, to be registered with a device. Only the holder of a
// lease may look inside.
func (a *Arena) Bytes() []byte { return a.bytes }

// noFile is the file of a pool that shares its memory with nobody.
const noFile = -1

// mapArena maps the memory of a new arena, aligned to MaxLease so that blocks are aligned
// to their size. No page of it exists before it is touched. Its bytes are those of file, if
// there is one.
func mapArena(index, file int) (*Arena, error) {
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
	at := unsafe.Add(p, head)
	a := &Arena{index: index, bytes: unsafe.Slice((*byte)(at), ArenaSize)}
	if file != noFile {
		if err := mapFile(file, a.Offset(), at); err != nil {
			unmap(at, ArenaSize)
			return nil, err
		}
	}
	// Huge pages spare TLB misses and, when registered with a device, table entries. A
	// kernel without them says EINVAL, and small pages do as well.
	_ = unix.Madvise(a.bytes, unix.MADV_HUGEPAGE)
	// A child must not share pages that a device writes to.
	_ = unix.Madvise(a.bytes, unix.MADV_DONTFORK)
	return a, nil
}

// mapFile maps the arena at off of file, which it makes long enough, over the memory at.
func mapFile(file int, off int64, at unsafe.Pointer) error {
	if err := unix.Ftruncate(file, off+ArenaSize); err != nil {
		return fmt.Errorf("make I/O memory larger: %w", err)
	}
	_, err := unix.MmapPtr(file, off, at, ArenaSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("map %d bytes of I/O memory: %w", ArenaSize, err)
	}
	return nil
}

// back has a block of MaxLease that nobody has touched backed by huge pages, where the kernel does not
// do so by itself: for files in memory few systems allow it (shmem_enabled), but all do what they are
// told (MADV_COLLAPSE, Linux 6.1). Without it copying costs a tenth to a third more.
func (a *Arena) back(page, file int) {
	if file == noFile {
		return
	}
	const hugePage = 2 << 20
	b := a.bytes[page*PageSize:][:MaxLease]
	for i := 0; i < len(b); i += hugePage {
		b[i] = 0 // it takes a page to make a huge one of
	}
	_ = unix.Madvise(b, unix.MADV_COLLAPSE)
}

// giveBack makes the kernel take the pages of a free block of MaxLease. It fails only for locked
// memory, which is then meant to stay.
func (a *Arena) giveBack(page int, file int) {
	advice := unix.MADV_DONTNEED
	if file != noFile {
		advice = unix.MADV_REMOVE // the pages are the file's
	}
	_ = unix.Madvise(a.bytes[page*PageSize:][:MaxLease], advice)
}

func unmap(p unsafe.Pointer, n uintptr) {
	if err := unix.MunmapPtr(p, n); err != nil {
		panic(fmt.Sprintf("mem: unmap %d bytes at %p: %v", n, p, err)) // our own range
	}
}

// watch is what somebody is told of arenas.
type watch struct {
	mapped, idle func(*Arena)
}

// Arenas calls mapped for every arena of the pool, those of today before it returns and those
// of the future before anything is leased from them.
//
// The caller may have a device pin the pages, so they cannot be given back without its knowledge.
// idle is called when nothing has been leased from an arena for some Trims: the caller lets go of
// its pages, and mapped is called again before anything is leased from it.
//
// Calls come one at a time, the first ones of mapped in the order of Index, from any goroutine that
// leases or trims; they must not block for long and must not call into the pool. Calling stop ends
// this; no call is under way when it returns.
func (p *Pool) Arenas(mapped, idle func(*Arena)) (stop func()) {
	b := &p.buddies
	b.mu.Lock()
	defer b.mu.Unlock()
	w := &watch{mapped, idle}
	b.watches = append(b.watches, w)
	for _, a := range b.arenas {
		if a.away {
			b.fetch(a) // those who were there before have let go of it
			continue
		}
		mapped(a)
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if i := slices.Index(b.watches, w); i >= 0 {
			b.watches = slices.Delete(b.watches, i, i+1)
		}
	}
}
