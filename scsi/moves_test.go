package scsi

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"oneshot/backend"
	"oneshot/volume/access"
)

// movingStore is one of several that show the same bytes. While its term is 0 another one serves them.
type movingStore struct {
	*fakeStore
	term uint64
	next uint64 // unless it is 0, the term after the next read: others have served the bytes meanwhile
}

func (s *movingStore) Term() uint64 { return s.term }

func (s *movingStore) Submit(op *backend.Op) bool {
	if s.term == 0 || op.Term != 0 && op.Term != s.term {
		op.Err = &backend.MovedError{Name: "the test's"}
		return true
	}
	done := s.fakeStore.Submit(op)
	if op.Kind == backend.Read && s.next != 0 {
		s.term, s.next = s.next, 0
	}
	return done
}

func newMovingBench(t *testing.T) (*bench, *movingStore) {
	moving := &movingStore{term: 5}
	b := newBench(t, false, func(c *benchConfig, s *fakeStore) {
		moving.fakeStore = s
		c.Store, c.TPGS = moving, ALUAImplicit
	})
	return b, moving
}

const codeTransition = 0x2040a

// TestServedElsewhere: what another process serves ends with an access state in transition, and not as an error of the
// medium.
func TestServedElsewhere(t *testing.T) {
	b, store := newMovingBench(t)
	store.term = 0
	for _, cdb := range [][]byte{{0x28, 8: 1, 9: 0}, {0x2a, 8: 1, 9: 0}, {0x35, 9: 0}, {0x89, 13: 1, 15: 0}, {0x8b, 13: 1, 15: 0}} {
		out := make([]byte, 1024)
		if cdb[0] == 0x28 || cdb[0] == 0x35 {
			out = nil
		} else if cdb[0] != 0x89 {
			out = out[:512]
		}
		if r := b.do(cdb, out, 512); r.code() != codeTransition {
			t.Errorf("opcode %#x: %v, code %#x", cdb[0], r.status, r.code())
		}
	}
}

// TestReadThenWriteInOneTerm: a command that reads and then writes what follows from it does not write when others may
// have written in between.
func TestReadThenWriteInOneTerm(t *testing.T) {
	for name, cdb := range map[string][]byte{"COMPARE AND WRITE": {0x89, 13: 1, 15: 0}, "ORWRITE": {0x8b, 13: 1, 15: 0}} {
		b, store := newMovingBench(t)
		out := append(make([]byte, 512), bytes.Repeat([]byte{0xff}, 512)...)
		if cdb[0] == 0x8b {
			out = out[512:]
		}
		store.next = 7
		if r := b.do(cdb, out, 0); r.code() != codeTransition || store.data[0] != 0 {
			t.Errorf("%s over a change of the term: %v, code %#x, wrote %#x", name, r.status, r.code(), store.data[0])
		}
		if r := b.do(cdb, out, 0); r.status != Good || store.data[0] != 0xff {
			t.Errorf("%s in one term: %v, code %#x", name, r.status, r.code())
		}
	}
}

// TestNoCommandsThatStay: a unit that moves refuses what would have to hold on other nodes, and tells of none of it.
func TestNoCommandsThatStay(t *testing.T) {
	b, _ := newMovingBench(t)
	gone := []string{"PERSISTENT RESERVE", "RESERVE(", "RELEASE(", "SANITIZE", "EXTENDED COPY", "POPULATE TOKEN", "WRITE USING TOKEN", "RECEIVE ", "WRITE ATOMIC"}
	n := 0
	for i := range rows {
		row := &rows[i]
		for _, name := range gone {
			if !strings.HasPrefix(row.Name, name) {
				continue
			}
			n++
			cdb := []byte(row.Usage)
			clear(cdb[1:])
			if row.hasSA {
				cdb[1] = byte(row.sa)
			}
			if r := b.do(cdb, nil, 512); r.status != CheckCondition || r.code()>>16 != keyIllegalRequest || r.code()&0xff00 != 0x2000 && r.code()&0xff00 != 0x2400 {
				t.Errorf("%s: %v, code %#x", row.Name, r.status, r.code())
			}
			if b.lu.has(row) {
				t.Errorf("%s is reported", row.Name)
			}
		}
	}
	if n < 25 {
		t.Errorf("only %d commands", n)
	}
	if r := b.do([]byte{0x12, 1, 0x8f, 1, 0, 0}, nil, 256); r.code() != 0x52400 {
		t.Errorf("the page of third-party copies: %v, code %#x", r.status, r.code())
	}
	if r := b.do([]byte{0x12, 1, 0, 1, 0, 0}, nil, 256); bytes.IndexByte(r.in, 0x8f) >= 0 {
		t.Errorf("pages % x", r.in)
	}
	if r := b.do([]byte{0x12, 0, 0, 1, 0, 0}, nil, 256); r.in[5]&0x08 != 0 {
		t.Error("3PC is set")
	}
	if r := b.do([]byte{0x1a, 8, 0x40 | controlPageCode, 0, 0xff, 0}, nil, 256); len(r.in) < 9 || r.in[4+2]|r.in[4+4] != 0 {
		t.Errorf("changeable: % x", r.in)
	}
}

// TestServes: the table says who serves, REPORT TARGET PORT GROUPS tells of all nodes, and commands are refused as the
// state of the node's ports asks.
func TestServes(t *testing.T) {
	b, _ := newMovingBench(t)
	b.target.SetPorts([]uint16{1, 2})
	other := []access.Group{{ID: 2, State: access.ActiveOptimized}}
	b.lu.v.Access().Serve(access.Standby, other)
	groups := func() (states [2]byte) {
		r := b.do([]byte{0xa3, 0x0a, 9: 255, 11: 0}, nil, 255)
		for at := 4; at < len(r.in); at += 8 + 4*int(r.in[at+7]) {
			states[binary.BigEndian.Uint16(r.in[at+2:])-1] = r.in[at] & 0x0f
		}
		return states
	}
	read := func() int { return b.do([]byte{0x28, 8: 1, 9: 0}, nil, 512).code() }
	if code := read(); code != 0x62a06 {
		t.Errorf("the change is told with %#x", code)
	}
	if code := read(); code != 0x2040b {
		t.Errorf("a READ in standby: %#x", code)
	}
	if s := groups(); s != [2]byte{2, 0} {
		t.Errorf("groups are in the states %v", s)
	}
	b.lu.v.Access().Serve(access.Standby, other)
	if code := read(); code != 0x2040b {
		t.Errorf("nothing has changed, and is told with %#x", code)
	}
	other[0].State = access.Standby
	b.lu.v.Access().Serve(access.Transitioning, other)
	if s := groups(); s == [2]byte{} {
		s = groups() // after the unit attention
	}
	if code := read(); code != codeTransition {
		t.Errorf("a READ in transition: %#x", code)
	}
	b.lu.v.Access().Serve(access.ActiveOptimized, other)
	if code := read(); code != 0x62a06 {
		t.Errorf("the change is told with %#x", code)
	}
	if code := read(); code != 0 {
		t.Errorf("a READ of who serves: %#x", code)
	}
	if s := groups(); s != [2]byte{0, 2} {
		t.Errorf("groups are in the states %v", s)
	}
}
