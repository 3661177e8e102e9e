package scsi

// synchronizeCache makes everything durable, which includes what was asked for (SBC-3
// §5.22). IMMED only allows an early answer, it does not ask for one.
func (t *Task) synchronizeCache() Next {
	lba, blocks := t.blockRange()
	if !t.setRange(lba, blocks, noLimit) {
		return Done
	}
	return t.flush()
}

func (t *Task) flush() Next {
	return t.r.Flush(transferred)
}

// prefetch does nothing: caches belong to the store. GOOD says that the blocks may not be in
// the cache (SBC-3 §5.9).
func (t *Task) prefetch() Next {
	lba, blocks := t.blockRange()
	if !t.setRange(lba, blocks, noLimit) {
		return Done
	}
	return t.good()
}
