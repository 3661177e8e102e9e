package replica

import (
	"math"
	"slices"
	"time"
)

// Undisputed is the State.Confirmed of a primary that is all of S: without it nobody can be promoted.
const Undisputed time.Duration = math.MaxInt64

// confirmed returns the newest time at which no other node was primary for sure: as many members as every candidature needs
// one of have answered a beat that was sent then. Reads, which need more, are proven by isProven.
func (c *Core) confirmed() time.Duration {
	if c.role != Primary {
		return 0
	}
	at := c.confirmedIn(&c.view)
	if c.proposed != nil { // nobody knows which of the two is in force
		at = min(at, c.confirmedIn(c.proposed))
	}
	return at
}

// confirmedIn is confirmed by one view.
func (c *Core) confirmedIn(v *View) time.Duration {
	w := c.quorum(v)
	if w == 1 {
		return Undisputed
	}
	var at [16]time.Duration
	n := 0
	for id := range v.InSync.Without(c.cfg.Self).All() {
		at[n] = c.peer[id].proven
		n++
	}
	slices.Sort(at[:n])
	return at[n-(w-1)]
}
