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

	"oneshot/mem"
	"oneshot/nvme"
)

// Config is what the controllers of a node have in common.
type Config struct {
	Pool   *mem.Pool
	Logger *slog.Logger
	// MemoryPerConnection is the most bytes of I/O memory that the commands of one queue hold.
	MemoryPerConnection int
	Depth               int // entries of the largest I/O queue, 2 to 65535
	Firmware            string
	Limits              Limits
}

// Limits are the parts of Config that may change while the node works.
type Limits struct {
	Connections    int           // most connections, with a controller or without
	Controllers    int           // most controllers
	ConnectTimeout time.Duration // from a connection to its Connect command
}

// Portal is an address at which the node is reached.
type Portal struct {
	ID uint16 // names it to hosts
	// Reached returns the address of the portal for a host that has reached local, which may be another portal's.
	// False: it is not reached there.
	Reached func(local netip.AddrPort) (netip.AddrPort, bool)
}

const (
	adminDepth = 32 // entries of an admin queue
	// maxIOQueues is how many I/O queues a controller has.
	maxIOQueues = 64
	// maxCapsule is the most data that a command capsule of an I/O queue may have.
	maxCapsule = 16 << 10
	// adminCapsule is what one of an admin queue may have (NVMe/TCP 1.0 §3.5.1.3).
	adminCapsule = 8 << 10
)

// Node is the NVMe side of the daemon: subsystems, and the controllers that hosts have made. Its methods may be called from
// any goroutine.
type Node struct {
	cfg     Config
	log     *slog.Logger
	pool    *mem.Pool
	most    int           // bytes of the largest lease of a command
	capsule int           // bytes of data in a capsule of an I/O queue
	clock   atomic.Uint32 // seconds since the start
	limits  atomic.Pointer[Limits]
	wake    chan struct{} // capacity 1: there may be something to tell hosts

	discovery *Subsystem

	mu          sync.Mutex   // taken after Queue.mu; before Subsystem.mu
	subsystems  []*Subsystem // guarded by mu
	portals     []Portal     // elements never change; guarded by mu
	generation  uint64       // of what discovery tells; guarded by mu
	rediscover  bool         // it has changed, and hosts are to be told; guarded by mu
	queues      map[*Queue]struct{}
	unproven    []*Queue // in the order in which they came, besides others that are connected, or gone
	nUnproven   int      // of queues: those that are not connected
	coming      int      // connections that were admitted and are not in queues yet
	leaving     int      // of unproven: those that have been told to give way
	controllers int
	closing     bool
	idle        chan struct{} // closed when closing and no queue is left
}

// NewNode returns a node without subsystems.
func NewNode(cfg Config) *Node {
	n := &Node{
		cfg: cfg, log: cfg.Logger, pool: cfg.Pool, wake: make(chan struct{}, 1),
		queues: make(map[*Queue]struct{}), idle: make(chan struct{}),
		// It begins with the time, so that a restart does not repeat what hosts remember.
		generation: uint64(time.Now().UnixMilli()) << 10,
	}
	n.most = mostLease(cfg.Pool.Stats().Limit, cfg.MemoryPerConnection)
	// Half of the memory of a connection is for data that come with their commands.
	n.capsule = min(maxCapsule, cfg.MemoryPerConnection/2/cfg.Depth) &^ (mem.PageSize - 1)
	n.discovery = newSubsystem(n, SubsystemConfig{NQN: nvme.DiscoveryNQN})
	n.SetLimits(cfg.Limits)
	return n
}

// mostLease is how many bytes one command can have at once of a pool and of a connection's share: a power of two pages.
func mostLease(pool int64, share int) int {
	most := min(pool/2, int64(share)/2, mem.MaxLease)
	return 1 << (bits.Len64(uint64(most)) - 1)
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

// AddSubsystem makes a subsystem known to hosts.
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
	n.mu.Lock()
	n.subsystems = slices.DeleteFunc(n.subsystems, func(o *Subsystem) bool { return o == s })
	n.mu.Unlock()
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
			n.tick()
		}
	}
}

// tick lets one second pass.
func (n *Node) tick() {
	now := n.clock.Add(1)
	for _, q := range n.list() {
		q.Lock()
		q.tick(now)
		q.Unlock()
	}
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
			c.admin.post(func() { c.raise(eventDiscovery) })
		}
	}
	for _, s := range list {
		s.tell()
	}
}

func (n *Node) list() []*Queue {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := make([]*Queue, 0, len(n.queues))
	for q := range n.queues {
		list = append(list, q)
	}
	return list
}

// maxLeaving bounds the connections that are there beyond the limit, because others have been told to end and have not
// yet.
const maxLeaving = 32

// unprovenShare is how many of the connections may be without a controller.
func unprovenShare(connections int) int { return max(connections/2, min(connections, 16)) }

// Admit reports whether one more connection may come, and counts it. NewQueue or Dismiss follows. Those without a
// controller have a share of the places: when it is used up, or all places are, the oldest of them gives way.
func (n *Node) Admit() bool {
	n.mu.Lock()
	most := n.limits.Load().Connections
	full := len(n.queues)+n.coming-n.leaving >= most || n.nUnproven+n.coming-n.leaving >= unprovenShare(most)
	var old *Queue
	if full && !n.closing && n.leaving < maxLeaving {
		old = n.evict()
	}
	if n.closing || full && old == nil {
		n.mu.Unlock()
		return false
	}
	n.coming++
	n.mu.Unlock()
	if old != nil {
		old.post(func() {
			old.fail(AtOnce, "there are more connections than limits.connections, and of those without a controller this is the oldest")
		})
	}
	return true
}

// evict marks the oldest connection without a controller, and returns it; nil: there is none. mu is held.
func (n *Node) evict() *Queue {
	for len(n.unproven) > 0 {
		q := n.unproven[0]
		n.unproven[0] = nil
		n.unproven = n.unproven[1:]
		if q.unproven && !q.evicted {
			q.evicted = true
			n.leaving++
			return q
		}
	}
	return nil
}

// Dismiss takes back what Admit counted, of a connection that came to nothing.
func (n *Node) Dismiss() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.coming--
	n.checkIdle()
}

// add counts a queue in.
func (n *Node) add(q *Queue) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queues[q] = struct{}{}
	n.coming--
	n.nUnproven++
	q.unproven = true
	if len(n.unproven) > 2*n.nUnproven {
		n.unproven = slices.DeleteFunc(n.unproven, func(q *Queue) bool { return !q.unproven || q.evicted })
	}
	n.unproven = append(n.unproven, q)
}

// proves says that the queue has a controller, or is over. False: it has been told to give way.
func (n *Node) proves(q *Queue, over bool) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if q.evicted && !over {
		return false
	}
	if q.unproven {
		q.unproven = false
		n.nUnproven--
	}
	if q.evicted {
		q.evicted = false
		n.leaving--
	}
	return true
}

// forget drops a queue of which nothing is left.
func (n *Node) forget(q *Queue) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.queues, q)
	n.checkIdle()
}

// checkIdle tells Shutdown when no connection is left, nor one on its way. mu is held.
func (n *Node) checkIdle() {
	if n.closing && n.coming == 0 && len(n.queues) == 0 {
		close(n.idle) // nobody is admitted any more, so this is the only time
	}
}

// Connections is how many connections there are.
func (n *Node) Connections() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.queues) + n.coming
}

// Quiesce returns when every queue there is has been in nobody's hands for a moment: commands that were begun with
// namespaces that have since been taken away are known to these.
func (n *Node) Quiesce() {
	for _, q := range n.list() {
		q.Lock()
		q.Unlock() //nolint:staticcheck // the lock itself is what is waited for
	}
}

// abortTime is how long connections that were cut off may take to come back from their stores.
const abortTime = 2 * time.Second

// Shutdown ends all connections: NVMe has no way to ask a host to leave. What is under way is answered, as long as ctx lasts. It returns
// when nothing is outstanding in the stores, or some time after ctx has ended with its error.
func (n *Node) Shutdown(ctx context.Context) error {
	n.mu.Lock()
	n.closing = true
	n.checkIdle()
	n.mu.Unlock()
	for _, q := range n.list() {
		q.Lock()
		q.leave()
		q.Unlock()
	}
	select {
	case <-n.idle:
		return nil
	case <-ctx.Done():
	}
	for _, q := range n.list() {
		q.Lock()
		q.mover.Terminate(AtOnce)
		q.Unlock()
	}
	select {
	case <-n.idle:
		return nil
	case <-time.After(abortTime):
		return ctx.Err()
	}
}

// addController counts a controller; false: there are too many.
func (n *Node) addController() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing || n.controllers >= n.limits.Load().Controllers {
		return false
	}
	n.controllers++
	return true
}

func (n *Node) dropController() {
	n.mu.Lock()
	n.controllers--
	n.mu.Unlock()
}
