package ddp

import "fmt"

// Cause is the cause that a Terminate message reports: layer in the upper four bits, error type in
// the next four, error code in the lower eight, as octets 20 and 21 of its FPDU (RFC 5040 §4.8).
type Cause uint16

// NoTerminate stands for an offence after which the connection is closed without a Terminate,
// because the FPDU stream cannot be followed any more, or because a Terminate would answer a Terminate.
const NoTerminate Cause = 0xffff

// The causes of RFC 5040 §4.8 (RDMAP), RFC 5041 §8 (DDP), RFC 5044 §8 and RFC 6581 §8 (MPA).
const (
	LocalCatastrophic Cause = 0x0000

	// Remote protection error: Read Requests, and invalidation or close of an STag.
	ProtInvalidSTag      Cause = 0x0100
	ProtBounds           Cause = 0x0101
	ProtAccess           Cause = 0x0102
	ProtStream           Cause = 0x0103
	ProtTOWrap           Cause = 0x0104
	ProtCannotInvalidate Cause = 0x0109
	ProtUnspecified      Cause = 0x01ff

	// Remote operation error: any message.
	OpVersion            Cause = 0x0205
	OpUnexpectedOpcode   Cause = 0x0206
	OpCatastrophicStream Cause = 0x0207
	OpCatastrophicGlobal Cause = 0x0208
	OpCannotInvalidate   Cause = 0x0209
	OpUnspecified        Cause = 0x02ff

	DDPLocalCatastrophic Cause = 0x1000

	// Tagged buffer error: RDMA Write and Read Response.
	TaggedInvalidSTag Cause = 0x1100
	TaggedBounds      Cause = 0x1101
	TaggedStream      Cause = 0x1102
	TaggedTOWrap      Cause = 0x1103
	TaggedVersion     Cause = 0x1104

	// Untagged buffer error.
	UntaggedQN       Cause = 0x1201
	UntaggedNoBuffer Cause = 0x1202
	UntaggedMSN      Cause = 0x1203
	UntaggedMO       Cause = 0x1204
	UntaggedTooLong  Cause = 0x1205
	UntaggedVersion  Cause = 0x1206

	MPATCPLost           Cause = 0x2001
	MPACRC               Cause = 0x2002
	MPAMarker            Cause = 0x2003
	MPAStartup           Cause = 0x2004
	MPALocalCatastrophic Cause = 0x2005
	MPAInsufficientIRD   Cause = 0x2006
	MPANoRTR             Cause = 0x2007
)

var causeText = map[Cause]string{
	LocalCatastrophic:    "RDMAP local catastrophic error",
	ProtInvalidSTag:      "invalid STag",
	ProtBounds:           "base or bounds violation",
	ProtAccess:           "access rights violation",
	ProtStream:           "STag not associated with the stream",
	ProtTOWrap:           "TO wrap",
	ProtCannotInvalidate: "STag cannot be invalidated",
	ProtUnspecified:      "unspecified remote protection error",
	OpVersion:            "invalid RDMAP version",
	OpUnexpectedOpcode:   "unexpected opcode",
	OpCatastrophicStream: "catastrophic error of the stream",
	OpCatastrophicGlobal: "catastrophic error, global",
	OpCannotInvalidate:   "STag cannot be invalidated",
	OpUnspecified:        "unspecified remote operation error",
	DDPLocalCatastrophic: "DDP local catastrophic error",
	TaggedInvalidSTag:    "invalid STag of a tagged segment",
	TaggedBounds:         "base or bounds violation of a tagged segment",
	TaggedStream:         "STag of a tagged segment not associated with the stream",
	TaggedTOWrap:         "TO wrap of a tagged segment",
	TaggedVersion:        "invalid DDP version of a tagged segment",
	UntaggedQN:           "invalid queue number",
	UntaggedNoBuffer:     "no receive buffer for the MSN",
	UntaggedMSN:          "MSN out of range",
	UntaggedMO:           "invalid message offset",
	UntaggedTooLong:      "message longer than the receive buffer",
	UntaggedVersion:      "invalid DDP version of an untagged segment",
	MPATCPLost:           "TCP connection lost",
	MPACRC:               "CRC32C mismatch",
	MPAMarker:            "marker and ULPDU length disagree",
	MPAStartup:           "invalid MPA Request or Reply",
	MPALocalCatastrophic: "MPA local catastrophic error",
	MPAInsufficientIRD:   "insufficient IRD",
	MPANoRTR:             "no matching RTR message",
}

// MakeCause returns the cause of a layer (0 to 15), error type (0 to 15) and error code.
func MakeCause(layer, etype, code uint8) Cause {
	return Cause(layer)<<12 | Cause(etype&0xf)<<8 | Cause(code)
}

func (c Cause) Layer() uint8 { return uint8(c >> 12) }
func (c Cause) Etype() uint8 { return uint8(c>>8) & 0xf }
func (c Cause) Code() uint8  { return uint8(c) }

// Defined reports whether a standard gives the cause a meaning.
func (c Cause) Defined() bool {
	_, ok := causeText[c]
	return ok
}

// IncludesHeader reports whether a Terminate with this cause quotes the DDP header of the
// offending segment and its length (RFC 5040 §4.8, Figure 10): all errors of DDP do, its local
// catastrophic one among them, and those of RDMAP but the local catastrophic one. Errors of MPA
// do not.
func (c Cause) IncludesHeader() bool {
	switch c.Layer() {
	case 0:
		return c.Etype() != 0
	case 1:
		return true
	}
	return false
}

// IncludesReadRequest reports whether a Terminate with this cause also quotes the RDMA Read Request
// header, if the offender was a Read Request.
func (c Cause) IncludesReadRequest() bool { return c.Layer() == 0 && c.Etype() == 1 }

// String returns layer, error type and code as docs/protocols writes them, and the meaning.
func (c Cause) String() string {
	if c == NoTerminate {
		return "close without Terminate"
	}
	text, ok := causeText[c]
	if !ok {
		text = "undefined cause"
	}
	return fmt.Sprintf("%d/%d/%02x %s", c.Layer(), c.Etype(), c.Code(), text)
}

// Error is a peer's violation of MPA, DDP, RDMAP or the one-shot extension. It ends the
// connection: after a Terminate with the cause, unless that is [NoTerminate].
type Error struct {
	Cause  Cause
	Detail string // what was wrong with the bytes
}

func (e *Error) Error() string { return "ddp: " + e.Detail + " (" + e.Cause.String() + ")" }

// Errors of this package. They are variables, so that hostile bytes cost no allocation.
var (
	errULPDUShort    = &Error{NoTerminate, "ULPDU length is less than its DDP header"}
	errMessageLength = &Error{NoTerminate, "ULPDU length does not fit the fixed size of the message"}
	errNotLast       = &Error{NoTerminate, "message of fixed size in more than one segment"}
	errCut           = &Error{NoTerminate, "FPDU is cut short"}
	errTerminateCut  = &Error{NoTerminate, "Terminate message is cut short"}

	errCRC    = &Error{MPACRC, "CRC32C of an FPDU is wrong"}
	errMarker = &Error{MPAMarker, "marker does not point to the start of its FPDU"}

	errTaggedVersion   = &Error{TaggedVersion, "DDP version of a tagged segment is not 1"}
	errUntaggedVersion = &Error{UntaggedVersion, "DDP version of an untagged segment is not 1"}
	errRDMAPVersion    = &Error{OpVersion, "RDMAP version is not 1"}
	errOpcode          = &Error{OpUnexpectedOpcode, "opcode unknown, not negotiated, or in the wrong kind of segment"}
	errMarking         = &Error{OpUnexpectedOpcode, "one-shot marking where none may be"}
	errFeature         = &Error{OpUnexpectedOpcode, "one-shot feature not negotiated, or in the wrong direction"}
	errQN              = &Error{UntaggedQN, "queue number does not belong to the opcode"}
	errFixedMO         = &Error{UntaggedMO, "message of one segment with an offset"}
)
