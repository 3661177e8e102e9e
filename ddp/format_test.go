package ddp

import (
	"encoding/binary"
	"testing"
)

// head makes an FPDU prefix of a control word and the fields that follow it.
func head(ulpdu int, c Control, rest ...uint32) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(ulpdu))
	b = binary.BigEndian.AppendUint16(b, uint16(c))
	for _, v := range rest {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return append(b, make([]byte, 64)...)
}

// TestParseErrors goes through iwarp.md §6 steps 1 to 6 and 24, and one-shot.md §6 F1 to F3.
func TestParseErrors(t *testing.T) {
	extended := Format{Extensions: true}
	opcodesExtended := opcodeHost2
	opcodesExtended.Extensions = true
	adverse := flagsHost2
	adverse.Advertise = false
	for _, c := range []struct {
		name string
		f    *Format
		b    []byte
		want Cause
	}{
		{"tagged header cut", &standard, head(13, 0xc140), NoTerminate},
		{"untagged header cut", &standard, head(17, 0x4143), NoTerminate},
		{"empty ULPDU", &standard, head(0, 0xc140), NoTerminate},
		{"mode V keeps 18 octets for Invalidate", &validated, head(17, 0x4144), NoTerminate},
		{"DV 0, tagged", &standard, head(20, 0xc040), TaggedVersion},
		{"DV 2, untagged", &standard, head(20, 0x4243), UntaggedVersion},
		{"DV before RV", &standard, head(20, 0xc000), TaggedVersion},
		{"RV 0", &standard, head(20, 0xc100), OpVersion},
		{"RV 2", &standard, head(20, 0x4183), OpVersion},
		{"version before opcode", &standard, head(20, 0x410f), OpVersion},
		{"version before length of message", &standard, head(20, 0x4101, 0, 1, 1, 0), OpVersion},
		{"Write untagged", &standard, head(20, 0x4140), OpUnexpectedOpcode},
		{"Read Request tagged", &standard, head(46, 0xc141), OpUnexpectedOpcode},
		{"Read Response untagged", &standard, head(20, 0x4142), OpUnexpectedOpcode},
		{"Send tagged", &standard, head(20, 0xc143), OpUnexpectedOpcode},
		{"Terminate tagged", &standard, head(22, 0xc147), OpUnexpectedOpcode},
		{"Immediate Data not admitted", &standard, head(26, 0x4148), OpUnexpectedOpcode},
		{"Immediate Data SE not admitted", &standard, head(26, 0x4149), OpUnexpectedOpcode},
		{"Atomic Request not admitted", &standard, head(70, 0x414a, 0, 1, 1, 0), OpUnexpectedOpcode},
		{"Atomic Response not admitted", &standard, head(30, 0x414b, 0, 3, 1, 0), OpUnexpectedOpcode},
		{"opcode c", &extended, head(30, 0x414c), OpUnexpectedOpcode},
		{"opcode f", &extended, head(30, 0x414f), OpUnexpectedOpcode},
		{"Send on QN 1", &standard, head(20, 0x4143, 0, 1, 1, 0), UntaggedQN},
		{"Send on QN 4", &standard, head(20, 0x4143, 0, 4, 1, 0), UntaggedQN},
		{"Read Request on QN 0", &standard, head(46, 0x4141, 0, 0, 1, 0), UntaggedQN},
		{"QN before length of message", &standard, head(47, 0x4141, 0, 0, 1, 0), UntaggedQN},
		{"Terminate on QN 0", &standard, head(22, 0x4147, 0, 0, 1, 0), UntaggedQN},
		{"Read Request short", &standard, head(45, 0x4141, 0, 1, 1, 0), NoTerminate},
		{"Read Request with trailing data", &standard, head(47, 0x4141, 0, 1, 1, 0), NoTerminate},
		{"Read Request not last", &standard, head(46, 0x0141, 0, 1, 1, 0), NoTerminate},
		{"Read Request with MO", &standard, head(46, 0x4141, 0, 1, 1, 4), UntaggedMO},
		{"Terminate short", &standard, head(21, 0x4147, 0, 2, 1, 0), NoTerminate},
		{"Immediate Data short", &extended, head(25, 0x4148, 0, 0, 1, 0), NoTerminate},

		{"F1 5A advertise, nothing negotiated", &standard, head(26, 0x4148), OpUnexpectedOpcode},
		{"F1 5A close, nothing negotiated", &standard, head(26, 0x414c), OpUnexpectedOpcode},
		{"F1 5A advertise on 5B", &flagsHost2, head(26, 0x4148), OpUnexpectedOpcode},
		{"F1 5A close on 5B", &flagsHost1, head(26, 0x414c), OpUnexpectedOpcode},
		{"5A excludes Immediate Data SE", &opcodesExtended, head(26, 0x4149), OpUnexpectedOpcode},
		{"F2 both flags", &flagsHost2, head(26, 0x7145), OpUnexpectedOpcode},
		{"F2 flag on a Write", &flagsHost2, head(26, 0xd140), OpUnexpectedOpcode},
		{"F2 flag on a tagged Send", &flagsHost2, head(26, 0xd145), OpUnexpectedOpcode},
		{"F2 flag on a Read Request", &flagsHost2, head(46, 0x5141, 0, 1, 1, 0), OpUnexpectedOpcode},
		{"F2 flag on a Terminate", &flagsHost1, head(22, 0x6147, 0, 2, 1, 0), OpUnexpectedOpcode},
		{"F2 flag on opcode 4", &flagsHost1, head(26, 0x6144), OpUnexpectedOpcode},
		{"F2 flag on opcode 6", &flagsHost2, head(26, 0x5146), OpUnexpectedOpcode},
		{"F2 5A advertise tagged", &opcodeHost2, head(26, 0xc148), OpUnexpectedOpcode},
		{"F2 5A advertise on QN 1", &opcodeHost2, head(26, 0x4148, 1, 1, 1, 0), OpUnexpectedOpcode},
		{"F2 5A close on QN 2", &opcodeHost1, head(26, 0x414c, 1, 2, 1, 0), OpUnexpectedOpcode},
		{"F2 5B advertise on QN 1", &flagsHost2, head(26, 0x5145, 1, 1, 1, 0), OpUnexpectedOpcode},
		{"F3 advertise not selected", &adverse, head(26, 0x5145, 1, 0, 1, 0), OpUnexpectedOpcode},
		{"F3 advertise by Host 2", &flagsHost1, head(26, 0x5145, 1, 0, 1, 0), OpUnexpectedOpcode},
		{"F3 close by Host 1", &flagsHost2, head(26, 0x6145, 1, 0, 1, 0), OpUnexpectedOpcode},
		{"F3 5A close by Host 1", &opcodeHost2, head(26, 0x414c, 1, 0, 1, 0), OpUnexpectedOpcode},
	} {
		if _, err := c.f.Parse(c.b); causeOf(err) != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if n, err := c.f.Prefix(c.b); err == nil && n > len(c.b) {
			t.Errorf("%s: prefix %d", c.name, n)
		}
	}
}

func TestParseAccepts(t *testing.T) {
	extended := Format{Extensions: true}
	flagsExtended := flagsHost2
	flagsExtended.Extensions = true
	opcodesExtended := opcodeHost2
	opcodesExtended.Extensions = true
	for _, c := range []struct {
		name      string
		f         *Format
		b         []byte
		want      Message
		header    int
		solicited bool
	}{
		// RFC 5041 §4.1, RFC 5040 §4.1: reserved bits are not checked.
		{"reserved bits", &standard, head(20, 0x7d73, 0, 0, 1, 0), Send, 18, false},
		{"reserved bits, tagged", &standard, head(14, 0xfd70), Write, 14, false},
		{"5B bits on 5A", &opcodeHost2, head(20, 0x7145, 0, 0, 1, 0), SendSE, 18, true},
		{"32-bit field without use", &standard, head(20, 0x4143, 0xffffffff, 0, 1, 0), Send, 18, false},
		{"zero-length Send", &standard, head(18, 0x4143, 0, 0, 1, 0), Send, 18, false},
		{"zero-length Write", &standard, head(14, 0xc140), Write, 14, false},
		{"Send SE and Invalidate", &standard, head(18, 0x4146, 7, 0, 1, 0), SendSEInvalidate, 18, true},
		{"Immediate Data", &extended, head(26, 0x4148, 0, 0, 1, 0), ImmediateData, 18, false},
		{"Immediate Data on 5B", &flagsExtended, head(26, 0x4149, 0, 0, 1, 0), ImmediateDataSE, 18, true},
		{"Atomic Request on 5A", &opcodesExtended, head(70, 0x414a, 0, 1, 1, 0), AtomicRequest, 18, false},
		{"Atomic Response", &extended, head(30, 0x414b, 0, 3, 1, 0), AtomicResponse, 18, false},
		{"5B advertise with opcode 3", &flagsHost2, head(18, 0x5143, 1, 0, 1, 0), SendAdvertise, 18, false},
		{"5B advertise with opcode 5", &flagsHost2, head(18, 0x5145, 1, 0, 1, 0), SendAdvertise, 18, true},
		{"5A close", &opcodeHost1, head(18, 0x414c, 1, 0, 1, 0), SendClose, 18, true},
		{"mode V Send", &validated, head(14, 0x4143, 0, 1, 0), Send, 14, false},
		{"mode V advertise", &validated, head(18, 0x5145, 1, 0, 1, 0), SendAdvertise, 18, true},
		{"mode V Invalidate", &validated, head(18, 0x4144, 1, 0, 1, 0), SendInvalidate, 18, false},
	} {
		s, err := c.f.Parse(c.b)
		if err != nil || s.Message != c.want || len(s.Header) != c.header || s.Solicited() != c.solicited {
			t.Errorf("%s: %v, header %d, solicited %v, %v", c.name, s.Message, len(s.Header), s.Solicited(), err)
		}
	}
}

// TestMessageTable: every message of iwarp.md §4, with the control word that it has there.
func TestMessageTable(t *testing.T) {
	for m, want := range map[Message]Control{
		Write: 0xc140, ReadRequest: 0x4141, ReadResponse: 0xc142, Send: 0x4143, SendInvalidate: 0x4144,
		SendSE: 0x4145, SendSEInvalidate: 0x4146, Terminate: 0x4147, ImmediateData: 0x4148,
		ImmediateDataSE: 0x4149, AtomicRequest: 0x414a, AtomicResponse: 0x414b,
	} {
		if got := standard.Control(m, true); got != want {
			t.Errorf("%v: control %04x, want %04x", m, got, want)
		}
		if got := standard.Control(m, false); got != want&^ControlLast {
			t.Errorf("%v not last: control %04x", m, got)
		}
		isSend := want&controlOpcode >= 3 && want&controlOpcode <= 6
		if m.IsSend() != isSend || m.Invalidates() != (want&controlOpcode == 4 || want&controlOpcode == 6) {
			t.Errorf("%v: IsSend %v, Invalidates %v", m, m.IsSend(), m.Invalidates())
		}
	}
	for _, c := range []struct {
		f              *Format
		advertise, clo Control
	}{{&opcodeHost1, 0x4148, 0x414c}, {&flagsHost1, 0x5145, 0x6145}} {
		if a, b := c.f.Control(SendAdvertise, true), c.f.Control(SendClose, true); a != c.advertise || b != c.clo {
			t.Errorf("%v: %04x, %04x", c.f.Encoding, a, b)
		}
	}
}

func TestOurBugsPanic(t *testing.T) {
	for name, f := range map[string]func(){
		"advertise without one-shot":    func() { standard.Control(SendAdvertise, true) },
		"invalid message":               func() { standard.Control(MessageInvalid, true) },
		"Immediate Data on 5A":          func() { opcodeHost1.Control(ImmediateData, true) },
		"STag without field":            func() { validated.AppendUntagged(nil, Untagged{Control: 0x4143, STag: 1}) },
		"payload longer than a segment": func() { AppendTagged(nil, Tagged{Control: 0xc140, Payload: MaxULPDU}) },
		"private data longer than MPA":  func() { (&StartFrame{PrivateData: make([]byte, 513)}).AppendTo(nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

// TestExtensions: RFC 7306 messages laid out by hand.
func TestExtensions(t *testing.T) {
	f := Format{Extensions: true}
	check := func(name string, got []byte, hex string, want Message) []byte {
		t.Helper()
		if w := unhex(t, hex); string(got) != string(w) {
			t.Errorf("%s:\n% x, want\n% x", name, got, w)
		}
		s, err := f.Parse(got)
		if err != nil || s.Message != want {
			t.Fatalf("%s: %v, %v", name, s.Message, err)
		}
		return got[s.PayloadOffset():]
	}
	p := check("immediate", AppendImmediateData(nil, 3, 0x0102030405060708, false), `
		00 1a 41 48 00 00 00 00  00 00 00 00 00 00 00 03  00 00 00 00  # QN 0, MSN 3
		01 02 03 04 05 06 07 08`, ImmediateData)
	if got := ParseImmediateData(p); got != 0x0102030405060708 {
		t.Errorf("immediate %x", got)
	}
	check("immediate SE", AppendImmediateData(nil, 3, 0, true), `
		00 1a 41 49 00 00 00 00  00 00 00 00 00 00 00 03  00 00 00 00  00 00 00 00 00 00 00 00`, ImmediateDataSE)
	a := Atomic{Opcode: AtomicCompareSwap, RequestID: 9, STag: 0x1a2b3c01, TO: 0x1008, AddSwapData: 1, AddSwapMask: 2, CompareData: 3, CompareMask: 4}
	p = check("atomic", AppendAtomicRequest(nil, 2, &a), `
		00 46 41 4a 00 00 00 00  00 00 00 01 00 00 00 02  00 00 00 00  # QN 1, MSN 2
		00 00 00 02  00 00 00 09  1a 2b 3c 01  00 00 00 00 00 00 10 08 # CmpSwap, ID, STag, TO
		00 00 00 00 00 00 00 01  00 00 00 00 00 00 00 02
		00 00 00 00 00 00 00 03  00 00 00 00 00 00 00 04`, AtomicRequest)
	if got, err := ParseAtomicRequest(p); got != a || err != nil {
		t.Errorf("atomic %+v, %v", got, err)
	}
	for at, want := range map[int]Cause{3: OpUnexpectedOpcode, 19: OpCatastrophicStream} {
		bad := append([]byte(nil), p...)
		bad[at] = 1
		if _, err := ParseAtomicRequest(bad); causeOf(err) != want {
			t.Errorf("atomic octet %d: %v", at, err)
		}
	}
	r := AtomicResult{RequestID: 9, Original: 0xfedcba9876543210}
	p = check("atomic response", AppendAtomicResponse(nil, 4, r), `
		00 1e 41 4b 00 00 00 00  00 00 00 03 00 00 00 04  00 00 00 00  # QN 3, MSN 4
		00 00 00 09  fe dc ba 98 76 54 32 10`, AtomicResponse)
	if got := ParseAtomicResponse(p); got != r {
		t.Errorf("atomic response %+v", got)
	}
}
