package replica

// What a copy outside S has as members have it. A copy whose node has lost its memory suspects whole regions ([Hello]), and gets all of them anew.
// But where this primary cannot read, that copy may be the only one that can. So it is asked for what it is known to have:
//
//	it was in S, in this reign or in the one before  ──► left S: lacks are the bits that it has then, and what is written from then on
//	it says hello, its disk is its own               ──► lacked: lacks at that moment; later records come with its stream
//	a range without a bit, or without one of lacked  ──► it lends it, like a member, when it has applied the newest record there
//
// Why a granule outside lacks is as members have it:
//
//   - A copy that is in S in this reign has had no record on its disk that is not in the log of this primary, or before it: it was brought to the
//     end of that log when the reign began, or brought level since, and takes records from nobody else. The records before the log, but for
//     early ones, all of S have durable; so it has them after a power cut, too, and those that it has told to be on its disk. All others get a bit when
//     the copy leaves ([Core.marksFor]), and so do those that follow ([Core.markRecord]) and ranges that a comparison has found odd.
//   - A bit in lacks stays when the granule is copied: KindClean is told when the copy has it, durable or not, and the copy may lose its power then.
//     What it suspects by itself says nothing more: a region is suspect as a whole, for one record.
//   - The primary before this one has left S by this view. Its disk had a record when that was committed, so this primary has it, or all of S had
//     it durable. That holds if this primary was promoted by members that remember, for W members that are in S (else another one may have had the
//     rest), if the record does not go through to disks before it is committed, and if W is not more than two: a candidate brings what one other
//     member has durable to its own disk.
//   - It is not known of other members before this reign. A member has records on its disk that are not committed, which this primary may not have;
//     and which copies a primary that is alone after a power cut of all differs from in what nobody knows. They are asked for what was copied only.
//   - A disk that is not the one of its log (Saved.Unknown) is no source. Its node has no bit knowsDisk in the number of its stream in that whole life,
//     and what was known of it ends with its hello. Whoever is to bring that copy level sees that hello.
//   - No primary of the past writes to a copy between its leaving S and its hello here. It would have to be one that takes the copy for outside S, in
//     just the view that the copy believes. What the copy has in its metadata is no older than the view by which it was brought level the last time;
//     the primary of that one had proposed to take it in before it could know of the end of its own reign, and takes a copy that is
//     proposed, and has lost its memory, for lost.
//
// What a copy knows to miss it does not lend (missing.go).

// kept is what this primary knows of copies that have left S.
type kept struct {
	left  Nodes    // they lack nothing outside lacks
	lacks [16]Bits // by copy that has left: granules
}

// knowsDisk is a bit of a stream's number. Whoever has given that number had a disk of his own in all of this life.
const knowsDisk = 1 << 62

// leaves: a copy is not in S any more, and its bits are those that it leaves with.
func (c *Core) leaves(id ID) {
	c.left = c.left.With(id)
	c.lacks[id] = c.bitmaps[id].Clone()
}

// returns: nothing is known of a copy, or it is a member again.
func (c *Core) returns(id ID) {
	c.left = c.left.Without(id)
	c.lacks[id] = nil
}

// ousts: this node, promoted by members that had all that was committed, takes the place of a primary that leaves S.
func (c *Core) ousts(id ID) {
	if c.cfg.Quorum > 2 {
		return
	}
	c.leaves(id)
	for _, s := range c.stores {
		if s.Through && s.Size > 0 {
			c.mark(&c.lacks[id], s.Off, s.Size)
		}
	}
}

// hasKept says whether a copy outside S has a range as members have it, and lends it.
func (c *Core) hasKept(id ID, off, n int64) bool {
	p := &c.peer[id]
	return p.stream != 0 && p.begun && p.outside && !p.lost && c.mayHave(id, off, n)
}

// mayHave says whether a copy outside S lacks nothing of a range, as far as this primary knows.
func (c *Core) mayHave(id ID, off, n int64) bool {
	lacked := c.lacks[id]
	if p := &c.peer[id]; p.stream != 0 {
		lacked = p.lacked
	}
	for g := c.granule(off); g <= c.granule(off+n-1); g++ {
		if c.bitmaps[id].Has(g) && (!c.left.Has(id) || lacked.Has(g)) {
			return false
		}
	}
	return true
}

// Keeps says whether this primary takes a copy outside S for one that has a range as members have it, but for records of the log. Nobody waits for one
// that was not heard for SlowCopy.
func (c *Core) Keeps(id ID, off, n int64) bool {
	switch p := &c.peer[id]; {
	case c.role != Primary || c.view.InSync.Has(id):
		return false
	case p.stream != 0:
		return c.hasKept(id, off, n)
	}
	has := c.left.Has(id) && c.now-c.peer[id].heard < c.cfg.SlowCopy
	for g := c.granule(off); has && g <= c.granule(off+n-1); g++ {
		has = !c.lacks[id].Has(g)
	}
	return has
}
