package iscsi

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"oneshot/iscsi/pdu"
)

// An initiator does not send the data of a command that others have to wait for, and is alive otherwise: its connection ends in time, and then
// they go on. Nobody waits for the data of an ordinary command, and whatever comes of them is waited for.
func TestDataThatDoNotCome(t *testing.T) {
	for name, attr := range map[string]pdu.TaskAttribute{"SIMPLE": pdu.AttrSimple, "ORDERED": pdu.AttrOrdered, "HEAD OF QUEUE": pdu.AttrHeadOfQueue} {
		t.Run(name, func(t *testing.T) {
			n, a, ra := session(t)
			limits := *n.limits.Load()
			limits.NOPInterval = 0
			n.SetLimits(limits)
			f, text := request(0, 0, "ImmediateData=No")
			f.ISID[5] = 7
			b, rb := begin(t, n, f, text)
			command(a, 9, first, false, testUnitReady, 0)
			command(b, 9, f.CmdSN, false, testUnitReady, 0)
			var log bytes.Buffer
			drive(a, func() { a.log = slog.New(slog.NewTextHandler(&log, nil)) })
			w := pdu.SCSICommandFields{Final: true, Write: true, Attr: attr, ITT: 10, CmdSN: first + 1, CDB: write1(), EDTL: 512}
			h, err := pdu.ParseSCSICommand(w.AppendTo(nil))
			if err != nil {
				t.Fatal(err)
			}
			drive(a, func() { a.Command(&Task{Conn: a}, h) })
			command(a, 11, first+2, false, write1(), 512)
			ra.take()
			rb.take()
			command(b, 10, f.CmdSN+1, false, write1(), 512) // the same block
			if got, waits := rb.take(), attr != pdu.AttrSimple; waits == (got == "fetch 10") {
				t.Errorf("the other initiator: %q", got)
			}
			drive(b, func() {
				if task := b.Find(10); task.state == taskPulling {
					b.GotData(task)
				}
			})
			pass := func(seconds uint32) {
				for range seconds {
					n.Tick()
				}
			}
			pass(limits.ReadTimeout)
			drive(a, func() { a.DataCame(a.Find(10)) }) // a part
			pass(limits.ReadTimeout + 1)
			if got := ra.take(); got != "" {
				t.Fatalf("before its time: %q", got)
			}
			if attr == pdu.AttrSimple { // that of the next command is on its way then, which is not what was asked for before
				drive(a, func() { a.DataCame(a.Find(11)) })
			}
			pass(1)
			if got := ra.take(); got != "terminate true" {
				t.Errorf("in time: %q", got)
			}
			for _, want := range []string{"a WRITE(10) to LUN 0", "in 71 s", "limits.read_timeout"} {
				if attr != pdu.AttrSimple && !strings.Contains(log.String(), want) {
					t.Errorf("the log does not say %q: %s", want, log.String())
				}
			}
			drive(a, func() { a.Lost(nil) })
			want := "fetch 10"
			if attr == pdu.AttrSimple {
				want = "answer 10"
			}
			if got := rb.take(); got != want {
				t.Errorf("the other initiator afterwards: %q", got)
			}
		})
	}
}

// A call that is meant for a former life of the task changes nothing about the data that it waits for.
func TestDataThatDoNotComeAfterALateCall(t *testing.T) {
	n, c, r := session(t)
	limits := *n.limits.Load()
	limits.NOPInterval = 0
	n.SetLimits(limits)
	command(c, 9, first, false, testUnitReady, 0)
	command(c, 10, first+1, false, write1(), 512)
	r.take()
	c.Find(10).TaskReady(nil)
	if state := c.Find(10).state; state != taskPulling {
		t.Errorf("after the call the task is in state %d", state)
	}
	for range limits.ReadTimeout + 1 {
		n.Tick()
	}
	if got := r.take(); got != "terminate true" {
		t.Errorf("in time: %q", got)
	}
}
