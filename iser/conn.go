package iser

import (
	"container/list"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"oneshot/internal/invariant"
	"oneshot/iscsi"
	"oneshot/iscsi/login"
	"oneshot/iscsi/pdu"
	"oneshot/mem"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/manager"
)

var _ iscsi.Datamover = (*Mover)(nil)

// Mover is the datamover of one RDMA connection. Its fields belong to whoever holds the lock
// of conn, except those that do not change.
type Mover struct {
	target *Target
	conn   *iscsi.Conn
	qp     rdma.QueuePair
	cq     rdma.CompletionQueue
	peer   string
	here   string

	domain     *domain   // the target's, or the connection's own
	recv       *receives // likewise
	returns    []int     // slots to be posted again
	invalidate bool      // answers may invalidate the initiator's STags

	begun  bool // the first PDU has come:
	direct bool // iSCSI-direct, not iSER

	enabled bool // full feature phase
	p       login.Params

	queue    manager.Queue
	entries  []*entry // by ID
	free     []*task
	spare    []*control
	pulls    int // tasks whose data-out is fetched
	controls int // in use: queued, or posted and not completed
	waiting  int // octets of data in them
	ws       [32]rdma.Work
	sgl      []rdma.SGE
	cs       [32]rdma.Completion
	batch    [32]rdma.Receive

	place   *list.Element // in Target.starting; guarded by Target.connMu
	leaving bool          // it was told to give way; guarded by Target.connMu

	orphans map[uint32]rdma.STag // STags of aborted tasks, by the ITT of the ABORT TASK whose response closes them

	abandoned []*entry // to be finished, as they will never be sent
	lost      error    // why the connection is dead, if this end knows
	timer     *time.Timer
	once      sync.Once

	closing bool // disconnect when all is sent
	left    bool // the initiator has logged out: it disconnects
	half    bool // Disconnect was called
	dead    bool
}

// entry is something with a completion on the send queue.
type entry struct {
	manager.Item
	task    *task    // whose data-out is fetched, or whose answer it is
	answer  bool     // the latter
	control *control // or a PDU of the session's own
	failed  bool     // not all of it was done: the connection has ended or will
}

// control is the memory of a PDU that belongs to no task.
type control struct {
	entry
	buf    []byte   // where the device copies it: inline
	memory outgoing // otherwise
	data   int      // octets of data in it
	sgl    [1]rdma.SGE
}

// task is a command on an RDMA connection.
type task struct {
	iscsi.Task
	header header // the initiator's buffers
	pull   entry  // the RDMA Reads of its data-out
	ans    entry  // its answer

	immediate int        // octets of data-out that came with the command
	came      []byte     // these, while the session takes the command
	stash     *mem.Lease // these, until the session asks for them
	taken     bool       // the session has asked for them
	pulling   bool       // RDMA Reads are under way
	forgotten bool       // the session waits for their end

	locals  []rdma.SGE
	sinks   []rdma.Region // of its Reads; see openSinks
	remotes [1]manager.Remote
	bounce  *mem.Lease // data-in from memory that is not registered
	long    outgoing   // the response, if it is too long to be inline
	buf     []byte     // the response
	small   [headerLen + pdu.BHSLen + 64]byte
	sgl     [1]rdma.SGE
}

func of(t *iscsi.Task) *task { return t.Mover.(*task) }

// accept answers a connection request.
func (t *Target) accept(req rdma.Request, offer *rdma.OneShotOffer) error {
	m := &Mover{
		target: t, peer: req.RemoteAddr().String(), here: req.LocalAddr().String(),
		orphans: make(map[uint32]rdma.STag),
		sgl:     make([]rdma.SGE, max(2*max(t.read.Elements, t.write.Elements), 64)),
	}
	if err := m.open(req); err != nil {
		t.cfg.Node.Dismiss()
		m.close()
		return errors.Join(err, req.Reject(nil))
	}
	t.came()
	m.conn = t.cfg.Node.NewRDMAConn(m, &t.offer)
	if err := req.Accept(m.qp, rdma.ConnParams{PrivateData: m.privateData(), OneShot: offer}); err != nil {
		m.teardown(err)
		return err
	}
	m.conn.Lock()
	t.starts(m)
	m.conn.Unlock()
	return nil
}

func (m *Mover) privateData() []byte {
	if m.invalidate {
		return []byte{noZBVA, 0, 0, 0}
	}
	return []byte{noZBVA | noInvalidate, 0, 0, 0}
}

// open makes queues and the queue pair for req.
func (m *Mover) open(req rdma.Request) (err error) {
	t := m.target
	if d := req.PeerData(); len(d) >= 4 {
		m.invalidate = d[0]&noInvalidate == 0 && t.limits.SendInvalidate
	}
	// As many answers as commands; each takes a few work requests, most of them one.
	work := min(t.limits.MaxWork, 4*t.cfg.Commands+extraSlots)
	slots := t.ownSlots()
	if m.domain = t.domain; t.isolated {
		if m.domain, err = t.newDomain(); err != nil {
			return err
		}
	}
	if m.cq, err = t.cfg.Device.NewCompletionQueue(work+max(slots, sharedSlots), m.event); err != nil {
		return err
	}
	cfg := rdma.QueuePairConfig{
		Domain: m.domain.pd, SendCQ: m.cq, RecvCQ: m.cq, MaxWork: work,
		Disconnected: func(err error) { go m.teardown(err) },
	}
	if m.recv = t.shared; m.recv != nil {
		cfg.Receives = m.recv.queue
	} else {
		cfg.MaxRecv = slots
		if m.recv, err = t.newReceives(m.domain, slots, nil); err != nil {
			return err
		}
	}
	if m.qp, err = t.cfg.Device.NewQueuePair(cfg); err != nil {
		return err
	}
	m.queue.Init(work)
	if m.recv != t.shared {
		if err = m.recv.postAll(m.qp); err != nil {
			return err
		}
	}
	m.cq.Arm()
	return nil
}

// event handles all completions there are. It is called by the provider.
func (m *Mover) event() {
	m.conn.Lock()
	defer m.conn.Unlock()
	m.conn.Heard()
	for {
		if m.poll() == 0 && m.cq.Arm() {
			return
		}
	}
}

// poll handles some completions and returns how many.
func (m *Mover) poll() int {
	n := m.cq.Poll(m.cs[:])
	for i := range m.cs[:n] {
		m.completed(&m.cs[i])
	}
	if len(m.returns) > 0 {
		var q poster = m.qp
		if m.recv == m.target.shared {
			q = m.recv.queue
		}
		if err := m.recv.post(q, m.returns, m.batch[:]); err != nil && !m.dead {
			m.broken(err)
		}
		m.returns = m.returns[:0]
	}
	return n
}

// receiveID marks the IDs of receives.
const receiveID = 1 << 63

func (m *Mover) completed(c *rdma.Completion) {
	if c.Status != rdma.StatusOK && c.Status != rdma.StatusFlushed && !m.dead {
		err := c.Err
		if err == nil {
			err = fmt.Errorf("%v: %v", c.Op, c.Status)
		}
		m.broken(err)
	}
	switch {
	case c.ID == manager.Unsignaled:
		return
	case c.ID&receiveID == 0:
		e := m.entries[c.ID]
		e.failed = e.failed || c.Status != rdma.StatusOK
		if c.Op == rdma.OpRead {
			m.conn.Fetching(m.pulls) // they come on
		}
		if m.queue.Completed(&e.Item) {
			m.done(e, e.failed)
		}
		return
	}
	slot := int(c.ID &^ receiveID)
	if c.Status == rdma.StatusOK && !m.dead && !m.half {
		m.receive(m.recv.sgl[slot].Bytes[:c.Bytes], c)
	}
	if c.Status == rdma.StatusOK || m.recv == m.target.shared { // a message that has failed has used up its receive, too
		m.returns = append(m.returns, slot)
	}
}

// done ends e and what was fetched together with it.
func (m *Mover) done(e *entry, failed bool) {
	for e != nil {
		var behind *entry
		if it := e.Joined(); it != nil {
			behind = m.entries[it.ID]
		}
		e.failed = failed
		m.finished(e)
		e = behind
	}
}

// finished is the end of something that was sent or fetched, or never will be.
func (m *Mover) finished(e *entry) {
	switch {
	case e.control != nil:
		m.freeControl(e.control)
	case e.answer && e.failed:
		m.conn.AnswerLost(&e.task.Task)
	case e.answer:
		m.conn.Sent(&e.task.Task)
	default:
		m.pulled(e.task)
	}
}

// enter gives e an ID for good.
func (m *Mover) enter(e *entry) {
	e.ID = uint64(len(m.entries))
	m.entries = append(m.entries, e)
}

// push queues an entry to be sent.
func (m *Mover) push(e *entry) {
	e.failed = false
	if m.dead {
		m.abandoned = append(m.abandoned, e)
		return
	}
	m.queue.Push(&e.Item)
}

// Flush implements iscsi.Datamover.
func (m *Mover) Flush() {
	for !m.dead {
		n := m.queue.Fill(m.ws[:], m.sgl)
		if n == 0 {
			break
		}
		if k, err := m.qp.Post(m.ws[:n]); err != nil {
			m.unposted(m.ws[k:n])
			m.broken(err)
		}
		clear(m.ws[:n])
	}
	if m.dead {
		m.abandon()
	}
	if m.closing && m.queue.Empty() && !m.half && !m.dead && !m.left {
		m.disconnect()
	}
}

// disconnect ends the connection after what is posted.
func (m *Mover) disconnect() {
	if !m.half {
		m.half = true
		m.qp.Disconnect()
	}
}

// unposted takes the completions that will never come for work requests that were refused.
func (m *Mover) unposted(ws []rdma.Work) {
	for i := range ws {
		if ws[i].Flags&rdma.Signaled == 0 {
			continue
		}
		if e := m.entries[ws[i].ID]; m.queue.Completed(&e.Item) {
			m.abandoned = append(m.abandoned, e)
		}
	}
}

// abandon finishes what will never be sent.
func (m *Mover) abandon() {
	m.queue.Abandon(func(it *manager.Item) { m.abandoned = append(m.abandoned, m.entries[it.ID]) })
	for len(m.abandoned) > 0 {
		list := m.abandoned
		m.abandoned = nil
		for _, e := range list {
			m.done(e, true)
		}
	}
}

// broken ends the use of the connection. The provider notices, and teardown follows.
func (m *Mover) broken(err error) {
	if m.dead {
		return
	}
	m.dead = true
	m.lost = err
	m.qp.Abort(err)
}

// violation is broken because of what the initiator sent.
func (m *Mover) violation(format string, args ...any) {
	if !m.dead {
		m.conn.Violation(fmt.Errorf(format, args...))
		m.broken(nil)
	}
}

// lingerTime is how long an initiator may take to disconnect after it has logged out, or to
// receive what is sent before the connection is ended.
const lingerTime = 5 * time.Second

// Terminate implements iscsi.Datamover.
func (m *Mover) Terminate(how iscsi.Termination) {
	switch {
	case m.dead || m.closing && how != iscsi.AtOnce:
	case how == iscsi.AtOnce:
		m.broken(nil)
	default:
		m.closing, m.left = true, how == iscsi.WhenLoggedOut
		// An initiator that takes nothing more does not keep the connection.
		m.timer = time.AfterFunc(lingerTime, func() {
			m.conn.Lock()
			defer m.conn.Unlock()
			if !m.dead {
				m.disconnect()
			}
		})
	}
}

// teardown ends the life of the connection, once. The provider has said that it is over, or it
// never began.
func (m *Mover) teardown(err error) { m.once.Do(func() { m.tearDown(err) }) }

func (m *Mover) tearDown(err error) {
	_ = m.qp.Close()
	m.conn.Lock()
	err = rdma.Reason(m.lost, err)
	m.dead = true
	if m.timer != nil {
		m.timer.Stop()
	}
	for m.poll() > 0 { // all that was posted has completed
	}
	m.abandon()
	m.conn.Lost(err)
	m.conn.Unlock()
	m.qp = nil
	m.close()
	m.target.started(m)
	m.target.went()
}

// close gives the device back what open has made.
func (m *Mover) close() {
	if m.qp != nil {
		_ = m.qp.Close()
	}
	if m.cq != nil {
		_ = m.cq.Close()
	}
	if m.recv != nil && m.recv != m.target.shared {
		m.recv.release()
	}
	if m.domain != nil && m.target.isolated {
		if err := m.domain.close(); err != nil {
			m.target.cfg.Logger.Error("memory of a connection stays registered", "initiator_address", m.peer, "reason", err)
		}
	}
}

// Peer implements iscsi.Datamover.
func (m *Mover) Peer() string { return m.peer }

// Local implements iscsi.Datamover.
func (m *Mover) Local() string { return m.here }

// Transport implements iscsi.Datamover.
func (m *Mover) Transport() string { return m.target.cfg.Transport }

// HungUp implements iscsi.Datamover.
func (m *Mover) HungUp() bool {
	if m.dead {
		return true
	}
	q, ok := m.qp.(rdma.PeerEnder)
	return ok && q.PeerEnded()
}

// Count implements iscsi.Datamover: the counters of the queue pair.
func (m *Mover) Count(tell func(string, uint64)) {
	for name, n := range m.qp.Counters().All() {
		tell(name, n)
	}
}

// Enable implements iscsi.Datamover.
func (m *Mover) Enable(p *login.Params, _ int) {
	if !m.enabled {
		m.target.started(m)
	}
	m.enabled, m.p = true, *p
}

// newTask returns a task that is not in use.
func (m *Mover) newTask() *task {
	if n := len(m.free); n > 0 {
		t := m.free[n-1]
		m.free = m.free[:n-1]
		return t
	}
	t := new(task)
	t.Conn, t.Mover = m.conn, t
	t.pull.task, t.ans.task = t, t
	t.ans.answer = true
	m.enter(&t.pull)
	m.enter(&t.ans)
	return t
}

// FreeTask implements iscsi.Datamover.
func (m *Mover) FreeTask(it *iscsi.Task) {
	t := of(it)
	m.target.giveBack(&t.long)
	for _, l := range []**mem.Lease{&t.stash, &t.bounce} {
		if *l != nil {
			(*l).Release()
			*l = nil
		}
	}
	invariant.Check(len(t.sinks) == 0, "a task is freed after its Reads")
	clear(t.locals)
	t.locals = t.locals[:0]
	t.header, t.immediate, t.taken, t.pulling, t.forgotten = header{}, 0, false, false, false
	m.free = append(m.free, t)
}

// within reports whether b lies in r.
func within(b, r []byte) bool {
	if len(b) == 0 || len(r) == 0 {
		return false
	}
	at, from := uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(unsafe.SliceData(r)))
	return at >= from && at-from <= uintptr(len(r)-len(b)) && len(b) <= len(r)
}
