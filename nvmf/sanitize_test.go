package nvmf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"oneshot/backend"
	"oneshot/backend/memory"
	"oneshot/nvme"
	"oneshot/volume"
	"oneshot/volume/access"
)

// gate is a store in which each discard, and each write of a sanitize operation, waits for a token, which is its error.
type gate struct {
	backend.Store
	tokens chan error
}

func newGate(t *testing.T) *gate {
	t.Helper()
	s, err := memory.New(diskSize)
	if err != nil {
		t.Fatal(err)
	}
	return &gate{s, make(chan error)}
}

func (g *gate) Submit(op *backend.Op) bool {
	if op.Kind == backend.Discard || op.Kind == backend.Write && op.Len == diskSize {
		if op.Err = <-g.tokens; op.Err != nil {
			return true
		}
	}
	return g.Store.Submit(op)
}

func sanitizeCommand(s nvme.Sanitize) nvme.Command {
	return nvme.Command{Opcode: nvme.AdminSanitize, DWords: [6]uint32{uint32(s), 0xdeadbeef}}
}

// sanitizeLogOf reads the log: progress, status and passes, and the command.
func sanitizeLogOf(admin *host) (progress, status uint16, command nvme.Sanitize) {
	c := nvme.Command{Opcode: nvme.AdminGetLogPage, DWords: [6]uint32{(nvme.SanitizeLogLen/4-1)<<16 | uint32(nvme.LogSanitize)}}
	b := admin.must(c, nvme.SanitizeLogLen, nil, false).data
	le := binary.LittleEndian
	if le.Uint32(b[8:]) != 0xffffffff {
		admin.x.t.Errorf("estimates: % x", b[8:32])
	}
	return le.Uint16(b), le.Uint16(b[2:]), nvme.Sanitize(le.Uint32(b[4:]))
}

// ended waits until the sanitize operation is over, and has the node tell hosts.
func (x *target) ended() {
	<-x.v.Sanitized()
	x.tell()
}

// second shows another store as namespace 2, and returns its volume.
func (x *target) second(s backend.Store) *volume.Volume {
	x.t.Helper()
	v, err := volume.New(volume.Config{Store: s, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		x.t.Fatal(err)
	}
	ns, err := NewNamespace(NamespaceConfig{Volume: v, UUID: [16]byte{8}})
	if err != nil {
		x.t.Fatal(err)
	}
	x.sub.SetNamespaces([]Shown{{NSID: 2, Namespace: ns}})
	x.t.Cleanup(func() {
		x.sub.SetNamespaces([]Shown{{NSID: 2}})
		ns.Close()
		if err := v.Close(); err != nil {
			x.t.Error(err)
		}
	})
	return v
}

// Sanitize destroys what all namespaces hold, answers when that is certain to happen, keeps commands away meanwhile, and tells hosts of
// the end (Base 2.0 §8.20).
func TestSanitize(t *testing.T) {
	g := newGate(t)
	x := newTarget(t, g, false)
	other, err := memory.New(diskSize)
	if err != nil {
		t.Fatal(err)
	}
	v2 := x.second(other)
	admin, id := x.admin(0)
	h := x.queue(id)
	for nsid := range uint32(2) {
		c := rw(nvme.Write, 8)
		c.NSID = nsid + 1
		h.must(c, 4096, fill(4096, 7), true)
	}
	if p, s, c := sanitizeLogOf(admin); p != 0xffff || s != 0 || c != 0 {
		t.Errorf("before: %#x %#x %#x", p, s, c)
	}
	// What somebody does to one of them does not count for the subsystem.
	if v2.Sanitize(volume.Order{Action: volume.BlockErase}, nil, nil) != nil {
		t.Fatal("it does not begin")
	}
	<-v2.Sanitized()
	admin.start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, 0, nil, false)
	x.tell()
	if got := admin.take(); len(got) != 1 || got[0].DW0 != nvme.EventSanitize {
		t.Errorf("the event of one of two: %+v", got)
	}
	if p, s, c := sanitizeLogOf(admin); p != 0xffff || s != 0 || c != 0 {
		t.Errorf("after one of two: %#x %#x %#x", p, s, c)
	}
	admin.start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, 0, nil, false)
	erase := nvme.NewSanitize(nvme.BlockErase, true, 0, false)
	if a := admin.await(sanitizeCommand(erase), 0, nil); a.Status != nvme.Success {
		t.Fatal(a.Status)
	}
	<-v2.Sanitized()
	x.tell()
	if got := admin.take(); len(got) != 0 {
		t.Errorf("hosts are told of the end of one of two: %+v", got)
	}
	if p, s, c := sanitizeLogOf(admin); p != 0 || s != 2 || c != erase {
		t.Errorf("meanwhile: %#x %#x %#x", p, s, c)
	}
	if a := h.do(rw(nvme.Read, 8), 4096, nil, false); a.Status != nvme.SanitizeInProgress {
		t.Errorf("a command meanwhile: %v", a.Status)
	}
	for _, c := range []nvme.Sanitize{erase, nvme.NewSanitize(nvme.ExitFailure, false, 0, false)} {
		if a := admin.do(sanitizeCommand(c), 0, nil, false); a.Status.Code() != nvme.SanitizeInProgress {
			t.Errorf("%#x meanwhile: %v", c, a.Status)
		}
	}
	g.tokens <- nil
	x.ended()
	if got := admin.take(); len(got) != 1 || got[0].DW0 != nvme.EventSanitize {
		t.Errorf("the event: %+v", got)
	}
	if p, s, c := sanitizeLogOf(admin); p != 0xffff || s != 1 || c != erase {
		t.Errorf("afterwards: %#x %#x %#x", p, s, c)
	}
	for nsid := range uint32(2) {
		c := rw(nvme.Read, 8)
		c.NSID = nsid + 1
		if a := h.must(c, 4096, nil, false); !bytes.Equal(a.data, fill(4096, 0)) {
			t.Errorf("namespace %d holds % x…", nsid+1, a.data[:8])
		}
	}
	// Passes with a pattern, the first of which writes its complement, so that the pattern stays.
	over := nvme.NewSanitize(nvme.EraseOverwrite, false, 2, true)
	go func() { g.tokens <- nil; g.tokens <- nil }()
	if a := admin.await(sanitizeCommand(over), 0, nil); a.Status != nvme.Success {
		t.Fatal(a.Status)
	}
	<-v2.Sanitized()
	x.ended()
	if p, s, c := sanitizeLogOf(admin); p != 0xffff || s != 1|2<<3 || c != over {
		t.Errorf("after passes: %#x %#x %#x", p, s, c)
	}
	if a := h.must(rw(nvme.Read, 8), 4096, nil, false); !bytes.Equal(a.data, bytes.Repeat([]byte{0xef, 0xbe, 0xad, 0xde}, 1024)) {
		t.Errorf("% x", a.data[:8])
	}
	b := admin.must(nvme.Command{Opcode: nvme.AdminIdentify, DWords: [6]uint32{uint32(nvme.CNSController)}}, nvme.IdentifyLen, nil, false).data
	if c := binary.LittleEndian.Uint32(b[328:]); c != 0x60000006 {
		t.Errorf("SANICAP %#x", c)
	}
	b = admin.must(nvme.Command{Opcode: nvme.AdminGetLogPage, DWords: [6]uint32{(nvme.EffectsLen/4-1)<<16 | uint32(nvme.LogEffects)}}, nvme.EffectsLen, nil, false).data
	if e := binary.LittleEndian.Uint32(b[4*0x84:]); e != nvme.EffectSupported|nvme.EffectContent {
		t.Errorf("effects %#x", e)
	}
}

// After a failure nobody gets at the bytes, until the host leaves that, if the operation allowed it, or another one succeeds.
func TestSanitizeFails(t *testing.T) {
	for _, unrestricted := range []bool{true, false} {
		g := newGate(t)
		k := new(keeper)
		x := newKeepingTarget(t, g, false, k)
		admin, id := x.admin(0)
		h := x.queue(id)
		c := nvme.NewSanitize(nvme.BlockErase, unrestricted, 0, false)
		admin.must(sanitizeCommand(nvme.NewSanitize(nvme.ExitFailure, false, 0, false)), 0, nil, false) // there is nothing to leave
		go func() { g.tokens <- nil }()
		if a := admin.await(sanitizeCommand(c), 0, nil); a.Status != nvme.Success { // the first one succeeds
			t.Fatal(a.Status)
		}
		admin.start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, 0, nil, false)
		x.ended()
		if got := admin.take(); len(got) != 1 || got[0].DW0 != nvme.EventSanitize {
			t.Errorf("%+v", got)
		}
		if _, s, _ := sanitizeLogOf(admin); s != 1 {
			t.Errorf("%#x", s)
		}
		admin.start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, 0, nil, false)
		if a := admin.await(sanitizeCommand(c), 0, nil); a.Status != nvme.Success {
			t.Fatal(a.Status)
		}
		g.tokens <- errors.New("the medium is gone")
		x.ended()
		if got := admin.take(); len(got) != 1 || got[0].DW0 != nvme.EventSanitize {
			t.Errorf("%+v", got)
		}
		if p, s, got := sanitizeLogOf(admin); p != 0xffff || s != 3 || got != c {
			t.Errorf("%#x %#x %#x", p, s, got)
		}
		if a := h.do(rw(nvme.Read, 8), 4096, nil, false); a.Status != nvme.SanitizeFailed|nvme.DNR {
			t.Errorf("a command: %v", a.Status)
		}
		exit := sanitizeCommand(nvme.NewSanitize(nvme.ExitFailure, false, 0, false))
		if unrestricted {
			if a := admin.await(exit, 0, nil); a.Status != nvme.Success || bytes.Contains(k.state, []byte("Failed")) {
				t.Errorf("leaving it: %v, %s", a.Status, k.state)
			}
			h.must(rw(nvme.Read, 8), 4096, nil, false)
			if _, s, _ := sanitizeLogOf(admin); s != 0 {
				t.Errorf("what was left counts as %#x", s)
			}
			continue
		}
		if a := admin.do(exit, 0, nil, false); a.Status != nvme.SanitizeFailed|nvme.DNR {
			t.Errorf("leaving what may not be left: %v", a.Status)
		}
		if a := admin.do(sanitizeCommand(nvme.NewSanitize(nvme.BlockErase, true, 0, false)), 0, nil, false); a.Status != nvme.SanitizeFailed|nvme.DNR {
			t.Errorf("one that may be left: %v", a.Status)
		}
		go func() { g.tokens <- nil }()
		if a := admin.await(sanitizeCommand(c), 0, nil); a.Status != nvme.Success {
			t.Fatal(a.Status)
		}
		x.ended()
		h.must(rw(nvme.Read, 8), 4096, nil, false)
	}
}

// Whatever forbids it keeps every namespace from it.
func TestSanitizeRefused(t *testing.T) {
	s, err := memory.New(diskSize)
	if err != nil {
		t.Fatal(err)
	}
	k := new(keeper)
	x := newKeepingTarget(t, s, false, k)
	other, err := memory.New(diskSize)
	if err != nil {
		t.Fatal(err)
	}
	v2 := x.second(other)
	admin, id := x.admin(0)
	h := x.queue(id)
	h.must(rw(nvme.Write, 8), 4096, fill(4096, 7), true)
	good := nvme.NewSanitize(nvme.BlockErase, false, 0, false)
	for name, c := range map[string]nvme.Sanitize{
		"nothing": 0, "crypto erase": 4, "an action that there is not": 5, "a reserved bit": good | 1<<10, "NDAS": good | 1<<9,
	} {
		if a := admin.do(sanitizeCommand(c), 0, nil, false); a.Status != nvme.InvalidField|nvme.DNR {
			t.Errorf("%s: %v", name, a.Status)
		}
	}
	if a := admin.do(sanitizeCommand(good), 512, fill(512, 0), true); a.Status != nvme.InvalidField|nvme.DNR {
		t.Errorf("with data: %v", a.Status)
	}
	// Another host has reserved one of them.
	stranger, sid := x.adminThrough(1, 9, 0)
	q := x.dialThrough(1, 9)
	if a := q.connect(testHost, 1, sid, 0); a.Status != nvme.Success {
		t.Fatal(a.Status)
	}
	_ = stranger
	keys := func(a, b byte) []byte {
		return append(append([]byte{a}, make([]byte, 7)...), append([]byte{b}, make([]byte, 7)...)...)
	}
	q.must(nvme.Command{Opcode: nvme.ReservationRegister, NSID: 2}, 16, keys(0, 5), true)
	q.must(nvme.Command{Opcode: nvme.ReservationAcquire, NSID: 2, DWords: [6]uint32{uint32(nvme.WriteExclusive) << 8}}, 16, keys(5, 0), true)
	if a := admin.do(sanitizeCommand(good), 0, nil, false); a.Status != nvme.ReservationConflict|nvme.DNR {
		t.Errorf("with a reservation: %v", a.Status)
	}
	q.must(nvme.Command{Opcode: nvme.ReservationRelease, NSID: 2, DWords: [6]uint32{uint32(nvme.WriteExclusive) << 8}}, 8, keys(5, 0)[:8], true)
	// One of them cannot be reached.
	v2.Access().SetCondition(access.Sanitizing, access.Sanitizing)
	if a := admin.do(sanitizeCommand(good), 0, nil, false); a.Status.Code() != nvme.SanitizeInProgress {
		t.Errorf("with one under way: %v", a.Status)
	}
	v2.Access().SetCondition(access.Sanitizing, 0)
	// It cannot be kept that it is to be done.
	k.fails = true
	if a := admin.await(sanitizeCommand(good), 0, nil); a.Status.Code() != nvme.InternalError {
		t.Errorf("not kept: %v", a.Status)
	}
	k.fails = false
	if a := h.must(rw(nvme.Read, 8), 4096, nil, false); !bytes.Equal(a.data, fill(4096, 7)) {
		t.Error("bytes are gone")
	}
	if !strings.Contains(x.logged(), "a host destroys") {
		t.Error("the log does not say what a host asks for")
	}
	// A discovery controller has none.
	d := x.dial()
	f := nvme.ConnectFields{HostID: [16]byte{1}, CNTLID: nvme.DynamicController, SubNQN: nvme.DiscoveryNQN, HostNQN: testHost}
	d.must(nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.Connect), DWords: [6]uint32{0, 31}}, nvme.ConnectDataLen, f.AppendTo(nil), true)
	d.must(nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.PropertySet), DWords: [6]uint32{0, uint32(nvme.PropCC), 0x460001}}, 0, nil, false)
	if a := d.do(sanitizeCommand(good), 0, nil, false); a.Status != nvme.InvalidOpcode|nvme.DNR {
		t.Errorf("of discovery: %v", a.Status)
	}
	// Nor does a subsystem with a namespace that is read-only.
	x = newTarget(t, nil, true)
	admin, _ = x.admin(0)
	if a := admin.do(sanitizeCommand(good), 0, nil, false); a.Status != nvme.WriteProtected|nvme.DNR {
		t.Errorf("read-only: %v", a.Status)
	}
}

// A restart goes on with what was under way, and hosts that come meanwhile are told of its end; another restart knows how it went.
func TestSanitizeOverRestart(t *testing.T) {
	k := &keeper{state: []byte(`{"Format":2,"Access":{"Holder":-1},"Sanitize":{"Action":2,"Unrestricted":true}}`)}
	g := newGate(t)
	x := newKeepingTarget(t, g, false, k)
	admin, id := x.admin(0)
	h := x.queue(id)
	admin.start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, 0, nil, false)
	c := nvme.NewSanitize(nvme.BlockErase, true, 0, false)
	if p, s, got := sanitizeLogOf(admin); p != 0 || s != 2 || got != c {
		t.Errorf("%#x %#x %#x", p, s, got)
	}
	if a := h.do(rw(nvme.Read, 8), 4096, nil, false); a.Status != nvme.SanitizeInProgress {
		t.Errorf("%v", a.Status)
	}
	g.tokens <- nil
	x.ended()
	if got := admin.take(); len(got) != 1 || got[0].DW0 != nvme.EventSanitize {
		t.Errorf("%+v", got)
	}
	x = newKeepingTarget(t, nil, false, k)
	admin, _ = x.admin(0)
	if p, s, got := sanitizeLogOf(admin); p != 0xffff || s != 1 || got != c {
		t.Errorf("after another restart: %#x %#x %#x", p, s, got)
	}
}

// A host that takes no answers does not keep a sanitize operation waiting, for its commands have ended. Only in the store's own memory an answer
// would tell what is written there next.
func TestDrainWithoutAnswer(t *testing.T) {
	for _, lends := range []bool{true, false} {
		var store backend.Store
		if !lends {
			store = later(t)
		}
		x := newTarget(t, store, false)
		p := x.party(1, 1)
		p.io.deaf = true
		p.io.await(rw(nvme.Read, 1), 512, nil)
		drained := false
		x.ns.Drain(func() { drained = true })
		if drained == lends || x.ns.Idle() {
			t.Errorf("lends %v: drained %v, idle %v while an answer is on its way", lends, drained, x.ns.Idle())
		}
		p.io.q.Lock()
		p.io.q.Sent(p.io.kept[0])
		p.io.q.Unlock()
		if !drained || !x.ns.Idle() {
			t.Errorf("lends %v: drained %v, idle %v in the end", lends, drained, x.ns.Idle())
		}
	}
}
