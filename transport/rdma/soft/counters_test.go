package soft

import (
	"testing"

	"oneshot/transport/rdma"
)

// The counts of a device never go back: those of a queue pair that is gone stay. No count is higher than it can be.
func TestQueuePairs(t *testing.T) {
	var s QueuePairs
	var a, b Counters
	a.Posts.Store(3)
	b.Posts.Store(4)
	if s.InUse() || s.Counters() != (rdma.Counters{}) {
		t.Error("a device begins with queue pairs")
	}
	if !s.Add(&a, 1) || s.Add(&b, 1) || !s.Add(&b, 2) {
		t.Error("the bound is another one")
	}
	if n := s.Counters().Posts; n != 7 {
		t.Errorf("%d posts, want 7", n)
	}
	s.Remove(&a)
	a.Posts.Store(100) // it is gone
	if n := s.Counters().Posts; n != 7 || !s.InUse() {
		t.Errorf("%d posts after the end of one, want 7", n)
	}
	s.Remove(&b)
	if n := s.Counters().Posts; n != 7 || s.InUse() {
		t.Errorf("%d posts after the end of both, want 7", n)
	}
}

// A completion queue for both directions is counted once.
func TestCountersWith(t *testing.T) {
	var qs Queues
	send, recv := qs.New(nil), qs.New(nil)
	var n Counters
	n.Works.Store(5)
	for q, polls := range map[*CompletionQueue]int{send: 1, recv: 2} {
		for range polls {
			q.Push(&rdma.Completion{})
			q.Poll(make([]rdma.Completion, 1))
		}
	}
	if c := n.With(send, recv); c.Works != 5 || c.Polls != 3 || c.Completions != 3 {
		t.Errorf("two queues: %+v", c)
	}
	if c := n.With(recv, recv); c.Polls != 2 {
		t.Errorf("one queue: %+v", c)
	}
}

// What is counted elsewhere is asked for before anything is read.
func TestCountersSettle(t *testing.T) {
	var s QueuePairs
	var qs Queues
	var n Counters
	n.Settle = func() { n.Posts.Add(1) }
	q := qs.New(nil)
	s.Add(&n, 1)
	if c := n.With(q, q); c.Posts != 1 {
		t.Errorf("%d posts of the queue pair, want 1", c.Posts)
	}
	if c := s.Counters(); c.Posts != 2 {
		t.Errorf("%d posts of all, want 2", c.Posts)
	}
	if s.Remove(&n); s.past.Posts != 3 {
		t.Errorf("%d posts of what is gone, want 3", s.past.Posts)
	}
}
