package replica

import "time"

const (
	// askEvery is how often what has had no answer is asked again.
	askEvery = 100 * time.Millisecond
	// stuckAfter is how long a promise, or a candidature, may lead to nothing. Then another version voids all
	// promises.
	stuckAfter = time.Second
	// turn is by how much a member waits longer than the one before it until it takes over, amnesiac one without memory.
	turn     = 60 * time.Millisecond
	amnesiac = 200 * time.Millisecond
	// lame is by how much longer one waits whose disk refuses or hangs, before it stands and for promises: it could serve nobody,
	// and if it went alone nobody else could.
	lame = stuckAfter / 2
	// aFew is how many records a member's disk may have that it has not told of.
	aFew = 32
)

// follow does what a follower has to do by itself.
func (c *Core) follow() {
	if c.fed {
		c.apply(c.log.last())
	}
	if !c.cfg.Copies.Has(c.cfg.Self) {
		return
	}
	if c.promised == c.view.Version {
		if c.now-c.since > stuckAfter && c.now-c.bumped > askEvery {
			c.bump()
		}
		return
	}
	if c.isOverdue() {
		c.stand()
		return
	}
	c.greetPrimary()
}

// isOverdue says whether it is time to take over.
func (c *Core) isOverdue() bool {
	if c.isExcused() && !(c.vain && c.now-c.lastBeat > handAgainAfter) {
		return false
	}
	if !c.view.InSync.Has(c.cfg.Self) || c.now < c.asleep || c.loading > 0 || c.unknown {
		return false
	}
	if c.view.Primary == c.cfg.Self && c.memory {
		return true // in a former life: nobody else is
	}
	return c.isSilent(c.view.Primary, c.lastBeat, c.cfg.Grace+c.turn())
}

// turn is by how much this member waits longer than others: they stand one after the other.
func (c *Core) turn() time.Duration {
	var wait time.Duration
	for id := range c.view.InSync.All() {
		if id < c.cfg.Self && id != c.view.Primary {
			wait += turn
		}
	}
	if !c.memory {
		wait += amnesiac
	}
	if c.isDiskBad() {
		wait += lame
	}
	return wait
}

// bump asks for the same view under another version, which voids all promises for this one.
func (c *Core) bump() {
	v := c.view
	v.Version++
	v.Planned = false
	c.bumped = c.now
	c.out = append(c.out, Propose{View: v})
}

// greetPrimary asks the primary for records.
func (c *Core) greetPrimary() {
	p := c.view.Primary
	if p == c.cfg.Self || c.stream != 0 || !c.peer[p].up || c.loading > 0 {
		return
	}
	if c.refused && c.now < c.again {
		return
	}
	member := c.view.InSync.Has(c.cfg.Self)
	if !member {
		// The memory will be used anew, so nothing of the log may be on its way to the disk. The log itself stays until
		// the primary confirms that this copy is outside S (start): a view that took it in may not be known here yet.
		if c.writing > 0 || c.syncing || c.saving {
			return
		}
		c.suspect()
		c.suspectMissing()
		c.refused = false
	}
	c.out = append(c.out, Send{To: p, Msg: Hello{
		Version: c.view.Version, Stream: c.grant(p), Memory: c.memory,
		Last: c.log.last(), Applied: c.disk.applied, Durable: c.durable, Suspects: c.suspects.Clone(), Sizes: c.sizes(),
	}})
}

// rang takes the records of a Post.
func (c *Core) rang(e *Rang) {
	if e.From != c.source || e.Stream != c.stream || c.stream == 0 {
		return
	}
	c.peer[e.From].heard = c.now
	if e.Bell.View.Version > c.view.Version {
		c.adopt(e.Bell.View)
		if e.Stream != c.stream {
			return
		}
	}
	c.fed, c.tells = true, e.Bell.Synced
	if s := e.Bell.Start; s != nil {
		c.start(s)
	}
	for i := range e.Recs {
		if e.Recs[i].Seq == c.log.last()+1 {
			c.append(e.Recs[i])
		}
	}
	c.trim = max(c.trim, e.Bell.Trim)
	if ring := uint64(c.cfg.Ring); c.log.last() > ring {
		c.trim = max(c.trim, c.log.last()-ring) // a primary has had room for the last record
	}
	c.freed = max(c.freed, e.Bell.Freed)
	c.syncTo = max(c.syncTo, e.Bell.Sync)
}

// start begins the log of a copy that is brought level.
func (c *Core) start(s *Start) {
	c.resetLog(s.Last)
	c.memory = true
	c.results = append(c.results, s.Results...)
	c.early, c.earlyTo = s.Early.Clone(), s.Last
	for id := range (c.cfg.Copies &^ c.view.InSync).Without(c.cfg.Self).All() {
		c.bitmaps[id] = s.Bitmaps[id].Clone()
	}
	for i := range c.set.All() {
		c.touch(i, s.Last)
	}
}

// acknowledge tells the source how far its stream has come. That a member's disk has more than before is told with the next
// records that it receives, or with the next tick: nobody waits for it, as long as it is little.
func (c *Core) acknowledge() {
	if c.stream == 0 || !c.fed {
		return
	}
	a := Ack{Stream: c.stream, Received: c.log.last(), Applied: c.disk.applied, Durable: c.durable, Failed: c.refused || c.isHung()}
	if c.tells {
		a.Synced = c.onDisk()
	}
	if a == c.acked {
		return
	}
	applied := c.acked
	applied.Applied = a.Applied
	if a == applied && !c.ticked && c.role == Follower && c.view.InSync.Has(c.cfg.Self) && c.isLittle(c.acked.Applied, a.Applied) {
		return
	}
	c.acked = a
	c.out = append(c.out, c.made.acks.add(SendAck{To: c.source, Ack: a}))
}

// isLittle says whether the records between two numbers are few, and have little of the heap's memory.
func (c *Core) isLittle(from, to uint64) bool {
	var n int64
	for seq := from + 1; seq <= to && to-from < aFew; seq++ {
		if e := c.entry(seq); e != nil && hasData(&e.Record) {
			n += e.Len
		}
	}
	return to-from < aFew && n < c.cfg.Heap/16
}

// beat answers the primary's. Who has promised another node gives no lease any more.
func (c *Core) beat(from ID, b Beat) {
	c.adopt(b.View)
	ok := c.role == Follower && from == c.view.Primary && b.View.Term == c.view.Term && c.promised != c.view.Version
	if ok {
		c.lastBeat = c.now
	}
	ok = ok && c.memory // who has lost its memory may know an old view only
	if c.stream == 0 && c.isHung() {
		ok = false // it takes no records before its disk goes on, and would stay a member that takes none
	}
	c.out = append(c.out, c.made.echoes.add(SendEcho{To: from, Echo: Echo{No: b.No, View: c.view, OK: ok}}))
}

// ask gives a promise, or none. A promise is for one version and one candidate.
func (c *Core) ask(from ID, version uint64) {
	switch {
	case version < c.view.Version:
		c.out = append(c.out, Send{To: from, Msg: Deny{View: c.view}})
		return
	case version > c.view.Version, c.role != Follower, !c.view.InSync.Has(c.cfg.Self), !c.view.InSync.Has(from):
		return
	case c.promised == version && c.to != from, c.loading > 0:
		return
	case c.now-c.lastBeat <= c.cfg.Grace && from != c.view.Primary && c.view.Primary != c.cfg.Self:
		return
	}
	if c.promised != version {
		c.promised, c.to, c.since = version, from, c.now
		if c.view.Primary != from {
			c.cut(c.view.Primary)
		}
	}
	last := c.log.last()
	if !c.memory {
		last = c.durable
	}
	c.out = append(c.out, Send{To: from, Msg: Promise{
		Version: version, Stream: c.grant(from), Memory: c.memory, Last: last, Applied: c.disk.applied, Durable: c.durable,
	}})
}

// fetched sends a candidate the records that it lacks.
func (c *Core) fetched(from ID, f *Fetch) {
	if f.Version != c.view.Version || c.promised != f.Version || c.to != from || f.First <= c.base || f.First > c.log.last() {
		return
	}
	c.out = append(c.out, c.made.posts.add(Post{To: from, Stream: f.Stream, Recs: c.handedOn(f.First, from), Bell: Bell{View: c.view, First: f.First}}))
}
