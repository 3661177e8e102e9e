// Package pdu has the codec of the PDUs of NVMe/TCP (NVMe/TCP Transport Specification 1.0 §3.6). It is a leaf.
//
//	common header 8 │ rest of the header │ [header digest 4] │ [padding] │ [data] │ [data digest 4]
//	◄──────────── HLEN ─────────────────►                                ▲
//	◄──────────── PDO ──────────────────────────────────────────────────►│
//	◄──────────── PLEN: everything ─────────────────────────────────────────────────────────────────►
//
// All integers are little-endian. Parsers alias what they are given and have checked its length; encoders append, and
// write every byte, but no digests: these are AppendDigest's.
package pdu

import (
	"encoding/binary"
	"fmt"

	"oneshot/internal/crc32c"
	"oneshot/nvme"
)

var le = binary.LittleEndian

// Type is a PDU type.
type Type uint8

// The types.
const (
	ICReq       Type = 0x00
	ICResp      Type = 0x01
	H2CTermReq  Type = 0x02
	C2HTermReq  Type = 0x03
	CapsuleCmd  Type = 0x04
	CapsuleResp Type = 0x05
	H2CData     Type = 0x06
	C2HData     Type = 0x07
	R2T         Type = 0x09
)

// Flags of the common header.
const (
	FlagHeaderDigest = 1 << 0
	FlagDataDigest   = 1 << 1
	FlagLast         = 1 << 2 // of the data of a command, or of what an R2T asks for
	FlagSuccess      = 1 << 3 // of C2HData: no CapsuleResp follows
)

// Lengths of headers, bytes.
const (
	CommonLen      = 8
	ICLen          = 128
	TermLen        = 24
	CapsuleCmdLen  = CommonLen + nvme.SQELen
	CapsuleRespLen = CommonLen + nvme.CQELen
	DataLen        = 24
	R2TLen         = 24

	// MaxTermData is how much of an offending header a termination request carries.
	MaxTermData = 128
)

// HeaderLen is the HLEN of a type that a host sends; 0: it sends none of that type.
func HeaderLen(t Type) int {
	switch t {
	case ICReq:
		return ICLen
	case H2CTermReq:
		return TermLen
	case CapsuleCmd:
		return CapsuleCmdLen
	case H2CData:
		return DataLen
	}
	return 0
}

// responseLen is the HLEN of a type that a controller sends; 0: it sends none of that type.
func responseLen(t Type) int {
	switch t {
	case ICResp:
		return ICLen
	case C2HTermReq:
		return TermLen
	case CapsuleResp:
		return CapsuleRespLen
	case C2HData:
		return DataLen
	case R2T:
		return R2TLen
	}
	return 0
}

// Fatal is the reason of a termination request: FES.
type Fatal uint16

// The reasons.
const (
	InvalidHeaderField   Fatal = 1
	SequenceError        Fatal = 2
	HeaderDigestError    Fatal = 3
	DataOutOfRange       Fatal = 4
	LimitExceeded        Fatal = 5
	UnsupportedParameter Fatal = 6
)

func (f Fatal) String() string {
	names := [...]string{
		InvalidHeaderField: "invalid PDU header field", SequenceError: "PDU sequence error", HeaderDigestError: "header digest error",
		DataOutOfRange: "data transfer out of range", LimitExceeded: "data transfer limit exceeded", UnsupportedParameter: "unsupported parameter",
	}
	if int(f) < len(names) && names[f] != "" {
		return names[f]
	}
	return fmt.Sprintf("fatal error %d", uint16(f))
}

// Error is a fatal error of a connection: what a termination request says about it.
type Error struct {
	Fatal Fatal
	Info  uint32 // FEI: offset of the field, or the digest that came
	What  string // for the log
}

func (e *Error) Error() string { return fmt.Sprintf("%v: %s", e.Fatal, e.What) }

// Header is a PDU from its common header on, at least CommonLen bytes.
type Header []byte

// Type says what the PDU is.
func (h Header) Type() Type { return Type(h[0]) }

// Flags are the flags.
func (h Header) Flags() uint8 { return h[1] }

// HLen is the length of the header, bytes.
func (h Header) HLen() int { return int(h[2]) }

// DataOffset is PDO: bytes from the start of the PDU to its data; 0: it has none.
func (h Header) DataOffset() int { return int(h[3]) }

// Len is PLEN: bytes of the whole PDU.
func (h Header) Len() uint32 { return le.Uint32(h[4:]) }

// Offsets of the fields of the common header, which termination requests name.
const (
	offType  = 0
	offFlags = 1
	offHLen  = 2
	offPDO   = 3
	offPLen  = 4
)

// Shape is where the parts of a PDU are, bytes from its start.
type Shape struct {
	Head int // header with its digest
	Data int // where the data begin; if there are none, where the PDU ends
	Len  int // bytes of data
	End  int // of the PDU, behind the digest of the data
}

// Check holds the common header of a PDU from a host against what its type allows, and returns where its parts are.
// headerDigest and dataDigest say what was negotiated; maxData is how many bytes of data the PDU may have.
func (h Header) Check(headerDigest, dataDigest bool, maxData int) (Shape, *Error) {
	return h.check(HeaderLen(h.Type()), headerDigest, dataDigest, maxData)
}

// CheckResponse is Check for a PDU from a controller.
func (h Header) CheckResponse(headerDigest, dataDigest bool, maxData int) (Shape, *Error) {
	return h.check(responseLen(h.Type()), headerDigest, dataDigest, maxData)
}

// check is Check for a type whose header has n bytes; 0: the type is none of who sends.
func (h Header) check(n int, headerDigest, dataDigest bool, maxData int) (s Shape, err *Error) {
	t := h.Type()
	term := t == H2CTermReq || t == C2HTermReq
	if n == 0 {
		return s, &Error{InvalidHeaderField, offType, fmt.Sprintf("a PDU of type %#02x", h[0])}
	}
	if h.HLen() != n {
		return s, &Error{InvalidHeaderField, offHLen, fmt.Sprintf("a header of %d bytes, not %d, in a PDU of type %#02x", h.HLen(), n, h[0])}
	}
	total := h.Len()
	s.Head = n
	bare := term || t == ICReq || t == ICResp
	if bare {
		headerDigest, dataDigest = false, false
	}
	if headerDigest {
		s.Head += DigestLen
	}
	if wrong := (h.Flags()&FlagHeaderDigest != 0) != headerDigest && !bare; wrong {
		return s, &Error{InvalidHeaderField, offFlags, fmt.Sprintf("the flags %#02x are not what was negotiated about header digests", h.Flags())}
	}
	if total < uint32(s.Head) {
		return s, &Error{InvalidHeaderField, offPLen, fmt.Sprintf("a PDU of %d bytes, shorter than its header", total)}
	}
	if total == uint32(s.Head) {
		s.Data, s.End = s.Head, s.Head
		if t == H2CData || t == C2HData {
			return s, &Error{InvalidHeaderField, offPLen, "a PDU for data without data"}
		}
		return s, nil
	}
	if t == ICReq || t == ICResp || t == CapsuleResp || t == R2T {
		return s, &Error{InvalidHeaderField, offPLen, fmt.Sprintf("data in a PDU of type %#02x", h[0])}
	}
	s.Data = h.DataOffset()
	if term {
		s.Data = s.Head
	}
	tail := 0
	if dataDigest {
		tail = DigestLen
	}
	if s.Data < s.Head || s.Data%4 != 0 {
		return s, &Error{InvalidHeaderField, offPDO, fmt.Sprintf("the data begin at byte %d, and the header ends at %d", s.Data, s.Head)}
	}
	if wrong := (h.Flags()&FlagDataDigest != 0) != dataDigest && !bare; wrong {
		return s, &Error{InvalidHeaderField, offFlags, fmt.Sprintf("the flags %#02x are not what was negotiated about data digests", h.Flags())}
	}
	if total <= uint32(s.Data+tail) {
		return s, &Error{InvalidHeaderField, offPLen, fmt.Sprintf("a PDU of %d bytes has no data, which begin at byte %d", total, s.Data)}
	}
	if n := total - uint32(s.Data+tail); n > uint32(maxData) {
		return s, &Error{LimitExceeded, 0, fmt.Sprintf("%d bytes of data, and %d are allowed", n, maxData)}
	}
	s.End = int(total)
	s.Len = s.End - tail - s.Data
	return s, nil
}

// appendCommon appends a common header; the PDU has n bytes of data at pdo, and a digest behind them if flags say so.
func appendCommon(b []byte, t Type, flags uint8, hlen, pdo, n int) []byte {
	total := hlen
	if flags&FlagHeaderDigest != 0 {
		total += DigestLen
	}
	if n > 0 {
		total = pdo + n
		if flags&FlagDataDigest != 0 {
			total += DigestLen
		}
	} else {
		pdo = 0
	}
	b = append(b, byte(t), flags, byte(hlen), byte(pdo))
	return le.AppendUint32(b, uint32(total))
}

// DataStart is where the data of a PDU begin whose header has hlen bytes, with its digest or without, for a receiver
// that wants data at multiples of 4·(align+1) bytes.
func DataStart(hlen int, headerDigest bool, align uint8) int {
	if headerDigest {
		hlen += DigestLen
	}
	unit := 4 * (int(align) + 1)
	return (hlen + unit - 1) / unit * unit
}

// MaxAlign is the largest HPDA and CPDA.
const MaxAlign = 31

// IC is an ICReq or an ICResp: the two have the same layout.
type IC struct {
	Format                   uint16 // PFV
	Align                    uint8  // HPDA, CPDA
	HeaderDigest, DataDigest bool
	Max                      uint32 // ICReq: MAXR2T, one less; ICResp: MAXH2CDATA, bytes
}

// ParseIC reads an ICReq or ICResp of ICLen bytes.
func ParseIC(b []byte) IC {
	return IC{Format: le.Uint16(b[8:]), Align: b[10], HeaderDigest: b[11]&1 != 0, DataDigest: b[11]&2 != 0, Max: le.Uint32(b[12:])}
}

// AppendTo appends the PDU, an ICReq or an ICResp.
func (c *IC) AppendTo(b []byte, t Type) []byte {
	digests := byte(0)
	if c.HeaderDigest {
		digests |= 1
	}
	if c.DataDigest {
		digests |= 2
	}
	b = appendCommon(b, t, 0, ICLen, 0, 0)
	b = le.AppendUint16(b, c.Format)
	b = append(b, c.Align, digests)
	b = le.AppendUint32(b, c.Max)
	return append(b, make([]byte, ICLen-16)...)
}

// Offsets of fields of ICReq that termination requests name.
const (
	OffFormat = 8
	OffAlign  = 10
)

// AppendTerm appends a termination request about the PDU whose header is offender, of which MaxTermData bytes are sent.
func AppendTerm(b []byte, t Type, e *Error, offender []byte) []byte {
	offender = offender[:min(len(offender), MaxTermData)]
	// PDO has no meaning in it.
	b = append(b, byte(t), 0, TermLen, 0)
	b = le.AppendUint32(b, uint32(TermLen+len(offender)))
	b = le.AppendUint16(b, uint16(e.Fatal))
	b = le.AppendUint32(b, e.Info)
	b = append(b, make([]byte, 10)...)
	return append(b, offender...)
}

// ParseTerm reads the reason out of a termination request of at least TermLen bytes.
func ParseTerm(b []byte) (Fatal, uint32) { return Fatal(le.Uint16(b[8:])), le.Uint32(b[10:]) }

// AppendCommand appends the header of a CapsuleCmd with n bytes of data at pdo.
func AppendCommand(b []byte, flags uint8, c *nvme.Command, pdo, n int) []byte {
	return c.AppendTo(appendCommon(b, CapsuleCmd, flags, CapsuleCmdLen, pdo, n))
}

// AppendResponse appends the header of a CapsuleResp.
func AppendResponse(b []byte, flags uint8, c *nvme.CQE) []byte {
	return c.AppendTo(appendCommon(b, CapsuleResp, flags, CapsuleRespLen, 0, 0))
}

// Data is the header of H2CData and C2HData.
type Data struct {
	CID    uint16
	Tag    uint16 // H2CData: TTAG
	Offset uint32 // DATAO
	Len    uint32 // DATAL, not 0
}

// Offsets of fields of H2CData that termination requests name.
const (
	OffDataCID = 8
	OffDataLen = 16
)

// ParseData reads an H2CData or C2HData header of DataLen bytes.
func ParseData(b []byte) Data {
	return Data{CID: le.Uint16(b[8:]), Tag: le.Uint16(b[10:]), Offset: le.Uint32(b[12:]), Len: le.Uint32(b[16:])}
}

// AppendTo appends the header of a PDU of type t whose data begin at pdo.
func (d *Data) AppendTo(b []byte, t Type, flags uint8, pdo int) []byte {
	b = appendCommon(b, t, flags, DataLen, pdo, int(d.Len))
	b = le.AppendUint16(b, d.CID)
	b = le.AppendUint16(b, d.Tag)
	b = le.AppendUint32(b, d.Offset)
	b = le.AppendUint32(b, d.Len)
	return append(b, 0, 0, 0, 0)
}

// Ready is an R2T.
type Ready struct {
	CID, Tag    uint16
	Offset, Len uint32 // of what is asked for; Len is not 0
}

// ParseReady reads an R2T of R2TLen bytes.
func ParseReady(b []byte) Ready {
	return Ready(ParseData(b))
}

// AppendTo appends the PDU without digest.
func (r *Ready) AppendTo(b []byte, flags uint8) []byte {
	b = appendCommon(b, R2T, flags, R2TLen, 0, 0)
	b = le.AppendUint16(b, r.CID)
	b = le.AppendUint16(b, r.Tag)
	b = le.AppendUint32(b, r.Offset)
	b = le.AppendUint32(b, r.Len)
	return append(b, 0, 0, 0, 0)
}

// DigestLen is the length of a digest, bytes.
const DigestLen = crc32c.Len

// Digest is a running CRC32C. The zero value is that of nothing.
type Digest = crc32c.Digest
