package scsi

func (t *Task) synchronizeCache10() Next {
	lba, blocks := t.range10()
	return t.synchronizeCache(lba, blocks)
}

func (t *Task) synchronizeCache16() Next {
	lba, blocks := t.range16()
	return t.synchronizeCache(lba, blocks)
}

// synchronizeCache makes everything durable, which includes what was asked for (SBC-3
// §5.22). IMMED only allows an early answer, it does not ask for one.
func (t *Task) synchronizeCache(lba, blocks uint64) Next {
	if s, ok := t.setRange(lba, blocks, t.lu.info.Size); !ok {
		return t.check(s)
	}
	return t.flush()
}

func (t *Task) flush() Next {
	return t.r.Flush(t.before((*Task).transferred))
}

func (t *Task) prefetch10() Next {
	lba, blocks := t.range10()
	return t.prefetch(lba, blocks)
}

func (t *Task) prefetch16() Next {
	lba, blocks := t.range16()
	return t.prefetch(lba, blocks)
}

// prefetch does nothing: caches belong to the store. GOOD says that the blocks may not be in
// the cache (SBC-3 §5.9).
func (t *Task) prefetch(lba, blocks uint64) Next {
	if s, ok := t.setRange(lba, blocks, t.lu.info.Size); !ok {
		return t.check(s)
	}
	return t.good()
}
