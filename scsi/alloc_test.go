package scsi

import (
	"testing"

	"oneshot/mem"
)

// frugalOwner keeps one lease ready, as a pool does, and a flag for the task.
type frugalOwner struct {
	pool  *mem.Pool
	ready bool
}

func (o *frugalOwner) TaskReady(*Task)                 { o.ready = true }
func (o *frugalOwner) Lease(_ *Task, n int) *mem.Lease { return o.pool.Lease(n) }

// TestNoAllocations: a READ or WRITE allocates nothing, however it gets at its memory, and whichever
// of a thousand LUNs it is for.
func TestNoAllocations(t *testing.T) {
	for _, c := range []struct {
		name          string
		lends, noLend bool
		later         bool
		lun           uint16
	}{
		{"lent", true, false, false, 0},
		{"not lent", true, true, false, 0},
		{"at once", false, false, false, 0},
		{"later", false, false, true, 0},
		{"the thousandth", true, false, false, 999},
	} {
		var later *laterStore
		b := newBench(t, c.lends, func(cfg *benchConfig, s *fakeStore) {
			if later = (&laterStore{fakeStore: s}); c.later {
				cfg.Store = later
			}
		})
		var others []LUChange
		for lun := range c.lun {
			others = append(others, LUChange{LUN: lun + 1, LU: b.lu})
		}
		b.target.SetLUs(others)
		for _, i := range *b.nexus.table.Load() {
			i.ua.Store(0)
		}
		b.store.mapped = nil // the map of the fake store allocates
		b.store.held = nil
		owner := &frugalOwner{pool: testPool}
		read, write := rw10(0x28, 8, 8), rw10(0x2a, 8, 8)
		write[1] = bitFUA
		var task Task
		run := func(cdb []byte, out, in uint32) {
			task.Owner, task.Nexus, task.CDB = owner, b.nexus, cdb
			task.DataOutLen, task.DataInLen, task.NoLend, task.LUN = out, in, c.noLend, 1<<62|uint64(c.lun)<<48
			next := task.Start()
			for next != Done {
				if next == Pull {
					task.Place(0, zeroes[:])
					next = task.Pulled()
					continue
				}
				later.complete()
				next = task.Resume()
			}
			if task.Status != Good {
				panic("not GOOD")
			}
			task.Release()
		}
		for name, f := range map[string]func(){
			"READ":  func() { run(read, 0, 4096) },
			"WRITE": func() { run(write, 4096, 0) },
		} {
			if n := testing.AllocsPerRun(100, f); n != 0 {
				t.Errorf("%s, %s: %v allocations", c.name, name, n)
			}
		}
		if s := owner.pool.Stats(); s.Leases != 0 {
			t.Errorf("%s: %d leases are left", c.name, s.Leases)
		}
	}
}

// BenchmarkRead and BenchmarkWrite are what a command on lent memory costs in this package.
func BenchmarkRead(b *testing.B)  { benchmark(b, rw10(0x28, 8, 8), 0, 4096) }
func BenchmarkWrite(b *testing.B) { benchmark(b, rw10(0x2a, 8, 8), 4096, 0) }

func benchmark(b *testing.B, cdb []byte, out, in uint32) {
	bench := newBench(b, true, func(c *benchConfig, s *fakeStore) { c.Store = lendOnly{s} })
	owner := &frugalOwner{pool: testPool}
	var task Task
	b.ReportAllocs()
	for b.Loop() {
		task.Owner, task.Nexus, task.CDB = owner, bench.nexus, cdb
		task.DataOutLen, task.DataInLen = out, in
		if task.Start() == Pull {
			task.BeginPlace(0, task.OutLen).End()
			task.Pulled()
		}
		task.Release()
	}
}

// lendOnly lends without keeping a map of what is mapped.
type lendOnly struct{ *fakeStore }

var zeroes [4096]byte

func (s lendOnly) Commit(int64, int64) {}
func (s lendOnly) Map(int64, int64)    {}
func (s lendOnly) Unmap(int64, int64)  {}

func (s lendOnly) Lend(segs [][]byte, off, n int64, _ bool) [][]byte {
	return append(segs, s.data[off:off+n:off+n])
}
