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

// putBack puts a receive that was taken back at the front of the queue.
func (r *receives) putBack(from *soft.Receive) {
	r.PutBack(from)
	r.wake(1)
}

// wake wakes as many readers as there are new receives. The readers take the receives when they run.
func (r *receives) wake(n int) {
	for n > 0 && r.WakeOne() {
		n--
	}
}

// leave removes a queue pair from the list of those that wait. If a receive has already woken it, another
// one is woken instead.
func (r *receives) leave(q *queuePair) { r.wake(r.Leave(&q.waiter)) }
