package pdu

import (
	"fmt"

	"oneshot/internal/serial"
)

// SNACKType is what a SNACK asks to be sent again or acknowledges (§11.16.1).
type SNACKType uint8

// SNACK types.
const (
	SNACKData    SNACKType = 0 // Data-In or R2T PDUs
	SNACKStatus  SNACKType = 1
	SNACKDataACK SNACKType = 2
	SNACKRData   SNACKType = 3
)

var snackNames = [...]string{"Data/R2T SNACK", "Status SNACK", "DataACK", "R-Data SNACK"}

// String returns the name of the type.
func (t SNACKType) String() string {
	if int(t) < len(snackNames) {
		return snackNames[t]
	}
	return fmt.Sprintf("SNACK type %d", uint8(t))
}

const (
	maskSNACKType = 0x0f
	offBegRun     = 40
	offRunLength  = 44
)

// SNACK is a SNACK Request (§11.16). It has no CmdSN. The TTT field of an R-Data SNACK
// is the SNACK Tag.
type SNACK struct{ Header }

// ParseSNACK returns b, which it aliases, as a SNACK Request.
func ParseSNACK(b []byte) (SNACK, error) {
	h, err := parse(b, OpSNACK)
	return SNACK{h}, err
}

// Type returns what is asked for.
func (p SNACK) Type() SNACKType { return SNACKType(p.Flags() & maskSNACKType) }

// BegRun returns the first DataSN, R2TSN or StatSN of the run.
func (p SNACK) BegRun() serial.SN { return p.sn(offBegRun) }

// RunLength returns how many PDUs are missing, 0 for all from BegRun on.
func (p SNACK) RunLength() uint32 { return p.u32(offRunLength) }

// Fields returns all fields of the PDU.
func (p SNACK) Fields() SNACKFields {
	return SNACKFields{
		Type: p.Type(), LUN: p.LUN(), ITT: p.ITT(), TTT: p.TTT(), ExpStatSN: p.ExpStatSN(),
		BegRun: p.BegRun(), RunLength: p.RunLength(),
	}
}

// SNACKFields encodes a SNACK Request.
type SNACKFields struct {
	Type      SNACKType
	LUN       uint64
	ITT       uint32
	TTT       uint32
	ExpStatSN serial.SN
	BegRun    serial.SN
	RunLength uint32
}

// AppendTo appends the header of BHSLen bytes to b.
func (f *SNACKFields) AppendTo(b []byte) []byte {
	b, h := appendHeader(b, OpSNACK, false, FlagFinal|byte(f.Type)&maskSNACKType, 0)
	h.putLUN(f.LUN)
	h.put32(offITT, f.ITT)
	h.put32(offTTT, f.TTT)
	h.put32(offExpSN, uint32(f.ExpStatSN))
	h.put32(offBegRun, uint32(f.BegRun))
	h.put32(offRunLength, f.RunLength)
	return b
}
