package scsi

import (
	"fmt"
	"testing"
)

// snapshot is all that persistent reservations are made of.
func snapshot(lu *LogicalUnit) string {
	s := lu.v.Access().State()
	text := fmt.Sprintln(s.Generation, s.Persist, s.Kind, s.Holder)
	for _, x := range s.Registrations {
		text += fmt.Sprintln(x)
	}
	return text
}

// sound fails the test if the parts contradict each other.
func sound(t *testing.T, lu *LogicalUnit) {
	t.Helper()
	s := lu.v.Access().State()
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	if held := s.Holder >= 0; held != (s.Kind != 0 && !s.Kind.All()) {
		t.Fatalf("type %d, holder %v", s.Kind, s.Holder)
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
	f.Add(append(named, append([]byte{0x05, 0, 0, 28}, "iqn.2026-11.example:other\x00\x00\x00"...)...), proutRegister, byte(0), byte(2))
	f.Fuzz(func(t *testing.T, list []byte, action, scope, who byte) {
		if len(list) > proutListMax {
			return
		}
		kept := new(fakeKeeper)
		b := newPRBench(t, func(c *benchConfig, _ *fakeStore) { c.Keeper, c.Logger = kept, quiet })
		b.must(b.a, proutRegister, 0, 0, 0xa)
		b.must(b.b, proutRegister, 0, 0, 0xb)
		b.must(b.a, proutReserve, writeExclusive, 0xa, 0)
		before := snapshot(b.lu)

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
		sound(t, b.lu)
		after := snapshot(b.lu)
		if next != Done || !good && after != before {
			t.Fatalf("%v, good: %v; before\n%safter\n%s", next, good, before, after)
		}
		if !b.lu.v.Access().State().Persist {
			return
		}
		again := newBench(t, true, func(c *benchConfig, _ *fakeStore) { c.Keeper = kept })
		if restored := snapshot(again.lu); restored != after {
			t.Fatalf("after a restart\n%sbefore\n%s", restored, after)
		}
	})
}
