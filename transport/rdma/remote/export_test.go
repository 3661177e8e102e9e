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

// Ending is closed when a queue pair has begun to end.
func Ending(qp rdma.QueuePair) <-chan struct{} { return qp.(*queuePair).ctx.Done() }
