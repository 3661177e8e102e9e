package memory

import (
	"runtime"
	"sync/atomic"
	"time"

	"oneshot/internal/invariant"
)

const (
	regionShift = 16 // a region is 64 KiB
	regionCount = 1024
	// pieceSize is how much of a long operation is done at once, so that others do not wait for all
	// of it; bytes, a multiple of regions and pages.
	pieceSize = 1 << 20
)

// pieceAt returns the length of the piece at off of a range that ends at end.
func pieceAt(off, end int64) int64 { return min((off|(pieceSize-1))+1, end) - off }

// regions are the locks of whoever changes bytes, held for microseconds. Each lock guards every
// regionCount-th region of the store. Whoever holds some waits for nothing else, and all take them in
// the same order, so whoever spins gets them in the end.
type regions [regionCount]region

type region struct {
	locked atomic.Uint32
	users  int32 // who has mapped something that this lock guards; guarded by it
}

// indexes returns the locks of [off, off+n), n > 0, which are [a, b) and then [c, d).
func indexes(off, n int64) (a, b, c, d int) {
	first, last := off>>regionShift, (off+n-1)>>regionShift
	if last-first >= regionCount {
		return 0, regionCount, 0, 0
	}
	i, j := int(first%regionCount), int(last%regionCount)
	if i <= j {
		return i, j + 1, 0, 0
	}
	return 0, j + 1, i, regionCount
}

// inOne returns the only lock of [off, off+n), if there is only one, as there is for nearly all.
func inOne(off, n int64) (i int, ok bool) {
	first := uint64(off) >> regionShift
	return int(first % regionCount), first == uint64(off+n-1)>>regionShift
}

func (r *regions) lock(off, n int64) {
	if i, ok := inOne(off, n); ok {
		r.lockOne(i)
		return
	}
	a, b, c, d := indexes(off, n)
	for i := a; i < b; i++ {
		r.lockOne(i)
	}
	for i := c; i < d; i++ {
		r.lockOne(i)
	}
}

func (r *regions) lockOne(i int) {
	for tries := 1; !r[i].locked.CompareAndSwap(0, 1); tries++ {
		pause(tries)
	}
}

func (r *regions) unlock(off, n int64) {
	if i, ok := inOne(off, n); ok {
		r.unlockOne(i)
		return
	}
	a, b, c, d := indexes(off, n)
	for i := a; i < b; i++ {
		r.unlockOne(i)
	}
	for i := c; i < d; i++ {
		r.unlockOne(i)
	}
}

func (r *regions) unlockOne(i int) {
	was := r[i].locked.Swap(0)
	if invariant.Enabled {
		invariant.Check(was == 1, "a Commit without Lend")
	}
}

// use counts n users of a range more. Its locks are held.
func (r *regions) use(off, n int64, users int32) {
	a, b, c, d := indexes(off, n)
	for i := a; i < b; i++ {
		r[i].users += users
	}
	for i := c; i < d; i++ {
		r[i].users += users
	}
}

// used reports whether somebody may write to a range, or to one with the same locks, at any time. Its locks are held.
func (r *regions) used(off, n int64) bool {
	a, b, c, d := indexes(off, n)
	for i := a; i < b; i++ {
		if r[i].users != 0 {
			return true
		}
	}
	for i := c; i < d; i++ {
		if r[i].users != 0 {
			return true
		}
	}
	return false
}

// spins is how often a waiting goroutine tries before it sleeps. The holder of the lock needs a few
// microseconds, unless the operating system has taken the processor away from it.
const spins = 64

// pause is between two tries.
func pause(tries int) {
	if tries < spins {
		runtime.Gosched()
	} else {
		time.Sleep(20 * time.Microsecond)
	}
}
