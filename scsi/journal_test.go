package scsi

import (
	"bytes"
	"testing"

	"oneshot/backend"
)

func TestWriteAtomic(t *testing.T) {
	b := newBench(t, true, nil)
	cdb := func(flags byte, lba uint64, boundary, blocks byte) []byte {
		return []byte{0x9c, flags, 0, 0, 0, 0, 0, 0, byte(lba >> 8), byte(lba), 0, boundary, 0, blocks, 0, 0}
	}
	want := bytes.Clone(b.store.data)
	data := pattern(3, 4*512)
	copy(want[7*512:], data)
	for name, c := range map[string]struct {
		cdb  []byte
		want int
	}{
		"four blocks":     {cdb(bitFUA|bitDPO, 7, 0, 4), 0},
		"none":            {cdb(0, 0, 0, 0), 0},
		"beyond the end":  {cdb(0, testBlocks-3, 0, 4), 0x52100},
		"with a boundary": {cdb(0, 0, 1, 4), 0x52400},
		"WRPROTECT":       {cdb(0x20, 0, 0, 4), 0x52400},
	} {
		if v := verdict(b.do(c.cdb, data, 0)); v != c.want {
			t.Errorf("%s: %05x, want %05x", name, v, c.want)
		}
	}
	if !bytes.Equal(b.store.data, want) {
		t.Error("other bytes are on the medium")
	}
	if v := verdict(newBench(t, false, nil).do(cdb(0, 0, 0, 1), data, 0)); v != 0x52000 {
		t.Errorf("on a store that a power cut can leave half written: %05x", v)
	}
}

// fakeJournal keeps one write, and can lose power at a step.
type fakeJournal struct {
	off   int64
	data  []byte
	fail  error // of Begin
	begun int
}

func (j *fakeJournal) Begin(off int64, data []byte) error {
	if j.fail != nil {
		return j.fail
	}
	j.off, j.data, j.begun = off, bytes.Clone(data), j.begun+1
	return nil
}

func (j *fakeJournal) End() error {
	j.data = nil
	return nil
}

func (j *fakeJournal) Pending() (int64, []byte, error) { return j.off, j.data, nil }

// With a journal WRITE ATOMIC works on any store: what the journal has when the store is written
// to is the whole write, and a restart completes it.
func TestWriteAtomicWithJournal(t *testing.T) {
	kept := &fakeJournal{}
	with := func(j Journal) func(*LUConfig, *fakeStore) {
		return func(c *LUConfig, s *fakeStore) {
			c.Journal, c.Logger = j, quiet
			s.hold = holdTasks
		}
	}
	cdb := []byte{0x9c, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 4, 0, 0}
	data := pattern(3, 4*512)
	b := newBench(t, false, with(kept))
	var seen []byte
	b.store.fail = func(op *backend.Op) error {
		if op.Kind == backend.Write {
			seen = bytes.Clone(kept.data)
			if op.Flags&backend.FUA == 0 {
				t.Error("the write is not durable when the journal forgets it")
			}
		}
		return nil
	}
	if r := b.doAsync(cdb, data); r.status != Good || !bytes.Equal(seen, data) || kept.data != nil || !bytes.Equal(b.store.data[7*512:11*512], data) {
		t.Errorf("WRITE ATOMIC: %05x, journal %d bytes then, %d now", r.code(), len(seen), len(kept.data))
	}
	kept.fail = errTest
	before := bytes.Clone(b.store.data)
	if r := b.doAsync(cdb, make([]byte, 4*512)); r.code() != 0x44400 || !bytes.Equal(before, b.store.data) {
		t.Errorf("without room for the journal: %05x", r.code())
	}
	kept.fail = nil
	b.store.fail = medium(7*512, errTest)
	if r := b.doAsync(cdb, data); r.code() != 0x30c00 || kept.data != nil {
		t.Errorf("a store that fails: %05x, journal %d bytes", r.code(), len(kept.data))
	}
	// The power goes between the journal and the store.
	if err := kept.Begin(7*512, data); err != nil {
		t.Fatal(err)
	}
	again := newBench(t, false, with(kept))
	if !bytes.Equal(again.store.data[7*512:11*512], data) || kept.data != nil {
		t.Error("a restart does not complete the write")
	}
	if err := kept.Begin(testBlocks*512, data); err != nil {
		t.Fatal(err)
	}
	if _, err := NewLogicalUnit(LUConfig{Store: newFakeStore(testBlocks * 512), Serial: "1", Journal: kept}); err == nil {
		t.Error("a write beyond the end is forgotten")
	}
}

// doAsync is do for a command that a goroutine ends.
func (b *bench) doAsync(cdb, out []byte) result {
	task := b.task(cdb, out, 0)
	next := task.Start()
	for next != Done {
		if next == Pull {
			place(task, out)
			next = task.Pulled()
			continue
		}
		for <-b.owner.ready != task {
		}
		next = task.Resume()
	}
	r := result{next: next, status: task.Status, sense: bytes.Clone(task.Sense)}
	task.Release()
	return r
}
