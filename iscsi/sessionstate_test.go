package iscsi

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
)

// held returns a session whose window holds a command, its place that is taken, and a ping.
func heldSession(t testing.TB) (*Conn, *recorder, SessionState) {
	n, c, r := session(t)
	command(c, 9, firstCmdSN, false, testUnitReady, 0) // takes the unit attention
	command(c, 11, first+2, false, write1(), 512)
	command(c, 12, first+3, false, testUnitReady, 0)
	abort := pdu.TaskManagementRequestFields{Immediate: true, Function: pdu.TaskAbortTask, ITT: 40, ReferencedTaskTag: 12, CmdSN: first + 4}
	drive(c, func() { c.Receive(abort.AppendTo(nil), nil) })
	ping := pdu.NOPOutFields{ITT: 5, TTT: pdu.ReservedTag, CmdSN: first + 4, DataSegmentLength: 8}
	drive(c, func() { c.Receive(ping.AppendTo(nil), []byte("nopping\x00")) })
	r.take()
	state, ok := n.SessionState(c.sess.TSIH)
	if !ok {
		t.Fatal("there is no such session")
	}
	return c, r, state
}

// What a session knows is a value, which is the same after a journey as bytes; and the session runs on
// it: what waits in it runs when its turn comes.
func TestSessionState(t *testing.T) {
	c, r, state := heldSession(t)
	kinds := map[RequestKind]int{}
	for _, h := range state.Held {
		kinds[h.Kind]++
	}
	if want := (map[RequestKind]int{RequestNone: 1, RequestCommand: 1, RequestOther: 1}); !reflect.DeepEqual(kinds, want) {
		t.Fatalf("held: %v, want %v", kinds, want)
	}
	if state.Initiator != "iqn.c:1" || state.TargetName != "iqn.t:t" || len(state.Conns) != 1 || state.Conns[0].StatSN != c.StatSN {
		t.Errorf("%+v", state)
	}
	b, err := state.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := DecodeSessionState(b)
	if err != nil || !reflect.DeepEqual(again, state) {
		t.Errorf("%+v becomes %+v, %v", state, again, err)
	}
	command(c, 10, first+1, false, testUnitReady, 0)
	if got := r.take(); got != "answer 10, fetch 11, NOP-In" {
		t.Errorf("when the hole is filled: %q", got)
	}
	if len(c.sess.Held) != 0 {
		t.Errorf("still held: %v", c.sess.Held)
	}
}

// Bytes that no session wrote are refused.
func TestBadSessionState(t *testing.T) {
	_, _, good := heldSession(t)
	for name, spoil := range map[string]func(*SessionState){
		"another format":      func(s *SessionState) { s.Format++ },
		"no name":             func(s *SessionState) { s.Initiator = "x" },
		"a compound name":     func(s *SessionState) { s.Initiator = "iqn.c:1,i,0x80" },
		"upper case":          func(s *SessionState) { s.Initiator = "iqn.C:1" },
		"no target":           func(s *SessionState) { s.TargetName = "" },
		"no TSIH":             func(s *SessionState) { s.TSIH = 0 },
		"a large window":      func(s *SessionState) { s.Window = 1 << 20 },
		"a MaxCmdSN too high": func(s *SessionState) { s.MaxCmdSN += 100 },
		"segments of nothing": func(s *SessionState) { s.Conns[0].Params.MaxRecvDataSegmentLength = 0 },
		"a connection twice":  func(s *SessionState) { s.Conns = append(s.Conns, s.Conns[0]) },
		"held twice":          func(s *SessionState) { s.Held[s.ExpCmdSN] = Request{} },
		"held by nobody": func(s *SessionState) {
			s.Held[s.ExpCmdSN+1] = Request{CID: 7, Kind: RequestOther, Header: make([]byte, 48)}
		},
		"more than is held": func(s *SessionState) {
			ping := pdu.NOPOutFields{ITT: 6, TTT: pdu.ReservedTag, DataSegmentLength: maxHeldData}
			s.MaxCmdSN++
			s.Window++
			s.Held[s.MaxCmdSN] = Request{CID: s.Conns[0].CID, Kind: RequestOther, Header: ping.AppendTo(nil), Data: make([]byte, maxHeldData)}
		},
		"half a header": func(s *SessionState) { s.Held[s.ExpCmdSN+1] = Request{Kind: RequestOther, Header: make([]byte, 20)} },
		"a command as another": func(s *SessionState) {
			s.Held[s.ExpCmdSN+1] = Request{Kind: RequestOther, Header: append([]byte{1}, make([]byte, 47)...)}
		},
	} {
		b, err := good.Encode()
		if err != nil {
			t.Fatal(err)
		}
		s, err := DecodeSessionState(b)
		if err != nil {
			t.Fatal(err)
		}
		spoil(&s)
		if b, err = s.Encode(); err != nil {
			t.Fatal(err)
		}
		if _, err = DecodeSessionState(b); err == nil {
			t.Errorf("%s: it is taken", name)
		}
	}
	if _, err := DecodeSessionState(append(mustEncode(t, &good), "{}"...)); err == nil {
		t.Error("two in one are taken")
	}
}

func mustEncode(t testing.TB, s *SessionState) []byte {
	t.Helper()
	b, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// FuzzSessionState: what is taken is written and taken again as the same.
func FuzzSessionState(f *testing.F) {
	_, _, state := heldSession(f)
	f.Add(mustEncode(f, &state))
	state.Held, state.Conns, state.Discovery, state.TargetName = nil, nil, true, ""
	f.Add(mustEncode(f, &state))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeSessionState(b)
		if err != nil {
			return
		}
		once := mustEncode(t, &s)
		again, err := DecodeSessionState(once)
		if err != nil {
			t.Fatalf("%s becomes %s, which is refused: %v", b, once, err)
		}
		if twice := mustEncode(t, &again); !bytes.Equal(once, twice) {
			t.Fatalf("%s becomes %s", once, twice)
		}
	})
}

// Commands that wait are told apart by their numbers, though an initiator may give two of them one
// tag.
func TestHeldWithOneTag(t *testing.T) {
	_, c, r := session(t)
	command(c, 9, firstCmdSN, false, testUnitReady, 0)
	command(c, 7, first+2, false, testUnitReady, 0)
	command(c, 7, first+3, false, testUnitReady, 0)
	r.take()
	command(c, 8, first+1, false, testUnitReady, 0)
	if got := r.take(); got != "answer 8, answer 7, answer 7" {
		t.Errorf("%q", got)
	}
}

// Pings and texts whose turn does not come are held up to a number of bytes. More of them end the connection, however large the window is.
func TestHeldDataIsBounded(t *testing.T) {
	_, c, r := session(t)
	part := make([]byte, maxHeldData/2)
	ping := func(itt uint32, sn serial.SN, data []byte) {
		f := pdu.NOPOutFields{ITT: itt, TTT: pdu.ReservedTag, CmdSN: sn, DataSegmentLength: len(data)}
		drive(c, func() { c.Receive(f.AppendTo(nil), data) })
	}
	ping(1, first+1, part)
	ping(2, first+2, part)
	ping(3, first, nil)
	if got := r.take(); got != "NOP-In, NOP-In, NOP-In" {
		t.Fatalf("what may be held, when its turn has come: %q", got)
	}
	ping(4, first+4, part)
	ping(5, first+5, part)
	if got := r.take(); got != "" {
		t.Fatalf("before their turn: %q", got)
	}
	ping(6, first+6, []byte{0})
	if got := r.take(); !strings.Contains(got, "terminate") {
		t.Errorf("one byte more: %q", got)
	}
	if c.sess.heldData > maxHeldData {
		t.Errorf("%d bytes are held", c.sess.heldData)
	}
	drive(c, func() { c.Lost(nil) })
	if c.sess.heldData != 0 {
		t.Errorf("%d bytes are held when the connection is lost", c.sess.heldData)
	}
}
