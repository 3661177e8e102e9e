package iscsi

import (
	"testing"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/backend/memory"
	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
)

// logOut has c ask for a logout.
func logOut(c *Conn, sn serial.SN, reason pdu.LogoutReason, cid uint16) {
	f := pdu.LogoutRequestFields{Immediate: true, Reason: reason, ITT: 7, CID: cid, CmdSN: sn}
	drive(c, func() { c.Receive(f.AppendTo(nil), nil) })
}

// RFC 7143 §11.15: the response to a logout says that the commands of the connections are over. What a store still does of them
// would otherwise come behind what the initiator writes after it: the disk would have the old bytes, though both were answered.
func TestLogoutWaitsForStores(t *testing.T) {
	for _, s := range []struct {
		name   string
		reason pdu.LogoutReason
		cid    uint16
		of     int  // the connection with the write
		by     int  // that asks
		lost   bool // the connection with the write is lost before
		gone   bool // the connection that asks is lost meanwhile
		want   [2]string
	}{
		{name: "the other", reason: pdu.LogoutCloseConnection, cid: 1, of: 1, want: [2]string{"Logout Response", "forget 10, terminate true"}},
		{name: "a lost one", reason: pdu.LogoutCloseConnection, cid: 1, of: 1, lost: true, want: [2]string{"Logout Response", "forget 10"}},
		{name: "itself", reason: pdu.LogoutCloseConnection, cid: 1, of: 1, by: 1, want: [2]string{"", "forget 10, Logout Response, terminate true"}},
		{name: "session", reason: pdu.LogoutCloseSession, of: 1, want: [2]string{"Logout Response, terminate true", "forget 10, terminate true"}},
		{name: "who asks is lost", reason: pdu.LogoutCloseConnection, cid: 1, of: 1, gone: true, want: [2]string{"", "forget 10, terminate true"}},
	} {
		t.Run(s.name, func(t *testing.T) {
			inner, err := memory.New(1 << 20)
			if err != nil {
				t.Fatal(err)
			}
			store := faulty.New(inner, 1)
			n, a, ra := sessionOn(t, store, "MaxConnections=2")
			b, rb := second(t, n, a)
			conns, said := []*Conn{a, b}, []*recorder{ra, rb}
			command(a, 9, first, false, testUnitReady, 0)
			ra.take()
			gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}})
			x := conns[s.of]
			command(x, 10, first+1, false, write1(), 512)
			drive(x, func() { x.GotData(x.Find(10)) })
			said[s.of].take()
			if s.lost {
				drive(x, func() { x.Lost(nil) })
			}
			logOut(conns[s.by], first+2, s.reason, s.cid)
			if x, y := ra.take(), rb.take(); x != "" || y != "" {
				t.Errorf("while the store writes: %q, %q", x, y)
			}
			if s.gone {
				drive(a, func() { a.Lost(nil) })
			}
			gate.Release()
			if got := [2]string{ra.take(), rb.take()}; got != s.want {
				t.Errorf("afterwards: %q, want %q", got, s.want)
			}
		})
	}
}

// The answer to a ping that comes while a logout waits is no offence; a request is rejected.
func TestPingCrossesLogout(t *testing.T) {
	inner, err := memory.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	store := faulty.New(inner, 1)
	_, c, r := sessionOn(t, store)
	command(c, 9, first, false, testUnitReady, 0)
	gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}})
	command(c, 10, first+1, false, write1(), 512)
	drive(c, func() {
		c.GotData(c.Find(10))
		c.ping()
	})
	ttt := r.last.TTT()
	logOut(c, first+2, pdu.LogoutCloseSession, 0)
	r.take()
	for _, s := range []struct {
		itt, ttt uint32
		want     string
	}{{pdu.ReservedTag, ttt, ""}, {8, pdu.ReservedTag, "Reject"}} {
		f := pdu.NOPOutFields{Immediate: true, ITT: s.itt, TTT: s.ttt, CmdSN: first + 2}
		drive(c, func() { c.Receive(f.AppendTo(nil), nil) })
		if got := r.take(); got != s.want {
			t.Errorf("ITT %#x: %q, want %q", s.itt, got, s.want)
		}
	}
	gate.Release()
	if got := r.take(); got != "forget 10, Logout Response, terminate true" {
		t.Errorf("%q", got)
	}
}

// A logout that waits for RDMA Reads does so as long as any command would.
func TestLogoutWaitsForReads(t *testing.T) {
	for _, served := range []bool{true, false} {
		n, c, r := session(t)
		command(c, 9, first, false, testUnitReady, 0)
		task := &Task{Conn: c}
		f := pdu.SCSICommandFields{Final: true, Write: true, ITT: 10, CmdSN: first + 1, CDB: write1(), EDTL: 512}
		h, err := pdu.ParseSCSICommand(f.AppendTo(nil))
		if err != nil {
			t.Fatal(err)
		}
		r.fetches = true
		drive(c, func() {
			c.Command(task, h)
			c.Fetching(1)
		})
		r.take()
		logOut(c, first+2, pdu.LogoutCloseSession, 0)
		for range n.limits.Load().ReadTimeout {
			n.Tick()
		}
		if got := r.take(); got != "forget 10" {
			t.Errorf("at once: %q", got)
		}
		if served {
			drive(c, func() {
				c.Fetching(0)
				c.Forgotten(task)
			})
			if got := r.take(); got != "Logout Response, terminate true" {
				t.Errorf("when they are served: %q", got)
			}
			continue
		}
		n.Tick()
		if got := r.take(); got != "terminate false" {
			t.Errorf("when the time is over: %q", got)
		}
		drive(c, func() {
			c.Forgotten(task)
			c.Lost(nil)
		})
	}
}
