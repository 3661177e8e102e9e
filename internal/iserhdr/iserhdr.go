// Package iserhdr is the codec of the header that iSER puts in front of each iSCSI PDU, and of
// what it says when a connection is set up (RFC 7145 §9, §6). Target and initiator share it.
//
//	0          1        4            8                 16           20                28
//	| op flags | 0 0 0  | Write STag | Write Base Offset | Read STag  | Read Base Offset |
package iserhdr

import "encoding/binary"

// Len is the length of the header in octets.
const Len = 28

// Opcodes, in the upper four bits of the first octet.
const (
	OpControl    = 0x1 // iSCSI Control-Type PDU
	OpHello      = 0x2
	OpHelloReply = 0x3
)

// Flags of a Control-Type header.
const (
	FlagWSV = 0x08 // the Write STag is valid
	FlagRSV = 0x04 // the Read STag is valid
)

// Offsets of the fields.
const (
	OffWriteSTag   = 4
	offWriteOffset = 8
	OffReadSTag    = 16
	offReadOffset  = 20
)

// The first octet of the private data with which a connection is set up (iser.md §2).
const (
	NoZBVA       = 0x80 // zero based virtual addresses are not used
	NoInvalidate = 0x40 // Send with Invalidate is not used
)

// Header is the header of a Control-Type PDU (RFC 7145 §9.2). An STag of 0 is not valid.
type Header struct {
	Write, Read             uint32 // STags of the initiator's buffers
	WriteOffset, ReadOffset uint64 // Base Offsets
}

// IsControl reports whether b begins with the header of a Control-Type PDU.
func IsControl(b []byte) bool { return len(b) >= Len && b[0]>>4 == OpControl }

// Parse reads the header at the start of b. False: it is none of a Control-Type PDU.
func Parse(b []byte) (h Header, ok bool) {
	if !IsControl(b) {
		return Header{}, false
	}
	if b[0]&FlagWSV != 0 {
		h.Write, h.WriteOffset = binary.BigEndian.Uint32(b[OffWriteSTag:]), binary.BigEndian.Uint64(b[offWriteOffset:])
	}
	if b[0]&FlagRSV != 0 {
		h.Read, h.ReadOffset = binary.BigEndian.Uint32(b[OffReadSTag:]), binary.BigEndian.Uint64(b[offReadOffset:])
	}
	return h, true
}

// AppendTo appends the header.
func (h Header) AppendTo(b []byte) []byte {
	var x [Len]byte
	x[0] = OpControl << 4
	if h.Write != 0 {
		x[0] |= FlagWSV
		binary.BigEndian.PutUint32(x[OffWriteSTag:], h.Write)
		binary.BigEndian.PutUint64(x[offWriteOffset:], h.WriteOffset)
	}
	if h.Read != 0 {
		x[0] |= FlagRSV
		binary.BigEndian.PutUint32(x[OffReadSTag:], h.Read)
		binary.BigEndian.PutUint64(x[offReadOffset:], h.ReadOffset)
	}
	return append(b, x[:]...)
}
