package nvmf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/backend/memory"
	"oneshot/mem"
	"oneshot/nvme"
)

// A namespace that is read-only says so, refuses whatever changes bytes, and has the rest.
func TestReadOnly(t *testing.T) {
	s, err := memory.New(diskSize)
	if err != nil {
		t.Fatal(err)
	}
	x := newTarget(t, s, true)
	admin, id := x.admin(0)
	h := x.queue(id)
	const offNSATTR = 99
	b := admin.must(nvme.Command{Opcode: nvme.AdminIdentify, NSID: 1}, nvme.IdentifyLen, nil, false).data
	if len(b) != nvme.IdentifyLen || b[offNSATTR]&1 == 0 {
		t.Errorf("NSATTR is %#x", b[offNSATTR])
	}
	dsm := nvme.Command{Opcode: nvme.DSM, NSID: 1, DWords: [6]uint32{0, 1 << 2}}
	for _, c := range []struct {
		nvme.Command
		n int
	}{{rw(nvme.Write, 1), 512}, {rw(nvme.WriteZeroes, 1), 0}, {dsm, 16}, {rw(nvme.Copy, 1), nvme.CopyRangeLen}} {
		if a := h.do(c.Command, c.n, fill(c.n, 1), false); a.Status != nvme.WriteProtected|nvme.DNR {
			t.Errorf("%#x: %v", c.Opcode, a.Status)
		}
	}
	h.must(rw(nvme.Compare, 1), 512, fill(512, 0), false)
	h.must(rw(nvme.Verify, 1), 0, nil, false)
	h.must(nvme.Command{Opcode: nvme.Flush, NSID: 1}, 0, nil, false)
	first, second := rw(nvme.Compare, 1), rw(nvme.Write, 1)
	first.Fuse, second.Fuse = nvme.FusedFirst, nvme.FusedSecond
	compare := h.start(first, 512, fill(512, 0), true)
	h.start(second, 512, fill(512, 1), true)
	want := map[bool]nvme.Status{true: nvme.FusedFailed | nvme.DNR, false: nvme.WriteProtected | nvme.DNR}
	got := h.take()
	for _, a := range got {
		if a.Status != want[a.CID == compare] {
			t.Errorf("a part of a pair: %v", a.Status)
		}
	}
	if len(got) != 2 {
		t.Errorf("a pair has %d answers", len(got))
	}
	if a := h.must(rw(nvme.Read, 1), 512, nil, false); !bytes.Equal(a.data, fill(512, 0)) {
		t.Error("bytes have changed")
	}
}

// errorsOf reads the log of errors.
func errorsOf(admin *host, entries int) []byte {
	n := entries * nvme.ErrorEntryLen
	c := nvme.Command{Opcode: nvme.AdminGetLogPage, DWords: [6]uint32{uint32(n/4-1)<<16 | uint32(nvme.LogError)}}
	return admin.must(c, n, nil, false).data
}

// A command that fails in the store leaves an entry in the log of errors, and says so by MORE; others do neither
// (Base 2.0 §3.3.3.2, §5.16.1.2).
func TestErrorLog(t *testing.T) {
	inner, err := memory.New(diskSize)
	if err != nil {
		t.Fatal(err)
	}
	s := faulty.New(inner, faulty.Seed(t))
	x := newTarget(t, s, false)
	admin, id := x.admin(0)
	h := x.queue(id)
	if a := h.do(rw(nvme.Read, 8), 512, nil, false); a.Status != nvme.DataSGLLength|nvme.DNR {
		t.Errorf("a host's mistake: %v", a.Status)
	}
	if b := errorsOf(admin, 1); !bytes.Equal(b, make([]byte, len(b))) {
		t.Errorf("% x before an error", b)
	}
	x.logged()
	stop := s.Fail(faulty.Match{Kinds: faulty.Reads}, errors.New("the medium is gone"))
	c := rw(nvme.Read, 8)
	c.DWords[0] = 16
	a := h.do(c, 4096, nil, false)
	if a.Status&nvme.More == 0 || a.Status.Code() == nvme.Success {
		t.Errorf("a failure: %v (%#x)", a.Status, uint16(a.Status))
	}
	x.wantLog("level=ERROR", "a command of a host has failed in the store", "the medium is gone", "host="+testHost, "namespace=1")
	le := binary.LittleEndian
	e := errorsOf(admin, 2)
	if le.Uint64(e) != 1 || le.Uint16(e[8:]) != 1 || le.Uint16(e[10:]) != a.CID || le.Uint64(e[16:]) != 16 || le.Uint32(e[24:]) != 1 {
		t.Errorf("% x", e[:64])
	}
	if got := nvme.Status(le.Uint16(e[12:]) >> 1); got != a.Status {
		t.Errorf("%v in the log, %v in the completion", got, a.Status)
	}
	if le.Uint64(e[nvme.ErrorEntryLen:]) != 0 {
		t.Error("a second entry")
	}
	for range errorEntries + 5 {
		a = h.do(c, 4096, nil, false)
	}
	e = errorsOf(admin, errorEntries)
	for i := range errorEntries { // the newest first
		if got, want := le.Uint64(e[i*nvme.ErrorEntryLen:]), uint64(errorEntries+6-i); got != want {
			t.Fatalf("entry %d has number %d, want %d", i, got, want)
		}
	}
	if le.Uint16(e[10:]) != a.CID {
		t.Error("the first entry is not the newest")
	}
	if n := len(admin.q.ctrl.errors.entries); n != errorEntries {
		t.Errorf("%d entries are kept", n)
	}
	stop()
	h.must(c, 4096, nil, false)
}

// The entry names the block that has failed, not that with which the command begins, or a former one.
func TestErrorLogNamesBlock(t *testing.T) {
	s := later(t)
	x := newTarget(t, s, false)
	admin, id := x.admin(0)
	h := x.queue(id)
	read, trim := rw(nvme.Read, 8), nvme.Command{Opcode: nvme.DSM, NSID: 1, DWords: [6]uint32{0, 4}}
	read.DWords[0] = 16
	ranges := make([]byte, 16)
	binary.LittleEndian.PutUint32(ranges[4:], 8)
	binary.LittleEndian.PutUint64(ranges[8:], 40)
	for what, c := range map[string]struct {
		do   func() answer
		kind backend.Kind
		err  error
		lba  uint64
	}{
		"read": {func() answer { return h.await(read, 4096, nil) }, backend.Read, &backend.MediumError{Kind: backend.Read, Off: 18 * 512, Err: errors.New("bad")}, 18},
		"trim": {func() answer { return h.await(trim, len(ranges), ranges) }, backend.Discard, errors.New("bad"), 40},
	} {
		stop := s.Fail(faulty.Match{Kinds: []backend.Kind{c.kind}}, c.err)
		if a := c.do(); a.Status&nvme.More == 0 {
			t.Errorf("%s: %v", what, a.Status)
		}
		stop()
		if got := binary.LittleEndian.Uint64(errorsOf(admin, 1)[16:]); got != c.lba {
			t.Errorf("%s: the log names block %d, want %d", what, got, c.lba)
		}
	}
	smart := admin.must(nvme.Command{Opcode: nvme.AdminGetLogPage, NSID: nvme.AllNamespaces, DWords: [6]uint32{uint32(nvme.LogSmart) | (nvme.SmartLen/4-1)<<16}}, nvme.SmartLen, nil, false).data
	if medium, all := binary.LittleEndian.Uint64(smart[160:]), binary.LittleEndian.Uint64(smart[176:]); medium != 1 || all != 2 {
		t.Errorf("the SMART log counts %d errors of the medium, %d entries of the log of errors", medium, all)
	}
}

// starve takes all memory of the pool, and returns what gives it back.
func (x *target) starve() (feed func()) {
	var all []*mem.Lease
	for n := int(x.pool.Limit()); n >= mem.PageSize; n /= 2 {
		for l := x.pool.Lease(min(n, mem.MaxLease)); l != nil; l = x.pool.Lease(min(n, mem.MaxLease)) {
			all = append(all, l)
		}
	}
	return func() {
		for _, l := range all {
			l.Release()
		}
	}
}

// leave has somebody take I/O memory until n bytes are left.
func (x *target) leave(n int64) (feed func()) {
	var all []*mem.Lease
	for x.pool.Free() > n {
		all = append(all, x.pool.Lease(mem.PageSize))
	}
	return func() {
		for _, l := range all {
			l.Release()
		}
	}
}

// later is a store that lends no memory, so that each write needs a lease.
func later(t *testing.T) *faulty.Store {
	inner, err := memory.New(diskSize)
	if err != nil {
		t.Fatal(err)
	}
	return faulty.New(inner, faulty.Seed(t))
}

// acre is Set Features, Host Behavior Support: the host waits before it repeats a command, if it is told so.
var acre = nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureHostBehavior)}}

// behavior is its data.
func behavior(acre byte) []byte {
	b := make([]byte, nvme.HostBehaviorLen)
	b[0] = acre
	return b
}

// A write whose data come with it, and find no memory, is to be repeated, and a host that lets itself be told waits with that for
// longer than one that hogs memory may (Base 2.0 §5.27.1.18); one whose data are to be fetched waits for memory.
func TestNoMemory(t *testing.T) {
	x := newTarget(t, later(t), false)
	admin, id := x.admin(0)
	h := x.queue(id)
	write := func() answer {
		t.Helper()
		feed := x.starve()
		defer feed()
		return h.do(rw(nvme.Write, 8), 4096, fill(4096, 1), true)
	}
	if a := write(); a.Status != nvme.NamespaceNotReady { // Command Interrupted is for hosts with ACRE only (Base 2.0 figure 95)
		t.Errorf("%v (%#x)", a.Status, uint16(a.Status))
	}
	admin.must(acre, nvme.HostBehaviorLen, behavior(1), true)
	if a := write(); a.Status != nvme.Interrupted|nvme.RetryDelay1 {
		t.Errorf("with ACRE: %v (%#x)", a.Status, uint16(a.Status))
	}
	const offCRDT1, tries = 128, 5 // of Linux
	b := admin.must(nvme.Command{Opcode: nvme.AdminIdentify, DWords: [6]uint32{uint32(nvme.CNSController)}}, nvme.IdentifyLen, nil, false).data
	if d := int(binary.LittleEndian.Uint16(b[offCRDT1:])); d*tries <= hogTime*10 {
		t.Errorf("CRDT1 is %d00 ms", d)
	}
	h.must(rw(nvme.Write, 8), 4096, fill(4096, 1), true)

	feed := x.starve()
	h.start(rw(nvme.Write, 8), 4096, fill(4096, 2), false)
	if got := h.take(); len(got) != 0 {
		t.Fatalf("a write whose data are to be fetched: %v", got)
	}
	feed()
	if got := h.take(); len(got) != 1 || got[0].Status != nvme.Success {
		t.Fatalf("when there is memory: %v", got)
	}
	if a := h.must(rw(nvme.Read, 8), 4096, nil, false); !bytes.Equal(a.data, fill(4096, 2)) {
		t.Error("other bytes come back")
	}
}

// What a host has said of its behavior is told, and forgotten when the controller is reset.
func TestHostBehavior(t *testing.T) {
	x := newTarget(t, nil, false)
	admin, _ := x.admin(0)
	get := func(sel uint32) byte {
		t.Helper()
		c := nvme.Command{Opcode: nvme.AdminGetFeatures, DWords: [6]uint32{sel<<8 | uint32(nvme.FeatureHostBehavior)}}
		b := admin.must(c, nvme.HostBehaviorLen, nil, false).data
		if !bytes.Equal(b[1:], make([]byte, nvme.HostBehaviorLen-1)) {
			t.Errorf("% x", b)
		}
		return b[0]
	}
	admin.must(acre, nvme.HostBehaviorLen, behavior(1), true)
	if now, byDefault := get(0), get(1); now != 1 || byDefault != 0 {
		t.Errorf("%d, by default %d", now, byDefault)
	}
	if a := admin.do(acre, nvme.HostBehaviorLen, behavior(2), true); a.Status != nvme.InvalidField|nvme.DNR {
		t.Errorf("ACRE 2: %v", a.Status)
	}
	if a := admin.do(acre, 16, fill(16, 0), true); a.Status != nvme.DataSGLLength|nvme.DNR {
		t.Errorf("16 bytes: %v", a.Status)
	}
	cc := func(v uint32) {
		admin.must(nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.PropertySet), DWords: [6]uint32{0, uint32(nvme.PropCC), v}}, 0, nil, false)
	}
	cc(0x460000)
	cc(0x460001)
	if get(0) != 0 || admin.q.ctrl.delays.Load() {
		t.Error("a reset does not end it")
	}
}

// What the host is to get goes nowhere if its descriptor is of data in the capsule.
func TestAnswersNotInCapsule(t *testing.T) {
	x := newTarget(t, nil, false)
	admin, id := x.admin(0)
	for f, n := range map[nvme.FID]int{nvme.FeatureHostBehavior: nvme.HostBehaviorLen, nvme.FeatureHostID: 16} {
		c := nvme.Command{Opcode: nvme.AdminGetFeatures, DWords: [6]uint32{uint32(f), 1}}
		if a := admin.do(c, n, make([]byte, n), true); a.Status.Code() == nvme.Success || len(a.data) != 0 {
			t.Errorf("feature %#x: %v, %d bytes", f, a.Status, len(a.data))
		}
		if a := admin.must(c, n, nil, false); len(a.data) != n {
			t.Errorf("feature %#x: %d bytes", f, len(a.data))
		}
	}
	for op, c := range map[string]nvme.Command{
		"Identify": {Opcode: nvme.AdminIdentify, DWords: [6]uint32{uint32(nvme.CNSController)}}, "a log": {Opcode: nvme.AdminGetLogPage, DWords: [6]uint32{uint32(nvme.LogSmart) | (512/4-1)<<16}},
	} {
		if a := admin.do(c, 4096, make([]byte, 4096), true); a.Status.Code() == nvme.Success || len(a.data) != 0 {
			t.Errorf("%s: %v, %d bytes", op, a.Status, len(a.data))
		}
	}
	if a := x.queue(id).do(rw(nvme.Read, 1), 512, fill(512, 0), true); a.Status.Code() == nvme.Success || len(a.data) != 0 {
		t.Errorf("Read: %v, %d bytes", a.Status, len(a.data))
	}
	set := nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.PropertySet), DWords: [6]uint32{2, uint32(nvme.PropCC), 0}}
	if a := admin.do(set, 0, nil, false); a.Status != nvme.InvalidField|nvme.DNR || admin.status() != nvme.CSTSReady {
		t.Errorf("a property of no size that there is: %v", a.Status)
	}
}

// The second command of a pair has its data in its capsule: they go behind those of the first if there is memory for both, and
// if not the pair is to be repeated.
func TestFusedInCapsule(t *testing.T) {
	x := newTarget(t, later(t), false)
	_, id := x.admin(0)
	h := x.queue(id)
	first, second := rw(nvme.Compare, 8), rw(nvme.Write, 8)
	first.Fuse, second.Fuse = nvme.FusedFirst, nvme.FusedSecond
	pair := func(firstInCapsule bool, compare, write byte) []answer {
		h.start(first, 4096, fill(4096, compare), firstInCapsule)
		h.start(second, 4096, fill(4096, write), true)
		return h.take()
	}
	if got := pair(true, 0, 1); len(got) != 2 || got[0].Status|got[1].Status != nvme.Success {
		t.Errorf("%+v", got)
	}
	if got := pair(false, 1, 2); len(got) != 2 || got[0].Status|got[1].Status != nvme.Success {
		t.Errorf("with the data of the first fetched: %+v", got)
	}
	feed := x.starve()
	got := pair(false, 2, 3) // the first waits for memory, and the data of the second cannot
	feed()
	if len(got) != 2 || got[0].Status != nvme.NamespaceNotReady || got[1].Status != nvme.FusedFailed { // both are to be repeated
		t.Errorf("without memory: %+v", got)
	}
	if a := h.must(rw(nvme.Read, 8), 4096, nil, false); !bytes.Equal(a.data, fill(4096, 2)) {
		t.Error("other bytes come back")
	}
	if h.q.live != 0 || h.q.leased != 0 {
		t.Errorf("%d commands are left, with %d bytes", h.q.live, h.q.leased)
	}
}
