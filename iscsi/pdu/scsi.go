package pdu

import (
	"encoding/binary"
	"errors"
	"fmt"

	"oneshot/internal/serial"
)

// TaskAttribute is the ATTR field of a SCSI Command (§11.3.1).
type TaskAttribute uint8

// Task attributes.
const (
	AttrUntagged TaskAttribute = iota
	AttrSimple
	AttrOrdered
	AttrHeadOfQueue
	AttrACA
)

var attrNames = [...]string{"Untagged", "Simple", "Ordered", "Head of queue", "ACA"}

// String returns the name of the attribute.
func (a TaskAttribute) String() string {
	if int(a) < len(attrNames) {
		return attrNames[a]
	}
	return fmt.Sprintf("task attribute %d", uint8(a))
}

const (
	flagRead  = 0x40
	flagWrite = 0x20
	maskAttr  = 0x07

	offEDTL = 20
	offCDB  = 32
	// CDBLen is the room for a CDB in the basic header segment, in bytes; shorter
	// CDBs are padded with zeros, the rest of a longer one is in an AHS.
	CDBLen = 16
)

// Additional header segments (§11.2.2). The length of each counts what comes after
// its type: a reserved byte and then the content.
const (
	ahsExtendedCDB = 1
	ahsBidiRead    = 2

	offAHSType    = 2
	offAHSContent = 4
	lenBidiRead   = 5
)

var (
	errAHSTruncated = errors.New("pdu: additional header segments end before TotalAHSLength")
	errAHSLength    = errors.New("pdu: additional header segment with a wrong AHSLength")
)

// SCSICommand is a SCSI Command (§11.3) with its additional header segments.
type SCSICommand struct{ Header }

// ParseSCSICommand returns b, which it aliases, as a SCSI Command. b holds the basic
// header segment and all TotalAHSLen bytes of additional header segments, which
// are checked to be well-formed; those of unknown type are passed over.
func ParseSCSICommand(b []byte) (SCSICommand, error) {
	h, err := parseOpcode(b, OpSCSICommand)
	if err != nil || h.TotalAHSLen() == 0 {
		return SCSICommand{h}, err
	}
	if err := checkAHS(h); err != nil {
		return SCSICommand{}, malformed(h, RejectInvalidPDUField, err)
	}
	return SCSICommand{h}, nil
}

func checkAHS(h Header) error {
	if len(h)-BHSLen < h.TotalAHSLen() {
		return errAHSTruncated
	}
	for rest := h[BHSLen:][:h.TotalAHSLen()]; len(rest) > 0; {
		n := int(binary.BigEndian.Uint16(rest))
		if whole := PaddedLen(offAHSType + 1 + n); whole > len(rest) {
			return errAHSTruncated
		}
		switch rest[offAHSType] & maskOpcode {
		case ahsExtendedCDB:
			if n < 2 {
				return errAHSLength
			}
		case ahsBidiRead:
			if n != lenBidiRead {
				return errAHSLength
			}
		}
		rest = rest[PaddedLen(offAHSType+1+n):]
	}
	return nil
}

// ahs returns the content of the first additional header segment of a type, or nil.
func (p SCSICommand) ahs(kind byte) []byte {
	for rest := p.Header[BHSLen:][:p.TotalAHSLen()]; len(rest) > 0; {
		n := offAHSType + 1 + int(binary.BigEndian.Uint16(rest))
		if rest[offAHSType]&maskOpcode == kind {
			return rest[offAHSContent:n]
		}
		rest = rest[PaddedLen(n):]
	}
	return nil
}

// Read reports the R bit: data is expected to flow to the initiator.
func (p SCSICommand) Read() bool { return p.flag(flagRead) }

// Write reports the W bit: data is expected to flow to the target.
func (p SCSICommand) Write() bool { return p.flag(flagWrite) }

// Attr returns the task attribute.
func (p SCSICommand) Attr() TaskAttribute { return TaskAttribute(p.Flags() & maskAttr) }

// EDTL returns the Expected Data Transfer Length in bytes (§11.3.4); of a
// bidirectional command, that of the write.
func (p SCSICommand) EDTL() uint32 { return p.u32(offEDTL) }

// CDB returns the CDBLen bytes of the CDB that are in the basic header segment. It
// aliases the header.
func (p SCSICommand) CDB() []byte { return p.Header[offCDB : offCDB+CDBLen : offCDB+CDBLen] }

// ExtendedCDB returns the bytes of the CDB after the first CDBLen, or nil if there is
// no such AHS (§11.2.2.3). It aliases the header.
func (p SCSICommand) ExtendedCDB() []byte {
	if p.TotalAHSLen() == 0 {
		return nil
	}
	return p.ahs(ahsExtendedCDB)
}

// BidiReadEDTL returns the Bidirectional Read Expected Data Transfer Length in bytes,
// and whether there is such an AHS (§11.2.2.4).
func (p SCSICommand) BidiReadEDTL() (n uint32, ok bool) {
	if p.TotalAHSLen() == 0 {
		return 0, false
	}
	if c := p.ahs(ahsBidiRead); c != nil {
		return binary.BigEndian.Uint32(c), true
	}
	return 0, false
}

// Fields returns all fields of the PDU; CDB and ExtendedCDB alias it.
func (p SCSICommand) Fields() SCSICommandFields {
	bidi, ok := p.BidiReadEDTL()
	return SCSICommandFields{
		Immediate: p.Immediate(), Final: p.Final(), Read: p.Read(), Write: p.Write(), Attr: p.Attr(),
		DataSegmentLength: p.DataSegmentLen(), LUN: p.LUN(), ITT: p.ITT(), EDTL: p.EDTL(),
		CmdSN: p.CmdSN(), ExpStatSN: p.ExpStatSN(), CDB: p.CDB(), ExtendedCDB: p.ExtendedCDB(),
		Bidi: ok, BidiReadEDTL: bidi,
	}
}

// SCSICommandFields encodes a SCSI Command.
type SCSICommandFields struct {
	Immediate         bool
	Final             bool // no unsolicited Data-Out follows
	Read              bool
	Write             bool
	Attr              TaskAttribute
	DataSegmentLength int // bytes of immediate data
	LUN               uint64
	ITT               uint32
	EDTL              uint32 // bytes
	CmdSN             serial.SN
	ExpStatSN         serial.SN
	CDB               []byte // the first CDBLen bytes at most, padded with zeros when shorter
	ExtendedCDB       []byte // the CDB from byte CDBLen on
	Bidi              bool   // BidiReadEDTL is there
	BidiReadEDTL      uint32 // bytes
}

// AppendTo appends the header of BHSLen bytes and the additional header segments to
// b. It panics if CDB is longer than CDBLen bytes or the whole than MaxAHSLen.
func (f *SCSICommandFields) AppendTo(b []byte) []byte {
	if len(f.CDB) > CDBLen {
		panic("pdu: the CDB does not fit into the basic header segment")
	}
	start := len(b)
	flags := bit(f.Final, FlagFinal) | bit(f.Read, flagRead) | bit(f.Write, flagWrite) | byte(f.Attr)&maskAttr
	b, h := appendHeader(b, OpSCSICommand, f.Immediate, flags, f.DataSegmentLength)
	h.putLUN(f.LUN)
	h.put32(offITT, f.ITT)
	h.put32(offEDTL, f.EDTL)
	h.putCmdSN(f.CmdSN, f.ExpStatSN)
	copy(h[offCDB:], f.CDB)
	if len(f.ExtendedCDB) == 0 && !f.Bidi {
		return b
	}
	b = f.appendAHS(b)
	total := len(b) - start - BHSLen
	if total > MaxAHSLen {
		panic("pdu: additional header segments exceed 1020 bytes")
	}
	b[start+offAHSLen] = byte(total / 4)
	return b
}

func (f *SCSICommandFields) appendAHS(b []byte) []byte {
	if n := len(f.ExtendedCDB); n > 0 {
		b = binary.BigEndian.AppendUint16(b, uint16(n+1))
		b = append(b, ahsExtendedCDB, 0)
		b = append(b, f.ExtendedCDB...)
		b = append(b, Padding(n)...)
	}
	if f.Bidi {
		b = binary.BigEndian.AppendUint16(b, lenBidiRead)
		b = append(b, ahsBidiRead, 0)
		b = binary.BigEndian.AppendUint32(b, f.BidiReadEDTL)
	}
	return b
}

// iSCSI service responses of a SCSI Response (§11.4.3).
const (
	ResponseCommandCompleted = 0x00 // at the target; Status is valid
	ResponseTargetFailure    = 0x01
)

const (
	flagBidiOverflow  = 0x10
	flagBidiUnderflow = 0x08
	flagOverflow      = 0x04
	flagUnderflow     = 0x02

	offSNACKTag     = 20
	offExpDataSN    = 36
	offBidiResidual = 40
	offResidual     = 44
)

// SCSIResponse is a SCSI Response (§11.4). Its data segment, if any, is the length of
// the sense data in two bytes, the sense data, and response data.
type SCSIResponse struct{ Header }

// ParseSCSIResponse returns b, which it aliases, as a SCSI Response.
func ParseSCSIResponse(b []byte) (SCSIResponse, error) {
	h, err := parse(b, OpSCSIResponse)
	return SCSIResponse{h}, err
}

// Response returns the iSCSI service response.
func (p SCSIResponse) Response() uint8 { return p.Header[offByte2] }

// Status returns the SCSI status, valid when Response is ResponseCommandCompleted.
func (p SCSIResponse) Status() uint8 { return p.Header[offByte3] }

// Overflow reports the O bit: ResidualCount bytes more would have been transferred.
func (p SCSIResponse) Overflow() bool { return p.flag(flagOverflow) }

// Underflow reports the U bit: ResidualCount bytes of EDTL were not transferred.
func (p SCSIResponse) Underflow() bool { return p.flag(flagUnderflow) }

// BidiOverflow reports the o bit, Overflow of the read of a bidirectional command.
func (p SCSIResponse) BidiOverflow() bool { return p.flag(flagBidiOverflow) }

// BidiUnderflow reports the u bit, Underflow of the read of a bidirectional command.
func (p SCSIResponse) BidiUnderflow() bool { return p.flag(flagBidiUnderflow) }

// SNACKTag returns the SNACK Tag (§11.4.7).
func (p SCSIResponse) SNACKTag() uint32 { return p.u32(offSNACKTag) }

// ExpDataSN returns the number of R2T and Data-In PDUs that were sent for the command.
func (p SCSIResponse) ExpDataSN() serial.SN { return p.sn(offExpDataSN) }

// BidiReadResidualCount returns the residual of the read of a bidirectional command, in bytes.
func (p SCSIResponse) BidiReadResidualCount() uint32 { return p.u32(offBidiResidual) }

// ResidualCount returns the residual in bytes, valid with Overflow or Underflow.
func (p SCSIResponse) ResidualCount() uint32 { return p.u32(offResidual) }

// Fields returns all fields of the PDU.
func (p SCSIResponse) Fields() SCSIResponseFields {
	return SCSIResponseFields{
		Response: p.Response(), Status: p.Status(),
		Overflow: p.Overflow(), Underflow: p.Underflow(), BidiOverflow: p.BidiOverflow(), BidiUnderflow: p.BidiUnderflow(),
		DataSegmentLength: p.DataSegmentLen(), ITT: p.ITT(), SNACKTag: p.SNACKTag(), Sequence: p.Sequence(),
		ExpDataSN: p.ExpDataSN(), BidiReadResidualCount: p.BidiReadResidualCount(), ResidualCount: p.ResidualCount(),
	}
}

// SCSIResponseFields encodes a SCSI Response.
type SCSIResponseFields struct {
	Response          uint8
	Status            uint8
	Overflow          bool
	Underflow         bool
	BidiOverflow      bool
	BidiUnderflow     bool
	DataSegmentLength int // bytes
	ITT               uint32
	SNACKTag          uint32
	Sequence
	ExpDataSN             serial.SN
	BidiReadResidualCount uint32 // bytes
	ResidualCount         uint32 // bytes
}

// AppendTo appends the header of BHSLen bytes to b.
func (f *SCSIResponseFields) AppendTo(b []byte) []byte {
	flags := FlagFinal | bit(f.BidiOverflow, flagBidiOverflow) | bit(f.BidiUnderflow, flagBidiUnderflow) |
		bit(f.Overflow, flagOverflow) | bit(f.Underflow, flagUnderflow)
	b, h := appendHeader(b, OpSCSIResponse, false, flags, f.DataSegmentLength)
	h[offByte2], h[offByte3] = f.Response, f.Status
	h.put32(offITT, f.ITT)
	h.put32(offSNACKTag, f.SNACKTag)
	h.putSequence(f.Sequence)
	h.put32(offExpDataSN, uint32(f.ExpDataSN))
	h.put32(offBidiResidual, f.BidiReadResidualCount)
	h.put32(offResidual, f.ResidualCount)
	return b
}
