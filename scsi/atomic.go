package scsi

// ---- COMPARE AND WRITE ----

// compareAndWrite is SBC-3 §5.2. The data-out is what must be there, then what replaces it.
func (t *Task) compareAndWrite() Next {
	lba, blocks := t.blockRange()
	if !t.flags() {
		return t.check(invalidField(1))
	}
	if !t.setRange(lba, blocks, t.maxTransfer()) {
		return Done
	}
	if int64(blocks) > t.maxCompareBlocks() {
		return t.check(invalidField(13))
	}
	if int64(t.DataOutLen) != 2*t.n {
		// Sent by somebody who means another number of blocks.
		t.Transfer, t.TransferOut = uint64(2*t.n), true
		return t.check(invalidField(13))
	}
	t.Transfer, t.TransferOut = uint64(2*t.n), true
	if t.n == 0 {
		return t.good()
	}
	return t.r.CompareAndWrite(t.off, t.n, t.fua, t.Nexus.initiator.Name, transferred)
}

// ---- ORWRITE ----

// orWrite is SBC-3 §5.8.
func (t *Task) orWrite() Next {
	lba, blocks := t.blockRange()
	if !t.flags() {
		return t.check(invalidField(1))
	}
	if !t.setRange(lba, blocks, t.maxTransfer()) {
		return Done
	}
	if s, ok := t.takesAll(); !ok {
		return t.check(s)
	} else if t.n == 0 {
		return t.good()
	}
	return t.r.OrWrite(t.off, t.n, t.fua, transferred)
}

// ---- WRITE ATOMIC ----

func (lu *LogicalUnit) atomicWrites() bool { return lu.v.Atomic() }

// maxAtomic is how many bytes WRITE ATOMIC can write.
func (t *Task) maxAtomic() int64 { return t.lu.v.MaxAtomic(t.maxTransfer()) }

// writeAtomic is SBC-4 §5.48: other commands see all of the blocks changed, or none.
func (t *Task) writeAtomic() Next {
	lba, blocks := t.blockRange()
	if !t.flags() {
		return t.check(invalidField(1))
	}
	if blocks > uint64(t.maxAtomic())>>t.lu.blockShift {
		return t.check(invalidField(12))
	}
	if !t.setRange(lba, blocks, t.maxAtomic()) {
		return Done
	}
	if t.CDB[10]|t.CDB[11] != 0 { // ATOMIC BOUNDARY: none is supported
		return t.check(invalidField(10))
	}
	if s, ok := t.takesAll(); !ok {
		return t.check(s)
	} else if t.n == 0 {
		return t.good()
	}
	return t.r.WriteAtomic(t.off, t.n, t.fua, transferred)
}
