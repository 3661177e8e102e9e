// Package iser moves iSCSI PDUs and the data of commands over RDMA. It is the datamover of
// package iscsi for transport/rdma, in two framings, between which the first PDU of a
// connection decides:
//
//	iSER          RFC 7145 as Linux does it: an iSER header in front of each PDU names the
//	              initiator's buffers
//	iSCSI-direct  PDUs travel unmodified over one-shot RDMA: the STag of a command's buffer
//	              rides in the header of its Send, and the response closes it
//
// Either way a READ is one post, RDMA Writes and response together; data of a WRITE that has
// not come with its command is fetched with RDMA Reads.
//
//	target.go  connections of a device: who may come
//	conn.go    a connection, and its tasks
//	in.go      messages in:  receive ─► PDU ─► session
//	data.go    data in and out, through the RDMA manager
//	out.go     messages out: answers and control PDUs
//	header.go  the iSER header
//
// Memory, receives, the send queue, and the ends of connections are those of package queuepair.
package iser

import (
	"errors"
	"log/slog"
	"net"

	"oneshot/iscsi"
	"oneshot/iscsi/login"
	"oneshot/mem"
	"oneshot/transport/queuepair"
	"oneshot/transport/rdma"
)

const (
	// maxSegment is the longest data segment that is taken, the TargetRecvDataSegmentLength
	// we agree to.
	maxSegment = 8192
	// slotLen holds the longest message: iSER header, BHS, AHS and a data segment.
	slotLen = 9 << 10
	// extraSlots is how many receives a connection of its own has beyond its command window:
	// task management, NOP-Outs, a Logout.
	extraSlots = 24
)

// Config says what a Target needs.
type Config struct {
	Node      *iscsi.Node
	Device    rdma.Device
	Transport string // what portals over the device are called: iscsi.Portal.Transport
	Pool      *mem.Pool
	Commands  int // command window of a session
	Logger    *slog.Logger
	// Idle, if set, is called whenever the last connection has gone, in a goroutine of that connection.
	Idle func()
}

// receives is how many a connection has where they are not shared.
func (c *Config) receives() int { return c.Commands + extraSlots }

// Target is the target's side of iSER on one device. Its methods may be called from any
// goroutine.
type Target struct {
	*queuepair.Target
	cfg   Config
	offer login.Config
}

// NewTarget makes the memory of the pool known to the device, and posts receives. Close has
// to be called in the end.
func NewTarget(cfg Config) (*Target, error) {
	q, err := queuepair.NewTarget(queuepair.Config{
		Name: "iser", Peer: "initiator_address", Device: cfg.Device, Pool: cfg.Pool, Message: slotLen, Own: cfg.receives(),
		Logger: cfg.Logger, Idle: cfg.Idle,
	})
	if err != nil {
		return nil, err
	}
	return &Target{Target: q, cfg: cfg, offer: login.RDMAConfig()}, nil
}

// Serve accepts connections from l until it is closed. offer is what their initiators may ask for of
// one-shot; nil: nothing. enter, if it is not nil, is called before a connection is made, and the function that it returns when the connection
// has ended, with the lock of the connection held.
func (t *Target) Serve(l rdma.Listener, offer *rdma.OneShotOffer, enter func(rdma.Request) (leave func())) error {
	for {
		req, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if !t.cfg.Node.Admit() {
			t.cfg.Logger.Warn("connection refused: the limit is reached (limits.connections), or the target is stopping", "initiator_address", req.RemoteAddr().String())
			_ = req.Reject(nil)
			continue
		}
		if !t.MakeRoom() {
			t.cfg.Node.Dismiss()
			t.cfg.Logger.Warn("connection refused: too many connections have not logged in", "initiator_address", req.RemoteAddr().String())
			_ = req.Reject(nil)
			continue
		}
		if err := t.newMover(req).accept(req, offer, enter); err != nil {
			t.cfg.Logger.Warn("connection refused", "initiator_address", req.RemoteAddr().String(), "reason", err)
		}
	}
}
