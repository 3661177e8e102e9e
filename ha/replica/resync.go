package replica

import (
	"cmp"
	"slices"
)

// job copies a granule to a copy outside S, or a range that was found to differ to a member. It has the range to itself until its record has a number: so an older
// content never follows a newer one.
type job struct {
	to      ID
	stream  uint64
	granule int
	off, n  int64
	addr    int64
	memory  bool // addr is the job's, not a record's
	loading bool
	dead    bool // the node is not the primary any more
	locked  bool // the range is the job's

	fault *fault // of a job for a member
	sift  *sift  // of a job for a piece of a granule

	// of a job that fetches from another member
	mends *mending
	from  ID
	id    uint64
	asked bool
	sum   uint32
}

// cleaning is a granule that was copied with the record of seq, and whose bit is to be cleared.
type cleaning struct {
	granule int
	seq     uint64
}

// copyOn begins jobs, and takes those on that wait.
func (c *Core) copyOn() {
	c.pace.holds = false
	if c.sealing {
		return
	}
	for id := range (c.cfg.Copies &^ c.view.InSync).Without(c.cfg.Self).All() {
		p := &c.peer[id]
		if p.stream == 0 || !p.outside || c.refused {
			continue
		}
		c.comparedOn(id, p)
		for g := p.todo.next(0); g >= 0 && p.copying+p.onTheirWay()+len(p.checks) < c.cfg.Copying; g = p.todo.next(g + 1) {
			c.looks++
			off := int64(g) * c.cfg.Granule
			n := c.granuleFor(p, off)
			if n <= 0 { // nobody has it
				p.todo.Clear(g)
				c.bitmaps[id].Clear(g)
				continue
			}
			if p.hard.Has(g) {
				c.beginSift(p, g, off, n)
				continue
			}
			if p.isUnderWay(off) {
				continue
			}
			if !c.hasRoomForJob() {
				break
			}
			if c.now < c.copyAgain { // all wait, and a large copy lacks millions
				break
			}
			if !c.mayMove() {
				c.pace.holds = true
				break
			}
			if c.isWorthComparing(p, g, n) {
				c.compareFirst(p, off, n)
				continue
			}
			// Memory comes before the lock: writes that wait for the lock have memory already.
			if c.isLocked(off, n) {
				continue
			}
			addr, ok := c.alloc(c.spare, n)
			if !ok {
				break
			}
			if !p.differ.Has(g) { // else it has had its part of the pace
				c.moves(n)
			}
			p.todo.Clear(g)
			p.copying++
			c.locks = append(c.locks, span{off, n})
			c.jobs = append(c.jobs, &job{to: id, stream: p.stream, granule: g, off: off, n: n, addr: addr, memory: true, locked: true})
		}
		c.siftOn(id, p)
		c.clean(id, p)
	}
	for _, j := range slices.Clone(c.jobs) {
		c.load(j)
	}
}

// hasRoomForJob says whether the log takes the record of another job, too. A job that ends because there is no room would begin
// again at once, and read again and again.
func (c *Core) hasRoomForJob() bool { return c.hasRoomFor(len(c.jobs) + 1) }

// load reads the granule of a job, when the disk has the newest.
func (c *Core) load(j *job) {
	switch {
	case j.mends != nil:
		c.pull(j)
	case j.loading:
	case c.peer[j.to].stream != j.stream:
		c.endJob(j)
	case c.unapplied(j.off, j.n):
	default:
		c.readFor(j)
	}
}

// readFor has this node's disk read the range of a job.
func (c *Core) readFor(j *job) {
	j.loading = true
	c.loading++
	behind := min(j.n, max(0, j.off+j.n-c.end(j.off)))
	c.out = append(c.out, Load{ID: c.begin(work{kind: workLoad, job: j, lost: c.misses(j.off, j.n)}), Off: j.off, Len: j.n, Addr: j.addr, Behind: behind})
}

// loaded gives the granule its place in the order.
func (c *Core) loaded(j *job, e *Done) {
	if j.mends != nil {
		c.looked(j, e)
		return
	}
	p := &c.peer[j.to]
	if p.stream != j.stream || e.Failed || !c.hasRoom() {
		switch {
		case !e.Failed:
		case j.fault != nil:
			j.fault.lose(c.cfg.Self)
		case p.stream != j.stream:
		case j.sift != nil:
			if c.cannotRead(j, p) {
				return
			}
		default:
			c.copyAgain = c.now + retryAfter
			p.hard.Set(j.granule)
		}
		c.endJob(j)
		return
	}
	c.append(Record{Term: c.view.Term, Seq: c.log.last() + 1, Kind: KindResync, Copy: j.to, Off: j.off, Len: j.n, Addr: j.addr, Sum: e.Sum})
	j.memory = false // the record's now
	c.copiedJob(j, p)
	c.dropJob(j)
}

// copiedJob: the newest record is that of a job.
func (c *Core) copiedJob(j *job, p *peer) {
	switch {
	case j.fault != nil:
		c.levelled(j.fault, j.to)
		return
	case j.sift != nil:
		c.sifted(j.sift, p, j.n)
		return
	}
	c.copiedGranule(j.granule, p)
}

// copiedGranule: all records of a granule are in the log, the newest is the last.
func (c *Core) copiedGranule(granule int, p *peer) {
	p.copying--
	c.levelGranule(granule, p, c.log.last())
}

// levelGranule: the copy has a granule as this node has it behind the record of seq.
func (c *Core) levelGranule(granule int, p *peer, seq uint64) {
	p.copied = max(p.copied, seq)
	at, _ := slices.BinarySearchFunc(p.clean, seq, func(cl cleaning, seq uint64) int { return cmp.Compare(cl.seq, seq) })
	p.clean = slices.Insert(p.clean, at, cleaning{granule, seq})
	off := int64(granule) * c.cfg.Granule
	p.wrote.forget(c.blocksOf(off, c.granuleFor(p, off)))
}

// endJob gives a job up. If the stream is the same it will be tried again.
func (c *Core) endJob(j *job) {
	if p := &c.peer[j.to]; j.fault != nil {
		j.fault.busy = false
	} else if j.sift != nil {
		j.sift.busy = j.sift.mending
	} else if p.stream == j.stream {
		p.todo.Set(j.granule)
		p.copying--
	}
	c.dropJob(j)
}

func (c *Core) dropJob(j *job) {
	if j.memory {
		c.release(j.addr, j.n)
	}
	if j.locked {
		c.unlock(j.off, j.n)
	}
	i := slices.Index(c.jobs, j)
	c.jobs = slices.Delete(c.jobs, i, i+1)
}

// onTheirWay are the granules that were sent, and that the copy does not have. What tells it that it has them, and to have them durably, is behind
// what was sent before: were that without bounds, a connection over a slow link would end before, and the next one begin with all of them again.
func (p *peer) onTheirWay() (n int) {
	for n < len(p.clean) && p.clean[len(p.clean)-1-n].seq > p.applied {
		n++
	}
	return n
}

// clean clears the bits of granules that the copy has applied, unless a record is on its way to it: for at the place
// in the order where the bit goes the copies are equal.
func (c *Core) clean(id ID, p *peer) {
	applied := 0 // they are in the order of their records
	for applied < len(p.clean) && p.clean[applied].seq <= p.applied {
		applied++
	}
	waiting := p.clean[:0]
	for _, cl := range p.clean[:applied] {
		off := int64(cl.granule) * c.cfg.Granule
		n := c.granuleFor(p, off)
		if !c.hasRoom() || c.isOnItsWay(off, n, p.applied) {
			waiting = append(waiting, cl)
			continue
		}
		c.append(Record{Term: c.view.Term, Seq: c.log.last() + 1, Kind: KindClean, Copy: id, Off: off, Len: n})
	}
	p.clean = append(waiting, p.clean[applied:]...)
}

// isOnItsWay says whether a record behind one writes what is in the range.
func (c *Core) isOnItsWay(off, n int64, behind uint64) bool {
	for seq := behind + 1; seq <= c.log.last(); seq++ {
		if e := c.entry(seq); e.overlaps(off, n) && e.isWritten() {
			return true
		}
	}
	return false
}
