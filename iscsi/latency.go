package iscsi

import "time"

// Latency is measured from the batch of input in which a command came to the batch of output
// in which its answer left. So the clock is read once or twice per batch, not per command,
// and commands that came together are seen to have waited for each other.

// epoch is what nanotime counts from. Reading the monotonic clock alone is half the price of
// time.Now.
var epoch = time.Now()

func nanotime() int64 { return int64(time.Since(epoch)) }

// leaving returns the time of the output batch under way.
func (c *Conn) leaving() int64 {
	if !c.timed {
		c.timed = true
		c.left = nanotime()
	}
	return c.left
}
