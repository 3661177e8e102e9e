package remote

import (
	"context"
	"errors"
	"net"
	"sync"

	"oneshot/partition/wire"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// queuePair is the use of one partition. Whoever holds mu drives it: who posts, or the goroutine of the device
// below that brings responses.
type queuePair struct {
	dev     *Device
	cfg     rdma.QueuePairConfig
	domain  *domain
	sendCQ  *soft.CompletionQueue
	recvCQ  *soft.CompletionQueue
	maxSGE  int
	maxWork int
	order   rdma.Order
	n       soft.Counters
	freed   sync.Once

	ctx    context.Context // ends with the queue pair
	cancel func()
	addr   string // of the service
	name   string // of the partition
	want   rdma.Rights
	done   chan struct{} // closed when it has ended
	// redials are the goroutines that make a connection anew. They are started only while state is connected.
	redials sync.WaitGroup

	mu     sync.Mutex // taken before the locks of the device below
	state  state
	info   rdma.Endpoint
	most   int64 // bytes of a READ or WRITE
	inline int64 // bytes that a WRITE takes along
	handle uint32
	// session is the number by which the service knows the queue pair on another connection.
	session uint64
	laps    [maxCredits]uint32 // where the tags of each position begin, in maxCredits
	link    *link              // nil: there is no connection now

	first, last *work // posted and not retired, in order
	behind      bool  // the next work that is posted waits for Reads: see work.behind
	free        *work
	posted      int   // in the list
	unsent      *work // the first that is not sent as a whole
	pieces      []*piece
	tags        []uint32 // free ones: positions in pieces
	credits     int      // requests that may be without a response
	out         int      // requests without a response
	forgotten   int      // of these, those that were sent on a connection of which the service knows nothing
	chain       uint32
	broken      []bool // by chain: a work of it has failed
	sends       []rdma.Work
	senders     []*piece

	directs, freeDirects []*piece // parts of works that go without a request; the free ones

	generation uint16 // of the numbers
	highest    uint64 // number of a write that has completed
	durable    uint64 // the watermark
	unnumbered uint64 // atomic operations and RDMA Writes that have completed without being durable
	settled    uint64 // of these, those that a flush has made durable

	leaving bool  // Disconnect
	over    bool  // nothing is sent any more
	err     error // why
	recvs   []uint64
	ready   bool // completions were pushed
}

var (
	_ rdma.QueuePair = (*queuePair)(nil)
	_ rdma.Awaiter   = (*queuePair)(nil)
)

// NewQueuePair implements rdma.Device.
func (d *Device) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	dom, ok1 := c.Domain.(*domain)
	scq, ok2 := c.SendCQ.(*soft.CompletionQueue)
	rcq, ok3 := c.RecvCQ.(*soft.CompletionQueue)
	if !ok1 || !ok2 || !ok3 || dom.dev != d || !d.cqs.Own(scq) || !d.cqs.Own(rcq) {
		return nil, soft.ErrForeign
	}
	l := d.Limits()
	if c.MaxSGE == 0 {
		c.MaxSGE = l.MaxSGE
	}
	if c.MaxSGE > l.MaxSGE || c.MaxWork > l.MaxWork || c.Order&^l.Orders != 0 || c.Receives != nil {
		return nil, rdma.ErrUnsupported
	}
	q := &queuePair{
		dev: d, cfg: c, domain: dom, sendCQ: scq, recvCQ: rcq, maxSGE: c.MaxSGE, maxWork: c.MaxWork, order: c.Order,
		done: make(chan struct{}),
	}
	q.ctx, q.cancel = context.WithCancel(context.Background())
	chains := 2
	for chains < q.maxWork+2 {
		chains *= 2
	}
	q.broken = make([]bool, chains)
	d.mu.Lock()
	d.qps[q] = struct{}{}
	d.mu.Unlock()
	scq.Use(1)
	rcq.Use(1)
	return q, nil
}

// OneShot implements rdma.QueuePair: it is the device's own affair.
func (q *queuePair) OneShot() *rdma.OneShot { return nil }

// Revoke implements rdma.QueuePair.
func (q *queuePair) Revoke(rdma.STag, func()) error { return rdma.ErrUnsupported }

// Endpoint implements rdma.QueuePair.
func (q *queuePair) Endpoint() *rdma.Endpoint {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state < connected {
		return nil
	}
	info := q.info
	return &info
}

// Reads implements rdma.QueuePair.
func (q *queuePair) Reads() int { return q.maxWork }

// PeerData implements rdma.QueuePair.
func (q *queuePair) PeerData() []byte { return nil }

// Context implements rdma.QueuePair.
func (q *queuePair) Context() any { return q.cfg.Context }

// LocalAddr implements rdma.QueuePair.
func (q *queuePair) LocalAddr() net.Addr {
	if qp := q.below(); qp != nil {
		return qp.LocalAddr()
	}
	return nil
}

// RemoteAddr implements rdma.QueuePair.
func (q *queuePair) RemoteAddr() net.Addr {
	if qp := q.below(); qp != nil {
		return qp.RemoteAddr()
	}
	return nil
}

func (q *queuePair) below() rdma.QueuePair {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.link == nil {
		return nil
	}
	return q.link.qp
}

// Counters implements rdma.QueuePair. Polls, Completions and Events are those of its completion queues, with
// whomever they are shared.
func (q *queuePair) Counters() rdma.Counters {
	var c rdma.Counters
	q.n.AddTo(&c)
	q.sendCQ.AddTo(&c)
	if q.recvCQ != q.sendCQ {
		q.recvCQ.AddTo(&c)
	}
	return c
}

// Await implements rdma.Awaiter.
func (q *queuePair) Await() bool {
	q.mu.Lock()
	var a rdma.Awaiter
	if q.posted > 0 && q.link != nil {
		a = q.link.awaiter
	}
	q.mu.Unlock()
	return a != nil && a.Await()
}

// alone reports whether nobody waits for an event.
func (q *queuePair) alone() bool { return !q.sendCQ.Awaited() && !q.recvCQ.Awaited() }

// PostReceive implements rdma.QueuePair. Nothing ever comes.
func (q *queuePair) PostReceive(rs []rdma.Receive) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range rs {
		switch {
		case q.state >= ending:
			return i, rdma.ErrDisconnected
		case len(q.recvs) >= q.cfg.MaxRecv:
			return i, rdma.ErrFull
		}
		q.recvs = append(q.recvs, rs[i].ID)
	}
	return len(rs), nil
}

// settle sends what may be sent, and ends what is to end. The lock is held.
func (q *queuePair) settle() {
	q.flush()
	if q.state == connected && (q.over && q.out == 0 || q.leaving && !q.over) && q.posted == 0 {
		q.finish()
	}
}

// unlock settles and releases mu.
func (q *queuePair) unlock() {
	q.settle()
	ready := q.ready
	q.ready = false
	q.mu.Unlock()
	if ready {
		q.sendCQ.Notify()
	}
}

// unlockAndFire is unlock for goroutines of the device below, which may call events.
func (q *queuePair) unlockAndFire() {
	q.settle()
	q.ready = false
	q.mu.Unlock()
	q.sendCQ.Fire()
}

// stop sees to it that nothing is sent any more. The lock is held.
func (q *queuePair) stop(err error) {
	if !q.over {
		q.over, q.err = true, err
	}
}

// finish begins the end. The lock is held.
func (q *queuePair) finish() {
	q.become(ending)
	q.cancel()
	q.dev.work.Go(q.end)
}

// end is the end of the queue pair's connection.
func (q *queuePair) end() {
	q.mu.Lock()      // waits until the caller of finish has let go
	q.mu.Unlock()    //nolint:staticcheck // there is nothing to do between the two
	q.redials.Wait() // they notice that the queue pair ends
	q.mu.Lock()
	l := q.link
	q.mu.Unlock()
	if l != nil {
		l.close()
	}
	q.mu.Lock()
	q.link = nil
	q.over = true
	err := q.err
	for w := q.first; w != nil; w = q.first {
		if w.state != complete && w.status == rdma.StatusOK {
			w.status, w.err = rdma.StatusFlushed, err
		}
		q.retire(w)
	}
	for _, id := range q.recvs {
		q.recvCQ.Push(&rdma.Completion{ID: id, Op: rdma.OpReceive, Status: rdma.StatusFlushed, QueuePair: q, Err: err})
	}
	q.recvs = nil
	q.become(ended)
	q.mu.Unlock()
	q.sendCQ.Notify()
	q.recvCQ.Notify()
	if q.cfg.Disconnected != nil {
		q.cfg.Disconnected(err)
	}
	close(q.done)
}

// Disconnect implements rdma.QueuePair.
func (q *queuePair) Disconnect() {
	q.mu.Lock()
	q.leaving = true
	q.unlock()
}

var errAborted = errors.New("remote: connection aborted")

// Abort implements rdma.QueuePair.
func (q *queuePair) Abort(err error) {
	if err == nil {
		err = errAborted
	}
	q.mu.Lock()
	if q.state == connected {
		q.stop(err)
		q.finish()
	}
	q.mu.Unlock()
}

// Close implements rdma.QueuePair.
func (q *queuePair) Close() error {
	q.mu.Lock()
	switch q.state {
	case idle:
		q.become(ending)
		q.err = errAborted
		q.dev.work.Go(func() { q.cfg.Disconnected = nil; q.end() })
	case connecting: // Connect ends it
		q.over = true
		q.cancel()
	case connected:
		q.stop(errAborted)
		q.finish()
	}
	q.mu.Unlock()
	<-q.done
	q.freed.Do(func() { // whoever closes it as well returns behind this
		q.dev.mu.Lock()
		delete(q.dev.qps, q)
		q.n.AddTo(&q.dev.past)
		q.dev.mu.Unlock()
		q.sendCQ.Use(-1)
		q.recvCQ.Use(-1)
	})
	return nil
}

// Error is what a service says of a request.
type Error struct{ Status wire.Status }

func (e *Error) Error() string { return "the service of the partition says: " + e.Status.String() }

// Is reports whether target is the error of package rdma that the status stands for.
func (e *Error) Is(target error) bool { return e.Status == wire.Replaced && target == rdma.ErrReplaced }
