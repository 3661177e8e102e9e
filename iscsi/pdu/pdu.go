// Package pdu is the codec of the iSCSI protocol data units (RFC 7143 §11).
//
// Received headers are read through checked views: ParseX checks length, opcode
// and structure once, and afterwards no accessor can fail. A view aliases the
// receive buffer and is valid as long as that is. Headers to be sent are written
// by the Fields structs, whose AppendTo writes every byte, reserved ones as zero.
// All integers on the wire are big-endian, except for the digests.
//
// The codec allocates nothing, keeps no state, and knows nothing of sessions:
// whether a value makes sense is for the layers above to say.
//
//	Byte/     0       |       1       |       2       |       3       |
//	    +---------------+---------------+---------------+---------------+
//	  0 |.|I| Opcode    |F| Opcode-specific                             |
//	    +---------------+---------------+---------------+---------------+
//	  4 |TotalAHSLength | DataSegmentLength                             |
//	    +---------------+---------------+---------------+---------------+
//	  8 | LUN or opcode-specific                                        |
//	 12 |                                                               |
//	    +---------------+---------------+---------------+---------------+
//	 16 | Initiator Task Tag                                            |
//	    +---------------+---------------+---------------+---------------+
//	 20 / opcode-specific                                               /
//	 48 / AHS, header digest, data segment, data digest                 /
package pdu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"oneshot/internal/serial"
)

const (
	// BHSLen is the length of the basic header segment in bytes (§11.2.1).
	BHSLen = 48
	// MaxAHSLen is the largest total of additional header segments in bytes.
	MaxAHSLen = 255 * 4
	// MaxDataSegmentLen is the largest data segment that a header can announce, in bytes.
	MaxDataSegmentLen = 1<<24 - 1
	// ReservedTag is the task tag that names no task: the ITT of a NOP-In ping, the
	// TTT of an unsolicited Data-Out (§11.2.1.8, §11.7.4).
	ReservedTag = 0xffffffff
)

// PaddedLen returns n rounded up to the four bytes that segments are padded to (§11.2.3).
func PaddedLen(n int) int { return (n + 3) &^ 3 }

// Opcode is the operation code of a PDU, without the immediate bit (§11.2.1.2).
type Opcode uint8

// The opcodes of initiators, then those of targets.
const (
	OpNOPOut                Opcode = 0x00
	OpSCSICommand           Opcode = 0x01
	OpTaskManagementRequest Opcode = 0x02
	OpLoginRequest          Opcode = 0x03
	OpTextRequest           Opcode = 0x04
	OpDataOut               Opcode = 0x05
	OpLogoutRequest         Opcode = 0x06
	OpSNACK                 Opcode = 0x10

	OpNOPIn                  Opcode = 0x20
	OpSCSIResponse           Opcode = 0x21
	OpTaskManagementResponse Opcode = 0x22
	OpLoginResponse          Opcode = 0x23
	OpTextResponse           Opcode = 0x24
	OpDataIn                 Opcode = 0x25
	OpLogoutResponse         Opcode = 0x26
	OpR2T                    Opcode = 0x31
	OpAsync                  Opcode = 0x32
	OpReject                 Opcode = 0x3f
)

var opcodeNames = [64]string{
	OpNOPOut: "NOP-Out", OpSCSICommand: "SCSI Command", OpTaskManagementRequest: "Task Management Function Request",
	OpLoginRequest: "Login Request", OpTextRequest: "Text Request", OpDataOut: "SCSI Data-Out",
	OpLogoutRequest: "Logout Request", OpSNACK: "SNACK Request",
	OpNOPIn: "NOP-In", OpSCSIResponse: "SCSI Response", OpTaskManagementResponse: "Task Management Function Response",
	OpLoginResponse: "Login Response", OpTextResponse: "Text Response", OpDataIn: "SCSI Data-In",
	OpLogoutResponse: "Logout Response", OpR2T: "R2T", OpAsync: "Asynchronous Message", OpReject: "Reject",
}

// String returns the name that RFC 7143 gives the opcode.
func (o Opcode) String() string {
	if int(o) < len(opcodeNames) && opcodeNames[o] != "" {
		return opcodeNames[o]
	}
	return fmt.Sprintf("opcode %#02x", uint8(o))
}

// Known reports whether RFC 7143 defines the opcode.
func (o Opcode) Known() bool { return int(o) < len(opcodeNames) && opcodeNames[o] != "" }

// FromTarget reports whether the opcode is in the half of the targets (§11.2.1.2).
func (o Opcode) FromTarget() bool { return o&0x20 != 0 }

// CarriesCmdSN reports whether PDUs of this opcode have a CmdSN field. Of the PDUs
// of an initiator, Data-Out and SNACK have none (§11.7, §11.16).
func (o Opcode) CarriesCmdSN() bool { return o <= OpTextRequest || o == OpLogoutRequest }

// Offsets into the basic header segment that several PDUs share (§11.2.1).
const (
	offOpcode   = 0
	offFlags    = 1
	offByte2    = 2 // Version-max, Response, Reason
	offByte3    = 3 // Version-min, Status
	offAHSLen   = 4 // in words
	offDataLen  = 5 // three bytes
	offLUN      = 8
	offITT      = 16
	offTTT      = 20
	offSN       = 24 // CmdSN or StatSN
	offExpSN    = 28 // ExpStatSN or ExpCmdSN
	offMaxCmdSN = 32

	bitImmediate = 0x40
	maskOpcode   = 0x3f
)

// Flags of byte 1 that several PDUs share.
const (
	FlagFinal    = 0x80 // F, and T of the login PDUs
	FlagContinue = 0x40 // C of the login and text PDUs
)

// Header is a basic header segment: at least BHSLen bytes, perhaps followed by
// additional header segments. Accessors of fields that only some PDUs have say so;
// on other PDUs they return what happens to be there.
type Header []byte

// ParseHeader checks that b holds a basic header segment and returns it as a view.
// It does not look at the opcode.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < BHSLen {
		return nil, errShort
	}
	return Header(b), nil
}

// Opcode returns the operation code without the immediate bit.
func (h Header) Opcode() Opcode { return Opcode(h[offOpcode] & maskOpcode) }

// Immediate reports the I bit, which requests have (§11.2.1.1).
func (h Header) Immediate() bool { return h[offOpcode]&bitImmediate != 0 }

// Flags returns byte 1 as it is.
func (h Header) Flags() byte { return h[offFlags] }

// Final reports the F bit (§11.2.1.3).
func (h Header) Final() bool { return h[offFlags]&FlagFinal != 0 }

// TotalAHSLen returns the length of all additional header segments, with their
// padding, in bytes (§11.2.1.5).
func (h Header) TotalAHSLen() int { return int(h[offAHSLen]) * 4 }

// DataSegmentLen returns the length of the data segment in bytes, without padding
// and digest (§11.2.1.6).
func (h Header) DataSegmentLen() int {
	return int(binary.BigEndian.Uint32(h[offAHSLen:]) & MaxDataSegmentLen)
}

// LUN returns the eight bytes of the logical unit number, the first byte of the
// wire in the highest position (§11.2.1.7). Not in login, logout and Reject PDUs.
func (h Header) LUN() uint64 { return binary.BigEndian.Uint64(h[offLUN:]) }

// ITT returns the Initiator Task Tag (§11.2.1.8).
func (h Header) ITT() uint32 { return binary.BigEndian.Uint32(h[offITT:]) }

// TTT returns the Target Transfer Tag of NOP, text, data, R2T and SNACK PDUs.
func (h Header) TTT() uint32 { return binary.BigEndian.Uint32(h[offTTT:]) }

// CmdSN returns the command sequence number of a PDU whose opcode CarriesCmdSN.
func (h Header) CmdSN() serial.SN { return h.sn(offSN) }

// ExpStatSN returns the next status that an initiator expects. All PDUs of an
// initiator have it.
func (h Header) ExpStatSN() serial.SN { return h.sn(offExpSN) }

// StatSN returns the status sequence number of a PDU from a target.
func (h Header) StatSN() serial.SN { return h.sn(offSN) }

// ExpCmdSN returns the next command that a target expects. All PDUs of a target have it.
func (h Header) ExpCmdSN() serial.SN { return h.sn(offExpSN) }

// MaxCmdSN returns the last command that a target is ready to take. All PDUs of a
// target have it.
func (h Header) MaxCmdSN() serial.SN { return h.sn(offMaxCmdSN) }

func (h Header) sn(off int) serial.SN    { return serial.SN(h.u32(off)) }
func (h Header) u32(off int) uint32      { return binary.BigEndian.Uint32(h[off:]) }
func (h Header) u16(off int) uint16      { return binary.BigEndian.Uint16(h[off:]) }
func (h Header) flag(mask byte) bool     { return h[offFlags]&mask != 0 }
func (h Header) put32(off int, v uint32) { binary.BigEndian.PutUint32(h[off:], v) }
func (h Header) put16(off int, v uint16) { binary.BigEndian.PutUint16(h[off:], v) }

// BHS returns a copy of the basic header segment, as a Reject carries it.
func (h Header) BHS() (bhs [BHSLen]byte) {
	copy(bhs[:], h)
	return bhs
}

var (
	errShort  = errors.New("pdu: shorter than the basic header segment of 48 bytes")
	errOpcode = errors.New("pdu: not the opcode expected here")
	errAHS    = errors.New("pdu: additional header segments are allowed in SCSI Command PDUs only")
)

// parse makes the checks that all PDUs share.
func parse(b []byte, op Opcode) (Header, error) {
	h, err := parseOpcode(b, op)
	if err == nil && h.TotalAHSLen() != 0 {
		return nil, malformed(h, RejectProtocolError, errAHS) // §11.2.1.5
	}
	return h, err
}

func parseOpcode(b []byte, op Opcode) (Header, error) {
	h, err := ParseHeader(b)
	if err == nil && h.Opcode() != op {
		return nil, malformed(h, RejectProtocolError, errOpcode)
	}
	return h, err
}

var zeroBHS [BHSLen]byte

// appendHeader appends a header of zeros with opcode, flags and data segment
// length, and returns both the whole slice and the header in it.
func appendHeader(b []byte, op Opcode, immediate bool, flags byte, dataLen int) ([]byte, Header) {
	n := len(b)
	b = slices.Grow(b, BHSLen)[:n+BHSLen]
	h := Header(b[n : n+BHSLen])
	*(*[BHSLen]byte)(h) = [BHSLen]byte{} // without the calls of append and clear
	if uint(dataLen) > MaxDataSegmentLen {
		panic("pdu: data segment length does not fit into 24 bits")
	}
	h.put32(offAHSLen, uint32(dataLen))
	h[offOpcode] = byte(op) | bit(immediate, bitImmediate)
	h[offFlags] = flags
	return b, h
}

// Sequence is what every PDU of a target says about sequence numbers: its own
// status number, and the window of commands that the target takes (§4.2.2).
type Sequence struct {
	StatSN   serial.SN
	ExpCmdSN serial.SN
	MaxCmdSN serial.SN
}

// Sequence returns the sequence numbers of a PDU from a target.
func (h Header) Sequence() Sequence {
	return Sequence{StatSN: h.StatSN(), ExpCmdSN: h.ExpCmdSN(), MaxCmdSN: h.MaxCmdSN()}
}

func (h Header) putSequence(s Sequence) {
	h.put32(offSN, uint32(s.StatSN))
	h.put32(offExpSN, uint32(s.ExpCmdSN))
	h.put32(offMaxCmdSN, uint32(s.MaxCmdSN))
}

func (h Header) putCmdSN(cmd, expStat serial.SN) {
	h.put32(offSN, uint32(cmd))
	h.put32(offExpSN, uint32(expStat))
}

func (h Header) putLUN(lun uint64) { binary.BigEndian.PutUint64(h[offLUN:], lun) }

func bit(on bool, mask byte) byte {
	if on {
		return mask
	}
	return 0
}
