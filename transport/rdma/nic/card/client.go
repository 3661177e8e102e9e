package card

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/shm"
	"oneshot/transport/rdma/soft"
)

// client is a program that the card serves.
type client struct {
	srv    *Server
	log    *slog.Logger
	peer   Peer
	sock   *shm.Socket
	ctl    *shm.Control
	fd     int       // of ctl, until the program says hello and gets it; then -1; guarded by mu
	bell   *shm.Bell // wakes the card
	driver *shm.Bell // wakes the program
	dev    rdma.Device
	cq     rdma.CompletionQueue // of all queue pairs
	polling

	ctx     context.Context // ends with the program
	cancel  context.CancelFunc
	out     chan message
	gone    atomic.Bool
	why     error // set before gone
	once    sync.Once
	work    sync.WaitGroup
	pending atomic.Int32 // requests that wait for their answer

	mu          sync.Mutex // taken before outMu and the locks of the device
	hintHead    uint32
	commandHead uint32
	queues      map[uint32]*queue
	domains     map[uint32]rdma.Domain
	regions     map[uint32]*region
	windows     map[uint32]rdma.Window
	arenas      map[uint32]*arena
	listeners   map[uint32]rdma.Listener
	requests    map[uint32]rdma.Request
	nextRequest uint32
	connects    map[uint64]context.CancelFunc // by the ID of the message
	bytes       int64                         // shared
	aside       int                           // STags
	batch       batch

	outMu   sync.Mutex       // taken after mu
	tail    uint32           // of the ring of completions
	extra   []shm.Completion // to be put, behind what is in cq
	slots   int              // of all queues
	closing int64            // octets of queues that are closed, whose completions may wait for room
	touched []*pair          // whose requests may be done
	snaps   []snap
	cs      [64]rdma.Completion
}

// message is something to be sent to the program, with descriptors to be closed then.
type message struct {
	m   *shm.Message
	fds []int
}

// queue is a ring of requests or receives.
type queue struct {
	mem  *shm.Queue
	head uint32
	pair *pair             // of a send queue, or of a queue of receives of its own
	srq  rdma.ReceiveQueue // of a shared queue of receives
	size int64             // octets that it shares
	dom  rdma.Domain
}

// pair is a queue pair.
type pair struct {
	c        *client
	number   uint32
	qp       queuePair
	sq, rq   *queue
	shared   bool
	consumed atomic.Uint32 // requests that the device has

	done   uint32 // requests of which the program can know that they are done: by their count, or by a completion that was put; guarded by outMu
	stale  bool   // it is among client.touched; guarded by outMu
	closed bool   // its queues are gone; guarded by outMu

	over  bool             // the connection has ended, or never began; guarded by client.mu, as are late and aside
	late  []shm.Completion // of what came after the end
	aside int              // STags
}

// region is registered memory.
type region struct {
	rdma.Region
	arena *arena
}

// arena is memory of the program.
type arena struct {
	seg   *shm.Segment
	users int                          // regions
	whole map[rdma.Domain]*soft.Region // all of it, for pieces without a region
	going bool
}

const (
	maxPending  = 256
	maxPairs    = 1024
	maxDepth    = 1 << 14
	maxRequests = 256
	// maxOutgoing bounds the messages that the program has not read: an answer to each request of its own, the end of each queue pair,
	// and connections that peers want, which are told only while there is room for the others.
	maxOutgoing = maxPending + maxPairs + maxRequests
	maxArenas   = 8192
	// maxListeners bounds the sockets that wait for connections.
	maxListeners = 256
)

func newClient(s *Server, u *net.UnixConn, peer Peer) (c *client, err error) {
	c = &client{
		srv: s, log: s.log, peer: peer, sock: shm.NewSocket(u), fd: -1, out: make(chan message, maxOutgoing),
		queues: make(map[uint32]*queue), domains: make(map[uint32]rdma.Domain), regions: make(map[uint32]*region),
		windows: make(map[uint32]rdma.Window), arenas: make(map[uint32]*arena), listeners: make(map[uint32]rdma.Listener),
		requests: make(map[uint32]rdma.Request), connects: make(map[uint64]context.CancelFunc),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if c.dev, err = s.cfg.Open(peer); err != nil {
		return nil, err
	}
	if c.cq, err = c.dev.NewCompletionQueue(shm.Completions, c.drain); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.release()
		}
	}()
	seg, fd, err := shm.Create("nic-control", shm.ControlLen)
	if err != nil {
		return nil, err
	}
	c.ctl, c.fd = shm.NewControl(seg), fd
	if c.bell, err = shm.NewBell(); err != nil {
		return nil, err
	}
	c.driver, err = shm.NewBell()
	return c, err
}

// run serves the program until it has gone.
func (c *client) run() {
	defer time.AfterFunc(c.srv.cfg.HelloTimeout(), c.expectHello).Stop()
	c.work.Go(c.loop)
	c.work.Go(c.sender)
	c.end(c.receive())
	c.takeDown()
	if c.why == nil {
		c.log.Info("nic: a program has gone", slog.Int("pid", int(c.peer.PID)))
	} else {
		c.log.Warn("nic: a program has gone", slog.Int("pid", int(c.peer.PID)), slog.Any("reason", c.why))
	}
}

var errSilent = errors.New("nic: it takes too long to say hello")

// expectHello ends the service of a program that has not said hello.
func (c *client) expectHello() {
	c.mu.Lock()
	silent := c.fd >= 0
	c.mu.Unlock()
	if silent && !c.gone.Load() {
		c.srv.Counters.Silent.Add(1)
		c.end(errSilent)
	}
}

// end ends the service. It does not wait. The socket stays open until the card has let go of the program's memory (release):
// its end tells the program that the memory is its own again.
func (c *client) end(why error) {
	c.once.Do(func() {
		if errors.Is(why, io.EOF) {
			why = nil
		}
		c.why = why
		c.gone.Store(true)
		c.cancel()
		c.bell.Stop()
		_ = c.sock.SetDeadline(time.Unix(1, 0)) // wakes receive and sender
	})
}

// lie ends the service of a program that has written what no driver writes. The caller may hold locks.
func (c *client) lie(format string, args ...any) {
	c.end(fmt.Errorf("nic: "+format, args...))
}

// loop does what the program asks for in its rings.
func (c *client) loop() {
	look := func() bool {
		c.ctl.Card.Begin()
		if c.hasNew() {
			c.ctl.Card.End()
			return true
		}
		c.sleeps.Add(1)
		return false
	}
	for {
		if !c.poll() {
			if err := c.bell.Wait(look); err != nil {
				return
			}
		}
		if c.gone.Load() {
			return
		}
		for c.hints() {
			c.drain()
		}
	}
}

// hints looks after the queues that have something new. False: there are none.
func (c *client) hints() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.ctl.HintTail.Load() - c.hintHead
	switch {
	case n == 0 || c.gone.Load():
		return false
	case n > shm.Hints:
		c.lie("%d hints in a ring of %d", n, shm.Hints)
		return false
	}
	for ; n > 0; n-- {
		number := c.ctl.Hint(c.hintHead).Load()
		// The head first: a hint that is not given because of this one came before what is read now.
		c.hintHead++
		c.ctl.HintHead.Store(c.hintHead)
		if number == shm.CommandQueue {
			c.commands()
			continue
		}
		if q := c.queues[number]; q != nil { // or it is gone
			c.consume(q)
		}
	}
	return true
}

// receive takes messages until the socket ends.
func (c *client) receive() error {
	for {
		m := new(shm.Message)
		fds, err := c.sock.Receive(m)
		if err != nil {
			return err
		}
		if m.Op == shm.OpCancel {
			shm.CloseAll(fds)
			c.mu.Lock()
			cancel := c.connects[uint64(m.Number)]
			c.mu.Unlock()
			if cancel != nil {
				cancel()
			}
			continue
		}
		if c.pending.Add(1) > maxPending {
			shm.CloseAll(fds)
			return fmt.Errorf("nic: more than %d requests at a time", maxPending)
		}
		if m.Op == shm.OpConnect { // here, so that OpCancel finds it
			ctx, cancel := context.WithCancel(c.ctx)
			c.mu.Lock()
			c.connects[m.ID] = cancel
			c.mu.Unlock()
			c.work.Go(func() { c.connect(ctx, cancel, m); c.pending.Add(-1) })
			shm.CloseAll(fds)
			continue
		}
		c.work.Go(func() { c.request(m, fds); c.pending.Add(-1) })
	}
}

// tell sends a message. It does not wait.
func (c *client) tell(m *shm.Message, fds ...int) {
	select {
	case c.out <- message{m, fds}:
	default:
		shm.CloseAll(fds)
		c.lie("%d messages that the program does not read", maxOutgoing)
	}
}

func (c *client) sender() {
	for {
		select {
		case x := <-c.out:
			if err := c.sock.Send(x.m, x.fds...); err != nil {
				c.end(err)
			}
			shm.CloseAll(x.fds)
		case <-c.ctx.Done():
			return
		}
	}
}

// takeDown ends all that the program holds. Nobody else begins anything any more.
func (c *client) takeDown() {
	over := make(chan struct{})
	var free sync.WaitGroup
	free.Go(func() {
		for {
			c.driver.Release() // the program may have filled the counter of its bell
			select {
			case <-over:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	c.mu.Lock()
	listeners, requests, pairs := c.listeners, c.requests, c.pairs()
	c.listeners, c.requests = nil, nil
	c.mu.Unlock()
	for _, l := range listeners {
		_ = l.Close()
	}
	for _, r := range requests {
		c.work.Go(func() { _ = r.Reject(nil) })
	}
	for _, p := range pairs {
		c.work.Go(func() { _ = p.qp.Close() })
	}
	c.work.Wait()
	c.mu.Lock()
	late := c.pairs() // one may have been made meanwhile
	c.mu.Unlock()
	for _, p := range late {
		_ = p.qp.Close() // to no effect, if it was closed
	}
	c.work.Wait()
	close(over)
	free.Wait()
	c.release()
}

// pairs lists the queue pairs. The lock is held.
func (c *client) pairs() (list []*pair) {
	for _, q := range c.queues {
		if q.pair != nil && q.pair.sq == q {
			list = append(list, q.pair)
		}
	}
	return list
}

// release gives back what is left when no queue pair runs any more.
func (c *client) release() {
	_ = c.srv.share(c.peer.UID, -c.bytes)
	for _, w := range c.windows {
		_ = w.Free()
	}
	for _, r := range c.regions {
		_ = r.Deregister()
	}
	for _, a := range c.arenas {
		for _, r := range a.whole {
			_ = r.Deregister()
		}
		_ = a.seg.Close()
	}
	for _, q := range c.queues {
		if q.srq != nil {
			_ = q.srq.Close()
		}
		_ = q.mem.Close()
	}
	for _, d := range c.domains {
		_ = d.Close()
	}
	if err := errors.Join(c.cq.Close(), c.dev.Close()); err != nil {
		c.log.Error("nic: a program leaves something behind", slog.Any("reason", err))
	}
	for {
		select {
		case x := <-c.out:
			shm.CloseAll(x.fds)
			continue
		default:
		}
		break
	}
	if c.fd >= 0 {
		_ = unix.Close(c.fd)
	}
	for _, b := range []*shm.Bell{c.bell, c.driver} {
		if b != nil {
			b.Close()
		}
	}
	if c.ctl != nil {
		_ = c.ctl.Close()
	}
	_ = c.sock.Close()
}

func dup(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }
