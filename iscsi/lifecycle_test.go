package iscsi

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/iscsi/pdu"
	"oneshot/scsi"
)

// logInAgain opens one more connection with the name and ISID of session's.
func logInAgain(t *testing.T, n *Node) (*Conn, *recorder) {
	t.Helper()
	r := new(recorder)
	admit(t, n)
	r.c = n.NewConn(r)
	text := "InitiatorName=iqn.c:1\x00TargetName=iqn.t:t\x00"
	f := pdu.LoginRequestFields{
		Transit: true, CSG: pdu.StageLoginOperationalNegotiation, NSG: pdu.StageFullFeaturePhase, CmdSN: 5, ITT: 1,
		DataSegmentLength: len(text),
	}
	drive(r.c, func() { r.c.Receive(f.AppendTo(nil), []byte(text)) })
	return r.c, r
}

// RFC 7143 §6.3.5: the answer to a login that takes the place of a session waits until
// nothing of that session is left, its commands included.
func TestReinstatementWaits(t *testing.T) {
	n, old, was := session(t)
	command(old, 9, firstCmdSN, false, testUnitReady, 0) // takes the unit attention
	command(old, 20, firstCmdSN+1, false, write1(), 512)
	was.take()
	fresh, is := logInAgain(t, n)
	if got := was.take(); got != "terminate false" {
		t.Errorf("the old session: %q", got)
	}
	if got := is.take(); got != "" {
		t.Fatalf("the new session, while the old one has a command: %q", got)
	}
	drive(old, func() { old.Lost(nil) })
	drive(fresh, func() {})
	if got := is.take(); got != "Login Response" || is.last[36] != 0 {
		t.Errorf("the new session: %q, status class %d", got, is.last[36])
	}
	drive(fresh, func() { fresh.Lost(nil) })
}

// An initiator that closes its connection and logs in anew, as another port, finds what it held by
// the first session free, though the end of that has not come through. One that is still there keeps it.
func TestDesertedSession(t *testing.T) {
	for _, hung := range []bool{true, false} {
		n, old, was := session(t)
		command(old, 9, firstCmdSN, false, testUnitReady, 0) // takes the unit attention
		reserve := []byte{0x16, 0, 0, 0, 0, 0}
		command(old, 10, firstCmdSN+1, false, reserve, 0)
		was.hung = hung
		was.take()
		f, text := request(0, 0)
		f.ISID = pdu.ISID{0x80, 1, 2, 3, 4, 5}
		fresh, is := begin(t, n, f, text)
		want := ""
		if hung {
			want = "terminate false"
		}
		if got := was.take(); got != want {
			t.Errorf("hung up %v: the old session: %q, want %q", hung, got, want)
		}
		if got := is.take(); got != "Login Response" || is.last[36] != 0 {
			t.Fatalf("hung up %v: the new session: %q, status class %d", hung, got, is.last[36])
		}
		command(fresh, 1, 77, false, testUnitReady, 0)
		command(fresh, 2, 78, false, testUnitReady, 0)
		if conflict := is.status == scsi.ReservationConflict; conflict == hung {
			t.Errorf("hung up %v: status %v", hung, is.status)
		}
	}
}

// A connection that is lost while it waits for the old session gets no session.
func TestReinstatementAbandoned(t *testing.T) {
	n, old, _ := session(t)
	fresh, is := logInAgain(t, n)
	drive(fresh, func() { fresh.Lost(nil) })
	drive(old, func() { old.Lost(nil) })
	if got := is.take(); got != "" || len(n.sessions) != 0 {
		t.Errorf("%q, %d sessions", got, len(n.sessions))
	}
}

func TestShutdown(t *testing.T) {
	for _, s := range []struct {
		name    string
		leaves  bool // the initiator logs out when it is asked
		returns bool // its connection ends when it is cut off
		want    error
	}{
		{"initiator logs out", true, true, nil},
		{"initiator stays", false, true, nil},
		{"connection hangs", false, false, context.DeadlineExceeded},
	} {
		t.Run(s.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, c, r := session(t)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				ended := make(chan error, 1)
				go func() { ended <- n.Shutdown(ctx) }()
				synctest.Wait()
				if got := r.take(); got != "Asynchronous Message" {
					t.Fatalf("at the beginning: %q", got)
				}
				// RFC 7143 §11.9.1: the event asks for a logout within Parameter3 seconds.
				if event, seconds := r.last[36], binary.BigEndian.Uint16(r.last[42:]); event != 1 || seconds != 5 {
					t.Errorf("event %d, %d seconds", event, seconds)
				}
				if n.Admit() {
					t.Error("a connection is admitted")
				}
				if s.leaves {
					f := pdu.LogoutRequestFields{Reason: pdu.LogoutCloseSession, ITT: 7, CmdSN: firstCmdSN}
					drive(c, func() { c.Receive(f.AppendTo(nil), nil) })
					if got := r.take(); got != "Logout Response, terminate true" {
						t.Errorf("logout: %q", got)
					}
				} else {
					time.Sleep(5 * time.Second) // of the bubble's
					synctest.Wait()
					if got := r.take(); got != "terminate false" {
						t.Errorf("when the time is over: %q", got)
					}
				}
				if s.returns {
					drive(c, func() { c.Lost(nil) })
				}
				if err := <-ended; !errors.Is(err, s.want) {
					t.Errorf("Shutdown: %v, want %v", err, s.want)
				}
			})
		})
	}
}

// Commands that wait for one that never came are given back when the connection ends: they
// may hold data.
func TestHeldAtTheEnd(t *testing.T) {
	_, c, r := session(t)
	command(c, 5, 0xffffffff, false, write1(), 512)
	command(c, 6, 0, false, testUnitReady, 0)
	drive(c, func() { c.Lost(nil) })
	if got := r.take(); r.free != 2 || got != "forget 5, forget 6" && got != "forget 6, forget 5" {
		t.Errorf("%d tasks are given back: %q", r.free, got)
	}
}

// A connection that was admitted before the shutdown and comes after the last of the others has
// left is waited for, too; one that comes to nothing is not.
func TestShutdownWaitsForWhoComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, c, _ := session(t)
		admit(t, n)
		admit(t, n)
		ended := make(chan error, 1)
		go func() { ended <- n.Shutdown(t.Context()) }()
		synctest.Wait()
		drive(c, func() { c.Lost(nil) })
		n.Dismiss()
		r := new(recorder)
		r.c = n.NewConn(r)
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("Shutdown does not wait: %v", err)
		default:
		}
		drive(r.c, func() { r.c.Lost(nil) })
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// RFC 7143 §6.3.5: sessions through different portal groups are not each other's successors.
func TestReinstatementByPortalGroup(t *testing.T) {
	n, old, was := session(t)
	was.take()
	n.SetPortals([]Portal{{Group: 3, Transport: "verbs", RDMA: true, Reached: func(string) (string, bool) { return "local", true }}, {Group: 2, Transport: "tcp", Reached: func(string) (string, bool) { return "local", true }}})
	fresh, is := logInAgain(t, n)
	if got := is.take(); got != "Login Response" || is.last[36] != 0 || was.take() != "" {
		t.Errorf("%q; the old session is disturbed", got)
	}
	if old.sess.TSIH == fresh.sess.TSIH || fresh.sess.Group != 2 {
		t.Errorf("TSIH %d and %d, group %d", old.sess.TSIH, fresh.sess.TSIH, fresh.sess.Group)
	}
	drive(fresh, func() { fresh.Lost(nil) })
}

// An initiator that gives up in the middle of its login leaves a line that says so, once.
func TestLoginGivenUp(t *testing.T) {
	for _, s := range []struct {
		name string
		end  func(*Conn)
		want string
	}{
		{"the initiator leaves", func(*Conn) {}, "in the middle of its login"},
		{"the target drops it", func(c *Conn) {
			c.fail("no login")
			c.fail("no login")
		}, `reason="no login"`},
	} {
		t.Run(s.name, func(t *testing.T) {
			n, _, _ := session(t)
			var log bytes.Buffer
			n.log = slog.New(slog.NewTextHandler(&log, nil))
			r := new(recorder)
			admit(t, n)
			c := n.NewConn(r)
			text := "InitiatorName=iqn.c:1\x00TargetName=iqn.t:t\x00"
			f := pdu.LoginRequestFields{CSG: pdu.StageLoginOperationalNegotiation, CmdSN: 5, ITT: 1, DataSegmentLength: len(text)}
			drive(c, func() { c.Receive(f.AppendTo(nil), []byte(text)) })
			drive(c, func() {
				s.end(c)
				c.Lost(nil)
			})
			if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, s.want) {
				t.Errorf("the log says\n%s", got)
			}
		})
	}
}

// The log says that an initiator has gone without a logout, even if its end of the connection was an orderly one, as the kernel of a
// killed program sends it. It says nothing when the initiator has logged out, nor twice when the target has ended the connection.
func TestLogOfLostConnection(t *testing.T) {
	for _, s := range []struct {
		name   string
		before func(n *Node, c *Conn)
		want   int
	}{
		{"closed", func(*Node, *Conn) {}, 1},
		{"logged out", func(_ *Node, c *Conn) {
			f := pdu.LogoutRequestFields{Reason: pdu.LogoutCloseSession, ITT: 7, CmdSN: firstCmdSN}
			drive(c, func() { c.Receive(f.AppendTo(nil), nil) })
		}, 0},
		{"cut off", func(_ *Node, c *Conn) { drive(c, func() { c.sess.cut("test") }) }, 0},
		{"dropped", func(_ *Node, c *Conn) { drive(c, func() { c.fail("test") }) }, 0},
	} {
		t.Run(s.name, func(t *testing.T) {
			n, c, _ := session(t)
			var log strings.Builder
			c.log = slog.New(slog.NewTextHandler(&log, nil))
			s.before(n, c)
			drive(c, func() { c.Lost(nil) })
			if got := strings.Count(log.String(), `msg="connection lost"`); got != s.want {
				t.Errorf("connection lost: %d times, want %d:\n%s", got, s.want, log.String())
			}
		})
	}
}
