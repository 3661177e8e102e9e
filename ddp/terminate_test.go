package ddp

import (
	"bytes"
	"testing"
)

// TestCauses: the table of iwarp.md §5, octets 20 and 21, and what each cause quotes.
func TestCauses(t *testing.T) {
	for _, c := range []struct {
		cause              Cause
		layer, etype, code uint8
		header, read       bool
	}{
		{LocalCatastrophic, 0, 0, 0x00, false, false},
		{ProtInvalidSTag, 0, 1, 0x00, true, true},
		{ProtBounds, 0, 1, 0x01, true, true},
		{ProtAccess, 0, 1, 0x02, true, true},
		{ProtStream, 0, 1, 0x03, true, true},
		{ProtTOWrap, 0, 1, 0x04, true, true},
		{ProtCannotInvalidate, 0, 1, 0x09, true, true},
		{ProtUnspecified, 0, 1, 0xff, true, true},
		{OpVersion, 0, 2, 0x05, true, false},
		{OpUnexpectedOpcode, 0, 2, 0x06, true, false},
		{OpCatastrophicStream, 0, 2, 0x07, true, false},
		{OpCatastrophicGlobal, 0, 2, 0x08, true, false},
		{OpCannotInvalidate, 0, 2, 0x09, true, false},
		{OpUnspecified, 0, 2, 0xff, true, false},
		{DDPLocalCatastrophic, 1, 0, 0x00, true, false},
		{TaggedInvalidSTag, 1, 1, 0x00, true, false},
		{TaggedBounds, 1, 1, 0x01, true, false},
		{TaggedStream, 1, 1, 0x02, true, false},
		{TaggedTOWrap, 1, 1, 0x03, true, false},
		{TaggedVersion, 1, 1, 0x04, true, false},
		{UntaggedQN, 1, 2, 0x01, true, false},
		{UntaggedNoBuffer, 1, 2, 0x02, true, false},
		{UntaggedMSN, 1, 2, 0x03, true, false},
		{UntaggedMO, 1, 2, 0x04, true, false},
		{UntaggedTooLong, 1, 2, 0x05, true, false},
		{UntaggedVersion, 1, 2, 0x06, true, false},
		{MPATCPLost, 2, 0, 0x01, false, false},
		{MPACRC, 2, 0, 0x02, false, false},
		{MPAMarker, 2, 0, 0x03, false, false},
		{MPAStartup, 2, 0, 0x04, false, false},
		{MPALocalCatastrophic, 2, 0, 0x05, false, false},
		{MPAInsufficientIRD, 2, 0, 0x06, false, false},
		{MPANoRTR, 2, 0, 0x07, false, false},
	} {
		if c.cause != MakeCause(c.layer, c.etype, c.code) || c.cause.Layer() != c.layer || c.cause.Etype() != c.etype || c.cause.Code() != c.code {
			t.Errorf("%v is not %d/%d/%02x", c.cause, c.layer, c.etype, c.code)
		}
		if !c.cause.Defined() || c.cause.IncludesHeader() != c.header || c.cause.IncludesReadRequest() != c.read {
			t.Errorf("%v: header %v, Read Request %v", c.cause, c.cause.IncludesHeader(), c.cause.IncludesReadRequest())
		}
	}
	if NoTerminate.Defined() || NoTerminate.IncludesHeader() {
		t.Error("NoTerminate is sent")
	}
	if got := errCRC.Error(); got != "ddp: CRC32C of an FPDU is wrong (2/0/02 CRC32C mismatch)" {
		t.Error(got)
	}
}

func TestTerminateFor(t *testing.T) {
	fpdu := unhex(t, vectors[4].hex) // E8
	s, err := standard.Parse(fpdu)
	if err != nil {
		t.Fatal(err)
	}
	r := ParseReadRequest(fpdu[s.PayloadOffset():])
	if got := TerminateFor(ProtBounds, s, &r); !equalTerminate(got, vectors[8].term) {
		t.Errorf("E11 from E8: %+v", got)
	}
	if got := TerminateFor(OpCatastrophicStream, s, &r); got.HasRead || got.Header == nil {
		t.Errorf("no IRD slot: %+v", got)
	}
	if got := TerminateFor(MPACRC, s, &r); got.HasLength || got.Header != nil || got.HasRead {
		t.Errorf("CRC: %+v", got)
	}
	if got := TerminateFor(OpCatastrophicStream, Segment{}, nil); got.HasLength || got.Header != nil { // C6
		t.Errorf("found by the driver: %+v", got)
	}
	want := RDMARead{SinkSTag: 0x901, SinkTO: 0x3000, Size: 4096, SrcSTag: 0x0badf00d, SrcTO: 0x7f0000003000}
	if got := r.Advance(4096); got != want {
		t.Errorf("Advance: %+v", got)
	}
	longest := TerminateMessage{Cause: ProtBounds, HasLength: true, Header: s.Header, HasRead: true}
	if n := len(AppendTerminate(nil, &longest)); n != MaxTerminate {
		t.Errorf("longest Terminate is %d octets, MaxTerminate %d", n, MaxTerminate)
	}
}

// TestTerminateOfSiw: the frame of iwarp.md §5, and the readings of one without quotation.
func TestTerminateOfSiw(t *testing.T) {
	header := []byte{0x00, 0x10, 0x41, 0x48, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0}
	for _, c := range []struct {
		payload []byte
		want    TerminateMessage
	}{
		{append([]byte{0x20, 0x06, 0x03, 0x00}, header...), TerminateMessage{Cause: OpUnexpectedOpcode, HasLength: true, Length: 16, Header: Header(header[2:]), SiwOrder: true}},
		{append([]byte{0x02, 0x06, 0xc0, 0x00}, header...), TerminateMessage{Cause: OpUnexpectedOpcode, HasLength: true, Length: 16, Header: Header(header[2:])}},
		{[]byte{0x02, 0x02, 0, 0}, TerminateMessage{Cause: MPACRC, SiwOrder: true}}, // 0/2/02 means nothing
		{[]byte{0x20, 0x02, 0, 0}, TerminateMessage{Cause: MPACRC}},
		{[]byte{0x02, 0x05, 0, 0}, TerminateMessage{Cause: OpVersion}}, // both readings mean something: the standard's
		{[]byte{0x77, 0x77, 0, 0}, TerminateMessage{Cause: 0x7777}},
		// Quotations cut short are left out.
		{append([]byte{0x02, 0x06, 0xc0, 0x00}, header[:19]...), TerminateMessage{Cause: OpUnexpectedOpcode, HasLength: true, Length: 16}},
		{append([]byte{0x01, 0x01, 0xe0, 0x00}, header...), TerminateMessage{Cause: ProtBounds, HasLength: true, Length: 16, Header: Header(header[2:])}},
		{[]byte{0x02, 0x06, 0xc0, 0x00, 0x00}, TerminateMessage{Cause: OpUnexpectedOpcode}},
		{[]byte{0x02, 0x06, 0xc0, 0x00, 0x00, 0x10, 0x41}, TerminateMessage{Cause: OpUnexpectedOpcode, HasLength: true, Length: 16}},
	} {
		if got, err := standard.ParseTerminate(c.payload); err != nil || !equalTerminate(got, c.want) {
			t.Errorf("% x: %+v, %v", c.payload, got, err)
		}
	}
	if _, err := standard.ParseTerminate([]byte{2, 6, 0}); causeOf(err) != NoTerminate {
		t.Errorf("three octets: %v", err)
	}
}

// TestTerminateOfModeV: the quoted header is as long as it was on the wire.
func TestTerminateOfModeV(t *testing.T) {
	s, err := validated.Parse(unhex(t, "00 0e 41 45 00 00 00 00 00 00 00 02 00 00 00 00"))
	if err != nil {
		t.Fatal(err)
	}
	term := TerminateFor(UntaggedMSN, s, nil)
	b := AppendTerminate(nil, &term)
	want := unhex(t, `00 26 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 12 03 c0 00
		00 0e 41 45 00 00 00 00 00 00 00 02 00 00 00 00`)
	if !bytes.Equal(b, want) {
		t.Errorf("% x, want\n% x", b, want)
	}
	got, err := validated.ParseTerminate(b[LengthLen+UntaggedLen:])
	if err != nil || !equalTerminate(got, term) {
		t.Errorf("%+v, %v", got, err)
	}
}
