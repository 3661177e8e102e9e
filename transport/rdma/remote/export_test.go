package remote

import "oneshot/transport/rdma"

// Cut ends the connection of a queue pair, if it has one, and returns when that has ended.
func Cut(qp rdma.QueuePair) {
	q := qp.(*queuePair)
	q.mu.Lock()
	l := q.link
	q.mu.Unlock()
	if l != nil {
		l.qp.Abort(nil)
		<-l.gone
	}
}

// Spread has all tags of a queue pair but the first come round: they begin anew, and the first one is about to.
func Spread(qp rdma.QueuePair) {
	q := qp.(*queuePair)
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, p := range q.pieces {
		p.tag = uint32(i)
	}
	q.pieces[0].tag -= 2 * maxCredits
}

// IsUnsent reports whether something of a work that was posted is not sent.
func IsUnsent(qp rdma.QueuePair) bool {
	q := qp.(*queuePair)
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.unsent != nil
}

// Ending is closed when a queue pair has begun to end.
func Ending(qp rdma.QueuePair) <-chan struct{} { return qp.(*queuePair).ctx.Done() }

// HasFailed reports whether it is known of a work that has not completed that a part of it has failed.
func HasFailed(qp rdma.QueuePair) bool {
	q := qp.(*queuePair)
	q.mu.Lock()
	defer q.mu.Unlock()
	for w := q.first; w != nil; w = w.next {
		if w.state != complete && w.status != rdma.StatusOK {
			return true
		}
	}
	return false
}
