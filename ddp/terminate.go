package ddp

import "encoding/binary"

// A Terminate message (RFC 5040 §4.8), from the end of its DDP header on:
//
//	| layer, etype | code | M D R, 5 reserved | reserved |
//	| DDP Segment Length 2 (if M) | terminated DDP header (if D) | Read Request header 28 (if R) |
const (
	terminateControlLen = 4
	terminateM          = 0x80
	terminateD          = 0x40
	terminateR          = 0x20
	terminateBits       = terminateM | terminateD | terminateR

	// MaxTerminate is the longest Terminate message in octets, with its ULPDU Length.
	MaxTerminate = LengthLen + UntaggedLen + terminateControlLen + 2 + MaxHeaderLen + readRequestLen
)

// TerminateMessage is the content of a Terminate.
type TerminateMessage struct {
	Cause Cause

	HasLength bool
	Length    uint16 // DDP header and payload of the offending segment in octets; diagnostic, never act on it
	Header    Header // of the offending segment, nil if not quoted; aliases the buffer it came from
	HasRead   bool
	Read      RDMARead // the Read Request that failed, advanced by what was answered

	// SiwOrder tells that the sender has the bits of octets 20 and 22 the wrong way round, as
	// Linux siw on little-endian hosts. Decoding only.
	SiwOrder bool
}

// TerminateFor returns the Terminate that answers an offence of segment s, with as much of the
// segment as the cause has quoted. S may be the zero Segment. Read is the decoded Read Request
// if s is one and could be decoded, otherwise nil.
func TerminateFor(c Cause, s Segment, read *RDMARead) TerminateMessage {
	t := TerminateMessage{Cause: c}
	if len(s.Header) == 0 || !c.IncludesHeader() {
		return t
	}
	t.HasLength, t.Length, t.Header = true, uint16(s.ULPDU), s.Header
	if read != nil && c.IncludesReadRequest() {
		t.HasRead, t.Read = true, *read
	}
	return t
}

// AppendTerminate appends a Terminate message from its ULPDU Length to the end of its ULPDU.
// It is the first and only message of its queue, so that its MSN is 1.
func AppendTerminate(b []byte, t *TerminateMessage) []byte {
	var bits byte
	n := terminateControlLen
	if t.HasLength {
		bits, n = bits|terminateM, n+2
	}
	if t.Header != nil {
		bits, n = bits|terminateD, n+len(t.Header)
	}
	if t.HasRead {
		bits, n = bits|terminateR, n+readRequestLen
	}
	b = appendFixed(b, Terminate, 1, n)
	b = append(b, byte(t.Cause>>8), byte(t.Cause), bits, 0)
	if t.HasLength {
		b = binary.BigEndian.AppendUint16(b, t.Length)
	}
	b = append(b, t.Header...)
	if t.HasRead {
		b = appendReadHeader(b, t.Read)
	}
	return b
}

// ParseTerminate decodes the payload of a [Terminate] segment. A quotation that is cut short is
// left out, for the cause is what matters. The format says how long the quoted header is.
//
// Frames in siw's bit order are recognised where they can be: by their M, D and R, or by a
// cause that has a meaning only when read that way (iwarp.md §5).
func (f *Format) ParseTerminate(payload []byte) (TerminateMessage, error) {
	if len(payload) < terminateControlLen {
		return TerminateMessage{}, errTerminateCut
	}
	t := TerminateMessage{Cause: Cause(payload[0])<<8 | Cause(payload[1])}
	bits := payload[2]
	if siwOrder(t.Cause, bits) {
		t.SiwOrder = true
		t.Cause = swapNibbles(t.Cause)
		bits = bits<<7&terminateM | bits<<5&terminateD | bits<<3&terminateR
	}
	f.parseQuotation(&t, bits, payload[terminateControlLen:])
	return t, nil
}

func (f *Format) parseQuotation(t *TerminateMessage, bits byte, b []byte) {
	if bits&terminateM != 0 {
		if len(b) < 2 {
			return
		}
		t.HasLength, t.Length, b = true, binary.BigEndian.Uint16(b), b[2:]
	}
	if bits&terminateD != 0 {
		if len(b) < 2 {
			return
		}
		n := f.HeaderLen(Control(binary.BigEndian.Uint16(b)))
		if len(b) < n {
			return
		}
		t.Header, b = Header(b[:n:n]), b[n:]
	}
	if bits&terminateR != 0 && len(b) >= readRequestLen {
		t.HasRead, t.Read = true, ParseReadRequest(b)
	}
}

func siwOrder(c Cause, bits byte) bool {
	if bits&terminateBits != 0 {
		return false
	}
	return bits&0x07 != 0 || !c.Defined() && swapNibbles(c).Defined()
}

func swapNibbles(c Cause) Cause { return MakeCause(c.Etype(), c.Layer(), c.Code()) }
