// Package backendtest is the suite that every block store passes.
package backendtest

import (
	"bytes"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"

	"oneshot/backend"
	"oneshot/internal/rounds"
	"oneshot/mem"
)

// MinSize is the least size of a store for the suite, in bytes.
const MinSize = 4 << 20

// Run runs the suite on the stores that open returns: new ones that read as zeroes, of
// MinSize or more. The suite closes them. It leaves out the tests named in except. A store made of
// foreign parts may be excused from NoAllocation, and one whose medium mixes writes from Untorn.
func Run(t *testing.T, open func(t *testing.T) backend.Store, except ...string) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, func(*testing.T) backend.Store)
	}{
		{"Info", testInfo},
		{"ReadsZeroes", testReadsZeroes},
		{"ScatterGather", testScatterGather},
		{"Range", testRange},
		{"Model", testModel},
		{"Disjoint", testDisjoint},
		{"Overlapping", testOverlapping},
		{"Durable", testDurable},
		{"Fence", testFence},
		{"FenceHoldsBack", testFenceHoldsBack},
		{"Discard", testDiscard},
		{"WriteZeroes", testWriteZeroes},
		{"Status", testStatus},
		{"Lend", testLend},
		{"Map", testMap},
		{"Untorn", testUntorn},
		{"NoAllocation", testNoAllocation},
	} {
		if slices.Contains(except, test.name) {
			continue
		}
		t.Run(test.name, func(t *testing.T) { test.run(t, open) })
	}
}

func testInfo(t *testing.T, f func(*testing.T) backend.Store) {
	c := open(t, f)
	i := c.s.Info()
	if i.Size < MinSize {
		t.Errorf("size %d, the suite needs %d", i.Size, MinSize)
	}
	if i.BlockSize < 512 || i.BlockSize&(i.BlockSize-1) != 0 || i.Size%int64(i.BlockSize) != 0 {
		t.Errorf("block size %d, size %d", i.BlockSize, i.Size)
	}
	if p := i.PhysicalBlockSize; p != 0 && (p&(p-1) != 0 || p < i.BlockSize) {
		t.Errorf("physical block size %d", p)
	}
	if g := i.DiscardGranularity; g != 0 && (g&(g-1) != 0 || g < int64(i.BlockSize)) {
		t.Errorf("discard granularity %d", g)
	}
	c.must(c.write(0, pattern(64<<10, 1), 0))
	if j := c.s.Info(); j != i {
		t.Errorf("Info was %+v and is %+v", i, j)
	}
}

func testReadsZeroes(t *testing.T, f func(*testing.T) backend.Store) {
	c := open(t, f)
	c.expect(0, make([]byte, 1<<20))
	c.expect(c.s.Info().Size-4096, make([]byte, 4096))
}

func testScatterGather(t *testing.T, f func(*testing.T) backend.Store) {
	c := open(t, f)
	const n = 64 << 10
	for i, shape := range [][]int{
		{n}, {512}, {4096}, {1, 511}, {3, 5, 7}, {1000, 0, 24}, {0, n}, {4095, 4097}, {n - 1, 1}, {513},
	} {
		want := pattern(n, uint64(i)+1)
		off := int64(i) * 4096
		segs := cut(slices.Clone(want), shape...)
		c.must(c.submit(backend.Op{Kind: backend.Write, Off: off, Len: n, Segs: segs}))
		same(t, "the source of a write", join(segs), want)
		for _, back := range [][]int{{n}, shape, {7, 4089}, {2048}} {
			// What stands around the segments has to stay.
			room := filled(n+64, 0xEE)
			k := c.must(c.submit(backend.Op{Kind: backend.Read, Off: off, Len: n, Segs: cut(room[32:32+n:32+n], back...)}))
			same(t, "scattered read", k.after, want)
			same(t, "before the segments", room[:32], filled(32, 0xEE))
			same(t, "behind the segments", room[32+n:], filled(32, 0xEE))
		}
	}
}

func testRange(t *testing.T, f func(*testing.T) backend.Store) {
	c := open(t, f)
	i := c.s.Info()
	b := int64(i.BlockSize)
	want := pattern(b, 5)
	c.must(c.write(i.Size-b, want, 0))
	for _, kind := range []backend.Kind{backend.Read, backend.Write, backend.Discard, backend.WriteZeroes, backend.Status} {
		for _, r := range []struct{ off, n int64 }{
			{i.Size, b},
			{i.Size - b, 2 * b},
			{i.Size + b, b},
			{-b, b},
			{0, i.Size + b},
			{b, 1<<62 - b},
			{1 << 62, b},
			{1 << 62, 1 << 62},
			{-b, 2 * b},
			{0, -b},
		} {
			op := backend.Op{Kind: kind, Off: r.off, Len: r.n}
			if kind <= backend.Write { // the segments are not looked at
				op.Segs = [][]byte{make([]byte, b)}
			}
			err := c.submit(op).wait()
			if e, ok := errors.AsType[*backend.RangeError](err); !ok || e.Max != i.Size || e.Off != r.off || e.Len != r.n || e.Kind != kind {
				t.Errorf("%v of %d bytes at %d: %v, want a range error", kind, r.n, r.off, err)
			}
		}
		if kind != backend.Status {
			c.must(c.over(kind, i.Size, 0, 0))
			c.must(c.over(kind, 0, 0, 0))
		}
	}
	c.expect(i.Size-b, want)
	c.must(c.over(backend.Flush, i.Size*2, i.Size, 0))
}

// Each goroutine has its own part of the store and finds its own bytes there.
func testDisjoint(t *testing.T, f func(*testing.T) backend.Store) {
	c := open(t, f)
	const goroutines, part, piece = 8, 256 << 10, 16 << 10
	var wg sync.WaitGroup
	for g := range int64(goroutines) {
		wg.Go(func() {
			base := g * part
			for round := range uint64(rounds.Of(6, 2)) {
				var calls []*call
				for off := int64(0); off < part; off += piece {
					calls = append(calls, c.write(base+off, pattern(piece, uint64(base+off)+round), 0))
				}
				for _, k := range calls {
					if err := k.wait(); err != nil {
						t.Error(err)
						return
					}
				}
				for off := int64(0); off < part; off += piece {
					k := c.read(base+off, piece, 0)
					if err := k.wait(); err != nil || string(k.after) != string(pattern(piece, uint64(base+off)+round)) {
						t.Errorf("goroutine %d finds other bytes at %d, or %v", g, base+off, err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

// Goroutines write to and read from the same blocks; every byte is one that was written.
func testOverlapping(t *testing.T, f func(*testing.T) backend.Store) {
	c := open(t, f)
	const goroutines, n = 6, 32 << 10
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range rounds.Of(60, 20) {
				off := int64((i * 5 % 8) * 4096)
				var k *call
				switch {
				case g%3 != 0:
					k = c.write(off, filled(n, byte(g+1)), 0)
				case i%10 == 9:
					k = c.over(backend.Discard, off, n, 0)
				default:
					k = c.read(off, n, 0)
				}
				if err := k.wait(); err != nil {
					t.Error(err)
				}
				written := 0
				for v := range byte(goroutines + 1) {
					written += bytes.Count(k.after, []byte{v})
				}
				if written != len(k.after) {
					t.Errorf("read %d bytes that nobody wrote", len(k.after)-written)
				}
			}
		})
	}
	wg.Wait()
}

// What promises durability works, in every combination, and orders what it says it orders.
func testDurable(t *testing.T, f func(*testing.T) backend.Store) {
	c := open(t, f)
	for i, flags := range []backend.Flags{
		0, backend.FUA, backend.Fence, backend.Barrier, backend.FUA | backend.Fence, backend.FUA | backend.Barrier,
		backend.Fence | backend.Barrier, backend.FUA | backend.Fence | backend.Barrier,
	} {
		off := int64(i) * 128 << 10
		want := pattern(128<<10, uint64(i)+9)
		c.must(c.write(off, want, flags))
		c.must(c.over(backend.Flush, 0, 0, flags))
		same(t, "read with flags", c.must(c.read(off, int64(len(want)), flags)).after, want)
		c.must(c.over(backend.WriteZeroes, off, 4096, flags))
		c.must(c.over(backend.Discard, off+8192, 4096, flags))
		clear(want[:4096])
		clear(want[8192:12288])
		c.expect(off, want)
	}
	// Many flushes at once, among writes.
	var calls []*call
	for i := range int64(64) {
		calls = append(calls, c.write(i*4096, filled(4096, byte(i)), 0), c.over(backend.Flush, 0, 0, 0))
	}
	for _, k := range calls {
		c.must(k)
	}
	for i := range int64(64) {
		c.expect(i*4096, filled(4096, byte(i)))
	}
}

// A fenced read sees everything that was submitted before it, and completes last.
func testFence(t *testing.T, f func(*testing.T) backend.Store) {
	c := open(t, f)
	const n, piece = 1 << 20, 64 << 10
	for round := range uint64(rounds.Of(12, 4)) {
		flag := []backend.Flags{backend.Fence, backend.Barrier}[round%2]
		want := pattern(n, round+1)
		var earlier []*call
		for off := int64(0); off < n; off += piece {
			earlier = append(earlier, c.write(off, want[off:off+piece], 0))
		}
		first := c.over(backend.Flush, 0, 0, flag)
		k := c.read(0, n, flag)
		later := c.write(2<<20, want[:piece], 0)
		same(t, "fenced read", c.must(k).after, want)
		c.must(later)
		for _, e := range append(earlier, first) {
			if c.must(e); e.at > k.at {
				t.Fatalf("round %d: %v at %d completed after the fenced read", round, e.op.Kind, e.op.Off)
			}
		}
	}
}

// A fenced write does not start while an earlier read is under way.
func testFenceHoldsBack(t *testing.T, f func(*testing.T) backend.Store) {
	c := open(t, f)
	const n, piece = 1 << 20, 128 << 10
	old := pattern(n, 1)
	c.must(c.write(0, old, 0))
	for round := range uint64(rounds.Of(8, 3)) {
		var reads []*call
		for off := int64(0); off < n; off += piece {
			reads = append(reads, c.read(off, piece, backend.FUA*backend.Flags(round%2)))
		}
		next := pattern(n, round+2)
		w := c.write(0, next, backend.Fence)
		for i, k := range reads {
			same(t, "read before a fenced write", c.must(k).after, old[i*piece:][:piece])
		}
		c.must(w)
		old = next
	}
}

func testDiscard(t *testing.T, f func(*testing.T) backend.Store) {
	c := open(t, f)
	const n = 512 << 10
	b := int64(c.s.Info().BlockSize)
	want := pattern(n, 3)
	c.must(c.write(0, want, 0))
	for _, r := range []struct{ off, n int64 }{
		{0, b}, {64 << 10, 64 << 10}, {128<<10 + b, 4096}, {200<<10 - b, 8192 + 2*b}, {n - b, b}, {256 << 10, b}, {300 << 10, 64<<10 + b},
	} {
		c.must(c.over(backend.Discard, r.off, r.n, 0))
		clear(want[r.off:min(r.off+r.n, n)])
		c.expect(0, want)
	}
	c.must(c.over(backend.Discard, 0, c.s.Info().Size, 0))
	c.expect(0, make([]byte, n))
	c.must(c.write(4096, want[4096:8192], 0))
	c.expect(0, append(make([]byte, 4096), want[4096:8192]...))
}

func testWriteZeroes(t *testing.T, f func(*testing.T) backend.Store) {
	c := open(t, f)
	const n = 2 << 20
	b := int64(c.s.Info().BlockSize)
	want := pattern(n, 4)
	c.must(c.write(0, want, 0))
	for _, r := range []struct{ off, n int64 }{
		{b, b}, {4096, 4096}, {64<<10 - b, 128<<10 + 2*b}, {512<<10 + b, 1 << 20}, {n - b, b},
	} {
		c.must(c.over(backend.WriteZeroes, r.off, r.n, 0))
		clear(want[r.off : r.off+r.n])
		c.expect(0, want)
	}
}

func (c *client) status(off, n int64) (mapped bool, extent int64) {
	c.t.Helper()
	k := c.must(c.over(backend.Status, off, n, 0))
	b := int64(c.s.Info().BlockSize)
	if k.op.Extent < b || k.op.Extent > max(n, b) || k.op.Extent%b != 0 {
		c.t.Fatalf("status of %d bytes at %d: extent %d", n, off, k.op.Extent)
	}
	return k.op.Mapped, k.op.Extent
}

// What was written is mapped; what is unmapped reads as zeroes; where the store gives space
// back, what was discarded is not mapped.
func testStatus(t *testing.T, f func(*testing.T) backend.Store) {
	c := open(t, f)
	i := c.s.Info()
	g, b := max(i.DiscardGranularity, int64(i.BlockSize)), int64(i.BlockSize)
	unit := max(g, 64<<10)
	walk := func() (mapped []bool) { // by block
		for off := int64(0); off < MinSize; {
			m, n := c.status(off, MinSize-off)
			if !m {
				c.expect(off, make([]byte, n))
			}
			for range n / b {
				mapped = append(mapped, m)
			}
			off += n
		}
		return mapped
	}
	all := func(mapped []bool, off, n int64, want bool) {
		t.Helper()
		for k := off / b; k < (off+n)/b; k++ {
			if mapped[k] != want {
				t.Fatalf("block %d: mapped is %v", k, mapped[k])
			}
		}
	}
	fresh := walk()
	c.must(c.write(2*unit, filled(3*unit, 1), 0))
	c.must(c.write(8*unit+b, filled(b, 1), 0))
	now := walk()
	all(now, 2*unit, 3*unit, true)
	all(now, 8*unit+b, b, true)
	if i.StatusUnknown {
		all(fresh, 0, MinSize, true)
	}
	if i.DiscardGranularity == 0 || i.StatusUnknown {
		return
	}
	all(fresh, 0, MinSize, false)
	all(now, 0, 2*unit, false)
	all(now, 5*unit, 3*unit, false)
	c.must(c.over(backend.Discard, 3*unit, unit, 0))
	now = walk()
	all(now, 2*unit, unit, true)
	all(now, 3*unit, unit, false)
	all(now, 4*unit, unit, true)
	if m, n := c.status(3*unit+b, unit); m || n != unit-b {
		t.Errorf("from within the hole: mapped %v, %d bytes, want %d", m, n, unit-b)
	}
	if m, n := c.status(2*unit, b); !m || n != b {
		t.Errorf("one block: mapped %v, %d bytes", m, n)
	}
}

func testLend(t *testing.T, f func(*testing.T) backend.Store) {
	c := open(t, f)
	l, ok := c.s.(backend.Lender)
	if !ok {
		return // nothing is promised
	}
	want := pattern(100<<10, 8)
	c.must(c.write(0, want, 0))
	same(t, "lent bytes", join(l.Lend(nil, 512, 100<<10-512, false)), want[512:])
	before := [][]byte{{1}}
	segs := l.Lend(before, 1<<20, 8192, true)
	if len(segs) < 2 || &segs[0][0] != &before[0][0] || len(join(segs)) != 1+8192 {
		t.Fatalf("Lend returned %d segments, %d bytes", len(segs), len(join(segs)))
	}
	rest := want
	for _, seg := range segs[1:] {
		rest = rest[copy(seg, rest):]
	}
	l.Commit(1<<20, 8192)
	if m, n := c.status(1<<20, 8192); c.s.Info().DiscardGranularity > 0 && (!m || n != 8192) {
		t.Errorf("lent for writing: mapped %v, %d bytes", m, n)
	}
	c.expect(1<<20, want[:8192])
	segs = l.Lend(segs[:1], 1<<20, 8192, false)
	c.must(c.write(1<<20, want[4096:8192], 0))
	same(t, "lent bytes after a write", join(segs[1:])[:4096], want[4096:8192])
	if got := l.Lend(segs[:1], c.s.Info().Size, 0, false); len(join(got)) != 1 {
		t.Errorf("%d bytes lent, asked for none", len(join(got))-1)
	}
	// What is committed after a discard is mapped, whenever it was lent: another discard clears it.
	for _, n := range []int64{512, 4096, 64 << 10} {
		c.must(c.over(backend.Discard, 1<<20, 128<<10, 0))
		rest := want
		for _, seg := range l.Lend(segs[:0], 1<<20, n, true) {
			rest = rest[copy(seg, rest):]
		}
		l.Commit(1<<20, n)
		c.must(c.over(backend.Discard, 1<<20, 512, 0))
		c.expect(1<<20, append(make([]byte, 512), want[512:n]...))
	}
	if n := testing.AllocsPerRun(100, func() { segs = l.Lend(segs[:0], 0, 4096, true); l.Commit(0, 4096) }); n != 0 {
		t.Errorf("Lend: %v allocations", n)
	}
}

// Who has mapped memory may write to it at any time: after a discard, too, which clears it, and so does the next one.
func testMap(t *testing.T, f func(*testing.T) backend.Store) {
	c := open(t, f)
	l, ok := c.s.(backend.Lender)
	if !ok {
		return // nothing is promised
	}
	const at = 1 << 20
	gives := c.s.Info().DiscardGranularity > 0
	want := pattern(192<<10, 9)
	write := func(b []byte) {
		for _, seg := range l.Lend(nil, at, int64(len(b)), false) {
			b = b[copy(seg, b):]
		}
	}
	for _, n := range []int64{512, 4096, 192 << 10} {
		l.Map(at, n)
		l.Map(at, 512) // one more user
		if m, k := c.status(at, n); gives && (!m || k != n) {
			t.Errorf("mapped by a user: mapped %v, %d bytes", m, k)
		}
		for range 2 {
			write(want[:n])
			c.expect(at, want[:n])
			c.must(c.over(backend.Discard, at, n, 0))
			c.expect(at, make([]byte, n))
			if m, k := c.status(at, n); gives && (!m || k != n) {
				t.Errorf("%d bytes mapped by a user, after a discard: mapped %v, %d bytes", n, m, k)
			}
		}
		c.must(c.write(at, want[:n], 0))
		same(t, "mapped bytes", join(l.Lend(nil, at, n, false)), want[:n])
		l.Unmap(at, n)
		write(want[:512])
		c.must(c.over(backend.Discard, at, n, 0))
		c.expect(at, make([]byte, n))
		l.Unmap(at, 512)
		c.must(c.over(backend.Discard, at, 192<<10, 0))
		if m, _ := c.status(at, n); gives && m {
			t.Error("what nobody uses any more, and was discarded, is mapped")
		}
	}
}

// However many write to the same blocks at once, in whatever way, each block is one writer's.
func testUntorn(t *testing.T, f func(*testing.T) backend.Store) {
	c := open(t, f)
	lender, _ := c.s.(backend.Lender)
	block := int64(c.s.Info().BlockSize)
	end := func(k *call) {
		if err := k.wait(); err != nil {
			t.Errorf("%v of %d bytes at %d: %v", k.op.Kind, k.op.Len, k.op.Off, err)
		}
	}
	const span = 16 // blocks, across the end of the first 64 KiB
	at := int64(64<<10) - 8*block
	for round := range rounds.Of(200, 40) {
		var wg sync.WaitGroup
		start := make(chan struct{})
		for g := range 6 {
			wg.Go(func() {
				first, n := int64(g%3)*block, (span-int64(g))*block
				off := at + first
				n = min(n, (span*block)-first)
				value := byte(1 + g)
				<-start
				switch {
				case g == 0:
					end(c.over(backend.Discard, off, n, 0))
				case g == 1:
					end(c.over(backend.WriteZeroes, off, n, 0))
				case g%2 == 0 && lender != nil:
					for _, seg := range lender.Lend(nil, off, n, true) {
						for i := range seg {
							if seg[i] = value; i%100 == 0 {
								runtime.Gosched() // the others get their chance
							}
						}
					}
					lender.Commit(off, n)
				default:
					end(c.write(off, filled(n, value), 0))
				}
			})
		}
		close(start)
		wg.Wait()
		got := c.must(c.read(at, span*block, 0)).after
		for b := int64(0); b < span*block; b += block {
			if v := got[b]; string(got[b:b+block]) != string(filled(block, v)) {
				t.Fatalf("round %d: the block at %d is of several writes", round, at+b)
			}
		}
		c.mu.Lock()
		c.calls = c.calls[:0]
		c.mu.Unlock()
	}
}

func testNoAllocation(t *testing.T, f func(*testing.T) backend.Store) {
	c := open(t, f)
	p := mem.NewPool(1 << 20)
	defer p.Close()
	l := p.Lease(8192)
	defer l.Release()
	w := make(waiter, 1)
	for _, kind := range []backend.Kind{backend.Write, backend.Read, backend.Flush, backend.Status, backend.WriteZeroes, backend.Discard} {
		for _, flags := range []backend.Flags{0, backend.FUA, backend.Fence} {
			op := backend.Op{Kind: kind, Len: 8192, Done: w, Flags: flags}
			if kind <= backend.Write {
				op.Segs = [][]byte{l.Bytes()[:4096], l.Bytes()[4096:]}
			}
			once := func() {
				if !c.s.Submit(&op) {
					<-w
				}
			}
			if n := testing.AllocsPerRun(50, once); n != 0 || op.Err != nil {
				t.Errorf("%v with flags %b: %v allocations, error %v", kind, flags, n, op.Err)
			}
		}
	}
}
