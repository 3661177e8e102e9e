package local

import (
	"net"
	"sync"
	"sync/atomic"

	"oneshot/stag"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// queuePair is one connection: of a half of a link, or of an endpoint.
type queuePair struct {
	dev     *Device
	cfg     rdma.QueuePairConfig
	domain  *domain
	stream  *stag.Stream
	sendCQ  *soft.CompletionQueue
	recvCQ  *soft.CompletionQueue
	recv    *receives // own or shared
	shared  bool
	maxSGE  int
	maxWork int
	n       soft.Counters
	freed   sync.Once

	// At most one is set, when the queue pair is connected.
	half     atomic.Pointer[half]
	endpoint atomic.Pointer[endpoint]

	mu    sync.Mutex // taken before link.mu
	state state      // guarded by mu

	done chan struct{} // closed when the connection has ended
}

// state is how far a queue pair has come. Whether its connection still stands, link and endpoint know.
type state uint8

const (
	idle state = iota
	connecting
	connected
	closed // before it was connected
)

var (
	_ rdma.QueuePair = (*queuePair)(nil)
	_ rdma.Awaiter   = (*queuePair)(nil)
	_ rdma.Mapper    = (*queuePair)(nil)
)

// NewQueuePair implements rdma.Device.
func (d *Device) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	dom, ok1 := c.Domain.(*domain)
	scq, ok2 := c.SendCQ.(*soft.CompletionQueue)
	rcq, ok3 := c.RecvCQ.(*soft.CompletionQueue)
	if !ok1 || !ok2 || !ok3 || dom.dev != d || !d.cqs.Own(scq) || !d.cqs.Own(rcq) {
		return nil, soft.ErrForeign
	}
	if c.MaxSGE == 0 {
		c.MaxSGE = maxSGE
	}
	if c.MaxSGE > maxSGE || c.MaxWork > maxWork || c.MaxRecv > maxWork || c.Order&^d.Limits().Orders != 0 {
		return nil, rdma.ErrUnsupported
	}
	q := &queuePair{
		dev: d, cfg: c, domain: dom, sendCQ: scq, recvCQ: rcq, maxSGE: c.MaxSGE, maxWork: c.MaxWork,
		stream: d.memory.Table.NewStream(dom.Tag, 0), done: make(chan struct{}),
	}
	q.n.Settle = func() {
		if e := q.endpoint.Load(); e != nil {
			e.settleCounts()
		}
	}
	q.recv = &receives{}
	q.recv.Init(&dom.Domain, c.MaxRecv, c.MaxSGE)
	if c.Receives != nil {
		if q.recv, q.shared = c.Receives.(*receives); !q.shared || !q.recv.Of(&d.memory) {
			return nil, soft.ErrForeign
		}
	}
	if !d.qps.Add(&q.n, maxQueuePair) {
		return nil, rdma.ErrUnsupported
	}
	q.recv.Use(1)
	scq.Use(1)
	rcq.Use(1)
	return q, nil
}

// OneShot implements rdma.QueuePair: there is none.
func (q *queuePair) OneShot() *rdma.OneShot { return nil }

// Revoke implements rdma.QueuePair.
func (q *queuePair) Revoke(rdma.STag, func()) error { return rdma.ErrUnsupported }

// Endpoint implements rdma.QueuePair.
func (q *queuePair) Endpoint() *rdma.Endpoint {
	if e := q.endpoint.Load(); e != nil {
		info := e.info
		return &info
	}
	return nil
}

// Reads implements rdma.QueuePair.
func (q *queuePair) Reads() int {
	if h := q.half.Load(); h != nil {
		return h.reads
	}
	if q.endpoint.Load() != nil {
		return q.maxWork
	}
	return 0
}

// PeerData implements rdma.QueuePair.
func (q *queuePair) PeerData() []byte {
	if h := q.half.Load(); h != nil {
		return h.peerData
	}
	return nil
}

// Context implements rdma.QueuePair.
func (q *queuePair) Context() any { return q.cfg.Context }

// LocalAddr implements rdma.QueuePair.
func (q *queuePair) LocalAddr() net.Addr {
	switch h, e := q.half.Load(), q.endpoint.Load(); {
	case h != nil:
		return h.local
	case e != nil:
		return Addr(q.dev.cfg.Name)
	}
	return nil
}

// RemoteAddr implements rdma.QueuePair.
func (q *queuePair) RemoteAddr() net.Addr {
	switch h, e := q.half.Load(), q.endpoint.Load(); {
	case h != nil:
		return h.remote
	case e != nil:
		return Addr(e.info.Name)
	}
	return nil
}

// Counters implements rdma.QueuePair.
func (q *queuePair) Counters() rdma.Counters { return q.n.With(q.sendCQ, q.recvCQ) }

// Post implements rdma.QueuePair.
func (q *queuePair) Post(ws []rdma.Work) (n int, err error) {
	if e := q.endpoint.Load(); e != nil {
		return e.post(ws)
	}
	if h := q.half.Load(); h != nil {
		n, err = h.post(ws)
	} else if len(ws) > 0 {
		err = rdma.ErrDisconnected
	}
	q.n.Posts.Add(1)
	q.n.Works.Add(uint64(n))
	return n, err
}

// Unfinished returns how many requests are posted and not done, signalled or not. Those that are done have left their completions in
// the completion queue. A card counts by it what its program may use again (transport/rdma/nic/card).
func (q *queuePair) Unfinished() int {
	if e := q.endpoint.Load(); e != nil {
		e.mu.Lock()
		defer e.unlock()
		return e.n
	}
	if h := q.half.Load(); h != nil {
		h.link.mu.Lock()
		defer h.link.mu.Unlock()
		return h.sq.Len()
	}
	return 0
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

// claim begins to connect the queue pair.
func (q *queuePair) claim() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != idle {
		return errNotIdle
	}
	q.state = connecting
	return nil
}

// connect makes the queue pair connected and calls set, unless it was closed since claim. It reports whether it did.
func (q *queuePair) connect(set func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != connecting {
		return false
	}
	q.state = connected
	set()
	return true
}

// Disconnect implements rdma.QueuePair.
func (q *queuePair) Disconnect() {
	if e := q.endpoint.Load(); e != nil {
		e.disconnect()
	} else if h := q.half.Load(); h != nil {
		h.disconnect()
	}
}

// Abort implements rdma.QueuePair.
func (q *queuePair) Abort(err error) {
	if err == nil {
		err = errAborted
	}
	if e := q.endpoint.Load(); e != nil {
		e.abort(err)
	} else if h := q.half.Load(); h != nil {
		h.abort(err)
	}
}

// Close implements rdma.QueuePair.
func (q *queuePair) Close() error {
	q.mu.Lock()
	s := q.state
	if s != connected {
		q.state = closed
	}
	q.mu.Unlock()
	switch s {
	case connected:
		q.Abort(nil)
		<-q.done
	case idle, connecting:
		q.stream.End()
		q.flushReceives(nil)
	}
	q.freed.Do(func() { // whoever closes it as well returns behind this
		q.dev.qps.Remove(&q.n)
		q.recv.Use(-1)
		q.sendCQ.Use(-1)
		q.recvCQ.Use(-1)
	})
	return nil
}

// Await implements rdma.Awaiter, for endpoints.
func (q *queuePair) Await() bool {
	e := q.endpoint.Load()
	return e != nil && e.await != nil && e.await.Await()
}

// flushReceives completes the receives that are the queue pair's own.
func (q *queuePair) flushReceives(err error) {
	if q.shared {
		return
	}
	q.recv.Flush(q.recvCQ, q, err)
	q.recvCQ.Notify()
}

// finish tells the owner, in a goroutine of the device, that the connection has ended.
func (q *queuePair) finish(err error) {
	q.dev.work.Go(func() {
		if q.cfg.Disconnected != nil {
			q.cfg.Disconnected(err)
		}
		close(q.done)
	})
}
