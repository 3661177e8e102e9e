package iostat

import "time"

// Clock times the commands of a connection: from the batch of input in which a command came to the batch of output
// in which its answer left. So the time is read once or twice per batch, not per command, and commands that came
// together are seen to have waited for each other. The connection's lock guards it.
type Clock struct {
	arrived int64 // nanotime of the input batch under way
	left    int64 // nanotime of the output batch under way, if timed
	timed   bool
}

// epoch is what nanotime counts from. Reading the monotonic clock alone is half the price of
// time.Now.
var epoch = time.Now()

func nanotime() int64 { return int64(time.Since(epoch)) }

// Arrive begins a batch of input.
func (c *Clock) Arrive() { c.arrived, c.timed = nanotime(), false }

// Arrived is the time of the batch of input under way, in nanoseconds.
func (c *Clock) Arrived() int64 { return c.arrived }

// Drive begins a batch of output: somebody has taken the lock.
func (c *Clock) Drive() { c.timed = false }

// Leaving is the time of the batch of output under way, in nanoseconds.
func (c *Clock) Leaving() int64 {
	if !c.timed {
		c.timed = true
		c.left = nanotime()
	}
	return c.left
}
