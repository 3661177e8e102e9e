package server

import (
	"context"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"testing"

	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
	"oneshot/scsi"
	"oneshot/transport/nvmetcp/nvmetest"
)

// parties are an initiator port of iSCSI and a host of NVMe, which have one disk.
type parties struct {
	*running
	port      *initiatorPort
	admin, io *nvmetest.Host
}

func newParties(t *testing.T, text string) *parties {
	t.Helper()
	p := &parties{running: serve(t, text)}
	p.port = newInitiatorPort(t, p.Server)
	p.port.do(make([]byte, 6), nil) // takes the unit attention
	p.admin = nvmetest.Admin(t, p.Addrs()[1].String(), pdu.IC{}, nqn+"t")
	p.io = p.admin.Queue(1, 0)
	return p
}

// end ends the daemon.
func (p *parties) end() {
	p.t.Helper()
	p.port.nexus.Close(func() {})
	if err := p.Shutdown(context.Background()); err != nil {
		p.t.Error(err)
	}
}

// out is PERSISTENT RESERVE OUT with APTPL.
func (p *parties) out(action, kind byte, key, other uint64) scsi.Status {
	p.t.Helper()
	list := make([]byte, 24)
	binary.BigEndian.PutUint64(list, key)
	binary.BigEndian.PutUint64(list[8:], other)
	list[20] = 1
	status, _ := p.port.do([]byte{0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0}, list)
	return status
}

// reserve is a command of the host about reservations.
func reserve(op nvme.Opcode, dw10 uint32, current, other uint64) (nvme.Command, []byte) {
	return nvme.Command{Opcode: op, NSID: 1, DWords: [6]uint32{dw10}}, nvme.AppendKeys(nil, current, other)
}

func (p *parties) reserve(op nvme.Opcode, dw10 uint32, current, other uint64) nvme.Status {
	p.t.Helper()
	c, keys := reserve(op, dw10, current, other)
	e, _ := p.io.Do(c, keys, 0)
	return e.Status
}

// writes has both write, and says what they get.
func (p *parties) writes() string {
	p.t.Helper()
	status, _ := p.port.do([]byte{0x2a, 0, 0, 0, 0, 1, 0, 0, 1, 0}, make([]byte, 512))
	e, _ := p.io.Do(nvmetest.RW(nvme.Write, 2, 1), make([]byte, 512), 0)
	return fmt.Sprintf("port %v, host %v", status, e.Status)
}

// report is the report of the host: type, persistence, and the keys.
func (p *parties) report() string {
	p.t.Helper()
	const n = 64 + 4*64
	_, b := p.io.Must(nvme.Command{Opcode: nvme.ReservationReport, NSID: 1, DWords: [6]uint32{n/4 - 1, nvme.ExtendedReport}}, nil, n)
	text := fmt.Sprint(b[4], b[9])
	for i := range int(b[5]) {
		text += fmt.Sprintf(" %d", b[64+64*i+8])
	}
	return text
}

// An initiator port of iSCSI and a host of NVMe fence each other: what the loser has under way is aborted, it hears of it, and it writes no more, also
// after a restart of the daemon.
func TestFencingAcrossProtocols(t *testing.T) {
	dir := t.TempDir()
	text := fmt.Sprintf(`
state: %s
stores: {d: {type: file, path: %s, size: 1MiB}}
targets: [{iqn: "%st", luns: {0: d}}]
subsystems: [{nqn: "%st", namespaces: {1: d}}]
portals: [{transport: tcp, listen: "127.0.0.1:0"}, {transport: nvme-tcp, listen: "127.0.0.1:0"}]
`, filepath.Join(dir, "state"), filepath.Join(dir, "d.img"), iqn, nqn)
	const (
		register, preemptAndAbort          = 0, 5
		writeExclusive, writeByRegistrants = 1, 3
		persist                            = uint32(nvme.PersistSet) << 30
		conflict                           = nvme.ReservationConflict | nvme.DNR
	)
	want := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	p := newParties(t, text)
	if s := p.out(register, 0, 0, 1); s != scsi.Good {
		t.Fatal(s)
	}
	if s := p.reserve(nvme.ReservationRegister, persist, 0, 2); s != nvme.Success {
		t.Fatal(s)
	}
	if s := p.reserve(nvme.ReservationAcquire, writeByRegistrants<<8, 2, 0); s != nvme.Success {
		t.Fatal(s)
	}
	want("two registrants", p.writes(), fmt.Sprintf("port %v, host %v", scsi.Good, nvme.Success))

	// The port fences the host.
	event := p.admin.Start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, nil, 0)
	write := p.io.Start(nvmetest.RW(nvme.Write, 3, 1), nil, 512)
	if h, _ := p.io.PDU(); pdu.Header(h).Type() != pdu.R2T { // its data are never sent
		t.Fatalf("% x", h)
	}
	if s := p.out(preemptAndAbort, writeExclusive, 1, 2); s != scsi.Good {
		t.Fatal(s)
	}
	h, _ := p.io.PDU()
	if e := nvme.ParseCQE(h[pdu.CommonLen:]); e.CID != write || e.Status != nvme.AbortedByPreempt {
		t.Errorf("the write under way: %+v", e)
	}
	if e, _ := p.admin.Finish(event, nil, 0); e.DW0 != nvme.EventReservation {
		t.Errorf("event %#x", e.DW0)
	}
	_, log := p.admin.Must(nvme.Command{Opcode: nvme.AdminGetLogPage, DWords: [6]uint32{uint32(nvme.LogReservation) | 15<<16}}, nil, nvme.NoticeLen)
	want("log", fmt.Sprint(log[0], log[8], log[9], log[12]), fmt.Sprint(1, nvme.RegistrationPreempted, 0, 1))
	const portHolds = "1 1 1"
	fenced := fmt.Sprintf("port %v, host %v", scsi.Good, conflict)
	want("report", p.report(), portHolds)
	want("the host is fenced", p.writes(), fenced)
	p.end()
	p = newParties(t, text)
	want("report after a restart", p.report(), portHolds)
	want("the host is fenced after a restart", p.writes(), fenced)

	// The host fences the port.
	if s := p.reserve(nvme.ReservationRegister, 0, 0, 2); s != nvme.Success {
		t.Fatal(s)
	}
	task := &scsi.Task{Owner: p.port, Nexus: p.port.nexus, CDB: []byte{0x2a, 0, 0, 0, 0, 3, 0, 0, 1, 0}, DataOutLen: 512}
	if next := task.Start(); next != scsi.Pull {
		t.Fatal(next)
	}
	c, keys := reserve(nvme.ReservationAcquire, writeExclusive<<8|uint32(nvme.PreemptAndAbort), 2, 1)
	acquire := p.io.Start(c, keys, 0)
	<-p.port.ready
	if next := task.Resume(); next != scsi.Aborted {
		t.Errorf("the write under way: %v", next)
	}
	task.Release()
	if e, _ := p.io.Finish(acquire, keys, 0); e.Status != nvme.Success {
		t.Fatal(e.Status)
	}
	_, sense := p.port.do([]byte{3, 0, 0, 0, 18, 0}, nil)
	want("unit attention", fmt.Sprintf("% x", sense[12:14]), "2a 05") // REGISTRATIONS PREEMPTED
	const hostHolds = "1 1 2"
	fenced = fmt.Sprintf("port %v, host %v", scsi.ReservationConflict, nvme.Success)
	want("report", p.report(), hostHolds)
	want("the port is fenced", p.writes(), fenced)
	p.end()
	p = newParties(t, text)
	want("report after a restart", p.report(), hostHolds)
	want("the port is fenced after a restart", p.writes(), fenced)
	if s := p.reserve(nvme.ReservationRelease, nvme.Clear, 2, 0); s != nvme.Success {
		t.Fatal(s)
	}
	want("nobody holds it", p.writes(), fmt.Sprintf("port %v, host %v", scsi.Good, nvme.Success))
	p.end()
}
