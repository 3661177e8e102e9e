package ddp

import (
	"encoding/binary"

	"oneshot/internal/crc32c"
)

// Sizes of the parts of an FPDU in octets (RFC 5044 §4).
const (
	LengthLen = 2 // ULPDU Length
	CRCLen    = 4

	// MaxULPDU is the largest ULPDU that the length field can hold.
	MaxULPDU = 0xffff
	// MaxTrailer is the longest pad and CRC.
	MaxTrailer = 3 + CRCLen
)

// PadLen returns how many zero octets follow a ULPDU of n octets. They make the CRC begin at a
// multiple of four (RFC 5044 §4.1).
func PadLen(n int) int { return -(LengthLen + n) & 3 }

// TrailerLen returns the octets of pad and CRC that follow a ULPDU of n octets.
func TrailerLen(n int) int { return PadLen(n) + CRCLen }

// FPDULen returns the octets of a whole FPDU around a ULPDU of n octets, without markers.
func FPDULen(n int) int { return LengthLen + n + TrailerLen(n) }

// MULPDU returns the largest ULPDU whose FPDU fits into one TCP segment of emss octets
// (RFC 5044 §4.5), never less than 128 nor more than [MaxULPDU].
func MULPDU(emss int, markers bool) int {
	overhead := LengthLen + CRCLen + emss%4
	if markers {
		overhead += MarkerLen * ((emss + MarkerSpacing - 1) / MarkerSpacing)
	}
	return min(max(emss-overhead, 128), MaxULPDU)
}

// CRC continues the CRC32C of an FPDU over p. It begins with crc 0 at the ULPDU Length (or at
// the marker just before it) and ends with the pad, which [AppendTrailer] and [CheckTrailer]
// add themselves.
func CRC(crc uint32, p []byte) uint32 { return crc32c.Update(crc, p) }

// AppendTrailer appends the pad and CRC of an FPDU whose length field and ULPDU of n octets
// have the given crc.
func AppendTrailer(b []byte, n int, crc uint32) []byte {
	if pad := PadLen(n); pad > 0 { // few FPDUs have one: data comes in blocks
		start := len(b)
		b = append(b, 0, 0, 0)[:start+pad]
		crc = CRC(crc, b[start:])
	}
	return binary.LittleEndian.AppendUint32(b, crc)
}

// AppendTrailerNoCRC appends the pad and a CRC field of zero, for connections that have agreed not
// to use CRCs; the field is always there (RFC 5044 §4.4).
func AppendTrailerNoCRC(b []byte, n int) []byte {
	return append(b, 0, 0, 0, 0, 0, 0, 0)[:len(b)+TrailerLen(n)]
}

// CheckTrailer checks the CRC at the end of trailer, which holds [TrailerLen](n) octets. crc covers
// the octets before trailer. The pad may hold any octets that fit the CRC.
func CheckTrailer(trailer []byte, n int, crc uint32) error {
	pad := PadLen(n)
	if pad > 0 {
		crc = CRC(crc, trailer[:pad])
	}
	if binary.LittleEndian.Uint32(trailer[pad:pad+CRCLen]) != crc {
		return errCRC
	}
	return nil
}

// AppendFPDUTrailer completes an FPDU that was appended to b from b[start] on, length field
// first, with pad and CRC.
func AppendFPDUTrailer(b []byte, start int) []byte {
	return AppendTrailer(b, len(b)-start-LengthLen, CRC(0, b[start:]))
}

// SplitFPDU cuts the first FPDU, from its length field to the end of its ULPDU, from b, checks
// its CRC if checkCRC is set, and returns what follows. It is for FPDUs that are in memory as a
// whole, without markers; a receiver that places payload directly uses [CRC] and [CheckTrailer].
func SplitFPDU(b []byte, checkCRC bool) (fpdu, rest []byte, err error) {
	if len(b) < LengthLen {
		return nil, b, errCut
	}
	n := int(binary.BigEndian.Uint16(b))
	if len(b) < FPDULen(n) {
		return nil, b, errCut
	}
	fpdu, rest = b[:LengthLen+n], b[FPDULen(n):]
	if checkCRC {
		err = CheckTrailer(b[LengthLen+n:], n, CRC(0, fpdu))
	}
	return fpdu, rest, err
}
