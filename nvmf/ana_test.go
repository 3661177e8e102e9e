package nvmf

import (
	"encoding/binary"
	"fmt"
	"testing"

	"oneshot/nvme"
	"oneshot/volume/access"
)

// setGroup has the administrator set the access state of a group.
func (x *target) setGroup(group uint16, s access.GroupState) {
	x.t.Helper()
	if !x.v.Access().Do(&access.Change{Op: access.SetGroups, Groups: []access.Group{{ID: group, State: s}}}, nil) {
		x.t.Fatal("the change waits")
	}
}

// ana describes the ANA log: changes, and number, changes, state, namespaces of each group.
func (p *party) ana(lsp uint32) string {
	p.io.x.t.Helper()
	const n = 128
	c := nvme.Command{Opcode: nvme.AdminGetLogPage, NSID: nvme.AllNamespaces, DWords: [6]uint32{uint32(nvme.LogANA) | lsp<<8 | (n/4-1)<<16}}
	b := p.admin.must(c, n, nil, false).data
	text := fmt.Sprint(binary.LittleEndian.Uint64(b))
	groups := binary.LittleEndian.Uint16(b[8:])
	b = b[16:]
	for range groups {
		spaces := binary.LittleEndian.Uint32(b[4:])
		text += fmt.Sprintf(", %d: %d %x", binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint64(b[8:]), b[16])
		for b = b[32:]; spaces > 0; spaces, b = spaces-1, b[4:] {
			text += fmt.Sprint(" ", binary.LittleEndian.Uint32(b))
		}
	}
	return text
}

// Access states are those of the group of the controller's portal. Commands end with path-related statuses, which hosts take
// elsewhere: they never say "do not retry". A controller is told if its own group changes.
func TestANA(t *testing.T) {
	x := newTarget(t, nil, false)
	one, two := x.party(1, 1), x.party(2, 1)
	for _, p := range []*party{one, two} {
		p.admin.must(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureAsyncEvents), nvme.OAESANA}}, 0, nil, false)
		p.admin.start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, 0, nil, false)
	}
	id := one.admin.must(nvme.Command{Opcode: nvme.AdminIdentify, DWords: [6]uint32{uint32(nvme.CNSController)}}, nvme.IdentifyLen, nil, false).data
	le := binary.LittleEndian
	if id[76]&8 == 0 || le.Uint32(id[92:])&(1<<11) == 0 || id[342] == 0 || id[343] != 0x5f || le.Uint32(id[344:]) != 1024 || le.Uint32(id[348:]) != 1024 || le.Uint32(id[540:]) != 1024 {
		t.Errorf("CMIC %#x, OAES %#x, ANA % x", id[76], id[92:96], id[342:352])
	}
	if ns := one.admin.must(nvme.Command{Opcode: nvme.AdminIdentify, NSID: 1}, nvme.IdentifyLen, nil, false).data; le.Uint32(ns[92:]) != 1 {
		t.Errorf("ANAGRPID % x", ns[92:96])
	}
	if got := one.ana(0); got != "0, 1: 0 1 1" {
		t.Error(got)
	}
	if got := one.ana(nvme.ANAGroupsOnly); got != "0, 1: 0 1" {
		t.Error(got)
	}
	feature := func(op nvme.Opcode, f nvme.FID) nvme.Command {
		return nvme.Command{Opcode: op, NSID: 1, DWords: [6]uint32{uint32(f)}}
	}
	changes := 0
	for _, s := range []struct {
		state access.GroupState
		ana   nvme.ANAState
		want  nvme.Status
	}{
		{access.ActiveNonOptimized, nvme.ANANonOptimized, nvme.Success},
		{access.Standby, nvme.ANAInaccessible, nvme.Inaccessible},
		{access.Unavailable, nvme.ANAInaccessible, nvme.Inaccessible},
		{access.Offline, nvme.ANAPersistentLoss, nvme.PersistentLoss},
		{access.Transitioning, nvme.ANAChange, nvme.PathInTransition},
		{access.ActiveOptimized, nvme.ANAOptimized, nvme.Success},
	} {
		x.setGroup(2, s.state)
		changes++
		if list := one.told(); len(list) != 0 {
			t.Errorf("%v: the other group is told %x", s.state, list)
		}
		if list := two.told(); fmt.Sprint(list) != fmt.Sprint([]uint32{nvme.EventANA}) {
			t.Errorf("%v: told %x", s.state, list)
		}
		if got, want := two.ana(0), fmt.Sprintf("%d, 1: %d %x 1", changes, changes, s.ana); got != want {
			t.Errorf("%v: %s, want %s", s.state, got, want)
		}
		if got := one.ana(0); got != "0, 1: 0 1 1" {
			t.Errorf("%v: the other group has %s", s.state, got)
		}
		for _, c := range []nvme.Command{rw(nvme.Read, 1), rw(nvme.Verify, 1), {Opcode: nvme.Flush, NSID: 1}, rw(nvme.WriteZeroes, 1)} {
			n := 0
			if c.Opcode == nvme.Read {
				n = 512
			}
			if a := two.io.do(c, n, nil, false); a.Status != s.want {
				t.Errorf("%v: command %#x: %v, want %v", s.state, c.Opcode, a.Status, s.want)
			}
			if a := one.io.do(c, n, nil, false); a.Status != nvme.Success {
				t.Errorf("%v: command %#x of the other group: %v", s.state, c.Opcode, a.Status)
			}
		}
		report := nvme.Command{Opcode: nvme.ReservationReport, NSID: 1, DWords: [6]uint32{15, 1}}
		if a := two.io.do(report, 64, nil, false); a.Status != s.want {
			t.Errorf("%v: a report: %v", s.state, a.Status)
		}
		for _, f := range []nvme.FID{nvme.FeatureErrorRecovery, nvme.FeatureNoticeMask, nvme.FeaturePersistence} {
			for _, op := range []nvme.Opcode{nvme.AdminGetFeatures, nvme.AdminSetFeatures} {
				if a := two.admin.do(feature(op, f), 0, nil, false); a.Status != s.want {
					t.Errorf("%v: command %#x, feature %#x: %v, want %v", s.state, op, f, a.Status, s.want)
				}
			}
			all := feature(nvme.AdminSetFeatures, f)
			all.NSID = nvme.AllNamespaces // one of which is not to be had (Base 2.0 §8.1.3)
			if a := two.admin.do(all, 0, nil, false); a.Status != s.want {
				t.Errorf("%v: feature %#x of all namespaces: %v, want %v", s.state, f, a.Status, s.want)
			}
		}
		if s.want != nvme.Success { // neither part of a pair says "do not retry"
			first, second := rw(nvme.Compare, 1), rw(nvme.Write, 1)
			first.Fuse, second.Fuse = nvme.FusedFirst, nvme.FusedSecond
			two.io.start(first, 512, fill(512, 0), true)
			two.io.start(second, 512, fill(512, 1), true)
			if got := two.io.take(); len(got) != 2 || got[0].Status != s.want || got[1].Status != nvme.FusedFailed {
				t.Errorf("%v: a pair: %v", s.state, got)
			}
		}
		two.admin.must(nvme.Command{Opcode: nvme.AdminIdentify, NSID: 1}, nvme.IdentifyLen, nil, false)
		two.admin.must(nvme.Command{Opcode: nvme.AdminGetFeatures, DWords: [6]uint32{uint32(nvme.FeatureQueues)}}, 0, nil, false)
	}
	x.setGroup(2, access.Standby)
	x.setGroup(2, access.ActiveOptimized)
	if list := two.told(); len(list) != 0 { // before anybody could hear of it, it was over
		t.Errorf("told %x", list)
	}
	// But a host that has read the log in between has heard of it.
	x.setGroup(2, access.Standby)
	if got, want := two.ana(0), fmt.Sprintf("%d, 1: %[1]d 3 1", changes); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	x.setGroup(2, access.ActiveOptimized)
	changes++
	if list := two.told(); len(list) != 1 || list[0] != nvme.EventANA {
		t.Errorf("that a state is over which the host has read of, it is told by %x", list)
	}
	if got, want := two.ana(0), fmt.Sprintf("%d, 1: %[1]d 1 1", changes); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	// Without the feature nothing is told, and a namespace that comes has the state that its group has by then.
	two.admin.must(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureAsyncEvents), 0}}, 0, nil, false)
	x.setGroup(2, access.Offline)
	if list := two.told(); len(list) != 0 {
		t.Errorf("told %x", list)
	}
	x.sub.SetNamespaces([]Shown{{NSID: 1}, {NSID: 7, Namespace: x.ns}})
	if got, want := two.ana(0), fmt.Sprintf("%d, 7: 0 4 7", changes+1); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	two.admin.identify(7)
	c := rw(nvme.Read, 1)
	c.NSID = 7
	if a := two.io.do(c, 512, nil, false); a.Status != nvme.PersistentLoss {
		t.Error(a.Status)
	}
	x.sub.SetNamespaces([]Shown{{NSID: 7}})
	if got, want := two.ana(0), fmt.Sprint(changes+1); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A portal for initiators of another node may be in a group with the number of a controller's. Its state is not the controller's: hosts would send commands
// where they are not served, or none where they are.
func TestGroupOfAnotherNode(t *testing.T) {
	x := newTarget(t, nil, false)
	p := x.party(2, 1)
	p.admin.must(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureAsyncEvents), nvme.OAESANA}}, 0, nil, false)
	p.admin.start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, 0, nil, false)
	for i, s := range []struct {
		here, there access.GroupState
		want        nvme.ANAState
	}{
		{access.Standby, access.ActiveOptimized, nvme.ANAInaccessible},
		{access.ActiveOptimized, access.Standby, nvme.ANAOptimized},
	} {
		x.v.Access().Serve(s.here, []access.Group{{ID: 2, State: s.there}})
		if list := p.told(); len(list) != 1 || list[0] != nvme.EventANA {
			t.Errorf("%v here, %v there: told %x", s.here, s.there, list)
		}
		if got, want := p.ana(0), fmt.Sprintf("%d, 1: %[1]d %x 1", i+1, s.want); got != want {
			t.Errorf("%v here, %v there: %s, want %s", s.here, s.there, got, want)
		}
	}
}

// All queues of a controller come through one group: access states are those of the controller.
func TestQueueThroughAnotherGroup(t *testing.T) {
	x := newTarget(t, nil, false)
	_, id := x.admin(0)
	h := x.dialThrough(2, 1)
	if a := h.connect(testHost, 1, id, 0); a.Status != nvme.ConnectInvalid || a.DW0 != nvme.InvalidParameter(true, nvme.OffCNTLID) {
		t.Errorf("%v %#x", a.Status, a.DW0)
	}
}

// A namespace that is taken away while a command runs in it is subscribed to until it is closed: the command can still be
// aborted. Afterwards nobody is left.
func TestTakenAwayIsAborted(t *testing.T) {
	x := newTarget(t, nil, false)
	a, b := x.party(1, 1), x.party(1, 2)
	for i, p := range []*party{a, b} {
		if s := p.reserve(resRegister, 0, 0, uint64(i+1)); s != nvme.Success {
			t.Fatal(s)
		}
	}
	other, err := NewNamespace(NamespaceConfig{Volume: x.v, UUID: [16]byte{8}})
	if err != nil {
		t.Fatal(err)
	}
	b.io.start(rw(nvme.Write, 1), 512, nil, false)
	x.sub.SetNamespaces([]Shown{{NSID: 1, Namespace: other}})
	a.admin.identify(1)
	if s := a.reserve(resAcquire, 1<<8|2, 1, 2); s != nvme.Success {
		t.Error(s)
	}
	if got := b.io.take(); len(got) != 1 || got[0].Status != nvme.AbortedByPreempt {
		t.Errorf("the command that was under way: %v", got)
	}
	x.sub.SetNamespaces([]Shown{{NSID: 1}})
	other.Close()
	if n := len(other.attached) + len(x.ns.attached); n != 2 { // x.ns is not closed yet
		t.Errorf("%d are left", n)
	}
	for _, p := range []*party{a, b} {
		p.io.lose()
		p.admin.lose()
	}
	if n := len(x.ns.attached); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// With the least memory that a configuration may give (config's minConnectionBytes) a transfer still holds what Linux takes the ANA log
// for: else it does without ANA, and without multipath.
func TestLeastTransferHoldsANALog(t *testing.T) {
	const least, head, group, namespace = 1 << 20, 16, 32, 4
	if n := mostLease(least, least); n < head+MaxNSID*(group+namespace) {
		t.Errorf("transfers have %d bytes", n)
	}
}

// A log that waits for memory has what changes meanwhile: reading it ends the event that would tell the host of that.
func TestLogWaitsForMemory(t *testing.T) {
	x := newTarget(t, nil, false)
	p := x.party(2, 1)
	p.admin.must(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureAsyncEvents), nvme.OAESANA | nvme.OAESNamespace}}, 0, nil, false)
	for range 3 {
		p.admin.start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, 0, nil, false)
	}
	x.setGroup(2, access.Standby)
	x.sub.changed([]uint32{1})
	if got := p.told(); len(got) != 2 {
		t.Fatalf("the host is told %x", got)
	}

	const n = 512
	logs := []nvme.LID{nvme.LogANA, nvme.LogChanged}
	feed := x.starve()
	for _, l := range logs {
		p.admin.start(nvme.Command{Opcode: nvme.AdminGetLogPage, NSID: nvme.AllNamespaces, DWords: [6]uint32{uint32(l) | (n/4-1)<<16}}, n, nil, false)
	}
	if got := p.admin.take(); len(got) != 0 {
		t.Fatalf("without memory: %v", got)
	}
	x.setGroup(2, access.ActiveOptimized)
	x.sub.changed([]uint32{2})
	x.tell()
	feed()
	got := p.admin.take()
	if len(got) != len(logs) {
		t.Fatalf("with memory: %v", got)
	}
	if state := nvme.ANAState(got[0].data[32]); state != nvme.ANAOptimized {
		t.Errorf("the log has the state %d, and nobody tells the host of a later one", state)
	}
	if first, second := binary.LittleEndian.Uint32(got[1].data), binary.LittleEndian.Uint32(got[1].data[4:]); first != 1 || second != 2 {
		t.Errorf("namespaces %d and %d have changed", first, second)
	}
}

// A namespace that comes in place of another one, at once or later, may be in another state than that one was. Linux knows the state by
// the number, from the log that it has read, and reads it again when it is told.
func TestStateOfAnother(t *testing.T) {
	x, y := newTarget(t, nil, false), newTarget(t, nil, false)
	t.Cleanup(func() { x.sub.SetNamespaces([]Shown{{NSID: 1}}) })
	p := x.party(2, 1)
	p.admin.must(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureAsyncEvents), nvme.OAESANA}}, 0, nil, false)
	p.admin.start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, 0, nil, false)
	x.setGroup(2, access.Standby)
	if got := p.told(); len(got) != 1 {
		t.Fatalf("told %x", got)
	}
	if got, want := p.ana(0), "1, 1: 1 3 1"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for i, s := range []struct {
		change []Shown
		log    string
	}{
		{[]Shown{{NSID: 1, Namespace: y.ns}}, "2, 1: 2 1 1"},
		{[]Shown{{NSID: 1, Namespace: x.ns}}, "3, 1: 3 3 1"},
		{[]Shown{{NSID: 1}}, ""},
		{[]Shown{{NSID: 1, Namespace: y.ns}}, "4, 1: 4 1 1"},
		{[]Shown{{NSID: 1}}, ""},
		{[]Shown{{NSID: 1, Namespace: y.ns}}, ""},
	} {
		x.sub.SetNamespaces(s.change)
		if s.change[0].Namespace != x.ns {
			x.v.Access().Serve(access.Unavailable, nil) // of a namespace that is taken away, hosts hear nothing
			x.v.Access().Serve(access.ActiveOptimized, nil)
		}
		if got := p.told(); (len(got) == 1 && got[0] == nvme.EventANA) != (s.log != "") {
			t.Errorf("change %d: told %x", i, got)
		}
		if got := p.ana(0); s.log != "" && got != s.log {
			t.Errorf("change %d: %s, want %s", i, got, s.log)
		}
	}
}

// The log that a host reads after its authentication has what has changed since Connect; that it changes back is told.
func TestStateBeforeAuthentication(t *testing.T) {
	x := newTarget(t, nil, false)
	r := x.guarded(false)
	h := x.dialThrough(2, 1)
	h.connect(testHost, 0, nvme.DynamicController, 0)
	x.setGroup(2, access.Standby)
	x.tell()
	if err := h.authenticate(r); err != nil {
		t.Fatal(err)
	}
	h.setCC(enabled)
	h.must(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureAsyncEvents), nvme.OAESANA}}, 0, nil, false)
	h.start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, 0, nil, false)
	p := &party{admin: h, io: h}
	if got, want := p.ana(0), "0, 1: 0 3 1"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	x.setGroup(2, access.ActiveOptimized)
	if got := p.told(); len(got) != 1 || got[0] != nvme.EventANA {
		t.Errorf("told %x", got)
	}
}
