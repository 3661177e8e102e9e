package ddp

import "encoding/binary"

// Control is the first 16 bits of a DDP header: those of DDP and those of RDMAP.
type Control uint16

// Bits of [Control], counted from the least significant (RFC 5041 §4.1, RFC 5040 §4.1).
const (
	ControlTagged Control = 0x8000
	ControlLast   Control = 0x4000

	// One-shot marking by flags (FIG 5B), reserved in RFC 5041.
	ControlClose     Control = 0x2000
	ControlAdvertise Control = 0x1000

	controlMarking      = ControlClose | ControlAdvertise
	controlDV           = 0x0300
	controlDV1          = 0x0100
	controlRV           = 0x00c0
	controlRV1          = 0x0040
	controlOpcode       = 0x000f
	controlVersions     = controlDV1 | controlRV1
	controlVersionsMask = controlDV | controlRV
)

func (c Control) Tagged() bool  { return c&ControlTagged != 0 }
func (c Control) Last() bool    { return c&ControlLast != 0 }
func (c Control) Opcode() uint8 { return uint8(c & controlOpcode) }

// checkVersions checks DV, then RV.
func (c Control) checkVersions() error {
	switch {
	case c&controlVersionsMask == controlVersions:
		return nil
	case c&controlDV == controlDV1:
		return errRDMAPVersion
	case c.Tagged():
		return errTaggedVersion
	}
	return errUntaggedVersion
}

// Lengths of a DDP header in octets (RFC 5041 §4.2, §4.3).
const (
	TaggedLen       = 14
	UntaggedLen     = 18
	UntaggedNoSTag  = 14 // [HeaderValidated]: without the 32-bit field
	MaxHeaderLen    = UntaggedLen
	offSTag         = 2
	offTO           = 6
	untaggedFromEnd = 12 // QN, MSN and MO are the last 12 octets of either untagged header
)

// Header is a DDP header of [TaggedLen], [UntaggedLen] or [UntaggedNoSTag] octets, as checked
// by [Format.Parse]. It aliases the receive buffer.
type Header []byte

func (h Header) Control() Control { return Control(binary.BigEndian.Uint16(h)) }

// STag returns the STag of a tagged header, or the 32-bit field of an untagged one: the STag that the
// message invalidates, advertises or closes, or 0.
func (h Header) STag() uint32 {
	if !h.Control().Tagged() && len(h) == UntaggedNoSTag {
		return 0
	}
	return binary.BigEndian.Uint32(h[offSTag:])
}

// TO returns the tagged offset; for tagged headers only.
func (h Header) TO() uint64 { return binary.BigEndian.Uint64(h[offTO:]) }

// QN returns the queue number; for untagged headers only, like MSN and MO.
func (h Header) QN() uint32 { return binary.BigEndian.Uint32(h[len(h)-untaggedFromEnd:]) }

// MSN returns the message sequence number, which starts at 1 and wraps.
func (h Header) MSN() uint32 { return binary.BigEndian.Uint32(h[len(h)-untaggedFromEnd+4:]) }

// MO returns the offset of the segment in its message in octets.
func (h Header) MO() uint32 { return binary.BigEndian.Uint32(h[len(h)-untaggedFromEnd+8:]) }

// Tagged is a tagged segment to be encoded.
type Tagged struct {
	Control Control // from [Format.Control]
	STag    uint32
	TO      uint64
	Payload int // octets that follow the header
}

// AppendTagged appends the ULPDU Length and the header of a tagged segment.
func AppendTagged(b []byte, t Tagged) []byte {
	b = appendLength(b, TaggedLen+t.Payload)
	b = binary.BigEndian.AppendUint16(b, uint16(t.Control))
	b = binary.BigEndian.AppendUint32(b, t.STag)
	return binary.BigEndian.AppendUint64(b, t.TO)
}

// Untagged is an untagged segment to be encoded.
type Untagged struct {
	Control Control // from [Format.Control]
	STag    uint32  // what to invalidate, advertise or close, otherwise 0
	QN      uint32
	MSN     uint32
	MO      uint32 // octets
	Payload int    // octets that follow the header
}

// AppendUntagged appends the ULPDU Length and the header of an untagged segment. Where the
// format leaves the STag field out, u.STag must be 0.
func (f *Format) AppendUntagged(b []byte, u Untagged) []byte {
	n := f.HeaderLen(u.Control)
	b = appendLength(b, n+u.Payload)
	b = binary.BigEndian.AppendUint16(b, uint16(u.Control))
	if n == UntaggedLen {
		b = binary.BigEndian.AppendUint32(b, u.STag)
	} else if u.STag != 0 {
		panic("ddp: STag in a header that has no field for it")
	}
	b = binary.BigEndian.AppendUint32(b, u.QN)
	b = binary.BigEndian.AppendUint32(b, u.MSN)
	return binary.BigEndian.AppendUint32(b, u.MO)
}

func appendLength(b []byte, n int) []byte {
	if n > MaxULPDU {
		panic("ddp: ULPDU longer than its length field can tell")
	}
	return binary.BigEndian.AppendUint16(b, uint16(n))
}
