package iscsi

import (
	"testing"

	"oneshot/iscsi/pdu"
)

// When there are as many connections as may be, the oldest one in its login gives way; those that
// have logged in never do.
func TestOldestLoginGivesWay(t *testing.T) {
	n, c, r := session(t)
	l := *n.limits.Load()
	l.Connections = 3
	n.SetLimits(l)
	open := func() *recorder {
		t.Helper()
		r := new(recorder)
		admit(t, n)
		r.c = n.NewConn(r)
		t.Cleanup(func() { drive(r.c, func() { r.c.Lost(nil) }) })
		return r
	}
	first, second := open(), open()
	third := open()
	if x, y := first.take(), second.take(); x != "terminate false" || y != "" {
		t.Fatalf("the oldest: %q, the other: %q", x, y)
	}
	drive(first.c, func() { first.c.Lost(nil) })
	// The one that is in its login completes it: the next gives way.
	f, text := request(0, 0)
	f.ISID[5] = 7
	drive(second.c, func() { second.c.Receive(f.AppendTo(nil), []byte(text)) })
	if got := second.take(); got != "Login Response" || second.last[36] != 0 {
		t.Fatalf("%q", got)
	}
	fourth := open()
	if x, y := third.take(), second.take(); x != "terminate false" || y != "" {
		t.Fatalf("the oldest: %q, who has logged in: %q", x, y)
	}
	drive(third.c, func() { third.c.Lost(nil) })
	f.ISID[5] = 8
	drive(fourth.c, func() { fourth.c.Receive(f.AppendTo(nil), []byte(text)) })
	if n.Admit() {
		t.Error("one more is admitted where all have logged in")
	}
	if got := r.take(); got != "" || c.state != stateFullFeature || n.Counters().Refused.Load() != 3 {
		t.Errorf("%q, %d refused", got, n.Counters().Refused.Load())
	}
}

// One that completes its login just when it is to give way, stays, and counts.
func TestGivesWayTooLate(t *testing.T) {
	n, _, _ := session(t)
	l := *n.limits.Load()
	l.Connections = 2
	n.SetLimits(l)
	r := new(recorder)
	admit(t, n)
	r.c = n.NewConn(r)
	t.Cleanup(func() { drive(r.c, func() { r.c.Lost(nil) }) })
	f, text := request(0, 0)
	f.ISID[5] = 7
	r.c.Lock()
	admit(t, n) // asks it to give way; it is told when the lock is free
	r.c.Receive(f.AppendTo(nil), []byte(text))
	r.c.Unlock()
	if got := r.take(); got != "Login Response" || r.c.place.Evicted() {
		t.Errorf("%q, and it is still to leave", got)
	}
	n.Dismiss()
	if n.Admit() {
		t.Error("one more is admitted than may be")
	}
}

// RFC 7143 §11.18: an initiator that goes on sending, but never answers a ping, does not read.
func TestPeerThatOnlySends(t *testing.T) {
	n, c, r := session(t)
	for range 30 {
		n.Tick()
	}
	if got := r.take(); got != "NOP-In" {
		t.Fatalf("%q", got)
	}
	nop := pdu.NOPOutFields{Immediate: true, ITT: pdu.ReservedTag, TTT: pdu.ReservedTag, CmdSN: firstCmdSN}
	for range patience * 10 {
		drive(c, func() { c.Heard(); c.Receive(nop.AppendTo(nil), nil) })
		n.Tick()
	}
	if got := r.take(); got != "" {
		t.Fatalf("while it may be behind data: %q", got)
	}
	drive(c, c.Heard)
	n.Tick()
	if got := r.take(); got != "terminate true" {
		t.Errorf("%q", got)
	}
}

// Who may no longer use the target when its login ends, does not get in.
func TestRefusedWhileLoggingIn(t *testing.T) {
	n, c, _ := session(t)
	old := c.sess.Target
	r := new(recorder)
	admit(t, n)
	r.c = n.NewConn(r)
	t.Cleanup(func() { drive(r.c, func() { r.c.Lost(nil) }) })
	f, text := request(0, 0)
	f.Transit, f.NSG, f.ISID[5] = false, 0, 7
	drive(r.c, func() { r.c.Receive(f.AppendTo(nil), []byte(text)) })
	n.ReplaceTarget(&Target{Name: old.Name, SCSI: old.SCSI, Admit: func(string) bool { return false }})
	f.Transit, f.NSG, f.DataSegmentLength = true, pdu.StageFullFeaturePhase, 0
	drive(r.c, func() { r.c.Receive(f.AppendTo(nil), nil) })
	if status := pdu.LoginStatus(uint16(r.last[36])<<8 | uint16(r.last[37])); status != pdu.LoginAuthorizationFailure {
		t.Errorf("%v", status)
	}
}

// While a target is being changed nobody logs in, be it at the beginning of a login or at its end; sessions go on.
func TestLoginWhileChanging(t *testing.T) {
	n, c, session := session(t)
	old := c.sess.Target
	late := new(recorder)
	admit(t, n)
	late.c = n.NewConn(late)
	t.Cleanup(func() { drive(late.c, func() { late.c.Lost(nil) }) })
	f, text := request(0, 0)
	f.Transit, f.NSG, f.ISID[5] = false, 0, 7
	drive(late.c, func() { late.c.Receive(f.AppendTo(nil), []byte(text)) })
	n.ReplaceTarget(&Target{Name: old.Name, SCSI: old.SCSI, Changing: true})
	f.Transit, f.NSG, f.DataSegmentLength = true, pdu.StageFullFeaturePhase, 0
	drive(late.c, func() { late.c.Receive(f.AppendTo(nil), nil) })
	_, early := logInAgain(t, n)
	for what, r := range map[string]*recorder{"the end": late, "the beginning": early} {
		if status := pdu.LoginStatus(uint16(r.last[36])<<8 | uint16(r.last[37])); status != pdu.LoginServiceUnavailable {
			t.Errorf("at %s of a login: %v", what, status)
		}
	}
	drive(early.c, func() { early.c.Lost(nil) })
	if got := session.take(); got != "" {
		t.Errorf("the session is told %q", got)
	}
}
