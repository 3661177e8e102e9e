package iscsi

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"oneshot/backend"
	"oneshot/backend/memory"
	"oneshot/internal/serial"
	"oneshot/iscsi/login"
	"oneshot/iscsi/pdu"
	"oneshot/mem"
	"oneshot/scsi"
	"oneshot/volume"
)

// recorder is a datamover that writes down what it is asked for.
type recorder struct {
	c    *Conn
	said []string
	free int // tasks given back
	sent []*Task
	last pdu.Header
	data string // of last
	end  Ending // of last
	how  Termination
	hung bool // what HungUp says
	at   string
	// fetches: Forgotten has to come.
	fetches bool
	// keeps: answers do not leave.
	keeps bool

	status scsi.Status // of the last answer
}

func (r *recorder) say(format string, args ...any) {
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func (r *recorder) FreeTask(*Task)            { r.free++ }
func (r *recorder) GetData(t *Task)           { r.say("fetch %d", t.ITT) }
func (r *recorder) Forget(t *Task) bool       { r.say("forget %d", t.ITT); return !r.fetches }
func (r *recorder) Enable(*login.Params, int) {}
func (r *recorder) Terminate(how Termination) {
	r.how = how
	r.say("terminate %v", how != AtOnce)
}
func (r *recorder) Peer() string      { return "peer" }
func (r *recorder) Local() string     { return cmp.Or(r.at, "local") }
func (r *recorder) Transport() string { return "tcp" }
func (r *recorder) HungUp() bool      { return r.hung }
func (r *recorder) Count(tell func(string, uint64)) {
	tell("posts", 3)
	tell("polls", 4)
}

func (r *recorder) Answer(t *Task) {
	r.c.Status()
	r.say("answer %d", t.ITT)
	r.sent = append(r.sent, t)
	r.status = t.Status
}

func (r *recorder) SendControl(b, data []byte, end Ending) {
	r.end = end
	r.data = string(data)
	r.last = append(pdu.Header(nil), b...)
	r.say("%v", r.last.Opcode())
}

func (r *recorder) Flush() {
	if r.keeps {
		return
	}
	for _, t := range r.sent {
		r.c.Sent(t)
	}
	r.sent = nil
}

// take returns what was said since the last take.
func (r *recorder) take() string {
	defer func() { r.said = nil }()
	return strings.Join(r.said, ", ")
}

const firstCmdSN serial.SN = 0xfffffffe // the numbers wrap soon

// admit has the node expect a connection.
func admit(t testing.TB, n *Node) {
	t.Helper()
	if !n.Admit() {
		t.Fatal("no connection is admitted")
	}
}

// session returns a connection in the full feature phase, with a window of four commands.
func session(t testing.TB, keys ...string) (*Node, *Conn, *recorder) {
	t.Helper()
	store, err := memory.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	return sessionOn(t, store, keys...)
}

// sessionOn is session with a disk of that store.
func sessionOn(t testing.TB, store backend.Store, keys ...string) (*Node, *Conn, *recorder) {
	t.Helper()
	pool := mem.NewPool(1 << 20)
	n := NewNode(Config{
		Login: login.DefaultConfig(), Connections: 10, Sessions: 10, Commands: 4, MemoryPerConnection: 1 << 20,
		LoginTimeout: 15, NOPInterval: 30, NOPTimeout: 10, ReadTimeout: 70, Pool: pool, Logger: slog.New(slog.DiscardHandler),
		Rand: bytes.NewReader(nil),
	})
	v, err := volume.New(volume.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	lu, err := scsi.NewLogicalUnit(scsi.LUConfig{Volume: v, Serial: "1"})
	if err != nil {
		t.Fatal(err)
	}
	target := scsi.NewTarget(scsi.TargetConfig{Name: "iqn.t:t"})
	target.SetLU(0, lu)
	n.AddTarget(&Target{Name: "iqn.t:t", SCSI: target})
	r := new(recorder)
	admit(t, n)
	r.c = n.NewConn(r)
	text := strings.Join(append([]string{"InitiatorName=iqn.c:1", "TargetName=iqn.t:t", "ImmediateData=No"}, keys...), "\x00") + "\x00"
	f := pdu.LoginRequestFields{
		Transit: true, CSG: pdu.StageLoginOperationalNegotiation, NSG: pdu.StageFullFeaturePhase, CmdSN: firstCmdSN, ITT: 1,
		DataSegmentLength: len(text),
	}
	drive(r.c, func() { r.c.Receive(f.AppendTo(nil), []byte(text)) })
	if got := r.take(); got != "Login Response" || r.last[36] != 0 {
		t.Fatalf("login: %s", got)
	}
	t.Cleanup(func() {
		drive(r.c, func() { r.c.Lost(nil) })
		if len(n.guests.List()) != 0 || lu.Close() != nil || v.Close() != nil || pool.Stats().Leases != 0 {
			t.Error("something of the session is left")
		}
	})
	return n, r.c, r
}

func drive(c *Conn, f func()) {
	c.Lock()
	f()
	c.Unlock()
}

func command(c *Conn, itt uint32, sn serial.SN, immediate bool, cdb []byte, edtl uint32) {
	f := pdu.SCSICommandFields{Immediate: immediate, Final: true, Write: edtl > 0, ITT: itt, CmdSN: sn, CDB: cdb, EDTL: edtl}
	h, err := pdu.ParseSCSICommand(f.AppendTo(nil))
	if err != nil {
		panic(err)
	}
	drive(c, func() { c.Command(&Task{Conn: c}, h) })
}

var testUnitReady = make([]byte, 6)

func write1() []byte {
	cdb := make([]byte, 10)
	cdb[0] = 0x2a
	binary.BigEndian.PutUint16(cdb[7:], 1)
	return cdb
}

// RFC 7143 §4.2.2.1: commands run in the order of their numbers, which wrap; what lies
// outside the window or came before is ignored; an immediate command takes no place.
func TestCommandOrder(t *testing.T) {
	_, c, r := session(t)
	for _, s := range []struct {
		name      string
		itt       uint32
		sn        serial.SN
		immediate bool
		want      string
	}{
		{"a hole", 11, 0xffffffff, false, ""},
		{"behind the hole, over the wrap", 12, 0, false, ""},
		{"twice in the hole", 13, 0, false, ""},
		{"immediate", 14, 0, true, "answer 14"},
		{"above the window", 15, 2, false, ""},
		{"below the window", 16, firstCmdSN - 1, false, ""},
		{"the hole is filled", 17, firstCmdSN, false, "answer 17, answer 11, answer 12"},
		{"seen before", 18, firstCmdSN, false, ""},
		{"next", 19, 1, false, "answer 19"},
	} {
		command(c, s.itt, s.sn, s.immediate, testUnitReady, 0)
		if got := r.take(); got != s.want {
			t.Errorf("%s: %q, want %q", s.name, got, s.want)
		}
	}
}

// The window closes with each command in progress, never moves back, and opens with answers.
func TestWindow(t *testing.T) {
	_, c, r := session(t)
	command(c, 9, firstCmdSN, false, testUnitReady, 0) // takes the unit attention
	sn := firstCmdSN + 1
	last := c.Sequence().MaxCmdSN
	for i := range uint32(4) {
		command(c, 20+i, sn, false, write1(), 512)
		sn++
		if q := c.Sequence(); q.ExpCmdSN != sn || q.MaxCmdSN != last {
			t.Fatalf("after %d writes: ExpCmdSN %d, MaxCmdSN %d; want %d, %d", i+1, q.ExpCmdSN, q.MaxCmdSN, sn, last)
		}
	}
	command(c, 30, sn, false, testUnitReady, 0)
	if got := r.take(); got != "answer 9, fetch 20, fetch 21, fetch 22, fetch 23" {
		t.Fatalf("%q", got)
	}
	drive(c, func() { c.GotData(c.Find(21)) })
	if q := c.Sequence(); r.take() != "answer 21" || q.MaxCmdSN != last+1 {
		t.Errorf("MaxCmdSN %d, want %d", q.MaxCmdSN, last+1)
	}
	f := pdu.TaskManagementRequestFields{Immediate: true, Function: pdu.TaskLogicalUnitReset, ITT: 40, CmdSN: sn}
	drive(c, func() { c.Receive(f.AppendTo(nil), nil) })
	if got := r.take(); !strings.HasSuffix(got, "Task Management Function Response") || strings.Count(got, "forget") != 3 {
		t.Errorf("LUN reset: %q", got)
	}
	if q := c.Sequence(); q.MaxCmdSN != last+4 {
		t.Errorf("MaxCmdSN %d after the reset, want %d", q.MaxCmdSN, last+4)
	}
}

// A silent initiator is pinged, and dropped when it stays silent. Pings take no StatSN.
func TestDeadPeer(t *testing.T) {
	n, c, r := session(t)
	stat := c.Sequence().StatSN
	tick := func(seconds int) {
		for range seconds {
			n.Tick()
		}
	}
	tick(29)
	if got := r.take(); got != "" {
		t.Fatalf("before the interval is over: %q", got)
	}
	tick(1)
	if got := r.take(); got != "NOP-In" || c.Sequence().StatSN != stat {
		t.Fatalf("%q, StatSN %d, want %d", got, c.Sequence().StatSN, stat)
	}
	f := pdu.NOPOutFields{Immediate: true, ITT: pdu.ReservedTag, TTT: r.last.TTT(), CmdSN: firstCmdSN}
	drive(c, func() { c.Heard(); c.Receive(f.AppendTo(nil), nil) })
	tick(30)
	if got := r.take(); got != "NOP-In" {
		t.Fatalf("a second ping: %q", got)
	}
	tick(11)
	if got := r.take(); got != "terminate true" {
		t.Errorf("without an answer: %q", got)
	}
}

// A ping of the initiator's is answered with its data.
func TestNOPOut(t *testing.T) {
	_, c, r := session(t)
	f := pdu.NOPOutFields{ITT: 5, TTT: pdu.ReservedTag, CmdSN: firstCmdSN, DataSegmentLength: 8}
	drive(c, func() { c.Receive(f.AppendTo(nil), []byte("nopping\x00")) })
	if got := r.take(); got != "NOP-In" || r.last.ITT() != 5 || r.last.DataSegmentLen() != 8 || r.last.TTT() != pdu.ReservedTag {
		t.Errorf("%q % x", got, []byte(r.last))
	}
}

// Requests that a target of error recovery level 0 has no use for are rejected, and the
// session lives on; a logout ends it.
func TestRejectsAndLogout(t *testing.T) {
	_, c, r := session(t)
	snack := pdu.SNACKFields{ITT: 1, TTT: pdu.ReservedTag}
	drive(c, func() { c.Receive(snack.AppendTo(nil), nil) })
	again := pdu.LoginRequestFields{CSG: pdu.StageLoginOperationalNegotiation, CmdSN: firstCmdSN}
	drive(c, func() { c.Receive(again.AppendTo(nil), nil) })
	odd := append([]byte{0x1c}, make([]byte, pdu.BHSLen-1)...)
	drive(c, func() { c.Receive(odd, nil) })
	recovery := pdu.LogoutRequestFields{Reason: pdu.LogoutRemoveForRecovery, ITT: 6, CmdSN: firstCmdSN}
	drive(c, func() { c.Receive(recovery.AppendTo(nil), nil) })
	if got := r.take(); got != "Reject, Reject, Reject, Logout Response" || r.last[2] != byte(pdu.LogoutRecoveryNotSupported) {
		t.Fatalf("%q % x", got, []byte(r.last))
	}
	leave := pdu.LogoutRequestFields{Reason: pdu.LogoutCloseSession, ITT: 7, CmdSN: firstCmdSN + 1}
	drive(c, func() { c.Receive(leave.AppendTo(nil), nil) })
	if got := r.take(); got != "Logout Response, terminate true" || r.last[2] != byte(pdu.LogoutSuccess) {
		t.Errorf("%q", got)
	}
}

// RFC 7145 §6.5: the echo of a ping is no longer than InitiatorRecvDataSegmentLength, which stands for
// MaxRecvDataSegmentLength over iSER.
func TestPingOverISER(t *testing.T) {
	_, c, r := session(t)
	c.Params.RDMAExtensions, c.Params.InitiatorRecvDataSegmentLength = true, 512
	f := pdu.NOPOutFields{Immediate: true, ITT: 5, TTT: pdu.ReservedTag, CmdSN: first, DataSegmentLength: 1000}
	drive(c, func() { c.Receive(f.AppendTo(nil), make([]byte, 1000)) })
	h, err := pdu.ParseNOPIn(r.last)
	if err != nil || h.DataSegmentLen() != 512 {
		t.Errorf("%v, %d octets", err, h.DataSegmentLen())
	}
}
