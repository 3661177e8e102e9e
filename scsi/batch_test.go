package scsi

import (
	"slices"
	"testing"

	"oneshot/backend"
	"oneshot/mem"
)

// batchStore is a store that starts what was submitted with More at Kick only.
type batchStore struct {
	*fakeStore
	more, kicks int
}

func (s *batchStore) Submit(op *backend.Op) bool {
	if op.Flags&backend.More != 0 {
		s.more++
	}
	return s.fakeStore.Submit(op)
}

func (s *batchStore) Kick() {
	s.kicks++
	s.complete()
}

func newBatchBench(t *testing.T) (*bench, *batchStore) {
	var s *batchStore
	b := newBench(t, false, func(cfg *benchConfig, f *fakeStore) {
		f.hold = func(*backend.Op) bool { return true }
		s = &batchStore{fakeStore: f}
		cfg.Store = s
	})
	return b, s
}

// A driver that kicks has the operations of a round started together; one that does not has
// each started at once.
func TestBatch(t *testing.T) {
	b, s := newBatchBench(t)
	if r := b.do(cdbRead(0, 1), nil, 512); r.status != Good || s.more != 0 || s.kicks != 0 {
		t.Errorf("without batches: %+v, %d operations with More, %d kicks", r, s.more, s.kicks)
	}
	b.nexus.BatchOps()
	b.nexus.Kick()
	if s.kicks != 0 {
		t.Error("kicked for nothing")
	}
	for round := 1; round <= 2; round++ {
		var tasks []*Task
		for lba := range byte(3) {
			task := b.task(cdbRead(lba, 1), nil, 512)
			if next := task.Start(); next != Wait {
				t.Fatalf("Start: %v", next)
			}
			tasks = append(tasks, task)
		}
		if len(s.held) != 3 || s.more != 3*round {
			t.Errorf("%d operations are held, %d had More", len(s.held), s.more)
		}
		b.nexus.Kick()
		b.nexus.Kick()
		if s.kicks != round {
			t.Errorf("%d kicks in round %d", s.kicks, round)
		}
		for range tasks {
			task := <-b.owner.ready
			if next := task.Resume(); next != Done || task.Status != Good || !slices.Contains(tasks, task) {
				t.Errorf("%v, status %v", next, task.Status)
			}
			task.Release()
		}
	}
}

// Operations on another logical unit than the one that the nexus would kick start at once.
func TestBatchElsewhere(t *testing.T) {
	b, s := newBatchBench(t)
	b.nexus.BatchOps()
	_, other := newBatchBench(t)
	lu, err := NewLogicalUnit(LUConfig{Volume: volumeOf(other), Serial: "0002"})
	if err != nil {
		t.Fatal(err)
	}
	task := b.task(cdbRead(0, 1), nil, 512)
	if next := task.Start(); next != Wait || s.more != 1 {
		t.Fatalf("Start: %v, %d operations with More", next, s.more)
	}
	var elsewhere Task
	elsewhere.Owner, elsewhere.Nexus, elsewhere.itl, elsewhere.lu, elsewhere.cmd = b.owner, b.nexus, task.itl, task.lu, task.cmd
	elsewhere.r.Begin(&elsewhere, task.lu.v, 512, mem.MaxLease, true, false)
	if next := elsewhere.r.CopyWrite(lu.v, 0, 0, 512, true, elsewhere.before((*Task).transferred)); next != Wait || other.more != 0 {
		t.Errorf("%v: the operation waits for a kick that does not come", next)
	}
	other.complete()
	<-b.owner.ready
	elsewhere.r.Resume(false)
	elsewhere.r.Release()
	b.nexus.Kick()
	<-b.owner.ready
	task.Resume()
	task.Release()
	if s.kicks != 1 || other.kicks != 0 {
		t.Errorf("%d and %d kicks", s.kicks, other.kicks)
	}
}

func TestKickDoesNotAllocate(t *testing.T) {
	b, s := newBatchBench(t)
	i := b.nexus.lookup(0)
	if n := testing.AllocsPerRun(100, func() { i.begin(); i.begin(); b.nexus.Kick() }); n != 0 || s.kicks != 101 {
		t.Errorf("%v allocations, %d kicks", n, s.kicks)
	}
}

func cdbRead(lba, blocks byte) []byte { return []byte{0x28, 0, 0, 0, 0, lba, 0, 0, blocks, 0} }

// corkingOwner counts corks.
type corkingOwner struct {
	*fakeOwner
	corks, uncorks int
}

func (o *corkingOwner) Cork() Uncorker { o.corks++; return o }
func (o *corkingOwner) Uncork()        { o.uncorks++ }

// A store's cork goes to the owner, if that wants it.
func TestCork(t *testing.T) {
	task := &Task{Owner: newFakeOwner()}
	if u := task.Cork(); u != nil {
		t.Errorf("an owner without corks has %v", u)
	}
	o := &corkingOwner{fakeOwner: newFakeOwner()}
	task.Owner = o
	if u := task.Cork(); u != o || o.corks != 1 {
		t.Errorf("%v, %d corks", u, o.corks)
	}
}
