package iscsi

import (
	"testing"

	"oneshot/iscsi/pdu"
)

// pooled is a recorder that uses one task again and again.
type pooled struct {
	recorder
	task *Task
}

func (p *pooled) NewTask() *Task { return p.task }

// A store may tell late that a task is ready, when its connection has set it up for the next
// command already (scsi.Owner). The race detector is the judge.
func TestReadyTooLate(t *testing.T) {
	n, _, _ := session(t)
	p := &pooled{task: new(Task)}
	admit(t, n)
	c := n.NewConn(p)
	p.c = c
	t.Cleanup(func() { drive(c, func() { c.Lost(nil) }) })
	f, text := request(0, 0)
	f.ISID[5] = 7
	drive(c, func() { c.Receive(f.AppendTo(nil), []byte(text)) })
	sn := f.CmdSN
	command(c, 1, sn, false, testUnitReady, 0)

	again := pdu.SCSICommandFields{Final: true, ITT: 2, CmdSN: sn + 1, CDB: testUnitReady}
	h, err := pdu.ParseSCSICommand(again.AppendTo(nil))
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan struct{})
	c.Lock()
	go func() {
		p.task.TaskReady(nil)
		close(told)
	}()
	c.Command(h)
	c.Unlock()
	<-told
	drive(c, func() {}) // takes what it was told too late
	if got := p.take(); got != "Login Response, answer 1, answer 2" {
		t.Errorf("%q", got)
	}
}
