package iwarp

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"oneshot/ddp"
	"oneshot/internal/stream"
	"oneshot/stag"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// queuePair is one connection. Its reader owns rx. mu guards all other fields, except those that
// do not change once the queue pair is connected.
type queuePair struct {
	dev     *Device
	cfg     rdma.QueuePairConfig
	domain  *domain
	stream  *stag.Stream
	sendCQ  *soft.CompletionQueue
	recvCQ  *soft.CompletionQueue
	recv    *receives // own or shared
	shared  bool
	waiter  soft.Waiter // for a receive
	onEmpty func()      // nil, or called when a message finds no receive
	maxSGE  int
	maxWork uint32

	// Set when connected.
	tc       socket
	sock     *stream.Socket // of tc; its descriptor may be used while sending, or with mu held while the socket lives
	format   ddp.Format
	crc      bool
	mulpdu   int
	ird, ord int
	shot     *rdma.OneShot
	peer     *stag.Peer // Host 2, if the peer may advertise; what is in it is guarded by mu
	peerData []byte

	n     soft.Counters
	freed sync.Once
	rx    rx // the reader's own

	mu     sync.Mutex // taken before Device.mu, completionQueue.mu, receives.mu, window.mu
	state  state      // life.go
	err    error      // why the connection ends
	opened bool       // an FPDU may be sent: by the initiator always, by the responder after the peer's first FPDU

	sq      sendQueue
	answers answers
	tx      tx
	term    []byte      // a Terminate to be sent
	termEnd uint64      // tx.out.Queued when the Terminate is framed; 0: it is not framed, or has left
	timer   *time.Timer // bounds the end

	chooses bool // the owner chooses STags (SetAside)

	// The owner of an STag of this stream in the table is an *advert or a *bound.
	free    *advert
	unbound *bound
	after   []func() // to be called when mu is released
	// onFreed is memoryFreed and onQuiet is goOn, as function values: an invalidation allocates none.
	onFreed, onQuiet func()

	batching bool       // the reader sends when its batch is done
	sending  bool       // somebody is in send
	inWrite  bool       // a goroutine in send is in a system call
	blocked  bool       // the writer waits for room in the socket
	settled  *sync.Cond // signalled when inWrite or sending becomes false

	done chan struct{} // closed when the connection has ended
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
	if c.MaxSGE == 0 {
		c.MaxSGE = maxSGE
	}
	if c.MaxSGE > maxSGE || c.MaxWork > maxWork || c.MaxRecv > maxWork || c.Order != rdma.OrderStrict {
		return nil, rdma.ErrUnsupported
	}
	q := &queuePair{
		dev: d, cfg: c, domain: dom, sendCQ: scq, recvCQ: rcq,
		maxSGE: c.MaxSGE, maxWork: uint32(c.MaxWork),
		stream: d.memory.Table.NewStream(dom.Tag, 0),
		done:   make(chan struct{}),
	}
	q.settled = sync.NewCond(&q.mu)
	q.onFreed, q.onQuiet = q.memoryFreed, q.goOn
	q.waiter.Wake = q.wakeReader
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

// OneShot implements rdma.QueuePair.
func (q *queuePair) OneShot() *rdma.OneShot { return q.shot }

// Endpoint implements rdma.QueuePair: there are none.
func (q *queuePair) Endpoint() *rdma.Endpoint { return nil }

// Reads implements rdma.QueuePair.
func (q *queuePair) Reads() int { return q.ord }

// PeerData implements rdma.QueuePair.
func (q *queuePair) PeerData() []byte { return q.peerData }

// Context implements rdma.QueuePair.
func (q *queuePair) Context() any { return q.cfg.Context }

// LocalAddr implements rdma.QueuePair.
func (q *queuePair) LocalAddr() net.Addr {
	if tc := q.conn(); tc != nil {
		return tc.LocalAddr()
	}
	return nil
}

// RemoteAddr implements rdma.QueuePair.
func (q *queuePair) RemoteAddr() net.Addr {
	if tc := q.conn(); tc != nil {
		return tc.RemoteAddr()
	}
	return nil
}

func (q *queuePair) conn() socket {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.tc
}

// Counters implements rdma.QueuePair.
func (q *queuePair) Counters() rdma.Counters { return q.n.With(q.sendCQ, q.recvCQ) }

// QueuePair is a queue pair of this package, with what takes serving it to another process.
type QueuePair interface {
	rdma.QueuePair
	// SetAside sets n STags aside for the owner, who from then on chooses the STag of each request with Advertise and
	// each OpBind (Work.STag): one of these, and when that is free again, the same with a key that is one more,
	// modulo 256. Post refuses others with stag.ErrState. It may be called again for more.
	SetAside(n int) ([]rdma.STag, error)
	// Unfinished returns how many requests are posted and not done, signalled or not. Those that are done have left
	// their completions in the completion queue.
	Unfinished() int
	// OnEmpty has f called when a message finds no receive in the queue pair's own queue; f may post some. It is called
	// by the goroutine that serves the connection, without locks. OnEmpty is called before the queue pair is connected.
	OnEmpty(f func())
}

var _ QueuePair = (*queuePair)(nil)

// SetAside implements QueuePair.
func (q *queuePair) SetAside(n int) ([]rdma.STag, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	tags, err := q.stream.SetAside(n)
	if err != nil {
		return nil, err
	}
	q.chooses = true
	list := make([]rdma.STag, len(tags))
	for i, s := range tags {
		list[i] = rdma.STag(s)
	}
	return list, nil
}

// OnEmpty implements QueuePair.
func (q *queuePair) OnEmpty(f func()) { q.onEmpty = f }

// Unfinished implements QueuePair.
func (q *queuePair) Unfinished() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.sq.Len()
}

// Await implements rdma.Awaiter, once the queue pair is connected: the caller does what the reader does.
func (q *queuePair) Await() bool { return q.sock.Await() }

// PostReceive implements rdma.QueuePair.
func (q *queuePair) PostReceive(rs []rdma.Receive) (int, error) {
	if q.shared {
		return 0, &rdma.WorkError{Op: rdma.OpReceive, What: "queue pair takes its receives from a ReceiveQueue"}
	}
	n, err := q.recv.Post(rs)
	q.n.ReceivePosts.Add(1)
	q.n.Receives.Add(uint64(n))
	return n, err
}

// unlock releases mu and does what had to wait for that.
func (q *queuePair) unlock() {
	after := q.after
	q.after = nil
	q.mu.Unlock()
	for _, f := range after {
		f()
	}
}

// wakeReader wakes a reader that waits, so that it looks again. There may be nothing new for it.
func (q *queuePair) wakeReader() {
	if q.sock != nil {
		q.sock.Resume()
	}
}

// fire calls the events that are due. The caller is a goroutine of this package that holds no locks.
func (q *queuePair) fire() {
	q.recvCQ.Fire()
	if q.sendCQ != q.recvCQ {
		q.sendCQ.Fire()
	}
}

// notify has another goroutine call the events that are due.
func (q *queuePair) notify() {
	q.sendCQ.Notify()
	if q.recvCQ != q.sendCQ {
		q.recvCQ.Notify()
	}
}

// claim begins to connect the queue pair.
func (q *queuePair) claim() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != idle {
		return errNotIdle
	}
	q.become(connecting)
	return nil
}

// agreed is what two ends have agreed on in their MPA frames.
type agreed struct {
	crc       bool
	ird, ord  int
	initiator bool
	rtr       ddp.Message // the ready-to-receive message that an initiator sends in the peer-to-peer model

	peerToPeer bool // the responder gets a ready-to-receive message
	shot       *ddp.OneShot
	peerData   []byte
}

// socket is a stream socket, a TCP connection except in tests.
type socket interface {
	net.Conn
	syscall.Conn
}

// start begins the exchange of FPDUs on tc, which the queue pair owns from now on.
func (q *queuePair) start(tc socket, a *agreed) error {
	if err := q.open(tc, a); err != nil {
		return err
	}
	go q.run() // ends with the connection, and closes done
	return nil
}

// open is start without the reader.
func (q *queuePair) open(tc socket, a *agreed) error {
	sock, err := stream.Open(tc) // finish closes tc, after dead is set
	if err != nil {
		return err
	}
	sock.OnRoom(q.onWritable, q.written)
	if q.cfg.Alone != nil {
		sock.Lend(tc, q.cfg.Alone)
	}
	q.mu.Lock()
	if q.state != connecting {
		q.mu.Unlock()
		return rdma.ErrDisconnected
	}
	q.tc, q.sock = tc, sock
	q.crc, q.ird, q.ord, q.peerData = a.crc, a.ird, a.ord, a.peerData
	q.opened = a.initiator
	q.mulpdu = segmentSize(sock.FD, q.dev.cfg.MaxULPDU)
	q.agree(a)
	q.rx.init()
	q.rx.greeted = !a.peerToPeer
	q.become(connected)
	if a.rtr != ddp.MessageInvalid {
		q.sq.add(q.maxWork + 1).readyToReceive(a.rtr)
		q.send()
	}
	q.unlock()
	q.dev.log.LogAttrs(context.Background(), slog.LevelDebug, "iwarp: connected",
		slog.String("peer", tc.RemoteAddr().String()), slog.Bool("initiator", a.initiator), slog.Bool("crc", a.crc),
		slog.Int("ird", a.ird), slog.Int("ord", a.ord), slog.Int("mulpdu", q.mulpdu), slog.Any("one_shot", q.shot))
	return nil
}

// agree takes over what both ends have agreed on one-shot RDMA.
func (q *queuePair) agree(a *agreed) {
	q.format = ddp.Format{}
	if a.shot == nil {
		return
	}
	host := ddp.Host2
	if a.initiator {
		host = ddp.Host1
	}
	q.format = a.shot.Format(host)
	q.shot = &rdma.OneShot{
		Opcodes:   q.format.Encoding == ddp.EncodingOpcodes,
		Validated: q.format.Header == ddp.HeaderValidated,
		Advertise: q.format.Advertise,
		Close:     q.format.Close,
		Window:    a.shot.Window,
	}
	if !q.shot.Advertise {
		return
	}
	if host == ddp.Host1 {
		q.stream.SetWindow(int(a.shot.Window))
	} else {
		q.peer = stag.NewPeer(int(a.shot.Window))
	}
}
