package scsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"oneshot/backend"
	"oneshot/mem"
	"oneshot/volume/access"
)

// prBench is a bench with two more nexuses. a registers and reserves, b registers at most.
type prBench struct {
	*bench
	a, b, c *Nexus
}

// prAgreed has newPRBench return benches whose reservations several nodes agree on.
var prAgreed bool

func newPRBench(t *testing.T, change func(*benchConfig, *fakeStore)) *prBench {
	t.Helper()
	b := newBench(t, true, change)
	if prAgreed {
		b = newBench(t, true, nil) // nothing is kept here
		agreed(b)
	}
	return &prBench{bench: b, a: b.nexus, b: b.client(2), c: b.client(3)}
}

// client is one more initiator port without pending unit attentions.
func (b *bench) client(n int) *Nexus {
	x := b.target.NewNexus(client(fmt.Sprintf("iqn.2026-11.example.clients:%c", 'a'+n-1), 0x400000000000+uint64(n)))
	for _, i := range *x.table.Load() {
		i.ua.Store(0)
	}
	return x
}

// as runs a command for a nexus.
func (b *prBench) as(n *Nexus, cdb, out []byte, in int) result {
	b.t.Helper()
	task := b.task(cdb, out, in)
	task.Nexus = n
	return b.run(task, out)
}

const aptpl, specIPT = 0x01, 0x08

func proutList(key, saKey uint64, flags byte) []byte {
	l := make([]byte, 24)
	binary.BigEndian.PutUint64(l, key)
	binary.BigEndian.PutUint64(l[8:], saKey)
	l[20] = flags
	return l
}

func proutCDB(action byte, kind reservationType, n int) []byte {
	cdb := make([]byte, 10)
	cdb[0], cdb[1], cdb[2] = 0x5f, action, byte(kind)
	binary.BigEndian.PutUint32(cdb[5:], uint32(n))
	return cdb
}

// out does a PERSISTENT RESERVE OUT and returns status and sense as 0xKAAQQ, or the status
// shifted out of the way if it is neither GOOD nor CHECK CONDITION.
func (b *prBench) out(n *Nexus, action byte, kind reservationType, key, saKey uint64, flags byte) int {
	b.t.Helper()
	l := proutList(key, saKey, flags)
	return verdict(b.as(n, proutCDB(action, kind, len(l)), l, 0))
}

const conflicts = int(ReservationConflict) << 24

func verdict(r result) int {
	switch r.status {
	case Good:
		return 0
	case CheckCondition:
		return r.code()
	}
	return int(r.status) << 24
}

func (b *prBench) must(n *Nexus, action byte, kind reservationType, key, saKey uint64) {
	b.t.Helper()
	if v := b.out(n, action, kind, key, saKey, 0); v != 0 {
		b.t.Fatalf("action %d: %#x", action, v)
	}
}

// keys returns PRGENERATION and the keys; reservation returns the type and key of the holder.
func (b *prBench) keys() (generation uint32, keys []uint64) {
	b.t.Helper()
	r := b.as(b.c, []byte{0x5e, 0, 0, 0, 0, 0, 0, 1, 0, 0}, nil, 256)
	if r.status != Good || int(binary.BigEndian.Uint32(r.in[4:])) != len(r.in)-8 {
		b.t.Fatalf("READ KEYS: %x % x", r.status, r.in)
	}
	for k := r.in[8:]; len(k) > 0; k = k[8:] {
		keys = append(keys, binary.BigEndian.Uint64(k))
	}
	return binary.BigEndian.Uint32(r.in), keys
}

func (b *prBench) reservation() (kind reservationType, key uint64) {
	b.t.Helper()
	r := b.as(b.c, []byte{0x5e, 1, 0, 0, 0, 0, 0, 1, 0, 0}, nil, 256)
	if r.status != Good {
		b.t.Fatalf("READ RESERVATION: %x", r.status)
	}
	if len(r.in) == 8 {
		return 0, 0
	}
	return reservationType(r.in[21]), binary.BigEndian.Uint64(r.in[8:])
}

// attention is the pending unit attention of a nexus as 0xAAQQ, or 0.
func attention(n *Nexus) int {
	s, _ := (*n.table.Load())[0].takeUA()
	return int(s.Code)
}

var allTypes = []reservationType{
	writeExclusive, exclusiveAccess, writeExclusiveRegistrants, exclusiveAccessRegistrants, writeExclusiveAll, exclusiveAccessAll,
}

// TestReservationAccess is the table of scsi.md §5.
func TestReservationAccess(t *testing.T) {
	const reads, writes, both = 1, 2, 3
	want := map[reservationType][3]int{ // holder, registered, unregistered
		writeExclusive:             {both, reads, reads},
		exclusiveAccess:            {both, 0, 0},
		writeExclusiveRegistrants:  {both, both, reads},
		exclusiveAccessRegistrants: {both, both, 0},
		writeExclusiveAll:          {both, both, reads},
		exclusiveAccessAll:         {both, both, 0},
	}
	reading := [][]byte{rw10(0x28, 0, 1), rw16(0x88, 0, 1), rw10(0x2f, 0, 1), rw10(0x34, 0, 1), {0x1a, 0, 0x3f, 0, 255, 0}}
	writing := [][]byte{rw10(0x2a, 0, 1), rw16(0x8a, 0, 1), rw10(0x35, 0, 1), rw10(0x41, 0, 1), {0x1b, 0, 0, 0, 0, 0}, {0x1b, 0, 0, 0, 0x11, 0}, {0x1e, 0, 0, 0, 1, 0}}
	always := [][]byte{make([]byte, 6), {0x12, 0, 0, 0, 36, 0}, {0x03, 0, 0, 0, 18, 0}, rw10(0x25, 0, 0), {0xa0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0}, {0x1b, 0, 0, 0, 1, 0}, {0x1e, 0, 0, 0, 0, 0}}
	for _, kind := range allTypes {
		b := newPRBench(t, nil)
		b.lu.medium.removable = true
		b.must(b.a, proutRegister, 0, 0, 0xa)
		b.must(b.b, proutRegister, 0, 0, 0xb)
		b.must(b.a, proutReserve, kind, 0xa, 0)
		for who, n := range []*Nexus{b.a, b.b, b.c} {
			try := func(list [][]byte, allowed bool) {
				for _, cdb := range list {
					r := b.as(n, cdb, make([]byte, 512), 512)
					if (r.status == ReservationConflict) == allowed || allowed && r.status != Good && r.status != ConditionMet {
						t.Errorf("type %d, nexus %d, % x: status %02x", kind, who, cdb, r.status)
					}
				}
			}
			try(reading, want[kind][who]&reads != 0)
			try(writing, want[kind][who]&writes != 0)
			try(always, true)
		}
		b.must(b.a, proutRelease, kind, 0xa, 0)
		if r := b.as(b.c, rw10(0x2a, 0, 1), make([]byte, 512), 0); r.status != Good {
			t.Errorf("type %d: after the release: status %02x", kind, r.status)
		}
	}
}

// TestRegister is SPC-4 table 56, and the life of keys.
func TestRegister(t *testing.T) {
	b := newPRBench(t, nil)
	for _, s := range []struct {
		what       string
		n          *Nexus
		action     byte
		key, saKey uint64
		flags      byte
		want       int
		generation uint32
		keys       string
	}{
		{"not registered, with a key", b.a, proutRegister, 5, 1, 0, conflicts, 0, "[]"},
		{"nothing to register", b.a, proutRegister, 0, 0, 0, 0, 0, "[]"},
		{"register", b.a, proutRegister, 0, 1, 0, 0, 1, "[1]"},
		{"the same key by another", b.b, proutRegister, 0, 1, 0, 0, 2, "[1 1]"},
		{"change with the wrong key", b.a, proutRegister, 2, 3, 0, conflicts, 2, "[1 1]"},
		{"change", b.a, proutRegister, 1, 3, 0, 0, 3, "[3 1]"},
		{"ignore the key", b.a, proutRegisterAndIgnore, 77, 4, 0, 0, 4, "[4 1]"},
		{"not to be kept", b.a, proutRegister, 4, 5, aptpl, 0x52600, 4, "[4 1]"},
		{"unregister", b.b, proutRegister, 1, 0, 0, 0, 5, "[4]"},
		{"unregister, ignoring the key", b.a, proutRegisterAndIgnore, 0, 0, 0, 0, 6, "[]"},
		{"reserve without registration", b.a, proutReserve, 0, 0, 0, conflicts, 6, "[]"},
	} {
		kind := reservationType(0)
		if s.action == proutReserve {
			kind = writeExclusive
		}
		if prAgreed && s.flags&aptpl != 0 {
			continue // there it is kept
		}
		if v := b.out(s.n, s.action, kind, s.key, s.saKey, s.flags); v != s.want {
			t.Errorf("%s: %#x, want %#x", s.what, v, s.want)
		}
		if g, k := b.keys(); g != s.generation || fmt.Sprint(k) != s.keys {
			t.Errorf("%s: generation %d, keys %v; want %d, %s", s.what, g, k, s.generation, s.keys)
		}
	}
	for _, n := range []int{0, 8, 23, 25} {
		if v := verdict(b.as(b.a, proutCDB(proutRegister, 0, n), make([]byte, n), 0)); v != 0x51a00 {
			t.Errorf("parameter list of %d bytes: %#x", n, v)
		}
	}
	for _, kind := range []reservationType{0, 2, 4, 9, 0x11} {
		if v := b.out(b.a, proutReserve, kind, 0, 0, 0); v != 0x52400 {
			t.Errorf("type %#x: %#x", kind, v)
		}
	}
}

// TestReservationEnds is scsi.md §5.1.
func TestReservationEnds(t *testing.T) {
	for _, kind := range allTypes {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			fresh := func() *prBench {
				b := newPRBench(t, nil)
				b.must(b.a, proutRegister, 0, 0, 0xa)
				b.must(b.b, proutRegister, 0, 0, 0xb)
				b.must(b.a, proutReserve, kind, 0xa, 0)
				return b
			}
			b := fresh()
			other := writeExclusive
			if kind == writeExclusive {
				other = exclusiveAccess
			}
			b.must(b.a, proutReserve, kind, 0xa, 0) // again
			if v := b.out(b.a, proutReserve, other, 0xa, 0, 0); v != conflicts {
				t.Errorf("another type by the holder: %#x", v)
			}
			if v := b.out(b.b, proutReserve, other, 0xb, 0, 0); v != conflicts {
				t.Errorf("RESERVE by another: %#x", v)
			}
			if v := b.out(b.a, proutRelease, other, 0xa, 0, 0); v != 0x52604 {
				t.Errorf("RELEASE of another type: %#x", v)
			}
			if k, key := b.reservation(); k != kind || (key == 0) != kind.All() {
				t.Errorf("type %d, key %#x", k, key)
			}

			b.must(b.b, proutRelease, kind, 0xb, 0) // by another: nothing, if it is not a holder too
			if k, _ := b.reservation(); (k == 0) != kind.All() {
				t.Errorf("RELEASE by another registrant leaves type %d", k)
			}

			b = fresh()
			b.must(b.a, proutRegister, 0, 0xa, 0)
			k, _ := b.reservation()
			ua := attention(b.b)
			switch {
			case kind.All() && (k != kind || ua != 0):
				t.Errorf("a holder unregisters: type %d, attention %04x", k, ua)
			case !kind.All() && (k != 0 || (ua == 0x2a04) != (kind >= access.WriteExclusiveRegistrants)):
				t.Errorf("the holder unregisters: type %d, attention %04x", k, ua)
			}

			b = fresh()
			b.must(b.b, proutClear, 0, 0xb, 0)
			if k, _ := b.reservation(); k != 0 || attention(b.a) != 0x2a03 || attention(b.b) != 0 {
				t.Errorf("CLEAR leaves type %d or the wrong attention", k)
			}
			if g, keys := b.keys(); g != 3 || len(keys) != 0 {
				t.Errorf("CLEAR: generation %d, keys %x", g, keys)
			}

			b = fresh()
			victim := uint64(0xa)
			if kind.All() {
				victim = 0
			}
			b.must(b.b, proutPreempt, other, 0xb, victim)
			if k, key := b.reservation(); k != other || key != 0xb || attention(b.a) != 0x2a05 {
				t.Errorf("PREEMPT: type %d, key %#x", k, key)
			}
			if g, keys := b.keys(); g != 3 || fmt.Sprintf("%x", keys) != "[b]" {
				t.Errorf("PREEMPT: generation %d, keys %x", g, keys)
			}

			b = fresh()
			b.must(b.a, proutPreempt, kind, 0xa, 0xb) // takes the registration only
			if k, _ := b.reservation(); k != kind || attention(b.b) != 0x2a05 {
				t.Errorf("PREEMPT of a registrant: type %d", k)
			}
			if v := b.out(b.a, proutPreempt, kind, 0xa, 0x99, 0); v != conflicts {
				t.Errorf("PREEMPT of nobody: %#x", v)
			}
			if !kind.All() {
				if v := b.out(b.a, proutPreempt, kind, 0xa, 0, 0); v != 0x52600 {
					t.Errorf("PREEMPT of key 0: %#x", v)
				}
			}
		})
	}
}

// PREEMPT AND ABORT is answered when the tasks of the preempted are over.
func TestPreemptAndAbort(t *testing.T) {
	b := newPRBench(t, nil)
	b.must(b.a, proutRegister, 0, 0, 0xa)
	b.must(b.b, proutRegister, 0, 0, 0xb)
	b.must(b.a, proutReserve, writeExclusive, 0xa, 0)
	victim := b.task(rw10(0x2a, 0, 1), make([]byte, 512), 0)
	victim.Nexus = b.a
	if next := victim.Start(); next != Pull {
		t.Fatalf("WRITE: %v", next)
	}
	l := proutList(0xb, 0xa, 0)
	task := b.task(proutCDB(proutPreemptAndAbort, writeExclusive, 24), l, 0)
	task.Nexus = b.b
	if next := task.Start(); next != Pull {
		t.Fatalf("PERSISTENT RESERVE OUT: %v", next)
	}
	place(task, l)
	if next := task.Pulled(); next != Wait || task.Resume() != Wait {
		t.Fatalf("%v while the WRITE is there", next)
	}
	b.awaitReady(victim)
	if next := victim.Resume(); next != Aborted {
		t.Fatalf("WRITE: %v", next)
	}
	victim.Release()
	b.awaitReady(task)
	if next := task.Resume(); next != Done || task.Status != Good {
		t.Fatalf("%v, status %02x", next, task.Status)
	}
	task.Release()
	if k, key := b.reservation(); k != writeExclusive || key != 0xb {
		t.Errorf("type %d, key %#x", k, key)
	}
}

// An initiator that is dead takes no answers, and is noticed late. Who preempts it, or resets what it has under way, does not wait for that; only
// where an answer is sent from the memory of the store, which would tell what is written there next. Who resets its own tasks has the answers
// before the response.
func TestOthersDoNotWaitForAnswers(t *testing.T) {
	var waits func()
	for name, c := range map[string]struct {
		do  func(p *prBench, done func())
		own bool
	}{
		"PREEMPT AND ABORT": {do: func(p *prBench, done func()) {
			l := proutList(0xb, 0xa, 0)
			task := p.task(proutCDB(proutPreemptAndAbort, writeExclusive, 24), l, 0)
			task.Nexus = p.b
			task.Start()
			place(task, l)
			if next := task.Pulled(); next == Done {
				done()
				task.Release()
				return
			}
			waits = func() {
				if p.awaitReady(task); task.Resume() == Done {
					done()
				}
				task.Release()
			}
		}},
		"LUN RESET":      {do: func(p *prBench, done func()) { p.b.Manage(LUNReset, 0, nil, func(TMFResponse) { done() }) }},
		"CLEAR TASK SET": {do: func(p *prBench, done func()) { p.b.Manage(ClearTaskSet, 0, nil, func(TMFResponse) { done() }) }},
		"TARGET RESET":   {do: func(p *prBench, done func()) { p.b.Manage(TargetWarmReset, 0, nil, func(TMFResponse) { done() }) }},
		"own LUN RESET":  {do: func(p *prBench, done func()) { p.a.Manage(LUNReset, 0, nil, func(TMFResponse) { done() }) }, own: true},
	} {
		for _, lends := range []bool{false, true} {
			b := newBench(t, lends, nil)
			p := &prBench{bench: b, a: b.nexus, b: b.client(2), c: b.client(3)}
			p.must(p.a, proutRegister, 0, 0, 0xa)
			p.must(p.b, proutRegister, 0, 0, 0xb)
			p.must(p.a, proutReserve, writeExclusive, 0xa, 0)
			b.store.hold = holdTasks
			read := b.task(rw10(0x28, 0, 1), nil, 512)
			read.NoLend = true // so that it waits for the store
			if next := read.Start(); next != Wait {
				t.Fatalf("READ: %v", next)
			}
			b.store.complete()
			b.awaitReady(read)
			if next := read.Resume(); next != Done || read.Status != Good {
				t.Fatalf("READ: %v, status %02x", next, read.Status)
			}
			b.store.hold = nil
			over := false
			waits = func() {}
			c.do(p, func() { over = true })
			if want := !c.own && !lends; over != want {
				t.Errorf("%s, lends %v: over before the answer to the READ has left: %v", name, lends, over)
			}
			read.Release()
			if waits(); !over {
				t.Errorf("%s, lends %v: not over when it has left", name, lends)
			}
		}
	}
}

// Nor does who preempts it wait until it serves the RDMA Reads of a WRITE that is aborted.
func TestOthersDoNotWaitForReads(t *testing.T) {
	b := newBench(t, false, nil)
	p := &prBench{bench: b, a: b.nexus, b: b.client(2), c: b.client(3)}
	p.must(p.a, proutRegister, 0, 0, 0xa)
	p.must(p.b, proutRegister, 0, 0, 0xb)
	victim := b.task(rw10(0x2a, 0, 1), make([]byte, 512), 0)
	if next := victim.Start(); next != Pull {
		t.Fatal(next)
	}
	l := proutList(0xb, 0xa, 0)
	task := b.task(proutCDB(proutPreemptAndAbort, writeExclusive, 24), l, 0)
	task.Nexus = p.b
	task.Start()
	place(task, l)
	if next := task.Pulled(); next != Wait {
		t.Fatalf("%v while the WRITE may go on", next)
	}
	own := false
	p.a.Manage(AbortTaskSet, 0, nil, func(TMFResponse) { own = true })
	b.awaitReady(victim)
	if next := victim.Resume(); next != Aborted {
		t.Fatalf("WRITE: %v", next)
	}
	if next := task.Resume(); next != Done || task.Status != Good {
		t.Errorf("PREEMPT AND ABORT, while the mover has the memory of the WRITE: %v", next)
	}
	task.Release()
	reset := false
	if p.b.Manage(LUNReset, 0, nil, func(TMFResponse) { reset = true }); !reset || own {
		t.Errorf("a reset by another: %v; ABORT TASK SET by its own initiator: %v", reset, own)
	}
	if victim.Release(); !own {
		t.Error("ABORT TASK SET does not end")
	}
}

// meanwhile is an owner at whom something happens while a task begins: between its look at reservations and its entry into the task set.
type meanwhile struct {
	*fakeOwner
	happens func()
}

func (o *meanwhile) Lease(t *Task, n int) *mem.Lease {
	if f := o.happens; f != nil {
		o.happens = nil
		f()
	}
	return o.fakeOwner.Lease(t, n)
}

// A command that is about to enter the task set when PREEMPT AND ABORT looks there writes nothing afterwards, whether it finds memory at once or waits for
// some.
func TestPreemptAndAbortWhileBeginning(t *testing.T) {
	for _, waits := range []bool{false, true} {
		b := newBench(t, false, nil)
		p := &prBench{bench: b, a: b.nexus, b: b.client(2), c: b.client(3)}
		p.must(p.a, proutRegister, 0, 0, 0xa)
		p.must(p.b, proutRegister, 0, 0, 0xb)
		p.must(p.a, proutReserve, writeExclusive, 0xa, 0)
		owner := &meanwhile{fakeOwner: newFakeOwner()}
		owner.happens = func() {
			p.must(p.b, proutPreemptAndAbort, writeExclusive, 0xb, 0xa)
			owner.empty = waits
		}
		victim := b.task(rw10(0x2a, 0, 1), make([]byte, 512), 0)
		victim.Owner = owner
		next := victim.Start()
		if waits {
			if next != Wait {
				t.Fatalf("without memory: %v", next)
			}
			owner.empty = false
			next = victim.Resume()
		}
		if next != Done || victim.Status != ReservationConflict {
			t.Errorf("waits %v: %v, status %02x, for a command of somebody who has been preempted and aborted", waits, next, victim.Status)
		}
		victim.Release()
	}
}

// A command that fetches no data is in the task set when it changes the medium: PREEMPT AND ABORT that comes while the store has its first
// piece is not answered before that has ended, and nothing of the command follows.
func TestPreemptAndAbortWithoutData(t *testing.T) {
	b := newBench(t, false, nil)
	p := &prBench{bench: b, a: b.nexus, b: b.client(2), c: b.client(3)}
	p.must(p.a, proutRegister, 0, 0, 0xa)
	p.must(p.b, proutRegister, 0, 0, 0xb)
	p.must(p.a, proutReserve, writeExclusive, 0xa, 0)
	l := proutList(0xb, 0xa, 0)
	preempt := b.task(proutCDB(proutPreemptAndAbort, writeExclusive, 24), l, 0)
	preempt.Nexus = p.b
	answer := Pull
	b.store.hold = func(*backend.Op) bool {
		b.store.hold = nil
		if answer = preempt.Start(); answer == Pull {
			place(preempt, l)
			answer = preempt.Pulled()
		}
		return true
	}
	victim := b.task([]byte{0x93, bitNDOB, 13: 1, 15: 0}, nil, 0)
	if next := victim.Start(); next != Wait {
		t.Fatalf("WRITE SAME: %v", next)
	}
	if answer != Wait {
		t.Fatalf("PREEMPT AND ABORT while the store has a piece of the command of the preempted: %v, status %02x", answer, preempt.Status)
	}
	b.store.complete()
	b.awaitReady(victim)
	if next := victim.Resume(); next != Aborted {
		t.Errorf("WRITE SAME of the preempted ends with %v", next)
	}
	victim.Release()
	b.awaitReady(preempt)
	if next := preempt.Resume(); next != Done || preempt.Status != Good {
		t.Errorf("PREEMPT AND ABORT: %v, status %02x", next, preempt.Status)
	}
	preempt.Release()
}

// REGISTER with SPEC_I_PT and REGISTER AND MOVE name initiators by TransportIDs, which READ
// FULL STATUS returns.
func TestTransportIDs(t *testing.T) {
	b := newPRBench(t, nil)
	idB, idDevice := appendTransportID(nil, b.b.initiator), appendTransportID(nil, Initiator{Protocol: access.ISCSI, Name: "iqn.2026-11.example.clients:c"})
	l := append(proutList(0, 1, specIPT), make([]byte, 4)...)
	l = append(append(l, idB...), idDevice...)
	binary.BigEndian.PutUint32(l[24:], uint32(len(l)-28))
	if v := verdict(b.as(b.a, proutCDB(proutRegister, 0, len(l)), l, 0)); v != 0 {
		t.Fatalf("SPEC_I_PT: %#x", v)
	}
	b.must(b.b, proutReserve, exclusiveAccess, 1, 0)
	b.must(b.c, proutRegister, 0, 1, 3)
	r := b.as(b.c, []byte{0x5e, 3, 0, 0, 0, 0, 0, 4, 0, 0}, nil, 1024)
	if binary.BigEndian.Uint32(r.in[4:]) != uint32(len(r.in)-8) {
		t.Fatalf("READ FULL STATUS: % x", r.in)
	}
	got := map[Initiator]string{}
	for d := r.in[8:]; len(d) > 0; {
		n := 24 + int(binary.BigEndian.Uint32(d[20:]))
		name, _ := parseTransportID(d[24:n])
		got[name] = fmt.Sprintf("key %d holder %d type %d port %d", d[7], d[12], d[13], d[19])
		d = d[n:]
	}
	for name, want := range map[Initiator]string{
		b.a.initiator: "key 1 holder 0 type 0 port 1",
		b.b.initiator: "key 1 holder 1 type 3 port 1",
		{Protocol: access.ISCSI, Name: "iqn.2026-11.example.clients:c"}: "key 3 holder 0 type 0 port 1",
	} {
		if got[name] != want {
			t.Errorf("%v: %s, want %s", name, got[name], want)
		}
	}

	move := func(saKey uint64, flags byte, port uint16, id []byte) int {
		l := make([]byte, 24, 64)
		binary.BigEndian.PutUint64(l, 1)
		binary.BigEndian.PutUint64(l[8:], saKey)
		l[17] = flags
		binary.BigEndian.PutUint16(l[18:], port)
		binary.BigEndian.PutUint32(l[20:], uint32(len(id)))
		l = append(l, id...)
		return verdict(b.as(b.b, proutCDB(proutRegisterAndMove, 0, len(l)), l, 0))
	}
	idA := appendTransportID(nil, b.a.initiator)
	toBeKept := 0x52600
	if !prAgreed { // there it is kept
		toBeKept = move(9, aptpl, 1, idA)
	}
	for _, s := range []struct {
		what string
		got  int
		want int
	}{
		{"key 0", move(0, 0, 1, idA), 0x52600},
		{"unknown port", move(9, 0, 2, idA), 0x52600},
		{"to itself", move(9, 0, 1, idB), 0x52600},
		{"no TransportID", move(9, 0, 1, idA[:4]), 0x52600},
		{"to be kept", toBeKept, 0x52600},
		{"to the first", move(9, 0x02, 1, idA), 0},
		{"by a former holder", move(9, 0, 1, idA), conflicts},
	} {
		if s.got != s.want {
			t.Errorf("REGISTER AND MOVE, %s: %#x, want %#x", s.what, s.got, s.want)
		}
	}
	if k, key := b.reservation(); k != exclusiveAccess || key != 9 {
		t.Errorf("type %d, key %#x", k, key)
	}
	if _, keys := b.keys(); fmt.Sprint(keys) != "[3 9]" && fmt.Sprint(keys) != "[9 3]" {
		t.Errorf("keys %v", keys)
	}
}

// A registration stays, so of a TransportID no more is kept than the longest name has, however long
// an initiator has made it: RFC 7143 §4.2.7.1.
func TestTransportIDsAreShort(t *testing.T) {
	name := "iqn.2026-11.example.clients:" + strings.Repeat("x", 223-28)
	for text, good := range map[string]bool{
		name: true, name + ",i,0x400000000001": true,
		name + "x": false, name + "x,i,0x400000000001": false,
	} {
		id := make([]byte, 8<<10)
		id[0], id[2], id[3] = transportISCSI, byte((len(id)-4)>>8), byte((len(id)-4)&0xff)
		if strings.Contains(text, isidSeparator) {
			id[0] |= transportPort
		}
		copy(id[4:], text)
		const runs = 20
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		n := 0
		for range runs {
			if _, n = parseTransportID(id); (n == len(id)) != good {
				t.Fatalf("%q of %d bytes: %d, want it to be good: %v", text, len(text), n, good)
			}
		}
		runtime.ReadMemStats(&after)
		if n := (after.TotalAlloc - before.TotalAlloc) / runs; n > 1<<10 {
			t.Errorf("%d bytes are taken for a name of %d", n, len(text))
		}
	}
}

// As PERSISTENT RESERVE OUT and its types are called here.
const (
	proutRegister          = byte(access.Register)
	proutReserve           = byte(access.Reserve)
	proutRelease           = byte(access.Release)
	proutClear             = byte(access.Clear)
	proutPreempt           = byte(access.Preempt)
	proutPreemptAndAbort   = byte(access.PreemptAndAbort)
	proutRegisterAndIgnore = byte(access.RegisterAndIgnore)
	proutRegisterAndMove   = byte(access.RegisterAndMove)

	writeExclusive             = access.WriteExclusive
	exclusiveAccess            = access.ExclusiveAccess
	writeExclusiveRegistrants  = access.WriteExclusiveRegistrants
	exclusiveAccessRegistrants = access.ExclusiveAccessRegistrants
	writeExclusiveAll          = access.WriteExclusiveAll
	exclusiveAccessAll         = access.ExclusiveAccessAll
)

type reservationType = access.Kind

// fakeKeeper keeps the state, and can fail.
type fakeKeeper struct {
	state []byte
	err   error
	saves int
}

func (s *fakeKeeper) Load() ([]byte, error) { return s.state, s.err }
func (s *fakeKeeper) Save(b []byte) error {
	s.saves++
	if s.err == nil {
		s.state = b
	}
	return s.err
}

// outSaved is out for a command that waits for the store to be written.
func (b *prBench) outSaved(n *Nexus, action byte, kind reservationType, key, saKey uint64, flags byte) int {
	b.t.Helper()
	l := proutList(key, saKey, flags)
	return b.saved(n, proutCDB(action, kind, len(l)), l)
}

// saved runs a command with a parameter list that waits for the store to be written.
func (b *prBench) saved(n *Nexus, cdb, list []byte) int {
	b.t.Helper()
	task := b.task(cdb, list, 0)
	task.Nexus = n
	if next := task.Start(); next != Pull {
		b.t.Fatalf("%v", next)
	}
	place(task, list)
	next := task.Pulled()
	for next == Wait {
		<-b.owner.ready
		next = task.Resume()
	}
	r := result{status: task.Status, sense: append([]byte{}, task.Sense...)}
	task.Release()
	return verdict(r)
}

// Registrations outlive sessions, so an initiator that comes under ever new names could leave any
// number of them.
func TestRegistrationsAreBounded(t *testing.T) {
	b := newPRBench(t, nil)
	v, last := 0, 0
	for i := 0; v == 0 && i < 2*access.MaxRegistrations/100; i++ {
		l := append(proutList(0, 1, specIPT), make([]byte, 4)...)
		for k := range 100 {
			l = appendTransportID(l, Initiator{Protocol: access.ISCSI, Name: fmt.Sprintf("iqn.2026-11.example.clients:%d-%d", i, k)})
		}
		binary.BigEndian.PutUint32(l[24:], uint32(len(l)-28))
		if v = verdict(b.as(b.a, proutCDB(proutRegister, 0, len(l)), l, 0)); v == 0 {
			last = len(b.lu.v.Access().State().Registrations)
			b.must(b.a, proutRegister, 0, 1, 0) // without SPEC_I_PT that is its own alone
		}
	}
	if v != 0x55504 || last > access.MaxRegistrations || last < access.MaxRegistrations-101 {
		t.Errorf("%05x after %d registrations", v, last)
	}
	b.listsLeaveNoGarbage(last)
	b.must(b.b, proutRegister, 0, 0, 2)
	b.must(b.b, proutClear, 0, 2, 0)
	b.must(b.a, proutRegister, 0, 0, 1)
}

// Lists of registrations are as long as initiators have made them, and asked for as often as
// initiators like: what they leave to the collector does not grow with their length.
func (b *prBench) listsLeaveNoGarbage(registrations int) {
	b.t.Helper()
	for action, least := range map[byte]int{0: 8 * registrations, 3: 0xffff} {
		const runs, each = 20, 1 << 10
		got := 0
		cdb := []byte{0x5e, action, 0, 0, 0, 0, 0, 0xff, 0xff, 0}
		var task Task
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			task.Owner, task.Nexus, task.CDB, task.DataInLen = b.owner, b.a, cdb, 0xffff
			if next := task.Start(); next != Done || task.Status != Good {
				b.t.Fatalf("service action %d: %v, status %02x", action, next, task.Status)
			}
			got = len(task.In[0])
			task.Release()
		}
		runtime.ReadMemStats(&after)
		if n := (after.TotalAlloc - before.TotalAlloc) / runs; got < least || n > each {
			b.t.Errorf("service action %d: a list of %d bytes (want %d) leaves %d bytes of garbage", action, got, least, n)
		}
	}
}

// READ FULL STATUS ends wherever the initiator's room does, and tells the whole length.
func TestFullStatusIsCut(t *testing.T) {
	b := newPRBench(t, nil)
	for _, n := range []*Nexus{b.a, b.b, b.c} {
		b.must(n, proutRegister, 0, 0, 1)
	}
	fullStatus := func(alloc, in int) result {
		return b.as(b.a, []byte{0x5e, 3, 0, 0, 0, 0, 0, byte(alloc >> 8), byte(alloc), 0}, nil, in)
	}
	whole := fullStatus(1024, 1024).in
	if n := len(whole) - 8; n < 3*24 || binary.BigEndian.Uint32(whole[4:]) != uint32(n) {
		t.Fatalf("% x", whole)
	}
	for n := range whole {
		if r := fullStatus(n, 1024); r.transfer != uint64(n) || !bytes.Equal(r.in, whole[:n]) {
			t.Errorf("allocation length %d: %d of %d bytes, % x", n, len(r.in), r.transfer, r.in)
		}
		if r := fullStatus(1024, n); r.transfer != uint64(len(whole)) || !bytes.Equal(r.in, whole[:n]) {
			t.Errorf("room for %d bytes: %d of %d bytes, % x", n, len(r.in), r.transfer, r.in)
		}
	}
}

// TestPersistThroughPowerLoss: what was registered with APTPL is there again, even for an
// initiator that comes back in a new session, until APTPL is taken back.
func TestPersistThroughPowerLoss(t *testing.T) {
	for _, kind := range allTypes {
		kept := new(fakeKeeper)
		with := func(c *benchConfig, _ *fakeStore) { c.Keeper = kept }
		b := newPRBench(t, with)
		if v := b.outSaved(b.a, proutRegister, 0, 0, 0xa, aptpl); v != 0 {
			t.Fatalf("%#x", v)
		}
		if v := b.outSaved(b.b, proutRegister, 0, 0, 0xb, aptpl); v != 0 {
			t.Fatalf("%#x", v)
		}
		if v := b.outSaved(b.a, proutReserve, kind, 0xa, 0, 0); v != 0 {
			t.Fatalf("%#x", v)
		}
		g, keys := b.keys()

		b = newPRBench(t, with)
		if g2, keys2 := b.keys(); g2 != g || fmt.Sprint(keys) != fmt.Sprint(keys2) {
			t.Errorf("generation %d, keys %x; want %d, %x", g2, keys2, g, keys)
		}
		if k, key := b.reservation(); k != kind || !kind.All() && key != 0xa {
			t.Errorf("type %d, key %#x; want %d", k, key, kind)
		}
		if r := b.as(b.c, rw10(0x2a, 0, 1), make([]byte, 512), 0); r.status != ReservationConflict {
			t.Errorf("type %d: a stranger writes: status %02x", kind, r.status)
		}
		if r := b.as(b.a, rw10(0x2a, 0, 1), make([]byte, 512), 0); r.status != Good {
			t.Errorf("type %d: the holder writes: status %02x", kind, r.status)
		}
		if v := b.outSaved(b.a, proutRegister, 0, 0xa, 0xc, 0); v != 0 || kept.state != nil {
			t.Errorf("without APTPL: %#x, %q is kept", v, kept.state)
		}
		if k, _ := b.reservation(); k != kind {
			t.Error("the reservation is lost with APTPL")
		}
	}

	full := &fakeKeeper{}
	b := newPRBench(t, func(c *benchConfig, _ *fakeStore) { c.Keeper, c.Logger = full, quiet })
	full.err = errors.New("no space left on device")
	if v := b.outSaved(b.a, proutRegister, 0, 0, 0xa, aptpl); v != 0x44400 {
		t.Errorf("a store that fails: %#x", v)
	}
	if g, keys := b.keys(); g != 0 || len(keys) != 0 {
		t.Errorf("a registration that could not be kept: generation %d, keys %x", g, keys)
	}
}

// TestReserveRelease is SPC-2 §5.5.1, and what ends a reservation.
func TestReserveRelease(t *testing.T) {
	reserve6, release6 := []byte{0x16, 0, 0, 0, 0, 0}, []byte{0x17, 0, 0, 0, 0, 0}
	reserve10, release10 := rw10(0x56, 0, 0), rw10(0x57, 0, 0)
	for _, ends := range []struct {
		name string
		do   func(*prBench)
	}{
		{"RELEASE(6)", func(b *prBench) { b.as(b.a, release6, nil, 0) }},
		{"RELEASE(10)", func(b *prBench) { b.as(b.a, release10, nil, 0) }},
		{"session ends", func(b *prBench) { b.a.Close(func() {}) }},
		{"LUN reset", func(b *prBench) { b.c.Manage(LUNReset, 0, nil, func(TMFResponse) {}) }},
		{"target reset", func(b *prBench) { b.c.Manage(TargetWarmReset, 0, nil, func(TMFResponse) {}) }},
		{"nexus reset", func(b *prBench) { b.a.Manage(ITNexusReset, 0, nil, func(TMFResponse) {}) }},
	} {
		b := newPRBench(t, nil)
		for _, cdb := range [][]byte{reserve6, reserve10, reserve6} {
			if r := b.as(b.a, cdb, nil, 0); r.status != Good {
				t.Fatalf("% x: status %02x", cdb, r.status)
			}
		}
		for _, cdb := range [][]byte{
			reserve6, reserve10, make([]byte, 6), rw10(0x28, 0, 1),
			{0x1a, 0, 0x3f, 0, 255, 0},
			{0x5e, 0, 0, 0, 0, 0, 0, 1, 0, 0},
			proutCDB(proutRegister, 0, 24),
		} {
			if r := b.as(b.b, cdb, make([]byte, 24), 512); r.status != ReservationConflict {
				t.Errorf("% x by another: status %02x", cdb, r.status)
			}
		}
		for _, cdb := range [][]byte{release6, release10, {0x12, 0, 0, 0, 36, 0}, {0x03, 0, 0, 0, 18, 0}, {0xa0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0}} {
			if r := b.as(b.b, cdb, nil, 512); r.status != Good {
				t.Errorf("% x by another: status %02x", cdb, r.status)
			}
		}
		ends.do(b)
		attention(b.b)
		if r := b.as(b.b, reserve10, nil, 0); r.status != Good {
			t.Errorf("after %s: status %02x", ends.name, r.status)
		}
	}
	b := newPRBench(t, nil)
	b.must(b.a, proutRegister, 0, 0, 1)
	if r := b.as(b.a, reserve6, nil, 0); r.status != ReservationConflict {
		t.Errorf("RESERVE with registrations: status %02x", r.status)
	}
	if r := b.as(b.a, release6, nil, 0); r.status != ReservationConflict {
		t.Errorf("RELEASE with registrations: status %02x", r.status)
	}
}

// hostOfNVMe is a host of NVMe, as the table of the volume knows it.
type hostOfNVMe struct{ denied, told uint32 }

func (*hostOfNVMe) Holder() access.Holder {
	return access.Holder{Initiator: access.Host([16]byte{0xab}), Port: access.Port{Target: "nqn.s", Group: 1}}
}
func (h *hostOfNVMe) Session() any            { return h }
func (h *hostOfNVMe) Deny(_, d access.Denial) { h.denied = uint32(d) }
func (h *hostOfNVMe) Tell(e access.Event)     { h.told |= uint32(e) }
func (*hostOfNVMe) Abort(done func())         { done() }

// A host of NVMe is in the same table: READ FULL STATUS has it with a name that no command can give to an initiator.
func TestHostIsReported(t *testing.T) {
	b := newPRBench(t, nil)
	h := new(hostOfNVMe)
	table := b.lu.v.Access()
	table.Subscribe(h)
	defer table.Unsubscribe(h)
	table.Do(&access.Change{Op: access.RegisterHost, By: h, NewKey: 9, Ports: []access.PortOf{{}}}, nil)
	b.must(b.a, proutRegister, 0, 0, 1)
	b.must(b.a, proutReserve, writeExclusive, 1, 0)
	if h.denied != denyWrites {
		t.Errorf("denied %#x", h.denied)
	}
	r := b.as(b.c, []byte{0x5e, 3, 0, 0, 0, 0, 0, 4, 0, 0}, nil, 1024)
	const name = "iqn.2014-08.org.nvmexpress:ab000000000000000000000000000000"
	id := r.in[8+24:]
	if int(binary.BigEndian.Uint32(r.in[4:])) != len(r.in)-8 || r.in[15] != 9 || r.in[8+19] != 0 || id[0] != 5 || string(bytes.TrimRight(id[4:4+len(name)+1], "\x00")) != name {
		t.Errorf("READ FULL STATUS: % x", r.in)
	}
	l := append(proutList(0, 1, specIPT), make([]byte, 4)...)
	l = append(l, appendTransportID(nil, Initiator{Protocol: access.ISCSI, Name: name})...)
	binary.BigEndian.PutUint32(l[24:], uint32(len(l)-28))
	if v := verdict(b.as(b.b, proutCDB(proutRegister, 0, len(l)), l, 0)); v != 0x52600 {
		t.Errorf("a command registers a host of NVMe: %#x", v)
	}
	b.must(b.a, byte(access.Preempt), writeExclusive, 1, 9)
	if h.told != uint32(access.RegistrationsPreempted) {
		t.Errorf("told %#x", h.told)
	}
}

// A RESERVE stands until the commands of its session that were aborted have left the store: those whom it keeps away do not come among them.
func TestReserveOutlastsAbortedWrites(t *testing.T) {
	reserve6, release6 := []byte{0x16, 0, 0, 0, 0, 0}, []byte{0x17, 0, 0, 0, 0, 0}
	for name, end := range map[string]func(b *bench, other *Nexus, task *Task, done func(TMFResponse)){
		"session lost": func(b *bench, _ *Nexus, _ *Task, done func(TMFResponse)) {
			b.nexus.Close(func() { done(FunctionComplete) })
		},
		"LUN RESET":       func(_ *bench, other *Nexus, _ *Task, done func(TMFResponse)) { other.Manage(LUNReset, 0, nil, done) },
		"I_T NEXUS RESET": func(b *bench, _ *Nexus, _ *Task, done func(TMFResponse)) { b.nexus.Manage(ITNexusReset, 0, nil, done) },
		"RELEASE": func(b *bench, _ *Nexus, task *Task, done func(TMFResponse)) {
			b.nexus.Manage(AbortTask, 0, task, done)
			if b.task(release6, nil, 0).Start() == Done {
				b.t.Error("RELEASE is answered while an aborted command is in the store")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, false, nil)
			other := b.client(2)
			if r := b.do(reserve6, nil, 0); r.status != Good {
				t.Fatalf("RESERVE: %+v", r)
			}
			// The WRITE is in the store when it is aborted, the answer to the other command has not left.
			answered := b.task(make([]byte, 6), nil, 0)
			if answered.Start() != Done {
				t.Fatal("TEST UNIT READY waits")
			}
			b.store.hold = func(op *backend.Op) bool { return op.Kind == backend.Write }
			task := b.task(rw10(0x2a, 0, 1), make([]byte, 512), 0)
			if task.Start() != Pull || task.Pulled() != Wait {
				t.Fatal("WRITE does not wait for the store")
			}
			over := false
			end(b, other, task, func(TMFResponse) { over = true })
			reserve := func() Status {
				for _, n := range []*Nexus{b.nexus, other} {
					n.lookup(0).ua.Store(0)
				}
				again := b.task(reserve6, nil, 0)
				again.Nexus = other
				return b.run(again, nil).status
			}
			if got := reserve(); got != ReservationConflict || over {
				t.Errorf("while the aborted WRITE is in the store: %#x to RESERVE by another, over %v", got, over)
			}
			b.wakeUps()
			if got := reserve(); got != ReservationConflict || over {
				t.Errorf("when its owner knows: %#x to RESERVE by another, over %v", got, over)
			}
			b.store.complete()
			b.wakeUps()
			if got := reserve(); got != Good || !over {
				t.Errorf("in the end: %#x to RESERVE by another, over %v", got, over)
			}
			answered.Release()
		})
	}
}

// What is lost with a reset is the RESERVE that stood when it came, not one that was done since.
func TestReserveAfterReset(t *testing.T) {
	reserve6 := []byte{0x16, 0, 0, 0, 0, 0}
	b := newBench(t, false, nil).parkedBench()
	other := b.client(2)
	if r := b.do(reserve6, nil, 0); r.status != Good {
		t.Fatalf("RESERVE: %+v", r)
	}
	task := b.parked(Simple)
	over := false
	other.Manage(LUNReset, 0, nil, func(TMFResponse) { over = true })
	b.nexus.lookup(0).ua.Store(0)
	if r := b.do(reserve6, nil, 0); r.status != Good || over {
		t.Fatalf("RESERVE once more: %+v, over %v", r, over)
	}
	b.store.complete()
	if task.Resume() != Aborted {
		t.Error("the reset does not abort")
	}
	task.Release()
	b.wakeUps()
	again := b.task(make([]byte, 6), nil, 0)
	again.Nexus = other
	other.lookup(0).ua.Store(0)
	if r := b.run(again, nil); r.status != ReservationConflict || !over {
		t.Errorf("a RESERVE that came after the reset is lost with it: %#x, over %v", r.status, over)
	}
}

// A READ that looked at reservations before PREEMPT AND ABORT, and reads after it, is refused: it would tell what was written meanwhile, which its
// initiator may not read. So it is with one that waits for memory or the store, and comes into the task set when it does.
func TestReadBesidePreemptAndAbort(t *testing.T) {
	for _, waits := range []bool{false, true} {
		b := newBench(t, false, nil)
		p := &prBench{bench: b, a: b.nexus, b: b.client(2), c: b.client(3)}
		p.must(p.a, proutRegister, 0, 0, 0xa)
		p.must(p.b, proutRegister, 0, 0, 0xb)
		p.must(p.a, proutReserve, exclusiveAccess, 0xa, 0)
		l := proutList(0xb, 0xa, 0)
		preempt := b.task(proutCDB(proutPreemptAndAbort, exclusiveAccess, 24), l, 0)
		preempt.Nexus = p.b
		b.store.hold = func(*backend.Op) bool {
			b.store.hold = nil
			if preempt.Start() != Pull {
				t.Error("PREEMPT AND ABORT has no parameters")
			}
			place(preempt, l)
			if next := preempt.Pulled(); next != Done || preempt.Status != Good {
				t.Errorf("PREEMPT AND ABORT: %v, status %02x", next, preempt.Status)
			}
			return waits
		}
		read := b.task(rw10(0x28, 0, 1), nil, 512)
		if r := b.run(read, nil); r.status != ReservationConflict || len(r.in) != 0 {
			t.Errorf("waits %v: a READ of the preempted: status %02x, %d bytes", waits, r.status, len(r.in))
		}
		preempt.Release()
	}
}

// A READ that has ended within Start is in no task set. Where its answer is sent from the memory of the store it would tell what is written there
// after PREEMPT AND ABORT, which therefore waits for it; but not for the answers of what comes later.
func TestPreemptAndAbortAwaitsLentReads(t *testing.T) {
	for _, lends := range []bool{true, false} {
		b := newBench(t, lends, nil)
		p := &prBench{bench: b, a: b.nexus, b: b.client(2)}
		p.must(p.a, proutRegister, 0, 0, 0xa)
		p.must(p.b, proutRegister, 0, 0, 0xb)
		p.must(p.a, proutReserve, exclusiveAccess, 0xa, 0)
		read := func() *Task {
			task := b.task(rw10(0x28, 0, 1), nil, 512)
			if next := task.Start(); next != Done {
				t.Fatal(next)
			}
			return task
		}
		before := read()
		l := proutList(0xb, 0xa, 0)
		preempt := b.task(proutCDB(proutPreemptAndAbort, exclusiveAccess, 24), l, 0)
		preempt.Nexus = p.b
		if next := preempt.Start(); next != Pull {
			t.Fatal(next)
		}
		place(preempt, l)
		next := preempt.Pulled()
		if (next == Wait) != lends {
			t.Errorf("lends %v: %v while the answer of a READ is on its way", lends, next)
		}
		after := read()
		before.Release()
		if next == Wait {
			b.awaitReady(preempt)
			next = preempt.Resume()
		}
		if next != Done || preempt.Status != Good {
			t.Errorf("lends %v: %v, status %02x", lends, next, preempt.Status)
		}
		if after.Status == Good {
			t.Error("a READ of the preempted that comes later is done")
		}
		after.Release()
		preempt.Release()
	}
}

// A session keeps its RESERVE when a view of the volume that it has no more is forgotten, for it has another one.
func TestReserveOutlastsFormerView(t *testing.T) {
	reserve6 := []byte{0x16, 0, 0, 0, 0, 0}
	b := newBench(t, false, nil)
	other := b.client(2)
	former := b.lu
	next, err := NewLogicalUnit(LUConfig{Volume: b.lu.v, Serial: "0002"})
	if err != nil {
		t.Fatal(err)
	}
	b.target.SetLU(0, next)
	for _, n := range []*Nexus{b.nexus, other} {
		n.lookup(0).ua.Store(0)
	}
	if r := b.do(reserve6, nil, 0); r.status != Good {
		t.Fatalf("RESERVE: %+v", r)
	}
	if err := former.Close(); err != nil {
		t.Fatal(err)
	}
	b.target.SetLU(1, next) // places of units that are closed are forgotten
	task := b.task(reserve6, nil, 0)
	task.Nexus = other
	other.lookup(0).ua.Store(0)
	if r := b.run(task, nil); r.status != ReservationConflict {
		t.Errorf("another reserves what is reserved: %#x", r.status)
	}
	b.target.SetLU(1, nil)
	b.nexus.Close(func() {})
	task = b.task(reserve6, nil, 0)
	task.Nexus = other
	other.lookup(0).ua.Store(0)
	if r := b.run(task, nil); r.status != Good {
		t.Errorf("when the session has ended: %#x", r.status)
	}
	b.lu = next
}

// A RESERVE that waits behind a change that is being kept, and is aborted, is undone: a reset that has aborted it leaves nothing reserved.
func TestAbortedReserveIsUndone(t *testing.T) {
	reserve6 := []byte{0x16, 0, 0, 0, 0, 0}
	kept, keep := make(chan struct{}), make(chan struct{})
	b := newBench(t, false, func(c *benchConfig, _ *fakeStore) { c.Keeper = keeperFunc(func() { kept <- struct{}{}; <-keep }) })
	other := b.client(2)
	set := make(chan error)
	go func() { set <- b.lu.v.Access().SetGroup(access.Group{ID: 9, State: access.Standby}) }()
	<-kept
	reserve := b.task(reserve6, nil, 0)
	if reserve.Start() != Wait {
		t.Fatal("RESERVE does not wait for the change before it")
	}
	over := make(chan struct{})
	other.Manage(LUNReset, 0, nil, func(TMFResponse) { close(over) })
	close(keep)
	if err := <-set; err != nil {
		t.Fatal(err)
	}
	for reserve.Resume() != Aborted {
		<-b.owner.ready
	}
	reserve.Release()
	<-over
	task := b.task(reserve6, nil, 0)
	task.Nexus = other
	other.lookup(0).ua.Store(0)
	if r := b.run(task, nil); r.status != Good {
		t.Errorf("after the reset the unit is reserved: %#x", r.status)
	}
}

// So is one of a session that had reserved before: aborted alone it leaves what was there, and with a reset nothing.
func TestAbortedReserveAgain(t *testing.T) {
	reserve6 := []byte{0x16, 0, 0, 0, 0, 0}
	for _, reset := range []bool{false, true} {
		for _, backwards := range []bool{false, true} {
			kept, keep := make(chan struct{}), make(chan struct{})
			b := newBench(t, false, func(c *benchConfig, _ *fakeStore) { c.Keeper = keeperFunc(func() { kept <- struct{}{}; <-keep }) })
			other := b.client(2)
			if r := b.do(reserve6, nil, 0); r.status != Good {
				t.Fatalf("RESERVE: %+v", r)
			}
			set := make(chan error)
			go func() { set <- b.lu.v.Access().SetGroup(access.Group{ID: 9, State: access.Standby}) }()
			<-kept
			again := []*Task{b.task(reserve6, nil, 0), b.task(reserve6, nil, 0)}
			for _, task := range again {
				if task.Start() != Wait {
					t.Fatal("RESERVE does not wait for the change before it")
				}
			}
			over := make(chan struct{}, 1)
			if reset {
				other.Manage(LUNReset, 0, nil, func(TMFResponse) { over <- struct{}{} })
			} else {
				b.nexus.Manage(AbortTaskSet, 0, nil, func(TMFResponse) { over <- struct{}{} })
			}
			close(keep)
			if err := <-set; err != nil {
				t.Fatal(err)
			}
			if backwards {
				slices.Reverse(again)
			}
			for _, task := range again {
				for task.Resume() != Aborted {
					<-b.owner.ready
				}
			}
			for _, task := range again {
				task.Release()
			}
			<-over
			task := b.task(reserve6, nil, 0)
			task.Nexus = other
			other.lookup(0).ua.Store(0)
			if r := b.run(task, nil); (r.status == Good) != reset {
				t.Errorf("reset %v, backwards %v: RESERVE by another: %#x", reset, backwards, r.status)
			}
		}
	}
}

// While a RESERVE stands nobody has persistent reservations, not even who has done it: else RELEASE would be refused to it.
func TestReserveKeepsPersistentReservationsAway(t *testing.T) {
	b := newPRBench(t, nil)
	if r := b.as(b.a, []byte{0x16, 0, 0, 0, 0, 0}, nil, 0); r.status != Good {
		t.Fatalf("RESERVE: %02x", r.status)
	}
	for _, op := range []byte{proutRegister, proutRegisterAndIgnore} {
		if v := b.out(b.a, op, 0, 0, 1, 0); v != conflicts {
			t.Errorf("PERSISTENT RESERVE OUT, %d: %#x", op, v)
		}
	}
	for action := range byte(4) {
		if r := b.as(b.a, []byte{0x5e, action, 0, 0, 0, 0, 0, 0, 64, 0}, nil, 64); r.status != ReservationConflict {
			t.Errorf("PERSISTENT RESERVE IN, %d: %02x", action, r.status)
		}
	}
	if r := b.as(b.a, []byte{0x17, 0, 0, 0, 0, 0}, nil, 0); r.status != Good {
		t.Errorf("RELEASE: %02x", r.status)
	}
	b.must(b.a, proutRegister, 0, 0, 1)
}

// keeperFunc is a keeper that calls something, and keeps nothing.
type keeperFunc func()

func (keeperFunc) Load() ([]byte, error) { return nil, nil }
func (f keeperFunc) Save([]byte) error   { f(); return nil }
