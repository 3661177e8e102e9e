package scsi

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"oneshot/backend"
)

// A WRITE is in the store when its initiator, or another one, has it aborted. Who writes to the same blocks by another path then is answered when
// the former one is over, so that it does not come on top.
func TestFormerWriteComesFirst(t *testing.T) {
	for name, giveUp := range map[string]func(b *bench, other *Nexus, task *Task, done func(TMFResponse)){
		"session lost": func(b *bench, _ *Nexus, _ *Task, done func(TMFResponse)) {
			b.nexus.Close(func() { done(FunctionComplete) })
		},
		"connection lost": func(_ *bench, _ *Nexus, task *Task, done func(TMFResponse)) {
			task.Abort()
			done(FunctionComplete)
		},
		"ABORT TASK":      func(b *bench, _ *Nexus, task *Task, done func(TMFResponse)) { b.nexus.Manage(AbortTask, 0, task, done) },
		"LUN RESET":       func(_ *bench, other *Nexus, _ *Task, done func(TMFResponse)) { other.Manage(LUNReset, 0, nil, done) },
		"I_T NEXUS RESET": func(b *bench, _ *Nexus, _ *Task, done func(TMFResponse)) { b.nexus.Manage(ITNexusReset, 0, nil, done) },
		"CLEAR TASK SET": func(_ *bench, other *Nexus, _ *Task, done func(TMFResponse)) {
			other.Manage(ClearTaskSet, 0, nil, done)
		},
		"TARGET WARM RESET": func(_ *bench, other *Nexus, _ *Task, done func(TMFResponse)) {
			other.Manage(TargetWarmReset, 0, nil, done)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, false, nil)
			other := b.newNexus()
			b.store.hold = func(op *backend.Op) bool { return op.Kind == backend.Write }
			task := b.task(rw10(0x2a, 0, 8), make([]byte, 4096), 0)
			if next := task.Start(); next != Pull {
				t.Fatal(next)
			}
			place(task, bytes.Repeat([]byte{1}, 4096))
			if next := task.Pulled(); next != Wait {
				t.Fatal(next)
			}
			b.store.hold = nil
			over := false
			giveUp(b, other, task, func(TMFResponse) { over = true })
			b.wakeUps()
			for _, i := range *other.table.Load() {
				i.ua.Store(0)
			}

			again := b.task(rw10(0x2a, 0, 1), make([]byte, 512), 0)
			again.Nexus = other
			if next := again.Start(); next != Pull {
				t.Fatal(next)
			}
			place(again, bytes.Repeat([]byte{2}, 512))
			next := again.Pulled()
			if next != Wait {
				t.Errorf("the second write is answered while the first is in the store: %v", next)
			}
			b.store.complete()
			for next == Wait {
				ready := <-b.owner.ready
				switch got := ready.Resume(); {
				case ready == again:
					next = got
				case got == Aborted:
					ready.Release()
				}
			}
			if next != Done || again.Status != Good || !over {
				t.Errorf("in the end: %v, status %v, %v", next, again.Status, over)
			}
			again.Release()
			b.wakeUps()
			if want := slices.Concat(bytes.Repeat([]byte{2}, 512), bytes.Repeat([]byte{1}, 3584)); !bytes.Equal(b.store.data[:4096], want) {
				t.Errorf("the blocks begin with % x: the aborted write has come on top", b.store.data[:4])
			}
			if err := b.lu.v.Settled(); err != nil {
				t.Error(err)
			}
		})
	}
}

// What a command changes may not be known when its initiator gives it up: its parameter list comes late, or a command before it does. Then it
// changes nothing any more, because nobody knows what has been written since.
func TestLateListChangesNothing(t *testing.T) {
	b := newCopyBench(t, false)
	zero := make([]byte, rodTokenLen)
	binary.BigEndian.PutUint32(zero, rodZero)
	binary.BigEndian.PutUint16(zero[6:], rodTokenLen-8)
	unmap := unhex(t, "00 16 00 10 00 00 00 00  00 00 00 00 00 00 00 08 00 00 00 08 00 00 00 00")
	segments := copyParameters(7, 0, b.both(), [][]byte{blockSegment(1, 0, 4, 0, 8)})
	overwrite := overwriteList(1, 0xaa)
	token := useList(zero, 0, 0, [2]uint64{8, 4})
	key := proutList(0, 4, 0)
	pages := unhex(t, "00 00 00 00  0a 0a 04 10 00 00 00 00 00 00 00 00") // D_SENSE
	was := bytes.Clone(b.store.data)
	about := func() []byte { // who is registered, and the mode parameters
		return append(b.do([]byte{0x5e, 0, 0, 0, 0, 0, 0, 0, 255, 0}, nil, 255).in, b.do([]byte{0x1a, 0x08, 0x3f, 0, 255, 0}, nil, 255).in...)
	}
	unit := about()
	for name, c := range map[string]struct{ cdb, list []byte }{
		"UNMAP":             {[]byte{0x42, 0, 0, 0, 0, 0, 0, 0, byte(len(unmap)), 0}, unmap},
		"EXTENDED COPY":     {thirdPartyCDB(0x83, 0, 0, len(segments)), segments},
		"WRITE USING TOKEN": {thirdPartyCDB(0x83, 0x11, 8, len(token)), token},
		"SANITIZE":          {sanitizeCDB(sanitizeOverwrite, len(overwrite)), overwrite},
		"PR OUT, REGISTER":  {proutCDB(proutRegister, 0, len(key)), key},
		"MODE SELECT":       {[]byte{0x15, 0x10, 0, 0, byte(len(pages)), 0}, pages},
		"WRITE":             {rw10(0x2a, 8, 1), make([]byte, 512)},
	} {
		task := b.task(c.cdb, c.list, 0)
		if name == "WRITE" {
			task.Overdue() // it waits for a command before it
		}
		next := task.Start()
		if name != "WRITE" {
			if next != Pull {
				t.Fatalf("%s: %v", name, next)
			}
			task.Overdue()
		}
		if r := b.finish(task, next, c.list); r.code() != 0xb0000 {
			t.Errorf("%s: status %v, %05x", name, r.status, r.code())
		}
		<-b.lu.v.Sanitized()
		if !bytes.Equal(b.store.data, was) {
			t.Errorf("%s changes something", name)
			copy(b.store.data, was)
		}
		if got := about(); !bytes.Equal(got, unit) {
			t.Errorf("%s changes who is registered, or the modes: % x", name, got)
		}
		if v := verdict(b.run(b.task(c.cdb, c.list, 0), c.list)); v != 0 {
			t.Errorf("%s in time: %05x", name, v)
		}
		<-b.lu.v.Sanitized()
		copy(b.store.data, was)
		unit = about()
	}
	b.released()
}

// A WRITE that has waited for long, and whose blocks somebody else writes meanwhile, is not done: its initiator may have sent it again elsewhere.
func TestOvertakenWriteIsAborted(t *testing.T) {
	b := newBench(t, false, nil)
	other := b.newNexus()
	write := func(n *Nexus, fill byte) *Task {
		task := b.task(rw10(0x2a, 0, 1), make([]byte, 512), 0)
		task.Nexus = n
		if next := task.Start(); next != Pull {
			t.Fatal(next)
		}
		place(task, bytes.Repeat([]byte{fill}, 512))
		if next := task.Pulled(); next != Wait {
			t.Fatal(next)
		}
		return task
	}
	b.store.hold = func(op *backend.Op) bool { return op.Kind == backend.Write }
	given := write(b.nexus, 1)
	given.Abort()
	b.wakeUps()
	late := write(b.nexus, 2)
	late.Overdue()
	newer := write(other, 3)
	b.store.hold = nil
	b.store.complete()
	for ends := 0; ends < 3; {
		task := <-b.owner.ready
		next := task.Resume()
		if next == Wait {
			continue
		}
		ends++
		if r := b.finish(task, next, nil); task == late && r.code() != 0xb0000 || task == newer && r.status != Good {
			t.Errorf("status %v, %05x", r.status, r.code())
		}
	}
	if b.store.data[0] != 3 {
		t.Errorf("the block begins with %x", b.store.data[0])
	}
}

// A command has been dormant for long behind an ORDERED task, so that its host may have given it up and sent it again by another path. What others have
// been told to be written before it begins stays, and nobody's in the way of one that they leave alone.
func TestDormantIsOvertaken(t *testing.T) {
	const blocks = 8
	fill := func(b byte) []byte { return bytes.Repeat([]byte{b}, blocks*512) }
	same := []byte{0x93, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, blocks, 0, 0}
	noData := bytes.Clone(same)
	noData[1] = bitNDOB
	unmap := unhex(t, "00 16 00 10 00 00 00 00  00 00 00 00 00 00 00 00 00 00 00 08 00 00 00 00")
	key := proutList(0, 4, 0)
	for name, c := range map[string]struct {
		cdb, data []byte
		never     bool // it is not done, for nobody knows what it is about until it begins
	}{
		"WRITE(6)":               {[]byte{0x0a, 0, 0, 0, blocks, 0}, fill(1), false},
		"WRITE(10)":              {rw10(0x2a, 0, blocks), fill(1), false},
		"WRITE AND VERIFY":       {rw10(0x2e, 0, blocks), fill(1), false},
		"ORWRITE":                {[]byte{0x8b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, blocks, 0, 0}, fill(1), false},
		"COMPARE AND WRITE":      {[]byte{0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}, append(fill(2)[:512], fill(1)[:512]...), false},
		"WRITE SAME":             {same, fill(1)[:512], false},
		"WRITE SAME, no data":    {noData, nil, false},
		"WRITE SAME, to the end": {[]byte{0x41, 0, 0, 0, 0, blocks, 0, 0, 0, 0}, fill(1)[:512], false},
		"UNMAP":                  {[]byte{0x42, 0, 0, 0, 0, 0, 0, 0, byte(len(unmap)), 0}, unmap, true},
		"PR OUT, REGISTER":       {proutCDB(proutRegister, 0, len(key)), key, true},
	} {
		for _, lends := range []bool{false, true} {
			for _, overtaken := range []bool{false, true} {
				b := newBench(t, lends, nil)
				other := b.newNexus()
				b.store.hold = func(op *backend.Op) bool { return op.Kind == backend.Flush }
				ordered := b.task(unhex(t, "35 00 00 00 00 00 00 00 00 00"), nil, 0)
				ordered.Attr = Ordered
				old := b.task(c.cdb, c.data, 0)
				again := b.task(rw10(0x2a, 0, 2*blocks), make([]byte, 2*blocks*512), 0)
				again.Nexus = other
				if !overtaken {
					again.CDB, again.DataOutLen = rw10(0x2a, testBlocks/2, 1), 512
					if name == "WRITE SAME, to the end" {
						again.CDB = rw10(0x2a, 0, 1) // before it
					}
				}
				copy(b.store.data, fill(2))
				for _, task := range []*Task{ordered, old, again} {
					if next := task.Start(); next != Wait {
						t.Fatalf("%s: %v", name, next)
					}
				}
				for range 2 {
					old.Overdue()
				}
				b.store.hold = nil
				b.finish(ordered, Wait, nil)
				if r := b.finish(again, again.Resume(), bytes.Repeat([]byte{2}, 2*blocks*512)); r.status != Good {
					t.Fatalf("%s: the command that comes later: %05x", name, r.code())
				}
				was := bytes.Clone(b.store.data)
				r := b.finish(old, old.Resume(), c.data)
				if want := overtaken || c.never; want != (r.code() == 0xb0000) || want != (r.status != Good) {
					t.Errorf("%s, lent %v, overtaken %v: status %v, %05x", name, lends, overtaken, r.status, r.code())
				}
				if changes := !bytes.Equal(b.store.data, was); changes != (r.status == Good) {
					t.Errorf("%s, lent %v, overtaken %v: it changes something: %v", name, lends, overtaken, changes)
				}
				if err := b.lu.v.Settled(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	}
}
