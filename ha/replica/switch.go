package replica

import (
	"slices"
	"time"
)

// switching is what the administrator has to do with who is primary.
type switching struct {
	drained   Nodes // nodes that are to serve nothing
	wanted    *wanted
	successor ID
	late      Nodes         // have not got all in time, and are chosen again when the others were
	sealing   bool          // nothing more gets a place in the order, until the successor is primary or time is up
	sealedAt  time.Duration // when that began
	handAgain time.Duration // when a drained primary tries again
}

// wanted is a Switch that has not been answered.
type wanted struct {
	Switch
	at time.Duration
}

// handAgainAfter is how long a drained primary goes on after another member could not take its place in time: hosts
// wait in each attempt.
const handAgainAfter = 5 * stuckAfter

// takers are the members of S that may become primary: those that are not drained, or all if there is no other. A primary whose disk is bad is
// none: it serves nobody, and a node that is drained does.
func (c *Core) takers() Nodes {
	n := c.view.InSync &^ c.drained
	if c.role == Primary && c.isDiskBad() {
		n = n.Without(c.cfg.Self)
	}
	if n != 0 {
		return n
	}
	return c.view.InSync
}

// isExcused says whether this node is drained, and another member of S is not.
func (c *Core) isExcused() bool {
	return (c.view.InSync & c.drained).Has(c.cfg.Self) && c.view.InSync&^c.drained != 0
}

// takersForget says whether those who may serve instead of this candidate, which is drained, are all there, and none of them can: they have
// lost their memory.
func (c *Core) takersForget() bool {
	for id := range c.takers().All() {
		if p := &c.cand.promises[id]; !p.given || p.Memory {
			return false
		}
	}
	return true
}

// drain takes news of which nodes are to serve nothing. A candidature ends, so that others can stand.
func (c *Core) drain(nodes Nodes) {
	c.drained = nodes
	if c.role == Candidate && c.proposed == nil && c.isExcused() {
		c.resign()
	}
}

// order takes an order to hand over. It is answered when the other node is primary, or with what is in the way.
func (c *Core) order(s Switch) {
	switch {
	case c.role != Primary:
		c.answer(s.ID, Moved)
	case c.wanted != nil, s.To == c.cfg.Self, !c.takers().Has(s.To):
		c.answer(s.ID, Refused)
	default:
		c.wanted = &wanted{s, c.now}
	}
}

// endSwitch answers who waits for this node to hand over, when it is not the primary any more, or goes on.
func (c *Core) endSwitch(status Status) {
	if c.wanted == nil {
		return
	}
	if c.view.Primary == c.wanted.To && (c.view.Planned || c.isHanded()) {
		status = Good
	}
	c.answer(c.wanted.ID, status)
	c.wanted = nil
}

// isHanded says whether the view, of which this node learns late, follows from the one by which it wanted to hand over: who has that office by
// its own doing has a life in it.
func (c *Core) isHanded() bool {
	p := c.proposed
	return p != nil && p.Planned && c.view.Primary == p.Primary && c.view.Term == p.Term && c.view.Life == 0
}

// SealedAt returns when this node, a primary that hands over, has last begun to wait until the other one has all.
func (c *Core) SealedAt() time.Duration { return c.sealedAt }

// hand hands over to another member, when all is there.
func (c *Core) hand() {
	if !c.sealing && c.proposed == nil {
		c.choose()
	}
	if !c.sealing || c.proposed != nil {
		return
	}
	if c.now-c.sealedAt > stuckAfter {
		c.sealing, c.handAgain = false, c.now+handAgainAfter
		c.late = c.late.With(c.successor)
		c.endSwitch(Failed)
		return
	}
	if !c.takers().Has(c.successor) { // it was drained meanwhile
		c.sealing = false
		c.endSwitch(Refused)
		return
	}
	p := &c.peer[c.successor]
	// Nobody reads into memory any more that the successor may give away.
	if slices.ContainsFunc(c.jobs, func(j *job) bool { return j.asked }) {
		return
	}
	if p.stream == 0 || p.outside || c.commit != c.log.last() || p.received != c.log.last() || c.onDiskOf(c.successor) < c.flushed {
		return
	}
	c.propose(View{
		Version: c.view.Version + 1, Term: c.view.Term + 1, Primary: c.successor, InSync: c.view.InSync, First: c.log.last() + 1, Planned: true,
	})
}

// choose begins to hand over, if there is a reason: somebody wants it, this disk refuses or hangs and another may be
// better, or this node is drained.
func (c *Core) choose() {
	if c.wanted != nil {
		if c.seal(c.wanted.To); !c.sealing && c.now-c.wanted.at > stuckAfter {
			c.endSwitch(Failed)
		}
		return
	}
	isDrained := c.isExcused() && c.now >= c.handAgain
	if !c.refused && !c.isHung() && !isDrained {
		return
	}
	others := c.takers().Without(c.cfg.Self)
	for id := range (others &^ c.late).All() {
		c.seal(id)
	}
	if !c.sealing {
		c.late = 0
		for id := range others.All() {
			c.seal(id)
		}
	}
}

// seal stops what adds records, if another member can take over.
func (c *Core) seal(id ID) {
	p := &c.peer[id]
	if !c.sealing && c.takers().Has(id) && p.stream != 0 && !p.outside && !p.lost {
		c.sealing, c.successor, c.sealedAt = true, id, c.now
		c.syncTo = max(c.syncTo, c.flushed)
	}
}
