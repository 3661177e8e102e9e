package local

import (
	"sync"

	"oneshot/internal/ring"
	"oneshot/transport/rdma"
)

// completionQueue is a completion queue. Its event is called by a goroutine of its own, which is started
// when it is first needed: who posts may hold locks that the event wants.
type completionQueue struct {
	dev   *Device
	event func()

	mu     sync.Mutex // taken after link.mu and endpoint.mu
	ring   ring.Ring[rdma.Completion]
	armed  bool
	closed bool
	users  int // queue pairs

	polls, completions, events uint64

	kick chan struct{} // wakes the goroutine; capacity 1; nil: not started
	wg   sync.WaitGroup
}

// NewCompletionQueue implements rdma.Device. The queue grows to what is asked of it.
func (d *Device) NewCompletionQueue(_ int, event func()) (rdma.CompletionQueue, error) {
	c := &completionQueue{dev: d, event: event}
	d.mu.Lock()
	d.cqs[c] = struct{}{}
	d.mu.Unlock()
	return c, nil
}

// push adds completions, and has event called if it is due.
func (c *completionQueue) push(xs ...rdma.Completion) {
	if len(xs) == 0 {
		return
	}
	c.mu.Lock()
	for i := range xs {
		c.ring.Push(xs[i])
	}
	if c.due() {
		c.wake()
	}
	c.mu.Unlock()
}

// Poll implements rdma.CompletionQueue.
func (c *completionQueue) Poll(into []rdma.Completion) int {
	c.mu.Lock()
	n := min(len(into), c.ring.Len())
	if n > 0 {
		for i := range n {
			p := c.ring.At(c.ring.Head)
			into[i] = *p
			p.QueuePair, p.Err = nil, nil
			c.ring.Head++
		}
		c.polls++
		c.completions += uint64(n)
	}
	c.mu.Unlock()
	return n
}

// Arm implements rdma.CompletionQueue.
func (c *completionQueue) Arm() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring.Len() > 0 {
		return false
	}
	c.armed = true
	return true
}

func (c *completionQueue) due() bool {
	return c.armed && c.ring.Len() > 0 && !c.closed && c.event != nil
}

// wake wakes the queue's goroutine. The lock is held.
func (c *completionQueue) wake() {
	if c.kick == nil {
		c.kick = make(chan struct{}, 1)
		c.wg.Go(c.loop)
	}
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

func (c *completionQueue) loop() {
	for range c.kick {
		c.mu.Lock()
		for c.due() {
			c.armed = false
			c.events++
			c.mu.Unlock()
			c.event()
			c.mu.Lock()
		}
		c.mu.Unlock()
	}
}

// use counts the queue pairs that use the queue.
func (c *completionQueue) use(n int) {
	c.mu.Lock()
	c.users += n
	c.mu.Unlock()
}

// Close implements rdma.CompletionQueue.
func (c *completionQueue) Close() error {
	c.mu.Lock()
	switch {
	case c.closed:
		c.mu.Unlock()
		return nil
	case c.users > 0:
		c.mu.Unlock()
		return errInUse
	}
	c.closed = true
	if c.kick != nil {
		close(c.kick)
	}
	c.mu.Unlock()
	c.wg.Wait()
	c.dev.mu.Lock()
	delete(c.dev.cqs, c)
	c.addTo(&c.dev.past)
	c.dev.mu.Unlock()
	return nil
}

// addTo adds what has crossed the queue.
func (c *completionQueue) addTo(sum *rdma.Counters) {
	c.mu.Lock()
	sum.Polls += c.polls
	sum.Completions += c.completions
	sum.Events += c.events
	c.mu.Unlock()
}
