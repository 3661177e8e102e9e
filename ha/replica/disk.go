package replica

import (
	"math"
	"time"
)

// disk is what this node has under way on its own disk.
type disk struct {
	works
	writing int // Apply works
	loading int // Load works: they write into the memory, perhaps on behalf of a reign that is over
	applied uint64
	durable uint64
	marked  uint64 // in the metadata
	syncTo  uint64 // what has been asked for
	goal    uint64 // what the next Sync waits for: syncTo may run ahead of the disk for ever
	syncing bool
	synced  uint64 // the disk has it durable, the mark not yet
	saving  bool
	unknown bool          // nothing on the disk counts: this node is no source, and leaves S
	refused bool          // the disk has refused a write
	blocked bool          // a record waits for an earlier one to be applied
	again   time.Duration // when it is tried again

	set          Bits     // regions that are set, durably
	want         Bits     // regions that have to be
	touched      []uint64 // by region: the newest record that touches it
	saved        time.Duration
	savedVersion uint64 // of the view that was saved last
}

// work is an action that will be Done.
type work struct {
	kind workKind
	seq  uint64 // of an Apply; up to which a Sync goes
	op   *op
	job  *job
	lend *Lend
	to   ID // of lend
	save *Save
	lost bool // it reads what this copy does not have: its end is a failure
}

type workKind uint8

const (
	workApply workKind = iota
	workRead
	workCompare
	workLoad
	workLend
	workPull
	workHash
	workSync
	workSave
	workForgotten
)

func (c *Core) begin(w work) uint64 { return c.works.add(w, w.kind != workPull, c.now) }

// IsIdle says whether nothing waits for a record to be applied, and if so, Done of an Apply may be told with the next event. A tick
// is one.
func (c *Core) IsIdle() bool {
	waiting := len(c.hungry) + len(c.ops) + len(c.swaps) + len(c.reads) + len(c.jobs) + len(c.flushes) + len(c.growing)
	return waiting == 0 && c.verify == nil && !c.brings() && !c.sealing && !c.blocked && c.syncTo <= c.synced && (c.role == Primary || c.role == Follower)
}

// isHung says whether the disk has not done a work for too long.
func (c *Core) isHung() bool { return c.works.longest(c.now) > c.cfg.SlowCopy }

// isDiskBad says whether the disk refuses to write, or hangs. One that refuses is tried now and then, and does so still for a moment after that.
func (c *Core) isDiskBad() bool { return c.refused || c.isHung() || c.now-c.again < c.cfg.Lease }

// retryAfter is how long a disk that refuses is left alone.
const retryAfter = 200 * time.Millisecond

// apply starts the records up to limit that wait for no earlier one.
func (c *Core) apply(limit uint64) {
	if c.refused && c.now < c.again {
		return
	}
	c.refused, c.blocked = false, false
	for seq := c.disk.applied + 1; seq <= c.log.last(); seq++ {
		e := c.entry(seq)
		if seq > limit && !c.isThrough(e.Off) {
			continue
		}
		if e.state != stateHeld || e.Kind != KindCheck && !c.regionsSet(e) {
			continue
		}
		if c.waits(e) {
			c.blocked = true
			continue
		}
		e.state, e.begun = stateWriting, true
		if e.Kind == KindLost { // the metadata have it with the mark
			e.state = stateApplied
			continue
		}
		if e.Kind == KindCheck {
			e.begun = !c.view.InSync.Has(c.cfg.Self)
			c.out = append(c.out, Hash{ID: c.begin(work{kind: workHash, seq: seq, lost: c.misses(e.Off, e.Len)}), Off: e.Off, Len: e.Len})
			continue
		}
		c.writing++
		c.out = append(c.out, c.made.applies.add(Apply{ID: c.begin(work{kind: workApply, seq: seq}), Rec: e.Record}))
	}
}

// waits says whether an earlier record that e overlaps is not applied.
func (c *Core) waits(e *entry) bool {
	for seq := c.disk.applied + 1; seq < e.Seq; seq++ {
		if f := c.entry(seq); f.state != stateApplied && f.orders(c.cfg.Self) && f.overlaps(e.Off, e.Len) {
			return true
		}
	}
	return false
}

// unapplied says whether the range has records that the disk of this primary does not have yet, or that a takeover
// could take back from it. Where W disks have to have them, it asks for that: the host that wrote may be gone.
func (c *Core) unapplied(off, n int64) bool {
	if !c.hasUnapplied(off, n) {
		return false
	}
	if c.isThrough(off) {
		c.syncTo = max(c.syncTo, c.newestChange(off, n))
	}
	return true
}

// hasUnapplied is unapplied, and asks for nothing.
func (c *Core) hasUnapplied(off, n int64) bool {
	from := c.disk.applied
	if c.isThrough(off) {
		from = min(from, c.firm)
	}
	for seq := max(from, c.base) + 1; seq <= c.log.last(); seq++ {
		f := c.entry(seq)
		if (f.state == stateApplied && c.isFinal(&f.Record)) || !f.changes(c.cfg.Self) || !f.overlaps(off, n) {
			continue
		}
		return true
	}
	return false
}

// newestChange returns the newest record of the log that changes the range on this copy, 0 if there is none.
func (c *Core) newestChange(off, n int64) uint64 {
	for i := len(c.entries) - 1; i >= 0; i-- {
		if e := &c.entries[i]; e.changes(c.cfg.Self) && e.overlaps(off, n) {
			return e.Seq
		}
	}
	return 0
}

func (c *Core) done(e Done) {
	w, ok := c.works.take(e.ID)
	if !ok {
		return
	}
	e.Failed = e.Failed || w.lost
	switch w.kind {
	case workApply:
		c.writing--
		if f := c.entry(w.seq); f != nil && f.state == stateWriting {
			f.state = stateApplied
			if !e.Failed {
				c.resized(&f.Record)
			} else {
				f.state, c.refused, c.again = stateHeld, true, c.now+retryAfter
			}
		}
	case workHash:
		c.hashDone(w.seq, &e)
	case workLend:
		c.lendDone(&w, &e)
	case workPull:
		c.loading--
		if !w.job.dead {
			c.pulled(w.job, &e)
		}
	case workSync:
		c.syncing = false
		if e.Failed {
			c.refused, c.again = true, c.now+retryAfter
		} else {
			c.synced = max(c.synced, w.seq)
		}
	case workSave:
		c.saveDone(w.save)
	case workRead:
		c.readDone(w.op, e.Failed)
	case workCompare:
		c.compared(w.op, &e)
	case workLoad:
		c.loading--
		if !w.job.dead {
			c.loaded(w.job, &e)
		}
	}
}

// hashDone tells the primary.
func (c *Core) hashDone(seq uint64, e *Done) {
	f := c.entry(seq)
	if f == nil || f.state != stateWriting {
		return
	}
	f.state = stateApplied
	switch {
	case c.role == Primary:
		c.hashed(c.cfg.Self, seq, e.Digest, e.Failed)
	case c.role == Follower && c.fed:
		c.out = append(c.out, Send{To: c.source, Msg: Hashed{Seq: seq, Digest: e.Digest, Failed: e.Failed}})
	}
}

// sync makes durable what was asked for.
func (c *Core) sync() {
	for f := c.entry(c.disk.applied + 1); f != nil && f.state == stateApplied; f = c.entry(c.disk.applied + 1) {
		c.disk.applied++
	}
	if c.syncing || c.refused && c.now < c.again || c.syncTo <= c.synced {
		return
	}
	if reach := c.reach(); c.goal <= c.synced || c.goal > reach {
		c.goal = min(c.syncTo, reach)
	}
	if c.goal <= c.synced || c.goal > c.disk.applied {
		return
	}
	c.syncing = true
	c.out = append(c.out, Sync{ID: c.begin(work{kind: workSync, seq: c.disk.applied})})
}

// reach returns the newest record that the disk gets if nothing else happens. What was asked for may be beyond it: a primary that alone has a record gets no
// further before S is smaller, and that may wait for a sync; a candidate writes no more than somebody has durable, and the end of a log may have been lost.
func (c *Core) reach() uint64 {
	switch c.role {
	case Primary:
		return max(c.commit, c.disk.applied)
	case Candidate:
		return max(min(c.flushed, c.log.last()), c.disk.applied)
	}
	return c.log.last()
}

// regionsSet says whether the regions of a record are set durably, and asks for it.
func (c *Core) regionsSet(e *entry) bool {
	ok := true
	for i := int(e.Off / c.cfg.Region); int64(i)*c.cfg.Region < e.Off+e.Len; i++ {
		c.touch(i, e.Seq)
		if !c.set.Has(i) {
			c.want.Set(i)
			ok = false
		}
	}
	return ok
}

func (c *Core) touch(region int, seq uint64) {
	for len(c.disk.touched) <= region {
		c.disk.touched = append(c.disk.touched, 0)
	}
	c.disk.touched[region] = max(c.disk.touched[region], seq)
}

// forgetDisk: the disk is not the one that the log and the metadata tell of. This copy suspects all of it, durably, and
// has to be brought level like one that is new.
func (c *Core) forgetDisk() {
	c.unknown = true
	for _, s := range c.stores {
		for off := s.Off; off < s.Off+s.Size; off += c.cfg.Region {
			c.want.Set(int(off / c.cfg.Region))
		}
	}
	c.suspects = c.granulesOf(c.want)
	c.early, c.earlyTo = c.suspects.Clone(), math.MaxUint64
}

// save changes the metadata: regions before they are written to, the mark after a sync, bitmaps and regions that
// are not needed any more now and then.
func (c *Core) save() {
	if c.saving {
		return
	}
	s := Save{Mark: c.synced}
	for i := range c.want.All() {
		s.Set = append(s.Set, i)
	}
	// Only a primary's Start tells for sure that the copy is outside: the view that this node knows may be old.
	s.Known = c.unknown && c.memory
	if c.now >= c.saved+c.cfg.SaveEvery || c.savedVersion < c.view.Version || s.Known {
		s.Bitmaps, s.Clear = c.cleanRegions()
		s.View, c.savedVersion = c.view, c.view.Version
	}
	if len(s.Set) == 0 && s.Bitmaps == nil && (s.Mark <= c.marked || c.mayMarkWait()) {
		return
	}
	c.saving, c.markedAt = true, c.now
	if c.fold(c.synced) {
		missing := c.sectors.Clone()
		s.Missing = &missing
	}
	c.want = nil
	for _, i := range s.Clear {
		c.set.Clear(i)
	}
	kept := s // the mark may be taken back, and the action not
	s.ID = c.begin(work{kind: workSave, save: &kept})
	c.out = append(c.out, s)
}

// cleanRegions returns the bitmaps, and the regions that all of S have durable. Only a member of S knows that.
func (c *Core) cleanRegions() (*[16]Bits, []int) {
	c.saved = c.now
	maps := new([16]Bits)
	for id := range c.cfg.Copies.All() {
		maps[id] = c.bitmaps[id].Clone()
	}
	var regions []int
	if c.view.InSync.Has(c.cfg.Self) && c.memory && (c.role == Primary || c.role == Follower && c.fed) {
		for i := range c.set.All() {
			if !c.want.Has(i) && c.disk.touched[i] <= min(c.trim, c.durable) {
				regions = append(regions, i)
			}
		}
	}
	return maps, regions
}

func (c *Core) saveDone(s *Save) {
	c.saving = false
	c.marked = max(c.marked, s.Mark)
	c.durable = max(c.durable, min(s.Mark, c.synced))
	for _, i := range s.Set {
		c.set.Set(i)
	}
	c.unknown = c.unknown && !s.Known
}

// resetLog begins the log anew behind seq. No record is on its way to the disk; a sync or a save of the mark, which may
// have begun since the hello, says nothing of the new log.
func (c *Core) resetLog(seq uint64) {
	for i := range c.places {
		w := &c.places[i].work
		w.seq = 0
		if w.save != nil {
			w.save.Mark = 0
		}
	}
	c.base, c.entries, c.folded, c.lostAt = seq, nil, seq, 0
	c.disk.applied, c.durable, c.synced, c.marked, c.syncTo, c.goal, c.trim = seq, 0, 0, 0, 0, 0, 0
	c.results = nil
	c.freed = 0 // the log may go on from a lower number: others have lost their power
	c.flushed = 0
}
