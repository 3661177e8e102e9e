package pdu

import (
	"fmt"

	"oneshot/internal/serial"
)

// LogoutReason is why an initiator logs out (§11.14.1).
type LogoutReason uint8

// Logout reasons.
const (
	LogoutCloseSession      LogoutReason = 0
	LogoutCloseConnection   LogoutReason = 1
	LogoutRemoveForRecovery LogoutReason = 2
)

// String returns the name of the reason.
func (r LogoutReason) String() string {
	switch r {
	case LogoutCloseSession:
		return "close the session"
	case LogoutCloseConnection:
		return "close the connection"
	case LogoutRemoveForRecovery:
		return "remove the connection for recovery"
	}
	return fmt.Sprintf("logout reason %d", uint8(r))
}

// LogoutStatus is the response of a Logout Response (§11.15.1).
type LogoutStatus uint8

// Logout responses.
const (
	LogoutSuccess              LogoutStatus = 0
	LogoutCIDNotFound          LogoutStatus = 1
	LogoutRecoveryNotSupported LogoutStatus = 2
	LogoutCleanupFailed        LogoutStatus = 3
)

// String returns the name of the response.
func (s LogoutStatus) String() string {
	switch s {
	case LogoutSuccess:
		return "closed successfully"
	case LogoutCIDNotFound:
		return "CID not found"
	case LogoutRecoveryNotSupported:
		return "connection recovery not supported"
	case LogoutCleanupFailed:
		return "cleanup failed"
	}
	return fmt.Sprintf("logout response %d", uint8(s))
}

const (
	maskReason     = 0x7f
	offTime2Wait   = 40
	offTime2Retain = 42
)

// LogoutRequest is a Logout Request (§11.14).
type LogoutRequest struct{ Header }

// ParseLogoutRequest returns b, which it aliases, as a Logout Request.
func ParseLogoutRequest(b []byte) (LogoutRequest, error) {
	h, err := parse(b, OpLogoutRequest)
	return LogoutRequest{h}, err
}

// Reason returns what is to be closed.
func (p LogoutRequest) Reason() LogoutReason { return LogoutReason(p.Flags() & maskReason) }

// CID returns the connection to be closed, valid unless the session is closed.
func (p LogoutRequest) CID() uint16 { return p.u16(offCID) }

// Fields returns all fields of the PDU.
func (p LogoutRequest) Fields() LogoutRequestFields {
	return LogoutRequestFields{
		Immediate: p.Immediate(), Reason: p.Reason(), ITT: p.ITT(), CID: p.CID(), CmdSN: p.CmdSN(), ExpStatSN: p.ExpStatSN(),
	}
}

// LogoutRequestFields encodes a Logout Request.
type LogoutRequestFields struct {
	Immediate bool
	Reason    LogoutReason
	ITT       uint32
	CID       uint16
	CmdSN     serial.SN
	ExpStatSN serial.SN
}

// AppendTo appends the header of BHSLen bytes to b.
func (f *LogoutRequestFields) AppendTo(b []byte) []byte {
	b, h := appendHeader(b, OpLogoutRequest, f.Immediate, FlagFinal|byte(f.Reason)&maskReason, 0)
	h.put32(offITT, f.ITT)
	h.put16(offCID, f.CID)
	h.putCmdSN(f.CmdSN, f.ExpStatSN)
	return b
}

// LogoutResponse is a Logout Response (§11.15).
type LogoutResponse struct{ Header }

// ParseLogoutResponse returns b, which it aliases, as a Logout Response.
func ParseLogoutResponse(b []byte) (LogoutResponse, error) {
	h, err := parse(b, OpLogoutResponse)
	return LogoutResponse{h}, err
}

// Response returns how the logout ended.
func (p LogoutResponse) Response() LogoutStatus { return LogoutStatus(p.Header[offByte2]) }

// Time2Wait returns how long to wait before reconnecting, in seconds.
func (p LogoutResponse) Time2Wait() uint16 { return p.u16(offTime2Wait) }

// Time2Retain returns how long after Time2Wait tasks can be reassigned, in seconds.
func (p LogoutResponse) Time2Retain() uint16 { return p.u16(offTime2Retain) }

// Fields returns all fields of the PDU.
func (p LogoutResponse) Fields() LogoutResponseFields {
	return LogoutResponseFields{
		Response: p.Response(), ITT: p.ITT(), Sequence: p.Sequence(), Time2Wait: p.Time2Wait(), Time2Retain: p.Time2Retain(),
	}
}

// LogoutResponseFields encodes a Logout Response.
type LogoutResponseFields struct {
	Response LogoutStatus
	ITT      uint32
	Sequence
	Time2Wait   uint16 // seconds
	Time2Retain uint16 // seconds
}

// AppendTo appends the header of BHSLen bytes to b.
func (f *LogoutResponseFields) AppendTo(b []byte) []byte {
	b, h := appendHeader(b, OpLogoutResponse, false, FlagFinal, 0)
	h[offByte2] = byte(f.Response)
	h.put32(offITT, f.ITT)
	h.putSequence(f.Sequence)
	h.put16(offTime2Wait, f.Time2Wait)
	h.put16(offTime2Retain, f.Time2Retain)
	return b
}
