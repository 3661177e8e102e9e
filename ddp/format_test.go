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
		{"Immediate Data", &standard, head(26, 0x4148), OpUnexpectedOpcode},
		{"Immediate Data SE", &standard, head(26, 0x4149), OpUnexpectedOpcode},
		{"Atomic Request", &standard, head(70, 0x414a, 0, 1, 1, 0), OpUnexpectedOpcode},
		{"Atomic Response", &standard, head(30, 0x414b, 0, 3, 1, 0), OpUnexpectedOpcode},
		{"opcode c", &standard, head(30, 0x414c), OpUnexpectedOpcode},
		{"opcode f", &standard, head(30, 0x414f), OpUnexpectedOpcode},
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

		{"F1 5A advertise, nothing negotiated", &standard, head(26, 0x4148), OpUnexpectedOpcode},
		{"F1 5A close, nothing negotiated", &standard, head(26, 0x414c), OpUnexpectedOpcode},
		{"F1 5A advertise on 5B", &flagsHost2, head(26, 0x4148), OpUnexpectedOpcode},
		{"F1 5A close on 5B", &flagsHost1, head(26, 0x414c), OpUnexpectedOpcode},
		{"Immediate Data SE on 5A", &opcodeHost2, head(26, 0x4149), OpUnexpectedOpcode},
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
		SendSE: 0x4145, SendSEInvalidate: 0x4146, Terminate: 0x4147,
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
