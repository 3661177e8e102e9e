package replica

import "time"

// pace is how fast this primary brings copies level, and compares members. Both read from its disk, and the disks of others read or write as much,
// beside what hosts ask for.
type pace struct {
	Pace
	busy  bool          // hosts wait, or this disk does not have what they have written
	since time.Duration // that is so; of the time before, if not
	calm  time.Duration // hosts have been idle for long enough then
	next  time.Duration // when the next range may be begun
	holds bool          // a copy waits for that
}

const (
	// yieldFor is for how long this primary still gives way when hosts are idle again, in the times that they have waited: who writes one block after
	// the other is idle for a moment between two. A disk that is slow, or has much to do, makes hosts wait longer, and has more time.
	yieldFor = 4
	// yieldMost bounds that, in heartbeats.
	yieldMost = 5
	// paceBurst is what may be made up for, in heartbeats: ticks alone call for the next range when none is under way.
	paceBurst = 2
)

// watchHosts notes whether hosts are idle. It is called when requests have come, and again when all that could be answered was.
func (c *Core) watchHosts() {
	p := &c.pace
	switch busy := c.areHostsBusy(); {
	case busy && !p.busy:
		p.busy, p.since = true, c.now
	case !busy && p.busy:
		p.busy = false
		p.calm = max(p.calm, c.now+min(yieldFor*(c.now-p.since), yieldMost*c.cfg.Heartbeat))
	}
}

// areHostsBusy says whether something of a host is under way that other reads and writes of the disks would delay. If hosts wait until there are enough
// copies they wait for just what would give way.
func (c *Core) areHostsBusy() bool {
	waiting := len(c.hungry) + len(c.ops) + len(c.swaps) + len(c.writes) + len(c.reads) + c.reading + len(c.proving) + len(c.flushes)
	return waiting+c.writing > 0 && c.mayWrite()
}

// yields says whether this primary gives way to hosts now.
func (c *Core) yields() bool { return c.pace.Min > 0 && (c.pace.busy || c.now < c.pace.calm) }

// rate is how many bytes a second are copied and compared now; 0: as many as can be.
func (c *Core) rate() int64 {
	if c.yields() {
		return c.pace.Min
	}
	return c.pace.Rate
}

// mayMove says whether the next range may be begun.
func (c *Core) mayMove() bool { return c.rate() == 0 || c.now >= c.pace.next }

// moves notes that n bytes were begun.
func (c *Core) moves(n int64) {
	rate := c.rate()
	if rate == 0 {
		c.pace.next = c.now
		return
	}
	c.pace.next = max(c.pace.next, c.now-paceBurst*c.cfg.Heartbeat) + time.Duration(n*int64(time.Second)/rate)
}

// Paced returns the pace that this node was told, and whether it gives way to hosts now, as the primary.
func (c *Core) Paced() (p Pace, yields bool) { return c.pace.Pace, c.role == Primary && c.yields() }
