package soft

import (
	"sync"

	"oneshot/internal/ring"
	"oneshot/transport/rdma"
)

// Queues are the completion queues of a device. The zero value has none.
type Queues struct {
	mu   sync.Mutex // taken after all other locks but those of the queues
	open map[*CompletionQueue]struct{}
	past rdma.Counters // of those that are gone
}

// New makes a completion queue, which grows as it has to. event may be nil.
func (s *Queues) New(event func()) *CompletionQueue {
	c := &CompletionQueue{of: s, event: event}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = make(map[*CompletionQueue]struct{})
	}
	s.open[c] = struct{}{}
	return c
}

// Own reports whether c belongs to this device.
func (s *Queues) Own(c *CompletionQueue) bool { return c.of == s }

// InUse reports whether there are queues.
func (s *Queues) InUse() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open) > 0
}

// AddTo adds what has crossed all queues in the life of the device.
func (s *Queues) AddTo(sum *rdma.Counters) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum.Polls += s.past.Polls
	sum.Completions += s.past.Completions
	sum.Events += s.past.Events
	for c := range s.open {
		c.AddTo(sum)
	}
}

// CompletionQueue is a completion queue. Whoever calls Fire calls its event. Callers that may hold locks which the
// event wants, such as those of Post, use Notify or Deliver: then a goroutine of the queue's own calls the event. It is
// started when it is first needed.
type CompletionQueue struct {
	of    *Queues
	event func()

	mu      sync.Mutex // taken after the locks of queue pairs
	ring    ring.Ring[rdma.Completion]
	armed   bool
	running bool // a call of event is under way
	closed  bool
	users   int // queue pairs

	polls, completions, events uint64

	kick chan struct{} // wakes the goroutine; capacity 1; nil: not started
	wg   sync.WaitGroup
}

var _ rdma.CompletionQueue = (*CompletionQueue)(nil)

// eventsInRow is how often the caller of Fire calls event before another has to.
const eventsInRow = 8

// Push adds a completion. Fire or Notify follows.
func (c *CompletionQueue) Push(x *rdma.Completion) {
	c.mu.Lock()
	c.ring.Push(*x)
	c.mu.Unlock()
}

// Lock begins to add completions, with any number of calls of Add, and Unlock ends it. Fire or Notify follows.
func (c *CompletionQueue) Lock()   { c.mu.Lock() }
func (c *CompletionQueue) Unlock() { c.mu.Unlock() }

// Add adds a completion and returns it, cleared, to be filled in. The lock is held.
func (c *CompletionQueue) Add() *rdma.Completion {
	x := c.ring.Next()
	c.ring.Tail++
	*x = rdma.Completion{}
	return x
}

// PushAll is Push of many.
func (c *CompletionQueue) PushAll(xs []rdma.Completion) {
	c.mu.Lock()
	for i := range xs {
		c.ring.Push(xs[i])
	}
	c.mu.Unlock()
}

// Deliver adds completions. If event is due, the queue's goroutine calls it.
func (c *CompletionQueue) Deliver(xs ...rdma.Completion) {
	if len(xs) == 0 {
		return
	}
	c.mu.Lock()
	for i := range xs {
		c.ring.Push(xs[i])
	}
	if c.due() && !c.running {
		c.wake()
	}
	c.mu.Unlock()
}

// Poll implements rdma.CompletionQueue.
func (c *CompletionQueue) Poll(into []rdma.Completion) int {
	c.mu.Lock()
	n := min(len(into), c.ring.Len())
	if n == 0 {
		c.mu.Unlock()
		return 0
	}
	for i := range n {
		p := c.ring.At(c.ring.Head)
		into[i] = *p
		p.QueuePair, p.Err = nil, nil
		c.ring.Head++
	}
	c.polls++
	c.completions += uint64(n)
	c.mu.Unlock()
	return n
}

// Arm implements rdma.CompletionQueue.
func (c *CompletionQueue) Arm() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring.Len() > 0 {
		return false
	}
	c.armed = true
	return true
}

// Awaited reports whether somebody waits for the event, or is being told.
func (c *CompletionQueue) Awaited() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.armed || c.running
}

func (c *CompletionQueue) due() bool {
	return c.armed && c.ring.Len() > 0 && !c.closed && c.event != nil
}

// Fire calls event if it is due. The caller is a goroutine of the provider without locks.
func (c *CompletionQueue) Fire() {
	c.mu.Lock()
	if !c.due() || c.running {
		c.mu.Unlock()
		return
	}
	c.running = true
	for round := 0; c.due() && round < eventsInRow; round++ {
		c.call()
	}
	c.running = false
	if c.due() {
		c.wake()
	}
	c.mu.Unlock()
}

// call calls event. The lock is held, but not during the call.
func (c *CompletionQueue) call() {
	c.armed = false
	c.events++
	c.mu.Unlock()
	c.event()
	c.mu.Lock()
}

// Notify has the queue's goroutine call event if it is due.
func (c *CompletionQueue) Notify() {
	c.mu.Lock()
	if c.due() && !c.running { // who runs looks again
		c.wake()
	}
	c.mu.Unlock()
}

// wake wakes the queue's own goroutine. The lock is held.
func (c *CompletionQueue) wake() {
	if c.kick == nil {
		c.kick = make(chan struct{}, 1)
		c.wg.Go(c.loop)
	}
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

func (c *CompletionQueue) loop() {
	for range c.kick {
		c.Fire()
	}
}

// Use counts the queue pairs that use the queue.
func (c *CompletionQueue) Use(n int) {
	c.mu.Lock()
	c.users += n
	c.mu.Unlock()
}

// Close implements rdma.CompletionQueue.
func (c *CompletionQueue) Close() error {
	c.mu.Lock()
	switch {
	case c.closed:
		c.mu.Unlock()
		return nil
	case c.users > 0:
		c.mu.Unlock()
		return ErrInUse
	}
	c.closed = true
	if c.kick != nil {
		close(c.kick)
	}
	c.mu.Unlock()
	c.wg.Wait()
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.AddTo(&c.of.past)
	c.of.mu.Unlock()
	return nil
}

// AddTo adds what has crossed the queue.
func (c *CompletionQueue) AddTo(sum *rdma.Counters) {
	c.mu.Lock()
	sum.Polls += c.polls
	sum.Completions += c.completions
	sum.Events += c.events
	c.mu.Unlock()
}
