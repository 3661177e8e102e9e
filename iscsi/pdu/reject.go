package pdu

import (
	"fmt"

	"oneshot/internal/serial"
)

// RejectReason is why a target rejects a PDU (§11.17.1).
type RejectReason uint8

// Reject reasons. 0x01 and 0x0b are not to be used.
const (
	RejectDataDigestError     RejectReason = 0x02
	RejectSNACK               RejectReason = 0x03
	RejectProtocolError       RejectReason = 0x04
	RejectCommandNotSupported RejectReason = 0x05
	RejectImmediateCommand    RejectReason = 0x06 // too many immediate commands
	RejectTaskInProgress      RejectReason = 0x07
	RejectInvalidDataACK      RejectReason = 0x08
	RejectInvalidPDUField     RejectReason = 0x09
	RejectLongOperation       RejectReason = 0x0a // out of resources for a Target Transfer Tag
	RejectWaitingForLogout    RejectReason = 0x0c
)

var rejectNames = [...]string{
	RejectDataDigestError: "data (payload) digest error", RejectSNACK: "SNACK reject", RejectProtocolError: "protocol error",
	RejectCommandNotSupported: "command not supported", RejectImmediateCommand: "immediate command reject",
	RejectTaskInProgress: "task in progress", RejectInvalidDataACK: "invalid data ACK",
	RejectInvalidPDUField: "invalid PDU field", RejectLongOperation: "long operation reject",
	RejectWaitingForLogout: "waiting for logout",
}

// String returns the name of the reason.
func (r RejectReason) String() string {
	if int(r) < len(rejectNames) && rejectNames[r] != "" {
		return rejectNames[r]
	}
	return fmt.Sprintf("reject reason %#02x", uint8(r))
}

// Reject is a Reject (§11.17). Its data segment is the complete header of the PDU in
// error. It uses up a StatSN.
type Reject struct{ Header }

// ParseReject returns b, which it aliases, as a Reject.
func ParseReject(b []byte) (Reject, error) {
	h, err := parse(b, OpReject)
	return Reject{h}, err
}

// Reason returns why.
func (p Reject) Reason() RejectReason { return RejectReason(p.Header[offByte2]) }

// DataSN returns the next Data-In or R2T expected, valid with a rejected Data SNACK
// (§11.17.2).
func (p Reject) DataSN() serial.SN { return p.sn(offDataSN) }

// Fields returns all fields of the PDU.
func (p Reject) Fields() RejectFields {
	return RejectFields{
		Reason: p.Reason(), DataSegmentLength: p.DataSegmentLen(), Sequence: p.Sequence(), DataSN: p.DataSN(),
	}
}

// RejectFields encodes a Reject, whose ITT is always ReservedTag.
type RejectFields struct {
	Reason            RejectReason
	DataSegmentLength int // bytes
	Sequence
	DataSN serial.SN // DataSN or R2TSN
}

// AppendTo appends the header of BHSLen bytes to b.
func (f *RejectFields) AppendTo(b []byte) []byte {
	b, h := appendHeader(b, OpReject, false, FlagFinal, f.DataSegmentLength)
	h[offByte2] = byte(f.Reason)
	h.put32(offITT, ReservedTag)
	h.putSequence(f.Sequence)
	h.put32(offDataSN, uint32(f.DataSN))
	return b
}
