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
	ranges []volume.Range // sources, bytes of the volume; none: they are not known yet
	at     int            // the current one
	done   int64          // bytes of it
	writes bool           // a piece is being written
	term   uint64         // in which all of it takes place
	to     int64          // where it goes
	late   bool           // it has been under way for long
	guard  *volume.Token  // of a late one: for what it is still to write; nil: nothing
}

// copy is NVM 1.0 §3.2.2, with descriptors of format 0.
func (t *Task) copy() volume.Next {
	const format, tagChecks = 0xf << 8, 0xf << 12
	d, ns, to := t.SQE.DWord(12), t.path.ns, t.SQE.QWord(10)
	n := int64(d&0xff) + 1
	switch {
	case d&(format|tagChecks|prInfo) != 0:
		return t.refuse(nvme.InvalidField)
	case n > maxCopyRanges:
		return t.refuse(nvme.CommandSizeLimit)
	case int64(t.Len) < n*nvme.CopyRangeLen || t.Len > maxCopyList:
		return t.refuse(nvme.DataSGLLength)
	case to >= ns.blocks.Load():
		return t.refuse(nvme.LBAOutOfRange)
	}
	t.n, t.fua = n*nvme.CopyRangeLen, d&bitFUA != 0
	t.copying = &copying{term: t.r.Term(), to: int64(to) << ns.blockShift}
	return t.pullOwn(make([]byte, t.n), (*Task).copyRanges)
}

// copyRanges has the list of sources. Nothing is copied if one of them is bad.
func (t *Task) copyRanges() volume.Next {
	n, c := t.path.ns, t.copying
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
	if to := t.SQE.QWord(10); to >= blocks || sum > blocks-to {
		return t.refuse(nvme.LBAOutOfRange)
	}
	t.InCapsule = false // the data have been looked at: for memory it waits as others do
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
	t.off = c.ranges[c.at].Off + c.piece(c.done, t.n)
	return t.r.CopyRead(t.path.ns.v, c.term, t.off, t.n, t.before((*Task).copyHave))
}

// piece is the offset of the next n bytes in the current range when done bytes of it are copied: from its end where its beginning would
// overwrite what is still to be read.
func (c *copying) piece(done, n int64) int64 {
	if s := c.ranges[c.at]; c.to > s.Off && c.to-s.Off < s.N {
		return s.N - done - n
	}
	return done
}

func (t *Task) copyHave() volume.Next {
	c := t.copying
	if t.r.Err != nil {
		return t.copyFailed()
	}
	t.off = c.to + c.piece(c.done, t.n)
	c.writes = true
	if c.late {
		piece := c.guard
		c.guard = c.left(t.path.ns.v, c.done+t.n) // before it is looked at that of the piece
		t.r.Guarded(piece)
	}
	return t.r.CopyWrite(t.path.ns.v, c.term, t.off, t.n, false, t.before((*Task).copyWritten))
}

// copyIsLate has the copy leave alone what it has not come to if others change it from now on (volume.Request.Overdue).
func (t *Task) copyIsLate() {
	c := t.copying
	if c.late {
		return
	}
	done := c.done
	if c.writes {
		if t.r.Parked() { // the piece has not its range yet
			t.r.Guarded(t.path.ns.v.Guard([]volume.Range{{Off: t.off, N: t.n}}))
		}
		done += t.n
	}
	c.late, c.guard = true, c.left(t.path.ns.v, done)
}

// left is a token for what is still to be written when done bytes of the current range are; nil: nothing. Until the ranges are known it stands
// for all that they may be about.
func (c *copying) left(v *volume.Volume, done int64) *volume.Token {
	var list []volume.Range
	switch {
	case len(c.ranges) == 0:
		list = []volume.Range{{Off: c.to, N: maxCopyBytes}}
	case c.at < len(c.ranges):
		n := c.ranges[c.at].N - done
		list = []volume.Range{{Off: c.to + c.piece(done, n), N: n}, {Off: c.to + n + done}}
		for _, r := range c.ranges[c.at+1:] {
			list[1].N += r.N
		}
	}
	list = slices.DeleteFunc(list, func(r volume.Range) bool { return r.N == 0 })
	if len(list) == 0 {
		return nil
	}
	return v.Guard(list)
}

// leaveCopy is the end of the copy.
func (t *Task) leaveCopy() {
	if g := t.copying.guard; g != nil {
		g.Revoke()
	}
	t.copying = nil
}

func (t *Task) copyWritten() volume.Next {
	c := t.copying
	if c.writes = false; t.r.Err != nil {
		return t.copyFailed()
	}
	c.done += t.n
	return t.r.Yield(t.before((*Task).copyNext))
}

// copyFailed ends the command, and says which range is the first that was not copied. A host does not repeat it where it would read what it has
// written.
func (t *Task) copyFailed() volume.Next {
	t.CQE.DW0 = uint32(t.copying.at)
	if !t.copying.overlaps() {
		return t.storeFailed()
	}
	if moved(t.r.Err) { // another path would take it
		return t.refuse(nvme.InternalError)
	}
	t.storeFailed()
	return t.refuse(t.CQE.Status)
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
