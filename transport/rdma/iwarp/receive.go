package iwarp

import (
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// receives is a queue of receives, of one queue pair or shared.
type receives struct{ soft.Receives }

var _ rdma.ReceiveQueue = (*receives)(nil)

// NewReceiveQueue implements rdma.Device.
func (d *Device) NewReceiveQueue(rd rdma.Domain, depth int) (rdma.ReceiveQueue, error) {
	dom, ok := rd.(*domain)
	if !ok || dom.dev != d {
		return nil, soft.ErrForeign
	}
	r := &receives{}
	r.Init(&dom.Domain, depth, maxSGE)
	return r, nil
}

// PostReceive implements rdma.ReceiveQueue.
func (r *receives) PostReceive(rs []rdma.Receive) (int, error) {
	n, err := r.Post(rs)
	r.wake(n)
	return n, err
}

// putBack makes a receive that was taken the oldest one again.
func (r *receives) putBack(from *soft.Receive) {
	r.PutBack(from)
	r.wake(1)
}

// wake wakes as many readers as there are new receives. They take them when they run.
func (r *receives) wake(n int) {
	for n > 0 && r.WakeOne() {
		n--
	}
}

// leave takes a queue pair off the list of those that wait. Whoever was to be woken by the
// receive that woke it is woken instead.
func (r *receives) leave(q *queuePair) { r.wake(r.Leave(&q.waiter)) }
