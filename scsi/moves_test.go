package scsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"testing"

	"oneshot/backend"
	"oneshot/volume/access"
)

// movingStore is one of several that show the same bytes. While its term is 0 another one serves them.
type movingStore struct {
	*fakeStore
	term uint64
	next uint64 // unless it is 0, the term after the next read: others have served the bytes meanwhile
}

func (s *movingStore) Term() uint64 { return s.term }

func (s *movingStore) Submit(op *backend.Op) bool {
	if s.term == 0 || op.Term != 0 && op.Term != s.term {
		op.Err = &backend.MovedError{Name: "the test's"}
		return true
	}
	done := s.fakeStore.Submit(op)
	if op.Kind == backend.Read && s.next != 0 {
		s.term, s.next = s.next, 0
	}
	return done
}

func newMovingBench(t *testing.T) (*bench, *movingStore) {
	moving := &movingStore{term: 5}
	b := newBench(t, false, func(c *benchConfig, s *fakeStore) {
		moving.fakeStore = s
		c.Store, c.TPGS = moving, ALUAImplicit
	})
	return b, moving
}

const codeTransition = 0x2040a

// TestServedElsewhere: what another process serves ends with an access state in transition, and not as an error of the
// medium.
func TestServedElsewhere(t *testing.T) {
	b, store := newMovingBench(t)
	store.term = 0
	for _, cdb := range [][]byte{{0x28, 8: 1, 9: 0}, {0x2a, 8: 1, 9: 0}, {0x35, 9: 0}, {0x89, 13: 1, 15: 0}, {0x8b, 13: 1, 15: 0}} {
		out := make([]byte, 1024)
		if cdb[0] == 0x28 || cdb[0] == 0x35 {
			out = nil
		} else if cdb[0] != 0x89 {
			out = out[:512]
		}
		if r := b.do(cdb, out, 512); r.code() != codeTransition {
			t.Errorf("opcode %#x: %v, code %#x", cdb[0], r.status, r.code())
		}
	}
}

// TestReadThenWriteInOneTerm: a command that reads and then writes what follows from it does not write when others may
// have written in between.
func TestReadThenWriteInOneTerm(t *testing.T) {
	for name, cdb := range map[string][]byte{"COMPARE AND WRITE": {0x89, 13: 1, 15: 0}, "ORWRITE": {0x8b, 13: 1, 15: 0}} {
		b, store := newMovingBench(t)
		out := append(make([]byte, 512), bytes.Repeat([]byte{0xff}, 512)...)
		if cdb[0] == 0x8b {
			out = out[512:]
		}
		store.next = 7
		if r := b.do(cdb, out, 0); r.code() != codeTransition || store.data[0] != 0 {
			t.Errorf("%s over a change of the term: %v, code %#x, wrote %#x", name, r.status, r.code(), store.data[0])
		}
		if r := b.do(cdb, out, 0); r.status != Good || store.data[0] != 0xff {
			t.Errorf("%s in one term: %v, code %#x", name, r.status, r.code())
		}
	}
}

// TestWriteOfATermThatIsOver: a WRITE whose data come when this process serves the bytes, which it did not when the WRITE came, or
// in a former term, is not done: meanwhile its initiator may have been fenced.
func TestWriteOfATermThatIsOver(t *testing.T) {
	for _, former := range []uint64{0, 5} {
		b, store := newMovingBench(t)
		data := bytes.Repeat([]byte{0xff}, 512)
		task := b.task([]byte{0x2a, 8: 1, 9: 0}, data, 0)
		store.term = former
		next := task.Start()
		if next != Pull {
			t.Fatal(next)
		}
		store.term = 7
		if r := b.finish(task, next, data); r.code() != codeTransition || store.data[0] != 0 {
			t.Errorf("from term %d: %v, code %#x, wrote %#x", former, r.status, r.code(), store.data[0])
		}
	}
}

// TestCopyInOneTerm: a copy does not write in a later term than that in which it began: others may have done it then, and written
// its destination again. It may be sent again unless it has overwritten what it reads.
func TestCopyInOneTerm(t *testing.T) {
	for _, c := range []struct {
		to   uint64
		want int
	}{{100, codeTransition}, {12, 0xa0d01}} {
		b, store := newMovingBench(t)
		copy(store.data, pattern(1, len(store.data)))
		was := bytes.Clone(store.data)
		list := copyParameters(1, 0, [][]byte{identify(b.lu)}, [][]byte{blockSegment(0, 0, 4, 10, c.to)})
		store.next = 7
		if r := b.do(thirdPartyCDB(0x83, 0, 0, len(list)), list, 0); r.code() != c.want || !bytes.Equal(store.data, was) {
			t.Errorf("to block %d, over a change of the term: %v, code %#x", c.to, r.status, r.code())
		}
		copy(was[c.to*512:], was[10*512:14*512])
		if r := b.do(thirdPartyCDB(0x83, 0, 0, len(list)), list, 0); r.status != Good || !bytes.Equal(store.data, was) {
			t.Errorf("to block %d, in one term: %v, code %#x", c.to, r.status, r.code())
		}
	}
}

// TestTokenOfOneTerm: what others may have written in between no token stands for.
func TestTokenOfOneTerm(t *testing.T) {
	b, store := newMovingBench(t)
	copy(store.data, pattern(1, len(store.data)))
	was := bytes.Clone(store.data)
	token := func() []byte {
		list := rangeList(16, [2]uint64{10, 4})
		if r := b.do(thirdPartyCDB(0x83, 0x10, 1, len(list)), list, 0); r.status != Good {
			t.Fatalf("POPULATE TOKEN: %v, code %#x", r.status, r.code())
		}
		r := b.do(thirdPartyCDB(0x84, 7, 1, 1024), nil, 1024)
		return bytes.Clone(r.in[38:][:rodTokenLen])
	}
	use := func(token []byte) int {
		list := useList(token, 0, 0, [2]uint64{100, 4})
		return b.do(thirdPartyCDB(0x83, 0x11, 2, len(list)), list, 0).code()
	}
	old := token()
	store.term = 7
	if code := use(old); code != 0x52306 || !bytes.Equal(store.data, was) {
		t.Errorf("a token of a former term: %#x", code)
	}
	now := token()
	store.next = 9
	if code := use(now); code != 0x52306 || !bytes.Equal(store.data, was) {
		t.Errorf("a token whose term ends under the copy: %#x", code)
	}
	copy(was[100*512:], was[10*512:14*512])
	if code := use(token()); code != 0 || !bytes.Equal(store.data, was) {
		t.Errorf("a token of this term: %#x", code)
	}
}

// agreement is what others agree to, unless err is set, and what the node keeps to that serves the volume: this one.
type agreement struct {
	table  *access.Table
	common access.Common
	err    error
	before func() // if set, called before a change takes its turn
}

// agreed has a bench's reservations agreed on.
func agreed(b *bench) *agreement {
	a := &agreement{table: b.lu.v.Access(), common: access.Common{State: access.Nothing()}}
	a.table.Share(a)
	return a
}

func (a *agreement) Look() (access.State, error) { return a.common.State, a.err }

func (a *agreement) Change(change func(*access.Common, bool) (bool, bool)) error {
	if a.before != nil {
		a.before()
	}
	n := a.common
	if a.err != nil {
		return a.err
	}
	if isNew, _ := change(&n, false); !isNew {
		return nil
	}
	a.common = n
	if abort := a.table.Adopt(&n, true); abort != nil {
		over := make(chan struct{})
		abort(func() { close(over) })
		<-over
	}
	return nil
}

// TestReservationsAgreed: the tests of persistent reservations hold where the nodes that show a unit agree on them.
func TestReservationsAgreed(t *testing.T) {
	prAgreed = true
	defer func() { prAgreed = false }()
	t.Run("access", TestReservationAccess)
	t.Run("register", TestRegister)
	t.Run("ends", TestReservationEnds)
	t.Run("TransportIDs", TestTransportIDs)
	t.Run("short TransportIDs", TestTransportIDsAreShort)
	t.Run("full status", TestFullStatusIsCut)
}

// TestAgreedReservations: a unit that moves has persistent reservations if others agree to them. While nobody does, the
// commands end with BUSY.
func TestAgreedReservations(t *testing.T) {
	b, _ := newMovingBench(t)
	a := agreed(b)
	register := make([]byte, 24)
	register[15] = 7
	out, in := []byte{0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0}, []byte{0x5e, 0, 0, 0, 0, 0, 0, 0, 255, 0}
	if r := b.doAsync(out, register); r.status != Good {
		t.Fatalf("%v %#x", r.status, r.code())
	}
	look := func() (r result) {
		task := b.task(in, nil, 255)
		for next := task.Start(); next != Done; next = task.Resume() {
			for <-b.owner.ready != task {
			}
		}
		r.status = task.Status
		for _, seg := range task.In {
			r.in = append(r.in, seg...)
		}
		task.Release()
		return r
	}
	if r := look(); r.status != Good || len(r.in) != 16 || r.in[3] != 1 || r.in[15] != 7 {
		t.Errorf("%v % x", r.status, r.in)
	}
	a.err = errors.New("no majority")
	if r := b.doAsync(out, register); r.status != Busy {
		t.Errorf("%v %#x", r.status, r.code())
	}
	if r := look(); r.status != Busy {
		t.Errorf("%v %#x", r.status, r.code())
	}
	for i := range rows {
		if row := &rows[i]; strings.HasPrefix(row.Name, "PERSISTENT") && !b.lu.has(row) {
			t.Errorf("%s is not reported", row.Name)
		}
	}
}

// TestFenceEachOther: two initiators of a mirror fence each other at the same time. The change of the loser waits for that of the winner, and is aborted by
// it: the winner does not wait for the loser's.
func TestFenceEachOther(t *testing.T) {
	b, _ := newMovingBench(t)
	a := agreed(b)
	p := &prBench{bench: b, a: b.nexus, b: b.client(2)}
	p.must(p.a, proutRegister, 0, 0, 1)
	p.must(p.b, proutRegister, 0, 0, 2)
	both := make(chan struct{})
	a.before = func() { <-both }
	fence := func(n *Nexus, own, other uint64) *Task {
		list := proutList(own, other, 0)
		task := b.task(proutCDB(byte(access.PreemptAndAbort), writeExclusive, len(list)), list, 0)
		task.Nexus = n
		if next := task.Start(); next == Pull {
			place(task, list)
			task.Pulled()
		}
		return task
	}
	won, lost := fence(p.a, 1, 2), fence(p.b, 2, 1)
	close(both)
	ends := make(map[*Task]Next)
	for len(ends) < 2 {
		task := <-b.owner.ready
		if next := task.Resume(); next != Wait && (task == won || task == lost) {
			ends[task] = next
		}
	}
	if ends[won] != Done || won.Status != Good || ends[lost] != Aborted {
		t.Errorf("the first one: %v, %v; the second one: %v", ends[won], won.Status, ends[lost])
	}
	won.Release()
	lost.Release()
}

// selectControl is a MODE SELECT(10) of the Control page, with D_SENSE and SWP.
func selectControl(dSense, swp byte) (cdb, list []byte) {
	list = make([]byte, 8+12)
	list[8], list[9], list[10], list[11], list[12] = controlPageCode, 0x0a, dSense<<2, 0x10, swp<<3
	return []byte{0x55, 0x10, 7: 0, 8: byte(len(list)), 9: 0}, list
}

// TestModesAgreed: a unit that moves has mode parameters if others agree to them; they hold for whatever serves it, others are told, and a
// reset has them be what they were, or is rejected while nobody agrees.
func TestModesAgreed(t *testing.T) {
	b, _ := newMovingBench(t)
	a := agreed(b)
	if r := b.do([]byte{0x1a, 8, 0x40 | controlPageCode, 0, 0xff, 0}, nil, 256); len(r.in) < 9 || r.in[4+2] != 4 || r.in[4+4] != 8 {
		t.Errorf("changeable: % x", r.in)
	}
	cdb, list := selectControl(1, 1)
	if r := b.doAsync(cdb, list); r.status != Good {
		t.Fatalf("%v %#x", r.status, r.code())
	}
	write := func() result { return b.do([]byte{0x2a, 8: 1, 9: 0}, make([]byte, 512), 0) }
	if r := write(); r.status != CheckCondition || len(r.sense) == 0 || r.sense[0] != 0x72 || r.code() != 0x72700 {
		t.Errorf("a WRITE to what is protected: %v % x", r.status, r.sense)
	}
	if r := b.do([]byte{0x1a, 8, controlPageCode, 0, 0xff, 0}, nil, 256); len(r.in) < 9 || r.in[2]&0x80 == 0 || r.in[4+2] != 4 || r.in[4+4] != 8 {
		t.Errorf("current: % x", r.in)
	}
	n := a.common // another node changes them
	n.Changes, n.State.Modes, n.By, n.Event = n.Changes+1, 0, access.Holder{}, access.ModesChanged
	a.common = n
	a.table.Adopt(&n, true)
	if r := write(); r.code() != 0x62a01 {
		t.Errorf("the change is told with %#x", r.code())
	}
	if r := write(); r.status != Good {
		t.Errorf("%v %#x", r.status, r.code())
	}
	b.doAsync(cdb, list)
	a.err = errors.New("no majority")
	cdb, list = selectControl(0, 0)
	if r := b.doAsync(cdb, list); r.status != Busy {
		t.Errorf("MODE SELECT while nobody agrees: %v %#x", r.status, r.code())
	}
	reset := func() TMFResponse {
		got := make(chan TMFResponse, 1)
		b.nexus.Manage(LUNReset, 0, nil, func(r TMFResponse) { got <- r })
		return <-got
	}
	if r := reset(); r != Rejected {
		t.Errorf("a reset while nobody agrees: %d", r)
	}
	write() // the unit attention
	if r := write(); r.code() != 0x72700 {
		t.Errorf("after a reset that was rejected: %v %#x", r.status, r.code())
	}
	a.err = nil
	if r := reset(); r != FunctionComplete || a.common.State.Modes != 0 {
		t.Errorf("a reset: %d, and the nodes have %#x", r, a.common.State.Modes)
	}
	for range 2 { // unit attentions
		write()
	}
	if r := write(); r.status != Good {
		t.Errorf("after a reset: %v %#x", r.status, r.code())
	}
}

// TestModeSelectOfOtherPage: a MODE SELECT that is not about the Control page leaves that as somebody else has changed it meanwhile.
func TestModeSelectOfOtherPage(t *testing.T) {
	b, _ := newMovingBench(t)
	a := agreed(b)
	a.before = sync.OnceFunc(func() { // another node protects the unit, at the latest now
		n := a.common
		n.Changes, n.State.Modes, n.By, n.Event = n.Changes+1, modeSWP, access.Holder{}, access.ModesChanged
		a.common = n
		a.table.Adopt(&n, true)
	})
	list := make([]byte, 8+12)
	list[8], list[9] = 0x1c, 0x0a
	cdb := []byte{0x55, 0x10, 7: 0, 8: byte(len(list)), 9: 0}
	if r := b.doAsync(cdb, list); r.status != Good {
		t.Fatalf("%v %#x", r.status, r.code())
	}
	a.before()
	if !b.lu.writeProtected() {
		t.Error("the protection is gone")
	}
}

// TestNoCommandsThatStay: a unit that moves refuses what would have to hold on other nodes, and tells of none of it.
func TestNoCommandsThatStay(t *testing.T) {
	b, _ := newMovingBench(t)
	gone := []string{"PERSISTENT RESERVE", "RESERVE(", "RELEASE(", "SANITIZE", "WRITE ATOMIC"}
	n := 0
	for i := range rows {
		row := &rows[i]
		for _, name := range gone {
			if !strings.HasPrefix(row.Name, name) {
				continue
			}
			n++
			cdb := []byte(row.Usage)
			clear(cdb[1:])
			if row.hasSA {
				cdb[1] = byte(row.sa)
			}
			if r := b.do(cdb, nil, 512); r.status != CheckCondition || r.code()>>16 != keyIllegalRequest || r.code()&0xff00 != 0x2000 && r.code()&0xff00 != 0x2400 {
				t.Errorf("%s: %v, code %#x", row.Name, r.status, r.code())
			}
			if b.lu.has(row) {
				t.Errorf("%s is reported", row.Name)
			}
		}
	}
	if n < 15 {
		t.Errorf("only %d commands", n)
	}
	if r := b.do([]byte{0x1a, 8, 0x40 | controlPageCode, 0, 0xff, 0}, nil, 256); len(r.in) < 9 || r.in[4+2]|r.in[4+4] != 0 {
		t.Errorf("changeable: % x", r.in)
	}
}

// TestServes: the table says who serves, REPORT TARGET PORT GROUPS tells of all nodes, and commands are refused as the
// state of the node's ports asks.
func TestServes(t *testing.T) {
	b, _ := newMovingBench(t)
	b.target.SetPorts([]uint16{1, 2})
	other := []access.Group{{ID: 2, State: access.ActiveOptimized}}
	b.lu.v.Access().Serve(access.Standby, other)
	groups := func() (states [2]byte) {
		r := b.do([]byte{0xa3, 0x0a, 9: 255, 11: 0}, nil, 255)
		for at := 4; at < len(r.in); at += 8 + 4*int(r.in[at+7]) {
			states[binary.BigEndian.Uint16(r.in[at+2:])-1] = r.in[at] & 0x0f
		}
		return states
	}
	read := func() int { return b.do([]byte{0x28, 8: 1, 9: 0}, nil, 512).code() }
	if code := read(); code != 0x62a06 {
		t.Errorf("the change is told with %#x", code)
	}
	if code := read(); code != 0x2040b {
		t.Errorf("a READ in standby: %#x", code)
	}
	if s := groups(); s != [2]byte{2, 0} {
		t.Errorf("groups are in the states %v", s)
	}
	b.lu.v.Access().Serve(access.Standby, other)
	if code := read(); code != 0x2040b {
		t.Errorf("nothing has changed, and is told with %#x", code)
	}
	other[0].State = access.Standby
	b.lu.v.Access().Serve(access.Transitioning, other)
	if s := groups(); s != [2]byte{} {
		t.Errorf("a unit attention tells of the change; groups are in the states %v", s)
	}
	if s := groups(); s != [2]byte{0x0f, 2} {
		t.Errorf("groups are in the states %v", s)
	}
	if code := read(); code != codeTransition {
		t.Errorf("a READ in transition: %#x", code)
	}
	b.lu.v.Access().Serve(access.ActiveOptimized, other)
	if code := read(); code != 0x62a06 {
		t.Errorf("the change is told with %#x", code)
	}
	if code := read(); code != 0 {
		t.Errorf("a READ of who serves: %#x", code)
	}
	if s := groups(); s != [2]byte{0, 2} {
		t.Errorf("groups are in the states %v", s)
	}
}

// wholeStore keeps atomic writes whole itself.
type wholeStore struct {
	*movingStore
	atomic int // writes that were to be
	most   int64
}

func (s *wholeStore) MaxAtomic() int64 { return s.most }

func (s *wholeStore) Submit(op *backend.Op) bool {
	if op.Flags&backend.Atomic != 0 {
		s.atomic++
		op.Flags &^= backend.Atomic
	}
	return s.movingStore.Submit(op)
}

// TestAtomicByStore: where the store sees to it WRITE ATOMIC is one write of it, of at most as many bytes as the store can take.
func TestAtomicByStore(t *testing.T) {
	store := &wholeStore{movingStore: &movingStore{term: 5}, most: 4 << 10}
	b := newBench(t, false, func(c *benchConfig, s *fakeStore) {
		store.fakeStore = s
		c.Store, c.TPGS = store, ALUAImplicit
	})
	data := bytes.Repeat([]byte{7}, 8*512)
	if r := b.do([]byte{0x9c, 0, 9: 3, 13: 8, 15: 0}, data, 0); r.status != Good || store.atomic != 1 {
		t.Errorf("%v, code %#x, %d atomic writes", r.status, r.code(), store.atomic)
	}
	if r := b.do([]byte{0x28, 5: 3, 8: 8, 9: 0}, nil, 8*512); !bytes.Equal(r.in, data) {
		t.Errorf("%v: not what was written", r.status)
	}
	if r := b.do([]byte{0x2a, 5: 3, 8: 1, 9: 0}, data[:512], 0); r.status != Good || store.atomic != 1 {
		t.Errorf("an ordinary write: %v, %d atomic writes", r.status, store.atomic)
	}
	if r := b.do([]byte{0x9c, 0, 9: 3, 13: 9, 15: 0}, bytes.Repeat([]byte{7}, 9*512), 0); r.code() != 0x52400 {
		t.Errorf("more than the store can take: %v, code %#x", r.status, r.code())
	}
	if r := b.do([]byte{0x12, 1, 0xb0, 1, 0, 0}, nil, 256); len(r.in) < 48 || binary.BigEndian.Uint32(r.in[44:]) != 8 {
		t.Errorf("MAXIMUM ATOMIC TRANSFER LENGTH: % x", r.in)
	}
}
