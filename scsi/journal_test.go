package scsi

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/backend"
	"oneshot/volume"
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
	fail  error     // of Begin
	stuck syncError // of End
	begun int
	used  bool // by this process: nothing is pending before it was left
}

// syncError is an error that a goroutine may look at while another one changes it.
type syncError struct{ is atomic.Pointer[error] }

func (e *syncError) set(err error) { e.is.Store(&err) }

func (e *syncError) get() error {
	if p := e.is.Load(); p != nil {
		return *p
	}
	return nil
}

// kept is an error of Begin.
type keptError struct{ error }

func (keptError) MayBeKept() {}

func (j *fakeJournal) Begin(off int64, data []byte) error {
	j.used = true
	if _, kept := errors.AsType[keptError](j.fail); j.fail != nil {
		if kept {
			j.off, j.data = off, bytes.Clone(data)
		}
		return j.fail
	}
	j.off, j.data, j.begun = off, bytes.Clone(data), j.begun+1
	return nil
}

func (j *fakeJournal) End() error {
	if err := j.stuck.get(); err != nil {
		return err
	}
	j.data = nil
	return nil
}

func (j *fakeJournal) Pending() (int64, []byte, error) {
	if j.used {
		return 0, nil, nil
	}
	return j.off, j.data, nil
}

func (j *fakeJournal) Leave() { j.used = false }

// restart is the end of the process.
func (j *fakeJournal) restart() *fakeJournal {
	j.used = false
	return j
}

// With a journal WRITE ATOMIC works on any store: what the journal has when the store is written
// to is the whole write, and a restart completes it.
func TestWriteAtomicWithJournal(t *testing.T) {
	kept := &fakeJournal{}
	with := func(j volume.Journal) func(*benchConfig, *fakeStore) {
		return func(c *benchConfig, s *fakeStore) {
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
	if r := b.doAsync(cdb, data); r.code() != 0x30c00 || kept.data == nil {
		t.Errorf("a store that fails: %05x, journal %d bytes", r.code(), len(kept.data))
	}
	// The power goes between the journal and the store.
	if err := kept.Begin(7*512, data); err != nil {
		t.Fatal(err)
	}
	again := newBench(t, false, with(kept.restart()))
	if !bytes.Equal(again.store.data[7*512:11*512], data) || kept.data != nil {
		t.Error("a restart does not complete the write")
	}
	if err := kept.Begin(testBlocks*512, data); err != nil {
		t.Fatal(err)
	}
	if _, err := volume.New(volume.Config{Store: newFakeStore(testBlocks * 512), Journal: kept.restart()}); err == nil {
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

// tornBench has a store that writes the first half of the atomic write at blocks 8 to 15 and then has
// no space, once.
func tornBench(t *testing.T, kept *fakeJournal) (b *bench, cdb, old, data []byte) {
	b = newBench(t, false, func(c *benchConfig, s *fakeStore) {
		c.Journal, c.Logger = kept, quiet
		s.hold = holdTasks
	})
	old, data = pattern(1, 8*512), pattern(2, 8*512)
	copy(b.store.data[8*512:], old)
	full := false
	b.store.fail = func(op *backend.Op) error {
		if op.Kind != backend.Write || full {
			return nil
		}
		full = true
		copy(b.store.data[op.Off:], op.Segs[0][:op.Len/2])
		return &backend.SpaceError{Off: op.Off + op.Len/2, Err: errTest}
	}
	return b, []byte{0x9c, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0}, old, data
}

// halfBench is tornBench with a store that cannot write back what was there, either.
func halfBench(t *testing.T, kept *fakeJournal) (b *bench, cdb, data []byte) {
	b, cdb, _, data = tornBench(t, kept)
	once := b.store.fail
	b.store.fail = func(op *backend.Op) error {
		err := once(op)
		if err == nil && op.Kind == backend.Write && op.Off < 16*512 {
			return &backend.MediumError{Kind: op.Kind, Off: op.Off, Err: errTest}
		}
		return err
	}
	return b, cdb, data
}

// TestWriteAtomicFails: an atomic write that the store ends half-way leaves what was there. What the
// write has not reached is not touched, for it may have no space.
func TestWriteAtomicFails(t *testing.T) {
	kept := &fakeJournal{}
	b, cdb, old, data := tornBench(t, kept)
	once := b.store.fail
	b.store.fail = func(op *backend.Op) error {
		err := once(op)
		if err == nil && op.Kind == backend.Write && op.Off+op.Len > 12*512 {
			return space(op)
		}
		return err
	}
	if r := b.doAsync(cdb, data); r.code() != 0x72707 {
		t.Errorf("a full disk: %05x", r.code())
	}
	if got := b.do(rw10(0x28, 8, 8), nil, 8*512); !bytes.Equal(got.in, old) {
		t.Errorf("READ afterwards: %05x; the write is torn: %v", got.code(), bytes.Equal(got.in[:4*512], data[:4*512]))
	}
	if kept.data != nil {
		t.Error("a restart would do the write that has failed")
	}
	b.store.fail = nil
	if r := b.doAsync(cdb, data); r.status != Good || !bytes.Equal(b.store.data[8*512:16*512], data) {
		t.Errorf("again: %05x", r.code())
	}
}

// TestWriteAtomicHalf: where what was there cannot be restored nobody sees the half of it, until the write is
// complete: when the store takes writes again, or after a restart.
func TestWriteAtomicHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := &fakeJournal{}
		b, cdb, data := halfBench(t, kept)
		// These wait for the range while it is being written.
		waiting := b.task(rw10(0x28, 15, 1), nil, 512)
		restart := b.store.fail
		b.store.fail = func(op *backend.Op) error {
			if !waiting.r.Parked() && op.Kind == backend.Write {
				if next := waiting.Start(); next != Wait {
					t.Errorf("READ of blocks that are being written: %v", next)
				}
			}
			return restart(op)
		}
		if r := b.doAsync(cdb, data); r.code() != 0x72707 {
			t.Errorf("a full disk: %05x", r.code())
		}
		b.store.fail = restart
		if r := b.finish(waiting, waiting.Resume(), nil); r.code() != 0x31100 {
			t.Errorf("a READ that waited: %05x", r.code())
		}
		for _, c := range []struct {
			cdb  []byte
			out  int
			want int
		}{
			{rw10(0x28, 8, 8), 0, 0x31100},
			{rw10(0x28, 15, 2), 0, 0x31100},
			{rw10(0x2a, 12, 1), 512, 0x30c00},
			{rw16(0x93, 0, 16), 512, 0x30c00},
			{rw10(0x28, 0, 8), 0, 0},
			{rw10(0x2a, 16, 1), 512, 0},
		} {
			if v := verdict(b.do(c.cdb, make([]byte, c.out), 4096)); v != c.want {
				t.Errorf("% x: %05x, want %05x", c.cdb, v, c.want)
			}
		}
		elsewhere := bytes.Clone(cdb)
		elsewhere[9] = 32
		if r := b.doAsync(elsewhere, data); r.code() != 0x44400 || !bytes.Equal(kept.data, data) {
			t.Errorf("another atomic write: %05x", r.code())
		}
		restarted := func(fail func(*backend.Op) error) *bench {
			return newBench(t, false, func(c *benchConfig, s *fakeStore) {
				c.Journal, c.Logger = kept.restart(), quiet
				copy(s.data, b.store.data)
				s.fail = fail
			})
		}
		worse := restarted(medium(8*512, errTest))
		worse.store.fail = nil
		if r := worse.do(rw10(0x28, 8, 8), nil, 8*512); r.code() != 0x31100 || !bytes.Equal(kept.data, data) {
			t.Errorf("after a restart that could not complete it: %05x, and the journal has %d bytes", r.code(), len(kept.data))
		}
		before := bytes.Clone(kept.data)
		if got := restarted(nil).do(rw10(0x28, 8, 8), nil, 8*512); !bytes.Equal(got.in, data) {
			t.Errorf("after a restart: %05x", got.code())
		}

		kept.data = before
		b.store.fail = nil
		if r := b.doAsync(elsewhere, data); r.status != Good || kept.data != nil {
			t.Errorf("another atomic write when the store is well: %05x", r.code())
		}
		if got := b.do(rw10(0x28, 8, 8), nil, 8*512); !bytes.Equal(got.in, data) {
			t.Errorf("after that: %05x", got.code())
		}
	})
}

// TestWriteAtomicMended: a store that takes writes again gets the rest of an atomic write, though nobody asks for it, and one that
// does not is asked again.
func TestWriteAtomicMended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := &fakeJournal{}
		b, cdb, data := halfBench(t, kept)
		var ill syncError
		ill.set(errTest)
		bad := b.store.fail
		b.store.fail = func(op *backend.Op) error {
			if ill.get() == nil {
				return nil
			}
			return bad(op)
		}
		if r := b.doAsync(cdb, data); r.code() != 0x72707 {
			t.Errorf("a full disk: %05x", r.code())
		}
		data = bytes.Clone(data)
		time.Sleep(time.Minute)
		synctest.Wait()
		if r := b.do(rw10(0x28, 8, 8), nil, 8*512); r.code() != 0x31100 {
			t.Errorf("READ while the store takes nothing: %05x", r.code())
		}
		ill.set(nil)
		kept.stuck.set(errTest)
		time.Sleep(time.Minute)
		synctest.Wait()
		if r := b.do(rw10(0x2a, 8, 1), make([]byte, 512), 0); r.code() != 0x30c00 {
			t.Errorf("WRITE while a restart would overwrite it: %05x", r.code())
		}
		kept.stuck.set(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if r := b.do(rw10(0x28, 8, 8), nil, 8*512); !bytes.Equal(r.in, data) || kept.data != nil {
			t.Errorf("READ when all is well: %05x, and the journal has %d bytes", r.code(), len(kept.data))
		}
		if r := b.do(rw10(0x2a, 8, 1), make([]byte, 512), 0); r.status != Good {
			t.Errorf("WRITE when all is well: %05x", r.code())
		}
	})
}

// TestJournalNotForgotten: while a restart would do an atomic write again, or nobody knows whether it would, nothing else is written there.
func TestJournalNotForgotten(t *testing.T) {
	for name, fail := range map[string]func(j *fakeJournal, err error){
		"it forgets nothing": func(j *fakeJournal, err error) { j.stuck.set(err) },
		"it is in doubt": func(j *fakeJournal, err error) {
			if j.fail = err; err != nil {
				j.fail = keptError{err}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kept := &fakeJournal{}
				b, cdb, _, data := tornBench(t, kept)
				b.store.fail = nil
				fail(kept, errTest)
				if r := b.doAsync(cdb, data); r.code() != 0x44400 {
					t.Errorf("a bad journal: %05x", r.code())
				}
				if r := b.do(rw10(0x2a, 8, 1), make([]byte, 512), 0); r.code() != 0x30c00 {
					t.Errorf("WRITE to blocks that a restart would overwrite: %05x", r.code())
				}
				fail(kept, nil)
				elsewhere := bytes.Clone(cdb)
				elsewhere[9] = 32
				if r := b.doAsync(elsewhere, data); r.status != Good {
					t.Errorf("when the journal works again: %05x", r.code())
				}
				if r := b.do(rw10(0x2a, 8, 1), make([]byte, 512), 0); r.status != Good {
					t.Errorf("WRITE when the journal works again: %05x", r.code())
				}
			})
		})
	}
}

// TestJournalOverReopening: who opens a store again in the same process, because a reload has taken its LUN away and given it back, completes
// what was neither complete nor undone, before anybody writes there: a restart would write over it.
func TestJournalOverReopening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := &fakeJournal{}
		b, cdb, data := halfBench(t, kept)
		if r := b.doAsync(cdb, data); r.status == Good {
			t.Fatal("the write has succeeded")
		}
		b.store.fail = nil
		if err := errors.Join(b.lu.Close(), b.lu.v.Close()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // a volume that is closed writes no more
		synctest.Wait()
		if kept.data == nil {
			t.Error("the former volume has completed the write")
		}
		again := newBench(t, false, func(c *benchConfig, s *fakeStore) {
			c.Journal, c.Logger = kept, quiet
			copy(s.data, b.store.data)
		})
		if got := again.do(rw10(0x28, 8, 8), nil, 8*512); !bytes.Equal(got.in, data) {
			t.Errorf("opened again: %05x, and it is complete: %v", got.code(), bytes.Equal(got.in, data))
		}
		if kept.data != nil {
			t.Error("a restart would do the write again")
		}
	})
}
