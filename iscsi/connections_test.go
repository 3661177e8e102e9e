package iscsi

import (
	"strings"
	"testing"

	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
)

// first is a variable, so that numbers counted from it wrap.
var first = firstCmdSN

// request is a login for a session with this TSIH, by a connection with this CID.
func request(tsih, cid uint16, keys ...string) (pdu.LoginRequestFields, string) {
	text := strings.Join(append([]string{"InitiatorName=iqn.c:1", "TargetName=iqn.t:t"}, keys...), "\x00") + "\x00"
	return pdu.LoginRequestFields{
		Transit: true, CSG: pdu.StageLoginOperationalNegotiation, NSG: pdu.StageFullFeaturePhase, CmdSN: 77, ITT: 1,
		TSIH: tsih, CID: cid, DataSegmentLength: len(text),
	}, text
}

// begin opens a connection and sends one login request.
func begin(t *testing.T, n *Node, f pdu.LoginRequestFields, text string) (*Conn, *recorder) {
	t.Helper()
	r := new(recorder)
	admit(t, n)
	r.c = n.NewConn(r)
	t.Cleanup(func() { drive(r.c, func() { r.c.Lost(nil) }) })
	drive(r.c, func() { r.c.Receive(f.AppendTo(nil), []byte(text)) })
	return r.c, r
}

// pair returns a session with two connections, CIDs 0 and 1.
func pair(t *testing.T) (n *Node, a, b *Conn, ra, rb *recorder) {
	t.Helper()
	n, a, ra = session(t, "MaxConnections=2")
	b, rb = second(t, n, a)
	return n, a, b, ra, rb
}

// second opens a second connection of a's session, with CID 1.
func second(t *testing.T, n *Node, a *Conn) (b *Conn, rb *recorder) {
	t.Helper()
	f, text := request(a.sess.TSIH, 1)
	b, rb = begin(t, n, f, text)
	if got := rb.take(); got != "Login Response" || rb.last[36] != 0 {
		t.Fatalf("the second connection: %q, status % x", got, []byte(rb.last[36:38]))
	}
	if b.sess != a.sess || len(n.Sessions()) != 1 || len(n.Sessions()[0].Connections) != 2 {
		t.Fatalf("%+v", n.Sessions())
	}
	return b, rb
}

// RFC 7143 §4.2.2.1: one order of commands over all connections of a session. Each answers what
// came on it.
func TestOrderOverConnections(t *testing.T) {
	_, a, b, ra, rb := pair(t)
	command(a, 9, first, false, testUnitReady, 0)
	ra.take()
	command(b, 12, first+2, false, testUnitReady, 0)
	command(b, 14, first+4, false, write1(), 512)
	command(a, 13, first+3, false, testUnitReady, 0)
	if got := ra.take() + rb.take(); got != "" {
		t.Fatalf("behind the hole: %q", got)
	}
	command(a, 11, first+1, false, testUnitReady, 0)
	if x, y := ra.take(), rb.take(); x != "answer 11, answer 13" || y != "answer 12, fetch 14" {
		t.Errorf("the hole is filled: %q, %q", x, y)
	}
	if qa, qb := a.Sequence(), b.Sequence(); qa.ExpCmdSN != first+5 || qa.ExpCmdSN != qb.ExpCmdSN || qa.MaxCmdSN != qb.MaxCmdSN {
		t.Errorf("%+v and %+v", qa, qb)
	}
	command(a, 15, first+4, false, testUnitReady, 0)
	if got := ra.take(); got != "" {
		t.Errorf("a number that came on the other connection: %q", got)
	}
	drive(b, func() { b.GotData(b.Find(14)) })
	if got := rb.take(); got != "answer 14" {
		t.Errorf("%q", got)
	}
}

// The parameters of a session are its leading connection's; digests and segment lengths are each
// connection's own (RFC 7143 §13).
func TestParametersOfConnections(t *testing.T) {
	n, a, _ := session(t, "MaxConnections=3", "MaxBurstLength=4096", "FirstBurstLength=4096")
	f, text := request(a.sess.TSIH, 1, "HeaderDigest=CRC32C", "MaxBurstLength=512", "MaxConnections=1", "MaxRecvDataSegmentLength=1024")
	b, r := begin(t, n, f, text)
	if got := r.take(); got != "Login Response" {
		t.Fatal(got)
	}
	for _, want := range []string{"HeaderDigest=CRC32C\x00", "MaxBurstLength=Irrelevant\x00", "MaxConnections=Irrelevant\x00"} {
		if !strings.Contains(r.data, want) {
			t.Errorf("%q lacks %q", r.data, want)
		}
	}
	if p := b.Params; !p.HeaderDigest || p.MaxBurstLength != 4096 || p.MaxRecvDataSegmentLength != 1024 || p.MaxConnections != 3 {
		t.Errorf("%+v", p)
	}
	if p := a.Params; p.HeaderDigest || p.MaxRecvDataSegmentLength != 8192 {
		t.Errorf("the leading connection's: %+v", p)
	}
	// The numbers of the session go on, whatever the login of a further connection says.
	if sn := serial.SN(uint32(r.last[28])<<24 | uint32(r.last[29])<<16 | uint32(r.last[30])<<8 | uint32(r.last[31])); sn != first {
		t.Errorf("ExpCmdSN %d", sn)
	}
}

func TestJoiningRefused(t *testing.T) {
	n, a, _, _, _ := pair(t)
	tsih := a.sess.TSIH
	for _, s := range []struct {
		name   string
		change func(*pdu.LoginRequestFields)
		setup  func()
		want   pdu.LoginStatus
	}{
		{"one too many", func(*pdu.LoginRequestFields) {}, func() {}, pdu.LoginTooManyConnections},
		{"no such session", func(f *pdu.LoginRequestFields) { f.TSIH++ }, func() {}, pdu.LoginSessionDoesNotExist},
		{"another initiator port", func(f *pdu.LoginRequestFields) { f.ISID[5] = 9 }, func() {}, pdu.LoginSessionDoesNotExist},
		{"another portal group", func(f *pdu.LoginRequestFields) {}, func() {
			n.SetPortals([]Portal{{Group: 2, Transport: "tcp", Reached: func(string) (string, bool) { return "local", true }}})
		}, pdu.LoginCannotIncludeInSession},
	} {
		s.setup()
		f, text := request(tsih, 2)
		s.change(&f)
		_, r := begin(t, n, f, text)
		if status := pdu.LoginStatus(uint16(r.last[36])<<8 | uint16(r.last[37])); status != s.want {
			t.Errorf("%s: %v, want %v", s.name, status, s.want)
		}
		if got := r.take(); got != "Login Response, terminate true" {
			t.Errorf("%s: %q", s.name, got)
		}
	}
}

// When one connection is lost, its commands end, those of the others and the session do not. What
// it has left open in the order of commands may come on another.
func TestOneConnectionLost(t *testing.T) {
	n, a, b, ra, rb := pair(t)
	command(a, 9, first, false, testUnitReady, 0)
	command(a, 10, first+1, false, write1(), 512)
	command(b, 20, first+2, false, write1(), 512)
	command(a, 11, first+4, false, testUnitReady, 0) // waits for +3
	ra.take()
	rb.take()
	drive(a, func() { a.Lost(nil) })
	if got := ra.take(); !strings.Contains(got, "forget 10") || !strings.Contains(got, "forget 11") || a.state != stateFree {
		t.Errorf("the lost one: %q, %v", got, a.state)
	}
	if list := n.Sessions(); len(list) != 1 || len(list[0].Connections) != 1 || list[0].Connections[0].CID != 1 {
		t.Fatalf("%+v", list)
	}
	drive(b, func() { b.GotData(b.Find(20)) })
	command(b, 21, first+3, false, testUnitReady, 0)
	command(b, 11, first+4, false, testUnitReady, 0)
	if got := rb.take(); got != "answer 20, answer 21, answer 11" {
		t.Errorf("the other one: %q", got)
	}
	drive(b, func() { b.Lost(nil) })
	if len(n.Sessions()) != 0 || len(n.sessions) != 0 {
		t.Error("the session outlives its last connection")
	}
}

// RFC 7143 §6.3.4: a login with the CID of a connection takes its place, when its commands are over.
func TestConnectionReinstated(t *testing.T) {
	for _, alone := range []bool{true, false} {
		n, a, b, ra, rb := pair(t)
		if alone {
			drive(b, func() { b.Lost(nil) })
		}
		command(a, 9, first, false, testUnitReady, 0)
		command(a, 10, first+1, false, write1(), 512)
		ra.take()
		f, text := request(a.sess.TSIH, 0)
		c, rc := begin(t, n, f, text)
		if got := ra.take(); got != "terminate false" || rc.take() != "" {
			t.Fatalf("the old one: %q", got)
		}
		drive(a, func() { a.Lost(nil) })
		if got := rc.take(); got != "Login Response" || rc.last[36] != 0 {
			t.Fatalf("the new one: %q", got)
		}
		command(c, 11, first+2, false, testUnitReady, 0)
		if got := rc.take(); got != "answer 11" {
			t.Errorf("%q", got) // and no unit attention: the nexus is what it was
		}
		if got := rb.take(); got != "" {
			t.Errorf("the other connection: %q", got)
		}
	}
}

// One that waits to take another's place, and is lost, does not keep the session.
func TestReinstatingConnectionLost(t *testing.T) {
	n, a, b, _, _ := pair(t)
	drive(b, func() { b.Lost(nil) })
	command(a, 9, first, false, testUnitReady, 0)
	command(a, 10, first+1, false, write1(), 512)
	f, text := request(a.sess.TSIH, 0)
	c, rc := begin(t, n, f, text)
	drive(c, func() { c.Lost(nil) })
	drive(a, func() { a.Lost(nil) })
	if got := rc.take(); got != "" || len(n.sessions) != 0 {
		t.Errorf("%q, %d sessions", got, len(n.sessions))
	}
}

func TestLogoutOfConnections(t *testing.T) {
	logout := func(c *Conn, sn serial.SN, reason pdu.LogoutReason, cid uint16) {
		f := pdu.LogoutRequestFields{Reason: reason, ITT: 7, CID: cid, CmdSN: sn}
		drive(c, func() { c.Receive(f.AppendTo(nil), nil) })
	}
	t.Run("the other", func(t *testing.T) {
		n, a, b, ra, rb := pair(t)
		command(b, 9, first, false, testUnitReady, 0)
		command(b, 10, first+1, false, write1(), 512)
		rb.take()
		logout(a, first+2, pdu.LogoutCloseConnection, 1)
		if x, y := ra.take(), rb.take(); x != "Logout Response" || y != "forget 10, terminate true" {
			t.Errorf("%q, %q", x, y)
		}
		drive(b, func() { b.Lost(nil) })
		logout(a, first+3, pdu.LogoutCloseConnection, 1)
		if got := ra.take(); got != "Logout Response" || ra.last[2] != byte(pdu.LogoutCIDNotFound) || len(n.sessions) != 1 {
			t.Errorf("%q, response %d", got, ra.last[2])
		}
	})
	t.Run("itself", func(t *testing.T) {
		n, a, b, ra, rb := pair(t)
		logout(a, first, pdu.LogoutCloseConnection, 0)
		if x, y := ra.take(), rb.take(); x != "Logout Response, terminate true" || y != "" {
			t.Errorf("%q, %q", x, y)
		}
		command(b, 10, first+1, false, testUnitReady, 0)
		if got := rb.take(); got != "answer 10" || len(n.sessions) != 1 {
			t.Errorf("%q", got)
		}
	})
	t.Run("session", func(t *testing.T) {
		n, a, b, ra, rb := pair(t)
		command(b, 9, first, false, testUnitReady, 0)
		command(b, 10, first+1, false, write1(), 512)
		rb.take()
		logout(a, first+2, pdu.LogoutCloseSession, 0)
		if x, y := ra.take(), rb.take(); x != "Logout Response, terminate true" || y != "forget 10, terminate true" {
			t.Errorf("%q, %q", x, y)
		}
		drive(a, func() { a.Lost(nil) })
		drive(b, func() { b.Lost(nil) })
		if len(n.sessions) != 0 {
			t.Error("the session is left")
		}
	})
}

// RFC 7143 §4.2.3.3: the answer to a reset waits until the initiator has seen what other
// connections were sent before; tasks there are aborted, too.
func TestResetOverConnections(t *testing.T) {
	for _, lost := range []bool{false, true} {
		_, a, b, ra, rb := pair(t)
		command(b, 9, first, false, testUnitReady, 0)
		command(b, 10, first+1, false, write1(), 512)
		rb.take()
		f := pdu.TaskManagementRequestFields{Immediate: true, Function: pdu.TaskLogicalUnitReset, ITT: 40, CmdSN: first + 2}
		drive(a, func() { a.Receive(f.AppendTo(nil), nil) })
		if x, y := ra.take(), rb.take(); x != "" || y != "forget 10, NOP-In" {
			t.Fatalf("%q, %q", x, y)
		}
		if lost {
			drive(b, func() { b.Lost(nil) })
		} else {
			f := pdu.NOPOutFields{Immediate: true, ITT: pdu.ReservedTag, TTT: rb.last.TTT(), CmdSN: first + 2}
			drive(b, func() { b.Receive(f.AppendTo(nil), nil) })
		}
		if got := ra.take(); got != "Task Management Function Response" || ra.last[2] != 0 {
			t.Errorf("%q, response %d", got, ra.last[2])
		}
	}
}

// A task is aborted from another connection than its own.
func TestAbortFromAnotherConnection(t *testing.T) {
	_, a, b, ra, rb := pair(t)
	command(b, 9, first, false, testUnitReady, 0)
	command(b, 10, first+1, false, write1(), 512)
	rb.take()
	f := pdu.TaskManagementRequestFields{
		Immediate: true, Function: pdu.TaskAbortTask, ITT: 40, ReferencedTaskTag: 10, RefCmdSN: first + 1, CmdSN: first + 2,
	}
	drive(a, func() { a.Receive(f.AppendTo(nil), nil) })
	if got := rb.take(); got != "forget 10, NOP-In" {
		t.Errorf("%q", got)
	}
	answer := pdu.NOPOutFields{Immediate: true, ITT: pdu.ReservedTag, TTT: rb.last.TTT(), CmdSN: first + 2}
	drive(b, func() { b.Receive(answer.AppendTo(nil), nil) })
	if got := ra.take(); got != "Task Management Function Response" || ra.last[2] != byte(pdu.TaskFunctionComplete) {
		t.Errorf("%q", got)
	}
}

// A login for a new session ends all connections of the old one.
func TestReinstatementOfTwoConnections(t *testing.T) {
	n, a, b, ra, rb := pair(t)
	fresh, is := logInAgain(t, n)
	if x, y := ra.take(), rb.take(); x != "terminate false" || y != x || is.take() != "" {
		t.Fatalf("%q, %q", x, y)
	}
	drive(a, func() { a.Lost(nil) })
	if got := is.take(); got != "" {
		t.Fatalf("one connection is left: %q", got)
	}
	drive(b, func() { b.Lost(nil) })
	if got := is.take(); got != "Login Response" || is.last[36] != 0 {
		t.Errorf("%q", got)
	}
	drive(fresh, func() { fresh.Lost(nil) })
}

// A command that waits for its turn can be aborted; its place in the order is kept.
func TestAbortOfAWaitingCommand(t *testing.T) {
	_, a, b, ra, rb := pair(t)
	command(a, 9, first, false, testUnitReady, 0)
	ra.take()
	command(b, 10, first+2, false, write1(), 512)
	manage := func(fn pdu.TaskFunction) byte {
		f := pdu.TaskManagementRequestFields{Immediate: true, Function: fn, ITT: 40, ReferencedTaskTag: 10, RefCmdSN: first + 2, CmdSN: first + 3}
		drive(a, func() { a.Receive(f.AppendTo(nil), nil) })
		if got := ra.take(); got != "Task Management Function Response" {
			t.Fatalf("%v: %q", fn, got)
		}
		return ra.last[2]
	}
	if r := manage(pdu.TaskAbortTask); r != byte(pdu.TaskFunctionComplete) || b.Find(10) != nil || rb.take() != "forget 10" {
		t.Errorf("response %d", r)
	}
	if r := manage(pdu.TaskAbortTask); r != byte(pdu.TaskFunctionComplete) {
		t.Errorf("once more: response %d", r)
	}
	command(a, 11, first+1, false, testUnitReady, 0)
	command(a, 12, first+3, false, testUnitReady, 0)
	if x, y := ra.take(), rb.take(); x != "answer 11, answer 12" || y != "" {
		t.Errorf("%q, %q", x, y)
	}
}

// Of two logins for the place of one connection, one gets it: the numbers of connections tell them
// apart.
func TestTwoSuccessors(t *testing.T) {
	n, a, _ := session(t, "MaxConnections=3")
	f, text := request(a.sess.TSIH, 1)
	old, rOld := begin(t, n, f, text)
	rOld.take()
	one, rOne := begin(t, n, f, text)
	two, rTwo := begin(t, n, f, text)
	if x, y, z := rOne.take(), rTwo.take(), rOld.take(); x != "" || y != "" || z != "terminate false, terminate false" {
		t.Fatalf("while the old one is there: %q, %q, %q", x, y, z)
	}
	drive(old, func() { old.Lost(nil) })
	if x, y := rOne.take(), rTwo.take(); x != "Login Response" || y != "terminate false" {
		t.Errorf("afterwards: %q, %q", x, y)
	}
	if one.state != stateFullFeature || two.state == stateFullFeature || a.sess.loggedIn(1) != one {
		t.Errorf("%v and %v", one.state, two.state)
	}
}

// RFC 7144 §4.1: task management functions 9 to 12 are those of a session that has agreed on iSCSIProtocolLevel 2. SAM-5 §7.8:
// QUERY TASK is complete if the task is not in the task set, wherever else it may be.
func TestFunctionsOfLevel2(t *testing.T) {
	for _, keys := range [][]string{{"MaxConnections=2"}, {"MaxConnections=2", "iSCSIProtocolLevel=2"}} {
		_, c, r := session(t, keys...)
		command(c, 9, first, false, testUnitReady, 0)
		command(c, 10, first+1, false, write1(), 512)
		command(c, 11, first+3, false, write1(), 512) // before its turn
		r.take()
		for _, q := range []struct {
			fn   pdu.TaskFunction
			ref  uint32
			want pdu.TaskResponse
		}{
			{pdu.TaskQueryTask, 10, pdu.TaskFunctionSucceeded},
			{pdu.TaskQueryTask, 11, pdu.TaskFunctionComplete},
			{pdu.TaskQueryTask, 77, pdu.TaskFunctionComplete},
			{pdu.TaskQueryTaskSet, pdu.ReservedTag, pdu.TaskFunctionSucceeded},
			{pdu.TaskQueryAsyncEvent, pdu.ReservedTag, pdu.TaskFunctionComplete},
			{pdu.TaskITNexusReset, pdu.ReservedTag, pdu.TaskFunctionComplete},
			{pdu.TaskQueryTaskSet, pdu.ReservedTag, pdu.TaskFunctionComplete},
			{pdu.TaskQueryAsyncEvent, pdu.ReservedTag, pdu.TaskFunctionSucceeded},
		} {
			want := q.want
			if len(keys) == 1 {
				want = pdu.TaskFunctionNotSupported
			}
			f := pdu.TaskManagementRequestFields{Immediate: true, Function: q.fn, ITT: 40, ReferencedTaskTag: q.ref, CmdSN: first + 4}
			drive(c, func() { c.Receive(f.AppendTo(nil), nil) })
			if got := pdu.TaskResponse(r.last[2]); got != want {
				t.Errorf("%v: %v of %d: response %d, want %d (%s)", keys, q.fn, q.ref, got, want, r.take())
			}
		}
	}
}
