package pdu

import "oneshot/internal/serial"

// TextRequest is a Text Request (§11.10).
type TextRequest struct{ Header }

// ParseTextRequest returns b, which it aliases, as a Text Request.
func ParseTextRequest(b []byte) (TextRequest, error) {
	h, err := parse(b, OpTextRequest)
	return TextRequest{h}, err
}

// Continue reports the C bit: the text of this PDU goes on in the next.
func (p TextRequest) Continue() bool { return p.flag(FlagContinue) }

// Fields returns all fields of the PDU.
func (p TextRequest) Fields() TextRequestFields {
	return TextRequestFields{
		Immediate: p.Immediate(), Final: p.Final(), Continue: p.Continue(), DataSegmentLength: p.DataSegmentLen(),
		LUN: p.LUN(), ITT: p.ITT(), TTT: p.TTT(), CmdSN: p.CmdSN(), ExpStatSN: p.ExpStatSN(),
	}
}

// TextRequestFields encodes a Text Request.
type TextRequestFields struct {
	Immediate         bool
	Final             bool
	Continue          bool
	DataSegmentLength int // bytes
	LUN               uint64
	ITT               uint32
	TTT               uint32
	CmdSN             serial.SN
	ExpStatSN         serial.SN
}

// AppendTo appends the header of BHSLen bytes to b.
func (f *TextRequestFields) AppendTo(b []byte) []byte {
	flags := bit(f.Final, FlagFinal) | bit(f.Continue, FlagContinue)
	b, h := appendHeader(b, OpTextRequest, f.Immediate, flags, f.DataSegmentLength)
	h.putLUN(f.LUN)
	h.put32(offITT, f.ITT)
	h.put32(offTTT, f.TTT)
	h.putCmdSN(f.CmdSN, f.ExpStatSN)
	return b
}

// TextResponse is a Text Response (§11.11).
type TextResponse struct{ Header }

// ParseTextResponse returns b, which it aliases, as a Text Response.
func ParseTextResponse(b []byte) (TextResponse, error) {
	h, err := parse(b, OpTextResponse)
	return TextResponse{h}, err
}

// Continue reports the C bit: the text of this PDU goes on in the next.
func (p TextResponse) Continue() bool { return p.flag(FlagContinue) }

// Fields returns all fields of the PDU.
func (p TextResponse) Fields() TextResponseFields {
	return TextResponseFields{
		Final: p.Final(), Continue: p.Continue(), DataSegmentLength: p.DataSegmentLen(),
		LUN: p.LUN(), ITT: p.ITT(), TTT: p.TTT(), Sequence: p.Sequence(),
	}
}

// TextResponseFields encodes a Text Response.
type TextResponseFields struct {
	Final             bool
	Continue          bool
	DataSegmentLength int // bytes
	LUN               uint64
	ITT               uint32
	TTT               uint32
	Sequence
}

// AppendTo appends the header of BHSLen bytes to b.
func (f *TextResponseFields) AppendTo(b []byte) []byte {
	flags := bit(f.Final, FlagFinal) | bit(f.Continue, FlagContinue)
	b, h := appendHeader(b, OpTextResponse, false, flags, f.DataSegmentLength)
	h.putLUN(f.LUN)
	h.put32(offITT, f.ITT)
	h.put32(offTTT, f.TTT)
	h.putSequence(f.Sequence)
	return b
}
