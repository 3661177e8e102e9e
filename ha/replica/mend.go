package replica

import (
	"slices"
	"time"
)

// mending is a read that this primary's disk has refused. Another member reads the range into its memory, at the
// address that the primary has allocated; the primary fetches it, gives it to the request, and writes it back as a record. Nothing is
// remembered of a disk that does not keep it: it refuses again when it is asked again. Then the record can be that of a copy that is brought
// level.
type mending struct {
	op     *op // nil: the range itself is what matters
	off, n int64
	done   int64 // bytes: it goes by granules, for which there is memory
	tried  Nodes
	spared Nodes         // not to be asked, from the beginning
	copy   *ID           // outside S, gets it; nil: this node
	fine   bool          // it goes by pieces: of each, this copy or another one may have what others lack
	blocks int64         // up to there it goes by blocks of hosts
	looked bool          // this node's disk refuses to read the piece
	torn   int           // how often what came was not what the other has read
	until  time.Duration // awake, it waits so long for a copy that has left S and may return
	job    *job
	then   func(ok bool)
}

// maxTorn bounds how often in a row what another copy lends may come in another form than it was read.
const maxTorn = 3

// part returns the range that is next.
func (c *Core) part(m *mending) (off, n int64) {
	most := c.cfg.Granule
	switch {
	case m.done < m.blocks:
		most = c.block
	case m.fine:
		most = c.cfg.Unit
	}
	return m.off + m.done, min(m.n-m.done, most)
}

// smaller is what a range of n bytes is divided into that no copy can read as a whole; 0: it is not.
func (c *Core) smaller(n int64) int64 {
	switch {
	case n > c.cfg.Unit:
		return c.cfg.Unit
	case c.block > 0 && n > c.block:
		return c.block
	}
	return 0
}

// refine has what is next of a range go by smaller pieces. It reports whether there are any.
func (c *Core) refine(m *mending) bool {
	_, n := c.part(m)
	switch c.smaller(n) {
	case 0:
		return false
	case c.block:
		m.blocks = m.done + n
	}
	m.fine, m.looked, m.tried = true, false, m.spared
	return true
}

// mend begins to repair a range. Then is called in the order of events, when the record is in the log, or when no
// member can read the range.
func (c *Core) mend(m *mending) {
	m.spared = m.tried
	c.mends = append(c.mends, m)
}

// mendOn begins what waits for memory, its range or another member.
func (c *Core) mendOn() {
	for _, m := range slices.Clone(c.mends) {
		if m.job != nil || c.sealing {
			continue
		}
		off, n := c.part(m)
		from, waits := c.healthy(m.tried|c.oddIn(off, n), off, n)
		looks := m.fine && !m.looked
		switch {
		case looks:
			from = c.cfg.Self
		case from == c.cfg.Self && !waits && !c.mayReturn(m):
			if m.op == nil || m.tried == m.spared || !c.refine(m) {
				c.endMend(m, false)
				continue
			}
			looks = true
			off, n = c.part(m)
		}
		if (looks || from != c.cfg.Self) && !c.isLockedBut(m) && c.hasRoomForJob() {
			addr, ok := c.alloc(c.spare, n)
			if !ok {
				continue
			}
			m.job = &job{to: c.cfg.Self, from: from, stream: c.peer[from].stream, off: off, n: n, addr: addr, memory: true, mends: m}
			if m.op == nil || m.op.kind != opSwap { // a COMPARE AND WRITE has its range to itself already
				m.job.locked = true
				c.locks = append(c.locks, span{off, n})
			}
			c.jobs = append(c.jobs, m.job)
		}
	}
}

// healthy returns a member that can be asked for a range, or a copy outside S that has it all the same, or this node. Waits: a member
// may come back, or will be dropped. A copy that is proposed is level, and may be a member already.
func (c *Core) healthy(tried Nodes, off, n int64) (from ID, waits bool) {
	members := c.view.InSync
	if c.proposed != nil {
		members |= c.proposed.InSync
	}
	for id := range (members &^ tried).Without(c.cfg.Self).All() {
		if p := &c.peer[id]; p.stream != 0 && !p.lost {
			return id, false
		}
		waits = true
	}
	for id := range (c.cfg.Copies &^ members &^ tried).Without(c.cfg.Self).All() {
		if c.hasKept(id, off, n) {
			return id, false
		}
	}
	return c.cfg.Self, waits
}

// mayReturn says whether a copy outside S was heard lately that lacks nothing of the range that is next. One that was late for a moment is back
// soon, and no reason for an error of the medium.
func (c *Core) mayReturn(m *mending) bool {
	off, n := c.part(m)
	for id := range (c.cfg.Copies &^ c.view.InSync &^ m.tried).Without(c.cfg.Self).All() {
		if c.awake() < m.until && c.now-c.peer[id].heard < c.cfg.SlowCopy && c.mayHave(id, off, n) {
			return true
		}
	}
	return false
}

func (c *Core) isLockedBut(m *mending) bool {
	off, n := c.part(m)
	return c.isLocked(off, n) && (m.op == nil || m.op.kind != opSwap)
}

func (c *Core) endMend(m *mending, ok bool) {
	if i := slices.Index(c.mends, m); i >= 0 {
		c.mends = slices.Delete(c.mends, i, i+1)
	}
	m.then(ok)
}

// pull takes a job on that fetches from another member.
func (c *Core) pull(j *job) {
	p := &c.peer[j.from]
	switch {
	case j.loading: // its memory is being written
	case j.from == c.cfg.Self:
		if !c.unapplied(j.off, j.n) {
			c.readFor(j)
		}
	case p.stream != j.stream:
		c.pullFailed(j)
	case j.asked: // the other reads into the job's memory
	case c.oddIn(j.off, j.n).Has(j.from):
		c.pullFailed(j)
	case c.unapplied(j.off, j.n) || p.applied < c.newestIn(j.off, j.n):
	default:
		j.asked = true
		c.nextJob++
		j.id = c.nextJob
		c.out = append(c.out, Send{To: j.from, Msg: Lend{Stream: j.stream, Job: j.id, Off: j.off, Len: j.n, Addr: j.addr}})
	}
}

// newestIn returns the newest record of the log that overlaps the range, 0 if there is none.
func (c *Core) newestIn(off, n int64) uint64 {
	for i := len(c.entries) - 1; i >= 0; i-- {
		if e := &c.entries[i]; e.overlaps(off, n) {
			return e.Seq
		}
	}
	return 0
}

// looked: this node's disk has read a piece, or refuses to. Then another member is asked.
func (c *Core) looked(j *job, e *Done) {
	m := j.mends
	if m.looked = e.Failed; m.looked {
		c.pullFailed(j)
		return
	}
	c.deliver(j)
	c.dropJob(j)
	c.mended(m, j.n)
}

// deliver gives a request what a job has in its memory: the newest of that range, for which no write has its place in the order since.
func (c *Core) deliver(j *job) {
	if o := j.mends.op; o != nil && !o.dead {
		c.out = append(c.out, Deliver{Req: o.id, Off: j.off, Len: j.n, Addr: j.addr})
	}
}

// mended goes on with what is left of a range.
func (c *Core) mended(m *mending, n int64) {
	m.job, m.done = nil, m.done+n
	if m.fine {
		m.looked, m.tried, m.torn = false, m.spared, 0
	}
	if m.done == m.n {
		c.endMend(m, true)
	}
}

// pullFailed gives a job up. If the connection was lost it begins anew, when there is another or the member has left.
func (c *Core) pullFailed(j *job) {
	j.mends.job = nil
	c.dropJob(j)
}

// lend reads for the primary, into memory that it has allocated.
func (c *Core) lend(from ID, l *Lend) {
	if from != c.source || l.Stream != c.stream {
		return // it learns that there is another stream
	}
	c.loading++
	c.out = append(c.out, Load{ID: c.begin(work{kind: workLend, lend: l, to: from, lost: c.misses(l.Off, l.Len)}), Off: l.Off, Len: l.Len, Addr: l.Addr})
}

func (c *Core) lendDone(w *work, e *Done) {
	c.loading--
	c.out = append(c.out, Send{To: w.to, Msg: Lent{Job: w.lend.Job, Stream: w.lend.Stream, Sum: e.Sum, Failed: e.Failed}})
}

// lent: the data of a job are in the other member's memory.
func (c *Core) lent(from ID, l *Lent) {
	i := slices.IndexFunc(c.jobs, func(j *job) bool { return j.id == l.Job && j.from == from && j.asked && j.stream == l.Stream })
	if c.role != Primary || i < 0 || c.jobs[i].mends == nil || c.jobs[i].loading {
		return
	}
	j := c.jobs[i]
	if l.Failed {
		j.mends.tried = j.mends.tried.With(from)
		c.pullFailed(j)
		return
	}
	j.loading, j.sum = true, l.Sum
	c.loading++
	c.out = append(c.out, Pull{ID: c.begin(work{kind: workPull, job: j}), From: from, Addr: j.addr, Len: j.n})
}

// pulled gives the range its place in the order.
func (c *Core) pulled(j *job, e *Done) {
	same := c.peer[j.from].stream == j.stream
	if same && (e.Failed || e.Sum != j.sum) {
		// Once may be an accident. From a member whose data never arrive whole they would be fetched again and again.
		if j.mends.torn++; j.mends.torn == maxTorn {
			j.mends.torn, j.mends.tried = 0, j.mends.tried.With(j.from)
		}
	}
	switch {
	case e.Failed, e.Sum != j.sum, !same, c.oddIn(j.off, j.n).Has(j.from), !c.hasRoom():
		c.pullFailed(j)
		return
	}
	to := c.cfg.Self
	if j.mends.copy != nil {
		to = *j.mends.copy
	}
	c.append(Record{Term: c.view.Term, Seq: c.log.last() + 1, Kind: KindResync, Copy: to, Off: j.off, Len: j.n, Addr: j.addr, Sum: j.sum})
	c.deliver(j)
	j.memory = false
	c.dropJob(j)
	c.mended(j.mends, j.n)
}
