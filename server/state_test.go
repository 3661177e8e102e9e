package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"oneshot/backend/backendtest"
	"oneshot/backend/file"
	"oneshot/config"
	"oneshot/mem"
	"oneshot/mgmt"
	"oneshot/scsi"
	"oneshot/state"
	"oneshot/volume"
)

// initiatorPort sends commands to a SCSI target directly, without iSCSI.
type initiatorPort struct {
	t     *testing.T
	nexus *scsi.Nexus
	pool  *mem.Pool
	ready chan struct{}
}

func newInitiatorPort(t *testing.T, s *Server) *initiatorPort {
	p := &initiatorPort{t: t, pool: mem.NewPool(8 << 20), ready: make(chan struct{}, 16)}
	p.nexus = s.targets["iqn.2026-11.example.oneshot:t"].NewNexus(scsi.ISCSIPort("iqn.2026-11.example.clients:a", [6]byte{0x40, 5: 1}))
	return p
}

func (p *initiatorPort) TaskReady(*scsi.Task)                 { p.ready <- struct{}{} }
func (p *initiatorPort) Lease(_ *scsi.Task, n int) *mem.Lease { return p.pool.Lease(n) }
func (p *initiatorPort) do(cdb, out []byte) (scsi.Status, []byte) {
	p.t.Helper()
	task := &scsi.Task{Owner: p, Nexus: p.nexus, CDB: cdb, DataOutLen: uint32(len(out)), DataInLen: 4096}
	next := task.Start()
	for next != scsi.Done {
		switch next {
		case scsi.Pull:
			task.Place(0, out)
			next = task.Pulled()
		case scsi.Wait:
			<-p.ready
			next = task.Resume()
		default:
			p.t.Fatal(next)
		}
	}
	var in []byte
	for _, seg := range task.In {
		in = append(in, seg...)
	}
	status := task.Status
	task.Release()
	return status, in
}

// A registration with APTPL survives a restart. With a damaged state file the target does not start, for it
// would have forgotten who may write; the error names the file and what to do.
func TestReservationsOverRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	text := strings.Replace(one, "portals:", "state: "+dir+"\nportals:", 1)
	start := func() *Server {
		t.Helper()
		s, err := New(parse(t, text), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	stop := func(s *Server) {
		t.Helper()
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	}
	s := start()
	if _, err := New(parse(t, text), slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "another process") || strings.Contains(err.Error(), "\n") {
		t.Errorf("two servers with one state directory: %v", err)
	}
	p := newInitiatorPort(t, s)
	p.do(make([]byte, 6), nil) // takes the unit attention
	register := make([]byte, 24)
	binary.BigEndian.PutUint64(register[8:], 0x1234)
	register[20] = 1 // APTPL
	if status, _ := p.do([]byte{0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0}, register); status != scsi.Good {
		t.Fatalf("REGISTER with APTPL: %v", status)
	}
	p.nexus.Close(func() {})
	stop(s)

	s = start()
	p = newInitiatorPort(t, s)
	p.do(make([]byte, 6), nil)
	status, keys := p.do([]byte{0x5e, 0, 0, 0, 0, 0, 0, 1, 0, 0}, nil)
	if status != scsi.Good || len(keys) != 16 || binary.BigEndian.Uint64(keys[8:]) != 0x1234 {
		t.Errorf("READ KEYS after a restart: %v, % x", status, keys)
	}
	p.nexus.Close(func() {})
	stop(s)

	files, err := filepath.Glob(filepath.Join(dir, "*.state"))
	if err != nil || len(files) != 1 {
		t.Fatalf("state files %q, %v", files, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files[0], data[:len(data)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = New(parse(t, text), slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), files[0]) || !strings.Contains(err.Error(), "cut short") || strings.Contains(err.Error(), "\n") {
		t.Errorf("a state file that is cut short: %v", err)
	}
}

// The administrator sets access states of some LUNs or of all. The states survive reloads, also if a reload
// changes options of the LUN, and with the key state they survive a restart.
func TestAccessStates(t *testing.T) {
	const options = `
stores: {d: {type: memory, size: 1MiB}, e: {type: memory, size: 1MiB}, f: {type: memory, size: 1MiB}}
targets:
  - {iqn: "iqn.2026-11.example.oneshot:t", luns: {0: d, 1: e, 2: {store: d}, 7: {store: e, readonly: false}}}
  - {iqn: "iqn.2026-11.example.oneshot:u", portal_groups: [2], luns: {0: {store: f, alua: explicit}}}
portals: [{listen: "127.0.0.1:0"}, {listen: "127.0.0.1:0", group: 2}]
`
	text := options + "state: " + filepath.Join(t.TempDir(), "state") + "\n"
	const target = "iqn.2026-11.example.oneshot:t"
	states := func(s *Server) string {
		var all []string
		for _, a := range s.Access() {
			if a.Preferred {
				a.State += "*"
			}
			if a.State != "active/optimized" {
				all = append(all, fmt.Sprintf("%s %d %d %s", strings.TrimPrefix(a.Target, "iqn.2026-11.example.oneshot:"), a.LUN, a.Group, a.State))
			}
			if len(a.Portals) != 1 || !strings.HasPrefix(a.Portals[0].Address, "127.0.0.1:") || a.Target == target && a.ALUA != "implicit" {
				t.Errorf("%+v", a)
			}
		}
		return strings.Join(all, ", ")
	}
	start := func() *Server {
		t.Helper()
		s, err := New(parse(t, text), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := start()
	if n := len(s.Access()); n != 4*2+1 || states(s) != "" {
		t.Errorf("%d states: %s", n, states(s))
	}
	for _, c := range []struct {
		change mgmt.AccessChange
		want   string
	}{
		{mgmt.AccessChange{Target: "iqn.no:such", Group: 1, State: "standby"}, "no target or subsystem iqn.no:such: target access lists them"},
		{mgmt.AccessChange{Target: target, Group: 3, State: "standby"}, "not reached through the group 3: its groups are 1 2"},
		{mgmt.AccessChange{Target: target, Group: 1, State: "asleep"}, `no access state "asleep"`},
		{mgmt.AccessChange{Target: target, Group: 1, State: "standby", LUNs: []uint16{0, 3}}, "no LUN 3"},
		{mgmt.AccessChange{Target: "iqn.2026-11.example.oneshot:u", Group: 2, State: "standby"}, "LUN 0 of iqn.2026-11.example.oneshot:u has alua: explicit"},
	} {
		_, err := s.SetAccess(t.Context(), c.change)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.change, err)
		}
		if _, senseless := errors.AsType[*mgmt.RequestError](err); senseless != (c.change.State == "asleep") {
			t.Errorf("%+v: %T", c.change, err)
		}
	}
	yes := true
	for _, c := range []mgmt.AccessChange{
		{Target: target, Group: 2, State: "unavailable"},
		{Target: target, Group: 1, Preferred: &yes, LUNs: []uint16{1}},
		{Target: target, Group: 2, State: "standby", LUNs: []uint16{0}}, // and 2, which is the same unit
	} {
		if list, err := s.SetAccess(t.Context(), c); err != nil || len(list) != 2*max(1, 4-3*len(c.LUNs)) {
			t.Fatalf("%+v: %+v, %v", c, list, err)
		}
	}
	const want = "t 0 2 standby, t 1 1 active/optimized*, t 1 2 unavailable, t 2 2 standby, t 7 1 active/optimized*, t 7 2 unavailable"
	if got := states(s); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if _, err := s.Apply(parse(t, strings.Replace(text, "stores:", "limits: {connections: 5}\nstores:", 1))); err != nil || states(s) != want {
		t.Errorf("after a reload %v\n%s", err, states(s))
	}
	if _, err := s.Apply(parse(t, strings.Replace(text, "2: {store: d}", "2: {store: d, readonly: true}", 1))); err != nil || states(s) != want {
		t.Errorf("after a LUN has changed %v\n%s", err, states(s))
	}
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	if _, err := s.SetAccess(t.Context(), mgmt.AccessChange{Target: target, Group: 1, State: "standby"}); err == nil {
		t.Error("a state is set after the end")
	}
	s = start()
	if got := states(s); got != want {
		t.Errorf("after a restart %s", got)
	}
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}

// The options removable and alua of a LUN show in its INQUIRY data.
func TestLUNOptions(t *testing.T) {
	text := strings.Replace(one, "0: d,", "0: {store: d, removable: true, alua: both},", 1)
	s, err := New(parse(t, text), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p := newInitiatorPort(t, s)
	status, data := p.do([]byte{0x12, 0, 0, 0, 36, 0}, nil)
	if status != scsi.Good || data[1] != 0x80 || data[5]>>4 != 3 {
		t.Errorf("INQUIRY: %v, % x", status, data)
	}
	p.nexus.Close(func() {})
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	for name, want := range map[config.ALUA]scsi.TPGS{config.ALUANone: 0, config.ALUAImplicit: 1, config.ALUAExplicit: 2, config.ALUABoth: 3} {
		if tpgs[name] != want {
			t.Errorf("alua: %s is %d", name, tpgs[name])
		}
	}
}

// Each portal group of a target is a target port and a target port group.
func TestPortalGroupsArePorts(t *testing.T) {
	text := strings.Replace(one, "portals: [", "portals: [{transport: tcp, listen: \"127.0.0.1:0\", group: 3}, {transport: tcp, listen: \"127.0.0.1:0\", group: 2}, ", 1)
	text = strings.Replace(text, "luns:", "portal_groups: [1, 3], luns:", 1)
	s, err := New(parse(t, text), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p := newInitiatorPort(t, s)
	p.do(make([]byte, 6), nil) // takes the unit attention
	status, data := p.do([]byte{0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}, nil)
	if status != scsi.Good || len(data) != 4+2*12 || data[4+3] != 1 || data[16+3] != 3 || data[24+3] != 3 {
		t.Errorf("REPORT TARGET PORT GROUPS: %v, % x", status, data)
	}
	p.nexus.Close(func() {})
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}

// formerState is a state file of a LUN from a version of this program that had no volumes yet.
const formerState = `{"Format":1,"Generation":1,"Type":3,"Holder":0,"Registrants":[{"Initiator":"iqn.2026-11.example.clients:a,i,0x400000000001","Target":"iqn.2026-11.example.oneshot:t,t,0x0001","Port":1,"Key":4660}]}`

// TestFormerStates: the first start takes over the state file of an earlier version, which is named after a
// serial number, for the volume, and completes the write in its journal.
func TestFormerStates(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "disk.img")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("state: %s\nstores: {a: {type: file, path: %s}}\ntargets: [{iqn: \"iqn.2026-11.example.oneshot:t\", luns: {0: a, 1: {store: a, block_size: 4096}}}]\nportals: [{transport: tcp, listen: \"127.0.0.1:0\"}]\n",
		filepath.Join(dir, "state"), path)
	d, err := state.Open(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	serial := identity("iqn.2026-11.example.oneshot:t", "a")
	if err := errors.Join(d.File(serial).Save([]byte(formerState)), d.Journal(serial).Begin(4096, bytes.Repeat([]byte{7}, 512)), d.Close()); err != nil {
		t.Fatal(err)
	}
	for restart := range 2 {
		s, err := New(parse(t, text), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		p := newInitiatorPort(t, s)
		p.do(make([]byte, 6), nil)
		status, got := p.do([]byte{0x5e, 1, 0, 0, 0, 0, 0, 1, 0, 0}, nil)
		if status != scsi.Good || len(got) != 24 || binary.BigEndian.Uint64(got[8:]) != 0x1234 || got[21] != 3 {
			t.Errorf("start %d: READ RESERVATION: %v, % x", restart, status, got)
		}
		if status, got := p.do([]byte{0x28, 0, 0, 0, 0, 8, 0, 0, 1, 0}, nil); status != scsi.Good || got[0] != 7 {
			t.Errorf("start %d: READ of what the journal has: %v", restart, status)
		}
		p.nexus.Close(func() {})
		if err := s.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
		files, _ := filepath.Glob(filepath.Join(dir, "state", "*.state"))
		if len(files) != 1 || !strings.HasPrefix(filepath.Base(files[0]), "volume-") {
			t.Errorf("start %d: %q", restart, files)
		}
	}
}

// TestJournalOfReadOnlyStore: blocks that a power cut has left half written are not shown by a store that is opened read-only afterwards,
// and so does not complete the write. The others are, and the journal stays for the next start.
func TestJournalOfReadOnlyStore(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "disk.img")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	text := func(readOnly bool) string {
		return fmt.Sprintf("state: %s\nstores: {a: {type: file, path: %s, readonly: %v}}\ntargets: [{iqn: \"iqn.2026-11.example.oneshot:t\", luns: {0: a}}]\nportals: [{transport: tcp, listen: \"127.0.0.1:0\"}]\n",
			filepath.Join(dir, "state"), path, readOnly)
	}
	ids, err := file.IdentitiesOf(path)
	if err != nil {
		t.Fatal(err)
	}
	d, err := state.Open(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	name := volumeName(medium(parse(t, text(false)).Store("a")), ids[len(ids)-1]) // as with an older kernel, if the file has another one there
	if err := errors.Join(d.Journal(name).Begin(4096, bytes.Repeat([]byte{7}, 1024)), d.Close()); err != nil {
		t.Fatal(err)
	}
	for _, readOnly := range []bool{true, false} {
		s, err := New(parse(t, text(readOnly)), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		p := newInitiatorPort(t, s)
		p.do(make([]byte, 6), nil)
		status, got := p.do([]byte{0x28, 0, 0, 0, 0, 8, 0, 0, 2, 0}, nil)
		if refused := status == scsi.CheckCondition; refused != readOnly || !refused && !bytes.Equal(got, bytes.Repeat([]byte{7}, 1024)) {
			t.Errorf("read-only %v: READ of the blocks of the journal: %v, % x …", readOnly, status, got[:min(len(got), 4)])
		}
		if status, _ := p.do([]byte{0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0}, nil); status != scsi.Good {
			t.Errorf("read-only %v: READ of others: %v", readOnly, status)
		}
		p.nexus.Close(func() {})
		if err := s.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStateOfAnotherDevice: a device that nothing names for good is at the path of one of which a SANITIZE and an atomic write were under way. Its
// bytes stay.
func TestStateOfAnotherDevice(t *testing.T) {
	dir := t.TempDir()
	loop := backendtest.NewLoop(t, 8<<20, 512)
	want := bytes.Repeat([]byte{0x55}, 8<<20)
	if _, err := loop.Dev.WriteAt(want, 0); errors.Join(err, loop.Dev.Sync()) != nil {
		t.Fatal(err)
	}
	cfg := parse(t, fmt.Sprintf("state: %s\nstores: {a: {type: device, path: %s}}\ntargets: [{iqn: \"iqn.2026-11.example.oneshot:t\", luns: {0: a}}]\nportals: [{transport: tcp, listen: \"127.0.0.1:0\"}]\n",
		filepath.Join(dir, "state"), loop.Path))
	d, err := state.Open(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	name := volumeName(medium(cfg.Store("a")), "")
	err = d.File(name).Save([]byte(`{"Format":2,"Access":{"Holder":-1},"Sanitize":{"Action":2}}`))
	if err := errors.Join(err, d.Journal(name).Begin(4096, bytes.Repeat([]byte{7}, 1024)), d.Close()); err != nil {
		t.Fatal(err)
	}
	s, err := New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range s.units.stores {
		<-o.volume.Sanitized()
		if is, _, _ := o.volume.SanitizeState(); is != volume.SanitizeHasFailed {
			t.Errorf("the operation is in state %d", is)
		}
	}
	if err := s.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := loop.Dev.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("the device has other bytes now")
	}
}

// TestReloadKeepsVolume: a LUN whose options change becomes another view of its volume. The volume keeps its
// state, such as a reservation without APTPL.
func TestReloadKeepsVolume(t *testing.T) {
	s, err := New(parse(t, one), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p := newInitiatorPort(t, s)
	p.do(make([]byte, 6), nil)
	register, reserve := make([]byte, 24), make([]byte, 24)
	binary.BigEndian.PutUint64(register[8:], 0x1234)
	binary.BigEndian.PutUint64(reserve, 0x1234)
	if status, _ := p.do([]byte{0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0}, register); status != scsi.Good {
		t.Fatalf("REGISTER: %v", status)
	}
	if status, _ := p.do([]byte{0x5f, 1, 1, 0, 0, 0, 0, 0, 24, 0}, reserve); status != scsi.Good {
		t.Fatalf("RESERVE: %v", status)
	}
	before := s.unitOf(&s.cfg.Targets[0], &s.cfg.Targets[0].LUNs[0])
	next := parse(t, one)
	next.Targets[0].LUNs[0].Product = "ANOTHER"
	if _, err := s.Apply(next); err != nil {
		t.Fatal(err)
	}
	if s.unitOf(&s.cfg.Targets[0], &s.cfg.Targets[0].LUNs[0]) == before {
		t.Fatal("the LUN has not changed")
	}
	for { // unit attentions of the new view
		status, got := p.do([]byte{0x5e, 1, 0, 0, 0, 0, 0, 1, 0, 0}, nil)
		if status == scsi.CheckCondition {
			continue
		}
		if status != scsi.Good || len(got) != 24 || binary.BigEndian.Uint64(got[8:]) != 0x1234 {
			t.Errorf("READ RESERVATION after the reload: %v, % x", status, got)
		}
		break
	}
	p.nexus.Close(func() {})
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}
