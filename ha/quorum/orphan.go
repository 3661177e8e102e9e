package quorum

import (
	"slices"

	"go.etcd.io/raft/v3/raftpb"
)

// An orphan is a voter that asks for votes although there is a leader: it does not hear that one, for the link between the two is cut, and nobody gives
// it a vote. It learns nothing of what is agreed on, and cannot propose anything: if that is what makes it the primary of a mirror, as its last
// proposal did, nobody serves. So a voter that hears both asks the leader to let it lead.
//
//	a leads ── c ── b    a and b do not hear each other: b asks, c hears b and a
//	        a ── c leads ── b
type orphan struct {
	number uint64
	leader uint64 // of whom this node heard meanwhile
	since  uint64 // tick of its first request
	last   uint64 // and of the newest
}

const (
	// orphanTicks is for how long a voter asks in vain before another one leads in its favor: a node that has just begun, or was cut off for a
	// moment, asks once or twice.
	orphanTicks = 3 * electionTicks
	// orphanRest is the time, in ticks, before a node asks for the lead again: if it is not heard by the orphan either, nothing is won.
	orphanRest = 500
)

// noteOrphan takes in a message.
func (c *Core) noteOrphan(from uint64, m *raftpb.Message) {
	leader, _ := c.Leader()
	if m.GetType() != raftpb.MsgPreVote || leader == 0 || leader == from || leader == c.log.id.Number || !slices.Contains(c.conf.GetVoters(), from) {
		return
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
