package pdu

import (
	"fmt"

	"oneshot/internal/serial"
)

// Stage is a stage of the login (§6.3, §11.12.3). Two is reserved.
type Stage uint8

// The stages.
const (
	StageSecurityNegotiation         Stage = 0
	StageLoginOperationalNegotiation Stage = 1
	StageFullFeaturePhase            Stage = 3
)

var stageNames = [...]string{"SecurityNegotiation", "LoginOperationalNegotiation", "reserved stage 2", "FullFeaturePhase"}

// String returns the name of the stage.
func (s Stage) String() string { return stageNames[s&3] }

// ISID is the part of a session's name that the initiator chooses (§11.12.5).
type ISID [6]byte

// String returns the ISID in hexadecimal.
func (i ISID) String() string { return fmt.Sprintf("%x", i[:]) }

// LoginStatus is Status-Class in the high and Status-Detail in the low byte (§11.13.5).
type LoginStatus uint16

// The login statuses.
const (
	LoginSuccess                LoginStatus = 0x0000
	LoginTargetMovedTemporarily LoginStatus = 0x0101
	LoginTargetMovedPermanently LoginStatus = 0x0102
	LoginInitiatorError         LoginStatus = 0x0200
	LoginAuthenticationFailure  LoginStatus = 0x0201
	LoginAuthorizationFailure   LoginStatus = 0x0202
	LoginNotFound               LoginStatus = 0x0203
	LoginTargetRemoved          LoginStatus = 0x0204
	LoginUnsupportedVersion     LoginStatus = 0x0205
	LoginTooManyConnections     LoginStatus = 0x0206
	LoginMissingParameter       LoginStatus = 0x0207
	LoginCannotIncludeInSession LoginStatus = 0x0208
	LoginSessionTypeUnsupported LoginStatus = 0x0209
	LoginSessionDoesNotExist    LoginStatus = 0x020a
	LoginInvalidRequest         LoginStatus = 0x020b
	LoginTargetError            LoginStatus = 0x0300
	LoginServiceUnavailable     LoginStatus = 0x0301
	LoginOutOfResources         LoginStatus = 0x0302
)

// Class returns the Status-Class: 0 success, 1 redirection, 2 initiator error, 3 target error.
func (s LoginStatus) Class() uint8 { return uint8(s >> 8) }

// String returns the name of the status.
func (s LoginStatus) String() string {
	switch s {
	case LoginSuccess:
		return "Success"
	case LoginTargetMovedTemporarily:
		return "Target moved temporarily"
	case LoginTargetMovedPermanently:
		return "Target moved permanently"
	case LoginInitiatorError:
		return "Initiator error"
	case LoginAuthenticationFailure:
		return "Authentication failure"
	case LoginAuthorizationFailure:
		return "Authorization failure"
	case LoginNotFound:
		return "Not found"
	case LoginTargetRemoved:
		return "Target removed"
	case LoginUnsupportedVersion:
		return "Unsupported version"
	case LoginTooManyConnections:
		return "Too many connections"
	case LoginMissingParameter:
		return "Missing parameter"
	case LoginCannotIncludeInSession:
		return "Can't include in session"
	case LoginSessionTypeUnsupported:
		return "Session type not supported"
	case LoginSessionDoesNotExist:
		return "Session does not exist"
	case LoginInvalidRequest:
		return "Invalid during login"
	case LoginTargetError:
		return "Target error"
	case LoginServiceUnavailable:
		return "Service unavailable"
	case LoginOutOfResources:
		return "Out of resources"
	}
	return fmt.Sprintf("login status %#04x", uint16(s))
}

const (
	shiftCSG  = 2
	maskStage = 3

	offISID        = 8
	offTSIH        = 14
	offCID         = 20
	offStatusClass = 36
)

// Transit reports the T bit of a login PDU.
func (h loginHeader) Transit() bool { return h.Final() }

// Continue reports the C bit: the text of this PDU goes on in the next.
func (h loginHeader) Continue() bool { return h.flag(FlagContinue) }

// CSG returns the current stage.
func (h loginHeader) CSG() Stage { return Stage(h.Flags() >> shiftCSG & maskStage) }

// NSG returns the next stage, valid with Transit.
func (h loginHeader) NSG() Stage { return Stage(h.Flags() & maskStage) }

// VersionMax returns the highest version that the sender supports.
func (h loginHeader) VersionMax() uint8 { return h.Header[offByte2] }

// ISID returns the initiator's part of the session identifier.
func (h loginHeader) ISID() ISID { return ISID(h.Header[offISID:]) }

// TSIH returns the target's part of the session identifier, 0 for a new session.
func (h loginHeader) TSIH() uint16 { return h.u16(offTSIH) }

// loginHeader is what Login Request and Login Response share.
type loginHeader struct{ Header }

// LoginRequest is a Login Request (§11.12).
type LoginRequest struct{ loginHeader }

// ParseLoginRequest returns b, which it aliases, as a Login Request.
func ParseLoginRequest(b []byte) (LoginRequest, error) {
	h, err := parse(b, OpLoginRequest)
	return LoginRequest{loginHeader{h}}, err
}

// VersionMin returns the lowest version that the initiator supports.
func (p LoginRequest) VersionMin() uint8 { return p.Header[offByte3] }

// CID returns the connection's identifier.
func (p LoginRequest) CID() uint16 { return p.u16(offCID) }

// Fields returns all fields of the PDU.
func (p LoginRequest) Fields() LoginRequestFields {
	return LoginRequestFields{
		Transit: p.Transit(), Continue: p.Continue(), CSG: p.CSG(), NSG: p.NSG(),
		VersionMax: p.VersionMax(), VersionMin: p.VersionMin(), DataSegmentLength: p.DataSegmentLen(),
		ISID: p.ISID(), TSIH: p.TSIH(), ITT: p.ITT(), CID: p.CID(), CmdSN: p.CmdSN(), ExpStatSN: p.ExpStatSN(),
	}
}

// LoginRequestFields encodes a Login Request, which always has the I bit.
type LoginRequestFields struct {
	Transit           bool
	Continue          bool
	CSG               Stage
	NSG               Stage
	VersionMax        uint8
	VersionMin        uint8
	DataSegmentLength int // bytes
	ISID              ISID
	TSIH              uint16
	ITT               uint32
	CID               uint16
	CmdSN             serial.SN
	ExpStatSN         serial.SN
}

// AppendTo appends the header of BHSLen bytes to b.
func (f *LoginRequestFields) AppendTo(b []byte) []byte {
	b, h := appendHeader(b, OpLoginRequest, true, loginFlags(f.Transit, f.Continue, f.CSG, f.NSG), f.DataSegmentLength)
	h[offByte2], h[offByte3] = f.VersionMax, f.VersionMin
	copy(h[offISID:], f.ISID[:])
	h.put16(offTSIH, f.TSIH)
	h.put32(offITT, f.ITT)
	h.put16(offCID, f.CID)
	h.putCmdSN(f.CmdSN, f.ExpStatSN)
	return b
}

func loginFlags(transit, cont bool, csg, nsg Stage) byte {
	return bit(transit, FlagFinal) | bit(cont, FlagContinue) | byte(csg)&maskStage<<shiftCSG | byte(nsg)&maskStage
}

// LoginResponse is a Login Response (§11.13).
type LoginResponse struct{ loginHeader }

// ParseLoginResponse returns b, which it aliases, as a Login Response.
func ParseLoginResponse(b []byte) (LoginResponse, error) {
	h, err := parse(b, OpLoginResponse)
	return LoginResponse{loginHeader{h}}, err
}

// VersionActive returns the version in use.
func (p LoginResponse) VersionActive() uint8 { return p.Header[offByte3] }

// Status returns Status-Class and Status-Detail.
func (p LoginResponse) Status() LoginStatus { return LoginStatus(p.u16(offStatusClass)) }

// Fields returns all fields of the PDU.
func (p LoginResponse) Fields() LoginResponseFields {
	return LoginResponseFields{
		Transit: p.Transit(), Continue: p.Continue(), CSG: p.CSG(), NSG: p.NSG(),
		VersionMax: p.VersionMax(), VersionActive: p.VersionActive(), DataSegmentLength: p.DataSegmentLen(),
		ISID: p.ISID(), TSIH: p.TSIH(), ITT: p.ITT(), Sequence: p.Sequence(), Status: p.Status(),
	}
}

// LoginResponseFields encodes a Login Response.
type LoginResponseFields struct {
	Transit           bool
	Continue          bool
	CSG               Stage
	NSG               Stage
	VersionMax        uint8
	VersionActive     uint8
	DataSegmentLength int // bytes
	ISID              ISID
	TSIH              uint16
	ITT               uint32
	Sequence
	Status LoginStatus
}

// AppendTo appends the header of BHSLen bytes to b.
func (f *LoginResponseFields) AppendTo(b []byte) []byte {
	b, h := appendHeader(b, OpLoginResponse, false, loginFlags(f.Transit, f.Continue, f.CSG, f.NSG), f.DataSegmentLength)
	h[offByte2], h[offByte3] = f.VersionMax, f.VersionActive
	copy(h[offISID:], f.ISID[:])
	h.put16(offTSIH, f.TSIH)
	h.put32(offITT, f.ITT)
	h.putSequence(f.Sequence)
	h.put16(offStatusClass, uint16(f.Status))
	return b
}
