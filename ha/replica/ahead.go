package replica

import (
	"math"
	"time"
)

// An answer may be ahead of the mark. A member that has made records durable on its disk saves its mark then, so that somebody knows, when all have lost
// their power, which of them has what was flushed. If all members have it, it does not matter which of them goes on:
//
//	a Flush is answered    when W members have saved their marks, or all of S have it on their disks
//	a mark waits           for markEvery at most, where W are all of S; else W marks may be what the answer needs
//
// Whoever does not know of that, as nodes of former versions, is told nothing of it, and tells of marks alone.

// markEvery is how long a mark may wait. The log keeps the records since then, and when all have lost their power what they may differ in.
const markEvery = 100 * time.Millisecond

// tellsSynced is a bit of a stream's number. Whoever has given that number takes Bell.Synced.
const tellsSynced = 1 << 61

// ahead is what this node knows of marks that wait.
type ahead struct {
	tells    bool          // the source looks at Ack.Synced
	markedAt time.Duration // when the mark was saved last
}

// onDisk returns the number up to which this copy has all durably, whatever its metadata say. What misses sectors has that with the mark only: after a power
// cut it would show what is older.
func (c *Core) onDisk() uint64 {
	if len(c.sectors) > 0 || c.lostAt > c.folded {
		return c.durable
	}
	return max(c.durable, c.synced)
}

func (c *Core) onDiskOf(id ID) uint64 {
	if id == c.cfg.Self {
		return c.onDisk()
	}
	return max(c.peer[id].durable, c.peer[id].synced)
}

// secured returns the number up to which a Flush may be answered in a view.
func (c *Core) secured(v *View) uint64 {
	all := uint64(math.MaxUint64)
	for id := range v.InSync.All() {
		all = min(all, c.onDiskOf(id))
	}
	return max(all, c.held(v, c.durableBy))
}

// securedByAll is secured, of the view and of the one that is proposed: nobody knows which of them is in force.
func (c *Core) securedByAll() uint64 {
	n := c.secured(&c.view)
	if c.proposed != nil {
		n = min(n, c.secured(c.proposed))
	}
	return n
}

// mayMarkWait says whether nobody needs the mark at once.
func (c *Core) mayMarkWait() bool {
	v := &c.view
	if c.now-c.markedAt >= markEvery || !v.InSync.Has(c.cfg.Self) || c.quorum(v) < v.InSync.Len() || 2*len(c.entries) > c.cfg.Ring || len(c.growing) > 0 || c.onDisk() < c.synced {
		return false
	}
	switch c.role {
	case Primary:
		return c.proposed == nil && !c.sealing
	case Follower:
		return c.fed && c.tells && c.promised != v.Version
	}
	return false
}
