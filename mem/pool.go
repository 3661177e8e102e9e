package mem

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Pool hands out leases. Its methods may be called from any number of goroutines.
type Pool struct {
	limit   int64
	inUse   atomic.Int64 // bytes in leases, or about to be
	crossed atomic.Int64 // how often one call of Lease may have kept memory from another: it was refused, or has filled a shard
	kept    atomic.Int64 // of these, bytes in leases of Keep
	waiting atomic.Bool  // there are waiters

	waitMu  sync.Mutex // taken last; not held over calls to waiters
	waiters []Waiter   // each once, the first to come first
	waits   map[Waiter]struct{}

	shards  []shard
	buddies buddies
	spare   *Lease // leases without a block, guarded by buddies.mu
	spares  int    // how many
}

// Waiter wants to know when memory was given back.
type Waiter interface {
	// MemoryFree is called from the goroutine that gave memory back. It must not block, and
	// must not call into the pool.
	MemoryFree()
}

// Stats is the state of a pool at about one moment.
type Stats struct {
	Limit  int64 // bytes that leases may take together
	InUse  int64 // bytes that they do take, each rounded up as RoundUp does
	Mapped int64 // bytes of address space in arenas
	Leases int   // not released yet
}

// NewPool returns a pool whose leases never take more than limit bytes together, each
// counted as RoundUp does. It maps nothing yet. Its address space is bounded by limit too,
// rounded up to whole arenas.
func NewPool(limit int64) *Pool {
	if limit < 0 {
		panic(fmt.Sprintf("mem: pool with a limit of %d bytes", limit))
	}
	p := &Pool{limit: limit, shards: make([]shard, 4*runtime.GOMAXPROCS(0)), waits: make(map[Waiter]struct{})}
	p.buddies.init(int((limit + ArenaSize - 1) / ArenaSize))
	return p
}

// Lease returns n bytes, 1 to MaxLease, which the caller owns until Release. It returns
// nil when they do not fit under the limit, or when what is free under the limit does not
// lie together. It never blocks, and does not allocate from the Go heap once the pool has
// grown to what is asked of it.
func (p *Pool) Lease(n int) *Lease {
	if n < 1 || n > MaxLease {
		panic(fmt.Sprintf("mem: lease of %d bytes, want 1 to %d", n, MaxLease))
	}
	order := orderOf(n)
	size := int64(PageSize << order)
	before := p.crossed.Load()
	if !reserve(&p.inUse, size, p.limit) {
		p.crossed.Add(1)
		if !reserve(&p.inUse, size, p.limit) {
			return nil
		}
	}
	if l := p.find(order); l != nil {
		return l.begin(n)
	}
	// Nothing was given back. Those who wait try again only if another call was under way, which was refused because of these bytes, or has had
	// blocks in its hands that would do here. Else two of them would have each other try for ever.
	p.inUse.Add(-size)
	if p.crossed.Load() != before && p.waiting.Load() {
		p.wake()
	}
	return nil
}

// Keep is Lease for memory that its owner keeps for as long as he is there, such as receives of a connection. All of it takes no more
// than half of the limit: the other half comes and goes, so that whoever waits for a lease of that size gets it one day.
func (p *Pool) Keep(n int) *Lease {
	size := int64(RoundUp(n))
	if !reserve(&p.kept, size, p.MostKept()) {
		return nil
	}
	l := p.Lease(n)
	if l == nil {
		p.kept.Add(-size)
		return nil
	}
	l.kept = true
	return l
}

// MostKept returns how many bytes leases of Keep may take together.
func (p *Pool) MostKept() int64 { return p.limit / 2 }

// NewShared is NewPool with memory that other processes can map: that of a file that is nowhere but in
// memory (memfd_create(2)). Whoever has File and the index of an arena finds a lease by its offset in
// the arena. An error says why this system, or this process, can have no such file.
func NewShared(limit int64) (*Pool, error) {
	most := (limit + ArenaSize - 1) / ArenaSize * ArenaSize
	var file unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &file); err == nil && file.Cur < uint64(most) {
		// To make a file longer than that ends the process.
		return nil, fmt.Errorf("shared I/O memory of %d bytes is over the limit on the size of files of %d", most, file.Cur)
	}
	fd, err := unix.MemfdCreate("oneshot-io", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make shared I/O memory: %w", err)
	}
	// Nobody may cut off what others have mapped.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("seal shared I/O memory: %w", err)
	}
	p := NewPool(limit)
	p.buddies.file = fd
	return p, nil
}

// File returns the descriptor of the file that the memory is of, or false if it is shared with
// nobody. It stays the pool's.
func (p *Pool) File() (fd int, ok bool) { return p.buddies.file, p.buddies.file != noFile }

// reserve adds n bytes to a count, if the limit allows.
func reserve(count *atomic.Int64, n, limit int64) bool {
	for {
		old := count.Load()
		if n > limit-old {
			return false
		}
		if count.CompareAndSwap(old, old+n) {
			return true
		}
	}
}

// unreserve is the opposite, and wakes those who wait for it. Called once the memory can
// be found by others.
func (p *Pool) unreserve(n int64) {
	p.inUse.Add(-n)
	if p.waiting.Load() {
		p.wake()
	}
}

// find returns a lease of a block, or nil.
func (p *Pool) find(order int) *Lease {
	s := p.shard()
	if order <= maxCached {
		if l := s.take(p, order); l != nil {
			return l
		}
	} else if l := p.cutFor(s, order); l != nil {
		return l
	}
	// What is left may be in the shards, as blocks or as halves of them.
	for i := range p.shards {
		p.shards[i].drain(p, false)
	}
	return p.cutFor(s, order)
}

// cutFor is cut for a lease that did not come out of s but is counted there.
func (p *Pool) cutFor(s *shard, order int) *Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.buddies.mu.Lock()
	defer p.buddies.mu.Unlock()
	l := p.cut(order)
	if l != nil {
		s.leases++
	}
	return l
}

// cut makes a lease of a block of the buddies. Called with buddies.mu held.
func (p *Pool) cut(order int) *Lease {
	n, ok := p.buddies.alloc(order)
	if !ok {
		return nil
	}
	l := p.spare
	if l == nil {
		l = &Lease{pool: p}
	} else {
		p.spare, l.next = l.next, nil
		p.spares--
	}
	l.bind(p.buddies.arenas[n/arenaPages], n, order)
	return l
}

// maxSpares bounds the memory in leases that a burst leaves behind: about 200 KiB.
const maxSpares = 2048

// join is the opposite of cut. Called with buddies.mu held.
func (p *Pool) join(l *Lease) {
	p.buddies.free(l.first, int(l.order))
	l.arena, l.next = nil, nil
	if p.spares < maxSpares {
		l.next, p.spare = p.spare, l
		p.spares++
	}
}

func (p *Pool) release(l *Lease) {
	order, s := int(l.order), p.shard()
	if order <= maxCached {
		s.give(p, l)
	} else {
		s.mu.Lock()
		s.leases--
		p.buddies.mu.Lock()
		p.join(l)
		p.buddies.mu.Unlock()
		s.mu.Unlock()
	}
	p.unreserve(PageSize << order)
}

// LeaseOrNotify is Lease for those who can wait: if it returns nil, w.MemoryFree is called
// once when memory is given back from now on; try again then, for somebody else may have
// been faster. Memory that was given back since the attempt counts too, so no call is
// missed. Now and then MemoryFree is called although a lease was returned.
func (p *Pool) LeaseOrNotify(n int, w Waiter) *Lease {
	if l := p.Lease(n); l != nil {
		return l
	}
	p.Notify(w)
	l := p.Lease(n)
	if l != nil {
		p.forget(w)
	}
	return l
}

// Limit returns how many bytes leases may take together, without those of Keep.
func (p *Pool) Limit() int64 { return p.limit - p.kept.Load() }

// Free returns how many bytes leases may take besides those that there are.
func (p *Pool) Free() int64 { return p.limit - p.inUse.Load() }

// Notify has w.MemoryFree called once, when memory is given back from now on, however often
// Notify was called until then. What was given back between a failed Lease and Notify does not
// count: who wants memory tries once more after Notify, or uses LeaseOrNotify.
func (p *Pool) Notify(w Waiter) {
	p.waitMu.Lock()
	defer p.waitMu.Unlock()
	if _, waits := p.waits[w]; !waits {
		p.waits[w] = struct{}{}
		p.waiters = append(p.waiters, w)
		p.waiting.Store(true)
	}
}

func (p *Pool) forget(w Waiter) {
	p.waitMu.Lock()
	defer p.waitMu.Unlock()
	if i := slices.Index(p.waiters, w); i >= 0 {
		p.waiters = slices.Delete(p.waiters, i, i+1)
		delete(p.waits, w)
	}
	p.waiting.Store(len(p.waiters) > 0)
}

// wake calls all waiters. Each tries again, and those who fail come back.
func (p *Pool) wake() {
	p.waitMu.Lock()
	ws := p.waiters
	p.waiters = nil
	clear(p.waits)
	p.waiting.Store(false)
	p.waitMu.Unlock()
	for _, w := range ws {
		w.MemoryFree()
	}
}

// Stats returns the state of the pool.
func (p *Pool) Stats() Stats {
	st := Stats{Limit: p.limit, InUse: p.inUse.Load()}
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		st.Leases += s.leases
		s.mu.Unlock()
	}
	p.buddies.mu.Lock()
	defer p.buddies.mu.Unlock()
	st.Mapped = int64(len(p.buddies.arenas)) * ArenaSize
	return st
}

// Trim gives memory back to the kernel that nobody leases and nobody has leased since the
// last Trim, in pieces of MaxLease. To be called about once a second; it costs a few locks
// when there is nothing to give. Of a pool whose Arenas are watched it gives whole arenas, when nobody
// has leased from them for longer.
func (p *Pool) Trim() {
	for i := range p.shards {
		p.shards[i].drain(p, true)
	}
	p.buddies.mu.Lock()
	defer p.buddies.mu.Unlock()
	p.buddies.trim()
}

// Close unmaps the arenas. It panics when leases are outstanding; nobody may use the pool
// afterwards.
func (p *Pool) Close() {
	if n := p.Stats().Leases; n != 0 {
		panic(fmt.Sprintf("mem: pool closed with %d leases outstanding", n))
	}
	for i := range p.shards {
		p.shards[i].drain(p, false)
	}
	p.buddies.mu.Lock()
	defer p.buddies.mu.Unlock()
	p.buddies.unmap()
}
