package local

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
	for r.WakeOne() { // those who wait go on with the Sends of their peers, as long as there are receives
	}
	return n, err
}
