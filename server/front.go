package server

import (
	"log/slog"
	"net"
	"sync"

	"oneshot/config"
	"oneshot/iscsi"
	"oneshot/mem"
	"oneshot/nvmf"
	"oneshot/partition/registry"
	osp "oneshot/partition/service"
	"oneshot/transport/tcp"
)

// frontEnd opens the portals of one transport. Its methods are called by one goroutine at a time.
type frontEnd interface {
	// open makes a portal for p. The portals in replaces will be closed before the new one serves; until then they
	// may use its address. open does not disturb them, because the change may still be abandoned.
	open(p *config.Portal, replaces []portal) (portal, error)
	// close releases what the portals of the transport share. It is called after all portals are closed and
	// all connections have ended.
	close() error
}

// portal accepts connections at one address.
type portal interface {
	Addr() net.Addr
	Close() error
	// begin announces that serve will be called. It reports whether the portal can already accept connections.
	// A portal that cannot yet logs when it can, or why it cannot.
	begin() bool
	// serve accepts connections until Close. Its error is that of the listener.
	serve() error
}

// surroundings is what the server gives its front ends.
type surroundings struct {
	node     *iscsi.Node
	nvme     *nvmf.Node
	member   *member // nil: there is no cluster
	pool     *mem.Pool
	commands int // command window of a session
	limits   config.Limits
	log      *slog.Logger
	work     *sync.WaitGroup // of connections
}

// newFrontEnds has a row for each transport.
func newFrontEnds(s surroundings, devices *rdmaDevices, partitions *registry.Registry, objects *heaps, moderation *tcp.Counters) map[config.Transport]frontEnd {
	served := &partitionFront{serviceFront: serviceFront{surroundings: s, what: "partitions"}, registry: partitions, services: make(map[*osp.Service]struct{})}
	served.setLimits(&s.limits)
	kernel := &verbsFront{devices, served}
	return map[config.Transport]frontEnd{
		config.TransportTCP:   &tcpFront{s, moderation},
		config.TransportIWARP: &iwarpFront{devices, served, &objectFront{serviceFront: serviceFront{surroundings: s, what: "objects"}, heaps: objects}},
		config.TransportVerbs: kernel,
		config.TransportLocal: &localFront{served},

		config.TransportNVMeTCP:  &nvmeFront{s, s.nvme},
		config.TransportNVMeRDMA: kernel,
	}
}
