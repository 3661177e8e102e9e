package soft

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"oneshot/transport/rdma"
)

// Counters are those of one queue pair. Polls, completions and events are its completion queues'.
type Counters struct {
	Posts, Works, ReceivePosts, Receives, Binds, Invalidations, Advertises, Closes atomic.Uint64
	Doorbells, MessagesOut, MessagesIn, BytesOut, BytesIn, Reads, Terminates       atomic.Uint64
	Copies, BytesCopied                                                            atomic.Uint64

	// Settle, if it is set, is called before the counts are read: it adds what is counted elsewhere, by a lock that its
	// owner holds anyway.
	Settle func()
}

func (n *Counters) settle() {
	if n.Settle != nil {
		n.Settle()
	}
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

// With returns what has crossed the queue pair and its completion queues, which other queue pairs may share.
func (n *Counters) With(send, recv *CompletionQueue) rdma.Counters {
	var c rdma.Counters
	n.settle()
	n.AddTo(&c)
	send.AddTo(&c)
	if recv != send {
		recv.AddTo(&c)
	}
	return c
}

// QueuePairs are the queue pairs of a device, each known by its counters. The zero value has none. Its methods may
// be called from any goroutine.
type QueuePairs struct {
	mu   sync.Mutex // taken after all locks but those of completion queues and memory
	open map[*Counters]struct{}
	past rdma.Counters // of those that are gone
}

// Add enters a queue pair, or reports that there are most already.
func (s *QueuePairs) Add(n *Counters, most int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) >= most {
		return false
	}
	if s.open == nil {
		s.open = make(map[*Counters]struct{})
	}
	s.open[n] = struct{}{}
	return true
}

// Remove takes a queue pair out, and keeps its counts. It is called once.
func (s *QueuePairs) Remove(n *Counters) {
	n.settle()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, n)
	n.AddTo(&s.past)
}

// InUse reports whether there are queue pairs.
func (s *QueuePairs) InUse() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open) > 0
}

// Counters returns what has crossed all queue pairs in the life of the device.
func (s *QueuePairs) Counters() rdma.Counters {
	s.mu.Lock()
	open := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	for _, n := range open {
		n.settle() // with locks of its own
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := s.past
	for n := range s.open {
		n.AddTo(&sum)
	}
	return sum
}
