package service

import (
	"sync/atomic"

	"oneshot/ha/heap/wire"
)

// Counters count what clients have asked for, by its end. Services may share them. The zero value is ready to use, and its methods
// may be called from any goroutine.
type Counters struct {
	requests [wire.Ops][wire.Statuses]atomic.Uint64
}

// All tells each number that is not zero, with the names of operation and status. Reads by RDMA are not among them: the service does not see those.
func (c *Counters) All(tell func(op, status string, n uint64)) {
	for op := range c.requests {
		for s := range c.requests[op] {
			if n := c.requests[op][s].Load(); n > 0 {
				tell(wire.Op(op).String(), wire.Status(s).Name(), n)
			}
		}
	}
}

// count counts an answer. Greetings that end well are none.
func (c *Counters) count(m *wire.Message) {
	if m.Op >= wire.Join || m.Status != wire.OK {
		c.requests[m.Op][m.Status].Add(1)
	}
}
