// Package nvmerdma moves NVMe capsules and data over RDMA (NVMe RDMA Transport Specification 1.0). It is the mover of package
// nvmf for queue pairs, of whatever device.
//
//	target.go  connections of a device: who may come, and what is said when one is made
//	mover.go   messages in and out: capsules
//	data.go    data of commands: in the capsule, or in the host's memory
//
// A Read is one post, RDMA Writes and the completion together. The data of a Write have come in its capsule, or are fetched
// with RDMA Reads. No memory of a store goes over the wire. Memory, the send queue, and the ends of connections are those of
// package queuepair.
package nvmerdma

import (
	"errors"
	"log/slog"
	"net"

	"oneshot/mem"
	"oneshot/nvme"
	"oneshot/nvme/rdma/cm"
	"oneshot/nvmf"
	"oneshot/transport/queuepair"
	"oneshot/transport/rdma"
)

// capsule is the most data that comes in a capsule: it saves a Read of the smallest writes, and each receive is as long.
const capsule = 4 << 10

// Transport is NVMe over RDMA. Admin queues take no data in capsules (RDMA 1.0 §3.3).
var Transport = &nvmf.Transport{Name: "nvme-rdma", Type: nvme.TransportRDMA, Capsule: capsule, SGLS: nvme.SGLSKeyed}

// Config says what a Target needs.
type Config struct {
	Node   *nvmf.Node
	Device rdma.Device
	Pool   *mem.Pool
	Logger *slog.Logger
	// Idle, if set, is called whenever the last connection has gone, in a goroutine of that connection.
	Idle func()
}

// Target serves the queues of hosts that come through one device. Its methods may be called from any goroutine.
type Target struct {
	*queuepair.Target
	node *nvmf.Node
	log  *slog.Logger
}

// NewTarget makes the memory of the pool known to the device, and posts receives. Close has to be called in the end.
func NewTarget(cfg Config) (*Target, error) {
	q, err := queuepair.NewTarget(queuepair.Config{
		Name: Transport.Name, Peer: "host_address", Device: cfg.Device, Pool: cfg.Pool, Message: nvme.SQELen + capsule,
		Own: cfg.Node.Depth(1) + spareReceives, Logger: cfg.Logger, Idle: cfg.Idle,
	})
	if err != nil {
		return nil, err
	}
	return &Target{Target: q, node: cfg.Node, log: cfg.Logger}, nil
}

// spareReceives is how many receives a connection of its own has beyond the entries of its queue, so that a host with more
// commands than these is told so.
const spareReceives = 1

// Serve accepts connections from l, which belongs to a portal of that group, until it is closed.
func (t *Target) Serve(l rdma.Listener, group uint16) error {
	for {
		req, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := t.accept(req, group); err != nil {
			t.log.Warn("connection refused", "host_address", req.RemoteAddr().String(), "reason", err)
		}
	}
}

var (
	errFull     = errors.New("the limit is reached (limits.connections), or the target is stopping")
	errStarting = errors.New("too many connections have not sent Connect")
)

// admit counts a connection. Its error says why it may not come.
func (t *Target) admit() error {
	if !t.node.Admit() {
		return errFull
	}
	if !t.MakeRoom() {
		t.node.Dismiss()
		return errStarting
	}
	return nil
}

// accept answers a connection request. Its error says why there is no connection.
func (t *Target) accept(req rdma.Request, group uint16) error {
	r, err := t.check(req.PeerData())
	if err == nil {
		err = t.admit()
	}
	if err != nil {
		s, ok := errors.AsType[cm.Status](err)
		if !ok {
			s = cm.NoResources
		}
		return errors.Join(err, req.Reject(cm.AppendReject(nil, s)))
	}
	entries := int(r.HSQ) + 1
	m := &Mover{invalidate: t.Limits().SendInvalidate}
	if r.QID > 0 {
		m.capsule = t.node.Capsule(Transport)
	}
	made := false
	err = m.Link.Accept(t.Target, m, req, entries+spareReceives, rdma.ConnParams{PrivateData: cm.AppendAccept(nil, uint16(entries))}, cm.AppendReject(nil, cm.NoResources), func() queuepair.Owner {
		made = true
		m.queue = t.node.NewQueue(m, group)
		m.queue.Promise(nvmf.Promised{QID: r.QID, Entries: entries, CNTLID: r.CNTLID})
		return m.queue
	})
	if err != nil && !made {
		t.node.Dismiss()
	}
	return err
}

// check reads what a host says of the queue that it wants. Its error is a cm.Status.
func (t *Target) check(data []byte) (cm.Request, error) {
	r, err := cm.ParseRequest(data)
	switch most := t.node.Depth(r.QID); {
	case err != nil:
		return r, err
	case most == 0:
		return r, cm.InvalidQID
	case r.HSQ == 0 || int(r.HSQ) >= most:
		return r, cm.InvalidHSQSize
	case r.HRQ < r.HSQ: // it could not take the completions of as many commands as the queue holds
		return r, cm.InvalidHRQSize
	}
	return r, nil
}
