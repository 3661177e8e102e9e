package mem

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"oneshot/internal/invariant"
)

func newPool(t testing.TB, limit int64) *Pool {
	p := NewPool(limit)
	t.Cleanup(p.Close)
	return p
}

func mustLease(t testing.TB, p *Pool, n int) *Lease {
	t.Helper()
	l := p.Lease(n)
	if l == nil {
		t.Fatalf("no lease of %d bytes with %+v", n, p.Stats())
	}
	return l
}

func TestRoundUp(t *testing.T) {
	for _, c := range []struct{ n, want int }{
		{1, 4096},
		{4096, 4096},
		{4097, 8192},
		{8192, 8192},
		{8193, 16384},
		{1 << 20, 1 << 20},
		{1<<20 + 1, 2 << 20},
		{MaxLease - 1, MaxLease},
		{MaxLease, MaxLease},
	} {
		if got := RoundUp(c.n); got != c.want {
			t.Errorf("RoundUp(%d) = %d, want %d", c.n, got, c.want)
		}
	}
}

// model is the pool as it should be: a set of leases, each with a mark in every page.
type model struct {
	p     *Pool
	limit int64
	inUse int64
	held  []*Lease
	marks map[*Lease]byte
	next  byte
}

func (m *model) lease(t *rapid.T) {
	n := rapid.OneOf(rapid.IntRange(1, MaxLease), rapid.IntRange(1, 64<<10)).Draw(t, "n")
	fits := m.inUse+int64(RoundUp(n)) <= m.limit
	l := m.p.Lease(n)
	if l == nil {
		if fits && len(m.held) == 0 {
			t.Fatalf("empty pool of %d refuses %d bytes", m.limit, n)
		}
		return // too scattered
	}
	if !fits {
		t.Fatalf("lease of %d bytes beyond limit %d with %d in use", n, m.limit, m.inUse)
	}
	b := l.Bytes()
	if len(b) != n || cap(b) != n {
		t.Fatalf("len %d cap %d, want %d", len(b), cap(b), n)
	}
	if uintptr(unsafe.Pointer(&b[0]))%PageSize != 0 {
		t.Fatalf("lease at %p is not page aligned", &b[0])
	}
	if a, off := l.Arena(); &a.Bytes()[off] != &b[0] {
		t.Fatalf("arena %d offset %d is not the lease", a.Index(), off)
	}
	m.next++
	m.marks[l] = m.next
	mark(b, m.next)
	m.held = append(m.held, l)
	m.inUse += int64(RoundUp(n))
}

func mark(b []byte, c byte) {
	for i := 0; i < len(b); i += PageSize {
		b[i] = c
	}
	b[len(b)-1] = c
}

func (m *model) release(t *rapid.T) {
	if len(m.held) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.held)-1).Draw(t, "i")
	l := m.held[i]
	m.held = append(m.held[:i], m.held[i+1:]...)
	m.verify(t, l)
	m.inUse -= int64(RoundUp(len(l.Bytes())))
	delete(m.marks, l)
	l.Release()
}

// verify finds overlaps: another lease's mark stands in our page.
func (m *model) verify(t *rapid.T, l *Lease) {
	b := l.Bytes()
	for i := 0; i < len(b); i += PageSize {
		if b[i] != m.marks[l] {
			t.Fatalf("page at %d of a lease of %d bytes was overwritten", i, len(b))
		}
	}
	if b[len(b)-1] != m.marks[l] {
		t.Fatalf("last byte of a lease of %d bytes was overwritten", len(b))
	}
}

func (m *model) check(t *rapid.T) {
	st := m.p.Stats()
	if st.InUse != m.inUse || st.Leases != len(m.held) || st.Limit != m.limit {
		t.Fatalf("stats %+v, want limit %d, %d in use, %d leases", st, m.limit, m.inUse, len(m.held))
	}
	if st.Mapped > m.limit+ArenaSize {
		t.Fatalf("%d bytes mapped with a limit of %d", st.Mapped, m.limit)
	}
}

func TestPoolAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.OneOf(rapid.Int64Range(MaxLease, 16<<20), rapid.Int64Range(MaxLease, 100<<20)).Draw(t, "limit")
		m := &model{p: NewPool(limit), limit: limit, marks: map[*Lease]byte{}}
		t.Repeat(map[string]func(*rapid.T){
			"":        m.check,
			"lease":   m.lease,
			"lease2":  m.lease,
			"release": m.release,
			"trim":    func(*rapid.T) { m.p.Trim() },
		})
		for _, l := range m.held {
			m.verify(t, l)
		}
		for _, l := range m.held {
			l.Release()
		}
		if st := m.p.Stats(); st.InUse != 0 || st.Leases != 0 {
			t.Fatalf("all released, yet %+v", st)
		}
		wholeAgain(t, m.p)
		m.p.Close()
	})
}

// wholeAgain shows that all halves have found each other: every arena can be had in the
// largest pieces.
func wholeAgain(t *rapid.T, p *Pool) {
	var ls []*Lease
	for range p.limit / MaxLease {
		l := p.Lease(MaxLease)
		if l == nil {
			t.Fatalf("%d leases of %d bytes out of an empty pool of %d", len(ls), MaxLease, p.limit)
		}
		ls = append(ls, l)
	}
	for _, l := range ls {
		l.Release()
	}
}

func TestLeaseArgument(t *testing.T) {
	p := newPool(t, 1<<30)
	for _, n := range []int{-1, 0, MaxLease + 1} {
		mustPanic(t, fmt.Sprintf("Lease(%d)", n), func() { p.Lease(n) })
	}
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s did not panic", what)
		}
	}()
	f()
}

func TestDoubleRelease(t *testing.T) {
	l := mustLease(t, newPool(t, 1<<20), 100)
	l.Release()
	mustPanic(t, "second Release", l.Release)
}

func TestCloseWithLease(t *testing.T) {
	p := newPool(t, 1<<20)
	l := mustLease(t, p, 100)
	mustPanic(t, "Close", p.Close)
	l.Release()
}

func TestReleasedBytesArePoisoned(t *testing.T) {
	l := mustLease(t, newPool(t, 1<<20), 5000)
	b := l.Bytes()
	mark(b, 1)
	l.Release()
	for i := 0; i < len(b); i += PageSize {
		if (b[i] == invariant.Poison) != invariant.Enabled {
			t.Fatalf("byte %d is %#x with invariants=%v", i, b[i], invariant.Enabled)
		}
	}
}

// Blocks that lie in the shard of one goroutine are found by another.
func TestSmallBlocksMakeALargeOne(t *testing.T) {
	p := newPool(t, MaxLease)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var ls []*Lease
			for range 100 {
				ls = append(ls, p.Lease(PageSize))
			}
			for _, l := range ls {
				l.Release()
			}
		})
	}
	wg.Wait()
	l := mustLease(t, p, MaxLease)
	if p.Lease(1) != nil {
		t.Error("lease beyond the limit")
	}
	l.Release()
}

// count is a waiter that counts.
type count struct {
	ch chan struct{}
}

func newCount() *count       { return &count{make(chan struct{}, 1000)} }
func (c *count) MemoryFree() { c.ch <- struct{}{} }

func TestNotify(t *testing.T) {
	p := newPool(t, 8192)
	a, b := mustLease(t, p, 4096), mustLease(t, p, 4096)
	c := newCount()
	if p.LeaseOrNotify(1, c) != nil {
		t.Fatal("lease beyond the limit")
	}
	a.Release()
	b.Release()
	if n := len(c.ch); n != 1 {
		t.Errorf("%d calls after two releases, want one", n)
	}
	l := p.LeaseOrNotify(8192, c)
	if l == nil {
		t.Fatal("no lease of all")
	}
	l.Release()
	if n := len(c.ch); n != 1 {
		t.Errorf("called although the lease was had")
	}
	p.Notify(c)
	mustLease(t, p, 1).Release()
	if n := len(c.ch); n != 2 {
		t.Errorf("%d calls, want 2", n)
	}
	for range 100 { // who waits for long asks again and again
		p.Notify(c)
	}
	mustLease(t, p, 1).Release()
	if n := len(c.ch); n != 3 {
		t.Errorf("%d calls, want 3", n)
	}
}

// hungry is a waiter that tries again whenever it is called.
type hungry struct {
	p     *Pool
	n     int
	calls int
	got   *Lease
}

func (h *hungry) MemoryFree() {
	if h.calls++; h.calls < 1000 {
		h.got = h.p.LeaseOrNotify(h.n, h)
	}
}

// Two wait for more than lies together of what is free: they try again when something is given back, and not because the other has tried.
func TestScattered(t *testing.T) {
	const pages = ArenaSize / PageSize
	p := newPool(t, pages*PageSize)
	var ls [pages]*Lease
	for i := range ls {
		ls[i] = mustLease(t, p, PageSize)
	}
	slices.SortFunc(ls[:], func(a, b *Lease) int { return int(a.first) - int(b.first) })
	for i := 0; i < pages; i += 2 {
		ls[i].Release()
	}
	a, b := &hungry{p: p, n: 2 * PageSize}, &hungry{p: p, n: 2 * PageSize}
	for _, h := range []*hungry{a, b} {
		if p.LeaseOrNotify(h.n, h) != nil {
			t.Fatal("a lease of pages that lie apart")
		}
	}
	a.calls, b.calls = 0, 0
	for i := 1; i < pages; i += 2 {
		ls[i].Release()
	}
	if a.got == nil || b.got == nil || a.calls+b.calls > pages {
		t.Errorf("%d and %d calls while %d pages are given back, had it: %v, %v", a.calls, b.calls, pages/2, a.got != nil, b.got != nil)
	}
	for _, h := range []*hungry{a, b} {
		if h.got != nil {
			h.got.Release()
		}
	}
}

// Many goroutines want more than there is; none waits for ever, nobody's bytes change.
func TestConcurrent(t *testing.T) {
	p := newPool(t, 3<<20)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			c := newCount()
			seed := uint32(g + 1)
			for range 2000 {
				seed = seed*1664525 + 1013904223
				n := 1 + int(seed>>8)%(1<<(12+seed>>28%10))
				l := p.LeaseOrNotify(n, c)
				for l == nil {
					<-c.ch
					l = p.LeaseOrNotify(n, c)
				}
				b := l.Bytes()
				mark(b, byte(g))
				runtime.Gosched()
				for i := 0; i < len(b); i += PageSize {
					if b[i] != byte(g) {
						t.Errorf("goroutine %d finds %d", g, b[i])
					}
				}
				l.Release()
			}
		})
	}
	wg.Wait()
	if st := p.Stats(); st.InUse != 0 || st.Leases != 0 {
		t.Errorf("all released, yet %+v", st)
	}
}

// Two share one page: whoever misses that it was given back waits for ever.
func TestNoWakeUpIsLost(t *testing.T) {
	p := newPool(t, PageSize)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			c := &count{make(chan struct{}, 100000)}
			for range 30000 {
				l := p.LeaseOrNotify(1, c)
				for l == nil {
					<-c.ch
					l = p.LeaseOrNotify(1, c)
				}
				runtime.Gosched() // for the other to want it now
				l.Release()
			}
		})
	}
	wg.Wait()
}

func TestArenas(t *testing.T) {
	p := newPool(t, 3*ArenaSize)
	first := mustLease(t, p, 1)
	var seen []*Arena
	stop := p.Arenas(func(a *Arena) { seen = append(seen, a) }, func(*Arena) {})
	if len(seen) != 1 {
		t.Fatalf("told of %d arenas, want 1", len(seen))
	}
	ls := []*Lease{first}
	for range ArenaSize / MaxLease {
		ls = append(ls, mustLease(t, p, MaxLease))
	}
	if len(seen) != 2 {
		t.Fatalf("told of %d arenas, want 2", len(seen))
	}
	stop()
	for range ArenaSize / MaxLease {
		ls = append(ls, mustLease(t, p, MaxLease))
	}
	for i, a := range seen {
		if a.Index() != i || len(a.Bytes()) != ArenaSize {
			t.Errorf("arena %d has index %d and %d bytes", i, a.Index(), len(a.Bytes()))
		}
	}
	if a, _ := ls[len(ls)-1].Arena(); len(seen) != 2 || a.Index() != 2 {
		t.Errorf("told of %d arenas after stop; the last lease is in arena %d", len(seen), a.Index())
	}
	for _, l := range ls {
		l.Release()
	}
}

// What Trim gave back reads as zeroes again; what a device may have pinned stays.
func TestTrim(t *testing.T) {
	for _, watched := range []bool{false, true} {
		p := newPool(t, ArenaSize)
		if watched {
			p.Arenas(func(*Arena) {}, func(*Arena) {})
		}
		kept := mustLease(t, p, MaxLease)
		l := mustLease(t, p, 3*PageSize)
		mark(kept.Bytes(), 1)
		a, off := l.Arena()
		mark(l.Bytes(), 1)
		l.Release()
		p.Trim()
		if a.Bytes()[off] == 0 {
			t.Errorf("watched=%v: given back at once", watched)
		}
		p.Trim()
		if gone := a.Bytes()[off] == 0; gone == watched {
			t.Errorf("watched=%v: given back: %v", watched, gone)
		}
		if kept.Bytes()[0] != 1 {
			t.Error("Trim took bytes of a lease")
		}
		kept.Release()
	}
}

func TestNoAllocation(t *testing.T) {
	p := newPool(t, 64<<20)
	for _, n := range []int{1, 4096, 8192, 256 << 10, 1 << 20, MaxLease} {
		if a := testing.AllocsPerRun(100, func() { p.Lease(n).Release() }); a != 0 {
			t.Errorf("%d bytes: %v allocations", n, a)
		}
	}
	ls := make([]*Lease, 500)
	cycle := func() {
		for i := range ls {
			ls[i] = p.Lease(PageSize)
		}
		for _, l := range ls {
			l.Release()
		}
	}
	cycle()
	if a := testing.AllocsPerRun(20, cycle); a != 0 {
		t.Errorf("%d leases at a time: %v allocations", len(ls), a)
	}
}

func BenchmarkLease(b *testing.B) {
	for _, n := range []int{4 << 10, 256 << 10, 4 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := newPool(b, 256<<20)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					p.Lease(n).Release()
				}
			})
		})
	}
}

// Watched memory is given back arena by arena, when nobody has leased from one for some Trims. Who
// watches is told before, and again before it is used.
func TestIdleArenas(t *testing.T) {
	for _, shared := range []bool{false, true} {
		p := newPool(t, 3*ArenaSize)
		if shared {
			p = newShared(t, 3*ArenaSize)
		}
		var said []string
		stop := p.Arenas(
			func(a *Arena) { said = append(said, fmt.Sprint("mapped ", a.Index())) },
			func(a *Arena) {
				if a.Bytes()[0] == 0 {
					t.Error("the memory is gone before anybody was told")
				}
				said = append(said, fmt.Sprint("idle ", a.Index()))
			})
		lease := func() (ls []*Lease) {
			for range 2 * ArenaSize / MaxLease {
				l := mustLease(t, p, MaxLease)
				mark(l.Bytes(), 1)
				ls = append(ls, l)
			}
			return ls
		}
		release := func(ls []*Lease) {
			for _, l := range ls {
				l.Release()
			}
		}
		trim := func(n int) {
			for range n {
				p.Trim()
			}
		}
		expect := func(what string, want ...string) {
			t.Helper()
			if !slices.Equal(said, want) {
				t.Errorf("shared=%v: %s: told %v, want %v", shared, what, said, want)
			}
			said = nil
		}
		ls := lease()
		expect("at first", "mapped 0", "mapped 1")
		kept := slices.IndexFunc(ls, func(l *Lease) bool { a, _ := l.Arena(); return a.Index() == 0 })
		for i, l := range ls {
			if i != kept {
				l.Release()
			}
		}
		trim(quietTrims - 1)
		expect("soon")
		trim(3)
		expect("later", "idle 1")
		a1 := p.buddies.arenas[1]
		if a1.Bytes()[0] != 0 || a1.Bytes()[ArenaSize-MaxLease] != 0 {
			t.Errorf("shared=%v: the memory of an idle arena is there", shared)
		}
		if b := ls[kept].Bytes(); b[0] != 1 || b[len(b)-1] != 1 {
			t.Errorf("shared=%v: a lease has lost its bytes", shared)
		}
		// One who comes later hears of it, and so it is not away any more.
		late := 0
		p.Arenas(func(*Arena) { late++ }, func(*Arena) { late-- })()
		expect("another one watches", "mapped 1")
		if late != 2 {
			t.Errorf("shared=%v: told of %d arenas", shared, late)
		}
		ls[kept].Release()
		ls = lease()
		expect("used again")
		release(ls)
		for _, a := range p.buddies.arenas {
			a.Bytes()[0] = 1
		}
		trim(quietTrims + 1)
		expect("all idle", "idle 0", "idle 1")
		release(lease())
		slices.Sort(said)
		expect("all used again", "mapped 0", "mapped 1")
		stop()
	}
}

func newShared(t *testing.T, limit int64) *Pool {
	t.Helper()
	p, err := NewShared(limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// What is leased is found by another process by the file, the arena and the offset in it.
func TestShared(t *testing.T) {
	p := newShared(t, 2*ArenaSize)
	var ls []*Lease
	for range ArenaSize/MaxLease + 1 {
		ls = append(ls, mustLease(t, p, MaxLease))
	}
	fd, ok := p.File()
	if !ok {
		t.Fatal("no file")
	}
	for i, l := range ls {
		a, off := l.Arena()
		mark(l.Bytes(), byte(i+1))
		other, err := unix.Mmap(fd, a.Offset()+int64(off), MaxLease, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(other, l.Bytes()) {
			t.Errorf("lease %d has other bytes in the file", i)
		}
		if err := unix.Munmap(other); err != nil {
			t.Error(err)
		}
		l.Release()
	}
	if err := unix.Ftruncate(fd, 0); err == nil {
		t.Error("the file can be cut short under those who have mapped it")
	}
	if _, ok := newPool(t, 1).File(); ok {
		t.Error("a pool that is not shared has a file")
	}
	// What is given back is given back for all.
	var before, after unix.Stat_t
	if err := unix.Fstat(fd, &before); err != nil {
		t.Fatal(err)
	}
	p.Trim()
	p.Trim()
	if err := unix.Fstat(fd, &after); err != nil || before.Blocks == 0 || after.Blocks != 0 {
		t.Errorf("%d blocks before, %d after Trim: %v", before.Blocks, after.Blocks, err)
	}
}

// A process that may not have files as large as the limit is told so: it would be killed later.
func TestSharedFileSize(t *testing.T) {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	set := func(l unix.Rlimit) {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &l); err != nil {
			t.Fatal(err)
		}
	}
	set(unix.Rlimit{Cur: 2*ArenaSize - 1, Max: old.Max})
	defer set(old)
	newShared(t, ArenaSize)
	if p, err := NewShared(ArenaSize + 1); err == nil {
		p.Close()
		t.Error("a pool of files that are too large")
	}
}

// BenchmarkCopy fills leases all over an arena: what small pages cost, which shared memory has on most
// machines.
func BenchmarkCopy(b *testing.B) {
	for _, n := range []int{4 << 10, 128 << 10} {
		for _, shared := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d/shared=%v", n, shared), func(b *testing.B) {
				p := NewPool(ArenaSize)
				if shared {
					p, _ = NewShared(ArenaSize)
				}
				var ls []*Lease
				for l := p.Lease(n); l != nil; l = p.Lease(n) {
					mark(l.Bytes(), 1)
					ls = append(ls, l)
				}
				src := make([]byte, n)
				b.SetBytes(int64(n))
				for i := 0; b.Loop(); i++ {
					copy(ls[i*7919%len(ls)].Bytes(), src)
				}
				for _, l := range ls {
					l.Release()
				}
				p.Close()
			})
		}
	}
}
