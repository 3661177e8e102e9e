package scsi

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
)

// snapshot is all that persistent reservations are made of.
func (r *reservations) snapshot() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprintln(r.generation, r.persist, r.kind, slices.Index(r.list, r.holder))
	for _, x := range r.list {
		text += fmt.Sprintln(*x)
	}
	return text
}

// sound fails the test if the parts contradict each other.
func (r *reservations) sound(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch held := r.holder != nil; {
	case r.kind != 0 && !r.kind.valid():
		t.Fatalf("type %d", r.kind)
	case held != (r.kind != 0 && !r.kind.all()):
		t.Fatalf("type %d, holder %v", r.kind, r.holder)
	case held && !slices.Contains(r.list, r.holder):
		t.Fatalf("the holder, %v, is not registered", r.holder)
	case r.kind != 0 && len(r.list) == 0:
		t.Fatal("a reservation that nobody has")
	}
}

// FuzzProut sends any PERSISTENT RESERVE OUT parameter list with any service action, scope and type,
// from a nexus that holds a reservation, is registered, or is not. What is refused changes
// nothing, and what is kept over a power loss is what there is.
func FuzzProut(f *testing.F) {
	for action := byte(0); action < 9; action++ {
		for _, flags := range []byte{0, aptpl, allTargetPorts} {
			f.Add(proutList(0xa, 0xb, flags), action, byte(1), byte(0))
			f.Add(proutList(0xb, 0xa, flags), action, byte(5), byte(1))
			f.Add(proutList(0, 0xc, flags), action, byte(8), byte(2))
		}
	}
	named := append(proutList(0, 0xc, specIPT), 0, 0, 0, 32)
	f.Add(append(named, append([]byte{0x05, 0, 0, 28}, "iqn.2026-11.example:other\x00\x00\x00"...)...), byte(proutRegister), byte(0), byte(2))
	f.Fuzz(func(t *testing.T, list []byte, action, scope, who byte) {
		if len(list) > proutListMax {
			return
		}
		kept := new(fakeReservationStore)
		b := newPRBench(t, func(c *benchConfig, _ *fakeStore) { c.Reservations, c.Logger = kept, quiet })
		b.must(b.a, proutRegister, 0, 0, 0xa)
		b.must(b.b, proutRegister, 0, 0, 0xb)
		b.must(b.a, proutReserve, writeExclusive, 0xa, 0)
		r := &b.lu.reservations
		before := r.snapshot()

		task := b.task(proutCDB(action&0x1f, reservationType(scope), len(list)), list, 0)
		task.Nexus = []*Nexus{b.a, b.b, b.c}[who%3]
		next := task.Start()
		if next == Pull {
			place(task, list)
			next = task.Pulled()
		}
		for next == Wait {
			<-b.owner.ready
			next = task.Resume()
		}
		good := task.Status == Good
		task.Release()
		r.sound(t)
		after := r.snapshot()
		if next != Done || !good && after != before {
			t.Fatalf("%v, good: %v; before\n%safter\n%s", next, good, before, after)
		}
		if !r.persist {
			return
		}
		again := newBench(t, true, func(c *benchConfig, _ *fakeStore) { c.Reservations = kept })
		if restored := again.lu.reservations.snapshot(); restored != after {
			t.Fatalf("after a restart\n%sbefore\n%s", restored, after)
		}
	})
}

// FuzzReservationState reads any state that was kept: it is refused, or the logical unit that comes
// of it is sound and would keep the same.
func FuzzReservationState(f *testing.F) {
	f.Add([]byte(`{"Format":1,"Generation":3,"Type":5,"Holder":1,"Registrants":[{"Initiator":"a,i,0x1","Target":"t,t,0x1","Port":1,"Key":7},{"Initiator":"b","Target":"t,t,0x1","Port":1,"Key":8}]}`))
	f.Add([]byte(`{"Format":1,"Holder":-1,"Volatile":true,"Access":[{"Group":1,"State":2,"Preferred":true}]}`))
	f.Add([]byte(`{"Format":1,"Holder":-1,"Volatile":true,"Sanitize":{"Action":1,"Pattern":"YQ==","Count":2,"Invert":true}}`))
	f.Add([]byte(`{"Format":1,"Holder":-1,"Volatile":true,"Sanitize":{"Action":2,"Failed":true}}`))
	f.Add([]byte(`{"Format":1,"Type":7,"Holder":-1}`))
	f.Fuzz(func(t *testing.T, state []byte) {
		kept := &fakeReservationStore{state: state}
		lu, err := NewLogicalUnit(LUConfig{Volume: volumeOf(newFakeStore(fuzzBlocks * 512)), Serial: "1", Logger: quiet, Reservations: kept, TPGS: ALUAImplicit})
		if err != nil {
			return
		}
		defer lu.Close()
		r := &lu.reservations
		r.sound(t)
		if lu.sanitizer.job.Load() != nil { // it will not be what it is for long
			return
		}
		r.mu.Lock()
		first := bytes.Clone(r.state())
		r.mu.Unlock()
		other, err := NewLogicalUnit(LUConfig{
			Volume: volumeOf(newFakeStore(fuzzBlocks * 512)), Serial: "1", Logger: quiet, Reservations: &fakeReservationStore{state: first}, TPGS: ALUAImplicit,
		})
		if err != nil {
			t.Fatalf("%s is not read again: %v", first, err)
		}
		defer other.Close()
		if a, b := r.snapshot(), other.reservations.snapshot(); len(first) != 0 && r.persist && a != b {
			t.Fatalf("%s becomes %s", a, b)
		}
	})
}
