package scsi

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"oneshot/volume/access"
)

// aluaBench is a bench whose logical unit is reached through a second target, too, in group 2.
type aluaBench struct {
	*prBench
	other *Target
	d     *Nexus // of other
}

func newALUABench(t *testing.T, tpgs TPGS) *aluaBench {
	t.Helper()
	b := &aluaBench{prBench: newPRBench(t, func(c *benchConfig, _ *fakeStore) { c.TPGS, c.Removable = tpgs, true })}
	b.other = NewTarget(TargetConfig{Name: "iqn.2026-11.example.oneshot:other", PortGroup: 2, RelativePort: 2})
	b.other.SetLU(5, b.lu)
	b.d = b.other.NewNexus(client("iqn.2026-11.example.clients:a", 0x400000000004))
	b.d.lookup(5 << 48).ua.Store(0)
	return b
}

// do4 runs a command through the other target.
func (b *aluaBench) do4(cdb, out []byte, in int) result {
	task := b.task(cdb, out, in)
	task.Nexus, task.LUN = b.d, 5<<48
	return b.run(task, out)
}

// Which commands run in a state: SPC-4 §5.15.2.4, with READ CAPACITY and the reports of commands
// in standby, which may run there and which hosts ask for at a scan. While a sanitize operation
// runs: SBC-3 §4.11. Without a medium: all that does not need one.
func TestCommandsPerCondition(t *testing.T) {
	always := []string{"REQUEST SENSE", "INQUIRY", "REPORT LUNS", "REPORT TARGET PORT GROUPS"}
	unavailable := append([]string{"SET TARGET PORT GROUPS"}, always...)
	describing := append([]string{"LOG SENSE", "REPORT SUPPORTED", "PERSISTENT RESERVE IN"}, unavailable...)
	standby := append([]string{"SEND DIAGNOSTIC", "MODE SENSE", "MODE SELECT", "PERSISTENT RESERVE OUT", "READ CAPACITY"}, describing...)
	noMedium := append([]string{
		"MODE SENSE", "MODE SELECT", "PERSISTENT RESERVE OUT", "RESERVE(", "RELEASE(", "START STOP", "PREVENT ALLOW", "RECEIVE",
	}, describing...)
	for _, c := range []struct {
		name  string
		deny  uint32
		sense int
		pass  []string
	}{
		{"transitioning", denyTransition, 0x2040a, always},
		{"another disk", denyOther | denyTransition, 0x52500, always[:3]},
		{"unavailable", denyUnavailable, 0x2040c, unavailable},
		{"offline", denyOffline, 0x20412, unavailable},
		{"standby", denyStandby, 0x2040b, standby},
		{"sanitizing", denySanitizing, 0x2041b, describing},
		{"sanitize failed", denySanitizeFailed, 0x33103, append([]string{"SANITIZE"}, describing...)},
		{"no medium", denyNoMedium, 0x23a00, noMedium},
	} {
		for _, row := range rows {
			named := func(prefix string) bool { return strings.HasPrefix(row.Name, prefix) }
			if passes := row.denied&c.deny == 0; passes != slices.ContainsFunc(c.pass, named) {
				t.Errorf("%s: %s passes: %v", c.name, row.Name, passes)
			}
		}
		b := newBench(t, true, nil)
		if s := b.lu.conditionOf(c.deny | denyReads); int(s.Key)<<16|int(s.Code) != c.sense {
			t.Errorf("%s: %+v", c.name, s)
		}
		b.nexus.lookup(0).denied.Store(c.deny)
		if r := b.do(rw10(0x28, 0, 1), nil, 512); r.code() != c.sense {
			t.Errorf("%s: READ ends with %05x", c.name, r.code())
		}
		if r := b.do([]byte{3, 0, 0, 0, 18, 0}, nil, 18); r.status != Good || int(r.in[2])<<16|int(r.in[12])<<8|int(r.in[13]) != c.sense {
			t.Errorf("%s: REQUEST SENSE returns % x", c.name, r.in)
		}
	}
}

func TestTargetPortGroups(t *testing.T) {
	b := newALUABench(t, ALUAImplicit|ALUAExplicit)
	report := func() string {
		r := b.do([]byte{0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}, nil, 256)
		return hexOf(r.in)
	}
	expect := func(what, want string) {
		t.Helper()
		if got := report(); got != hexOf(unhex(t, want)) {
			t.Errorf("%s: %s", what, got)
		}
	}
	expect("at first", `
		00 00 00 18
		00 cf 00 01  00 00 00 01  00 00 00 01   # group 1, active/optimized, by nobody, port 1
		00 cf 00 02  00 00 00 01  00 00 00 02   # group 2, port 2`)
	if r := b.do([]byte{0x12, 0, 0, 0, 36, 0}, nil, 36); r.in[5] != 0x38 || r.in[1] != 0x80 || r.in[0] != 0 {
		t.Errorf("INQUIRY % x", r.in)
	}

	// By the administrator.
	if err := b.setAccess(2, Standby, true); err != nil {
		t.Fatal(err)
	}
	for n := range b.target.nexuses {
		if ua := n.lookup(0).ua.Swap(0); ua != uaAccessState {
			t.Errorf("unit attentions %x", ua)
		}
	}
	if r := b.do4([]byte{0, 0, 0, 0, 0, 0}, nil, 0); r.code() != 0x62a06 {
		t.Errorf("after the change: %05x", r.code())
	}
	if r := b.do4([]byte{0, 0, 0, 0, 0, 0}, nil, 0); r.code() != 0x2040b {
		t.Errorf("TEST UNIT READY in standby: %05x", r.code())
	}
	if r := b.do4(rw10(0x2a, 0, 1), make([]byte, 512), 0); r.code() != 0x2040b {
		t.Errorf("WRITE in standby: %05x", r.code())
	}
	if r := b.do(rw10(0x2a, 0, 1), make([]byte, 512), 0); r.status != Good {
		t.Errorf("WRITE through the other group: %05x", r.code())
	}
	expect("group 2 in standby", "00000018 00cf0001 00000001 00000001  82cf0002 00020001 00000002")
	if r := b.do([]byte{0xa3, 0x2a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}, nil, 256); hexOf(r.in[:12]) != "0000001c10000000"+"00cf0001" {
		t.Errorf("extended header: % x", r.in)
	}
	for alloc := range 28 {
		r := b.do([]byte{0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, byte(alloc), 0, 0}, nil, 256)
		if r.status != Good || !bytes.Equal(r.in, unhex(t, report())[:alloc]) {
			t.Errorf("%d bytes of the report: % x", alloc, r.in)
		}
	}

	// By an initiator: both groups at once, or none.
	stpg := func(list ...byte) result {
		list = append([]byte{0, 0, 0, 0}, list...)
		return b.do([]byte{0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, byte(len(list)), 0, 0}, list, 0)
	}
	for name, bad := range map[string][]byte{
		"offline": {0, 0, 0, 1, 0x0e, 0, 0, 2}, "no such group": {1, 0, 0, 1, 1, 0, 0, 3}, "cut": {1, 0, 0, 1, 1, 0},
	} {
		if r := stpg(bad...); r.code()>>16 != keyIllegalRequest {
			t.Errorf("SET TARGET PORT GROUPS, %s: %05x", name, r.code())
		}
	}
	expect("after bad lists", "00000018 00cf0001 00000001 00000001  82cf0002 00020001 00000002")
	if r := stpg(1, 0, 0, 1, 3, 0, 0, 2); r.status != Good {
		t.Errorf("SET TARGET PORT GROUPS: %05x", r.code())
	}
	expect("after SET TARGET PORT GROUPS", "00000018 01cf0001 00010001 00000001  83cf0002 00010001 00000002")
	if ua := b.nexus.lookup(0).ua.Load(); ua != 0 {
		t.Errorf("who set the states is told: %x", ua)
	}
	if r := b.as(b.b, []byte{0, 0, 0, 0, 0, 0}, nil, 0); r.code() != 0x62a06 {
		t.Errorf("others are told %05x", r.code())
	}
	// Unavailable: INQUIRY says that nothing is connected.
	b.d.lookup(5 << 48).ua.Store(0)
	if r := b.do4([]byte{0x12, 0, 0, 0, 36, 0}, nil, 36); r.in[0] != 0x20 {
		t.Errorf("INQUIRY of an unavailable port: % x", r.in[:1])
	}
	// SET TARGET PORT GROUPS through the unavailable port brings it back.
	list := []byte{0, 0, 0, 0, 0, 0, 0, 2}
	if r := b.do4([]byte{0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0}, list, 0); r.status != Good {
		t.Errorf("SET TARGET PORT GROUPS through an unavailable port: %05x", r.code())
	}
	if r := b.do4([]byte{0, 0, 0, 0, 0, 0}, nil, 0); r.status != Good {
		t.Errorf("after it: %05x", r.code())
	}

	b.other.SetLU(5, nil)
	if s := b.lu.AccessStates(); len(s) != 1 || s[0].Group != 1 {
		t.Errorf("after the LUN has gone: %+v", s)
	}
}

// setAccess sets the state of a group, as the administrator does.
func (b *bench) setAccess(group uint16, state AccessState, preferred bool) error {
	return b.lu.v.Access().SetGroup(access.Group{ID: group, State: state, Preferred: preferred})
}

func TestALUAOnlyIfConfigured(t *testing.T) {
	b := newBench(t, true, nil)
	if r := b.do([]byte{0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}, nil, 256); r.code() != 0x52000 {
		t.Errorf("REPORT TARGET PORT GROUPS: %05x", r.code())
	}
	implicit := newALUABench(t, ALUAImplicit)
	if err := implicit.setAccess(1, 0x7, false); err == nil || !strings.Contains(err.Error(), "0x7") {
		t.Errorf("state 7: %v", err)
	}
	if r := implicit.do([]byte{0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, nil, 0); r.code() != 0x52000 {
		t.Errorf("SET TARGET PORT GROUPS with implicit ALUA only: %05x", r.code())
	}
}

// FuzzPortGroups reads any parameter list of SET TARGET PORT GROUPS.
func FuzzPortGroups(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{0, 0, 0, 0, 2, 0, 0, 1, 0, 0, 0, 2})
	f.Add([]byte{0, 0, 0, 0, 0xe, 0, 0, 1})
	f.Fuzz(func(t *testing.T, list []byte) {
		if len(list) < 4 || len(list) > 4+4*maxPortGroupChanges {
			return
		}
		changes, s, ok := parsePortGroups(list)
		if ok != (s == Sense{}) || ok && len(changes) != len(list)/4-1 || !ok && changes != nil {
			t.Fatalf("%v, %+v, %+v", ok, s, changes)
		}
		for _, c := range changes {
			if c.State > Unavailable {
				t.Fatalf("%+v", c)
			}
		}
	})
}

// ---- removable media ----

func stopCDB(flags byte) []byte { return []byte{0x1b, 0, 0, 0, flags, 0} }

const eject, load = 0x02, 0x03

func TestRemovableMedium(t *testing.T) {
	for _, lends := range []bool{true, false} {
		b := newBench(t, lends, func(c *benchConfig, _ *fakeStore) { c.Removable = true })
		other := b.client(2)
		tur := func(n *Nexus) int {
			task := b.task([]byte{0, 0, 0, 0, 0, 0}, nil, 0)
			task.Nexus = n
			return verdict(b.run(task, nil))
		}
		expect := func(what string, r result, code int) {
			t.Helper()
			if v := verdict(r); v != code {
				t.Errorf("lends %v, %s: %05x, want %05x", lends, what, v, code)
			}
		}
		b.store.hold = holdAll
		flushes := b.store.flushes
		expect("eject", b.do(stopCDB(eject), nil, 0), 0)
		if b.store.flushes != flushes+1 {
			t.Error("ejected without a flush")
		}
		for _, row := range rows {
			if row.denied&denyNoMedium == 0 || row.When != nil && !row.When(b.lu) {
				continue
			}
			cdb := make([]byte, len(row.Usage))
			cdb[0], cdb[1] = row.Usage[0], byte(row.sa)
			expect(row.Name, b.do(cdb, make([]byte, 4096), 4096), 0x23a00)
		}
		expect("START", b.do(stopCDB(1), nil, 0), 0x23a00)
		expect("power condition", b.do(stopCDB(0x10|load), nil, 0), 0)
		expect("eject again", b.do(stopCDB(eject), nil, 0), 0)
		expect("load", b.do(stopCDB(load), nil, 0), 0)
		if v := tur(b.nexus); v != 0 {
			t.Errorf("who loaded the medium: %05x", v)
		}
		if a, b := tur(other), tur(other); a != 0x62800 || b != 0 {
			t.Errorf("the other nexus: %05x, %05x", a, b)
		}
		expect("stop without LOEJ", b.do(stopCDB(0), nil, 0), 0)
		expect("READ", b.do(rw10(0x28, 0, 1), nil, 512), 0)

		prevent := func(n *Nexus, flag byte) {
			t.Helper()
			task := b.task([]byte{0x1e, 0, 0, 0, flag, 0}, nil, 0)
			task.Nexus = n
			expect("PREVENT ALLOW", b.run(task, nil), 0)
		}
		for name, end := range map[string]func(){
			"ALLOW":          func() { prevent(other, 0) },
			"I_T NEXUS LOSS": func() { manage(t, other, ITNexusReset); other.lookup(0).ua.Store(0) },
			"LUN RESET":      func() { manage(t, b.nexus, LUNReset) },
			"WARM RESET":     func() { manage(t, b.nexus, TargetWarmReset) },
			"COLD RESET":     func() { manage(t, b.nexus, TargetColdReset) },
			"logout": func() {
				n := b.client(5)
				prevent(n, 1)
				prevent(other, 0)
				n.Close(func() {})
			},
			"PREEMPT AND ABORT": func() {
				pr := &prBench{bench: b, a: b.nexus, b: other}
				pr.must(pr.b, proutRegister, 0, 0, 2)
				pr.must(pr.a, proutRegister, 0, 0, 1)
				pr.must(pr.a, proutPreemptAndAbort, writeExclusive, 1, 2)
				pr.must(pr.a, proutClear, 0, 1, 0)
			},
		} {
			prevent(other, 1)
			expect(name+": eject while prevented", b.do(stopCDB(eject), nil, 0), 0x55302)
			expect(name+": load while prevented", b.do(stopCDB(load), nil, 0), 0x55302)
			end()
			b.nexus.lookup(0).ua.Store(0)
			expect(name+": eject afterwards", b.do(stopCDB(eject), nil, 0), 0)
			expect(name+": load afterwards", b.do(stopCDB(load), nil, 0), 0)
			other.lookup(0).ua.Store(0)
		}
		expect("obsolete PREVENT", b.do([]byte{0x1e, 0, 0, 0, 2, 0}, nil, 0), 0x52400)
	}
}

// A medium that is no removable one has no such commands, and stays.
func TestFixedMedium(t *testing.T) {
	b := newBench(t, true, nil)
	if v := verdict(b.do([]byte{0x1e, 0, 0, 0, 1, 0}, nil, 0)); v != 0x52000 {
		t.Errorf("PREVENT ALLOW: %05x", v)
	}
	if v := verdict(b.do(stopCDB(eject), nil, 0)); v != 0 {
		t.Errorf("eject: %05x", v)
	}
	if v := verdict(b.do(rw10(0x28, 0, 1), nil, 512)); v != 0 {
		t.Errorf("READ: %05x", v)
	}
}

// manage does a task management function that has no task to wait for.
func manage(t *testing.T, n *Nexus, fn TMF) {
	t.Helper()
	done := false
	n.Manage(fn, 0, nil, func(r TMFResponse) { done = r == FunctionComplete })
	if !done {
		t.Fatalf("task management function %d", fn)
	}
}

// A target with several ports: each is a group with a state of its own, registrations are of one
// or of all of them, and the names that a nexus is told are those of the port it came through.
func TestSeveralPorts(t *testing.T) {
	b := newPRBench(t, func(c *benchConfig, _ *fakeStore) { c.TPGS = ALUAImplicit })
	b.target.SetPorts([]uint16{1, 7})
	seven := b.target.NewNexusThrough(7, b.a.initiator, nil)
	seven.lookup(0).ua.Store(0)
	r := b.do([]byte{0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}, nil, 256)
	if got := hexOf(r.in); got != "00000018"+"00cf000100000001"+"00000001"+"00cf000700000001"+"00000007" {
		t.Errorf("REPORT TARGET PORT GROUPS: %s", got)
	}
	id := b.as(seven, []byte{0x12, 1, 0x83, 1, 0xff, 0}, nil, 512)
	if !bytes.Contains(id.in, unhex(t, "5194000400000007 0115000400000007")) || !bytes.Contains(id.in, []byte("test,t,0x0007\x00")) {
		t.Errorf("VPD 83 through port 7: % x", id.in)
	}
	if r := b.do([]byte{0x12, 0, 0, 0, 36, 0}, nil, 36); r.in[6] != 0x10 {
		t.Errorf("INQUIRY without MULTIP: % x", r.in)
	}
	if err := b.setAccess(7, Standby, false); err != nil {
		t.Fatal(err)
	}
	b.a.lookup(0).ua.Store(0)
	seven.lookup(0).ua.Store(0)
	if v := verdict(b.as(seven, rw10(0x28, 0, 1), nil, 512)); v != 0x2040b {
		t.Errorf("READ through port 7 in standby: %05x", v)
	}
	if v := verdict(b.as(b.a, rw10(0x28, 0, 1), nil, 512)); v != 0 {
		t.Errorf("READ through port 1: %05x", v)
	}
	if err := b.setAccess(7, ActiveNonOptimized, false); err != nil {
		t.Fatal(err)
	}
	b.a.lookup(0).ua.Store(0)
	seven.lookup(0).ua.Store(0)

	keys := func() int { return len(b.as(b.a, []byte{0x5e, 0, 0, 0, 0, 0, 0, 1, 0, 0}, nil, 256).in)/8 - 1 }
	b.must(b.a, proutRegister, 0, 0, 1)
	b.must(b.a, proutReserve, writeExclusiveRegistrants, 1, 0)
	if v := verdict(b.as(seven, rw10(0x2a, 0, 1), make([]byte, 512), 0)); v != conflicts || keys() != 1 {
		t.Errorf("WRITE through a port without registration: %#x, %d keys", v, keys())
	}
	b.must(b.a, proutRegister, 0, 1, 0)
	if v := b.out(b.a, proutRegister, 0, 0, 2, allTargetPorts); v != 0 || keys() != 2 {
		t.Errorf("REGISTER with ALL_TG_PT: %#x, %d keys", v, keys())
	}
	b.must(seven, proutReserve, writeExclusiveRegistrants, 2, 0)
	if v := b.out(b.a, proutRegister, 0, 2, 3, allTargetPorts); v != 0 {
		t.Errorf("another key with ALL_TG_PT: %#x", v)
	}
	b.must(seven, proutRelease, writeExclusiveRegistrants, 3, 0)
	b.a.lookup(0).ua.Store(0) // RESERVATIONS RELEASED
	if v := b.out(b.a, proutRegister, 0, 3, 0, 0); v != 0 || keys() != 1 {
		t.Errorf("unregistered on one port: %#x, %d keys", v, keys())
	}
	if v := b.out(seven, proutRegister, 0, 3, 0, allTargetPorts); v != 0 || keys() != 0 {
		t.Errorf("unregistered: %#x, %d keys", v, keys())
	}
}

// Access states outlive the logical unit, whoever has set them, if it has where to keep them; when
// all are as at first, nothing is kept.
func TestAccessStatesAreKept(t *testing.T) {
	kept := new(fakeKeeper)
	with := func(tpgs TPGS) *prBench {
		return newPRBench(t, func(c *benchConfig, _ *fakeStore) { c.Keeper, c.TPGS = kept, tpgs })
	}
	b := with(ALUAImplicit | ALUAExplicit)
	b.target.SetPorts([]uint16{1, 7})
	states := func(b *prBench) string {
		var text []string
		for _, g := range b.lu.AccessStates() {
			text = append(text, fmt.Sprint(g.Group, g.State, g.Preferred))
		}
		return strings.Join(text, ", ")
	}
	if err := b.setAccess(7, Unavailable, true); err != nil {
		t.Fatal(err)
	}
	b.a.lookup(0).ua.Store(0)
	if v := b.saved(b.a, []byte{0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0}, []byte{0, 0, 0, 0, 1, 0, 0, 1}); v != 0 {
		t.Fatalf("SET TARGET PORT GROUPS: %#x", v)
	}
	const want = "1 active/non-optimized false, 7 unavailable true"
	if got := states(b); got != want {
		t.Errorf("at first %s", got)
	}

	b = with(ALUAImplicit)
	b.target.SetPorts([]uint16{1, 7})
	if got := states(b); got != want {
		t.Errorf("after a restart %s", got)
	}
	seven := b.target.NewNexusThrough(7, b.a.initiator, nil)
	seven.lookup(0).ua.Store(0)
	if v := verdict(b.as(seven, rw10(0x28, 0, 1), nil, 512)); v != 0x2040c {
		t.Errorf("READ through an unavailable port: %05x", v)
	}
	none := with(0)
	none.target.SetPorts([]uint16{1, 7})
	if got := states(none); !strings.Contains(got, "7 active/optimized") {
		t.Errorf("without ALUA %s", got)
	}
	view, err := NewLogicalUnit(LUConfig{Volume: b.lu.v, Serial: "0002", TPGS: ALUAImplicit})
	if err != nil {
		t.Fatal(err)
	}
	b.target.SetLU(1, view)
	if got := states(&prBench{bench: &bench{lu: view}}); got != want {
		t.Errorf("another view of the volume: %s", got)
	}

	for _, group := range []uint16{1, 7} {
		if err := b.setAccess(group, ActiveOptimized, false); err != nil {
			t.Fatal(err)
		}
	}
	if kept.state != nil {
		t.Errorf("%s is kept", kept.state)
	}
	b.a.lookup(0).ua.Store(0)
	if err := b.setAccess(1, ActiveOptimized, false); err != nil || b.a.lookup(0).ua.Load() != 0 {
		t.Errorf("no change, and initiators are told: %v", err)
	}
	kept.err = errors.New("no space left on device")
	if err := b.setAccess(1, Standby, false); err == nil || !strings.Contains(err.Error(), "no space left") || !strings.Contains(states(b), "1 standby") {
		t.Errorf("a store that fails: %v; %s", err, states(b))
	}
}

func TestAccessStateNames(t *testing.T) {
	for s, name := range map[AccessState]string{ActiveOptimized: "active/optimized", Standby: "standby", Transitioning: "transitioning"} {
		if got, ok := access.ParseGroupState(name); got != s || !ok || s.String() != name {
			t.Errorf("%q is %v, %v", name, got, ok)
		}
	}
	if _, ok := access.ParseGroupState("active"); ok {
		t.Error("there is a state \"active\"")
	}
}
