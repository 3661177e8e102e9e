package nic

import (
	"errors"
	"net"
	"net/netip"
	"sync"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/shm"
	"oneshot/transport/rdma/soft"
)

// queuePair is the half here of a queue pair.
type queuePair struct {
	dev    *Device
	cfg    rdma.QueuePairConfig
	dom    *domain
	number uint32
	sendCQ *completionQueue
	recvCQ *completionQueue
	recv   *receives // own or shared
	shared bool
	maxSGE int

	maxWork uint32
	n       soft.Counters // what is counted here
	hint    uint64        // guarded by Device.hintMu

	closing sync.Mutex // held by Close; taken before mu
	mu      sync.Mutex
	mem     *shm.Queue
	sent    []work // by position
	head    uint32 // of what has to be remembered
	tail    uint32

	state     state
	endings   sync.WaitGroup // calls of Disconnected that the card caused: begun with the lock held, and before closing
	initiator bool           // Host 1
	reads     int
	shot      *rdma.OneShot
	data      []byte
	local     net.Addr
	remote    net.Addr
	last      rdma.Counters // the card's, as last heard

	tags        tags
	outstanding uint32              // STags advertised and neither closed nor revoked
	held        map[rdma.STag]*held // STags that the peer has advertised
	idle        []*held             // not in use
}

// work is what has to be remembered of a request.
type work struct {
	id   uint64
	op   rdma.Opcode
	stag rdma.STag
	held *held // Read: counted there; Send: closes it
	owes bool  // its completion is to come: it is signalled, and does not advertise
}

var _ rdma.QueuePair = (*queuePair)(nil)

// NewQueuePair implements rdma.Device.
func (d *Device) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	dom, ok1 := c.Domain.(*domain)
	scq, ok2 := c.SendCQ.(*completionQueue)
	rcq, ok3 := c.RecvCQ.(*completionQueue)
	if !ok1 || !ok2 || !ok3 || dom.dev != d || scq.dev != d || rcq.dev != d {
		return nil, soft.ErrForeign
	}
	if c.MaxSGE == 0 {
		c.MaxSGE = d.limits.MaxSGE
	}
	if c.MaxSGE > d.limits.MaxSGE || c.MaxWork > d.limits.MaxWork || c.MaxRecv > d.limits.MaxWork || c.Order != rdma.OrderStrict {
		return nil, rdma.ErrUnsupported
	}
	q := &queuePair{
		dev: d, cfg: c, dom: dom, sendCQ: scq, recvCQ: rcq, maxSGE: c.MaxSGE, maxWork: uint32(c.MaxWork),
		held: make(map[rdma.STag]*held),
	}
	m := &shm.Message{Op: shm.OpQueuePair, Domain: dom.number, Depth: c.MaxWork, Receives: c.MaxRecv, MaxSGE: c.MaxSGE}
	depths := []int{c.MaxWork, c.MaxRecv}
	if c.Receives != nil {
		if q.recv, q.shared = c.Receives.(*receives); !q.shared || q.recv.dev != d {
			return nil, soft.ErrForeign
		}
		m.Shared, depths = q.recv.number, depths[:1]
	}
	var err error
	if q.number, err = d.takeQueues(); err != nil {
		return nil, err
	}
	m.Number = q.number
	segs, err := d.share(m, depths...)
	if err != nil {
		d.giveQueues(q.number)
		return nil, err
	}
	q.mem = shm.NewQueue(segs[0], c.MaxWork)
	q.sent = make([]work, q.mem.Slots())
	if !q.shared {
		q.recv = new(receives)
		q.recv.open(d, dom, q.number+1, c.MaxRecv, c.MaxSGE, segs[1])
	}
	q.recv.use(1)
	scq.Use(1)
	rcq.Use(1)
	d.pairs[q.number].Store(q)
	d.mu.Lock()
	d.qps[q] = struct{}{}
	d.mu.Unlock()
	return q, nil
}

// OneShot implements rdma.QueuePair.
func (q *queuePair) OneShot() *rdma.OneShot {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.shot
}

// Endpoint implements rdma.QueuePair: there are none.
func (q *queuePair) Endpoint() *rdma.Endpoint { return nil }

// Reads implements rdma.QueuePair.
func (q *queuePair) Reads() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.reads
}

// PeerData implements rdma.QueuePair.
func (q *queuePair) PeerData() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.data
}

// Context implements rdma.QueuePair.
func (q *queuePair) Context() any { return q.cfg.Context }

// LocalAddr implements rdma.QueuePair.
func (q *queuePair) LocalAddr() net.Addr {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.local
}

// RemoteAddr implements rdma.QueuePair.
func (q *queuePair) RemoteAddr() net.Addr {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.remote
}

// addr returns the address that the card has written; if it has written none, one without a host.
func addr(s string) net.Addr {
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return new(net.TCPAddr)
	}
	return net.TCPAddrFromAddrPort(a)
}

// Counters implements rdma.QueuePair. Polls, Completions and Events are those of its completion queues, which other
// queue pairs may share.
func (q *queuePair) Counters() rdma.Counters {
	a, err := q.dev.ask(&shm.Message{Op: shm.OpCounters, Number: q.number})
	q.mu.Lock()
	if err == nil && a.Counters != nil && q.state != released {
		q.last = *a.Counters
	}
	c := q.last
	q.mu.Unlock()
	var here rdma.Counters
	q.n.AddTo(&here)
	q.sendCQ.AddTo(&here)
	if q.recvCQ != q.sendCQ {
		q.recvCQ.AddTo(&here)
	}
	overlay(&c, &here)
	c.Doorbells += q.dev.bells.Load()
	return c
}

// PostReceive implements rdma.QueuePair.
func (q *queuePair) PostReceive(rs []rdma.Receive) (int, error) {
	if q.shared {
		return 0, &rdma.WorkError{Op: rdma.OpReceive, What: "queue pair takes its receives from a ReceiveQueue"}
	}
	n, err := q.recv.PostReceive(rs)
	q.n.ReceivePosts.Add(1)
	q.n.Receives.Add(uint64(n))
	return n, err
}

// begins notes that the connection has begun, as the card says. If the card has gone since it said so, there is no connection.
func (q *queuePair) begins(m *shm.Message) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch q.state {
	case fresh:
		q.become(connected)
	case ended: // it has ended meanwhile, and Disconnected says so
	default:
		select {
		case <-q.dev.lost:
			return q.dev.lostErr
		default:
			return rdma.ErrDisconnected
		}
	}
	q.initiator, q.reads, q.shot, q.data = m.Initiator, m.Reads, m.OneShot, m.Data
	q.local, q.remote = addr(m.Local), addr(m.Remote)
	q.tags.add(m.STags)
	return nil
}

// completed takes the completion of a request. harvestMu is held. False: it is of none.
func (q *queuePair) completed(x *shm.Completion) bool {
	pos := uint32(x.Token)
	q.mu.Lock()
	if pos-q.head >= q.tail-q.head {
		q.mu.Unlock()
		return false
	}
	e := &q.sent[pos&uint32(len(q.sent)-1)]
	c := rdma.Completion{ID: e.id, Op: e.op, Status: rdma.Status(x.Status), Bytes: int(x.Bytes), QueuePair: q}
	lies := c.Op != rdma.Opcode(x.Op) || c.Status > rdma.StatusTransport
	for p := q.head; p != pos; p++ {
		lies = lies || q.sent[p&uint32(len(q.sent)-1)].owes
	}
	if !lies {
		e.owes = false
		q.retire(pos + 1)
	}
	q.mu.Unlock()
	if lies {
		return false
	}
	q.sendCQ.Push(&c)
	q.dev.touch(q.sendCQ.CompletionQueue)
	return true
}

// received takes the completion of a receive. harvestMu is held. False: it is of none.
func (q *queuePair) received(x *shm.Completion) bool {
	if rdma.Status(x.Status) > rdma.StatusTransport {
		return false
	}
	id, ok := q.recv.taken(x.Token, x.Bytes)
	if !ok {
		return false
	}
	c := rdma.Completion{
		ID: id, Op: rdma.OpReceive, Status: rdma.Status(x.Status), Flags: rdma.CompletionFlags(x.Flags), Bytes: int(x.Bytes),
		STag: rdma.STag(x.STag), QueuePair: q,
	}
	if c.Flags != 0 {
		q.mu.Lock()
		if c.Flags&rdma.Advertised != 0 {
			q.advertised(c.STag)
		} else {
			q.takenBack(c.STag)
		}
		q.mu.Unlock()
	}
	q.recvCQ.Push(&c)
	q.dev.touch(q.recvCQ.CompletionQueue)
	return true
}

// takenBack notes that the card has freed an STag of this end. The lock is held.
func (q *queuePair) takenBack(s rdma.STag) {
	t := q.tags.find(s)
	switch {
	case t == nil:
	case t.use == binding:
		q.unbound(s)
	default:
		if t.done != nil {
			q.dev.wg.Go(t.done) // it may post
		}
		q.outstanding--
		q.tags.give(t)
	}
}

// revoked notes that nothing refers to an STag any more that was revoked.
func (q *queuePair) revoked(s rdma.STag) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.initiator {
		q.takenBack(s)
	}
	return true
}

var errNotAdvertised = errors.New("nic: STag is not advertised on this connection, or closed already")

// Revoke implements rdma.QueuePair.
func (q *queuePair) Revoke(s rdma.STag, done func()) error {
	q.mu.Lock()
	if !q.initiator {
		h := q.held[s]
		if h == nil || h.closed {
			q.mu.Unlock()
			return errNotAdvertised
		}
		delete(q.held, s)
		q.mu.Unlock()
		err := q.askRevoke(s)
		if err == nil {
			done()
		}
		return err
	}
	t := q.tags.find(s)
	if t == nil || t.use != advertise {
		q.mu.Unlock()
		return errNotAdvertised
	}
	t.use, t.done = revoking, done
	q.mu.Unlock()
	err := q.askRevoke(s)
	if err == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if t := q.tags.find(s); t != nil && t.use == revoking {
		t.use, t.done = advertise, nil
		return err
	}
	if _, lost := errors.AsType[*LostError](err); lost {
		return nil // flush has called done
	}
	return err
}

func (q *queuePair) askRevoke(s rdma.STag) error {
	_, err := q.dev.command(&shm.Descriptor{Op: shm.CommandRevoke, STag: uint32(s), Offset: uint64(q.number)}, shm.Piece{})
	if errors.Is(err, errRefused) {
		return errNotAdvertised
	}
	return err
}

// leave has Post refuse what comes from now on. False: there is nothing to leave.
func (q *queuePair) leave() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == connected {
		q.become(leaving)
	}
	return q.state == leaving
}

// Disconnect implements rdma.QueuePair.
func (q *queuePair) Disconnect() {
	if q.leave() {
		q.tell(&shm.Message{Op: shm.OpDisconnect, Number: q.number})
	}
}

// tell is ask, and does not wait.
func (q *queuePair) tell(m *shm.Message) {
	d := q.dev
	d.callMu.Lock()
	d.callID++
	m.ID = d.callID
	d.callMu.Unlock()
	_ = d.send(m) // it fails if the card has gone
}

// Abort implements rdma.QueuePair.
func (q *queuePair) Abort(err error) {
	if !q.leave() {
		return
	}
	m := &shm.Message{Op: shm.OpAbort, Number: q.number}
	var t interface {
		error
		Terminate() (layer, etype, code uint8)
	}
	if errors.As(err, &t) {
		layer, etype, code := t.Terminate()
		m.Terminate = []uint8{layer, etype, code}
	}
	q.tell(m)
}

// ending notes that the card says that the connection has ended. Disconnected is called in a goroutine: it may wait for a lock whose
// holder waits for an answer, in Post.
func (q *queuePair) ending(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	tell := q.ends(false)
	if !q.shared {
		q.recv.end()
	}
	if tell {
		q.endings.Go(func() { q.cfg.Disconnected(err) })
	}
}

// flush completes everything that is posted, and ends the connection, for the card has gone.
func (q *queuePair) flush(err error) {
	var sends, recvs []rdma.Completion
	q.mu.Lock()
	for ; q.head != q.tail; q.head++ {
		e := &q.sent[q.head&uint32(len(q.sent)-1)]
		sends = append(sends, rdma.Completion{ID: e.id, Op: e.op, Status: rdma.StatusFlushed, QueuePair: q, Err: err})
	}
	for i := range q.tags.slots {
		if t := &q.tags.slots[i]; t.use == revoking && t.done != nil {
			q.dev.wg.Go(t.done)
			t.use, t.done = unused, nil
		}
	}
	tell := q.ends(true)
	q.mu.Unlock()
	if !q.shared {
		q.recv.end()
		for _, token := range q.recv.inOrder() {
			id, _ := q.recv.taken(token, 0)
			recvs = append(recvs, rdma.Completion{ID: id, Op: rdma.OpReceive, Status: rdma.StatusFlushed, QueuePair: q, Err: err})
		}
	}
	q.sendCQ.Deliver(sends...)
	q.recvCQ.Deliver(recvs...)
	if tell {
		q.cfg.Disconnected(err)
	}
}

// Close implements rdma.QueuePair.
func (q *queuePair) Close() error {
	q.closing.Lock()
	defer q.closing.Unlock()
	q.mu.Lock()
	was := q.state
	switch was {
	case fresh:
		q.become(unmade)
	case connected:
		q.become(leaving)
	}
	q.mu.Unlock()
	if was == released {
		return nil
	}
	if !q.shared {
		q.recv.end()
	}
	d := q.dev
	tag, done := d.commands.begin()
	a, err := d.ask(&shm.Message{Op: shm.OpClose, Number: q.number, Token: uint64(tag)})
	if err == nil {
		err = d.wait(done) // all its completions come before
	}
	d.commands.end(tag)
	if _, lost := errors.AsType[*LostError](err); lost {
		<-d.flushed
		err = nil
	}
	q.mu.Lock()
	q.become(closing) // what the card says of the end comes before its answer
	q.mu.Unlock()
	q.endings.Wait()
	return errors.Join(err, q.release(a))
}

// release gives up what the queue pair has. a is the card's last word on it, or nil.
func (q *queuePair) release(a *shm.Message) error {
	d := q.dev
	d.mu.Lock()
	delete(d.qps, q)
	q.n.AddTo(&d.past)
	d.mu.Unlock()
	d.pairs[q.number].Store(nil)
	q.mu.Lock()
	q.become(released)
	if a != nil && a.Counters != nil {
		q.last = *a.Counters
	}
	for i := range q.tags.slots { // bindings end with the connection
		if t := &q.tags.slots[i]; t.use == binding {
			t.window.mu.Lock()
			if t.window.tag == t.stag && t.window.qp == q {
				t.window.qp, t.window.going = nil, false
			}
			t.window.mu.Unlock()
		}
	}
	err := q.mem.Close()
	q.mu.Unlock()
	q.recv.use(-1)
	if !q.shared {
		err = errors.Join(err, q.recv.mem.Close())
	}
	q.sendCQ.Use(-1)
	q.recvCQ.Use(-1)
	d.giveQueues(q.number)
	return err
}
