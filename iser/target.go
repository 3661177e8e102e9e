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
//	conn.go    the life of a connection, and its completions
//	in.go      messages in:  receive ─► PDU ─► session
//	data.go    data in and out, through the RDMA manager
//	out.go     messages out: answers and control PDUs
//	header.go  the iSER header
package iser

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
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
}

// Target is the target's side of iSER on one device. Its methods may be called from any
// goroutine.
type Target struct {
	cfg    Config
	limits rdma.Limits
	read   manager.Limits
	write  manager.Limits
	offer  login.Config
	domain rdma.Domain
	shared *receives // nil: each connection has its own

	outMu sync.Mutex
	outs  []*mem.Lease // the memory of free; does not change
	free  []rdma.SGE   // guarded by outMu

	arenas    atomic.Pointer[[]rdma.Region] // by mem.Arena.Index
	stopWatch func()
	regErr    atomic.Pointer[error]
	ready     atomic.Bool // NewTarget has succeeded

	conns sync.WaitGroup
}

// NewTarget makes the memory of the pool known to the device, and posts receives. Close has
// to be called in the end.
func NewTarget(cfg Config) (*Target, error) {
	t := &Target{cfg: cfg, limits: cfg.Device.Limits(), offer: login.RDMAConfig()}
	t.read, t.write = manager.ReadLimits(t.limits, chunk), manager.WriteLimits(t.limits, chunk)
	var err error
	if t.domain, err = cfg.Device.NewDomain(); err != nil {
		return nil, fmt.Errorf("iser: %w", err)
	}
	t.arenas.Store(new([]rdma.Region))
	t.stopWatch = cfg.Pool.Arenas(t.register)
	if e := t.regErr.Load(); e != nil {
		return nil, errors.Join(*e, t.Close())
	}
	if t.free, t.outs, err = t.slots(outSlots); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	if t.limits.ReceiveWait {
		q, err := cfg.Device.NewReceiveQueue(t.domain, sharedSlots)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("iser: %w", err), t.Close())
		}
		if t.shared, err = t.newReceives(sharedSlots, q); err != nil {
			return nil, errors.Join(err, q.Close(), t.Close())
		}
	}
	t.ready.Store(true)
	return t, nil
}

// register makes an arena known to the device. A peer has no access to it: what is read and
// written on its behalf is said by our own work requests. Only where a device wants that for
// the sink of a Read, which iWARP leaves to it, is it more.
func (t *Target) register(a *mem.Arena) {
	access := rdma.AccessLocalWrite
	if t.limits.ReadSinkWrite {
		access |= rdma.AccessRemoteWrite
	}
	r, err := t.domain.Register(a.Bytes(), access)
	if err != nil {
		err = fmt.Errorf("iser: the device %s does not take %d bytes of I/O memory: %w", t.limits.Name, len(a.Bytes()), err)
		t.regErr.Store(&err)
		if t.ready.Load() { // before, it is NewTarget's error
			t.cfg.Logger.Error(err.Error())
		}
	}
	old := *t.arenas.Load()
	list := append(append(make([]rdma.Region, 0, a.Index()+1), old...), r) // calls come in the order of Index
	t.arenas.Store(&list)
}

// sge names n bytes of a lease, from off on. An error says that the device has refused the memory.
func (t *Target) sge(l *mem.Lease, off, n int) (rdma.SGE, error) {
	a, _ := l.Arena()
	r := (*t.arenas.Load())[a.Index()]
	if r == nil {
		return rdma.SGE{}, t.unregistered()
	}
	return rdma.SGE{Bytes: l.Bytes()[off : off+n : off+n], Region: r}, nil
}

// unregistered says why there is memory that the device does not know.
func (t *Target) unregistered() error {
	if e := t.regErr.Load(); e != nil {
		return *e
	}
	return fmt.Errorf("iser: memory that the device %s does not know", t.limits.Name)
}

// region finds the registration that b lies in, or nil: b is of the Go heap.
func (t *Target) region(b []byte) rdma.Region {
	for _, r := range *t.arenas.Load() {
		if r != nil && within(b, r.Bytes()) {
			return r
		}
	}
	return nil
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
		if err := t.accept(req, offer); err != nil {
			t.cfg.Logger.Warn("connection refused", "initiator_address", req.RemoteAddr().String(), "reason", err)
		}
	}
}

// Close waits for the connections, which have to be ended by the node, and gives the device
// back what is the target's.
func (t *Target) Close() error {
	t.conns.Wait()
	var errs []error
	if t.shared != nil {
		errs = append(errs, t.shared.close())
	}
	release(t.outs)
	t.stopWatch()
	for _, r := range *t.arenas.Load() {
		if r != nil {
			errs = append(errs, r.Deregister())
		}
	}
	return errors.Join(append(errs, t.domain.Close())...)
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
	sgl    []rdma.SGE // by slot
}

// slots leases memory for n messages.
func (t *Target) slots(n int) (sgl []rdma.SGE, leases []*mem.Lease, err error) {
	for left := n; left > 0; {
		bytes := min(left*slotLen, mem.MaxLease)
		l := t.cfg.Pool.Lease(bytes)
		if l == nil {
			release(leases)
			return nil, nil, errors.New("iser: no memory for messages: the limit on buffer memory is reached (limits.memory)")
		}
		leases = append(leases, l)
		for off := 0; off+slotLen <= bytes && left > 0; off += slotLen {
			s, err := t.sge(l, off, slotLen)
			if err != nil {
				release(leases)
				return nil, nil, err
			}
			sgl = append(sgl, s)
			left--
		}
	}
	return sgl, leases, nil
}

func release(leases []*mem.Lease) {
	for _, l := range leases {
		l.Release()
	}
}

// outgoing is registered memory that holds a message until it has been sent.
type outgoing struct {
	slot  rdma.SGE   // of the target's own, if it is not empty
	lease *mem.Lease // otherwise
}

var errNoMemory = errors.New("no memory for an answer: the limit on buffer memory is reached (limits.memory)")

// outgoing returns memory for a message of n octets. The target's own comes first, so that
// connections can log in, and be told why not, when others have all I/O memory.
func (t *Target) outgoing(n int, o *outgoing) (rdma.SGE, error) {
	if n <= slotLen {
		t.outMu.Lock()
		if k := len(t.free); k > 0 {
			o.slot = t.free[k-1]
			t.free = t.free[:k-1]
		}
		t.outMu.Unlock()
		if o.slot.Bytes != nil {
			return rdma.SGE{Bytes: o.slot.Bytes[:n], Region: o.slot.Region}, nil
		}
	}
	if o.lease = t.cfg.Pool.Lease(n); o.lease == nil {
		return rdma.SGE{}, errNoMemory
	}
	return t.sge(o.lease, 0, n)
}

// giveBack takes the memory of a message that has been sent.
func (t *Target) giveBack(o *outgoing) {
	if o.slot.Bytes != nil {
		t.outMu.Lock()
		t.free = append(t.free, o.slot)
		t.outMu.Unlock()
		o.slot = rdma.SGE{}
	}
	if o.lease != nil {
		o.lease.Release()
		o.lease = nil
	}
}

// newReceives makes n slots and, if it is a shared queue, posts them.
func (t *Target) newReceives(n int, q rdma.ReceiveQueue) (*receives, error) {
	r := &receives{target: t, queue: q}
	var err error
	if r.sgl, r.leases, err = t.slots(n); err != nil {
		return nil, err
	}
	if q == nil {
		return r, nil
	}
	if err := r.postAll(q); err != nil {
		r.release()
		return nil, err
	}
	return r, nil
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
	release(r.leases)
	r.leases = nil
}

func (r *receives) close() error {
	err := r.queue.Close()
	r.release()
	return err
}
