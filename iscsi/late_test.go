package iscsi

import (
	"testing"

	"oneshot/iscsi/pdu"
)

// A store may tell late that a task is ready, when its connection has set it up for the next
// command already (scsi.Owner). The race detector is the judge.
func TestReadyTooLate(t *testing.T) {
	n, _, _ := session(t)
	f, text := request(0, 0)
	f.ISID[5] = 7
	c, p := begin(t, n, f, text)
	task := &Task{Conn: c}
	sn := f.CmdSN
	once := pdu.SCSICommandFields{Final: true, ITT: 1, CmdSN: sn, CDB: testUnitReady}
	h, err := pdu.ParseSCSICommand(once.AppendTo(nil))
	if err != nil {
		t.Fatal(err)
	}
	drive(c, func() { c.Command(task, h) })

	again := pdu.SCSICommandFields{Final: true, ITT: 2, CmdSN: sn + 1, CDB: testUnitReady}
	if h, err = pdu.ParseSCSICommand(again.AppendTo(nil)); err != nil {
		t.Fatal(err)
	}
	told := make(chan struct{})
	c.Lock()
	go func() {
		task.TaskReady(nil)
		close(told)
	}()
	c.Command(task, h)
	c.Unlock()
	<-told
	drive(c, func() {}) // takes what it was told too late
	if got := p.take(); got != "Login Response, answer 1, answer 2" {
		t.Errorf("%q", got)
	}
}
