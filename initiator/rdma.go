package initiator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"oneshot/internal/iserhdr"
	"oneshot/iscsi/pdu"
	"oneshot/iscsi/text"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
	"oneshot/transport/rdma/verbs"
)

// conn is the mover of RDMA: iSER (RFC 7145), or iSCSI PDUs unmodified over one-shot RDMA.
// How memory of commands becomes reachable is in flow.go; this file has the rest.
type conn struct {
	s        *Session
	device   rdma.Device
	ours     bool           // the device
	shares   rdma.Allocator // nil: it can register any memory
	domain   rdma.Domain
	cq       rdma.CompletionQueue
	qp       rdma.QueuePair
	flow     Flow
	inline   int
	slotLen  int
	receives int

	enabled atomic.Bool
	wake    chan struct{} // completions, until enabled
	once    sync.Once
	freeing sync.WaitGroup // of memory of large messages
	fateMu  sync.Mutex     // a leaf
	fate    error          // why the connection has ended; guarded by fateMu

	// The rest belongs to the login, and then is guarded by Session.mu.
	ring      *Memory // receives, then the headers of commands
	memories  map[*Memory]struct{}
	windows   []rdma.Window // by slot of commands
	binds     []rdma.Work
	bound     []*Command // of binds
	sends     []rdma.Work
	senders   []*Command // of sends; nil: of no command
	posted    int        // sends since the last signalled one
	back      []rdma.Receive
	sgl       []rdma.SGE         // of receives
	large     map[uint64]*Memory // messages too long to be inline, by ID
	nextLarge uint32
	current   *rdma.Completion // what is being taken
	static    uint64           // commands of FlowStatic, whose memory stays reachable for the target
	closed    bool
	cs        [64]rdma.Completion
}

const (
	// spareReceives is how many PDUs the target may send that answer no command.
	spareReceives = 16
	// receiveBatch is how many receives are posted at a time.
	receiveBatch = 16
	// signalEvery is how many Sends one completion stands for.
	signalEvery = 16
	headerLen   = iserhdr.Len
	receiveLen  = (headerLen + pdu.BHSLen + rdmaSegment + 63) &^ 63
)

// IDs of work requests: what they are in the upper half, which in the lower.
const (
	idReceive uint64 = iota << 32
	idSend
	idLarge
	idBind
	idInvalidate
	idKind = 0xffffffff << 32
)

func dialRDMA(ctx context.Context, s *Session) (mover, error) {
	m := &conn{
		s: s, device: s.opt.Device, flow: s.opt.Flow, wake: make(chan struct{}, 1),
		memories: make(map[*Memory]struct{}), large: make(map[uint64]*Memory),
		windows: make([]rdma.Window, s.opt.Depth), receives: s.opt.Depth + spareReceives + receiveBatch,
		slotLen: (headerLen + pdu.BHSLen + s.opt.Immediate + 63) &^ 63,
	}
	err := m.open()
	if err == nil {
		err = m.connect(ctx)
	}
	if err != nil {
		m.release()
		return nil, err
	}
	return m, nil
}

// open makes what a connection needs of the device.
func (m *conn) open() (err error) {
	if m.device == nil {
		if m.device, err = openDevice(&m.s.url, m.s.log); err != nil {
			return err
		}
		m.ours = true
	}
	m.shares, _ = m.device.(rdma.Allocator)
	l := m.device.Limits()
	m.inline = l.MaxInline
	switch {
	case m.flow == FlowOneShot && !l.OneShot:
		return fmt.Errorf("the RDMA device %s cannot do one-shot; use iser+iwarp://", l.Name)
	case !l.Windows && m.flow == FlowConventional:
		return fmt.Errorf("the RDMA device %s has no memory windows; use the flow register", l.Name)
	case !l.Windows && m.flow == FlowWindow:
		m.s.log.Info("the RDMA device has no memory windows: memory stays reachable for the target", "device", l.Name)
		m.flow = FlowStatic
	}
	if m.domain, err = m.device.NewDomain(); err != nil {
		return err
	}
	work := 3*m.s.opt.Depth + 64
	if m.cq, err = m.device.NewCompletionQueue(work+m.receives, m.event); err != nil {
		return err
	}
	m.qp, err = m.device.NewQueuePair(rdma.QueuePairConfig{
		Domain: m.domain, SendCQ: m.cq, RecvCQ: m.cq, MaxWork: work, MaxRecv: m.receives, Disconnected: m.disconnected,
	})
	if err != nil {
		return err
	}
	if m.ring, err = allocate(m, m.receives*receiveLen+m.s.opt.Depth*m.slotLen); err != nil {
		return err
	}
	for i := range m.receives {
		m.sgl = append(m.sgl, m.ring.sge(i*receiveLen, receiveLen))
		m.giveBack(i)
	}
	return m.postReceives()
}

// openDevice opens the device that u asks for.
func openDevice(u *URL, log *slog.Logger) (rdma.Device, error) {
	if u.Transport != ISERVerbs {
		return iwarp.Open(iwarp.Config{Logger: log})
	}
	return verbs.OpenOnly(verbs.Config{Name: u.Device, Logger: log})
}

func (m *Memory) sge(off, n int) rdma.SGE {
	return rdma.SGE{Bytes: m.b[off : off+n : off+n], Region: m.region}
}

func (m *conn) connect(ctx context.Context) error {
	p := rdma.ConnParams{PrivateData: []byte{iserhdr.NoZBVA, 0, 0, 0}}
	switch m.flow {
	case FlowOneShot:
		p.OneShot = &rdma.OneShotOffer{
			Flags: !m.s.opt.Opcodes, Opcodes: m.s.opt.Opcodes, Validated: true,
			Advertise: true, Close: true, Window: uint32(m.s.opt.Depth),
		}
	case FlowConventional, FlowRegister, FlowStatic:
		p.PrivateData[0] |= iserhdr.NoInvalidate
	}
	if err := m.device.Connect(ctx, m.qp, m.s.url.Address, p); err != nil {
		return err
	}
	if m.flow == FlowOneShot {
		if o := m.qp.OneShot(); o == nil || !o.Advertise || !o.Close {
			return errors.New("the target does not agree to one-shot RDMA (one_shot: in its portal); use iser+iwarp://")
		}
	}
	return nil
}

// memoryOf implements mover.
func (m *conn) memoryOf() rdma.Device { return m.device }

// adopt implements mover.
func (m *conn) adopt(mem *Memory) (detach func() rdma.Region, err error) {
	r, err := m.domain.Register(mem.b, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
	if err != nil {
		return nil, err
	}
	m.s.mu.Lock()
	closed := m.closed
	if !closed {
		mem.region = r
		m.memories[mem] = struct{}{}
	}
	m.s.mu.Unlock()
	if closed {
		return nil, errors.Join(ErrClosed, r.Deregister())
	}
	return func() rdma.Region {
		m.s.mu.Lock()
		defer m.s.mu.Unlock()
		delete(m.memories, mem)
		r := mem.region
		mem.region = nil
		return r
	}, nil
}

// giveBack has a receive posted again, with others.
func (m *conn) giveBack(i int) {
	m.back = append(m.back, rdma.Receive{ID: idReceive | uint64(i), SGL: m.sgl[i : i+1]})
}

func (m *conn) postReceives() error {
	n, err := m.qp.PostReceive(m.back)
	m.back = m.back[:copy(m.back, m.back[n:])]
	return err
}

// event is called by the device when there are completions.
func (m *conn) event() {
	if !m.enabled.Load() {
		select {
		case m.wake <- struct{}{}:
		default:
		}
		return
	}
	for {
		n := m.cq.Poll(m.cs[:])
		if n == 0 {
			if m.cq.Arm() {
				return
			}
			continue
		}
		m.s.begin()
		for i := range n {
			if err := m.completed(&m.cs[i]); err != nil {
				m.broken(err)
			}
		}
		m.s.end()
	}
}

// completed takes a completion.
func (m *conn) completed(c *rdma.Completion) error {
	if m.closed {
		return nil
	}
	if c.Status != rdma.StatusOK {
		if c.Err != nil {
			return c.Err
		}
		return fmt.Errorf("%v: %v", c.Op, c.Status)
	}
	i := int(uint32(c.ID))
	switch c.ID & idKind {
	case idReceive:
		h, data, err := m.message(c)
		if err == nil {
			m.current = c
			err = m.received(h, data)
			m.current = nil
		}
		m.giveBack(i)
		return err
	case idLarge:
		mem := m.large[c.ID]
		delete(m.large, c.ID)
		m.freeing.Go(func() { _ = mem.Free() }) // which takes the lock that is held
	case idBind:
		return m.isBound(m.s.slots[i])
	case idInvalidate:
		m.isUnbound(m.s.slots[i])
	}
	return nil
}

// message takes a message apart.
func (m *conn) message(c *rdma.Completion) (pdu.Header, []byte, error) {
	b := m.sgl[uint32(c.ID)].Bytes[:c.Bytes]
	if m.flow != FlowOneShot {
		if !iserhdr.IsControl(b) {
			return nil, nil, fmt.Errorf("the target sends a message of %d bytes without an iSER header", len(b))
		}
		b = b[headerLen:]
	}
	if len(b) < pdu.BHSLen {
		return nil, nil, fmt.Errorf("the target sends a PDU of %d bytes", len(b))
	}
	h := pdu.Header(b)
	n := pdu.BHSLen + h.TotalAHSLen()
	if len(b) < n || len(b)-n < h.DataSegmentLen() {
		return nil, nil, fmt.Errorf("the target sends a %v of %d bytes, shorter than it says", h.Opcode(), len(b))
	}
	return h[:n], b[n : n+h.DataSegmentLen()], nil
}

// received takes a PDU of the full feature phase.
func (m *conn) received(h pdu.Header, data []byte) error {
	if m.current.Flags&rdma.Closed != 0 {
		if err := m.isClosed(h, data); err != nil {
			return err
		}
	}
	return m.s.take(h, data)
}

// receive implements mover.
func (m *conn) receive(ctx context.Context) (pdu.Header, []byte, error) {
	for {
		if err := m.await(ctx); err != nil {
			return nil, nil, err
		}
		c := &m.cs[0]
		if c.Status != rdma.StatusOK || c.ID&idKind != idReceive {
			m.s.mu.Lock()
			err := m.completed(c)
			m.s.mu.Unlock()
			if err != nil {
				return nil, nil, fmt.Errorf("login: %w", err)
			}
			continue
		}
		h, data, err := m.message(c)
		if err != nil {
			return nil, nil, err
		}
		h, data = slices.Clone(h), slices.Clone(data)
		m.giveBack(int(uint32(c.ID)))
		if err := m.postReceives(); err != nil && !errors.Is(err, rdma.ErrDisconnected) {
			return nil, nil, err
		}
		return h, data, nil // if the target has closed the connection, after this
	}
}

// await waits during the login for a completion, and takes it into m.cs[0].
func (m *conn) await(ctx context.Context) error {
	for {
		ended := m.isBroken() // asked first: the target may answer and close the connection between two looks
		if m.cq.Poll(m.cs[:1]) > 0 {
			return nil
		}
		if ended != nil {
			return fmt.Errorf("login: %w", ended)
		}
		if !m.cq.Arm() {
			continue
		}
		select {
		case <-m.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// enable implements mover.
func (m *conn) enable(*text.Params) {
	m.fateMu.Lock()
	m.enabled.Store(true)
	err := m.fate
	m.fateMu.Unlock()
	if err != nil {
		m.broken(err)
		return
	}
	m.event() // the queue is not armed now, so nobody else calls it
}

// control implements mover.
func (m *conn) control(bhs, data []byte) {
	if m.closed {
		return
	}
	b := m.frame(nil, iserhdr.Header{})
	b = append(append(b, bhs...), data...)
	b = append(b, pdu.Padding(len(data))...)
	w := rdma.Work{ID: idSend, Op: rdma.OpSend, Flags: rdma.Inline, SGL: []rdma.SGE{{Bytes: b}}}
	if len(b) > m.inline {
		m.s.mu.Unlock() // allocate takes it
		mem, err := allocate(m, len(b))
		m.s.mu.Lock()
		if err != nil {
			m.broken(err)
			return
		}
		copy(mem.b, b)
		w.ID = idLarge | uint64(m.nextLarge)
		m.nextLarge++
		w.Flags = rdma.Signaled
		w.SGL = []rdma.SGE{mem.sge(0, len(b))}
		m.large[w.ID] = mem
	}
	m.queue(w, nil)
}

// flush implements mover.
func (m *conn) flush() {
	if m.closed {
		return
	}
	if len(m.back) >= receiveBatch {
		if err := m.postReceives(); err != nil {
			m.broken(err)
			return
		}
	}
	if err := m.post(); err != nil {
		m.broken(err)
	}
}

// post posts binds that are waited for, and then what is to be sent. What there is no room for
// stays for the next time: completions will come.
func (m *conn) post() error {
	if len(m.binds) > 0 {
		n, err := m.qp.Post(m.binds)
		m.haveBound(n)
		if err != nil && !errors.Is(err, rdma.ErrFull) {
			return err
		}
	}
	// Commands leave in the order of CmdSN: none before one whose window is not bound.
	ready := len(m.sends)
	for i, c := range m.senders {
		if c != nil && c.rdma.step == stepBinding {
			ready = i
			break
		}
	}
	if ready == 0 {
		return nil
	}
	for i := range m.sends[:ready] {
		if m.sends[i].Op != rdma.OpSend {
			continue
		}
		if m.posted++; m.posted >= signalEvery {
			m.sends[i].Flags |= rdma.Signaled
			m.posted = 0
		}
	}
	n, err := m.qp.Post(m.sends[:ready])
	m.haveSent(n)
	if len(m.sends) == 0 {
		m.s.echoes = 0
	}
	if errors.Is(err, rdma.ErrFull) || errors.Is(err, rdma.ErrWindow) {
		return nil
	}
	return err
}

// broken ends the connection; during the login, which uses its memory, receive fails instead
// and stop follows. Session.mu may be held.
func (m *conn) broken(err error) {
	m.fateMu.Lock()
	defer m.fateMu.Unlock()
	if m.fate == nil {
		m.fate = err
	}
	if m.enabled.Load() {
		m.once.Do(func() { go m.cleanUp(err) })
		return
	}
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// isBroken returns why the connection has ended.
func (m *conn) isBroken() error {
	m.fateMu.Lock()
	defer m.fateMu.Unlock()
	return m.fate
}

func (m *conn) disconnected(err error) {
	if err == nil {
		err = errBroken
	}
	m.broken(err)
}

// stop implements mover.
func (m *conn) stop(err error) { m.once.Do(func() { go m.cleanUp(err) }) }

func (m *conn) cleanUp(err error) {
	m.s.mu.Lock()
	if m.s.err == nil {
		m.s.err = err
	}
	m.closed = true
	m.s.mu.Unlock()
	m.qp.Abort(err) // which tells the target what it has done wrong, if err knows
	m.release()
	m.s.lost(err)
}

// release gives back what belongs to the device. Nothing refers to memory afterwards.
func (m *conn) release() {
	if m.qp != nil {
		_ = m.qp.Close()
	}
	if m.cq != nil {
		_ = m.cq.Close()
	}
	for _, w := range m.windows {
		if w != nil {
			_ = w.Free()
		}
	}
	m.s.mu.Lock()
	m.closed = true
	for _, c := range m.s.slots {
		if c != nil && c.rdma.region != nil {
			_ = c.rdma.region.Deregister()
			c.rdma.region = nil
		}
		if c != nil && c.rdma.bounce != nil {
			m.freeBounce(c.rdma.bounce)
			c.rdma.bounce = nil
		}
	}
	for mem := range m.memories {
		_ = mem.region.Deregister()
		mem.region = nil
	}
	clear(m.memories)
	m.s.mu.Unlock()
	m.freeing.Wait()
	if m.ring != nil {
		_ = m.ring.Free()
	}
	for _, mem := range m.large {
		_ = mem.Free()
	}
	if m.domain != nil {
		_ = m.domain.Close()
	}
	if m.ours {
		_ = m.device.Close()
	}
}

// counters implements mover. They are the device's: one that sessions share counts for all.
func (m *conn) counters() Counters {
	var c Counters
	for name, v := range m.device.Counters().All() {
		c = append(c, Counter{name, v})
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	if m.flow == FlowStatic {
		c = append(c, Counter{"without_windows", m.static})
	}
	return c
}

// offset returns where b begins in r.
func offset(r rdma.Region, b []byte) uint64 {
	return r.Base() + uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))-uintptr(unsafe.Pointer(unsafe.SliceData(r.Bytes()))))
}
