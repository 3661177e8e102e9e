package pdu

import "oneshot/internal/serial"

const (
	flagAcknowledge = 0x40
	flagStatus      = 0x01

	offDataSN        = 36 // R2TSN of an R2T
	offBufferOffset  = 40
	offDesiredLength = 44
)

// DataOut is a SCSI Data-Out (§11.7). It has no CmdSN.
type DataOut struct{ Header }

// ParseDataOut returns b, which it aliases, as a SCSI Data-Out.
func ParseDataOut(b []byte) (DataOut, error) {
	h, err := parse(b, OpDataOut)
	return DataOut{h}, err
}

// DataSN returns the number of the PDU within its sequence.
func (p DataOut) DataSN() serial.SN { return p.sn(offDataSN) }

// BufferOffset returns where the data belongs in the whole transfer, in bytes.
func (p DataOut) BufferOffset() uint32 { return p.u32(offBufferOffset) }

// Fields returns all fields of the PDU.
func (p DataOut) Fields() DataOutFields {
	return DataOutFields{
		Final: p.Final(), DataSegmentLength: p.DataSegmentLen(), LUN: p.LUN(), ITT: p.ITT(), TTT: p.TTT(),
		ExpStatSN: p.ExpStatSN(), DataSN: p.DataSN(), BufferOffset: p.BufferOffset(),
	}
}

// DataOutFields encodes a SCSI Data-Out.
type DataOutFields struct {
	Final             bool // the last PDU of its sequence
	DataSegmentLength int  // bytes
	LUN               uint64
	ITT               uint32
	TTT               uint32 // of the R2T, ReservedTag when unsolicited
	ExpStatSN         serial.SN
	DataSN            serial.SN
	BufferOffset      uint32 // bytes
}

// AppendTo appends the header of BHSLen bytes to b.
func (f *DataOutFields) AppendTo(b []byte) []byte {
	b, h := appendHeader(b, OpDataOut, false, bit(f.Final, FlagFinal), f.DataSegmentLength)
	h.putLUN(f.LUN)
	h.put32(offITT, f.ITT)
	h.put32(offTTT, f.TTT)
	h.put32(offExpSN, uint32(f.ExpStatSN))
	h.put32(offDataSN, uint32(f.DataSN))
	h.put32(offBufferOffset, f.BufferOffset)
	return b
}

// DataIn is a SCSI Data-In (§11.7). StatSN, Status and the residual are valid when
// HasStatus.
type DataIn struct{ Header }

// ParseDataIn returns b, which it aliases, as a SCSI Data-In.
func ParseDataIn(b []byte) (DataIn, error) {
	h, err := parse(b, OpDataIn)
	return DataIn{h}, err
}

// Acknowledge reports the A bit: the target asks for a DataACK SNACK.
func (p DataIn) Acknowledge() bool { return p.flag(flagAcknowledge) }

// HasStatus reports the S bit: the PDU ends the command with Status.
func (p DataIn) HasStatus() bool { return p.flag(flagStatus) }

// Overflow reports the O bit.
func (p DataIn) Overflow() bool { return p.flag(flagOverflow) }

// Underflow reports the U bit.
func (p DataIn) Underflow() bool { return p.flag(flagUnderflow) }

// Status returns the SCSI status.
func (p DataIn) Status() uint8 { return p.Header[offByte3] }

// DataSN returns the number of the PDU within the command.
func (p DataIn) DataSN() serial.SN { return p.sn(offDataSN) }

// BufferOffset returns where the data belongs in the whole transfer, in bytes.
func (p DataIn) BufferOffset() uint32 { return p.u32(offBufferOffset) }

// ResidualCount returns the residual in bytes.
func (p DataIn) ResidualCount() uint32 { return p.u32(offResidual) }

// Fields returns all fields of the PDU.
func (p DataIn) Fields() DataInFields {
	return DataInFields{
		Final: p.Final(), Acknowledge: p.Acknowledge(), Overflow: p.Overflow(), Underflow: p.Underflow(),
		HasStatus: p.HasStatus(), Status: p.Status(), DataSegmentLength: p.DataSegmentLen(),
		LUN: p.LUN(), ITT: p.ITT(), TTT: p.TTT(), Sequence: p.Sequence(),
		DataSN: p.DataSN(), BufferOffset: p.BufferOffset(), ResidualCount: p.ResidualCount(),
	}
}

// DataInFields encodes a SCSI Data-In.
type DataInFields struct {
	Final             bool // the last PDU of its sequence
	Acknowledge       bool
	Overflow          bool
	Underflow         bool
	HasStatus         bool
	Status            uint8
	DataSegmentLength int    // bytes
	LUN               uint64 // with Acknowledge
	ITT               uint32
	TTT               uint32 // with Acknowledge, else ReservedTag
	Sequence                 // StatSN with HasStatus
	DataSN            serial.SN
	BufferOffset      uint32 // bytes
	ResidualCount     uint32 // bytes
}

// AppendTo appends the header of BHSLen bytes to b.
func (f *DataInFields) AppendTo(b []byte) []byte {
	flags := bit(f.Final, FlagFinal) | bit(f.Acknowledge, flagAcknowledge) | bit(f.Overflow, flagOverflow) |
		bit(f.Underflow, flagUnderflow) | bit(f.HasStatus, flagStatus)
	b, h := appendHeader(b, OpDataIn, false, flags, f.DataSegmentLength)
	h[offByte3] = f.Status
	h.putLUN(f.LUN)
	h.put32(offITT, f.ITT)
	h.put32(offTTT, f.TTT)
	h.putSequence(f.Sequence)
	h.put32(offDataSN, uint32(f.DataSN))
	h.put32(offBufferOffset, f.BufferOffset)
	h.put32(offResidual, f.ResidualCount)
	return b
}

// R2T is a Ready To Transfer (§11.8). It carries the next StatSN without using it up.
type R2T struct{ Header }

// ParseR2T returns b, which it aliases, as an R2T.
func ParseR2T(b []byte) (R2T, error) {
	h, err := parse(b, OpR2T)
	return R2T{h}, err
}

// R2TSN returns the number of the R2T within the command.
func (p R2T) R2TSN() serial.SN { return p.sn(offDataSN) }

// BufferOffset returns where the wanted data begins, in bytes.
func (p R2T) BufferOffset() uint32 { return p.u32(offBufferOffset) }

// DesiredDataTransferLength returns how much data is wanted, in bytes.
func (p R2T) DesiredDataTransferLength() uint32 { return p.u32(offDesiredLength) }

// Fields returns all fields of the PDU.
func (p R2T) Fields() R2TFields {
	return R2TFields{
		LUN: p.LUN(), ITT: p.ITT(), TTT: p.TTT(), Sequence: p.Sequence(), R2TSN: p.R2TSN(),
		BufferOffset: p.BufferOffset(), DesiredDataTransferLength: p.DesiredDataTransferLength(),
	}
}

// R2TFields encodes an R2T.
type R2TFields struct {
	LUN uint64
	ITT uint32
	TTT uint32
	Sequence
	R2TSN                     serial.SN
	BufferOffset              uint32 // bytes
	DesiredDataTransferLength uint32 // bytes
}

// AppendTo appends the header of BHSLen bytes to b.
func (f *R2TFields) AppendTo(b []byte) []byte {
	b, h := appendHeader(b, OpR2T, false, FlagFinal, 0)
	h.putLUN(f.LUN)
	h.put32(offITT, f.ITT)
	h.put32(offTTT, f.TTT)
	h.putSequence(f.Sequence)
	h.put32(offDataSN, uint32(f.R2TSN))
	h.put32(offBufferOffset, f.BufferOffset)
	h.put32(offDesiredLength, f.DesiredDataTransferLength)
	return b
}
