package iscsi

import (
	"testing"

	"oneshot/iscsi/pdu"
)

// A mover is told which command a Reject refuses, which ABORT TASK a response answers, and that a
// logout ends the connection: it need not look at what it sends.
func TestMoverIsTold(t *testing.T) {
	_, c, r := session(t)
	send := func(task *Task, f pdu.SCSICommandFields) (taken bool) {
		h, err := pdu.ParseSCSICommand(f.AppendTo(nil))
		if err != nil {
			t.Fatal(err)
		}
		drive(c, func() { taken = c.Command(task, h) })
		return taken
	}
	command(c, 1, firstCmdSN, false, testUnitReady, 0) // takes the unit attention
	w := pdu.SCSICommandFields{Immediate: true, Final: true, Write: true, CDB: write1(), EDTL: 512, CmdSN: first + 1}
	for i := range uint32(maxImmediates) {
		w.ITT = 10 + i
		if !send(&Task{Conn: c}, w) {
			t.Fatalf("immediate command %d is not taken", i)
		}
	}
	w.ITT = 30
	refused := &Task{Conn: c}
	if send(refused, w) || r.last.Opcode() != pdu.OpReject || r.end != (Ending{Command: refused}) {
		t.Errorf("one more: %v, %+v", r.last.Opcode(), r.end)
	}
	w.ITT, w.Immediate, w.CmdSN = 31, false, firstCmdSN-100
	r.take()
	if ignored := (&Task{Conn: c}); send(ignored, w) || r.take() != "" || ignored.state != taskPooled {
		t.Errorf("a command outside of the window: %+v", ignored.state)
	}
	abort := pdu.TaskManagementRequestFields{Immediate: true, Function: pdu.TaskAbortTask, ITT: 40, ReferencedTaskTag: 12, CmdSN: first + 1}
	drive(c, func() { c.Receive(abort.AppendTo(nil), nil) })
	if got := r.take(); got != "forget 12, Task Management Function Response" || r.end != (Ending{Abort: true, ITT: 40}) {
		t.Errorf("%q, %+v", got, r.end)
	}
	reset := pdu.TaskManagementRequestFields{Immediate: true, Function: pdu.TaskAbortTaskSet, ITT: 41, CmdSN: first + 1}
	drive(c, func() { c.Receive(reset.AppendTo(nil), nil) })
	if r.end != (Ending{}) {
		t.Errorf("ABORT TASK SET: %+v", r.end)
	}
	out := pdu.LogoutRequestFields{Immediate: true, Reason: pdu.LogoutCloseSession, ITT: 42, CmdSN: first + 1}
	drive(c, func() { c.Receive(out.AppendTo(nil), nil) })
	if r.how != WhenLoggedOut {
		t.Errorf("a logout ends the connection %v", r.how)
	}
}
