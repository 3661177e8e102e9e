package wire_test

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"oneshot/internal/hexdump"
	. "oneshot/partition/wire"
)

// The vectors: WRITE tag 9, handle 1, 4096 at 8192, durable, buffer in the header of the DDP message; its
// response, number 41, watermark 40.
const (
	writeVector = `b1 06 00 04 00 00 00 09 00 00 00 01 00 00 10 00 00 00 00 00 00 00 20 00 00 00 00 00 00 00 00 00
		00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00`
	answerVector = `b1 86 00 00 00 00 00 09 00 00 10 00 00 00 00 40 00 00 00 00 00 00 00 29 00 00 00 00 00 00 00 28`
	addVector    = `b1 09 00 05 00 00 00 0a 00 00 00 02 00 00 00 08 00 00 00 00 00 00 00 40 00 00 00 00 00 00 00 00
		00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00`
	swapVector = `b1 08 00 00 00 00 00 0b 00 00 00 02 00 00 00 08 00 00 00 00 00 00 00 40 00 00 00 00 00 00 00 00
		00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 04 00 00 00 00 00 00 00 00`
	readVector = `b1 05 00 00 00 00 00 0c 00 00 00 02 00 00 02 00 00 00 00 00 00 00 00 00 01 02 03 04 00 00 00 00
		00 00 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00`
)

var requests = []struct {
	hex string
	is  Request
}{
	{writeVector, Request{Op: Write, Flags: Durable, Tag: 9, Handle: 1, Length: 4096, Offset: 8192}},
	{addVector, Request{Op: Add, Flags: Durable | Fence, Tag: 10, Handle: 2, Length: 8, Offset: 64, New: 3}},
	{swapVector, Request{Op: Swap, Tag: 11, Handle: 2, Length: 8, Offset: 64, Compare: 3, New: 4}},
	{readVector, Request{Op: Read, Tag: 12, Handle: 2, Length: 512, STag: 0x01020304, TO: 0x10000}},
}

func TestRequests(t *testing.T) {
	for _, c := range requests {
		want := hexdump.Parse(t, c.hex)
		if b := c.is.AppendTo(nil); !bytes.Equal(b, want) {
			t.Errorf("%v:\n%x\nwant\n%x", c.is.Op, b, want)
		}
		if r, data, err := ParseRequest(want); err != nil || r != c.is || len(data) != 0 {
			t.Errorf("%v: %+v, %v", c.is.Op, r, err)
		}
	}
	inline := Request{Op: Write, Flags: Inline, Tag: 1, Handle: 2, Length: 3}
	if r, data, err := ParseRequest(append(inline.AppendTo(nil), "abc"...)); err != nil || r != inline || string(data) != "abc" {
		t.Errorf("%+v, %q, %v", r, data, err)
	}
}

func TestResponse(t *testing.T) {
	want := hexdump.Parse(t, answerVector)
	is := Response{Op: Write, Tag: 9, Done: 4096, Credits: 64, Value: 41, Durable: 40}
	if b := is.AppendTo(nil); !bytes.Equal(b, want) {
		t.Errorf("%x\nwant\n%x", b, want)
	}
	if r, data, err := ParseResponse(want); err != nil || r != is || len(data) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Each of these messages is wrong in one place.
func TestRefused(t *testing.T) {
	for what, change := range map[string]func([]byte) []byte{
		"short":                 func(b []byte) []byte { return b[:63] },
		"long":                  func(b []byte) []byte { return append(b, 0) },
		"another first octet":   func(b []byte) []byte { b[0] = 0x10; return b },
		"operation 0":           func(b []byte) []byte { b[1] = 0; return b },
		"HELLO":                 func(b []byte) []byte { b[1] = 1; return b },
		"operation 12":          func(b []byte) []byte { b[1] = 12; return b },
		"an answer":             func(b []byte) []byte { b[1] |= 0x80; return b },
		"an unknown flag":       func(b []byte) []byte { b[3] |= 0x40; return b },
		"a high flag":           func(b []byte) []byte { b[2] = 1; return b },
		"inline without octets": func(b []byte) []byte { b[3] |= 8; return b },
		"durable READ":          func(b []byte) []byte { b[1] = 5; return b },
		"reserved at 1c":        func(b []byte) []byte { b[31] = 1; return b },
		"reserved at 38":        func(b []byte) []byte { b[63] = 1; return b },
		"operand of a WRITE":    func(b []byte) []byte { b[47] = 1; return b },
		"swap of a WRITE":       func(b []byte) []byte { b[55] = 1; return b },
		"TO without STag":       func(b []byte) []byte { b[39] = 1; return b },
		"STag of a FLUSH":       func(b []byte) []byte { b[1], b[3], b[27] = 7, 0, 1; return b },
		"CAS of 4096":           func(b []byte) []byte { b[1] = 8; return b },
		"LIST with a handle":    func(b []byte) []byte { b[1], b[3], b[14] = 3, 0, 0; return b },
		"DETACH with a length":  func(b []byte) []byte { b[1], b[3], b[22] = 11, 0, 0; return b },
		"inline of 16385": func(b []byte) []byte {
			b[3], b[14], b[15] = 8, 0x40, 1
			return append(b, make([]byte, 16385)...)
		},
	} {
		if r, _, err := ParseRequest(change(hexdump.Parse(t, writeVector))); !errors.As(err, new(*Error)) {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
	}
	for what, change := range map[string]func([]byte) []byte{
		"short": func(b []byte) []byte { return b[:31] }, "long": func(b []byte) []byte { return append(b, 0) },
		"a request": func(b []byte) []byte { b[1] &^= 0x80; return b }, "status 14": func(b []byte) []byte { b[3] = 14; return b },
		"CHALLENGE":            func(b []byte) []byte { b[1] = 0x81; return b },
		"LIST of 4096 without": func(b []byte) []byte { b[1] = 0x83; return b },
	} {
		if r, _, err := ParseResponse(change(hexdump.Parse(t, answerVector))); err == nil {
			t.Errorf("%s: %+v", what, r)
		}
	}
}

var (
	hello     = HelloMessage{Version: 1, Nonce: Nonce{1, 2, 31: 3}, Name: "iqn.client"}
	challenge = ChallengeMessage{Status: Denied, Nonce: Nonce{4, 31: 5}}
	attach    = AttachMessage{Order: 3, Tag: 7, Rights: 63, Session: 1 << 40, Proof: Proof{9, 31: 1}, Partition: "disk1/log"}
	attached  = AttachedMessage{
		Status: OK, Tag: 7, Handle: 5, Rights: 3, Size: 1 << 33, Unit: 4096, Durability: 2, Inline: 8192, Credits: 64, Sequence: 41,
		Durable: 40, Session: 6, MaxLength: 1 << 20, AgingMS: 200, UUID: [16]byte{1, 15: 2}, Proof: Proof{3, 31: 4}, Known: true, STag: 9, TO: 1 << 33,
		Name: "disk1/log",
	}
	entry = Entry{UUID: [16]byte{1, 15: 2}, Size: 1 << 33, Unit: 512, Rights: 63, Durability: 2, Name: "disk1/log"}
)

func TestGreeting(t *testing.T) {
	zeroes := strings.Repeat("00 ", 29)
	for _, c := range []struct {
		hex  string
		got  []byte
		is   any
		read func([]byte) (any, error)
	}{
		{
			"b1 01 00 01 00000000 01 02 " + zeroes + "03 0a 00000000000000 69716e2e636c69656e74", hello.AppendTo(nil), hello,
			func(b []byte) (any, error) { return ParseHello(b) },
		},
		{
			"b1 81 00 03 00000000 04 00 " + zeroes + "05", challenge.AppendTo(nil), challenge,
			func(b []byte) (any, error) { return ParseChallenge(b) },
		},
		{
			"b1 02 0003 00000007 0000003f 09 000000 0000010000000000 0000000000000000 09 00 " + zeroes + "01 6469736b312f6c6f67",
			attach.AppendTo(nil), attach, func(b []byte) (any, error) { return ParseAttach(b) },
		},
		{
			`b1 82 0000 00000007 00000005 00000003 0000000200000000 00001000 02 09 2000 00000009 00000040 0000000200000000
			0000000000000029 0000000000000028 0000000000000006 00100000 000000c8 01 0000000000000000000000000000 02
			03 00 ` + zeroes + `04 00000001 000000000000000000000000 6469736b312f6c6f67`,
			attached.AppendTo(nil), attached, func(b []byte) (any, error) { return ParseAttached(b) },
		},
		{
			"01 0000000000000000000000000000 02 0000000200000000 00000200 3f 02 09 00 6469736b312f6c6f67", entry.AppendTo(nil), entry,
			func(b []byte) (any, error) { e, _, err := ParseEntry(b); return e, err },
		},
	} {
		want := hexdump.Parse(t, c.hex)
		if !bytes.Equal(c.got, want) {
			t.Errorf("%T:\n%x\nwant\n%x", c.is, c.got, want)
		}
		if got, err := c.read(want); err != nil || !reflect.DeepEqual(got, c.is) {
			t.Errorf("%+v, %v", got, err)
		}
		for n := range want {
			if got, err := c.read(want[:n]); err == nil {
				t.Errorf("%T of %d octets is taken: %+v", c.is, n, got)
			}
		}
	}
}

// A service cannot tell the terminal of who lists partitions what to do, nor a client get all rights by asking for one that does not exist.
func TestGreetingRefused(t *testing.T) {
	for _, name := range []string{"disk1/\x1b[2J", "disk1/\x7f", "disk1/\u009b2J", "disk1/\xff", "disk1/\u202e", "disk1\n"} {
		a, e := attached, entry
		a.Name, e.Name = name, name
		if _, err := ParseAttached(a.AppendTo(nil)); err == nil {
			t.Errorf("%q is attached", name)
		}
		if _, _, err := ParseEntry(e.AppendTo(nil)); err == nil {
			t.Errorf("%q is listed", name)
		}
	}
	a := attach
	a.Rights = 0x100
	if m, err := ParseAttach(a.AppendTo(nil)); err == nil {
		t.Errorf("%+v", m)
	}
}

// A proof is that of one secret, one connection, one role and one message.
func TestProofs(t *testing.T) {
	g := Greeting{Name: "a", Client: Nonce{1}, Service: Nonce{2}}
	want := g.ClientProof([]byte("secret"), &attach)
	proofs := map[string]Proof{"client": want, "server": g.ServiceProof([]byte("secret"), &attached)}
	proofs["secret"] = g.ClientProof([]byte("Secret"), &attach)
	for what, h := range map[string]Greeting{
		"name": {"b", g.Client, g.Service}, "client's nonce": {"a", Nonce{3}, g.Service}, "service's nonce": {"a", g.Client, Nonce{3}},
	} {
		proofs[what] = h.ClientProof([]byte("secret"), &attach)
	}
	other := attach
	other.Rights = 1
	proofs["rights"] = g.ClientProof([]byte("secret"), &other)
	other = attach
	other.Partition = "disk1/logs"
	proofs["partition"] = g.ClientProof([]byte("secret"), &other)
	seen := make(map[Proof]string)
	for what, p := range proofs {
		if with, twice := seen[p]; twice {
			t.Errorf("%s changes nothing (%s)", what, with)
		}
		seen[p] = what
	}
	signed := attach
	signed.Proof = want
	if again := g.ClientProof([]byte("secret"), &signed); !again.Equal(&want) {
		t.Error("a proof depends on itself")
	}
}

// A message that is parsed and written again has the same octets.
func FuzzMessages(f *testing.F) {
	for _, c := range requests {
		f.Add(hexdump.Parse(f, c.hex))
	}
	f.Add(hexdump.Parse(f, answerVector))
	for _, b := range [][]byte{hello.AppendTo(nil), challenge.AppendTo(nil), attach.AppendTo(nil), attached.AppendTo(nil), entry.AppendTo(nil)} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		same := func(err error, again []byte) {
			if err == nil && !bytes.Equal(again, b) {
				t.Errorf("%x becomes %x", b, again)
			}
		}
		r, data, err := ParseRequest(b)
		same(err, append(r.AppendTo(nil), data...))
		p, data, err := ParseResponse(b)
		same(err, append(p.AppendTo(nil), data...))
		h, err := ParseHello(b)
		same(err, h.AppendTo(nil))
		c, err := ParseChallenge(b)
		same(err, c.AppendTo(nil))
		a, err := ParseAttach(b)
		same(err, a.AppendTo(nil))
		d, err := ParseAttached(b)
		same(err, d.AppendTo(nil))
		e, rest, err := ParseEntry(b)
		same(err, append(e.AppendTo(nil), rest...))
	})
}

func TestNoAllocation(t *testing.T) {
	b, q, p := make([]byte, 0, 128), requests[0].is, Response{Op: Read}
	if n := testing.AllocsPerRun(100, func() {
		b = q.AppendTo(b[:0])
		if _, _, err := ParseRequest(b); err != nil {
			t.Fatal(err)
		}
		b = p.AppendTo(b[:0])
		if _, _, err := ParseResponse(b); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
