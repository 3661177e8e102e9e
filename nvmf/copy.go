package nvmf

import (
	"slices"

	"oneshot/nvme"
	"oneshot/volume"
)

// Limits of Copy: of a range, of all together, and how many ranges there are at most. Others get their turn between pieces, so
// they bound only how long a host waits.
const (
	maxCopyRange  = 4 << 20 // bytes
	maxCopyBytes  = 16 * maxCopyRange
	maxCopyRanges = 16
	maxCopyList   = 4 << 10 // bytes of data that a host may send: some send a page, whatever is in it
)

// copying is a Copy under way: ranges, in their order, to one place.
type copying struct {
	ranges []volume.Range // sources, bytes of the volume
	at     int            // the current one
	done   int64          // bytes of it
	term   uint64         // in which all of it takes place
	to     int64          // where it goes
}

// copy is NVM 1.0 §3.2.2, with descriptors of format 0.
func (t *Task) copy() volume.Next {
	const format, tagChecks = 0xf << 8, 0xf << 12
	d := t.SQE.DWord(12)
	n := int64(d&0xff) + 1
	switch {
	case d&(format|tagChecks|prInfo) != 0:
		return t.refuse(nvme.InvalidField)
	case n > maxCopyRanges:
		return t.refuse(nvme.CommandSizeLimit)
	case int64(t.Len) < n*nvme.CopyRangeLen || t.Len > maxCopyList:
		return t.refuse(nvme.DataSGLLength)
	}
	t.n, t.fua = n*nvme.CopyRangeLen, d&bitFUA != 0
	return t.pullOwn(make([]byte, t.n), (*Task).copyRanges)
}

// copyRanges has the list of sources. Nothing is copied if one of them is bad.
func (t *Task) copyRanges() volume.Next {
	n, c := t.path.ns, &copying{term: t.r.Term()}
	blocks, sum, largest := n.blocks.Load(), uint64(0), int64(0)
	for list := t.data[0]; len(list) > 0; list = list[nvme.CopyRangeLen:] {
		lba, count := nvme.ParseCopyRange(list)
		t.CQE.DW0 = uint32(len(c.ranges))
		sum += count
		switch {
		case count<<n.blockShift > maxCopyRange, sum<<n.blockShift > maxCopyBytes:
			return t.refuse(nvme.CommandSizeLimit)
		case lba >= blocks || count > blocks-lba:
			return t.refuse(nvme.LBAOutOfRange)
		}
		r := volume.Range{Off: int64(lba) << n.blockShift, N: int64(count) << n.blockShift}
		c.ranges, largest = append(c.ranges, r), max(largest, r.N)
	}
	t.CQE.DW0 = 0
	to := t.SQE.QWord(10)
	if to >= blocks || sum > blocks-to {
		return t.refuse(nvme.LBAOutOfRange)
	}
	c.to = int64(to) << n.blockShift
	t.copying = c
	t.InCapsule = false // the data have been looked at: for memory it waits as others do
	n.v.Touch(c.to, int64(sum)<<n.blockShift)
	return t.r.CopyMemory(largest, t.before((*Task).copyNext))
}

// copyNext begins the next piece.
func (t *Task) copyNext() volume.Next {
	c := t.copying
	if c.done == c.ranges[c.at].N {
		c.to += c.done
		c.at, c.done = c.at+1, 0
		if c.at == len(c.ranges) {
			return t.moved()
		}
	}
	t.n = min(c.ranges[c.at].N-c.done, int64(t.r.Leased()))
	t.off = c.ranges[c.at].Off + c.piece(t.n)
	return t.r.CopyRead(t.path.ns.v, c.term, t.off, t.n, t.before((*Task).copyHave))
}

// piece is the offset of the next piece of n bytes in the current range, from its end where its beginning would overwrite what is still to be
// read.
func (c *copying) piece(n int64) int64 {
	if s := c.ranges[c.at]; c.to > s.Off && c.to-s.Off < s.N {
		return s.N - c.done - n
	}
	return c.done
}

func (t *Task) copyHave() volume.Next {
	c := t.copying
	if t.r.Err != nil {
		return t.copyFailed()
	}
	t.off = c.to + c.piece(t.n)
	return t.r.CopyWrite(t.path.ns.v, c.term, t.off, t.n, false, t.before((*Task).copyWritten))
}

func (t *Task) copyWritten() volume.Next {
	if t.r.Err != nil {
		return t.copyFailed()
	}
	t.copying.done += t.n
	return t.r.Yield(t.before((*Task).copyNext))
}

// copyFailed ends the command, and says which range is the first that was not copied.
func (t *Task) copyFailed() volume.Next {
	t.CQE.DW0 = uint32(t.copying.at)
	if moved(t.r.Err) && t.copying.overlaps() {
		return t.end(nvme.InternalError | nvme.DNR) // done again it would read what it has written
	}
	return t.storeFailed()
}

// overlaps reports whether the copy writes what it reads.
func (c *copying) overlaps() bool {
	from, to := c.to, c.to // of the destination
	for i, r := range c.ranges {
		if i < c.at {
			from -= r.N
		} else {
			to += r.N
		}
	}
	return slices.ContainsFunc(c.ranges, func(r volume.Range) bool { return r.Off < to && from < r.Off+r.N })
}
