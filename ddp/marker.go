package ddp

import "encoding/binary"

// Markers stand in the TCP stream every [MarkerSpacing] octets, the first one right before the
// first FPDU (RFC 5044 §4.3). Each is two zero octets and FPDUPTR, the distance from the
// ULPDU Length field of its FPDU; 0 means that the marker lies between two FPDUs.
const (
	MarkerLen     = 4
	MarkerSpacing = 512 // from the first octet of one marker to that of the next
)

// Markers keeps track of the markers in one direction of a stream. The zero value is the state before
// the first marker. This implementation never asks for markers and refuses to send them (see
// [Answer]); Markers is for captures and test peers.
type Markers struct {
	pos int // octets since the start of the last marker, a multiple of 4; 0: one comes next
}

// Next reads the first FPDU of wire, which begins at the end of the previous FPDU. It appends the
// FPDU, from its length field to the end of its ULPDU and without markers, to dst. It returns the
// result and the number of octets of wire that it has read. If wire is too short, it returns n = 0
// and no error, and keeps its state. If checkCRC is set, it checks the CRC, which covers the markers
// as well.
func (m *Markers) Next(dst, wire []byte, checkCRC bool) (fpdu []byte, n int, err error) {
	w := markedReader{wire: wire, pos: m.pos, length: -1}
	head := w.take(dst, 4) // FPDUs are multiples of 4 octets: no marker splits the length field
	if w.short || w.err != nil {
		return dst, 0, w.err
	}
	ulpdu := int(binary.BigEndian.Uint16(head[len(dst):]))
	body := w.take(head, FPDULen(ulpdu)-4)
	if w.short || w.err != nil {
		return dst, 0, w.err
	}
	sum := w.n - CRCLen
	if checkCRC && binary.LittleEndian.Uint32(wire[sum:]) != CRC(0, wire[:sum]) {
		return dst, 0, errCRC
	}
	m.pos = w.pos
	return body[:len(dst)+LengthLen+ulpdu], w.n, nil
}

// markedReader reads octets from wire. It checks the markers and leaves them out.
type markedReader struct {
	wire   []byte
	n      int // octets of wire used
	pos    int
	length int // offset in wire of the ULPDU Length field, -1 before it
	short  bool
	err    error
}

// take appends the next count octets that are no markers to b. Count is a multiple of 4, as
// FPDUs without markers are.
func (w *markedReader) take(b []byte, count int) []byte {
	for count > 0 && !w.short && w.err == nil {
		if w.pos == 0 {
			w.marker()
			continue
		}
		if w.length < 0 {
			w.length = w.n
		}
		k := min(count, MarkerSpacing-w.pos)
		if len(w.wire)-w.n < k {
			w.short = true
			return b
		}
		b = append(b, w.wire[w.n:w.n+k]...)
		w.n, count, w.pos = w.n+k, count-k, (w.pos+k)%MarkerSpacing
	}
	return b
}

func (w *markedReader) marker() {
	if len(w.wire)-w.n < MarkerLen {
		w.short = true
		return
	}
	// RFC 5044 §4.3: the low two bits of FPDUPTR are zero; the distance counts earlier markers.
	want := 0
	if w.length >= 0 {
		want = w.n - w.length
	}
	if binary.BigEndian.Uint32(w.wire[w.n:]) != uint32(want) {
		w.err = errMarker
		return
	}
	w.n, w.pos = w.n+MarkerLen, MarkerLen
}
