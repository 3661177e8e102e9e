package soft

import (
	"sync/atomic"

	"oneshot/transport/rdma"
)

// Counters are those of one queue pair. Polls, completions and events are its completion queues'.
type Counters struct {
	Posts, Works, ReceivePosts, Receives, Binds, Invalidations, Advertises, Closes atomic.Uint64
	Doorbells, MessagesOut, MessagesIn, BytesOut, BytesIn, Reads, Terminates       atomic.Uint64
	Copies, BytesCopied                                                            atomic.Uint64
}

// AddTo adds what has crossed the queue pair.
func (n *Counters) AddTo(c *rdma.Counters) {
	c.Posts += n.Posts.Load()
	c.Works += n.Works.Load()
	c.ReceivePosts += n.ReceivePosts.Load()
	c.Receives += n.Receives.Load()
	c.Binds += n.Binds.Load()
	c.Invalidations += n.Invalidations.Load()
	c.Advertises += n.Advertises.Load()
	c.Closes += n.Closes.Load()
	c.Doorbells += n.Doorbells.Load()
	c.MessagesOut += n.MessagesOut.Load()
	c.MessagesIn += n.MessagesIn.Load()
	c.BytesOut += n.BytesOut.Load()
	c.BytesIn += n.BytesIn.Load()
	c.Reads += n.Reads.Load()
	c.Terminates += n.Terminates.Load()
	c.Copies += n.Copies.Load()
	c.BytesCopied += n.BytesCopied.Load()
}
