package ddp

import (
	"bytes"
	"testing"

	"oneshot/internal/hexdump"
)

var unhex = hexdump.Parse

// Formats of the vectors. The receiver of an advertise is Host 2, that of a close Host 1.
var (
	standard    = Format{}
	flagsHost1  = OneShot{Flags: 0x0076}.Format(Host1)
	flagsHost2  = OneShot{Flags: 0x0076}.Format(Host2)
	opcodeHost1 = OneShot{Flags: 0x0075}.Format(Host1)
	opcodeHost2 = OneShot{Flags: 0x0075}.Format(Host2)
	validated   = OneShot{Flags: 0x007a}.Format(Host2)
)

// vector is an FPDU, of which docs/protocols shows some, and what its fields are.
type vector struct {
	name    string
	hex     string
	format  *Format
	message Message
	last    bool
	tagged  Tagged   // of tagged segments
	plain   Untagged // of untagged segments but Read Request and Terminate
	read    RDMARead
	term    TerminateMessage
	payload string // hex
}

const (
	e4Payload = `14 00 00 00 00 00 00 00 00 00 00 00
		00 00 00 00 1a 2b 3c 01 00 00 7f 00 00 00 10 00 01 c1 00 00 00 00 00 00 00 00 00 00 00 00 00 00
		10 00 00 07 00 00 10 00 00 00 00 11 00 00 00 21 28 00 00 00 00 08 00 00 08 00 00 00 00 00 00 00`
	e7Payload = `10 00 00 00 00 00 00 00 00 00 00 00
		00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 21 80 00 00 00 00 00 00 00 00 00 00 00 00 00 00
		10 00 00 07 00 00 00 00 00 00 00 21 00 00 00 12 00 00 00 91 00 00 00 00 00 00 00 00 00 00 00 00`
	writeBHS = `01 a1 00 00 00 00 00 00 00 00 00 00
		00 00 00 00 20 00 00 01 00 00 20 00 00 00 00 07 00 00 00 21 2a 00 00 00 00 40 00 00 10 00 00 00
		00 00 00 00`
	responseBHS = `21 80 00 00 00 00 00 00 00 00 00 00
		00 00 00 00 20 00 00 01 00 00 00 00 00 00 00 21 00 00 00 08 00 00 00 87 00 00 00 00 00 00 00 00
		00 00 00 00`
	nopBHS = `40 80 00 00 00 00 00 00 00 00 00 00 00 00 00 00
		20 00 00 02 ff ff ff ff 00 00 00 08 00 00 00 22 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00`
)

var vectors = []vector{
	{
		name: "E4", message: Send, last: true, plain: Untagged{MSN: 5}, payload: e4Payload,
		hex: `00 5e 41 43 00 00 00 00 00 00 00 00 00 00 00 05 00 00 00 00 14 00 00 00 00 00 00 00 00 00 00 00
		00 00 00 00 1a 2b 3c 01 00 00 7f 00 00 00 10 00 01 c1 00 00 00 00 00 00 00 00 00 00 00 00 00 00
		10 00 00 07 00 00 10 00 00 00 00 11 00 00 00 21 28 00 00 00 00 08 00 00 08 00 00 00 00 00 00 00
		fe 8a 24 1a`,
	},
	{
		name: "E5", message: Write, last: true, tagged: Tagged{STag: 0x1a2b3c01, TO: 0x7f0000001000},
		payload: `00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f`,
		hex: `00 1e c1 40 1a 2b 3c 01 00 00 7f 00 00 00 10 00 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f
		a5 e9 65 67`,
	},
	{
		name: "E6", message: Write, last: true, tagged: Tagged{STag: 0x1a2b3c01, TO: 0x7f0000001010},
		payload: `68 65 6c 6c 6f`,
		hex:     `00 13 c1 40 1a 2b 3c 01 00 00 7f 00 00 00 10 10 68 65 6c 6c 6f 00 00 00 d6 e5 5e 0c`,
	},
	{
		name: "E7", message: SendInvalidate, last: true, plain: Untagged{STag: 0x1a2b3c01, MSN: 5}, payload: e7Payload,
		hex: `00 5e 41 44 1a 2b 3c 01 00 00 00 00 00 00 00 05 00 00 00 00 10 00 00 00 00 00 00 00 00 00 00 00
		00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 21 80 00 00 00 00 00 00 00 00 00 00 00 00 00 00
		10 00 00 07 00 00 00 00 00 00 00 21 00 00 00 12 00 00 00 91 00 00 00 00 00 00 00 00 00 00 00 00
		60 15 bb 3e`,
	},
	{
		name: "E8", message: ReadRequest, last: true, plain: Untagged{MSN: 1},
		read: RDMARead{SinkSTag: 0x901, SinkTO: 0x2000, Size: 8192, SrcSTag: 0x0badf00d, SrcTO: 0x7f0000002000},
		hex: `00 2e 41 41 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 00 00 09 01 00 00 00 00 00 00 20 00
		00 00 20 00 0b ad f0 0d 00 00 7f 00 00 00 20 00 07 27 06 62`,
	},
	{
		name: "E9 first", message: ReadResponse, tagged: Tagged{STag: 0x901, TO: 0x2000},
		payload: `41 42 43 44 45 46 47 48`,
		hex:     `00 16 81 42 00 00 09 01 00 00 00 00 00 00 20 00 41 42 43 44 45 46 47 48 0e 48 32 03`,
	},
	{
		name: "E9 last", message: ReadResponse, last: true, tagged: Tagged{STag: 0x901, TO: 0x2008},
		payload: `49 4a 4b 4c 4d`,
		hex:     `00 13 c1 42 00 00 09 01 00 00 00 00 00 00 20 08 49 4a 4b 4c 4d 00 00 00 6a cb 37 59`,
	},
	{
		name: "E10", message: Terminate, last: true,
		term: TerminateMessage{
			Cause: TaggedInvalidSTag, HasLength: true, Length: 0x1e,
			Header: Header("\xc1\x40\x1a\x2b\x3c\x01\x00\x00\x7f\x00\x00\x00\x10\x00"),
		},
		hex: `00 26 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 11 00 c0 00 00 1e c1 40 1a 2b 3c 01
		00 00 7f 00 00 00 10 00 fc ef 4c 25`,
	},
	{
		name: "E11", message: Terminate, last: true,
		term: TerminateMessage{
			Cause: ProtBounds, HasLength: true, Length: 0x2e,
			Header:  Header("\x41\x41\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00"),
			HasRead: true,
			Read:    RDMARead{SinkSTag: 0x901, SinkTO: 0x2000, Size: 8192, SrcSTag: 0x0badf00d, SrcTO: 0x7f0000002000},
		},
		hex: `00 46 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 01 01 e0 00 00 2e 41 41 00 00 00 00
		00 00 00 01 00 00 00 01 00 00 00 00 00 00 09 01 00 00 00 00 00 00 20 00 00 00 20 00 0b ad f0 0d
		00 00 7f 00 00 00 20 00 78 0c a3 42`,
	},
	{
		name: "E12", message: Terminate, last: true, term: TerminateMessage{Cause: MPACRC},
		hex: `00 16 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 20 02 00 00 7f e4 25 85`,
	},
	{
		name: "O3", format: &opcodeHost2, message: SendAdvertise, last: true,
		plain: Untagged{STag: 0x00a1b205, MSN: 1}, payload: writeBHS,
		hex: `00 42 41 48 00 a1 b2 05 00 00 00 00 00 00 00 01 00 00 00 00 01 a1 00 00 00 00 00 00 00 00 00 00
		00 00 00 00 20 00 00 01 00 00 20 00 00 00 00 07 00 00 00 21 2a 00 00 00 00 40 00 00 10 00 00 00
		00 00 00 00 f3 ea 60 be`,
	},
	{
		name: "O4", format: &flagsHost2, message: SendAdvertise, last: true,
		plain: Untagged{STag: 0x00a1b205, MSN: 1}, payload: writeBHS,
		hex: `00 42 51 45 00 a1 b2 05 00 00 00 00 00 00 00 01 00 00 00 00 01 a1 00 00 00 00 00 00 00 00 00 00
		00 00 00 00 20 00 00 01 00 00 20 00 00 00 00 07 00 00 00 21 2a 00 00 00 00 40 00 00 10 00 00 00
		00 00 00 00 16 8b 3a 4b`,
	},
	{
		name: "O5", format: &flagsHost1, message: ReadRequest, last: true, plain: Untagged{MSN: 1},
		read: RDMARead{SinkSTag: 0xc02, SinkTO: 0x4000, Size: 8192, SrcSTag: 0x00a1b205},
		hex: `00 2e 41 41 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 00 00 0c 02 00 00 00 00 00 00 40 00
		00 00 20 00 00 a1 b2 05 00 00 00 00 00 00 00 00 8c 8d 22 54`,
	},
	{
		name: "O6", format: &flagsHost1, message: SendClose, last: true,
		plain: Untagged{STag: 0x00a1b205, MSN: 1}, payload: responseBHS,
		hex: `00 42 61 45 00 a1 b2 05 00 00 00 00 00 00 00 01 00 00 00 00 21 80 00 00 00 00 00 00 00 00 00 00
		00 00 00 00 20 00 00 01 00 00 00 00 00 00 00 21 00 00 00 08 00 00 00 87 00 00 00 00 00 00 00 00
		00 00 00 00 38 fb a7 b6`,
	},
	{
		name: "O7", format: &opcodeHost1, message: SendClose, last: true,
		plain: Untagged{STag: 0x00a1b205, MSN: 1}, payload: responseBHS,
		hex: `00 42 41 4c 00 a1 b2 05 00 00 00 00 00 00 00 01 00 00 00 00 21 80 00 00 00 00 00 00 00 00 00 00
		00 00 00 00 20 00 00 01 00 00 00 00 00 00 00 21 00 00 00 08 00 00 00 87 00 00 00 00 00 00 00 00
		00 00 00 00 f4 da 3f 58`,
	},
	{
		name: "O8", format: &flagsHost2, message: Terminate, last: true,
		term: TerminateMessage{
			Cause: ProtInvalidSTag, HasLength: true, Length: 0x42,
			Header: Header("\x61\x45\x00\xa1\xb2\x05\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00"),
		},
		hex: `00 2a 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 01 00 c0 00 00 42 61 45 00 a1 b2 05
		00 00 00 00 00 00 00 02 00 00 00 00 9f 1c 14 3b`,
	},
	{
		name: "O9", format: &validated, message: SendSE, last: true, plain: Untagged{MSN: 2}, payload: nopBHS,
		hex: `00 3e 41 45 00 00 00 00 00 00 00 02 00 00 00 00 40 80 00 00 00 00 00 00 00 00 00 00 00 00 00 00
		20 00 00 02 ff ff ff ff 00 00 00 08 00 00 00 22 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
		d4 de c3 60`,
	},
	{
		name: "O10 first", format: &flagsHost2, message: SendAdvertise,
		plain:   Untagged{STag: 0x00a1b205, MSN: 1},
		payload: `01 a1 00 00 00 00 00 00 00 00 00 00 00 00 00 00 20 00 00 01 00 00 20 00`,
		hex: `00 2a 11 45 00 a1 b2 05 00 00 00 00 00 00 00 01 00 00 00 00 01 a1 00 00 00 00 00 00 00 00 00 00
		00 00 00 00 20 00 00 01 00 00 20 00 5c 35 1f d2`,
	},
	{
		name: "O10 last", format: &flagsHost2, message: SendAdvertise, last: true,
		plain:   Untagged{STag: 0x00a1b205, MSN: 1, MO: 24},
		payload: `00 00 00 07 00 00 00 21 2a 00 00 00 00 40 00 00 10 00 00 00 00 00 00 00`,
		hex: `00 2a 51 45 00 a1 b2 05 00 00 00 00 00 00 00 01 00 00 00 18 00 00 00 07 00 00 00 21 2a 00 00 00
		00 40 00 00 10 00 00 00 00 00 00 00 6c 0b 59 50`,
	},
}

func (v *vector) f() *Format {
	if v.format == nil {
		return &standard
	}
	return v.format
}

// encode writes the FPDU from the fields of the vector.
func (v *vector) encode(t *testing.T) []byte {
	b := bytes.Repeat([]byte{0xa5}, 200)[:0] // encoders must write every octet
	payload := unhex(t, v.payload)
	c := v.f().Control(v.message, v.last)
	switch {
	case v.message == ReadRequest:
		b = AppendReadRequest(b, v.plain.MSN, v.read)
	case v.message == Terminate:
		b = AppendTerminate(b, &v.term)
	case v.message.Tagged():
		g := v.tagged
		g.Control, g.Payload = c, len(payload)
		b = append(AppendTagged(b, g), payload...)
	default:
		u := v.plain
		u.Control, u.QN, u.Payload = c, v.message.QN(), len(payload)
		b = append(v.f().AppendUntagged(b, u), payload...)
	}
	return AppendFPDUTrailer(b, 0)
}

func TestVectorsEncode(t *testing.T) {
	for _, v := range vectors {
		if got, want := v.encode(t), unhex(t, v.hex); !bytes.Equal(got, want) {
			t.Errorf("%s: encoded\n% x, want\n% x", v.name, got, want)
		}
	}
}

func TestVectorsDecode(t *testing.T) {
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) { v.decode(t) })
	}
}

func (v *vector) decode(t *testing.T) {
	fpdu, rest, err := SplitFPDU(unhex(t, v.hex), true)
	if err != nil || len(rest) != 0 {
		t.Fatalf("SplitFPDU: %v, %d octets left", err, len(rest))
	}
	n, err := v.f().Prefix(fpdu)
	if err != nil || n > len(fpdu) || n > PrefixMax {
		t.Fatalf("Prefix = %d, %v", n, err)
	}
	s, err := v.f().Parse(fpdu[:n]) // Parse needs the prefix and no more
	if err != nil {
		t.Fatal(err)
	}
	h, payload := s.Header, fpdu[s.PayloadOffset():]
	if s.Message != v.message || h.Control().Last() != v.last || len(payload) != s.PayloadLen() {
		t.Errorf("message %v, last %v, payload %d of %d", s.Message, h.Control().Last(), len(payload), s.PayloadLen())
	}
	if v.message.Tagged() {
		if h.STag() != v.tagged.STag || h.TO() != v.tagged.TO {
			t.Errorf("STag %08x TO %x", h.STag(), h.TO())
		}
	} else if want := v.untagged(); h.STag() != want.STag || h.QN() != want.QN || h.MSN() != want.MSN || h.MO() != want.MO {
		t.Errorf("STag %08x QN %d MSN %d MO %d, want %+v", h.STag(), h.QN(), h.MSN(), h.MO(), want)
	}
	v.decodePayload(t, payload)
}

func (v *vector) untagged() Untagged {
	u := v.plain
	u.QN = v.message.QN()
	if v.message == Terminate {
		u.MSN = 1
	}
	return u
}

func (v *vector) decodePayload(t *testing.T, payload []byte) {
	switch v.message {
	case ReadRequest:
		if got := ParseReadRequest(payload); got != v.read {
			t.Errorf("Read Request %+v", got)
		}
	case Terminate:
		got, err := v.f().ParseTerminate(payload)
		if err != nil || !equalTerminate(got, v.term) {
			t.Errorf("Terminate %+v, %v; want %+v", got, err, v.term)
		}
	default:
		if !bytes.Equal(payload, unhex(t, v.payload)) {
			t.Errorf("payload % x", payload)
		}
	}
}

func equalTerminate(a, b TerminateMessage) bool {
	return a.Cause == b.Cause && a.HasLength == b.HasLength && a.Length == b.Length &&
		bytes.Equal(a.Header, b.Header) && a.HasRead == b.HasRead && a.Read == b.Read && a.SiwOrder == b.SiwOrder
}
