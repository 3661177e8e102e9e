package pdu

import "oneshot/internal/serial"

// NOPOut is a NOP-Out (§11.18): a ping of the initiator, or its answer to a ping of
// the target. The data segment of a ping is to be echoed.
type NOPOut struct{ Header }

// ParseNOPOut returns b, which it aliases, as a NOP-Out.
func ParseNOPOut(b []byte) (NOPOut, error) {
	h, err := parse(b, OpNOPOut)
	return NOPOut{h}, err
}

// Fields returns all fields of the PDU.
func (p NOPOut) Fields() NOPOutFields {
	return NOPOutFields{
		Immediate: p.Immediate(), DataSegmentLength: p.DataSegmentLen(), LUN: p.LUN(), ITT: p.ITT(), TTT: p.TTT(),
		CmdSN: p.CmdSN(), ExpStatSN: p.ExpStatSN(),
	}
}

// NOPOutFields encodes a NOP-Out.
type NOPOutFields struct {
	Immediate         bool
	DataSegmentLength int // bytes
	LUN               uint64
	ITT               uint32
	TTT               uint32
	CmdSN             serial.SN
	ExpStatSN         serial.SN
}

// AppendTo appends the header of BHSLen bytes to b.
func (f *NOPOutFields) AppendTo(b []byte) []byte {
	b, h := appendHeader(b, OpNOPOut, f.Immediate, FlagFinal, f.DataSegmentLength)
	h.putLUN(f.LUN)
	h.put32(offITT, f.ITT)
	h.put32(offTTT, f.TTT)
	h.putCmdSN(f.CmdSN, f.ExpStatSN)
	return b
}

// NOPIn is a NOP-In (§11.19): the answer to a ping, or a ping of the target. A ping
// (ITT = ReservedTag) carries the next StatSN without using it up (§11.19.2).
type NOPIn struct{ Header }

// ParseNOPIn returns b, which it aliases, as a NOP-In.
func ParseNOPIn(b []byte) (NOPIn, error) {
	h, err := parse(b, OpNOPIn)
	return NOPIn{h}, err
}

// Fields returns all fields of the PDU.
func (p NOPIn) Fields() NOPInFields {
	return NOPInFields{
		DataSegmentLength: p.DataSegmentLen(), LUN: p.LUN(), ITT: p.ITT(), TTT: p.TTT(), Sequence: p.Sequence(),
	}
}

// NOPInFields encodes a NOP-In.
type NOPInFields struct {
	DataSegmentLength int // bytes
	LUN               uint64
	ITT               uint32
	TTT               uint32
	Sequence
}

// AppendTo appends the header of BHSLen bytes to b.
func (f *NOPInFields) AppendTo(b []byte) []byte {
	b, h := appendHeader(b, OpNOPIn, false, FlagFinal, f.DataSegmentLength)
	h.putLUN(f.LUN)
	h.put32(offITT, f.ITT)
	h.put32(offTTT, f.TTT)
	h.putSequence(f.Sequence)
	return b
}
