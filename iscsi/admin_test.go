package iscsi

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/internal/iostat"
	"oneshot/internal/serial"
	"oneshot/iscsi/login"
	"oneshot/iscsi/pdu"
)

func TestSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, c, _ := session(t)
		admit(t, n)
		fresh := n.NewConn(new(recorder)) // in the login: not a session
		command(c, 9, firstCmdSN, false, testUnitReady, 0)
		read := []byte{0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0}
		drive(c, func() {
			c.Heard()
			f := pdu.SCSICommandFields{Final: true, Read: true, ITT: 10, CmdSN: firstCmdSN + 1, CDB: read, EDTL: 512}
			h, err := pdu.ParseSCSICommand(f.AppendTo(nil))
			if err != nil {
				t.Fatal(err)
			}
			c.Command(&Task{Conn: c}, h)
			time.Sleep(time.Second) // of the bubble's: the answer leaves when the lock is given up
		})
		list := n.Sessions()
		if len(list) != 1 {
			t.Fatalf("%d sessions", len(list))
		}
		s := list[0]
		if s.Initiator != "iqn.c:1" || s.Target != "iqn.t:t" || s.TSIH == 0 || len(s.Connections) != 1 || s.Connections[0].Peer != "peer" || s.Since.IsZero() {
			t.Errorf("%+v", s)
		}
		h := s.Commands[iostat.Read]
		if h.Count() != 1 || h.Sum != time.Second || s.ReadBytes != 512 || s.Failed[iostat.UnitAttention] != 1 {
			t.Errorf("%d reads in %v, %d bytes, failed %v", h.Count(), h.Sum, s.ReadBytes, s.Failed)
		}
		drive(fresh, func() { fresh.Lost(nil) })
	})
}

func TestDropSession(t *testing.T) {
	n, c, r := session(t)
	if n.DropSession(c.sess.TSIH+1, "x") {
		t.Error("a session that is not there is dropped")
	}
	if got := r.take(); got != "" {
		t.Errorf("another session is told: %q", got)
	}
	if !n.DropSession(c.sess.TSIH, "x") {
		t.Error("the session is not there")
	}
	if got := r.take(); got != "Asynchronous Message, terminate true" || r.last[36] != byte(pdu.AsyncAllConnectionsDrop) {
		t.Errorf("%q, event %d", got, r.last[36])
	}
}

// A target with other rules of access keeps the sessions of those whom it still admits.
func TestReplaceTarget(t *testing.T) {
	n, c, r := session(t)
	old := c.sess.Target
	n.ReplaceTarget(&Target{Name: old.Name, Alias: "new", SCSI: old.SCSI, Admit: func(i string) bool { return i == "iqn.c:1" }})
	if got := r.take(); got != "" {
		t.Fatalf("who is admitted is told: %q", got)
	}
	if got := n.Targets(); len(got) != 1 || got[0].Alias != "new" {
		t.Errorf("%+v", got)
	}
	if records, ok := c.sendTargets("", false)(nil); !ok || !strings.HasPrefix(string(records), "TargetName="+old.Name+"\x00") {
		t.Errorf("the session does not find its target: %q", records)
	}
	if n.ReplaceTarget(&Target{Name: "iqn.t:other", SCSI: old.SCSI}) || len(n.Targets()) != 1 {
		t.Error("a target is replaced that is not there")
	}
	// Reinstatement finds the session, though the target is another value by now.
	fresh, is := logInAgain(t, n)
	if got := r.take(); got != "terminate false" {
		t.Errorf("the old session: %q", got)
	}
	drive(fresh, func() { fresh.Lost(nil) })
	is.take()

	n.ReplaceTarget(&Target{Name: old.Name, SCSI: old.SCSI, Admit: func(string) bool { return false }})
	if got := r.take(); got != "Asynchronous Message, terminate true" {
		t.Errorf("who is not admitted any more: %q", got)
	}
}

// Who is shown other LUNs begins anew; whose LUNs stay does not.
func TestReplaceTargetWithRules(t *testing.T) {
	n, c, r := session(t)
	old := c.sess.Target
	show := func(luns map[uint16]uint16) string {
		n.ReplaceTarget(&Target{Name: old.Name, SCSI: old.SCSI, Rule: func(initiator string) *Rule {
			if initiator != "iqn.c:1" {
				t.Errorf("asked for %q", initiator)
			}
			return &Rule{Auth: new(Auth), LUNs: luns}
		}})
		return r.take()
	}
	if got := show(nil); got != "" {
		t.Errorf("the same LUNs: %q", got)
	}
	if got := show(map[uint16]uint16{}); got != "Asynchronous Message, terminate true" {
		t.Errorf("no LUNs: %q", got)
	}
}

func TestRemoveTarget(t *testing.T) {
	n, _, r := session(t)
	n.RemoveTarget("iqn.t:other")
	if got := r.take(); got != "" || len(n.Targets()) != 1 {
		t.Errorf("the session of another target: %q", got)
	}
	n.RemoveTarget("iqn.t:t")
	n.Quiesce()
	if got := r.take(); got != "Asynchronous Message, terminate true" || len(n.Targets()) != 0 {
		t.Errorf("%q", got)
	}
	_, is := logInAgain(t, n)
	if got := is.take(); got != "Login Response, terminate true" || is.last[36] != 2 || is.last[37] != 3 {
		t.Errorf("login to a target that was removed: %q, status %d/%d", got, is.last[36], is.last[37])
	}
	drive(is.c, func() { is.c.Lost(nil) })
}

// Without an interval nobody is pinged.
func TestSetLimits(t *testing.T) {
	n, _, r := session(t)
	l := *n.limits.Load()
	l.NOPInterval, l.Connections = 0, 1
	n.SetLimits(l)
	for range 100 {
		n.Tick()
	}
	if got := r.take(); got != "" {
		t.Errorf("%q", got)
	}
	if n.Admit() {
		t.Error("a connection above the limit is admitted")
	}
	l.NOPInterval = 10
	n.SetLimits(l)
	n.Tick()
	if got := r.take(); got != "NOP-In" {
		t.Errorf("%q", got)
	}
}

// quickMover answers at once, and reuses one task per command of a batch.
type quickMover struct {
	recorder
	tasks, answered []*Task
}

func (m *quickMover) newTask() *Task {
	t := m.tasks[len(m.tasks)-1]
	m.tasks = m.tasks[:len(m.tasks)-1]
	return t
}
func (m *quickMover) FreeTask(t *Task)                  { m.tasks = append(m.tasks, t) }
func (m *quickMover) SendControl(_, _ []byte, _ Ending) {}
func (m *quickMover) Enable(*login.Params, int)         {}
func (m *quickMover) Answer(t *Task)                    { m.c.Status(); m.answered = append(m.answered, t) }

func (m *quickMover) Flush() {
	for _, t := range m.answered {
		m.c.Sent(t)
	}
	m.answered = m.answered[:0]
}

// BenchmarkRead is what a READ on lent memory costs in this package and scsi, one or 32 in a
// batch.
func BenchmarkRead(b *testing.B) {
	for _, batch := range []int{1, 32} {
		b.Run(fmt.Sprint(batch), func(b *testing.B) {
			n, _, _ := session(b)
			m := new(quickMover)
			admit(b, n)
			c := n.NewConn(m)
			m.c = c
			for range batch {
				m.tasks = append(m.tasks, &Task{Conn: c})
			}
			n.cfg.Commands = batch
			keys := "InitiatorName=iqn.c:2\x00TargetName=iqn.t:t\x00"
			l := pdu.LoginRequestFields{
				Transit: true, CSG: pdu.StageLoginOperationalNegotiation, NSG: pdu.StageFullFeaturePhase, CmdSN: 1, ITT: 1,
				DataSegmentLength: len(keys),
			}
			drive(c, func() { c.Receive(l.AppendTo(nil), []byte(keys)) })
			defer drive(c, func() { c.Lost(nil) })
			f := pdu.SCSICommandFields{Final: true, Read: true, CDB: []byte{0x28, 0, 0, 0, 0, 8, 0, 0, 8, 0}, EDTL: 4096}
			buf := make([]byte, 0, pdu.BHSLen)
			sn := serial.SN(1)
			b.ReportAllocs()
			for b.Loop() {
				c.Lock()
				c.Heard()
				for range batch {
					f.CmdSN = sn
					sn++
					h, err := pdu.ParseSCSICommand(f.AppendTo(buf[:0]))
					if err != nil {
						b.Fatal(err)
					}
					c.Command(m.newTask(), h)
				}
				c.Unlock()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/command")
		})
	}
}
