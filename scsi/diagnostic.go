package scsi

import "encoding/binary"

// sendDiagnostic is SEND DIAGNOSTIC, SPC-4 §6.42, which SBC-3 makes mandatory: the default self-test,
// which reads the first block of the medium. There are no diagnostic pages, and no self-tests that
// are told apart by a code. In the standby state, where the medium may not be read, the self-test does without (SPC-4 §5.15.2.4.4).
func (t *Task) sendDiagnostic() Next {
	const selfTestCode, selfTest = 0xe0, 0x04
	switch {
	case t.CDB[1]&selfTestCode != 0:
		return t.check(invalidField(1))
	case binary.BigEndian.Uint16(t.CDB[3:]) != 0:
		return t.check(invalidField(3))
	case t.CDB[1]&selfTest == 0, t.itl.denied.Load()&denyStandby != 0:
		return t.good()
	}
	if !t.setRange(0, 1, t.maxTransfer()) {
		return Done
	}
	return t.verifyRange(false)
}
