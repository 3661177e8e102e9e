package scsi

import "encoding/binary"

// Bits of READ DEFECT DATA, the same in command and answer.
const (
	defectPrimary = 0x10
	defectGrown   = 0x08
	defectFormat  = 0x07
)

// readDefectData10 is SBC-3 §5.17. A store has no defects: the lists that are asked for are there
// and empty, in whatever format.
func (t *Task) readDefectData10() Next {
	what := t.CDB[2] & (defectPrimary | defectGrown | defectFormat)
	return t.reply([]byte{0, what, 0, 0}, int(binary.BigEndian.Uint16(t.CDB[7:])))
}

// readDefectData12 is SBC-3 §5.18.
func (t *Task) readDefectData12() Next {
	what := t.CDB[1] & (defectPrimary | defectGrown | defectFormat)
	return t.reply([]byte{0, what, 0, 0, 0, 0, 0, 0}, int(min(binary.BigEndian.Uint32(t.CDB[6:]), 8)))
}
