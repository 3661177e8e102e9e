package iser

import (
	"fmt"

	"oneshot/iscsi"
	"oneshot/iscsi/login"
	"oneshot/iscsi/pdu"
	"oneshot/mem"
	"oneshot/transport/queuepair"
	"oneshot/transport/rdma"
)

var _ iscsi.Datamover = (*Mover)(nil)

// Mover is the datamover of one RDMA connection. Its fields belong to whoever holds the lock
// of conn, except those that do not change.
type Mover struct {
	queuepair.Link
	target *Target
	conn   *iscsi.Conn

	invalidate bool // answers may invalidate the initiator's STags

	begun  bool // the first PDU has come:
	direct bool // iSCSI-direct, not iSER

	enabled bool // full feature phase
	p       login.Params

	free     []*task
	spare    []*control
	pulls    int // tasks whose data-out is fetched
	controls int // in use: queued, or posted and not completed
	waiting  int // octets of data in them

	orphans map[uint32]rdma.STag // STags of aborted tasks, by the ITT of the ABORT TASK whose response closes them
}

// control is the memory of a PDU that belongs to no task.
type control struct {
	queuepair.Entry
	buf    []byte           // where the device copies it: inline
	memory queuepair.Memory // otherwise
	data   int              // octets of data in it
	sgl    [1]rdma.SGE
}

// task is a command on an RDMA connection.
type task struct {
	iscsi.Task
	header header          // the initiator's buffers
	pull   queuepair.Entry // the RDMA Reads of its data-out
	ans    queuepair.Entry // its answer

	immediate int        // octets of data-out that came with the command
	came      []byte     // these, while the session takes the command
	stash     *mem.Lease // these, until the session asks for them
	taken     bool       // the session has asked for them
	pulling   bool       // RDMA Reads are under way
	forgotten bool       // the session waits for their end

	transfer queuepair.Transfer
	bounce   *mem.Lease       // data-in from memory that is not registered
	copied   [1][]byte        // its bytes
	long     queuepair.Memory // the response, if it is too long to be inline
	small    [headerLen + pdu.BHSLen + 64]byte
	sgl      [1]rdma.SGE
}

func of(t *iscsi.Task) *task { return t.Mover.(*task) }

// newMover returns the mover of a connection that is asked for.
func (t *Target) newMover(req rdma.Request) *Mover {
	m := &Mover{target: t, orphans: make(map[uint32]rdma.STag)}
	if d := req.PeerData(); len(d) >= 4 {
		m.invalidate = d[0]&noInvalidate == 0 && t.Limits().SendInvalidate
	}
	return m
}

// accept answers a connection request.
func (m *Mover) accept(req rdma.Request, offer *rdma.OneShotOffer, enter func(rdma.Request) (leave func())) error {
	t := m.target
	p := rdma.ConnParams{PrivateData: m.privateData(), OneShot: offer}
	err := m.Accept(t.Target, m, req, t.cfg.receives(), p, nil, func() queuepair.Owner {
		m.conn = t.cfg.Node.NewRDMAConn(m, &t.offer)
		if enter == nil {
			return m.conn
		}
		return guest{m.conn, enter(req)}
	})
	if err != nil && m.conn == nil {
		t.cfg.Node.Dismiss()
	}
	return err
}

// guest is a connection of whose end somebody is told.
type guest struct {
	*iscsi.Conn
	leave func()
}

// Lost implements queuepair.Owner.
func (g guest) Lost(err error) {
	g.Conn.Lost(err)
	g.leave()
}

func (m *Mover) privateData() []byte {
	if m.invalidate {
		return []byte{noZBVA, 0, 0, 0}
	}
	return []byte{noZBVA | noInvalidate, 0, 0, 0}
}

// Progress implements queuepair.Mover.
func (m *Mover) Progress() { m.conn.Fetching(m.pulls) }

// Ended implements queuepair.Mover: it is the end of something that was sent or fetched, or never will be.
func (m *Mover) Ended(e *queuepair.Entry) {
	t, ok := e.Owner.(*task)
	switch {
	case !ok:
		m.freeControl(e.Owner.(*control))
	case e == &t.pull:
		m.pulled(t)
	case e.Failed:
		m.conn.AnswerLost(&t.Task)
	default:
		m.conn.Sent(&t.Task)
	}
}

// violation ends the connection because of what the initiator sent.
func (m *Mover) violation(format string, args ...any) { m.Blame(fmt.Errorf(format, args...)) }

// Terminate implements iscsi.Datamover.
func (m *Mover) Terminate(how iscsi.Termination) {
	switch how {
	case iscsi.AtOnce:
		m.Link.Terminate(queuepair.AtOnce)
	case iscsi.WhenLoggedOut:
		m.Link.Terminate(queuepair.WhenLeft)
	default:
		m.Link.Terminate(queuepair.WhenSent)
	}
}

// Transport implements iscsi.Datamover.
func (m *Mover) Transport() string { return m.target.cfg.Transport }

// Count implements iscsi.Datamover: the counters of the queue pair.
func (m *Mover) Count(tell func(string, uint64)) {
	for name, n := range m.QueuePair().Counters().All() {
		tell(name, n)
	}
}

// Enable implements iscsi.Datamover.
func (m *Mover) Enable(p *login.Params, _ int) {
	if m.conn.Proved() {
		m.Prove()
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
	t.pull.Owner, t.ans.Owner = t, t
	m.Enter(&t.pull)
	m.Enter(&t.ans)
	return t
}

// FreeTask implements iscsi.Datamover.
func (m *Mover) FreeTask(it *iscsi.Task) {
	t := of(it)
	m.GiveBack(&t.long)
	for _, l := range []**mem.Lease{&t.stash, &t.bounce} {
		if *l != nil {
			(*l).Release()
			*l = nil
		}
	}
	t.transfer.Reset()
	t.header, t.immediate, t.taken, t.pulling, t.forgotten = header{}, 0, false, false, false
	m.free = append(m.free, t)
}
