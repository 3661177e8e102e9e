package replica

// What no member can read a copy outside S cannot get. It goes without, so that it gets in sync at all:
//
//	primary   Load of a granule fails ──► piece by piece ──► no member can read a piece ──► KindLost in its place ──► KindClean
//	copy      applies KindLost ──► its sectors are missing, durably with the mark ──► in sync
//	          reads, hashes and lends of what is missing fail, as if its disk refused ──► another member, or an error
//	          applies a write there ──► not missing any more
//
// A copy that is brought level again suspects what it misses, so that it is tried once more.

// missing are the sectors that this copy does not have. What its disk has there is older, and is never shown.
type missing struct {
	sectors Bits   // without what the records behind folded have changed
	folded  uint64 // the newest record that sectors know of
	lostAt  uint64 // the newest KindLost of this copy
	block   int64  // what hosts read and write is a multiple of it; 0: of Config.Unit
}

// Blocks says that hosts read and write blocks of so many bytes, so a copy goes without no more than those that nobody can read. Without it that
// is a Unit.
func (c *Core) Blocks(bytes int64) { c.block = bytes }

// sector is the smallest range that a record changes.
const sector = 512

// knowsLost is a bit of a stream's number. Whoever has given that number takes KindLost.
const knowsLost = 1 << 63

// misses says whether a part of a range, of which the disk has all records, is missing.
func (c *Core) misses(off, n int64) bool {
	var in Bits
	end := int((off + n) / sector)
	for i := c.sectors.next(int(off / sector)); i >= 0 && i < end; i = c.sectors.next(i + 1) {
		in.Set(i)
	}
	if in == nil && c.lostAt <= c.folded { // the records only have less missing
		return false
	}
	c.looks += uint64(len(c.entries))
	for i := range c.entries {
		if e := &c.entries[i]; e.state == stateApplied && e.overlaps(off, n) {
			c.foldInto(&in, &e.Record)
		}
	}
	i := in.next(int(off / sector))
	return i >= 0 && i < end
}

// foldInto has a set of missing sectors be what it is behind a record. It reports whether it is another one.
func (c *Core) foldInto(b *Bits, r *Record) (changed bool) {
	first, end := int(r.Off/sector), int((r.Off+r.Len)/sector)
	switch {
	case !r.changes(c.cfg.Self):
		return false
	case r.Kind == KindLost:
		for i := first; i < end; i++ {
			b.Set(i)
		}
		return true
	}
	for i := b.next(first); i >= 0 && i < end; i = b.next(i + 1) {
		b.Clear(i)
		changed = true
	}
	return changed
}

// fold has sectors know of the records up to one, which the disk has durably. It reports whether they have changed.
func (c *Core) fold(to uint64) (changed bool) {
	if len(c.sectors) > 0 || c.lostAt > c.folded {
		for seq := max(c.folded, c.base) + 1; seq <= to; seq++ {
			changed = c.foldInto(&c.sectors, &c.entry(seq).Record) || changed
		}
	}
	c.folded = max(c.folded, to)
	if changed && c.sectors.Empty() {
		c.sectors = nil
	}
	return changed
}

// Misses says whether this copy lacks a part of a range, as far as its disk has come: nobody could give it.
func (c *Core) Misses(off, n int64) bool { return c.misses(off, n) }

// Missing returns how many bytes that are, but for the newest records.
func (c *Core) Missing() int64 { return SectorBytes(c.sectors) }

// SectorBytes is how many bytes a Saved.Missing has.
func SectorBytes(b Bits) int64 { return int64(b.Len()) * sector }

// suspectMissing has this copy, which is outside S, get what it misses if somebody can read it by now.
func (c *Core) suspectMissing() {
	for i := range c.sectors.All() {
		if off := int64(i) * sector; off < c.end(off) {
			c.suspects.Set(c.granule(off))
		}
	}
}

// sift is a granule that this primary cannot read as a whole: it is copied in pieces.
type sift struct {
	granule      int
	off, n, done int64
	busy         bool // a job has the piece, or it is being repaired
	mending      bool
	mended       bool  // the piece was written anew, and this disk does not keep it
	hopeless     bool  // nobody can read it
	tried        Nodes // who could not
	fine         int64 // up to there it goes by blocks: the piece cannot be read as a whole, and one of its blocks was perhaps written since it broke
}

// lossLen is how many bytes a copy goes without at least.
func (c *Core) lossLen() int64 {
	if c.block > 0 {
		return c.block
	}
	return c.cfg.Unit
}

// maxLosses bounds, in Units, what a copy goes without, and so what it has to remember. A disk of which more cannot be read is no source.
const maxLosses = 4096

// beginSift takes a granule of a copy on, if no other one is under way.
func (c *Core) beginSift(p *peer, granule int, off, n int64) {
	if p.sift != nil {
		return
	}
	p.todo.Clear(granule)
	p.copying++
	p.sift = &sift{granule: granule, off: off, n: n}
}

// siftOn begins with the next piece.
func (c *Core) siftOn(id ID, p *peer) {
	s := p.sift
	if s == nil || s.busy || c.now < c.copyAgain || !c.hasRoomForJob() {
		return
	}
	off, n := s.off+s.done, min(c.cfg.Unit, s.n-s.done)
	if s.done < s.fine {
		n = min(n, c.block)
	}
	if has := c.end(off) - off; has > 0 { // what is behind nobody else reads
		n = min(n, has)
	}
	if !c.mayMove() {
		c.pace.holds = true
		return
	}
	if c.isLocked(off, n) {
		return
	}
	addr, ok := c.alloc(c.spare, n)
	if !ok {
		return
	}
	c.moves(n)
	s.busy = true
	c.locks = append(c.locks, span{off, n})
	c.jobs = append(c.jobs, &job{to: id, stream: p.stream, granule: s.granule, off: off, n: n, addr: addr, memory: true, locked: true, sift: s})
}

// next goes to the next piece. It reports whether that was the last one.
func (s *sift) next(n int64) (over bool) {
	s.done += n
	s.busy = false
	s.begin()
	return s.done == s.n
}

// begin forgets what has become of the piece before.
func (s *sift) begin() { s.mended, s.hopeless, s.tried = false, false, 0 }

// sifted: the newest record has the next bytes of a granule.
func (c *Core) sifted(s *sift, p *peer, n int64) {
	p.copied = c.log.last()
	if s.next(n) {
		p.hard.Clear(s.granule)
		p.sift = nil
		c.copiedGranule(s.granule, p)
	}
}

// cannotRead: this primary's disk has refused to read the piece of a job. Another copy may have it: then it is written anew here, and read once
// more. If this disk does not keep it the copy gets it from there. If no other one has it the copy goes without, unless a host has written it since the
// stream began: then that was the only one that had older bytes. It reports whether that has ended the job.
func (c *Core) cannotRead(j *job, p *peer) (over bool) {
	s := j.sift
	from, waits := c.healthy(s.tried, j.off, j.n) // another one may have come meanwhile
	switch {
	case !s.hopeless || from != c.cfg.Self || waits:
		s.mending = true
		m := &mending{off: j.off, n: j.n, tried: s.tried, until: c.awake() + c.cfg.SlowCopy}
		if s.mended {
			m.copy = &j.to
		}
		m.then = func(ok bool) {
			s.mending, s.busy, s.mended, s.hopeless, s.tried = false, false, s.mended || ok, !ok, m.tried
			if ok && m.copy != nil && p.sift == s {
				c.sifted(s, p, j.n)
			}
		}
		c.mend(m)
		return false
	case c.block > 0 && c.block < j.n:
		s.fine = s.done + j.n
		s.begin()
		return false
	case c.hasGot(p, j.off, j.n):
		c.copiedJob(j, p)
		c.dropJob(j)
		return true
	case p.losses+j.n > maxLosses*c.cfg.Unit, !c.areNew(), !c.hasRoom():
		s.begin()
		c.copyAgain = c.now + retryAfter
		return false
	}
	p.losses += j.n
	c.append(Record{Term: c.view.Term, Seq: c.log.last() + 1, Kind: KindLost, Copy: j.to, Off: j.off, Len: j.n})
	c.out = append(c.out, Lost{To: j.to, Off: j.off, Len: j.n})
	c.copiedJob(j, p)
	c.dropJob(j)
	return true
}

// areNew says whether all who get records take KindLost.
func (c *Core) areNew() bool {
	for id := range c.cfg.Copies.All() {
		if s := c.peer[id].stream; s != 0 && s&knowsLost == 0 {
			return false
		}
	}
	return true
}
