package replica

import (
	"time"
)

// disk is what this node has under way on its own disk.
type disk struct {
	works    map[uint64]work
	nextWork uint64
	writing  int // Apply works
	loading  int // Load works: they write into the memory, perhaps on behalf of a reign that is over
	applied  uint64
	durable  uint64
	marked   uint64 // in the metadata
	syncTo   uint64 // what has been asked for
	syncing  bool
	synced   uint64 // the disk has it durable, the mark not yet
	saving   bool
	refused  bool          // the disk has refused a write
	again    time.Duration // when it is tried again

	set     Bits     // regions that are set, durably
	want    Bits     // regions that have to be
	touched []uint64 // by region: the newest record that touches it
	saved   time.Duration
}

// work is an action that will be Done.
type work struct {
	kind workKind
	seq  uint64 // of an Apply; up to which a Sync goes
	op   *op
	job  *job
	save Save
}

type workKind uint8

const (
	workApply workKind = iota
	workRead
	workCompare
	workLoad
	workSync
	workSave
)

func (c *Core) begin(w work) uint64 {
	c.nextWork++
	c.works[c.nextWork] = w
	return c.nextWork
}

// retryAfter is how long a disk that refuses is left alone.
const retryAfter = 200 * time.Millisecond

// apply starts the records up to limit that wait for no earlier one.
func (c *Core) apply(limit uint64) {
	if c.refused && c.now < c.again {
		return
	}
	c.refused = false
	for seq := c.disk.applied + 1; seq <= min(limit, c.log.last()); seq++ {
		e := c.entry(seq)
		if e.state != stateHeld || !c.regionsSet(e) || c.waits(e) {
			continue
		}
		e.state = stateWriting
		c.writing++
		c.out = append(c.out, Apply{ID: c.begin(work{kind: workApply, seq: seq}), Rec: e.Record})
	}
}

// waits says whether an earlier record that e overlaps is not applied.
func (c *Core) waits(e *entry) bool {
	for seq := c.disk.applied + 1; seq < e.Seq; seq++ {
		if f := c.entry(seq); f.state != stateApplied && f.changes(c.cfg.Self) && f.overlaps(e.Off, e.Len) {
			return true
		}
	}
	return false
}

// unapplied says whether the range has records that the disk does not have yet.
func (c *Core) unapplied(off, n int64) bool {
	for seq := c.disk.applied + 1; seq <= c.log.last(); seq++ {
		if f := c.entry(seq); f.state != stateApplied && f.overlaps(off, n) {
			return true
		}
	}
	return false
}

func (c *Core) done(e Done) {
	w, ok := c.works[e.ID]
	if !ok {
		return
	}
	delete(c.works, e.ID)
	switch w.kind {
	case workApply:
		c.writing--
		if f := c.entry(w.seq); f != nil && f.state == stateWriting {
			f.state = stateApplied
			if e.Failed {
				f.state, c.refused, c.again = stateHeld, true, c.now+retryAfter
			}
		}
		for f := c.entry(c.disk.applied + 1); f != nil && f.state == stateApplied; f = c.entry(c.disk.applied + 1) {
			c.disk.applied++
		}
	case workSync:
		c.syncing = false
		if e.Failed {
			c.refused, c.again = true, c.now+retryAfter
		} else {
			c.synced = max(c.synced, w.seq)
		}
	case workSave:
		c.saveDone(&w.save)
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

// sync makes durable what was asked for.
func (c *Core) sync() {
	for f := c.entry(c.disk.applied + 1); f != nil && f.state == stateApplied; f = c.entry(c.disk.applied + 1) {
		c.disk.applied++ // records that do not change this disk
	}
	if c.syncing || c.refused && c.now < c.again || c.syncTo <= c.synced || c.syncTo > c.disk.applied {
		return
	}
	c.syncing = true
	c.out = append(c.out, Sync{ID: c.begin(work{kind: workSync, seq: c.disk.applied})})
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
	if c.now >= c.saved+c.cfg.SaveEvery {
		s.Bitmaps, s.Clear = c.cleanRegions()
	}
	if len(s.Set) == 0 && s.Bitmaps == nil && s.Mark <= c.marked {
		return
	}
	c.saving = true
	c.want = nil
	for _, i := range s.Clear {
		c.set.Clear(i)
	}
	s.ID = c.begin(work{kind: workSave})
	w := c.works[s.ID]
	w.save = s
	c.works[s.ID] = w
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
}

// resetLog begins the log anew behind seq. Nothing is on its way to the disk.
func (c *Core) resetLog(seq uint64) {
	c.base, c.entries = seq, nil
	c.disk.applied, c.durable, c.synced, c.marked, c.syncTo, c.trim = seq, 0, 0, 0, 0, 0
	c.results = nil
}

// hasRefused says whether the disk refuses writes.
func (c *Core) hasRefused() bool { return c.refused }
