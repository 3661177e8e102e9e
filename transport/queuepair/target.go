// Package queuepair has what the movers of RDMA connections share, whatever protocol they speak: memory that the device
// knows, receives, transfers, the send queue, and the end of a connection. It is for queue pairs what bytestream is for
// sockets.
//
//	target.go    what all connections of a device share: memory, and how many of them there may be
//	domain.go    what the device knows of the I/O memory, and who may reach it
//	receives.go  memory for messages
//	link.go      one connection: what is posted, what has completed, and the end
//	transfer.go  RDMA Reads and Writes of the data of a command
package queuepair

import (
	"container/list"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"oneshot/mem"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/manager"
)

const (
	// chunk bounds one RDMA operation, so that the connection's other work gets its turn.
	chunk = 256 << 10
	// sharedSlots is how many receives the connections of a device share, where a peer's
	// Send waits for one. Each is in use for the microseconds that its message takes.
	sharedSlots = 1024
	// startingSlots is how many connections that have proved nothing may each keep one of the shared receives with a
	// message that has come in part (Limits.PartTakesReceive). The others are left to those that have.
	startingSlots = sharedSlots / 8
	// startingMemory is the part of I/O memory, one in so many, that connections which have proved nothing may take for
	// receives of their own.
	startingMemory = 8
	// outSlots is how many messages too long to be inline the connections of a device can send, and how much they can
	// receive for what has no I/O memory of its own, when all I/O memory is in use.
	outSlots = 64
)

// Config says what a Target needs.
type Config struct {
	Name    string // of the protocol: errors begin with it
	Peer    string // what the log calls the address of the other end
	Device  rdma.Device
	Pool    *mem.Pool
	Message int // bytes of the longest message
	Own     int // most receives of a connection, where they are not shared
	Logger  *slog.Logger
	// Idle, if set, is called whenever the last connection has gone, in a goroutine of that connection.
	Idle func()
}

// Target is the target's side of a protocol on one device. Its methods may be called from any goroutine.
type Target struct {
	cfg    Config
	limits rdma.Limits
	read   manager.Limits
	write  manager.Limits
	domain *domain   // of all connections; nil: each has its own (isolated)
	shared *receives // nil: each connection has its own
	// isolated: connections share no protection domain; see domain.
	isolated bool
	named    bool // peers can use the STag of a Read's sink

	outMu sync.Mutex
	outs  []*mem.Lease // the memory of free; does not change
	free  [][]byte     // guarded by outMu

	domainMu sync.Mutex           // taken before domain.mu
	domains  map[*domain]struct{} // that are open; guarded by domainMu

	arenas    atomic.Pointer[[]*mem.Arena] // of the pool
	stopWatch func()
	regErr    atomic.Pointer[error]
	ready     atomic.Bool // NewTarget has succeeded

	connMu sync.Mutex
	conns  int       // guarded by connMu
	none   sync.Cond // on connMu; conns is 0
	// starting are the Links that have proved nothing, oldest first, where the device has them bounded; guarded by connMu.
	starting    list.List
	maxStarting int // of starting; 0: no bound. Does not change
	leaving     int // of those that gave way, guarded by connMu
}

// NewTarget makes the memory of the pool known to the device, and posts receives. Close has to be called in the end.
func NewTarget(cfg Config) (*Target, error) {
	t := &Target{cfg: cfg, limits: cfg.Device.Limits(), domains: make(map[*domain]struct{})}
	t.none.L = &t.connMu
	t.read, t.write = manager.ReadLimits(t.limits, chunk), manager.WriteLimits(t.limits, chunk)
	t.named = t.limits.ReadSinkWrite || t.limits.UnguardedRead
	t.isolated = t.named || t.limits.UnguardedInvalidate
	t.arenas.Store(new([]*mem.Arena))
	var err error
	if !t.isolated {
		if t.domain, err = t.newDomain(); err != nil {
			return nil, err
		}
	}
	t.stopWatch = cfg.Pool.Arenas(t.grown, t.idle)
	if e := t.regErr.Load(); e != nil {
		return nil, errors.Join(*e, t.Close())
	}
	if t.free, t.outs, err = t.slots(outSlots); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	if t.limits.ReceiveWait && !t.isolated {
		q, err := cfg.Device.NewReceiveQueue(t.domain.pd, sharedSlots)
		if err != nil {
			return nil, errors.Join(t.wrap(err), t.Close())
		}
		if t.shared, err = t.newReceives(t.domain, sharedSlots, q); err != nil {
			return nil, errors.Join(err, q.Close(), t.Close())
		}
	}
	t.maxStarting = t.startingShare()
	t.ready.Store(true)
	return t, nil
}

// Limits are those of the device.
func (t *Target) Limits() rdma.Limits { return t.limits }

func (t *Target) wrap(err error) error { return fmt.Errorf("%s: %w", t.cfg.Name, err) }

// grown takes an arena that the pool has mapped, or uses again. The first calls come in the order of Index.
func (t *Target) grown(a *mem.Arena) {
	if !t.isolated {
		if _, err := t.domain.register(a); err != nil && t.ready.Load() { // before, it is NewTarget's error
			t.cfg.Logger.Error(err.Error())
		}
	}
	old := *t.arenas.Load()
	if a.Index() < len(old) {
		return
	}
	list := append(append(make([]*mem.Arena, 0, len(old)+1), old...), a)
	t.arenas.Store(&list)
}

// idle lets go of an arena that nobody uses: the pool is about to give its memory back.
func (t *Target) idle(a *mem.Arena) {
	t.domainMu.Lock()
	defer t.domainMu.Unlock()
	for d := range t.domains {
		if err := d.deregister(a); err != nil {
			t.cfg.Logger.Error("idle I/O memory stays with the device", "device", t.limits.Name, "reason", err)
		}
	}
}

// Busy reports whether there are connections.
func (t *Target) Busy() bool {
	t.connMu.Lock()
	defer t.connMu.Unlock()
	return t.conns > 0
}

// startingShare is how many connections may be there that have proved nothing; 0: the bound of all connections is enough.
// Any peer can open connections, and would keep others from receiving, or from I/O memory, with what each takes.
func (t *Target) startingShare() int {
	switch {
	case t.shared == nil:
		return max(int(t.cfg.Pool.Stats().Limit/startingMemory)/mem.RoundUp(min(t.cfg.Own*t.cfg.Message, mem.MaxLease)), 1)
	case t.limits.PartTakesReceive:
		return startingSlots
	}
	return 0
}

// MakeRoom has the oldest of the connections that have proved nothing give way to a new one, if there are as many as may
// be. False: of those that were told to give way too many have not ended.
func (t *Target) MakeRoom() bool {
	t.connMu.Lock()
	if t.maxStarting == 0 || t.starting.Len() < t.maxStarting {
		t.connMu.Unlock()
		return true
	}
	if t.leaving > t.maxStarting/4 {
		t.connMu.Unlock()
		return false
	}
	l := t.starting.Remove(t.starting.Front()).(*Link)
	l.place, l.leaving = nil, true
	t.leaving++
	t.connMu.Unlock()
	l.owner.Lock()
	defer l.owner.Unlock()
	if !l.proved && !l.dead {
		t.cfg.Logger.Info("connection ended: too many connections have proved nothing yet, and it is the oldest of them", t.cfg.Peer, l.peer)
		l.Break(nil)
	}
	return true
}

// starts enters a connection that has yet to prove something. Its lock is held.
func (t *Target) starts(l *Link) {
	if t.maxStarting == 0 || l.proved || l.dead {
		return
	}
	t.connMu.Lock()
	l.place = t.starting.PushBack(l)
	t.connMu.Unlock()
}

// started is the end of starts: l has proved something, or is over.
func (t *Target) started(l *Link) {
	t.connMu.Lock()
	defer t.connMu.Unlock()
	if l.place != nil {
		t.starting.Remove(l.place)
		l.place = nil
	}
	if l.leaving {
		l.leaving = false
		t.leaving--
	}
}

// came notes a connection.
func (t *Target) came() {
	t.connMu.Lock()
	t.conns++
	t.connMu.Unlock()
}

// went is the end of came.
func (t *Target) went() {
	t.connMu.Lock()
	t.conns--
	last := t.conns == 0
	if last {
		t.none.Broadcast()
	}
	t.connMu.Unlock()
	if last && t.cfg.Idle != nil {
		t.cfg.Idle()
	}
}

// Close waits for the connections, which somebody else has to end, and gives the device back what is the target's.
func (t *Target) Close() error {
	t.connMu.Lock()
	for t.conns > 0 {
		t.none.Wait()
	}
	t.connMu.Unlock()
	var errs []error
	if t.shared != nil {
		errs = append(errs, t.shared.close())
	}
	release(t.outs)
	t.stopWatch()
	if t.domain != nil {
		errs = append(errs, t.domain.close())
	}
	return errors.Join(errs...)
}

// Memory is registered memory that holds something until it has been sent, or used.
type Memory struct {
	slot  []byte     // of the target's own, if it is not empty
	lease *mem.Lease // otherwise
}

var errNoMemory = errors.New("no memory for an answer: the limit on buffer memory is reached (limits.memory)")

// memory returns memory of n bytes, on a connection of d. The target's own comes first, so that connections can be made when
// others have all I/O memory.
func (t *Target) memory(d *domain, n int, m *Memory) (rdma.SGE, error) {
	if n <= t.cfg.Message {
		t.outMu.Lock()
		if k := len(t.free); k > 0 {
			m.slot = t.free[k-1]
			t.free = t.free[:k-1]
		}
		t.outMu.Unlock()
		if m.slot != nil {
			return d.sge(m.slot[:n])
		}
	}
	if m.lease = t.cfg.Pool.Lease(n); m.lease == nil {
		return rdma.SGE{}, errNoMemory
	}
	return d.sge(m.lease.Bytes())
}

// giveBack takes memory that is not needed any more.
func (t *Target) giveBack(m *Memory) {
	if m.slot != nil {
		t.outMu.Lock()
		t.free = append(t.free, m.slot)
		t.outMu.Unlock()
		m.slot = nil
	}
	if m.lease != nil {
		m.lease.Release()
		m.lease = nil
	}
}
