// Package nvmf is NVMe over Fabrics: subsystems, controllers and queues as step functions (NVM Express Base
// Specification 2.0, in its version 1.4). It does not know how capsules travel, nor how a store keeps its bytes.
//
//	Node ─► Subsystem ─► Namespace ─► volume
//	  │         └──────► Controller ─► Queue 0, 1, … ─► Mover, one connection each
//	  └─► discovery
//
// A command is a Task, which the mover hands to its Queue, and the queue drives. What it asks of the disk is a
// volume.Request.
package nvmf

import (
	"context"
	"log/slog"
	"math/bits"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"oneshot/internal/door"
	"oneshot/mem"
	"oneshot/nvme"
)

// Config is what the controllers of a node have in common.
type Config struct {
	Pool *mem.Pool
	// Door is where the connections come through, which other nodes may share.
	Door   *door.Door
	Logger *slog.Logger
	// MemoryPerConnection is the most bytes of I/O memory that the commands of one queue hold.
	MemoryPerConnection int
	Depth               int // entries of the largest I/O queue, 2 to 65535
	Firmware            string
	Limits              Limits
}

// Limits are the parts of Config that may change while the node works.
type Limits struct {
	Controllers    int           // most controllers, besides those of discovery
	ConnectTimeout time.Duration // from a connection to its Connect command
	ReadTimeout    time.Duration // in which no data come that the host was asked for before the connection is dropped
}

// Portal is an address at which the node is reached.
type Portal struct {
	ID        uint16 // names it to hosts
	Transport *Transport
	// Reached returns the address of the portal for a host that has reached local, which may be another portal's.
	// False: it is not reached there.
	Reached func(local netip.AddrPort) (netip.AddrPort, bool)
	// Elsewhere says that the portal is another node's, where the subsystems of these NQNs are reached, too.
	Elsewhere  bool
	Subsystems []string
}

const (
	adminDepth = 32 // entries of an admin queue
	// maxIOQueues is how many I/O queues a controller has.
	maxIOQueues = 64
)

// Node is the NVMe side of the daemon: subsystems, and the controllers that hosts have made. Its methods may be called from
// any goroutine.
type Node struct {
	cfg     Config
	log     *slog.Logger
	pool    *mem.Pool
	most    int           // bytes of the largest lease of a command
	capsule int           // most bytes of data in a capsule of an I/O queue, over a transport that does not hold
	clock   atomic.Uint32 // seconds since the start
	// lastNumber is that of the newest controller.
	lastNumber atomic.Uint64
	counters   Counters
	limits     atomic.Pointer[Limits]
	wake       chan struct{} // capacity 1: there may be something to tell hosts
	authWork   chan struct{} // has an element for each worker that computes an authentication

	discovery *Subsystem
	guests    *door.Guests[*Queue]

	mu          sync.Mutex   // taken after Queue.mu; before Subsystem.mu
	subsystems  []*Subsystem // guarded by mu
	past        []*Subsystem // that were removed, and may have controllers still; guarded by mu
	portals     []Portal     // elements never change; guarded by mu
	referrals   []Referral   // as portals
	generation  uint64       // of what discovery tells; controllers count on from it; guarded by mu
	rediscover  bool         // it has changed, and hosts are to be told; guarded by mu
	controllers int          // that limits.Controllers bounds
	discoveries int          // controllers of discovery
}

// NewNode returns a node without subsystems.
func NewNode(cfg Config) *Node {
	n := &Node{
		cfg: cfg, log: cfg.Logger, pool: cfg.Pool, wake: make(chan struct{}, 1), authWork: make(chan struct{}, authWorkers()),
		guests: door.NewGuests[*Queue](cfg.Door),
		// It begins with the time, so that a restart does not repeat what hosts remember.
		generation: uint64(time.Now().UnixMilli()) << 10,
	}
	n.most = mostLease(cfg.Pool.Stats().Limit, cfg.MemoryPerConnection)
	// Half of the memory of a connection is for data that come with their commands, if they cannot wait.
	n.capsule = (cfg.MemoryPerConnection / 2 / cfg.Depth) &^ (mem.PageSize - 1)
	n.discovery = newSubsystem(n, SubsystemConfig{NQN: nvme.DiscoveryNQN})
	n.SetLimits(cfg.Limits)
	return n
}

// mostLease is how many bytes one command can have at once of a pool and of a connection's share: a power of two pages.
func mostLease(pool int64, share int) int {
	most := min(pool/2, int64(share)/2, mem.MaxLease)
	return 1 << (bits.Len64(uint64(most)) - 1)
}

// Capsule is how many bytes of data a capsule of an I/O queue may have over a transport.
func (n *Node) Capsule(t *Transport) int {
	if t.Holds {
		return min(n.most, t.Capsule)
	}
	return min(n.capsule, t.Capsule)
}

// Depth is how many entries the largest queue of that number may have; 0: there is no such queue.
func (n *Node) Depth(qid uint16) int {
	switch {
	case qid == 0:
		return adminDepth
	case qid <= maxIOQueues:
		return n.cfg.Depth
	}
	return 0
}

// transferShift is MDTS.
func (n *Node) transferShift() uint8 { return uint8(bits.TrailingZeros(uint(n.most / mem.PageSize))) }

// SetLimits changes the limits.
func (n *Node) SetLimits(l Limits) { n.limits.Store(&l) }

// SetPortals tells where the node is reached.
func (n *Node) SetPortals(ps []Portal) {
	n.mu.Lock()
	n.portals = slices.Clone(ps)
	n.mu.Unlock()
	n.discoveryChanged()
}

// Referral is a discovery service elsewhere, of which hosts are told.
type Referral struct {
	Transport nvme.TransportType
	Address   netip.AddrPort
}

// SetReferrals changes of which discovery services hosts are told.
func (n *Node) SetReferrals(list []Referral) {
	n.mu.Lock()
	same := slices.Equal(n.referrals, list)
	n.referrals = slices.Clone(list)
	n.mu.Unlock()
	if !same {
		n.discoveryChanged()
	}
}

// AddSubsystem makes a subsystem known to hosts. If there is one of that name, it is once that has been removed.
func (n *Node) AddSubsystem(cfg SubsystemConfig) *Subsystem {
	s := newSubsystem(n, cfg)
	n.mu.Lock()
	n.subsystems = append(n.subsystems, s)
	n.mu.Unlock()
	n.discoveryChanged()
	return s
}

// RemoveSubsystem ends the controllers of a subsystem. It is not there any more.
func (n *Node) RemoveSubsystem(s *Subsystem) {
	s.removed.Store(true) // it gets no more controllers
	n.mu.Lock()
	n.subsystems = slices.DeleteFunc(n.subsystems, func(o *Subsystem) bool { return o == s })
	n.past = append(n.past, s)
	n.mu.Unlock()
	n.formerly(s.nqn) // forgets it, if it has none
	n.discoveryChanged()
	s.drop(func(*Controller) bool { return true }, "the subsystem was removed")
}

// discoveryChanged has the hosts told of it that ask for that.
func (n *Node) discoveryChanged() {
	n.mu.Lock()
	n.generation++
	n.rediscover = true
	n.mu.Unlock()
	n.notify()
}

// discoveryGeneration is larger than any that a host was shown before the last change.
func (n *Node) discoveryGeneration() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.generation
}

// notify has Run look for what is to be told to hosts.
func (n *Node) notify() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// subsystem returns the subsystem of that name, or nil.
func (n *Node) subsystem(nqn string) *Subsystem {
	if nqn == nvme.DiscoveryNQN {
		return n.discovery
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.subsystems {
		if s.nqn == nqn {
			return s
		}
	}
	return nil
}

// formerly lists the subsystems of that name that were removed and have controllers still.
func (n *Node) formerly(nqn string) (list []*Subsystem) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.past = slices.DeleteFunc(n.past, func(s *Subsystem) bool { return s.ControllerCount() == 0 })
	for _, s := range n.past {
		if s.nqn == nqn {
			list = append(list, s)
		}
	}
	return list
}

// Run drives timeouts, and tells hosts of changes, until ctx ends.
func (n *Node) Run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
			n.tell()
		case <-tick.C:
			n.Tick()
		}
	}
}

// Tick lets one second pass. Run calls it.
func (n *Node) Tick() {
	now := n.clock.Add(1)
	n.guests.Each(func(q *Queue) { q.tick(now) })
}

// tell tells hosts of what has changed.
func (n *Node) tell() {
	n.mu.Lock()
	list := append([]*Subsystem{}, n.subsystems...)
	rediscover := n.rediscover
	n.rediscover = false
	n.mu.Unlock()
	if rediscover {
		for _, c := range n.discovery.list() {
			c.admin.post(c.rediscovered)
		}
	}
	for _, s := range list {
		s.tell()
	}
}

// Admit reports whether one more connection may come, and counts it. NewQueue or Dismiss follows. Those without a
// controller have a share of the places: when it is used up, or all places are, the oldest of them gives way.
func (n *Node) Admit() bool {
	admitted, full := n.guests.Admit()
	if full {
		n.counters.Refused.Add(1)
	}
	if admitted {
		n.counters.Connections.Add(1)
	}
	return admitted
}

// giveWay ends a connection for which there is no room, if it has no controller still.
func (q *Queue) giveWay() {
	if !q.place.Evicted() || q.over {
		return
	}
	q.log.Info("connection ended: there are more than limits.connections, and of those without a controller it is the oldest")
	q.endNow(AtOnce)
}

// Dismiss takes back what Admit counted, of a connection that came to nothing.
func (n *Node) Dismiss() { n.guests.Dismiss() }

// Connections is how many connections there are.
func (n *Node) Connections() int { return n.guests.Count() }

// Quiesce returns when every queue there is has been in nobody's hands for a moment: commands that were begun with
// namespaces that have since been taken away are known to these.
func (n *Node) Quiesce() {
	n.guests.Each(func(*Queue) {}) // the locks themselves are what is waited for
}

// Shutdown ends all connections: NVMe has no way to ask a host to leave. What is under way is answered, as long as ctx lasts. It returns
// when nothing is outstanding in the stores, or some time after ctx has ended with its error.
func (n *Node) Shutdown(ctx context.Context) error {
	return n.guests.Shutdown(ctx, (*Queue).leave, func(q *Queue) { q.endNow(AtOnce) })
}

// addController counts a controller; false: there are too many. Those of discovery prove nothing, and so take no place from others: their
// connections alone are counted.
func (n *Node) addController(discovery bool) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.guests.Closed():
		return false
	case discovery:
		n.discoveries++
		return true
	case n.controllers >= n.limits.Load().Controllers:
		return false
	}
	n.controllers++
	return true
}

func (n *Node) dropController(discovery bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if discovery {
		n.discoveries--
	} else {
		n.controllers--
	}
}
