package scsi

// Values of BYTCHK in byte 1 of VERIFY and WRITE AND VERIFY (SBC-3 §5.38).
const (
	maskBYTCHK    = 0x06
	bytchkMedium  = 0x00 // the medium is read, nothing is compared
	bytchkCompare = 0x02 // it is compared with the data-out
)

// ---- VERIFY ----

func (t *Task) verify() Next {
	lba, blocks := t.blockRange()
	compare, ok := t.verifyFlags()
	if !ok {
		return t.check(invalidField(1))
	}
	if !t.setRange(lba, blocks, t.maxTransfer()) {
		return Done
	}
	if compare {
		if s, ok := t.takesAll(); !ok {
			return t.check(s)
		}
	}
	return t.verifyRange(compare)
}

// verifyRange verifies the range of the command.
func (t *Task) verifyRange(compare bool) Next {
	if t.n == 0 {
		return t.good()
	}
	return t.r.Verify(t.off, t.n, compare, transferred)
}

// takesAll is for a command that needs all of its data-out, as many bytes as its range has.
func (t *Task) takesAll() (Sense, bool) {
	t.Transfer, t.TransferOut = uint64(t.n), true
	if int64(t.DataOutLen) < t.n {
		return senseInvalidIU, false
	}
	return Sense{}, true
}

// verifyFlags looks at byte 1. A BYTCHK that compares with one block only is not supported.
func (t *Task) verifyFlags() (compare, ok bool) {
	check := t.CDB[1] & maskBYTCHK
	compare = check == bytchkCompare
	return compare, t.CDB[1]&protectAll == 0 && (check == bytchkMedium || compare)
}

// ---- WRITE AND VERIFY ----

func (t *Task) writeAndVerify() Next {
	lba, blocks := t.blockRange()
	compare, ok := t.verifyFlags()
	if !ok {
		return t.check(invalidField(1))
	}
	if !t.setWriteRange(lba, blocks) {
		return Done
	}
	if t.n == 0 {
		return t.good()
	}
	return t.r.WriteAndVerify(t.off, t.n, compare, transferred)
}

// miscompare says at which byte of the data-out the medium differs.
func miscompare(off int64) Sense {
	return Sense{Key: keyMiscompare, Code: 0x1d00, Info: uint64(off), InfoValid: true}
}
