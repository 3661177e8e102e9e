package local

import (
	"context"

	"oneshot/transport/rdma"
)

// Narrow is a device of which everything leads to one listener: for a program of another process (transport/rdma/nic/card), which
// is to reach nothing else in this one.
type Narrow struct {
	*Device
	to *listener
}

// OpenNarrow is Open. The queue pairs of the device can be connected with l alone, a listener of this package. c.Open has no meaning.
func OpenNarrow(c Config, l rdma.Listener) *Narrow {
	c.Open = nil
	return &Narrow{Open(c), l.(*listener)}
}

// Limits implements rdma.Device. There are no windows: who owns the queue pairs cannot choose STags.
func (d *Narrow) Limits() rdma.Limits {
	l := d.Device.Limits()
	l.Windows = false
	return l
}

// Connect implements rdma.Device. Whatever the address, it is that of the one listener.
func (d *Narrow) Connect(ctx context.Context, qp rdma.QueuePair, _ string, p rdma.ConnParams) error {
	return d.Device.Connect(ctx, qp, d.to.addr().String(), p)
}

// Listen implements rdma.Device: nobody is to connect with the program.
func (d *Narrow) Listen(string) (rdma.Listener, error) { return nil, rdma.ErrUnsupported }
