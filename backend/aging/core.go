package aging

import "time"

// core decides when to flush. It is told of events, with the time at which they happen, and says what is to be
// done.
//
//	           first write              T/2 later             ended
//	clean ──────────────────► dirty ──────────────► flushing ───────► clean
//	  ▲                         │ somebody flushes     │ a write completes
//	  └─────────────────────────┘                      └──► dirty and flushing: the timer counts from that write
//
// A write is covered by each flush that begins after its completion, whoever asks for it.
type core struct {
	half     time.Duration // T/2
	dirty    bool          // a write has completed since the last flush began
	since    time.Duration // when the first of these did
	flushing bool          // a flush of our own is under way
	longest  time.Duration // F: of all flushes
	lost     bool          // a flush has failed: none helps any more
}

// action is what is to be done: flush now, or be called at a time; or nothing.
type action struct {
	flush bool
	at    time.Duration // 0: not at all
}

// written: a write has completed.
func (c *core) written(now time.Duration) action {
	if c.dirty || c.lost {
		return action{}
	}
	c.dirty, c.since = true, now
	return c.next(now)
}

// begins: somebody flushes.
func (c *core) begins() { c.dirty = false }

// ended: a flush has ended, which took as long as took says; own says that it was ours. A flush that is due already is
// left to the timer, too: with a store that flushes within Submit, flushing here would recurse.
func (c *core) ended(now, took time.Duration, own, failed bool) action {
	c.longest = max(c.longest, took)
	c.lost = c.lost || failed
	if own {
		c.flushing = false
	}
	if !c.dirty || c.flushing || c.lost {
		return action{}
	}
	return action{at: max(c.since+c.half, now)}
}

// timer: the time has come, perhaps that of an earlier action.
func (c *core) timer(now time.Duration) action { return c.next(now) }

// next says what is due.
func (c *core) next(now time.Duration) action {
	switch due := c.since + c.half; {
	case !c.dirty || c.flushing || c.lost:
		return action{}
	case now < due:
		return action{at: due}
	}
	c.dirty, c.flushing = false, true
	return action{flush: true}
}
