package scsi

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/internal/iostat"
	"oneshot/internal/latency"
)

// account runs a command as a transport does, and counts it.
func (b *bench) account(cdb, out []byte, in int, took time.Duration) {
	b.t.Helper()
	task := b.task(cdb, out, in)
	next := task.Start()
	if next == Pull {
		place(task, out)
		next = task.Pulled()
	}
	if next != Done {
		b.t.Fatalf("%02x: %v", cdb[0], next)
	}
	task.Account(int64(took))
	task.Release()
}

func TestStats(t *testing.T) {
	b := newBench(t, false, nil)
	b.account(rw10(0x28, 0, 8), nil, 4096, 10*time.Microsecond)
	b.account(rw10(0x28, 0, 8), nil, 512, 10*time.Microsecond) // the initiator has room for less
	b.account(rw10(0x2a, 0, 2), make([]byte, 1024), 0, time.Millisecond)
	b.account(make([]byte, 6), nil, 0, time.Second)
	b.account(rw10(0x28, 1<<20, 8), nil, 4096, 0) // beyond the end
	b.store.fail = func(op *backend.Op) error {
		return &backend.MediumError{Kind: op.Kind, Off: op.Off, Err: errors.New("broken")}
	}
	b.account(rw10(0x2a, 0, 2), make([]byte, 1024), 0, time.Millisecond)
	aborted := b.task(rw10(0x28, 0, 8), nil, 4096)
	aborted.Start()
	aborted.AccountAborted()
	aborted.Release()
	none := b.task(rw10(0x28, 0, 8), nil, 0)
	none.LUN = 77 << 48 // nobody's
	none.Start()
	none.Account(1)
	none.Release()

	check := func(what string, s iostat.Stats) {
		t.Helper()
		reads, writes, others := s.Commands[iostat.Read].Count(), s.Commands[iostat.Write].Count(), s.Commands[iostat.Other].Count()
		if reads != 3 || writes != 2 || others != 1 || s.ReadBytes != 4608 || s.WriteBytes != 1024 {
			t.Errorf("%s: %d reads of %d bytes, %d writes of %d, %d others", what, reads, s.ReadBytes, writes, s.WriteBytes, others)
		}
		if s.Commands[iostat.Write].Sum != 2*time.Millisecond || s.Commands[iostat.Write].Buckets[latency.Bucket(1e6)] != 2 {
			t.Errorf("%s: latency of writes %+v", what, s.Commands[iostat.Write])
		}
		if s.Failed[iostat.IllegalRequest] != 1 || s.Failed[iostat.MediumError] != 1 || s.Failed[iostat.AbortedCommand] != 1 || s.InFlight != 0 {
			t.Errorf("%s: %v failed, %d in flight", what, s.Failed, s.InFlight)
		}
	}
	check("nexus", b.nexus.Stats())
	check("LUN", b.target.Stats()[0].Stats)
	b.nexus.Close(func() {})
	check("LUN after the nexus", b.target.Stats()[0].Stats)
}

// While a nexus waits for its last task its counts are still there.
func TestStatsOfLeavingNexus(t *testing.T) {
	b := newBench(t, false, nil)
	b.account(rw10(0x28, 0, 8), nil, 4096, 0)
	b.store.hold = holdAll
	task := b.task(rw10(0x28, 0, 8), nil, 4096)
	if task.Start() != Wait {
		t.Fatal("the store does not hold")
	}
	if s := b.nexus.Stats(); s.InFlight != 1 || b.lu.Idle() {
		t.Errorf("%d in flight", s.InFlight)
	}
	b.nexus.Close(func() {})
	if s := b.target.Stats()[0]; s.Commands[iostat.Read].Count() != 1 || s.InFlight != 1 {
		t.Errorf("%+v", s)
	}
	b.store.complete()
	task.Resume()
	task.Release()
	if s := b.target.Stats()[0]; s.Commands[iostat.Read].Count() != 1 || s.InFlight != 0 || !b.lu.Idle() {
		t.Errorf("%+v", s)
	}
}

func TestAccountAllocates(t *testing.T) {
	b := newBench(t, true, nil)
	cdb := rw10(0x28, 0, 8)
	task := b.task(cdb, nil, 4096)
	if n := testing.AllocsPerRun(100, func() {
		task.Owner, task.Nexus, task.CDB, task.DataInLen = b.owner, b.nexus, cdb, 4096
		task.Start()
		task.Account(12345)
		task.Release()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAccount(b *testing.B) {
	bench := newBench(b, true, nil)
	task := bench.task(rw10(0x28, 0, 8), nil, 4096)
	task.Start()
	for took := int64(0); b.Loop(); took += 997 {
		task.Account(took & 0xfffff)
	}
	task.Release()
}

// Initiators hear of a capacity that has changed, once, and reach the new blocks.
func TestSizeChanged(t *testing.T) {
	b := newBench(t, false, nil)
	read := rw10(0x28, testBlocks, 8)
	if r := b.do(read, nil, 4096); r.code() != 0x52100 {
		t.Fatalf("beyond the end: %05x", r.code())
	}
	b.store.data = append(b.store.data, make([]byte, 4096)...)
	b.store.info.Size += 4096
	b.lu.v.SizeChanged()
	for _, want := range []int{0x62a09, 0} {
		if r := b.do(read, nil, 4096); r.code() != want {
			t.Errorf("sense %05x, want %05x", r.code(), want)
		}
	}
	if blocks, size := b.lu.Capacity(); blocks != testBlocks+8 || size != 512 {
		t.Errorf("%d blocks of %d bytes", blocks, size)
	}
	b.lu.v.SizeChanged()
	if r := b.do(read, nil, 4096); r.code() != 0 {
		t.Errorf("told of a size that did not change: %05x", r.code())
	}
}

// Units that change places do so in one step.
func TestSetLUs(t *testing.T) {
	b := newBench(t, true, nil)
	second, err := NewLogicalUnit(LUConfig{Volume: volumeOf(newFakeStore(4096)), Serial: "0002"})
	if err != nil {
		t.Fatal(err)
	}
	b.target.SetLU(5, second)
	b.target.SetLUs([]LUChange{{0, second}, {5, b.lu}, {7, nil}})
	serial := func(lun uint64) string { return b.nexus.lookup(lun << 48).lu.Serial() }
	if serial(0) != "0002" || serial(5) != "0001" || b.nexus.lookup(7<<48) != nil {
		t.Error("the units have not changed places")
	}
	b.target.SetLUs([]LUChange{{0, nil}, {5, nil}, {6, second}})
	if b.nexus.lookup(0) != nil || b.nexus.lookup(5<<48) != nil || serial(6) != "0002" || len(b.target.Stats()) != 1 {
		t.Error("units are left")
	}
}

// What can be flushed and fetched grows with the unit.
func TestSynchronizeGrown(t *testing.T) {
	b := newBench(t, false, nil)
	b.store.data = append(b.store.data, make([]byte, testBlocks*512)...)
	b.store.info.Size *= 2
	b.lu.v.SizeChanged()
	b.nexus.lookup(0).ua.Store(0)
	for _, op := range []byte{0x91, 0x90} {
		if v := verdict(b.do(rw16(op, 0, 2*testBlocks), nil, 0)); v != 0 {
			t.Errorf("%02x of all blocks of a unit that has grown: %05x", op, v)
		}
	}
}

// Logical units that come and go while a session stays leave nothing behind but what was counted.
func TestManyRetiredUnits(t *testing.T) {
	b := newBench(t, false, nil)
	first, lu := b.lu, b.lu
	const times = 10
	for range times {
		b.account(rw10(0x28, 0, 1), nil, 512, 0)
		next, err := NewLogicalUnit(LUConfig{Volume: lu.v, Serial: "0002"})
		if err != nil {
			t.Fatal(err)
		}
		b.target.SetLU(0, next)
		if lu != first { // which the bench closes
			if err := lu.Close(); err != nil {
				t.Fatal(err)
			}
		}
		lu = next
	}
	b.account(rw10(0x28, 0, 1), nil, 512, 0)
	// That of the bench, which is not closed, and the last.
	if n := len(b.nexus.retired); n != 2 {
		t.Errorf("the session keeps %d places", n)
	}
	count := func(s iostat.Stats) uint64 { return s.Commands[iostat.Read].Count() }
	if session, lun := count(b.nexus.Stats()), count(b.target.Stats()[0].Stats); session != times+1 || lun != times+1 {
		t.Errorf("%d reads of the session and %d of the LUN are counted, and %d were done", session, lun, times+1)
	}
	b.target.SetLU(0, first)
	if err := lu.Close(); err != nil {
		t.Fatal(err)
	}
	b.target.SetLU(0, nil)
	b.target.SetLU(0, first)
	if len(lu.itls) != 0 {
		t.Errorf("%d places of the last are left", len(lu.itls))
	}
}

// sizedStore has whatever size it is given.
type sizedStore struct {
	*fakeStore
	size atomic.Int64
}

func (s *sizedStore) Info() backend.Info {
	info := s.fakeStore.Info()
	info.Size = s.size.Load()
	return info
}

// A logical unit looks at the size when it is made, and is told of it when the store is resized. Both at once leave the size of afterwards.
func TestMadeBesideResize(t *testing.T) {
	store := &sizedStore{fakeStore: newFakeStore(4096)}
	store.size.Store(4096)
	v := volumeOf(store)
	lu, err := NewLogicalUnit(LUConfig{Volume: v, Serial: "0002", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		var resized atomic.Bool
		go func() {
			store.size.Store(4096 + 512*int64(i%2))
			v.SizeChanged()
			resized.Store(true)
		}()
		for !resized.Load() {
			lu.SizeChanged() // as NewLogicalUnit does
		}
		if blocks, _ := lu.Capacity(); int64(blocks) != v.Size()/512 {
			t.Fatalf("%d blocks, of %d, in round %d", blocks, v.Size()/512, i)
		}
	}
}
