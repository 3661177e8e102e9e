package mem

import (
	"sync"
	"unsafe"
)

// Blocks above maxCached come from the buddies directly: to fill so much memory takes far longer
// than the lock.
const maxCached = 7 // 512 KiB

// cacheCap is how many blocks of an order a shard keeps: 32, and at most 512 KiB.
func cacheCap(order int) int { return min(32, 1<<(maxCached-order)) }

// shard keeps a few free blocks of each order, already bound to leases. A goroutine tends
// to come back to the same shard, where it finds the block that it has just released.
type shard struct {
	mu    sync.Mutex // taken before buddies.mu
	free  [maxCached + 1]*Lease
	count [maxCached + 1]int
	used  bool // since the last Trim
	// Leases begun less leases released through this shard. Only the sum over all shards
	// means something.
	leases int

	_ [64]byte // the next shard is on another cache line
}

// shard returns the one that the calling goroutine uses. Go does not tell a goroutine who
// it is; the address of its stack does well enough.
func (p *Pool) shard() *shard {
	var here byte
	h := uint64(uintptr(unsafe.Pointer(&here))>>13) * 0x9E3779B97F4A7C15
	return &p.shards[h>>32%uint64(len(p.shards))]
}

// take returns a lease of a block, or nil.
func (s *shard) take(p *Pool, order int) *Lease {
	s.mu.Lock()
	s.used = true
	var l *Lease
	if s.free[order] != nil || s.fill(p, order) {
		l = s.free[order]
		s.free[order], l.next = l.next, nil
		s.count[order]--
		s.leases++
	}
	s.mu.Unlock() // without defer, which costs as much as the rest
	return l
}

// fill fetches half of what the shard may keep of an order. Called with mu held.
func (s *shard) fill(p *Pool, order int) bool {
	p.buddies.mu.Lock()
	defer p.buddies.mu.Unlock()
	for range max(1, cacheCap(order)/2) {
		l := p.cut(order)
		if l == nil {
			break
		}
		s.push(l)
	}
	if s.free[order] == nil {
		return false
	}
	p.crossed.Add(1)
	return true
}

func (s *shard) push(l *Lease) {
	l.next = s.free[l.order]
	s.free[l.order] = l
	s.count[l.order]++
}

// give takes a lease back, and passes half of the order on when there are too many.
func (s *shard) give(p *Pool, l *Lease) {
	s.mu.Lock()
	s.used = true
	s.leases--
	s.push(l)
	if o := int(l.order); s.count[o] > cacheCap(o) {
		p.buddies.mu.Lock()
		s.shrink(p, o, cacheCap(o)/2)
		p.buddies.mu.Unlock()
	}
	s.mu.Unlock()
}

// shrink passes blocks of an order on to the buddies until keep are left. Called with mu
// and buddies.mu held.
func (s *shard) shrink(p *Pool, order, keep int) {
	for s.count[order] > keep {
		l := s.free[order]
		s.free[order] = l.next
		s.count[order]--
		p.join(l)
	}
}

// drain passes all blocks on to the buddies; if idle is set, only when the shard was not
// used since the last time.
func (s *shard) drain(p *Pool, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if idle && s.used {
		s.used = false
		return
	}
	p.buddies.mu.Lock()
	defer p.buddies.mu.Unlock()
	for o := range s.free {
		s.shrink(p, o, 0)
	}
}
