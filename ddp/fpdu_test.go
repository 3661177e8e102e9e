package ddp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

func causeOf(err error) Cause {
	if err == nil {
		return 0x7777
	}
	var e *Error
	if !errors.As(err, &e) {
		return 0x7778
	}
	return e.Cause
}

func TestCRCCheckValue(t *testing.T) {
	if got := CRC(0, []byte("123456789")); got != 0xe3069283 {
		t.Errorf("CRC32C = %08x", got)
	}
	if got := CRC(CRC(0, []byte("1234")), []byte("56789")); got != 0xe3069283 {
		t.Errorf("CRC32C in two steps = %08x", got)
	}
}

// TestMULPDU: the table of iwarp.md §2, made from RFC 5044 §4.5.
func TestMULPDU(t *testing.T) {
	for _, c := range []struct {
		emss    int
		markers bool
		want    int
	}{
		{1448, false, 1442},
		{1460, false, 1454},
		{8948, false, 8942},
		{65483, false, 65474},
		{1460, true, 1442},
		{100, false, 128},
		{1 << 20, false, MaxULPDU},
	} {
		if got := MULPDU(c.emss, c.markers); got != c.want {
			t.Errorf("MULPDU(%d, %v) = %d, want %d", c.emss, c.markers, got, c.want)
		}
	}
}

func TestTrailerWithoutCRC(t *testing.T) {
	for n := range 9 {
		b := bytes.Repeat([]byte{0xa5}, 32)[:0]
		if got := AppendTrailerNoCRC(b, n); !bytes.Equal(got, make([]byte, TrailerLen(n))) {
			t.Errorf("ULPDU of %d: trailer % x", n, got)
		}
		if FPDULen(n)%4 != 0 || PadLen(n) > 3 {
			t.Errorf("ULPDU of %d: FPDU of %d", n, FPDULen(n))
		}
	}
}

func TestEveryBitCounts(t *testing.T) {
	fpdu := unhex(t, vectors[2].hex) // E6, with a pad
	for i := range 8 * len(fpdu) {
		b := bytes.Clone(fpdu)
		b[i/8] ^= 1 << (i % 8)
		if _, _, err := SplitFPDU(b, true); err == nil {
			t.Errorf("bit %d flipped and nobody noticed", i)
		}
	}
	fpdu[len(fpdu)-1]++
	if _, _, err := SplitFPDU(fpdu, true); causeOf(err) != MPACRC {
		t.Errorf("wrong CRC: %v", err)
	}
	if _, _, err := SplitFPDU(fpdu, false); err != nil {
		t.Errorf("CRC is off: %v", err)
	}
	for n := range fpdu {
		if _, _, err := SplitFPDU(fpdu[:n], false); causeOf(err) != NoTerminate {
			t.Errorf("cut to %d: %v", n, err)
		}
	}
}

// mark puts markers into a stream of FPDUs (without CRC), octet by octet, as RFC 5044 §4.3
// describes the stream, and fills in the CRCs.
func mark(ulpdus [][]byte) (stream []byte, ends []int) {
	for _, u := range ulpdus {
		start, length := len(stream), -1
		put := func(o byte) {
			if len(stream)%MarkerSpacing == 0 {
				ptr := 0
				if length >= 0 {
					ptr = len(stream) - length
				}
				stream = binary.BigEndian.AppendUint32(stream, uint32(ptr))
			}
			if length < 0 {
				length = len(stream)
			}
			stream = append(stream, o)
		}
		fpdu := binary.BigEndian.AppendUint16(nil, uint16(len(u)))
		fpdu = append(fpdu, u...)
		for len(fpdu)%4 != 0 {
			fpdu = append(fpdu, 0)
		}
		for _, o := range fpdu {
			put(o)
		}
		// A marker before the CRC field is inside the FPDU and covered.
		if len(stream)%MarkerSpacing == 0 {
			stream = binary.BigEndian.AppendUint32(stream, uint32(len(stream)-length))
		}
		sum := CRC(0, stream[start:])
		stream = binary.LittleEndian.AppendUint32(stream, sum)
		ends = append(ends, len(stream))
	}
	return stream, ends
}

func markedULPDUs() [][]byte {
	var us [][]byte
	for _, n := range []int{18, 486, 502, 506, 507, 30, 1442, 2, 0, 4000, 510, 514, 1, 700, 98} {
		u := make([]byte, n)
		for i := range u {
			u[i] = byte(i*7 + n)
		}
		us = append(us, u)
	}
	return us
}

func TestMarkers(t *testing.T) {
	us := markedULPDUs()
	stream, ends := mark(us)
	var m Markers
	at := 0
	for i, u := range us {
		for cut := at; cut < ends[i]; cut++ {
			if _, n, err := m.Next(nil, stream[at:cut], true); n != 0 || err != nil {
				t.Fatalf("FPDU %d of %d octets, %d there: n %d, %v", i, ends[i]-at, cut-at, n, err)
			}
		}
		got, n, err := m.Next([]byte{0xee}, stream[at:], true)
		if err != nil || at+n != ends[i] {
			t.Fatalf("FPDU %d: %d octets, %v; want %d", i, n, err, ends[i]-at)
		}
		if got[0] != 0xee || int(binary.BigEndian.Uint16(got[1:])) != len(u) || !bytes.Equal(got[3:], u) {
			t.Fatalf("FPDU %d: wrong octets", i)
		}
		at += n
	}
}

func TestMarkerErrors(t *testing.T) {
	stream, _ := mark([][]byte{make([]byte, 600)})
	for _, c := range []struct {
		name string
		at   int
		want Cause
	}{
		{"first marker", 3, MPAMarker},
		{"marker inside", MarkerSpacing + 3, MPAMarker},
		{"payload", 100, MPACRC},
	} {
		bad := bytes.Clone(stream)
		bad[c.at] ^= 4
		var m Markers
		if _, n, err := m.Next(nil, bad, true); causeOf(err) != c.want || n != 0 {
			t.Errorf("%s: n %d, %v", c.name, n, err)
		}
		if m != (Markers{}) {
			t.Errorf("%s: moved on", c.name)
		}
	}
}
