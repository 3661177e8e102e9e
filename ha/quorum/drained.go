package quorum

import (
	"context"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"
)

// DrainedKey is the record of the nodes that the administrator has drained: a Drained. There is none before one was.
var DrainedKey = Key{KindCluster, "drained"}

// Drained are the names of nodes that are to serve nothing, sorted.
type Drained []string

// Encode returns the value of the record.
func (d Drained) Encode() []byte {
	b := []byte{1}
	for _, name := range d {
		b = appendBytes(b, name)
	}
	return b
}

// DecodeDrained reads the value of a record.
func DecodeDrained(b []byte) (d Drained, err error) {
	c := cursor{b: b}
	if v := c.u8(); c.err == nil && v != 1 {
		return nil, fmt.Errorf("the list of drained nodes has format %d, which this version does not know", v)
	}
	for c.err == nil && len(c.b) > 0 {
		d = append(d, c.string())
	}
	return d, c.end()
}

// Drain has a node serve nothing, or lets it serve again. check, with the names as they would be, may refuse.
func (n *Node) Drain(ctx context.Context, name string, on bool, check func(Drained) error) error {
	return n.Update(ctx, DrainedKey, func(old []byte) ([]byte, error) {
		var d Drained
		if old != nil {
			var err error
			if d, err = DecodeDrained(old); err != nil {
				return nil, err
			}
		}
		i, is := slices.BinarySearch(d, name)
		switch {
		case on == is && old != nil:
			return old, nil
		case on:
			d = slices.Insert(d, i, name)
		case is:
			d = slices.Delete(d, i, i+1)
		}
		return d.Encode(), check(d)
	})
}

// Records returns the records of a kind as this node knows them, without asking others.
func (n *Node) Records(kind Kind) (all []*Record) {
	n.look(func() {
		for _, k := range n.core.state.keys() {
			if r := n.core.state.records[k]; k.Kind == kind && !r.Deleted {
				all = append(all, r)
			}
		}
	})
	return all
}

// isDrained says whether the administrator has drained a member.
func (c *Core) isDrained(number uint64) bool {
	m, r := c.state.member(number), c.state.Get(DrainedKey)
	if m == nil || r == nil {
		return false
	}
	d, err := DecodeDrained(r.Value)
	return err == nil && slices.Contains(d, m.Name)
}

// giveWay has another voter lead if this node is drained: its end then costs no election.
func (c *Core) giveWay() {
	if c.ticks%retryTicks != 0 || c.raw.BasicStatus().RaftState != raft.StateLeader || !c.isDrained(c.log.id.Number) {
		return
	}
	var best, match uint64
	c.raw.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
		if slices.Contains(c.conf.GetVoters(), id) && id != c.log.id.Number && p.RecentActive && p.Match > match && !c.isDrained(id) {
			best, match = id, p.Match
		}
	})
	if best != 0 {
		c.raw.TransferLeader(best)
	}
}
