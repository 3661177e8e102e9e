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
//	target.go  what all connections of a device share: memory, receives
//	domain.go  what the device knows of the I/O memory, and who may reach it
//	conn.go    the life of a connection, and its completions
//	in.go      messages in:  receive ─► PDU ─► session
//	data.go    data in and out, through the RDMA manager
//	out.go     messages out: answers and control PDUs
//	header.go  the iSER header
package iser

import (
	"container/list"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"oneshot/iscsi"
	"oneshot/iscsi/login"
	"oneshot/mem"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/manager"
)

const (
	// maxSegment is the longest data segment that is taken, the TargetRecvDataSegmentLength
	// we agree to.
	maxSegment = 8192
	// slotLen holds the longest message: iSER header, BHS, AHS and a data segment.
	slotLen = 9 << 10
	// chunk bounds one RDMA operation, so that the connection's other work gets its turn.
	chunk = 256 << 10
	// sharedSlots is how many receives the connections of a device share, where a peer's
	// Send waits for one. Each is in use for the microseconds that its message takes.
	sharedSlots = 1024
	// startingSlots is how many connections that have not logged in may each keep one of the shared receives with a
	// message that has come in part (Limits.PartTakesReceive). The others are left to sessions. Each connection also costs the
	// kernel about 1 MiB for its queues (rxe), which limits.memory does not count.
	startingSlots = sharedSlots / 8
	// startingMemory is the part of I/O memory, one in so many, that connections which have not logged in may take for
	// receives of their own.
	startingMemory = 8
	// outSlots is how many answers too long to be inline the connections of a device can send when
	// all I/O memory is in use: login responses among them.
	outSlots = 64
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

// Target is the target's side of iSER on one device. Its methods may be called from any
// goroutine.
type Target struct {
	cfg    Config
	limits rdma.Limits
	read   manager.Limits
	write  manager.Limits
	offer  login.Config
	domain *domain   // of all connections; nil: each has its own (isolated)
	shared *receives // nil: each connection has its own
	// isolated: connections share no protection domain; see domain.
	isolated bool

	outMu sync.Mutex
	outs  []*mem.Lease // the memory of free; does not change
	free  [][]byte     // guarded by outMu

	arenas    atomic.Pointer[[]*mem.Arena] // of the pool
	stopWatch func()
	regErr    atomic.Pointer[error]
	ready     atomic.Bool // NewTarget has succeeded

	connMu sync.Mutex
	conns  int       // guarded by connMu
	none   sync.Cond // on connMu; conns is 0
	// starting are the Movers that have not logged in, oldest first, where the device has them bounded; guarded by connMu.
	starting    list.List
	maxStarting int // of starting; 0: no bound. Does not change
	leaving     int // of those that gave way, guarded by connMu
}

// NewTarget makes the memory of the pool known to the device, and posts receives. Close has
// to be called in the end.
func NewTarget(cfg Config) (*Target, error) {
	t := &Target{cfg: cfg, limits: cfg.Device.Limits(), offer: login.RDMAConfig()}
	t.none.L = &t.connMu
	t.read, t.write = manager.ReadLimits(t.limits, chunk), manager.WriteLimits(t.limits, chunk)
	t.isolated = t.limits.ReadSinkWrite || t.limits.UnguardedInvalidate
	t.arenas.Store(new([]*mem.Arena))
	var err error
	if !t.isolated {
		if t.domain, err = t.newDomain(); err != nil {
			return nil, err
		}
	}
	idle := t.idle
	if t.isolated {
		idle = nil // connections register for themselves, until they end
	}
	t.stopWatch = cfg.Pool.Arenas(t.grown, idle)
	if e := t.regErr.Load(); e != nil {
		return nil, errors.Join(*e, t.Close())
	}
	if t.free, t.outs, err = t.slots(outSlots); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	if t.limits.ReceiveWait && !t.isolated {
		q, err := cfg.Device.NewReceiveQueue(t.domain.pd, sharedSlots)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("iser: %w", err), t.Close())
		}
		if t.shared, err = t.newReceives(t.domain, sharedSlots, q); err != nil {
			return nil, errors.Join(err, q.Close(), t.Close())
		}
	}
	t.maxStarting = t.startingShare()
	t.ready.Store(true)
	return t, nil
}

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
	if err := t.domain.deregister(a); err != nil {
		t.cfg.Logger.Error("idle I/O memory stays with the device", "device", t.limits.Name, "reason", err)
	}
}

// Serve accepts connections from l until it is closed. offer is what their initiators may ask for of
// one-shot; nil: nothing.
func (t *Target) Serve(l rdma.Listener, offer *rdma.OneShotOffer) error {
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
		if !t.makeRoom() {
			t.cfg.Node.Dismiss()
			t.cfg.Logger.Warn("connection refused: too many connections have not logged in", "initiator_address", req.RemoteAddr().String())
			_ = req.Reject(nil)
			continue
		}
		if err := t.accept(req, offer); err != nil {
			t.cfg.Logger.Warn("connection refused", "initiator_address", req.RemoteAddr().String(), "reason", err)
		}
	}
}

// Busy reports whether there are connections.
func (t *Target) Busy() bool {
	t.connMu.Lock()
	defer t.connMu.Unlock()
	return t.conns > 0
}

// startingShare is how many connections may be there that have not logged in; 0: the node's bound is enough. Any peer can
// open connections, and would keep sessions from receiving, or from I/O memory, with what each takes.
func (t *Target) startingShare() int {
	switch {
	case t.shared == nil:
		return max(int(t.cfg.Pool.Limit()/startingMemory)/mem.RoundUp(min(t.ownSlots()*slotLen, mem.MaxLease)), 1)
	case t.limits.PartTakesReceive:
		return startingSlots
	}
	return 0
}

// ownSlots is how many receives a connection has where they are not shared.
func (t *Target) ownSlots() int { return t.cfg.Commands + extraSlots }

// makeRoom has the oldest of the connections that have not logged in give way to a new one, if there are as many as may
// be. False: of those that were told to give way too many have not ended.
func (t *Target) makeRoom() bool {
	t.connMu.Lock()
	if t.maxStarting == 0 || t.starting.Len() < t.maxStarting {
		t.connMu.Unlock()
		return true
	}
	if t.leaving > t.maxStarting/4 {
		t.connMu.Unlock()
		return false
	}
	m := t.starting.Remove(t.starting.Front()).(*Mover)
	m.place, m.leaving = nil, true
	t.leaving++
	t.connMu.Unlock()
	m.conn.Lock()
	defer m.conn.Unlock()
	if !m.enabled && !m.dead {
		t.cfg.Logger.Info("connection ended: too many connections have not logged in, and it is the oldest of them", "initiator_address", m.peer)
		m.broken(nil)
	}
	return true
}

// starts enters a connection that has yet to log in. Its lock is held.
func (t *Target) starts(m *Mover) {
	if t.maxStarting == 0 || m.enabled || m.dead {
		return
	}
	t.connMu.Lock()
	m.place = t.starting.PushBack(m)
	t.connMu.Unlock()
}

// started is the end of starts: m has logged in or is over.
func (t *Target) started(m *Mover) {
	t.connMu.Lock()
	defer t.connMu.Unlock()
	if m.place != nil {
		t.starting.Remove(m.place)
		m.place = nil
	}
	if m.leaving {
		m.leaving = false
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

// Close waits for the connections, which have to be ended by the node, and gives the device
// back what is the target's.
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

// poster is where receives are posted: a queue pair or a shared queue.
type poster interface {
	PostReceive(rs []rdma.Receive) (int, error)
}

// receives is the memory of receives: slots in leases.
type receives struct {
	target *Target
	queue  rdma.ReceiveQueue // nil: of a queue pair
	leases []*mem.Lease
	// regions, where connections are isolated, are those of leases.
	regions []rdma.Region
	sgl     []rdma.SGE // by slot
}

// slots leases memory for n messages.
func (t *Target) slots(n int) (list [][]byte, leases []*mem.Lease, err error) {
	for left := n; left > 0; {
		bytes := min(left*slotLen, mem.MaxLease)
		l := t.cfg.Pool.Lease(bytes)
		if l == nil {
			release(leases)
			return nil, nil, fmt.Errorf("iser: no memory for %d messages of %d bytes: the limit on buffer memory is reached; raise limits.memory", n, slotLen)
		}
		leases = append(leases, l)
		for off := 0; off+slotLen <= bytes && left > 0; off += slotLen {
			list = append(list, l.Bytes()[off:off+slotLen:off+slotLen])
			left--
		}
	}
	return list, leases, nil
}

func release(leases []*mem.Lease) {
	for _, l := range leases {
		l.Release()
	}
}

// outgoing is registered memory that holds a message until it has been sent.
type outgoing struct {
	slot  []byte     // of the target's own, if it is not empty
	lease *mem.Lease // otherwise
}

var errNoMemory = errors.New("no memory for an answer: the limit on buffer memory is reached (limits.memory)")

// outgoing returns memory for a message of n octets, on a connection of d. The target's own comes first, so that
// connections can log in, and be told why not, when others have all I/O memory.
func (t *Target) outgoing(d *domain, n int, o *outgoing) (rdma.SGE, error) {
	if n <= slotLen {
		t.outMu.Lock()
		if k := len(t.free); k > 0 {
			o.slot = t.free[k-1]
			t.free = t.free[:k-1]
		}
		t.outMu.Unlock()
		if o.slot != nil {
			return d.sge(o.slot[:n])
		}
	}
	if o.lease = t.cfg.Pool.Lease(n); o.lease == nil {
		return rdma.SGE{}, errNoMemory
	}
	return d.sge(o.lease.Bytes())
}

// giveBack takes the memory of a message that has been sent.
func (t *Target) giveBack(o *outgoing) {
	if o.slot != nil {
		t.outMu.Lock()
		t.free = append(t.free, o.slot)
		t.outMu.Unlock()
		o.slot = nil
	}
	if o.lease != nil {
		o.lease.Release()
		o.lease = nil
	}
}

// newReceives makes n slots of d and, if it is a shared queue, posts them.
func (t *Target) newReceives(d *domain, n int, q rdma.ReceiveQueue) (*receives, error) {
	r := &receives{target: t, queue: q}
	list, leases, err := t.slots(n)
	if err != nil {
		return nil, err
	}
	r.leases = leases
	if err = r.register(d, list); err == nil && q != nil {
		err = r.postAll(q)
	}
	if err != nil {
		r.release()
		return nil, err
	}
	return r, nil
}

// register names the slots. Where connections are isolated it registers no more than these, for nobody has logged
// in yet.
func (r *receives) register(d *domain, slots [][]byte) error {
	if r.target.isolated {
		for _, l := range r.leases {
			region, err := d.pd.Register(l.Bytes(), rdma.AccessLocalWrite)
			if err != nil {
				return r.target.refused(l.Bytes(), err)
			}
			r.regions = append(r.regions, region)
		}
	}
	for _, b := range slots {
		s := rdma.SGE{Bytes: b}
		if i := slices.IndexFunc(r.regions, func(x rdma.Region) bool { return within(b, x.Bytes()) }); i >= 0 {
			s.Region = r.regions[i]
		} else {
			var err error
			if s, err = d.sge(b); err != nil {
				return err
			}
		}
		r.sgl = append(r.sgl, s)
	}
	return nil
}

func (r *receives) postAll(q poster) error {
	slots := make([]int, len(r.sgl))
	for i := range slots {
		slots[i] = i
	}
	return r.post(q, slots, make([]rdma.Receive, len(slots)))
}

// post returns slots to their queue. batch is memory for the call.
func (r *receives) post(q poster, slots []int, batch []rdma.Receive) error {
	for len(slots) > 0 {
		n := min(len(slots), len(batch))
		for i, s := range slots[:n] {
			batch[i] = rdma.Receive{ID: receiveID | uint64(s), SGL: r.sgl[s : s+1]}
		}
		if _, err := q.PostReceive(batch[:n]); err != nil {
			return fmt.Errorf("iser: post receives: %w", err)
		}
		slots = slots[n:]
	}
	return nil
}

func (r *receives) release() {
	for _, region := range r.regions {
		_ = region.Deregister()
	}
	r.regions = nil
	release(r.leases)
	r.leases = nil
}

func (r *receives) close() error {
	err := r.queue.Close()
	r.release()
	return err
}
