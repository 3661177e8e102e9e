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
	half time.Duration // T/2; 0: nothing is flushed
	dirt
	flushing bool          // a flush of our own is under way
	longest  time.Duration // F: of all flushes
	lost     bool          // a flush has failed: none helps any more
}

// dirt is what a flush is to make durable.
type dirt struct {
	dirty bool          // a write has completed since the last flush began
	must  bool          // what is dirty is flushed whatever half says
	since time.Duration // when the first of these did
}

// action is what is to be done: flush now, or be called at a time; or nothing.
type action struct {
	flush bool
	at    time.Duration // 0: not at all
}

// written: a write has completed. other: it was submitted under another policy, which promised something else.
func (c *core) written(now time.Duration, other bool) action {
	c.must = c.must || other
	if !c.dirty {
		c.dirty, c.since = true, now
	}
	return c.next(now)
}

// begins: somebody flushes. It returns what there was to flush.
func (c *core) begins() (was dirt) {
	was, c.dirt = c.dirt, dirt{}
	return was
}

// fails: a flush that began with that has made nothing durable, perhaps. It counts from the same time as before.
func (c *core) fails(was dirt) {
	if !was.dirty {
		return
	}
	if !c.dirty || was.since < c.since {
		c.since = was.since
	}
	c.dirty, c.must = true, c.must || was.must
}

// ended: a flush that took so long has ended. own: it is ours. What is due goes by the timer nevertheless: a store
// that flushes within Submit would come back here, deeper and deeper.
func (c *core) ended(now, took time.Duration, own, failed bool) action {
	c.longest = max(c.longest, took)
	c.lost = c.lost || failed
	if own {
		c.flushing = false
	}
	if !c.waits() {
		return action{}
	}
	return action{at: max(c.due(now), now)}
}

// timer: the time has come, perhaps that of an earlier action.
func (c *core) timer(now time.Duration) action { return c.next(now) }

// reset: T/2 is another one from now on. What is dirty was promised something else, and is flushed at once.
func (c *core) reset(half, now time.Duration) action {
	c.half = half
	c.must = c.dirty
	return c.next(now)
}

// waits reports whether something waits for a flush of our own that may begin.
func (c *core) waits() bool { return c.dirty && !c.flushing && !c.lost && (c.half > 0 || c.must) }

func (c *core) due(now time.Duration) time.Duration {
	if c.must {
		return now
	}
	return c.since + c.half
}

// next says what is due.
func (c *core) next(now time.Duration) action {
	if !c.waits() {
		return action{}
	}
	if due := c.due(now); now < due {
		return action{at: due}
	}
	c.begins()
	c.flushing = true
	return action{flush: true}
}
