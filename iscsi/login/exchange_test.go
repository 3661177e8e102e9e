package login

import (
	"fmt"
	"strings"
	"testing"

	"oneshot/iscsi/pdu"
	"oneshot/iscsi/text"
)

// newExchange has two targets to list, and takes 512 bytes at once.
func newExchange(discovery bool) *Exchange {
	cfg := DefaultConfig()
	p := text.Defaults()
	p.MaxRecvDataSegmentLength = 512
	return NewExchange(&cfg, &p, discovery, func(name string, all bool) Records {
		var names []string
		for _, t := range []string{"iqn.t:a", "iqn.t:" + strings.Repeat("b", 200)} {
			if all || t == name || !discovery && name == "" && t == "iqn.t:a" {
				names = append(names, t)
			}
		}
		return recordsOf(names)
	})
}

// recordsOf are the records of targets.
func recordsOf(names []string) Records {
	return func(b []byte) ([]byte, bool) {
		if len(names) == 0 {
			return b, false
		}
		b = text.Append(text.Append(b, "TargetName", names[0]), "TargetAddress", "[::1]:3260,1")
		names = names[1:]
		return b, true
	}
}

func ask(t *testing.T, x *Exchange, f pdu.TextRequestFields, data []byte) (pdu.TextResponseFields, []byte, pdu.RejectReason) {
	t.Helper()
	f.ITT, f.DataSegmentLength = 5, len(data)
	req, err := pdu.ParseTextRequest(f.AppendTo(nil))
	if err != nil {
		t.Fatal(err)
	}
	r, answer, reject := x.Step(req, data)
	return r, append([]byte(nil), answer...), reject
}

// fresh is a request that is complete in itself.
var fresh = pdu.TextRequestFields{Final: true, TTT: pdu.ReservedTag}

func TestSendTargets(t *testing.T) {
	for _, c := range []struct {
		discovery bool
		value     string
		names     int // in the answer; -1: Reject
	}{
		{true, "All", 2},
		{true, "iqn.t:a", 1},
		{true, "iqn.t:unknown", 0},
		{true, "", -1},
		{true, "Alle", -1},
		{true, "A", -1},
		{false, "", 1},
		{false, "All", 1},
		{false, "iqn.t:a", 1},
		{false, "Alle", -1},
	} {
		r, answer, reject := ask(t, newExchange(c.discovery), fresh, join("SendTargets="+c.value))
		switch {
		case c.names < 0:
			if reject == 0 {
				t.Errorf("discovery %v, %q: %q instead of a Reject", c.discovery, c.value, answer)
			}
		case reject != 0 || !r.Final || r.TTT != pdu.ReservedTag || strings.Count(string(answer), "TargetName=") != c.names:
			t.Errorf("discovery %v, %q: %+v %q %v", c.discovery, c.value, r, answer, reject)
		}
	}
}

// Keys that are none get an answer that says so (RFC 7143 §6.2), and the session lives on.
func TestTextKeys(t *testing.T) {
	x := newExchange(true)
	for sent, want := range map[string]string{
		"SendTargetsPlease=All": "SendTargetsPlease=NotUnderstood\x00", "sENDtARGETS=aLL": "sENDtARGETS=NotUnderstood\x00",
		"MaxBurstLength=1024": "MaxBurstLength=Reject\x00", "InitiatorAlias=me": "", "MaxRecvDataSegmentLength=100": "MaxRecvDataSegmentLength=Reject\x00",
	} {
		if _, answer, reject := ask(t, x, fresh, join(sent)); string(answer) != want || reject != 0 {
			t.Errorf("%s: %q %v", sent, answer, reject)
		}
	}
	if _, _, reject := ask(t, x, fresh, []byte("no equals sign\x00")); reject != pdu.RejectProtocolError {
		t.Errorf("a text without '=': %v", reject)
	}
	if _, answer, reject := ask(t, x, fresh, join("MaxRecvDataSegmentLength=4096")); len(answer) > 0 || reject != 0 || x.params.MaxRecvDataSegmentLength != 4096 {
		t.Errorf("%q %v %d", answer, reject, x.params.MaxRecvDataSegmentLength)
	}
}

// RFC 7143 §11.11: an answer that does not fit comes in pieces, for which the initiator asks.
func TestLongAnswer(t *testing.T) {
	x := newExchange(true)
	var data []byte
	for i := range 40 {
		data = append(data, join("Key"+strings.Repeat("X", i)+"=1")...)
	}
	r, whole, reject := ask(t, x, fresh, data)
	for pieces := 1; !r.Final; pieces++ {
		if reject != 0 || r.TTT == pdu.ReservedTag || len(whole) > 512*pieces || pieces > 20 {
			t.Fatalf("%+v after %d pieces, %v", r, pieces, reject)
		}
		if _, _, bad := ask(t, x, pdu.TextRequestFields{Final: true, TTT: r.TTT + 1}, nil); bad != pdu.RejectInvalidPDUField {
			t.Fatalf("a wrong TTT: %v", bad)
		}
		var piece []byte
		r, piece, reject = ask(t, x, pdu.TextRequestFields{Final: true, TTT: r.TTT}, nil)
		whole = append(whole, piece...)
	}
	if n := strings.Count(string(whole), "=NotUnderstood\x00"); n != 40 {
		t.Errorf("%d keys answered of 40", n)
	}
}

// A request in pieces (C bit) gets empty answers until it is whole.
func TestLongRequest(t *testing.T) {
	x := newExchange(true)
	data := join("SendTargets=All")
	r, answer, reject := ask(t, x, pdu.TextRequestFields{Continue: true, TTT: pdu.ReservedTag}, data[:7])
	if reject != 0 || len(answer) > 0 || r.Final || r.TTT == pdu.ReservedTag {
		t.Fatalf("%+v %q %v", r, answer, reject)
	}
	r, answer, reject = ask(t, x, pdu.TextRequestFields{Final: true, TTT: r.TTT}, data[7:])
	if reject != 0 || !r.Final || !strings.Contains(string(answer), "TargetName=iqn.t:a\x00") {
		t.Errorf("%+v %q %v", r, answer, reject)
	}
	for range 3 {
		r, _, reject = ask(t, x, pdu.TextRequestFields{Continue: true, TTT: r.TTT}, make([]byte, 8000))
		if reject != 0 {
			break
		}
	}
	if reject == 0 {
		t.Error("endless text is taken")
	}
}

func FuzzExchange(f *testing.F) {
	f.Add(true, false, []byte("SendTargets=All\x00"), []byte{})
	f.Add(false, true, []byte("SendTargets"), []byte("=\x00"))
	f.Fuzz(func(t *testing.T, final, more bool, first, second []byte) {
		x := newExchange(true)
		ttt := uint32(pdu.ReservedTag)
		for _, data := range [][]byte{first, second, first} {
			r, answer, reject := ask(t, x, pdu.TextRequestFields{Final: final, Continue: more, TTT: ttt}, data)
			if len(answer) > 512 || reject == 0 && r.Final != (r.TTT == pdu.ReservedTag) {
				t.Fatalf("%+v with %d bytes", r, len(answer))
			}
			if reject == 0 {
				ttt = r.TTT
			}
		}
	})
}

// Keys that no standard has are answered by who knows them, and otherwise not understood.
func TestPrivateKeys(t *testing.T) {
	x := newExchange(false)
	x.Private = func(key, value string) (string, bool) { return "to " + value, key == "X-known" }
	_, answer, reject := ask(t, x, fresh, join("X-known=?", "X-unknown=?", "Y-known=?"))
	want := "X-known=to ?\x00X-unknown=NotUnderstood\x00Y-known=NotUnderstood\x00"
	if reject != 0 || string(answer) != want {
		t.Errorf("answer %q, reject %v, want %q", answer, reject, want)
	}
}

// A key that comes twice in one text is refused (RFC 7143 §6.4): the answer to one short text would be
// as long as its sender likes.
func TestSendTargetsTwice(t *testing.T) {
	x := newExchange(true)
	if _, answer, reject := ask(t, x, fresh, join("SendTargets=All", "SendTargets=All")); reject != pdu.RejectProtocolError {
		t.Errorf("%d bytes, %v", len(answer), reject)
	}
	if _, answer, reject := ask(t, x, fresh, join("SendTargets=All")); reject != 0 || len(answer) == 0 {
		t.Errorf("afterwards: %q, %v", answer, reject)
	}
}

// One text has a bound on its keys, each of which has an answer longer than itself.
func TestTextOfManyKeys(t *testing.T) {
	for n, want := range map[int]pdu.RejectReason{100: 0, 1000: pdu.RejectProtocolError} {
		var keys []string
		for i := range n {
			keys = append(keys, fmt.Sprintf("X-%d=", i))
		}
		if _, _, reject := ask(t, newExchange(true), fresh, join(keys...)); reject != want {
			t.Errorf("%d keys: %v, want %v", n, reject, want)
		}
	}
}

// A session that asks for many targets keeps what one PDU takes of the answer, not all of it.
func TestManyTargets(t *testing.T) {
	const targets, segment = 10_000, 8 << 10
	x := newExchange(true)
	x.params.MaxRecvDataSegmentLength = segment
	x.list = func(string, bool) Records {
		var names []string
		for i := range targets {
			names = append(names, fmt.Sprintf("iqn.t:%d", i))
		}
		return recordsOf(names)
	}
	r, whole, reject := ask(t, x, fresh, join("SendTargets=All"))
	for !r.Final && reject == 0 {
		if cap(x.rest) > segment {
			t.Fatalf("%d bytes are kept of the answer", cap(x.rest))
		}
		var piece []byte
		r, piece, reject = ask(t, x, pdu.TextRequestFields{Final: true, TTT: r.TTT}, nil)
		whole = append(whole, piece...)
	}
	pairs, err := text.Parse(whole)
	if err != nil || reject != 0 || len(pairs) != 2*targets || pairs[2*targets-2].Value != fmt.Sprintf("iqn.t:%d", targets-1) {
		t.Errorf("%d records, %v, %v", len(pairs), reject, err)
	}
}

// RFC 7145 §6.5: over iSER InitiatorRecvDataSegmentLength bounds what the initiator takes. ib_iser and libiscsi have room for
// 128 octets after the login, whatever they say there (iser.md §3).
func TestPiecesOverISER(t *testing.T) {
	for _, discovery := range []bool{false, true} {
		x := newExchange(discovery)
		x.params.RDMAExtensions = true
		name := "iqn.t:" + strings.Repeat("b", 200)
		var whole []byte
		f := fresh
		data := join("SendTargets=" + name)
		for range 9 {
			r, answer, reject := ask(t, x, f, data)
			if reject != 0 || len(answer) > 128 != discovery {
				t.Fatalf("discovery %v: a piece of %d octets, reject %v", discovery, len(answer), reject)
			}
			whole = append(whole, answer...)
			if r.Final {
				break
			}
			f, data = pdu.TextRequestFields{Final: true, TTT: r.TTT}, nil
		}
		if got := string(whole); got != "TargetName="+name+"\x00TargetAddress=[::1]:3260,1\x00" {
			t.Errorf("discovery %v: %q", discovery, got)
		}
	}
}
