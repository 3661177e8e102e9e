package iscsi

import (
	"strings"
	"testing"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/backend/memory"
	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
	"oneshot/scsi"
)

// A command for whose unsolicited data there is no memory while it waits for its turn ends in TASK SET FULL when that has
// come, and not before: its answer would be one to a command that the session has not begun.
func TestRefusedBeforeItsTurn(t *testing.T) {
	_, a, b, ra, rb := pair(t)
	command(a, 9, first, false, testUnitReady, 0)
	ra.take()
	command(b, 10, first+2, false, write1(), 512)
	drive(b, func() { b.Refuse(b.Find(10)) })
	if got := rb.take(); got != "" {
		t.Fatalf("before its turn: %q", got)
	}
	command(a, 11, first+1, false, testUnitReady, 0)
	if got := rb.take(); got != "answer 10" || rb.status != scsi.TaskSetFull {
		t.Errorf("%q, status %v", got, rb.status)
	}
}

// One that is aborted instead, or whose connection is lost, leaves nothing.
func TestRefusedThenOver(t *testing.T) {
	for _, lost := range []bool{false, true} {
		_, a, b, ra, rb := pair(t)
		command(a, 9, first, false, testUnitReady, 0)
		command(b, 10, first+2, false, write1(), 512)
		drive(b, func() { b.Refuse(b.Find(10)) })
		if lost {
			drive(b, func() { b.Lost(nil) })
			if got := rb.take(); got != "forget 10" || b.state != stateFree {
				t.Errorf("lost: %q, %v", got, b.state)
			}
			continue
		}
		ra.take()
		f := pdu.TaskManagementRequestFields{Immediate: true, Function: pdu.TaskAbortTask, ITT: 40, ReferencedTaskTag: 10, RefCmdSN: first + 2, CmdSN: first + 3}
		drive(a, func() { a.Receive(f.AppendTo(nil), nil) })
		if x, y := ra.take(), rb.take(); x != "Task Management Function Response" || y != "forget 10" {
			t.Errorf("aborted: %q, %q", x, y)
		}
	}
}

// A command waits on a connection whose address leaves, and its turn comes on another one meanwhile: it is not executed,
// and keeps neither the connection nor its number.
func TestTurnAfterAddressHasLeft(t *testing.T) {
	n, a, b, ra, rb := pair(t)
	command(a, 9, first, false, testUnitReady, 0)
	command(b, 10, first+2, false, write1(), 512)
	ra.take()
	rb.at = "elsewhere"
	n.LeaveAddress(rb.at)
	if got := rb.take(); got != "Asynchronous Message, terminate true" {
		t.Fatalf("%q", got)
	}
	command(a, 11, first+1, false, testUnitReady, 0)
	command(a, 12, first+3, false, testUnitReady, 0)
	if x, y := ra.take(), rb.take(); x != "answer 11, answer 12" || y != "forget 10" {
		t.Errorf("%q, %q", x, y)
	}
	drive(b, func() { b.Lost(nil) })
	if got := rb.take(); got != "" || b.state != stateFree {
		t.Fatalf("when it is lost: %q, %v", got, b.state)
	}
	f, text := request(a.sess.TSIH, 1)
	if _, rc := begin(t, n, f, text); rc.take() != "Login Response" || rc.last[36] != 0 {
		t.Errorf("its number is not free: status % x", []byte(rc.last[36:38]))
	}
}

// RFC 7143 §11.5.1: who was told that a command is aborted which has not come sends it no more. So its place in the order is
// taken for good, and not until the connection is lost on which that was said.
func TestPlaceOutlivesConnection(t *testing.T) {
	for _, arrived := range []bool{false, true} {
		_, a, b, ra, rb := pair(t)
		command(a, 9, first, false, testUnitReady, 0)
		if arrived {
			command(b, 10, first+2, false, write1(), 512)
		}
		f := pdu.TaskManagementRequestFields{Immediate: true, Function: pdu.TaskAbortTask, ITT: 40, ReferencedTaskTag: 10, RefCmdSN: first + 2, CmdSN: first + 3}
		drive(b, func() { b.Receive(f.AppendTo(nil), nil) })
		if got := rb.take(); !strings.HasSuffix(got, "Task Management Function Response") || rb.last[2] != byte(pdu.TaskFunctionComplete) {
			t.Fatalf("%q, response %d", got, rb.last[2])
		}
		drive(b, func() { b.Lost(nil) })
		ra.take()
		command(a, 11, first+1, false, testUnitReady, 0)
		command(a, 12, first+3, false, testUnitReady, 0)
		if got := ra.take(); got != "answer 11, answer 12" {
			t.Errorf("the command had come: %v; behind it: %q", arrived, got)
		}
	}
}

// A function that aborts sets of tasks is answered when they are over, those too that wait for their turn: after that the
// initiator uses their memory and tags for others. What it has sent later, or for other logical units, goes on.
func TestSetsWithWaitingCommands(t *testing.T) {
	for fn, everywhere := range map[pdu.TaskFunction]bool{
		pdu.TaskAbortTaskSet: false, pdu.TaskClearTaskSet: false, pdu.TaskLogicalUnitReset: false, pdu.TaskTargetWarmReset: true,
	} {
		_, a, b, ra, rb := pair(t)
		command(a, 9, first, false, testUnitReady, 0)
		ra.take()
		command(b, 10, first+2, false, write1(), 512)
		other := pdu.SCSICommandFields{Final: true, ITT: 12, CmdSN: first + 3, CDB: testUnitReady, LUN: 1 << 48}
		h, err := pdu.ParseSCSICommand(other.AppendTo(nil))
		if err != nil {
			t.Fatal(err)
		}
		drive(b, func() { b.Command(&Task{Conn: b}, h) })
		f := pdu.TaskManagementRequestFields{Immediate: true, Function: fn, ITT: 40, CmdSN: first + 4}
		drive(a, func() { a.Receive(f.AppendTo(nil), nil) })
		want, then := "forget 10, NOP-In", "answer 12"
		if everywhere {
			want, then = "forget 10, forget 12, NOP-In", ""
		}
		got := rb.take()
		if everywhere && got == "forget 12, forget 10, NOP-In" {
			got = want
		}
		if x := ra.take(); x != "" || got != want {
			t.Fatalf("%v: %q, %q", fn, x, got)
		}
		answer := pdu.NOPOutFields{Immediate: true, ITT: pdu.ReservedTag, TTT: rb.last.TTT(), CmdSN: first + 4}
		drive(b, func() { b.Receive(answer.AppendTo(nil), nil) })
		if got := ra.take(); got != "Task Management Function Response" || ra.last[2] != 0 {
			t.Fatalf("%v: %q, response %d", fn, got, ra.last[2])
		}
		command(a, 11, first+1, false, testUnitReady, 0)
		if x, y := ra.take(), rb.take(); x != "answer 11" || y != then {
			t.Errorf("%v, afterwards: %q, %q", fn, x, y)
		}
		inOrder := pdu.TaskManagementRequestFields{Function: fn, ITT: 41, CmdSN: first + 4}
		command(b, 14, first+5, false, write1(), 512)
		drive(a, func() { a.Receive(inOrder.AppendTo(nil), nil) })
		if got := rb.take(); strings.Contains(got, "forget") || b.Find(14) == nil && !strings.Contains(got, "answer 14") {
			t.Errorf("%v, and a command behind it: %q", fn, got)
		}
	}
}

// Task management functions that wait for a task which the store does not return, or for another connection, have a bound.
func TestManagingIsBounded(t *testing.T) {
	inner, err := memory.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	store := faulty.New(inner, 1)
	_, c, r := sessionOn(t, store)
	command(c, 9, first, false, testUnitReady, 0)
	gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}, Times: 1})
	command(c, 10, first+1, false, write1(), 512)
	drive(c, func() { c.GotData(c.Find(10)) })
	gate.Await(1)
	r.take()
	manage := func(itt uint32, immediate bool) {
		f := pdu.TaskManagementRequestFields{Immediate: immediate, Function: pdu.TaskLogicalUnitReset, ITT: itt, CmdSN: c.sess.ExpCmdSN}
		drive(c, func() { c.Receive(f.AppendTo(nil), nil) })
	}
	for i := range maxManaging {
		manage(uint32(100+i), true)
	}
	if got := r.take(); got != "" {
		t.Errorf("while the store has the task: %q", got)
	}
	manage(200, true)
	if got := r.take(); got != "Reject" {
		t.Errorf("one more: %q", got)
	}
	manage(201, false)
	if got := r.take(); got != "Task Management Function Response" || pdu.TaskResponse(r.last[2]) != pdu.TaskFunctionRejected {
		t.Errorf("one more, in order: %q, response %d", got, r.last[2])
	}
	gate.Release()
	if got := strings.Count(r.take(), "Task Management Function Response"); got != maxManaging || c.sess.managing != 0 {
		t.Errorf("%d are answered, and %d wait", got, c.sess.managing)
	}
	manage(202, true)
	if got := r.take(); got != "Task Management Function Response" {
		t.Errorf("afterwards: %q", got)
	}
}

// What waits for nothing is answered at once, however much comes at a time.
func TestManagingInOneBatch(t *testing.T) {
	_, c, r := session(t)
	drive(c, func() {
		for i := range 2 * maxManaging {
			f := pdu.TaskManagementRequestFields{Immediate: true, Function: pdu.TaskLogicalUnitReset, ITT: uint32(100 + i), CmdSN: c.sess.ExpCmdSN}
			c.Receive(f.AppendTo(nil), nil)
		}
	})
	if got := r.take(); strings.Count(got, "Task Management Function Response") != 2*maxManaging || c.sess.managing != 0 {
		t.Errorf("%q, and %d wait", got, c.sess.managing)
	}
}

// An initiator may abort each of its commands by itself, and then all at once.
func TestEachIsAborted(t *testing.T) {
	inner, err := memory.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	store := faulty.New(inner, 1)
	_, c, r := sessionOn(t, store)
	c.sess.Window = 3 * maxManaging
	command(c, 9, first, false, testUnitReady, 0)
	gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}})
	for i := range c.sess.Window {
		command(c, uint32(10+i), first+1+serial.SN(i), false, write1(), 512)
		drive(c, func() { c.GotData(c.Find(uint32(10 + i))) })
	}
	gate.Await(c.sess.Window)
	r.take()
	manage := func(itt uint32, fn pdu.TaskFunction, ref uint32) {
		f := pdu.TaskManagementRequestFields{Immediate: true, Function: fn, ITT: itt, ReferencedTaskTag: ref, CmdSN: c.sess.ExpCmdSN}
		drive(c, func() { c.Receive(f.AppendTo(nil), nil) })
	}
	for i := range c.sess.Window {
		manage(uint32(100+i), pdu.TaskAbortTask, uint32(10+i))
	}
	manage(200, pdu.TaskLogicalUnitReset, 0)
	if got := r.take(); got != "" {
		t.Errorf("while the store has the tasks: %q", got)
	}
	manage(201, pdu.TaskAbortTask, 10)
	if got := r.take(); got != "Reject" {
		t.Errorf("one more: %q", got)
	}
	gate.Release()
	if got := strings.Count(r.take(), "Task Management Function Response"); got != c.sess.Window+1 || c.sess.managing+c.sess.aborting != 0 {
		t.Errorf("%d are answered, and %d and %d wait", got, c.sess.managing, c.sess.aborting)
	}
}

// So have those that wait for the answer to a ping, and logouts of connections.
func TestManagingOverConnectionsIsBounded(t *testing.T) {
	_, a, b, ra, rb := pair(t)
	for i := range maxManaging + 1 {
		f := pdu.TaskManagementRequestFields{Immediate: true, Function: pdu.TaskLogicalUnitReset, ITT: uint32(100 + i), CmdSN: first}
		drive(a, func() { a.Receive(f.AppendTo(nil), nil) })
	}
	if x, y := ra.take(), rb.take(); x != "Reject" || y != "NOP-In" {
		t.Errorf("%q, %q", x, y)
	}
	drive(b, func() { b.Lost(nil) })
	if got := strings.Count(ra.take(), "Task Management Function Response"); got != maxManaging || a.sess.managing != 0 {
		t.Errorf("%d are answered, and %d wait", got, a.sess.managing)
	}
}

func TestLogoutsAreBounded(t *testing.T) {
	_, a, b, ra, rb := pair(t)
	rb.fetches = true // the mover keeps the memory of what it fetches
	command(b, 9, first, false, testUnitReady, 0)
	command(b, 10, first+1, false, write1(), 512)
	rb.take()
	task := b.Find(10)
	for i := range maxManaging + 1 {
		f := pdu.LogoutRequestFields{Immediate: true, Reason: pdu.LogoutCloseConnection, ITT: uint32(100 + i), CID: b.CID, CmdSN: first + 2}
		drive(a, func() { a.Receive(f.AppendTo(nil), nil) })
	}
	if got := ra.take(); got != "Reject" {
		t.Errorf("%q", got)
	}
	drive(b, func() { b.Forgotten(task) })
}
