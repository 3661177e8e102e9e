package ddp

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"testing"
)

// fuzzFormat turns an octet into any format.
func fuzzFormat(bits byte) *Format {
	return &Format{
		Encoding:  Encoding(bits & 3 % 3),
		Header:    HeaderMode(bits >> 2 & 1),
		Host:      Host(bits >> 3 & 3 % 3),
		Advertise: bits&0x20 != 0,
		Close:     bits&0x40 != 0,
	}
}

// FuzzSegment: a prefix with more octets after it parses to the same segment, and a segment that was
// accepted is encoded to the same octets.
func FuzzSegment(f *testing.F) {
	for _, v := range vectors {
		for _, format := range []byte{0x00, 0x69, 0x72, 0x6a, 0x71, 0x6e} {
			f.Add(format, unhex(f, v.hex))
		}
	}
	f.Fuzz(func(t *testing.T, format byte, b []byte) {
		if len(b) < PrefixMin {
			return
		}
		fm := fuzzFormat(format)
		n, err := fm.Prefix(b)
		if err != nil || n > len(b) {
			if n > PrefixMax || n > LengthLen+MaxULPDU {
				t.Fatalf("prefix %d", n)
			}
			fm.Parse(b)
			return
		}
		s, err := fm.Parse(b[:n])
		whole, wholeErr := fm.Parse(b)
		if err != wholeErr || !reflect.DeepEqual(s, whole) {
			t.Fatalf("prefix: %+v, %v; whole: %+v, %v", s, err, whole, wholeErr)
		}
		if err != nil {
			return
		}
		if fixed := rows[s.Message].size; n != s.PayloadOffset()+fixed {
			t.Fatalf("%v: prefix %d, header %d, message %d", s.Message, n, s.PayloadOffset(), fixed)
		}
		if got := reencode(fm, s); !bytes.Equal(got, b[:s.PayloadOffset()]) {
			t.Fatalf("%v:\n% x, encoded again\n% x", s.Message, b[:s.PayloadOffset()], got)
		}
		decodeFixed(t, s, b[s.PayloadOffset():n])
	})
}

func reencode(f *Format, s Segment) []byte {
	h := s.Header
	if s.Message.Tagged() {
		return AppendTagged(nil, Tagged{Control: h.Control(), STag: h.STag(), TO: h.TO(), Payload: s.PayloadLen()})
	}
	return f.AppendUntagged(nil, Untagged{
		Control: h.Control(), STag: h.STag(), QN: h.QN(), MSN: h.MSN(), MO: h.MO(), Payload: s.PayloadLen(),
	})
}

func decodeFixed(t *testing.T, s Segment, p []byte) {
	if s.Message != ReadRequest {
		return
	}
	again := AppendReadRequest(nil, 1, ParseReadRequest(p))
	if got := again[LengthLen+UntaggedLen:]; !bytes.Equal(got, p) {
		t.Fatalf("%v: % x, encoded again % x", s.Message, p, got)
	}
}

// FuzzTerminate: the content of a Terminate survives encoding, also in siw's order of bits.
func FuzzTerminate(f *testing.F) {
	for _, v := range vectors {
		if v.message == Terminate {
			b := unhex(f, v.hex)
			f.Add(byte(0x69), b[LengthLen+UntaggedLen:len(b)-CRCLen])
		}
	}
	f.Add(byte(0), []byte{0x20, 0x06, 0x07, 0x00, 0, 0x12, 0x41, 0x48, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, format byte, p []byte) {
		fm := fuzzFormat(format)
		m, err := fm.ParseTerminate(p)
		if err != nil {
			return
		}
		b := AppendTerminate(nil, &m)
		s, err := fm.Parse(b)
		if err != nil || len(b) > MaxTerminate {
			t.Fatalf("%+v: %d octets, %v", m, len(b), err)
		}
		again, err := fm.ParseTerminate(b[s.PayloadOffset():])
		// Without a quotation the encoding leaves room for two readings, as siw's own.
		if m.SiwOrder = false; again.SiwOrder {
			m.Cause, again.SiwOrder = again.Cause, false
		}
		if err != nil || !equalTerminate(m, again) {
			t.Fatalf("%+v, again %+v, %v", m, again, err)
		}
	})
}

// FuzzStartFrame: a frame that was parsed is encoded to a frame that parses to the same values. The same holds for
// its container.
func FuzzStartFrame(f *testing.F) {
	for _, v := range startVectors {
		f.Add(unhex(f, v.hex), v.frame.Reply)
	}
	f.Fuzz(func(t *testing.T, b []byte, reply bool) {
		s, err := ParseStartFrame(b, reply)
		if err != nil {
			return
		}
		again, err := ParseStartFrame(s.AppendTo(nil), reply)
		if err != nil || !reflect.DeepEqual(s, again) {
			t.Fatalf("%+v, again %+v, %v", s, again, err)
		}
		Answer(&s, Enhanced{IRD: 16, ORD: 16, RTRRead: true}, true)
		Agree(&again, &s)
		o, ok := FindOneShot(s.PrivateData)
		if !ok {
			return
		}
		if got, ok := FindOneShot(o.AppendTo(make([]byte, CMHeaderLen))); !ok || got != o {
			t.Fatalf("%+v, again %+v, %v", o, got, ok)
		}
		if sel, ok := Select(o, OneShot{Flags: 0x7f, Window: 64}); ok && CheckSelection(o, true, sel) != nil {
			t.Fatalf("offer %+v, selection %+v", o, sel)
		}
	})
}

// FuzzMarkers reads a stream of FPDUs with markers. FPDUs that are accepted give the same octets when
// they are marked again, except for pads.
func FuzzMarkers(f *testing.F) {
	stream, _ := mark(markedULPDUs())
	f.Add(stream[:1100])
	f.Add(stream[1000:])
	f.Fuzz(func(t *testing.T, wire []byte) {
		var m Markers
		var us [][]byte
		used := 0
		for used < len(wire) {
			fpdu, n, err := m.Next(nil, wire[used:], false) // the fuzzer would not get past CRCs
			if err != nil || n == 0 {
				break
			}
			if int(binary.BigEndian.Uint16(fpdu)) != len(fpdu)-LengthLen {
				t.Fatalf("FPDU of %d octets with length field %x", len(fpdu), fpdu[:2])
			}
			us, used = append(us, fpdu[LengthLen:]), used+n
		}
		if again, _ := mark(us); len(again) != used {
			t.Fatalf("%d FPDUs in %d octets, marked again %d", len(us), used, len(again))
		}
	})
}
