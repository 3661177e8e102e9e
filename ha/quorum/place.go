package quorum

import (
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"
)

// The place of the lead. While there is no leader nothing can be agreed on, so not even a primary that is lost can be replaced. So the two should
// not be lost at once: who leads hands the lead over to a better place, and an election costs nothing but time then.
const (
	placeNear   = iota // a witness that is near: it serves nothing, and is restarted seldom
	placeFree          // a node that is primary of no mirror
	placeOther         // a primary; a witness that is far, and makes each change slow
	placeLame          // its disk takes too long
	placeUnfit         // drained, or no member any more
	placeTicks  = 16   // between two looks
	steadyTicks = 48   // for which another place has to be the best one
	placeRest   = 100 * electionTicks
)

// place is what a leader knows of a better place than its own.
type place struct {
	best  uint64 // 0: its own
	since uint64 // tick
	moved uint64 // tick at which it has tried to hand over the lead; 0: it has not
}

// seekPlace has a better place lead, if this node does, and nothing has changed for a while. It tries once in placeRest, so that no two can hand
// the lead to and fro, whatever they believe. Who is lame waits for nothing.
func (c *Core) seekPlace() {
	if c.ticks%placeTicks != 0 {
		return
	}
	p := &c.place
	best := c.bestPlace()
	if best == 0 || best != p.best {
		p.best, p.since = best, c.ticks
	}
	if best == 0 || !c.isLame() && (c.ticks-p.since < steadyTicks || p.moved != 0 && c.ticks-p.moved < placeRest) {
		return
	}
	p.moved = c.ticks
	c.raw.TransferLeader(best)
}

// bestPlace returns the voter that should lead in place of this node, 0 if there is none. It hears all whom this node hears: else these would have
// no leader.
func (c *Core) bestPlace() (best uint64) {
	if c.raw.BasicStatus().RaftState != raft.StateLeader || len(c.conf.GetVotersOutgoing()) > 0 {
		return 0
	}
	primaries, own := c.primaries(), c.Report()
	kind := c.kindOfPlace(c.log.id.Number, &own, primaries)
	if kind == placeUnfit {
		return 0 // giveWay does it, wherever else it is
	}
	c.raw.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
		r := c.hears(id) // raft's RecentActive is false for a moment, each time that it has counted who is there
		if r == nil || p.State != tracker.StateReplicate || !slices.Contains(c.conf.GetVoters(), id) {
			return
		}
		for _, v := range c.conf.GetVoters() {
			if v != id && (v == c.log.id.Number || c.hears(v) != nil) && !slices.Contains(r.Heard, v) {
				return
			}
		}
		if k := c.kindOfPlace(id, &r.Report, primaries); k < kind || k == kind && best != 0 && id < best {
			best, kind = id, k
		}
	})
	return best
}

func (c *Core) kindOfPlace(number uint64, r *Report, primaries []string) int {
	m := c.state.member(number)
	switch {
	case m == nil || m.Leaving != Stays || c.isDrained(number):
		return placeUnfit
	case r.Lame:
		return placeLame
	case m.Witness && r.Near:
		return placeNear
	case m.Witness || slices.Contains(primaries, m.Name):
		return placeOther
	}
	return placeFree
}

// primaries returns the names of the nodes that are primary of a mirror.
func (c *Core) primaries() (names []string) {
	for _, k := range c.state.keys() {
		r := c.state.Get(k)
		if k.Kind != KindStore || r == nil {
			continue
		}
		s, err := DecodeStore(r.Value)
		if err != nil {
			continue // of a newer version
		}
		if v := c.state.Get(Key{KindSet, s.SetName(k.Name)}); v != nil {
			set, err := DecodeSet(v.Value)
			if i := int(set.View.Primary) - 1; err == nil && i >= 0 && i < len(s.Copies) {
				names = append(names, s.Copies[i])
			}
		}
	}
	return names
}
