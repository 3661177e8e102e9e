//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"oneshot/transport/rdma"
)

// markers is how many work requests of its own a queue pair may have posted in addition to MaxWork.
const markers = 2

// queuePair is a queue pair.
type queuePair struct {
	dev            *Device
	cfg            rdma.QueuePairConfig
	domain         *domain
	sendCQ, recvCQ *completionQueue
	recv           *receiveQueue // its own, or shared
	maxSGE         int
	maxInline      int
	bounce         *bounce // nil: the device takes inline data with all requests
	qp             *C.struct_ibv_qp
	number         C.uint32_t
	n              counters

	mu    sync.Mutex // taken after completionQueue.mu, before receiveQueue.mu
	state state      // guarded by mu
	// making: Connect or Accept is under way. early ends the connection after that. Guarded by mu.
	making bool
	early  func()
	// windows that are bound here, by STag; guarded by mu
	windows map[rdma.STag]*window
	conn    *conn  // set once, before state is connected
	sq      []sent // a power of two; [head, tail) is posted
	works   [batch]C.struct_os_work
	sges    [batchSGE]C.struct_ibv_sge

	// head is written under sendCQ.mu, tail under mu.
	head, tail atomic.Uint32
	latest     uint32      // guarded by sendCQ.mu; the last that the device has completed
	failing    bool        // guarded by sendCQ.mu; a work request has failed
	draining   atomic.Bool // state is closing
	ending     atomic.Bool // endLater was called
	cut        atomic.Bool // posted work was not done, so the end is not orderly
	// failure is the first error of a completion that says more than that the connection has ended.
	failure atomic.Pointer[error]

	depth    int // Reads outstanding
	peerData []byte
	local    net.Addr
	remote   net.Addr

	// last is closed when the device takes no more receives from a shared queue for this queue pair; nil: it has a queue of its own.
	last     chan struct{}
	lastOnce sync.Once

	closed sync.Once
	done   chan struct{} // closed when everything has completed and Disconnected has returned
}

// sent is an element of the send queue.
type sent struct {
	id       uint64
	op       rdma.Opcode
	silent   bool // no completion if it ends well
	internal bool // never a completion
	told     bool // the device reports its completion even if it ends well
	bytes    int  // of a Read

	done   bool // the device has reported, or implied, its completion:
	status rdma.Status
	err    error
}

const (
	batch    = 32
	batchSGE = 128
	// receiveBit marks the IDs of receives, as given to the device; the other bits are a position.
	receiveBit = 1 << 63
)

// NewQueuePair implements rdma.Device.
func (d *Device) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	q := &queuePair{dev: d, cfg: c, maxSGE: c.MaxSGE, windows: make(map[rdma.STag]*window), done: make(chan struct{})}
	if q.maxSGE == 0 {
		q.maxSGE = d.limits.MaxSGE
	}
	var ok1, ok2, ok3 bool
	q.domain, ok1 = c.Domain.(*domain)
	q.sendCQ, ok2 = c.SendCQ.(*completionQueue)
	q.recvCQ, ok3 = c.RecvCQ.(*completionQueue)
	if !ok1 || !ok2 || !ok3 || q.domain.dev != d || q.sendCQ.dev != d || q.recvCQ.dev != d {
		return nil, errForeign
	}
	if c.Order != rdma.OrderStrict {
		return nil, rdma.ErrUnsupported
	}
	if c.MaxWork < 1 || c.MaxWork > d.limits.MaxWork || c.MaxRecv > d.limits.MaxWork || q.maxSGE > d.limits.MaxSGE {
		return nil, fmt.Errorf("verbs: a queue pair of %d work requests, %d receives and %d elements is more than %s can do: %+v",
			c.MaxWork, c.MaxRecv, q.maxSGE, d.cfg.Name, d.limits)
	}
	n := 1
	for n < c.MaxWork+markers {
		n *= 2
	}
	q.sq, q.latest = make([]sent, n), ^uint32(0)
	if err := q.create(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.qps[q] = struct{}{}
	d.mu.Unlock()
	return q, nil
}

// create makes the queue pair of the device.
func (q *queuePair) create() error {
	d := q.dev
	c := C.struct_os_qp_config{
		pd: q.domain.pd, send_cq: q.sendCQ.cq, recv_cq: q.recvCQ.cq,
		max_send: C.uint32_t(q.cfg.MaxWork + markers), max_recv: C.uint32_t(max(q.cfg.MaxRecv, 1)),
		max_sge: C.uint32_t(q.maxSGE), max_inline: C.uint32_t(d.limits.MaxInline),
	}
	if q.cfg.Receives != nil {
		r, ok := q.cfg.Receives.(*receiveQueue)
		if !ok || r.dev != d || r.srq == nil {
			return errForeign
		}
		q.recv, c.srq, q.last = r, r.srq, make(chan struct{})
	}
	var err error
	if d.siw {
		if q.bounce, err = newBounce(q.domain, len(q.sq)); err != nil {
			return err
		}
	}
	d.numbers.Lock()
	defer d.numbers.Unlock()
	if q.qp, err = C.os_create_qp(&c); q.qp == nil {
		q.bounce.free()
		return fmt.Errorf("verbs: queue pair on %s: %w%s", d.cfg.Name, err, memlockHint(err))
	}
	q.number, q.maxInline = C.os_qp_num(q.qp), d.limits.MaxInline
	if err := errno(C.os_qp_init(q.qp, d.port)); err != nil {
		C.os_destroy_qp(q.qp)
		q.bounce.free()
		return fmt.Errorf("verbs: prepare a queue pair on %s: %w", d.cfg.Name, err)
	}
	if q.recv == nil {
		q.recv = newReceives(d, q.domain, q.cfg.MaxRecv)
		q.recv.qp = q
	} else {
		q.recv.use(1)
	}
	q.sendCQ.add(q)
	if q.recvCQ != q.sendCQ {
		q.recvCQ.add(q)
	}
	return nil
}

// PostReceive implements rdma.QueuePair.
func (q *queuePair) PostReceive(rs []rdma.Receive) (int, error) {
	if q.recv.srq != nil {
		return 0, errors.New("verbs: this queue pair takes its receives from a shared queue")
	}
	n, err := q.recv.post(rs)
	q.n.receivePosts.Add(1)
	q.n.receives.Add(uint64(n))
	return n, err
}

// Revoke implements rdma.QueuePair. There is no one-shot here.
func (q *queuePair) Revoke(rdma.STag, func()) error { return rdma.ErrUnsupported }

// Endpoint implements rdma.QueuePair: there are none.
func (q *queuePair) Endpoint() *rdma.Endpoint { return nil }

// OneShot implements rdma.QueuePair.
func (q *queuePair) OneShot() *rdma.OneShot { return nil }

func (q *queuePair) Reads() int           { return q.depth }
func (q *queuePair) PeerData() []byte     { return q.peerData }
func (q *queuePair) LocalAddr() net.Addr  { return q.local }
func (q *queuePair) RemoteAddr() net.Addr { return q.remote }
func (q *queuePair) Context() any         { return q.cfg.Context }

// Counters implements rdma.QueuePair.
func (q *queuePair) Counters() rdma.Counters {
	var c rdma.Counters
	q.n.addTo(&c)
	q.sendCQ.addTo(&c)
	if q.recvCQ != q.sendCQ {
		q.recvCQ.addTo(&c)
	}
	return c
}

// completed handles a completion of the device, for a work request or a receive, and pushes the completions
// for the owner to c. The lock of c is held.
func (q *queuePair) completed(wc *C.struct_os_wc, c *completionQueue) {
	var out rdma.Completion
	if wc.id&receiveBit != 0 {
		q.received(wc, &out)
		c.push(&out)
		return
	}
	head, tail := q.head.Load(), q.tail.Load() // the element was written before tail
	pos := uint32(wc.id)
	if pos-head >= tail-head {
		return // of what the device has refused, or completed before
	}
	e := &q.sq[int(pos)&(len(q.sq)-1)]
	e.done = true
	if wc.status != C.IBV_WC_SUCCESS {
		q.cut.Store(true)
		out.Op = e.op
		q.failed(wc, &out)
		e.status, e.err = out.Status, out.Err
	}
	if int32(pos-q.latest) > 0 {
		q.latest = pos
	}
	q.advance(q.latest+1, c) // not up to tail: Post may write elements again that the device has not taken
	if q.draining.Load() && q.head.Load() == tail {
		q.endLater(byUs, nil)
	}
}

// advance completes the done elements at the head of the send queue, in order: siw may complete a Write
// before an earlier Read.
func (q *queuePair) advance(tail uint32, c *completionQueue) {
	for pos := q.head.Load(); int32(tail-pos) > 0; pos++ {
		e := &q.sq[int(pos)&(len(q.sq)-1)]
		if !e.done && (e.told || int32(q.latest-pos) <= 0) {
			return
		}
		out := rdma.Completion{ID: e.id, Op: e.op, Status: e.status, QueuePair: q, Err: e.err}
		switch {
		case e.status != rdma.StatusOK:
			q.failing = true
		case q.failing: // an earlier element has failed
			out.Status = rdma.StatusFlushed
		default:
			out.Bytes = e.bytes
		}
		heard := !e.internal && (!e.silent || out.Status != rdma.StatusOK)
		q.head.Store(pos + 1)
		if heard {
			c.push(&out)
		}
	}
}

func (q *queuePair) received(wc *C.struct_os_wc, out *rdma.Completion) {
	*out = rdma.Completion{ID: q.recv.completed(uint32(wc.id)), Op: rdma.OpReceive, QueuePair: q}
	if wc.status != C.IBV_WC_SUCCESS {
		q.failed(wc, out)
		return
	}
	out.Bytes = int(wc.bytes)
	if wc.flags&C.IBV_WC_WITH_INV != 0 {
		out.Flags, out.STag = rdma.Invalidated, rdma.STag(wc.rkey)
		q.n.invalidations.Add(1)
		q.mu.Lock()
		if w := q.windows[out.STag]; w != nil {
			w.going = true
		}
		q.mu.Unlock()
	}
	q.n.messagesIn.Add(1)
	q.n.bytesIn.Add(uint64(out.Bytes))
}

// statuses translates statuses of the device; all others become StatusTransport.
var statuses = map[C.uint32_t]rdma.Status{
	C.IBV_WC_LOC_LEN_ERR:     rdma.StatusLocalLength,
	C.IBV_WC_LOC_QP_OP_ERR:   rdma.StatusLocalProtection,
	C.IBV_WC_LOC_PROT_ERR:    rdma.StatusLocalProtection,
	C.IBV_WC_WR_FLUSH_ERR:    rdma.StatusFlushed,
	C.IBV_WC_MW_BIND_ERR:     rdma.StatusLocalProtection,
	C.IBV_WC_LOC_ACCESS_ERR:  rdma.StatusLocalProtection,
	C.IBV_WC_REM_INV_REQ_ERR: rdma.StatusRemoteOperation,
	C.IBV_WC_REM_ACCESS_ERR:  rdma.StatusRemoteAccess,
	C.IBV_WC_REM_OP_ERR:      rdma.StatusRemoteOperation,
}

// failed fills in status and error of a work request or receive that has failed. It ends the connection.
func (q *queuePair) failed(wc *C.struct_os_wc, out *rdma.Completion) {
	var known bool
	if out.Status, known = statuses[wc.status]; !known {
		out.Status = rdma.StatusTransport
	}
	switch {
	case out.Status == rdma.StatusFlushed && q.dev.iwarp: // that happens at the end of every stream
		q.endLater(byPeer, nil)
		return
	case out.Status == rdma.StatusFlushed:
		q.endLater(byError, errQueuePair)
		return
	}
	if q.dev.siw && out.Op != rdma.OpReceive && (wc.status == C.IBV_WC_LOC_QP_OP_ERR || wc.status == C.IBV_WC_GENERAL_ERR) {
		out.Status = rdma.StatusFlushed // siw could not send: the stream has ended
	}
	if out.Op == rdma.OpReceive && (wc.status == C.IBV_WC_REM_INV_REQ_ERR || wc.status == C.IBV_WC_LOC_QP_OP_ERR) {
		out.Status = rdma.StatusLocalLength // the message does not fit the receive
	}
	err := fmt.Errorf("verbs: %v: %s (vendor error %#x)", out.Op, C.GoString(C.os_status(wc.status)), uint32(wc.vendor))
	if out.Status != rdma.StatusFlushed {
		q.failure.CompareAndSwap(nil, &err)
	}
	out.Err = err
	q.endLater(byError, err)
}

var errQueuePair = errors.New("verbs: the queue pair has gone into the error state: the device or the peer has seen an offence")
