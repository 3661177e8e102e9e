package scsi

import (
	"bytes"
	"encoding/binary"
	"testing"

	"oneshot/mem"
)

const manyLUNs = 200

// manyUnits is a bench whose REPORT LUNS is 8 bytes per logical unit, more than heap memory is kept for.
func manyUnits(t *testing.T) (b *bench, reportLUNs []byte, want []byte) {
	t.Helper()
	b = newBench(t, false, nil)
	for lun := range uint16(manyLUNs) {
		b.target.SetLU(lun, b.lu)
	}
	want = binary.BigEndian.AppendUint32(nil, 8*manyLUNs)
	want = append(want, 0, 0, 0, 0)
	for lun := range manyLUNs {
		want = append(want, 0, byte(lun), 0, 0, 0, 0, 0, 0)
	}
	return b, []byte{0: 0xa0, 8: 0x10, 11: 0}, want
}

// What a command builds is in I/O memory until it has left, when it is longer than a few hundred bytes.
func TestLongAnswersAreLeased(t *testing.T) {
	b, cdb, want := manyUnits(t)
	for _, c := range []struct{ lun, in, leases int }{
		{0, 4096, 1},
		{0, maxHeapAnswer + 8, 1},
		{0, maxHeapAnswer, 0},
		{0, 0, 0},
		{manyLUNs + 7, 4096, 1}, // no logical unit
	} {
		task := b.task(cdb, nil, c.in)
		task.LUN = uint64(c.lun) << 48
		if next := task.Start(); next != Done || task.Status != Good {
			t.Fatalf("LUN %d: %v, status %02x", c.lun, next, task.Status)
		}
		held := 0
		for _, s := range task.In {
			held += cap(s)
		}
		if n := testPool.Stats().Leases; n != c.leases || c.leases == 0 && held > maxHeapAnswer {
			t.Errorf("room for %d bytes: %d leases, and %d bytes are kept", c.in, n, held)
		}
		if got := b.finish(task, Done, nil).in; !bytes.Equal(got, want[:min(len(want), c.in)]) {
			t.Errorf("room for %d bytes: % x", c.in, got)
		}
	}
}

// Without I/O memory the command waits, and holds nothing meanwhile. The answer is of the time when
// there is memory.
func TestLongAnswersWait(t *testing.T) {
	for _, lun := range []uint64{0, 300} {
		b, cdb, want := manyUnits(t)
		b.owner.empty = true
		task := b.task(cdb, nil, 4096)
		task.LUN = lun << 48
		if next := task.Start(); next != Wait || task.In != nil || task.data[0] != nil {
			t.Fatalf("LUN %d: %v, keeps %d bytes", lun, next, len(task.data[0]))
		}
		if next := task.Resume(); next != Wait {
			t.Fatalf("LUN %d: %v", lun, next)
		}
		b.target.SetLU(manyLUNs, b.lu)
		want = append(want, 0, manyLUNs, 0, 0, 0, 0, 0, 0)
		binary.BigEndian.PutUint32(want, 8*(manyLUNs+1))
		b.owner.most = len(want) - 8
		b.owner.empty = false
		next := task.Resume() // with memory for the answer of before
		if next != Wait {
			t.Fatalf("LUN %d: %v, though the answer has grown", lun, next)
		}
		b.owner.most = 0
		if got := b.finish(task, task.Resume(), nil); got.status != Good || !bytes.Equal(got.in, want) {
			t.Errorf("LUN %d: % x", lun, got.in)
		}

		b.owner.empty = true
		task = b.task(cdb, nil, 4096)
		task.LUN = lun << 48
		if next := task.Start(); next != Wait {
			t.Fatalf("LUN %d: %v", lun, next)
		}
		task.Abort()
		if next := task.Resume(); next != Aborted {
			t.Errorf("LUN %d, aborted: %v", lun, next)
		}
		task.Release()
	}
}

// changingOwner does something whenever memory is asked for.
type changingOwner struct {
	*fakeOwner
	do func()
}

func (o *changingOwner) Lease(t *Task, n int) *mem.Lease {
	o.do()
	return o.fakeOwner.Lease(t, n)
}

// Who has been told the LUNs that there were before a change is told of the change.
func TestLUNsChangeUnderReport(t *testing.T) {
	b, cdb, _ := manyUnits(t)
	for _, i := range *b.nexus.table.Load() {
		i.ua.Store(0)
	}
	owner := &changingOwner{b.owner, func() { b.target.SetLU(3, nil) }}
	task := b.task(cdb, nil, 4096)
	task.Owner = owner
	b.run(task, nil)
	owner.do = func() {}
	if r := b.do(unhex(t, "00 00 00 00 00 00"), nil, 0); r.code() != 0x63f0e {
		t.Errorf("the next command: %05x, want 63f0e", r.code())
	}
}

// An answer that the connection's share of memory can never hold is refused.
func TestLongAnswersTooLong(t *testing.T) {
	b, cdb, _ := manyUnits(t)
	b.nexus.BoundMemory(1024)
	if r := b.do(cdb, nil, 4096); r.code() != 0x55503 {
		t.Errorf("%05x", r.code())
	}
	if r := b.do(cdb, nil, 1024); r.status != Good || len(r.in) != 1024 {
		t.Errorf("the part that there is room for: %02x, %d bytes", r.status, len(r.in))
	}
}

// REPORT LUNS that is aborted before it is answered has told nothing.
func TestAbortedReportTellsNothing(t *testing.T) {
	b, cdb, _ := manyUnits(t)
	for _, i := range *b.nexus.table.Load() {
		i.ua.Store(uaLUNsChanged)
	}
	b.owner.empty = true
	task := b.task(cdb, nil, 4096)
	if next := task.Start(); next != Wait {
		t.Fatal(next)
	}
	task.Abort()
	if next := task.Resume(); next != Aborted {
		t.Fatal(next)
	}
	task.Release()
	b.owner.empty = false
	if r := b.do(unhex(t, "00 00 00 00 00 00"), nil, 0); r.code() != 0x63f0e {
		t.Errorf("the next command: %05x, want 63f0e", r.code())
	}
}
