package quorum

import (
	"slices"

	"go.etcd.io/raft/v3/raftpb"
)

// An orphan is a voter that asks for votes although there is a leader: the link between the two is cut, so it does not hear the leader, and nobody
// gives it a vote. It does not learn what the others agree on, and cannot propose anything. If they agree that it is the primary of a mirror, as its
// last proposal wanted, it does not know, and nobody serves. So a voter that hears both asks the leader to let it lead.
//
//	a leads ── c ── b    a and b do not hear each other: b asks, c hears b and a
//	        a ── c leads ── b
type orphan struct {
	number uint64 // of the voter
	leader uint64 // that this node hears meanwhile
	since  uint64 // tick of the voter's first request for votes
	last   uint64 // tick of its newest one
}

const (
	// orphanTicks is how many ticks a voter asks in vain before another one asks for the lead: a node that has just begun, or was cut off for a
	// moment, asks only once or twice.
	orphanTicks = 3 * electionTicks
	// orphanRest is how many ticks a node waits before it asks for the lead again: if the orphan does not hear it either, another
	// attempt helps nobody.
	orphanRest = 500
)

// noteOrphan notes that a voter asks for votes, if m says so, while this node hears another one lead.
func (c *Core) noteOrphan(from uint64, m *raftpb.Message) {
	leader, _ := c.Leader()
	if m.GetType() != raftpb.MsgPreVote || leader == 0 || leader == from || leader == c.log.id.Number || !slices.Contains(c.conf.GetVoters(), from) {
		return
	}
	if r := c.hears(from); r != nil && slices.Contains(r.Heard, leader) {
		return // the link is slow, and heartbeats come late
	}
	if o := &c.orphan; o.number != from || o.leader != leader || c.ticks-o.last > 3*electionTicks {
		*o = orphan{number: from, leader: leader, since: c.ticks}
	}
	c.orphan.last = c.ticks
}

// adopt asks the leader to let this node lead, if another voter hears this node alone.
func (c *Core) adopt() {
	o := &c.orphan
	leader, _ := c.Leader()
	switch {
	case o.number == 0 || o.last-o.since < orphanTicks || c.ticks-o.last > 2*electionTicks || leader != o.leader:
		return
	case c.askedAt != 0 && c.ticks-c.askedAt < orphanRest, c.isDrained(c.log.id.Number), !slices.Contains(c.conf.GetVoters(), c.log.id.Number):
		return
	}
	c.askedAt = c.ticks
	c.raw.TransferLeader(c.log.id.Number)
}
