package server

import (
	"context"
	"encoding/binary"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"oneshot/config"
	"oneshot/mem"
	"oneshot/scsi"
)

// initiatorPort sends commands to a target past iSCSI.
type initiatorPort struct {
	t     *testing.T
	nexus *scsi.Nexus
	pool  *mem.Pool
	ready chan struct{}
}

func newInitiatorPort(t *testing.T, s *Server) *initiatorPort {
	p := &initiatorPort{t: t, pool: mem.NewPool(8 << 20), ready: make(chan struct{}, 16)}
	p.nexus = s.targets["iqn.2026-11.example.oneshot:t"].NewNexus("iqn.2026-11.example.clients:a,i,0x400000000001")
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
			copy(task.Out[0], out)
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

// A registration with APTPL is there after a restart, and a state file that was damaged is an
// error that says which and what to do, not a target that has forgotten who may write.
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

// What a LUN says of its medium and of access states reaches initiators.
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

// Each portal group in which a target is reached is a target port, and a target port group.
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
