package replica

import (
	"math"
	"slices"
	"time"
)

// promote makes this node the primary of its view.
func (c *Core) promote() {
	c.role = Primary
	c.memory = true
	c.proposed, c.sealing = nil, false
	c.promised = 0
	if c.stream != 0 {
		c.cut(c.source)
	}
	c.took, c.flushAt, c.commit, c.firm = c.now, c.now, c.log.last(), 0
	c.beats, c.beatAt, c.wants = nil, -c.cfg.Heartbeat, 0
	// What the members have is known from their promises. After an orderly switch it is what the primary before told:
	// only this node has all for sure, until others say so.
	freed := c.freed
	if !c.view.Planned {
		freed = c.disk.applied
	}
	if c.view.Planned && c.isExcused() { // the disk of the others is bad, and they have that time to say so
		c.handAgain = c.now + handAgainAfter
	}
	c.flushed = max(c.flushed, min(c.syncTo, c.log.last()), c.durable) // a primary that has handed over may have answered for any of it
	for id := range c.cfg.Copies.Without(c.cfg.Self).All() {
		p := &c.peer[id]
		*p = peer{up: p.up, hello: p.hello, heard: c.now, proven: -c.cfg.Lease}
		if !c.view.InSync.Has(id) {
			continue
		}
		p.applied, p.durable, p.received = c.freed, c.trim, max(c.freed, c.trim)
		if !c.view.Planned {
			q := &c.cand.promises[id]
			p.applied, p.durable, p.received = q.Applied, q.Durable, c.view.First-1
			freed = min(freed, q.Applied)
		}
	}
	c.cand, c.kept = candidate{}, kept{}
	if c.earlyTo == math.MaxUint64 { // this node is alone: its disk has all that is in doubt, and the others' bitmaps too
		c.earlyTo = c.log.last()
	}
	c.freed = max(freed, c.trim)
	c.host = host{
		heap: newHeap(0, c.forHosts(), c.cfg.Unit), spare: newHeap(c.forHosts(), c.cfg.Heap, c.cfg.Unit), nextJob: c.nextJob, unused: c.unused,
	}
	for i := range c.entries {
		if r := &c.entries[i].Record; r.Seq > c.freed && hasData(r) {
			c.heapOf(r.Addr).claim(r.Addr, r.Len)
		}
	}
}

// forHosts is where the memory for hosts ends, and that for copies and repairs begins.
func (c *Core) forHosts() int64 { return c.cfg.Heap / 4 * 3 }

func (c *Core) heapOf(addr int64) *heap {
	if addr < c.forHosts() {
		return c.heap
	}
	return c.spare
}

// alloc gives memory of a heap. Whose log began anew while it was a copy does not know what memory older records have, and gives none
// until all have applied those: a disk may still write from it.
func (c *Core) alloc(h *heap, n int64) (addr int64, ok bool) {
	if c.freed < c.base {
		return 0, false
	}
	return h.alloc(n)
}

func (c *Core) release(addr, n int64) { c.heapOf(addr).release(addr, n) }

// hasData says whether a record has memory of the heap.
func hasData(r *Record) bool { return r.Kind == KindWrite || r.Kind == KindResync }

// demote: another node is the primary, or this one in another term.
func (c *Core) demote() {
	c.endSwitch(Moved)
	c.refuseAll()
	c.proposed, c.sealing, c.kept = nil, false, kept{}
	for id := range c.cfg.Copies.All() {
		p := &c.peer[id]
		*p = peer{up: p.up, heard: p.heard}
	}
}

// reshaped: S has changed, and this node is still the primary.
func (c *Core) reshaped(old View) {
	c.proposed, c.sealing = nil, false
	c.oddLeave()
	for id := range c.cfg.Copies.Without(c.cfg.Self).All() {
		p := &c.peer[id]
		switch in := c.view.InSync.Has(id); {
		case in:
			c.returns(id)
		case old.InSync.Has(id):
			c.leaves(id)
		}
		switch {
		case !c.view.InSync.Has(id) && !p.outside:
			p.stream = 0
		case c.view.InSync.Has(id) && p.outside:
			p.outside, p.todo, p.clean, p.wrote, p.comparing = false, nil, nil, wrote{}, comparing{}
		}
	}
}

// greet begins the streams of those who have said hello.
func (c *Core) greet() {
	for id := range c.cfg.Copies.Without(c.cfg.Self).All() {
		p := &c.peer[id]
		h := p.hello
		if h == nil || h.Version > c.view.Version {
			continue
		}
		p.hello = nil
		if h.Version < c.view.Version {
			continue // it says hello again when it knows this view
		}
		// A copy of which nobody knows whether it has been taken in goes on with its log, as a member does.
		asMember := c.view.InSync.Has(id) || c.proposed != nil && c.proposed.InSync.Has(id)
		if !asMember && (c.now < p.rests || !c.hasRoomFor(len(c.stores))) {
			p.hello = h
			continue
		}
		p.stream, p.started, p.begun, p.bell, p.sizes = h.Stream, false, false, Bell{}, h.Sizes
		p.copying, p.clean, p.hard, p.sift, p.losses, p.wrote, p.comparing = 0, nil, nil, nil, 0, wrote{}, comparing{}
		if asMember {
			p.lost, p.lacked = !h.Memory, c.bitmaps[id].Clone()
			if p.lost {
				p.stream = 0
				continue
			}
			p.outside, p.started = !c.view.InSync.Has(id), true
			p.sent, p.received, p.applied, p.durable, p.synced = h.Last, h.Last, h.Applied, h.Durable, 0
			p.fits = c.fits(id, h.Sizes, h.Applied)
			continue
		}
		// What it lacks is in the bitmap already: all records while it was outside, and those of which it was not
		// known to have them durable before.
		c.bitmaps[id].Add(h.Suspects)
		if h.Stream&knowsDisk == 0 {
			c.returns(id)
		}
		p.outside, p.lost, p.lacked = true, false, c.lacks[id].Clone()
		p.todo = c.bitmaps[id].Clone()
		p.sent, p.received, p.applied, p.durable, p.synced = c.log.last(), c.log.last(), c.log.last(), 0, 0
		p.fits, p.behind = c.fits(id, h.Sizes, c.log.last()), c.log.last()
		c.fit(p)
		p.copied = c.log.last()
	}
}

// reshape proposes to drop members that do not answer, and to take copies in that have all.
func (c *Core) reshape() {
	if c.proposed != nil {
		c.repropose()
		return
	}
	if c.sealing {
		return
	}
	v := c.view
	for id := range c.view.InSync.Without(c.cfg.Self).All() {
		if c.isBad(id) {
			v.InSync = v.InSync.Without(id)
		}
	}
	for id := range (c.cfg.Copies &^ c.view.InSync).All() {
		p := &c.peer[id]
		if p.stream == 0 {
			continue
		}
		slow := c.holdsUp(p)
		if slow {
			p.rests = c.now + c.cfg.SlowCopy
		}
		switch {
		case slow || p.lost || c.now-p.heard > c.cfg.SlowCopy*2/5: // nobody waits for it
			p.stream = 0
			c.out = append(c.out, Drop{Peer: id})
		case v.InSync == c.view.InSync && c.isLevel(p):
			v.InSync = v.InSync.With(id)
		}
	}
	if v.InSync == c.view.InSync || !c.mayBecome(&v) {
		return
	}
	v.Version, v.Planned = v.Version+1, false
	c.propose(v)
}

// isSilent says whether a node that was heard then has been silent for longer than the most. Where a network is full what it says may be lost, and sent
// again by its machine: as long as that is there it has four leases, which is less than what hosts may have to wait. Nobody counts on what it would have
// said: it gives no lease, and confirms nothing.
func (c *Core) isSilent(id ID, heard, most time.Duration) bool {
	quiet := c.now - heard
	return quiet > most && (quiet > 4*c.cfg.Lease || c.now-c.peer[id].there > most)
}

// Doubted are the nodes that have said nothing for so long that it matters whether their machines are there.
func (c *Core) Doubted() (list Nodes) {
	switch c.role {
	case Primary:
		for id := range c.view.InSync.Without(c.cfg.Self).All() {
			if c.now-c.peer[id].heard > 2*c.cfg.Heartbeat {
				list = list.With(id)
			}
		}
	case Follower:
		if c.view.Primary != c.cfg.Self && c.now-c.lastBeat > 2*c.cfg.Heartbeat {
			list = list.With(c.view.Primary)
		}
	}
	return list
}

// isBad says whether a member is to be dropped. A primary whose own disk is bad waits longer for who is silent: it wants to hand over, and
// alone it would serve nobody until its disk writes again.
func (c *Core) isBad(id ID) bool {
	p := &c.peer[id]
	silent := c.cfg.Lease
	if c.isDiskBad() {
		silent = c.cfg.SlowCopy
	}
	if p.lost || c.isSilent(id, p.heard, silent) {
		return true
	}
	if p.stream == 0 && c.now-c.took <= c.cfg.SlowCopy {
		return false // it has not told this primary what it has
	}
	return c.isLate(p.applied) || !c.hasRoom() && !c.sealing && c.isLate(p.durable)
}

// isLate says whether a disk that has come so far holds the others up. What is not committed does not wait for a disk. Of a record before
// this log nobody here knows since when.
func (c *Core) isLate(at uint64) bool {
	since := c.took
	if at >= c.base {
		e := c.entry(at + 1)
		if e == nil || e.Seq > c.commit {
			return false
		}
		since = e.at
	}
	late := c.now - since
	return late > c.cfg.SlowCopy || late > c.cfg.SlowCopy*2/5 && c.heap.used*2 > c.heap.size
}

// holdsUp says whether hosts wait for memory because the disk of a copy outside S has not applied what this one has, for as long as a member
// may take. If they wait for that copy to be level it may take its time.
func (c *Core) holdsUp(p *peer) bool {
	if len(c.hungry) == 0 || !c.mayWrite() || c.sealing {
		return false
	}
	e := c.entry(p.applied + 1)
	return e != nil && e.Seq <= c.disk.applied && c.now-e.at > c.cfg.SlowCopy*2/5
}

// isLevel says whether a copy outside S has all, durably where it was copied. One that was not heard to have begun its log anew may
// still have that of a former reign, and would take its records for this one's. What is before its log it cannot give to a member that
// lacks it: that has to be committed, so that all members are known to have it.
func (c *Core) isLevel(p *peer) bool {
	return p.begun && c.commit >= p.behind && p.todo.Empty() && p.copying == 0 && p.durable >= p.copied && c.now-p.heard < c.cfg.Lease
}

// mayBecome says whether all of the view's S have what is committed, and what a Flush has promised ([Core.secured]); where
// that is missing it is asked for.
func (c *Core) mayBecome(v *View) bool {
	for id := range v.InSync.All() {
		if c.receivedBy(id) < c.commit {
			return false
		}
	}
	if c.secured(v) < c.flushed {
		c.syncTo = max(c.syncTo, c.flushed)
		return false
	}
	return true
}

// beatOn sends beats: regularly, and as soon as something came that needs proof: the disk reads, or syncs, meanwhile.
func (c *Core) beatOn() {
	urgent := c.wants > c.beatNo && !c.isProven(c.wants)
	if c.now-c.beatAt < c.cfg.Heartbeat && !urgent {
		return
	}
	c.beatAt = c.now
	c.beatNo++
	const kept = 64
	if len(c.beats) == kept {
		c.beats = slices.Delete(c.beats, 0, 1)
	}
	c.beats = append(c.beats, sentBeat{c.beatNo, c.now})
	for id := range c.cfg.Copies.Without(c.cfg.Self).All() {
		c.out = append(c.out, c.made.beats.add(SendBeat{To: id, Beat: Beat{No: c.beatNo, View: c.view}}))
	}
}

// echo takes the answer to a beat.
func (c *Core) echo(from ID, e Echo) {
	c.hearOf(e.View)
	if c.role != Primary || !e.OK || e.View.Term != c.view.Term {
		return
	}
	p := &c.peer[from]
	p.heard = c.now
	for _, b := range c.beats {
		if b.no == e.No {
			p.answered, p.proven = max(p.answered, b.no), max(p.proven, b.at)
		}
	}
}

// isProven says whether no other node was primary at some time since a request came, of which that beat is the first to be
// sent later. As many members as every candidature needs one of have answered the beat, or a later one; or, if clocks
// can be trusted, they cannot have promised yet, going by a clock that was read after the request came.
func (c *Core) isProven(beat uint64) bool { return c.isProvenAt(c.now, beat) }

func (c *Core) isProvenAt(now time.Duration, beat uint64) bool {
	if c.proposed != nil && (c.proposed.Planned || !c.provenIn(c.proposed, now, beat)) {
		return false
	}
	return c.provenIn(&c.view, now, beat)
}

func (c *Core) provenIn(v *View, now time.Duration, beat uint64) bool {
	n := 1
	for id := range v.InSync.Without(c.cfg.Self).All() {
		if p := &c.peer[id]; p.answered >= beat || !c.cfg.Confirm && now-p.proven < c.cfg.Lease {
			n++
		}
	}
	return n >= c.quorum(v)
}

// free gives back the memory of records that all have applied.
func (c *Core) free() {
	to := c.lowest(c.appliedBy)
	for seq := c.freed + 1; seq <= to; seq++ {
		if e := c.entry(seq); e != nil && hasData(&e.Record) {
			c.release(e.Addr, e.Len)
		}
	}
	c.freed = max(c.freed, to)
}

// post sends everybody what he does not have yet.
func (c *Core) post() {
	for id := range c.cfg.Copies.Without(c.cfg.Self).All() {
		p := &c.peer[id]
		if p.stream == 0 {
			continue
		}
		b := Bell{View: c.view, First: p.sent + 1, Trim: c.trim, Freed: c.freed, Sync: max(c.syncTo, c.eager), Synced: p.stream&tellsSynced != 0}
		if p.outside && p.todo.Empty() && p.copying == 0 {
			b.Sync = max(b.Sync, p.copied)
		}
		if !p.started && p.outside {
			b.Start = c.startFor(id)
		}
		var recs []Record
		if p.sent < c.log.last() {
			recs = c.handedOn(p.sent+1, id)
		}
		news := b.Sync > p.bell.Sync || b.View.Version > p.bell.View.Version
		lazy := (b.Trim > p.bell.Trim || b.Freed > p.bell.Freed) && c.beatAt == c.now
		if recs == nil && p.started && !news && !lazy {
			continue
		}
		p.started, p.sent, p.bell = true, c.log.last(), b
		c.out = append(c.out, c.made.posts.add(Post{To: id, Stream: p.stream, Recs: recs, Bell: b}))
	}
}

// startFor tells a copy outside S what a member knows.
func (c *Core) startFor(id ID) *Start {
	s := &Start{Last: c.peer[id].sent}
	s.Results = append(s.Results, c.results...)
	for other := range (c.cfg.Copies &^ c.view.InSync).All() {
		s.Bitmaps[other] = c.bitmaps[other].Clone()
	}
	s.Early.Add(c.early)
	for i := range c.entries {
		if e := &c.entries[i]; e.Seq <= s.Last {
			c.markWritten(&s.Early, &e.Record)
		}
	}
	return s
}
