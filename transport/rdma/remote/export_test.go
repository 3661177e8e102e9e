package remote

import "oneshot/transport/rdma"

// Cut ends the connection of a queue pair, if it has one.
func Cut(qp rdma.QueuePair) {
	if below := qp.(*queuePair).below(); below != nil {
		below.Abort(nil)
	}
}
