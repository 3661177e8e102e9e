package remote

import "oneshot/transport/rdma"

// Cut ends the connection of a queue pair, if it has one.
func Cut(qp rdma.QueuePair) {
	if below := qp.(*queuePair).below(); below != nil {
		below.Abort(nil)
	}
}

// Ending is closed when a queue pair has begun to end.
func Ending(qp rdma.QueuePair) <-chan struct{} { return qp.(*queuePair).ctx.Done() }
