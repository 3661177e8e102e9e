package scsi

// blocks is the capacity in blocks. It may change between two calls.
func (lu *LogicalUnit) blocks() uint64 { return lu.capacity.Load() }

// Capacity is the number of blocks and the size of each in bytes.
func (lu *LogicalUnit) Capacity() (blocks uint64, blockSize int) {
	return lu.blocks(), int(lu.blockSize)
}

// Serial returns the unit serial number.
func (lu *LogicalUnit) Serial() string { return lu.serial }

// SizeChanged is for the volume: it tells every nexus with unit attention 2A/09 (CAPACITY DATA HAS
// CHANGED) if the capacity is another one.
func (lu *LogicalUnit) SizeChanged() {
	for {
		size := lu.v.Size()
		if blocks := uint64(size) >> lu.blockShift; blocks != 0 && lu.capacity.Swap(blocks) != blocks {
			lu.attention(uaCapacityChanged, nil)
		}
		if lu.v.Size() == size { // else another call may have been faster with the size of later
			return
		}
	}
}

// Idle reports whether no task is in the logical unit.
func (lu *LogicalUnit) Idle() bool {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	_, all := lu.tasks()
	return all == 0
}
