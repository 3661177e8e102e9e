package replica

import "time"

// candidate is a candidature for one version of the view.
type candidate struct {
	promises [16]promise
	answered Nodes
	began    time.Duration
	at       time.Duration // of the newest promise
	asked    time.Duration
	fetching bool
	fetchAt  time.Duration
	level    bool // all who are to be members have the same log
	sure     bool // those who have promised remember, and one of them has what was acknowledged
}

// promise is another member's.
type promise struct {
	Promise
	given bool
	sent  uint64
	sync  uint64
}

// gather is how long a candidate waits for further promises once it has enough: who is left out has to be brought
// level later.
const gather = 20 * time.Millisecond

// stand begins a candidature. The candidate's own promise is the first: the old primary is cut.
func (c *Core) stand() {
	c.role = Candidate
	c.cand = candidate{began: c.now, at: c.now, asked: -askEvery}
	c.promised, c.to, c.since = c.view.Version, c.cfg.Self, c.now
	c.cut(c.view.Primary)
	if c.stream != 0 {
		c.cut(c.source)
	}
	c.canvass()
}

// canvass does the next step of a candidature.
func (c *Core) canvass() {
	d := &c.cand
	if d.level {
		c.apply(c.flushed) // not what is behind, which no other may have: see kept.go
	}
	if c.proposed != nil {
		c.repropose()
		return
	}
	if c.now-d.began > stuckAfter {
		c.resign()
		return
	}
	others := c.view.InSync.Without(c.cfg.Self)
	if c.now-d.asked >= askEvery {
		d.asked = c.now
		for id := range (others &^ d.answered).All() {
			if c.peer[id].up {
				c.out = append(c.out, Send{To: id, Msg: Ask{Version: c.view.Version}})
			}
		}
	}
	if d.answered != others && (c.now-d.at < gather || c.isDiskBad() && c.now-d.at < lame) {
		return
	}
	if c.isExcused() && !c.takersForget() {
		if d.answered == others {
			c.resign()
		}
		return
	}
	members := c.remembering()
	if !c.isEnough(members) {
		if d.answered == others {
			c.furthest()
		}
		return
	}
	if !c.memory {
		c.resign() // who remembers can stand, if the promises are void
		return
	}
	if !c.fetchFrom(members) {
		return
	}
	if members = c.prompt(members); c.levelAll(members) {
		d.sure = true
		c.proposeMyself(members)
	}
}

// prompt leaves out, when half the time of a candidature is over, members whose disks do not come as far as another's, if the others are
// enough: as if they had not answered. A disk that hangs would keep everybody from the office, and its own node might get it.
func (c *Core) prompt(members Nodes) Nodes {
	if c.now-c.cand.began <= stuckAfter/2 {
		return members
	}
	flushed, rest := c.flushedBy(members), members
	for id := range members.Without(c.cfg.Self).All() {
		if c.cand.promises[id].Durable < flushed {
			rest = rest.Without(id)
		}
	}
	if !c.isEnough(rest) {
		return members
	}
	return rest
}

// isEnough says whether one of these members of S has what was acknowledged.
func (c *Core) isEnough(members Nodes) bool {
	return members.Len() > c.view.InSync.Len()-c.quorum(&c.view)
}

// flushedBy returns the newest record that one of those who have promised has durable: a Flush may have been answered that covers it.
func (c *Core) flushedBy(members Nodes) uint64 {
	to := c.durable
	for id := range members.Without(c.cfg.Self).All() {
		to = max(to, c.cand.promises[id].Durable)
	}
	return to
}

// resign ends a candidature that leads to nothing, and lets others go first, the primary of before all of them: without it two that have lost
// their memory would stand at once again and again. The promises for this version stand, so another is needed.
func (c *Core) resign() {
	c.role, c.fed = Follower, false
	c.asleep = c.now + stuckAfter + 4*c.turn()
	if c.view.Primary == c.cfg.Self {
		c.asleep += 4 * turn
	}
	c.bump()
}

// remembering are those who have promised and whose log is whole.
func (c *Core) remembering() Nodes {
	var n Nodes
	if c.memory {
		n = n.With(c.cfg.Self)
	}
	for id := range c.cand.answered.All() {
		if c.cand.promises[id].Memory {
			n = n.With(id)
		}
	}
	return n
}

// furthest: all of S have answered, and too few of them remember. The one with the most is the next primary, alone:
// what was acknowledged and not flushed may be gone.
func (c *Core) furthest() {
	score := c.durable
	if c.memory {
		score = c.log.last()
	}
	for id := range c.cand.answered.All() {
		p := &c.cand.promises[id]
		if p.Last > score || p.Last == score && p.Memory && !c.memory {
			c.resign()
			return
		}
	}
	if !c.memory {
		c.base, c.entries, c.disk.applied, c.folded = c.durable, nil, c.durable, c.durable
	}
	c.cand.level = true
	c.flushed = c.flushedBy(c.cand.answered)
	if c.syncTo = max(c.syncTo, c.flushed); c.durable < c.flushed {
		return // it has in memory what others have durable, and may lose it alone
	}
	c.proposeMyself(NodesOf(c.cfg.Self))
}

// fetchFrom gets the longest log, and reports whether it is here.
func (c *Core) fetchFrom(members Nodes) bool {
	d := &c.cand
	best := c.cfg.Self
	longest := c.log.last()
	for id := range members.Without(c.cfg.Self).All() {
		if d.promises[id].Last > longest {
			best, longest = id, d.promises[id].Last
		}
	}
	if best == c.cfg.Self {
		return true
	}
	if !d.fetching || c.now-d.fetchAt > askEvery {
		d.fetching, d.fetchAt = true, c.now
		c.out = append(c.out, Send{To: best, Msg: Fetch{Version: c.view.Version, Stream: c.grant(best), First: c.log.last() + 1}})
	}
	return false
}

// levelAll brings members to the end of the log, and to what one of them has durable. It reports whether that is done.
func (c *Core) levelAll(members Nodes) bool {
	d := &c.cand
	end, flushed := c.log.last(), c.flushedBy(members)
	d.level = true
	for id := range members.Without(c.cfg.Self).All() {
		p := &d.promises[id]
		if p.sent < end || p.sync < flushed {
			first := max(p.sent, p.Last) + 1
			c.out = append(c.out, c.made.posts.add(Post{To: id, Stream: p.Stream, Recs: c.handedOn(first, id), Bell: Bell{View: c.view, First: first, Sync: flushed}}))
			p.sent, p.sync = end, flushed
		}
		d.level = d.level && p.Last >= end
	}
	if !d.level {
		return false
	}
	c.syncTo = max(c.syncTo, flushed)
	v := c.view
	v.InSync = members
	c.flushed = flushed
	return c.held(&v, func(id ID) uint64 {
		if id == c.cfg.Self {
			return c.durable
		}
		return d.promises[id].Durable
	}) >= flushed
}

// proposeMyself asks consensus for the office.
func (c *Core) proposeMyself(members Nodes) {
	c.propose(View{
		Version: c.view.Version + 1, Term: c.view.Term + 1, Primary: c.cfg.Self, Life: c.cfg.Incarnation, InSync: members, First: c.log.last() + 1,
	})
}

// propose asks consensus for a view. Whether it was accepted is known when another version is.
func (c *Core) propose(v View) {
	c.proposed, c.proposedAt = &v, c.now
	c.out = append(c.out, Propose{View: v})
}

// repropose asks again, for a proposal may be lost.
func (c *Core) repropose() {
	if c.now-c.proposedAt >= askEvery {
		c.proposedAt = c.now
		c.out = append(c.out, Propose{View: *c.proposed})
	}
}

// ack takes a member's progress.
func (c *Core) ack(from ID, a Ack) {
	if c.role == Candidate {
		if p := &c.cand.promises[from]; p.given && p.Stream == a.Stream {
			p.Last, p.Applied, p.Durable = max(p.Last, a.Received), a.Applied, a.Durable
		}
		return
	}
	p := &c.peer[from]
	if c.role != Primary || p.stream == 0 || p.stream != a.Stream {
		return
	}
	p.begun, p.received, p.applied, p.durable, p.synced, p.lost = true, a.Received, a.Applied, a.Durable, a.Synced, a.Failed
}
