package nvmf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"oneshot/backend"
	"oneshot/nvme"
	"oneshot/volume"
	"oneshot/volume/access"
)

// party is a controller of a host, with an I/O queue.
type party struct {
	admin, io *host
}

func (x *target) party(group uint16, id byte) *party {
	x.t.Helper()
	admin, cntlid := x.adminThrough(group, id, 0)
	io := x.dialThrough(group, id)
	if a := io.connect(testHost, 1, cntlid, 0); a.Status != nvme.Success {
		x.t.Fatal(a.Status)
	}
	return &party{admin, io}
}

// reserve is a command about reservations: dword 10, and keys.
func reserve(op nvme.Opcode, dw10 uint32, keys ...uint64) (nvme.Command, []byte) {
	var b []byte
	for _, k := range keys {
		b = binary.LittleEndian.AppendUint64(b, k)
	}
	return nvme.Command{Opcode: op, NSID: 1, DWords: [6]uint32{dw10}}, b
}

// reserve does it.
func (p *party) reserve(op nvme.Opcode, dw10 uint32, keys ...uint64) nvme.Status {
	p.io.x.t.Helper()
	c, b := reserve(op, dw10, keys...)
	return p.io.do(c, len(b), b, true).Status
}

// report describes an extended report: generation, type, and key and first byte of each registrant, the holder with an asterisk.
func (p *party) report() string {
	p.io.x.t.Helper()
	const n = 64 + 10*64
	b := p.io.must(nvme.Command{Opcode: nvme.ReservationReport, NSID: 1, DWords: [6]uint32{n/4 - 1, nvme.ExtendedReport}}, n, nil, false).data
	text := fmt.Sprintf("%d %d", binary.LittleEndian.Uint32(b), b[4])
	for i := range int(binary.LittleEndian.Uint16(b[5:])) {
		r := b[64+64*i:]
		if binary.LittleEndian.Uint16(r) != 0xffff {
			p.io.x.t.Errorf("registrant %d: % x", i, r[:32])
		}
		text += fmt.Sprintf(" %d:%d", binary.LittleEndian.Uint64(r[8:]), r[16]) + strings.Repeat("*", int(r[2]))
	}
	return text
}

const (
	resRegister = nvme.ReservationRegister
	resAcquire  = nvme.ReservationAcquire
	resRelease  = nvme.ReservationRelease
	ignoreKey   = 8
	persistent  = 3 << 30
)

// A host registers, acquires, preempts and releases as Base 2.0 §8.19 says. The first lines are those of blktests' nvme/054. b has two controllers,
// which are one host.
func TestReservations(t *testing.T) {
	x := newTarget(t, nil, false)
	a, b, b2 := x.party(1, 1), x.party(1, 2), x.party(2, 2)
	const conflict, invalid = nvme.ReservationConflict | nvme.DNR, nvme.InvalidField | nvme.DNR
	for i, s := range []struct {
		by   *party
		op   nvme.Opcode
		dw10 uint32
		keys []uint64
		want nvme.Status
		now  string
	}{
		{a, resRegister, 0, []uint64{0, 4}, 0, "1 0 4:1"},
		{a, resRegister, 2, []uint64{4, 5}, 0, "2 0 5:1"},
		{a, resRegister, 1, []uint64{5, 0}, 0, "3 0"},
		{a, resRegister, 0, []uint64{0, 4}, 0, "4 0 4:1"},
		{a, resAcquire, 1 << 8, []uint64{4, 0}, 0, "4 1 4:1*"},
		{a, resAcquire, 2<<8 | 1, []uint64{4, 0}, 0, "5 2 4:1*"},
		{a, resRelease, 2 << 8, []uint64{4}, 0, "5 0 4:1"},
		{a, resRegister, 0, []uint64{0, 4}, 0, "6 0 4:1"},

		{a, resRegister, 0, []uint64{4, 5}, conflict, "6 0 4:1"}, // Replace does that
		{a, resRegister, 0, []uint64{0, 0}, invalid, "6 0 4:1"},
		{a, resRegister, ignoreKey, []uint64{9, 5}, 0, "7 0 5:1"},
		{a, resRegister, 2, []uint64{4, 6}, conflict, "7 0 5:1"},
		{a, resRegister, 2 | ignoreKey, []uint64{4, 6}, 0, "8 0 6:1"},
		{b, resRegister, 1, []uint64{0, 0}, conflict, "8 0 6:1"},
		{b, resRegister, 2 | ignoreKey, []uint64{0, 7}, conflict, "8 0 6:1"},
		{b, resAcquire, 1 << 8, []uint64{7, 0}, conflict, "8 0 6:1"},
		{b, resRegister, ignoreKey, []uint64{0, 7}, 0, "9 0 6:1 7:2"},
		{b2, resRegister, 0, []uint64{0, 7}, 0, "10 0 6:1 7:2"}, // as b
		{b2, resAcquire, 3 << 8, []uint64{7, 0}, 0, "10 3 6:1 7:2*"},
		{b, resAcquire, 3 << 8, []uint64{7, 0}, 0, "10 3 6:1 7:2*"},
		{b, resAcquire, 4 << 8, []uint64{7, 0}, conflict, "10 3 6:1 7:2*"},
		{a, resAcquire, 3 << 8, []uint64{6, 0}, conflict, "10 3 6:1 7:2*"},
		{a, resAcquire, 3 << 8, []uint64{7, 0}, conflict, "10 3 6:1 7:2*"},
		{a, resRelease, 4 << 8, []uint64{6}, 0, "10 3 6:1 7:2*"}, // it holds nothing
		{b, resRelease, 4 << 8, []uint64{7}, invalid, "10 3 6:1 7:2*"},
		{b, resRelease, 3 << 8, []uint64{6}, conflict, "10 3 6:1 7:2*"},
		{a, resAcquire, 3<<8 | 1, []uint64{6, 0}, invalid, "10 3 6:1 7:2*"},
		{a, resAcquire, 3<<8 | 1, []uint64{6, 8}, conflict, "10 3 6:1 7:2*"},
		{a, resAcquire, 5<<8 | 1, []uint64{6, 7}, 0, "11 5 6:1*"},
		{b, resRegister, 0, []uint64{0, 7}, 0, "12 5 6:1* 7:2*"},
		{a, resRegister, 1, []uint64{6, 0}, 0, "13 5 7:2*"}, // all hold it, to the last
		{a, resRegister, 0, []uint64{0, 6}, 0, "14 5 7:2* 6:1*"},
		{b, resAcquire, 6<<8 | 1, []uint64{7, 0}, 0, "15 6 7:2*"},
		{a, resRegister, 0, []uint64{0, 6}, 0, "16 6 7:2* 6:1*"},
		{a, resRelease, 1, []uint64{7}, conflict, "16 6 7:2* 6:1*"},
		{a, resRelease, 1, []uint64{6}, 0, "17 0"},

		// What cannot be is refused before keys are looked at.
		{a, resRegister, 3, []uint64{0, 6}, invalid, "17 0"},
		{a, resRegister, 1 << 30, []uint64{0, 6}, invalid, "17 0"},
		{a, resRegister, persistent, []uint64{0, 6}, invalid, "17 0"}, // there is no state directory
		{a, resAcquire, 3, []uint64{0, 6}, invalid, "17 0"},
		{a, resAcquire, 0, []uint64{0, 6}, invalid, "17 0"},
		{a, resAcquire, 7 << 8, []uint64{0, 6}, invalid, "17 0"},
		{a, resAcquire, 1<<8 | ignoreKey, []uint64{0, 6}, invalid, "17 0"},
		{a, resRelease, 2, []uint64{0}, invalid, "17 0"},
		{a, resRelease, 0, []uint64{0}, invalid, "17 0"},
		{a, resRelease, 1<<8 | ignoreKey, []uint64{0}, invalid, "17 0"},
		{a, resRegister, 0, []uint64{0}, nvme.DataSGLLength | nvme.DNR, "17 0"},
		{a, resAcquire, 1 << 8, nil, nvme.DataSGLLength | nvme.DNR, "17 0"},
		{a, resRelease, 1 << 8, nil, nvme.DataSGLLength | nvme.DNR, "17 0"},
		{a, resRelease, 1, []uint64{6, 6}, conflict, "17 0"}, // Linux sends more than it needs to
	} {
		if got := s.by.reserve(s.op, s.dw10, s.keys...); got != s.want {
			t.Errorf("line %d: %v, want %v", i, got, s.want)
		}
		if got := a.report(); got != s.now {
			t.Fatalf("line %d: %s, want %s", i, got, s.now)
		}
	}
}

// A change on which the nodes of a mirror do not agree at present is not the host's mistake, and may be tried again.
func TestNobodyAgrees(t *testing.T) {
	x := newTarget(t, nil, false)
	x.v.Access().Share(nobody{})
	c, keys := reserve(resRegister, 0, 0, 1)
	if a := x.party(1, 1).io.await(c, len(keys), keys); a.Status != nvme.PathInTransition {
		t.Errorf("a change on which nobody agrees now ends with %v", a.Status)
	}
	if a := x.party(1, 1).io.await(resReport, reportLen, nil); a.Status != nvme.PathInTransition {
		t.Errorf("a report of which nobody knows whether it is so ends with %v", a.Status)
	}
}

// reportLen is the length of a report of one registrant.
const reportLen = 2 * nvme.RegistrantLen

var resReport = nvme.Command{Opcode: nvme.ReservationReport, NSID: 1, DWords: [6]uint32{reportLen/4 - 1, nvme.ExtendedReport}}

// A report is of what the nodes of a mirror have agreed on: this one may not have heard of it yet, or serve no more.
func TestReportIsAgreed(t *testing.T) {
	x := newTarget(t, nil, false)
	s := access.Nothing()
	s.Persist, s.Generation, s.Registrations = true, 7, []access.Registration{{Holder: access.Holder{Initiator: access.Host([16]byte{5})}, Key: 9}}
	x.v.Access().Share(agreed{s})
	p := x.party(1, 1)
	a := p.io.await(resReport, reportLen, nil)
	if a.Status != nvme.Success || len(a.data) != reportLen || a.data[0] != 7 || a.data[64+8] != 9 || a.data[64+16] != 5 {
		t.Errorf("%v, % x", a.Status, a.data)
	}
	get := nvme.Command{Opcode: nvme.AdminGetFeatures, NSID: 1, DWords: [6]uint32{uint32(nvme.FeaturePersistence)}}
	if a := p.admin.await(get, 0, nil); a.Status != nvme.Success || a.DW0 != 1 {
		t.Errorf("persistence: %v, %d", a.Status, a.DW0)
	}
}

// agreed is an agreement on a state.
type agreed struct{ s access.State }

func (agreed) Change(func(*access.Common, bool) (bool, bool)) error {
	return errors.New("it changes nothing")
}
func (a agreed) Look() (access.State, error) { return a.s, nil }

// nobody is an agreement that cannot be reached.
type nobody struct{}

func (nobody) Change(func(*access.Common, bool) (bool, bool)) error {
	return errors.New("nobody is there")
}

func (nobody) Look() (access.State, error) { return access.State{}, errors.New("nobody is there") }

// single is the agreement of a node that has no others: it does one change after the other, when it may, and what it aborts has ended then.
type single struct {
	table *access.Table
	n     access.Common
	may   chan struct{}
}

func (s *single) Change(change func(*access.Common, bool) (bool, bool)) error {
	<-s.may
	if changes, _ := change(&s.n, false); !changes {
		return nil
	}
	abort := s.table.Adopt(&s.n, true)
	if abort == nil {
		return nil
	}
	over := false
	abort(func() { over = true })
	if !over { // no store has anything
		return errors.New("what is aborted does not end")
	}
	return nil
}

func (s *single) Look() (access.State, error) { return s.n.State, nil }

// Two hosts of a mirror fence each other at the same time. The change of the loser waits for that of the winner, and is aborted by it: the winner does not
// wait for the loser's.
func TestFenceEachOther(t *testing.T) {
	x := newTarget(t, later(t), false)
	s := &single{table: x.v.Access(), n: access.Common{State: access.Nothing()}, may: make(chan struct{}, 4)}
	s.table.Share(s)
	a, b := x.party(1, 1), x.party(1, 2)
	for i, p := range []*party{a, b} {
		s.may <- struct{}{}
		c, keys := reserve(resRegister, 0, 0, uint64(i+1))
		if got := p.io.await(c, len(keys), keys); got.Status != nvme.Success {
			t.Fatal(got.Status)
		}
	}
	fence := func(p *party, own, other uint64) {
		c, keys := reserve(resAcquire, 1<<8|nvme.PreemptAndAbort, own, other)
		p.io.start(c, len(keys), keys, true)
	}
	lost := b.io.answersAfter(1, func() {
		won := a.io.answersAfter(1, func() {
			fence(a, 1, 2)
			fence(b, 2, 1)
			s.may <- struct{}{}
			s.may <- struct{}{}
		})
		if won[0].Status != nvme.Success {
			t.Errorf("the first one: %v", won[0].Status)
		}
	})
	if lost[0].Status != nvme.AbortedByPreempt {
		t.Errorf("the second one: %v", lost[0].Status)
	}
}

// What a reservation keeps whom from (Base 2.0 figure 414): it is as in SPC-4, for those are one table.
func TestReservationConflicts(t *testing.T) {
	x := newTarget(t, nil, false)
	holder, registrant, other := x.party(1, 1), x.party(1, 2), x.party(1, 3)
	copyOut := fill(512, 0)
	fused := rw(nvme.Compare, 1)
	fused.Fuse = nvme.FusedFirst
	commands := []struct {
		nvme.Command
		out    []byte
		n      int
		writes bool
	}{
		{rw(nvme.Read, 1), nil, 512, false},
		{rw(nvme.Compare, 1), copyOut, 512, false},
		{rw(nvme.Verify, 1), nil, 0, false},
		{rw(nvme.Write, 1), copyOut, 512, true},
		{rw(nvme.WriteZeroes, 1), nil, 0, true},
		{nvme.Command{Opcode: nvme.Flush, NSID: 1}, nil, 0, true},
		{nvme.Command{Opcode: nvme.DSM, NSID: 1, DWords: [6]uint32{0, 4}}, make([]byte, 16), 16, true},
		{fused, copyOut, 512, true},
	}
	try := func(p *party, reads, writes bool, kind uint32, who string) {
		t.Helper()
		for _, c := range commands {
			cid := p.io.start(c.Command, c.n, c.out, c.out != nil)
			if c.Fuse != nvme.NotFused {
				second := rw(nvme.Write, 1)
				second.Fuse = nvme.FusedSecond
				p.io.start(second, 512, copyOut, true)
			}
			got := p.io.take()
			want := nvme.Success
			if c.writes && !writes || !c.writes && !reads {
				want = nvme.ReservationConflict | nvme.DNR
			}
			if got[0].CID != cid || got[0].Status != want {
				t.Errorf("type %d, %s, command %#x: %v, want %v", kind, who, c.Opcode, got[0].Status, want)
			}
		}
	}
	for kind := uint32(1); kind <= 6; kind++ {
		for i, p := range []*party{holder, registrant} {
			if s := p.reserve(resRegister, 0, 0, uint64(i+1)); s != nvme.Success {
				t.Fatal(s)
			}
		}
		if s := holder.reserve(resAcquire, kind<<8, 1, 0); s != nvme.Success {
			t.Fatal(s)
		}
		exclusive := kind == 2 || kind == 4 || kind == 6
		try(holder, true, true, kind, "the holder")
		try(registrant, kind > 2 || !exclusive, kind > 2, kind, "a registrant")
		try(other, !exclusive, false, kind, "somebody else")
		if s := other.reserve(resRelease, 1, 1); s != nvme.ReservationConflict|nvme.DNR {
			t.Errorf("type %d: somebody else clears it: %v", kind, s)
		}
		if s := registrant.reserve(resRelease, 1, 2); s != nvme.Success {
			t.Fatal(s)
		}
	}
	try(other, true, true, 0, "everybody")
}

// notice is the log of notifications.
func (h *host) notice(retain bool) string {
	h.x.t.Helper()
	c := nvme.Command{Opcode: nvme.AdminGetLogPage, NSID: nvme.AllNamespaces, DWords: [6]uint32{uint32(nvme.LogReservation) | 15<<16}}
	if retain {
		c.DWords[0] |= 0x8000
	}
	b := h.must(c, nvme.NoticeLen, nil, false).data
	return fmt.Sprint(binary.LittleEndian.Uint64(b), b[8], b[9], binary.LittleEndian.Uint32(b[12:]))
}

// told returns the events that a controller has answered requests with, and asks for more.
func (p *party) told() (list []uint32) {
	p.io.x.t.Helper()
	p.io.x.tell()
	for _, a := range p.admin.take() {
		list = append(list, a.DW0)
		p.admin.start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, 0, nil, false)
	}
	return list
}

// A namespace that goes to another number has no more notices by the former one, which is another namespace's now.
func TestNoticesOfMovedNamespace(t *testing.T) {
	x := newTarget(t, nil, false)
	a, b := x.party(1, 1), x.party(1, 2)
	for i, p := range []*party{a, b} {
		if s := p.reserve(resRegister, 0, 0, uint64(i+1)); s != nvme.Success {
			t.Fatal(s)
		}
	}
	x.sub.SetNamespaces([]Shown{{NSID: 1}, {NSID: 2, Namespace: x.ns}})
	t.Cleanup(func() { x.sub.SetNamespaces([]Shown{{NSID: 2}}) })
	a.admin.identify(2)
	c, keys := reserve(resAcquire, 1<<8|nvme.Preempt, 1, 2)
	c.NSID = 2
	a.io.must(c, len(keys), keys, true)
	x.tell()
	if first, second := b.admin.notice(false), b.admin.notice(false); first != "1 1 0 2" || second != "0 0 0 0" {
		t.Errorf("the host reads %s, then %s", first, second)
	}
}

// Who loses something by what somebody else does hears of it on all controllers, unless the host has masked that; who does it
// hears nothing on any.
func TestReservationNotices(t *testing.T) {
	x := newTarget(t, nil, false)
	a, a2, b, b2, other := x.party(1, 1), x.party(1, 1), x.party(1, 2), x.party(2, 2), x.party(1, 3)
	all := []*party{a, a2, b, b2, other}
	for _, p := range all {
		p.admin.start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, 0, nil, false)
	}
	do := func(p *party, op nvme.Opcode, dw10 uint32, keys ...uint64) {
		t.Helper()
		if s := p.reserve(op, dw10, keys...); s != nvme.Success {
			t.Fatal(s)
		}
	}
	// told wants the notice of one kind for hosts; the count is that of the controller.
	counts := make(map[*party]int)
	told := func(kind int, hosts ...*party) {
		t.Helper()
		for _, p := range all {
			var want []uint32
			page := "0 0 0 0"
			if slices.Contains(hosts, p) {
				counts[p]++
				want, page = []uint32{nvme.EventReservation}, fmt.Sprint(counts[p], kind, 0, 1)
			}
			if got := p.told(); !slices.Equal(got, want) {
				t.Errorf("kind %d, host %d: events %x, want %x", kind, p.io.id, got, want)
			}
			if got := p.admin.notice(true) + ", " + p.admin.notice(false); got != page+", "+page {
				t.Errorf("kind %d, host %d: log %s, want %s", kind, p.io.id, got, page)
			}
		}
	}
	do(a, resRegister, 0, 0, 1)
	do(b, resRegister, 0, 0, 2)
	do(a, resAcquire, 3<<8, 1, 0)
	told(0)
	do(a, resRelease, 3<<8, 1)
	told(2, b, b2)
	do(a, resAcquire, 1<<8, 1, 0)
	do(a, resRelease, 1<<8, 1) // nobody had access by it
	told(0)
	do(b, resAcquire, 1<<8|1, 2, 1)
	told(1, a, a2)
	do(a, resRegister, 0, 0, 1)
	do(b, resRelease, 1, 2)
	told(3, a, a2)

	mask := func(p *party, nsid, v uint32) nvme.Status {
		return p.admin.do(nvme.Command{Opcode: nvme.AdminSetFeatures, NSID: nsid, DWords: [6]uint32{uint32(nvme.FeatureNoticeMask), v}}, 0, nil, false).Status
	}
	get := func(p *party, nsid uint32) answer {
		return p.admin.do(nvme.Command{Opcode: nvme.AdminGetFeatures, NSID: nsid, DWords: [6]uint32{uint32(nvme.FeatureNoticeMask)}}, 0, nil, false)
	}
	const all3, preempted = nvme.AllNotices, 1 << nvme.ReservationPreempted
	if s := mask(a2, 1, all3&^preempted); s != nvme.Success {
		t.Error(s)
	}
	if got := get(a, 1); got.DW0 != all3&^preempted || get(b, 1).DW0 != 0 {
		t.Errorf("masks %#x and %#x", got.DW0, get(b, 1).DW0)
	}
	do(a, resRegister, 0, 0, 1)
	do(b, resRegister, 0, 0, 2)
	do(b, resAcquire, 1<<8|1, 2, 1)
	told(0)
	do(a, resRegister, 0, 0, 1)
	do(b, resRelease, 1, 2)
	told(3, a, a2)
	for _, c := range []struct{ got, want nvme.Status }{
		{mask(a, 1, 1), nvme.InvalidField},
		{mask(a, 2, all3), nvme.InvalidNamespace},
		{mask(a, 0, all3), nvme.InvalidNamespace},
		{get(a, nvme.AllNamespaces).Status, nvme.InvalidField},
		{mask(a, nvme.AllNamespaces, all3), nvme.Success},
	} {
		if c.got.Code() != c.want {
			t.Errorf("%v, want %v", c.got, c.want)
		}
	}
	if got := get(a2, 1).DW0; got != all3 {
		t.Errorf("mask %#x", got)
	}
	// The mask is the host's, and goes with its last controller.
	a.admin.lose()
	a.io.lose()
	if again := x.party(1, 1); get(again, 1).DW0 != all3 {
		t.Error("a new controller of the host has another mask")
	} else {
		a2.admin.lose()
		a2.io.lose()
		again.admin.lose()
		again.io.lose()
	}
	if got := get(x.party(1, 1), 1).DW0; got != 0 {
		t.Errorf("the mask of a host without controllers stays: %#x", got)
	}

	// What nobody reads is counted, and not kept for ever.
	for range maxNotices + 2 {
		do(b, resRegister, 0, 0, 2)
		do(other, resRegister, 0, 0, 3)
		do(other, resRelease, 1, 3)
		x.tell()
	}
	b.admin.take() // events
	for i := range maxNotices {
		if got, want := b.admin.notice(false), fmt.Sprint(counts[b]+i+1, 3, maxNotices-1-i, 1); got != want {
			t.Fatalf("notice %s, want %s", got, want)
		}
	}
	do(b, resRegister, 0, 0, 2)
	do(other, resRegister, 0, 0, 3)
	do(other, resRelease, 1, 3)
	x.tell()
	b.admin.take()
	if got, want := b.admin.notice(false), fmt.Sprint(counts[b]+maxNotices+3, 3, 0, 1); got != want {
		t.Errorf("notice %s, want %s: lost ones show as a gap", got, want)
	}
}

// A host that is dead answers no RDMA Reads, which is noticed late. Who preempts it does not wait for that: the command does nothing any more.
func TestPreemptBesideReads(t *testing.T) {
	for _, store := range []backend.Store{later(t), nil} { // the second lends its memory
		preemptBesideReads(t, newTarget(t, store, false))
	}
}

func preemptBesideReads(t *testing.T, x *target) {
	a, b := x.party(1, 1), x.party(1, 2)
	for i, p := range []*party{a, b} {
		if s := p.reserve(resRegister, 0, 0, uint64(i+1)); s != nvme.Success {
			t.Fatal(s)
		}
	}
	b.io.reads, b.io.copies = true, true
	cid := b.io.start(rw(nvme.Write, 1), 512, nil, false)
	task := b.io.late[cid]
	for range 2 { // by somebody else, too
		if s := a.reserve(resAcquire, 1<<8|2, 1, 2); s != nvme.Success {
			t.Errorf("%v", s)
		}
		if s := b.reserve(resRegister, 0, 0, 2); s != nvme.Success {
			t.Fatal(s)
		}
	}
	if got := b.io.take(); len(got) != 0 {
		t.Errorf("the command is answered while bytes are placed: %v", got)
	}
	b.io.reads = false
	b.io.q.Lock()
	b.io.q.Forgotten(task)
	b.io.q.Unlock()
	if got := b.io.take(); len(got) != 1 || got[0].CID != cid || got[0].Status != nvme.AbortedByPreempt {
		t.Errorf("in the end: %v", got)
	}
}

// Preempt and Abort ends the commands of the host that loses, which get an answer, and no others. It is answered when they have ended.
func TestPreemptAndAbort(t *testing.T) {
	x := newTarget(t, nil, false)
	a, b, b2, c := x.party(1, 1), x.party(1, 2), x.party(2, 2), x.party(1, 3)
	for i, p := range []*party{a, b, c} {
		if s := p.reserve(resRegister, 0, 0, uint64(i+1)); s != nvme.Success {
			t.Fatal(s)
		}
	}
	if s := b.reserve(resAcquire, 3<<8, 2, 0); s != nvme.Success {
		t.Fatal(s)
	}
	var cids []uint16
	for _, p := range []*party{b, b2, c} {
		cids = append(cids, p.io.start(rw(nvme.Write, 1), 512, nil, false)) // its data are to come
	}
	if s := a.reserve(resAcquire, 1<<8|1, 1, 2); s != nvme.Success {
		t.Fatal(s)
	}
	if n := len(b.io.take()) + len(b2.io.take()) + len(c.io.take()); n != 0 {
		t.Errorf("Preempt has ended %d commands", n)
	}
	if s := b.reserve(resRegister, 0, 0, 2); s != nvme.Success {
		t.Fatal(s)
	}
	if s := a.reserve(resAcquire, 1<<8|2, 1, 2); s != nvme.Success {
		t.Fatal(s)
	}
	for i, p := range []*party{b, b2} {
		got := p.io.take()
		if len(got) != 1 || got[0].CID != cids[i] || got[0].Status != nvme.AbortedByPreempt || len(p.io.late) != 0 {
			t.Errorf("the loser has %v", got)
		}
	}
	late := c.io.late[cids[2]]
	if got := c.io.take(); len(got) != 0 || late == nil {
		t.Fatalf("somebody else has %v", got)
	}
	if s := b.io.do(rw(nvme.Write, 1), 512, fill(512, 1), true).Status; s != nvme.ReservationConflict|nvme.DNR {
		t.Errorf("the loser writes: %v", s)
	}
	c.io.q.Lock()
	c.io.q.GotData(late)
	c.io.q.Unlock()
	if got := c.io.take(); len(got) != 1 || got[0].Status != nvme.Success {
		t.Errorf("a command that began before the reservation: %v", got)
	}
}

// A report has as much as fits. Of somebody who is no host, what stands for a host identifier is the same each time.
func TestReservationReport(t *testing.T) {
	x := newTarget(t, nil, false)
	p := x.party(1, 0x77)
	p.reserve(resRegister, 0, 0, 0x0102030405060708)
	port := &portOfSCSI{}
	x.v.Access().Subscribe(port)
	defer x.v.Access().Unsubscribe(port)
	x.v.Access().Do(&access.Change{Op: access.Register, By: port, NewKey: 9, Ports: []access.PortOf{{Port: port.Holder().Port, Relative: 3}}}, nil)
	x.v.Access().Do(&access.Change{Op: access.Reserve, By: port, Key: 9, Kind: access.ExclusiveAccessRegistrants}, nil)
	report := func(n, room uint32, eds uint32) answer {
		return p.io.do(nvme.Command{Opcode: nvme.ReservationReport, NSID: 1, DWords: [6]uint32{n/4 - 1, eds}}, int(room), nil, false)
	}
	whole := report(64+3*64, 64+3*64, 1)
	if got, want := fmt.Sprintf("%x", whole.data[:64+32]), "02000000"+"04"+"0200"+strings.Repeat("0", 2*57)+"ffff000000000000"+"0807060504030201"+"77"+strings.Repeat("0", 30); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := fmt.Sprintf("%x", whole.data[128:160]), "ffff010000000000"+"0900000000000000"+"f53ca21d"; !strings.HasPrefix(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
	if string(whole.data[192:]) != string(make([]byte, 64)) {
		t.Error("there is something behind the last registrant")
	}
	for _, n := range []uint32{64, 68, 128, 164, 4096} {
		got := report(n, n, 1)
		if want := append(slices.Clone(whole.data), make([]byte, 4096)...)[:n]; got.Status != nvme.Success || string(got.data) != string(want) {
			t.Errorf("%d bytes: %v, % x", n, got.Status, got.data)
		}
	}
	for _, c := range []struct {
		n, room, eds uint32
		want         nvme.Status
	}{
		{128, 128, 0, nvme.HostIDFormat},
		{60, 60, 1, nvme.InvalidField},
		{4, 4, 1, nvme.InvalidField},
		{128, 64, 1, nvme.DataSGLLength},
		{0, 64, 1, nvme.InvalidField}, // 16 GiB
	} {
		if got := report(c.n, c.room, c.eds); got.Status != c.want|nvme.DNR {
			t.Errorf("%+v: %v", c, got.Status)
		}
	}
}

// portOfSCSI is an initiator port.
type portOfSCSI struct{}

func (*portOfSCSI) Holder() access.Holder {
	return access.Holder{Initiator: access.Initiator{Protocol: access.ISCSI, Name: "iqn.2026-11.example:i", Port: "400000000001"}, Port: access.Port{Target: "iqn.2026-11.example:t", Group: 3}}
}
func (p *portOfSCSI) Session() any          { return p }
func (*portOfSCSI) Deny(_, _ access.Denial) {}
func (*portOfSCSI) Tell(access.Event)       {}
func (*portOfSCSI) Abort(done func())       { done() }

// keeper keeps a state, or fails.
type keeper struct {
	state []byte
	fails bool
}

func (k *keeper) Load() ([]byte, error) { return k.state, nil }
func (k *keeper) Save(b []byte) error {
	if k.fails {
		return errors.New("the disk is full")
	}
	k.state = slices.Clone(b)
	return nil
}

// Reservations outlive a loss of power if hosts say so, in Register or by the feature, where there is a place to keep them. What
// cannot be kept does not happen. A table that is full says so.
func TestPersistence(t *testing.T) {
	k := new(keeper)
	x := newKeepingTarget(t, nil, false, k)
	p := x.party(1, 1)
	feature := func(p *party, v uint32) nvme.Status {
		return p.admin.await(nvme.Command{Opcode: nvme.AdminSetFeatures, NSID: 1, DWords: [6]uint32{uint32(nvme.FeaturePersistence), v}}, 0, nil).Status
	}
	persists := func(p *party) uint32 {
		return p.admin.must(nvme.Command{Opcode: nvme.AdminGetFeatures, NSID: 1, DWords: [6]uint32{uint32(nvme.FeaturePersistence)}}, 0, nil, false).DW0
	}
	register := func(p *party, dw10 uint32, current, key uint64) nvme.Status {
		c, b := reserve(resRegister, dw10, current, key)
		return p.io.await(c, len(b), b).Status
	}
	kept := func() bool { return strings.Contains(string(k.state), `"Key":5`) }
	const offRESCAP = 31
	if b := p.admin.must(nvme.Command{Opcode: nvme.AdminIdentify, NSID: 1}, nvme.IdentifyLen, nil, false).data; b[offRESCAP] != 0xff {
		t.Errorf("RESCAP is %#x", b[offRESCAP])
	}
	for i, s := range []struct {
		status nvme.Status
		kept   bool
		on     uint32
	}{
		{register(p, 0, 0, 5), kept(), persists(p)},
		{feature(p, 1), kept(), persists(p)},
		{register(p, 0, 0, 5), kept(), persists(p)},
		{register(p, 2<<30, 0, 5), kept(), persists(p)},
		{register(p, persistent, 0, 5), kept(), persists(p)},
		{feature(p, 0), kept(), persists(p)},
	} {
		want := i > 0 && i != 3 && i != 5
		if s.status != nvme.Success || s.kept != want || (s.on == 1) != want {
			t.Errorf("line %d: %+v", i, s)
		}
	}
	k.fails = true
	if s := register(p, persistent|2, 5, 6); s != nvme.InternalError || p.report() != "4 0 5:1" {
		t.Errorf("what cannot be kept: %v, %s", s, p.report())
	}
	k.fails = false
	for _, v := range []uint32{2, 3} {
		if s := feature(p, v); s != nvme.InvalidField|nvme.DNR {
			t.Errorf("a feature of %d: %v", v, s)
		}
	}

	// Without a place to keep anything.
	x = newTarget(t, nil, false)
	p = x.party(1, 1)
	if b := p.admin.must(nvme.Command{Opcode: nvme.AdminIdentify, NSID: 1}, nvme.IdentifyLen, nil, false).data; b[offRESCAP] != 0xfe {
		t.Errorf("RESCAP is %#x", b[offRESCAP])
	}
	if s := feature(p, 1); s != nvme.InvalidField|nvme.DNR || persists(p) != 0 {
		t.Errorf("the feature without a state directory: %v", s)
	}

	// As many as there may be are there.
	many := make([]string, access.MaxRegistrations)
	for i := range many {
		many[i] = fmt.Sprintf(`{"Initiator":{"Protocol":16,"Name":"%032x","Port":""},"Port":{"Target":"","Group":0},"Relative":0,"Key":1}`, i+1)
	}
	k = &keeper{state: []byte(`{"Format":2,"Access":{"Persist":true,"Holder":-1,"Registrations":[` + strings.Join(many, ",") + `]}}`)}
	x = newKeepingTarget(t, nil, false, k)
	p = x.party(1, 0xee)
	if s := register(p, 0, 0, 5); s != nvme.InternalError|nvme.DNR {
		t.Errorf("one more registrant than there may be: %v", s)
	}
	if s := register(p, persistent, 0, 5); s != nvme.InternalError|nvme.DNR {
		t.Errorf("one more registrant than there may be: %v", s)
	}
}

// Persistence of all namespaces is that of each. If one cannot keep it, the host is told.
func TestPersistenceOfAll(t *testing.T) {
	k, other := new(keeper), new(keeper)
	x, y := newKeepingTarget(t, nil, false, k), newKeepingTarget(t, nil, false, other)
	x.sub.SetNamespaces([]Shown{{NSID: 5, Namespace: y.ns}})
	t.Cleanup(func() { x.sub.SetNamespaces([]Shown{{NSID: 5}}) })
	p := x.party(1, 1)
	set := func(v uint32) nvme.Status {
		return p.admin.await(nvme.Command{Opcode: nvme.AdminSetFeatures, NSID: nvme.AllNamespaces, DWords: [6]uint32{uint32(nvme.FeaturePersistence), v}}, 0, nil).Status
	}
	persist := func() string { return fmt.Sprint(x.v.Access().State().Persist, y.v.Access().State().Persist) }
	if s := set(1); s != nvme.Success || persist() != "true true" {
		t.Errorf("%v: %s", s, persist())
	}
	k.fails = true
	if s := set(0); s != nvme.InternalError || persist() != "true true" {
		t.Errorf("the first cannot keep it: %v, %s", s, persist())
	}
	k.fails, other.fails = false, true
	if s := set(0); s != nvme.InternalError || persist() != "false true" {
		t.Errorf("one cannot keep it: %v, %s", s, persist())
	}
}

// Who registers has an identifier: without one there is no controller.
func TestNoHostIdentifier(t *testing.T) {
	x := newTarget(t, nil, false)
	if a := x.dialThrough(1, 0).connect(testHost, 0, nvme.DynamicController, 0); a.Status != nvme.ConnectInvalid|nvme.DNR || a.DW0 != nvme.InvalidParameter(true, nvme.OffHostID) {
		t.Errorf("%v %#x", a.Status, a.DW0)
	}
}

// slowKeeper saves when it is told to.
type slowKeeper struct {
	keeper
	begun, goOn chan struct{}
}

func (k *slowKeeper) Save(b []byte) error {
	k.begun <- struct{}{}
	<-k.goOn
	return k.keeper.Save(b)
}

// A namespace is not closed before Set Features has kept what it is to: the volume may be opened anew afterwards, and what it keeps then
// would be written over.
func TestFeatureHoldsNamespace(t *testing.T) {
	for _, nsid := range []uint32{1, nvme.AllNamespaces} {
		k := &slowKeeper{begun: make(chan struct{}), goOn: make(chan struct{})}
		x := newKeepingTarget(t, nil, false, k)
		h, _ := x.admin(0)
		for len(h.heard) > 0 {
			<-h.heard
		}
		h.start(nvme.Command{Opcode: nvme.AdminSetFeatures, NSID: nsid, DWords: [6]uint32{uint32(nvme.FeaturePersistence), 1}}, 0, nil, false)
		<-k.begun
		x.sub.SetNamespaces([]Shown{{NSID: 1}})
		x.Quiesce()
		if x.ns.Idle() {
			t.Errorf("namespace %#x may be closed while a change of it is being kept", nsid)
		}
		over := make(chan struct{})
		x.ns.Drain(func() { close(over) })
		k.goOn <- struct{}{}
		<-over
		<-h.heard
		h.q.Lock()
		got := h.take()
		h.q.Unlock()
		if len(got) == 0 || got[len(got)-1].Status != nvme.Success {
			t.Errorf("namespace %#x: %v", nsid, got)
		}
	}
}

// Answers that are sent from the store's own memory would tell what is written there next: PREEMPT AND ABORT is over when those that were on
// their way have left, or never will. Of other stores they are not waited for.
func TestPreemptWaitsForLentReads(t *testing.T) {
	for _, lends := range []bool{true, false} {
		for _, lost := range []bool{true, false} {
			var store backend.Store
			if !lends {
				store = later(t)
			}
			x := newTarget(t, store, false)
			a, b := x.party(1, 1), x.party(1, 2)
			for i, p := range []*party{a, b} {
				if s := p.reserve(resRegister, 0, 0, uint64(i+1)); s != nvme.Success {
					t.Fatal(s)
				}
			}
			b.io.deaf = true
			for range 2 {
				b.io.await(rw(nvme.Read, 1), 512, nil)
			}
			c, keys := reserve(resAcquire, uint32(nvme.PreemptAndAbort)|uint32(nvme.ExclusiveAccess)<<8, 1, 2)
			a.io.start(c, len(keys), keys, true)
			if got := a.io.take(); len(got) != 0 == lends {
				t.Errorf("lends %v: %+v while answers to the preempted are on their way", lends, got)
			}
			if b.io.start(rw(nvme.Read, 1), 512, nil, false); len(b.io.kept) != 3 { // refused, and not waited for
				t.Fatal(b.io.kept)
			}
			if lost {
				b.io.q.Lock()
				b.io.q.Lost(nil)
				for _, x := range b.io.kept {
					b.io.q.AnswerLost(x)
				}
				b.io.q.Unlock()
			} else {
				for i, x := range b.io.kept {
					if got := a.io.take(); lends && len(got) != 0 != (i == 2) {
						t.Errorf("%+v when %d of the answers have left", got, i)
					}
					b.io.q.Lock()
					b.io.q.Sent(x)
					b.io.q.Unlock()
				}
			}
			if got := a.io.take(); lends && lost && (len(got) != 1 || got[0].Status != nvme.Success) {
				t.Errorf("%+v", got)
			}
			b.io.kept, b.io.deaf = nil, false
		}
	}
}

// Answers of other namespaces are nobody's concern, and neither are those without data.
func TestPreemptWaitsForNoOtherAnswers(t *testing.T) {
	x, y := newTarget(t, nil, false), newTarget(t, nil, false)
	x.sub.SetNamespaces([]Shown{{NSID: 2, Namespace: y.ns}})
	t.Cleanup(func() { x.sub.SetNamespaces([]Shown{{NSID: 2}}) })
	a, b := x.party(1, 1), x.party(1, 2)
	for i, p := range []*party{a, b} {
		if s := p.reserve(resRegister, 0, 0, uint64(i+1)); s != nvme.Success {
			t.Fatal(s)
		}
	}
	b.io.deaf = true
	b.io.await(rw(nvme.Write, 1), 512, fill(512, 1))
	other := rw(nvme.Read, 1)
	other.NSID = 2
	b.io.await(other, 512, nil)
	if s := a.reserve(resAcquire, uint32(nvme.PreemptAndAbort)|uint32(nvme.ExclusiveAccess)<<8, 1, 2); s != nvme.Success {
		t.Error(s)
	}
	b.io.q.Lock()
	for _, k := range b.io.kept {
		b.io.q.Sent(k)
	}
	b.io.q.Unlock()
}

// The keys of a command come late, when its host may have given it up, and have done something else since by another path: nothing is done.
func TestLateKeysChangeNothing(t *testing.T) {
	for _, late := range []bool{false, true} {
		x := newTarget(t, nil, false)
		p := x.party(1, 1)
		c, keys := reserve(resRegister, 0, 0, 4)
		task := p.io.late[p.io.start(c, len(keys), nil, false)]
		x.pass(volume.OverdueTicks)
		if late {
			x.pass(1)
		}
		p.io.q.Lock()
		copy(task.Out[0], keys)
		p.io.q.GotData(task)
		p.io.q.Unlock()
		want, registered := nvme.Success, 1
		if late {
			want, registered = nvme.InternalError, 0
		}
		if got := p.io.take(); len(got) != 1 || got[0].Status != want {
			t.Errorf("late %v: %v", late, got)
		}
		if n := strings.Count(p.report(), ":"); n != registered {
			t.Errorf("late %v: %d hosts are registered", late, n)
		}
	}
}
