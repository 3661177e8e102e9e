package card

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"golang.org/x/sys/unix"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/shm"
	"oneshot/transport/rdma/soft"
)

// request does what a message asks for, and answers it. It owns the descriptors.
func (c *client) request(m *shm.Message, fds []int) {
	defer shm.CloseAll(fds)
	f := requests[m.Op]
	if f == nil {
		c.lie("request %q", m.Op)
		return
	}
	a, out, err := f(c, m, fds)
	c.reply(m, a, out, err)
}

// reply sends the answer a, which may be nil, to m.
func (c *client) reply(m, a *shm.Message, fds []int, err error) {
	if a == nil {
		a = new(shm.Message)
	}
	a.ID, a.Op = m.ID, m.Op
	if err != nil {
		a.Error = err.Error()
		switch e, rejected := errors.AsType[*rdma.RejectedError](err); {
		case rejected:
			a.Kind, a.Data = shm.ErrorRejected, e.PrivateData
		case errors.Is(err, rdma.ErrDisconnected):
			a.Kind = shm.ErrorDisconnected
		case errors.Is(err, rdma.ErrUnsupported):
			a.Kind = shm.ErrorUnsupported
		case errors.Is(err, context.Canceled):
			a.Kind = shm.ErrorCancelled
		}
	}
	c.tell(a, fds...)
}

type handler func(c *client, m *shm.Message, fds []int) (a *shm.Message, out []int, err error)

var requests = map[string]handler{
	shm.OpHello:         (*client).hello,
	shm.OpArena:         (*client).newArena,
	shm.OpFreeArena:     (*client).freeArena,
	shm.OpDomain:        (*client).newDomain,
	shm.OpCloseDomain:   (*client).closeDomain,
	shm.OpReceives:      (*client).newReceives,
	shm.OpCloseReceives: (*client).closeReceives,
	shm.OpQueuePair:     (*client).newPair,
	shm.OpListen:        (*client).listen,
	shm.OpCloseListener: (*client).closeListener,
	shm.OpAccept:        (*client).accept,
	shm.OpReject:        (*client).reject,
	shm.OpDisconnect:    (*client).disconnect,
	shm.OpAbort:         (*client).abort,
	shm.OpClose:         (*client).closePair,
	shm.OpCounters:      (*client).counters,
	shm.OpSTags:         (*client).stags,
}

// limits are those of the device, as far as its queues in shared memory go.
func (c *client) limits() *rdma.Limits {
	l := c.dev.Limits()
	l.MaxQueuePair, l.MaxWork = maxPairs, maxDepth
	return &l
}

func (c *client) hello(m *shm.Message, _ []int) (*shm.Message, []int, error) {
	c.mu.Lock()
	fd := c.fd
	c.fd = -1
	c.mu.Unlock()
	a := &shm.Message{Version: shm.Version}
	switch {
	case fd < 0:
		c.lie("hello, again")
		return nil, nil, errNone
	case m.Version != shm.Version:
		shm.CloseAll([]int{fd})
		return a, nil, fmt.Errorf("the program speaks version %d of the protocol, the card version %d: use programs of one release", m.Version, shm.Version)
	}
	c.log.Info("nic: a program has come", slog.Int("pid", int(c.peer.PID)))
	a.Limits = c.limits()
	fds := []int{fd}
	for _, b := range []*shm.Bell{c.bell, c.driver} {
		d, err := dup(b.FD())
		if err != nil {
			return a, fds, err
		}
		fds = append(fds, d)
	}
	return a, fds, nil
}

// share counts n octets that the program shares from now on. The lock is held.
func (c *client) share(n int64) error {
	s := c.srv
	c.outMu.Lock()
	closing := c.closing
	c.outMu.Unlock()
	var err error
	if n <= 0 || n > s.cfg.Memory-c.bytes-closing {
		err = fmt.Errorf("the card maps no more than %d bytes of a program, and has %d", s.cfg.Memory, c.bytes)
	} else {
		err = s.share(c.peer.UID, n)
	}
	if err != nil {
		s.Counters.MemoryRefused.Add(1)
		return err
	}
	c.bytes += n
	return nil
}

// unshare counts n octets that the program shares no longer. The lock is held.
func (c *client) unshare(n int64) {
	c.bytes -= n
	_ = c.srv.share(c.peer.UID, -n)
}

func (c *client) newArena(m *shm.Message, fds []int) (_ *shm.Message, _ []int, err error) {
	if len(fds) != 1 {
		return nil, nil, errNone
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.Number >= shm.MaxObjects || c.arenas[m.Number] != nil || len(c.arenas) >= maxArenas {
		return nil, nil, errNumber
	}
	if err := c.share(m.Size); err != nil {
		return nil, nil, err
	}
	seg, err := shm.Map(fds[0], int(m.Size))
	if err != nil {
		c.unshare(m.Size)
		return nil, nil, err
	}
	c.arenas[m.Number] = &arena{seg: seg}
	return nil, nil, nil
}

func (c *client) freeArena(m *shm.Message, _ []int) (*shm.Message, []int, error) {
	c.mu.Lock()
	a := c.arenas[m.Number]
	if a == nil || a.going || a.users > 0 {
		c.mu.Unlock()
		return nil, nil, soft.ErrInUse
	}
	a.going = true
	c.mu.Unlock()
	for dom, r := range a.whole { // nobody else changes it any more
		_ = r.Deregister()
		delete(a.whole, dom)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.arenas, m.Number)
	c.unshare(int64(len(a.seg.Bytes())))
	return nil, nil, a.seg.Close()
}

func (c *client) newDomain(m *shm.Message, _ []int) (*shm.Message, []int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.Number >= shm.MaxObjects || c.domains[m.Number] != nil {
		return nil, nil, errNumber
	}
	d, err := c.dev.NewDomain()
	if err == nil {
		c.domains[m.Number] = d
	}
	return nil, nil, err
}

// closeDomain forgets a domain. Queue pairs and regions that are left keep it.
func (c *client) closeDomain(m *shm.Message, _ []int) (*shm.Message, []int, error) {
	c.mu.Lock()
	d := c.domains[m.Number]
	delete(c.domains, m.Number)
	var whole []*soft.Region
	for _, a := range c.arenas {
		if r := a.whole[d]; r != nil && !a.going {
			delete(a.whole, d)
			whole = append(whole, r)
		}
	}
	c.mu.Unlock()
	if d == nil {
		return nil, nil, errNone
	}
	for _, r := range whole {
		_ = r.Deregister()
	}
	return nil, nil, d.Close()
}

// newQueue makes a queue, and a descriptor of its memory for the program. The lock is held.
func (c *client) newQueue(number uint32, depth int, dom rdma.Domain) (*queue, int, error) {
	n := shm.QueueLen(depth)
	switch {
	case number == shm.CommandQueue || number > shm.MaxQueues || c.queues[number] != nil:
		return nil, -1, errNumber
	case depth < 0 || depth > maxDepth:
		return nil, -1, rdma.ErrUnsupported
	}
	if err := c.share(int64(n)); err != nil {
		return nil, -1, err
	}
	seg, fd, err := shm.Create("nic-queue", n)
	if err != nil {
		c.unshare(int64(n))
		return nil, -1, err
	}
	q := &queue{mem: shm.NewQueue(seg, depth), size: int64(n), dom: dom}
	c.queues[number] = q
	c.count(int(q.mem.Slots()))
	return q, fd, nil
}

// drop forgets a queue. The lock is held.
func (c *client) drop(number uint32) {
	if q := c.queues[number]; q != nil {
		delete(c.queues, number)
		c.unshare(q.size)
		c.count(-int(q.mem.Slots()))
		_ = q.mem.Close()
	}
}

// count counts the slots of queues.
func (c *client) count(n int) {
	c.outMu.Lock()
	c.slots += n
	c.outMu.Unlock()
}

func (c *client) newReceives(m *shm.Message, _ []int) (*shm.Message, []int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	dom := c.domains[m.Domain]
	if dom == nil {
		return nil, nil, errNone
	}
	q, fd, err := c.newQueue(m.Number, m.Depth, dom)
	if err != nil {
		return nil, nil, err
	}
	if q.srq, err = c.dev.NewReceiveQueue(dom, m.Depth); err != nil {
		c.drop(m.Number)
	}
	return nil, []int{fd}, err
}

func (c *client) closeReceives(m *shm.Message, _ []int) (*shm.Message, []int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[m.Number]
	if q == nil || q.srq == nil {
		return nil, nil, errNone
	}
	err := q.srq.Close()
	if err == nil {
		c.drop(m.Number)
	}
	return nil, nil, err
}

func (c *client) newPair(m *shm.Message, _ []int) (_ *shm.Message, fds []int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	dom := c.domains[m.Domain]
	switch {
	case dom == nil:
		return nil, nil, errNone
	case m.Depth < 0 || m.Depth > maxDepth || m.Receives < 0 || m.Receives > maxDepth || m.MaxSGE < 0 || len(c.pairs()) >= maxPairs:
		return nil, nil, rdma.ErrUnsupported
	}
	p := &pair{c: c, number: m.Number}
	var made []uint32
	config := rdma.QueuePairConfig{
		Domain: dom, SendCQ: c.cq, RecvCQ: c.cq, MaxSGE: m.MaxSGE, Context: p, Disconnected: p.ended,
		MaxWork: m.Depth + 2, // Unfinished may count a message of the device's own
		MaxRecv: m.Receives,
	}
	defer func() {
		if err != nil { // what has such a number already stays
			for _, n := range made {
				c.drop(n)
			}
		}
	}()
	q, fd, err := c.newQueue(m.Number, m.Depth, dom)
	if err != nil {
		return nil, nil, err
	}
	fds, made = append(fds, fd), append(made, m.Number)
	p.sq, q.pair = q, p
	if m.Shared != 0 {
		s := c.queues[m.Shared]
		if s == nil || s.srq == nil {
			return nil, fds, errNone
		}
		p.rq, p.shared, config.Receives = s, true, s.srq
	} else {
		if q, fd, err = c.newQueue(m.Number+1, m.Receives, dom); err != nil {
			return nil, fds, err
		}
		fds, made = append(fds, fd), append(made, m.Number+1)
		p.rq, q.pair = q, p
	}
	qp, err := c.dev.NewQueuePair(config)
	if err == nil {
		p.qp = qp.(queuePair)
		if a, ok := qp.(asker); ok {
			a.OnEmpty(func() { // what the program has posted may not be here yet
				c.mu.Lock()
				defer c.mu.Unlock()
				c.consume(p.rq)
			})
		}
	}
	return nil, fds, err
}

// caughtUp returns a queue pair, after it has got all that was posted to it.
func (c *client) caughtUp(number uint32) (*pair, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pair(number)
	if p == nil {
		return nil, errNone
	}
	c.consume(p.rq)
	c.consume(p.sq)
	return p, nil
}

// firstSTags is how many STags a queue pair gets at first, besides its window.
const firstSTags = 64

// maxSTags is how many STags a message can have, maxAside how many may be set aside for a program.
const (
	maxSTags = 2048
	maxAside = 1 << 18
)

// setAside sets n STags aside for a queue pair.
func (p *pair) setAside(n int) ([]rdma.STag, error) {
	chooses, ok := p.qp.(chooser)
	if !ok {
		return nil, rdma.ErrUnsupported
	}
	c := p.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > maxAside-c.aside {
		return nil, fmt.Errorf("nic: more than %d STags at a time", maxAside)
	}
	tags, err := chooses.SetAside(n)
	c.aside += len(tags)
	p.aside += len(tags)
	return tags, err
}

// connected describes a connection.
func (p *pair) connected(initiator bool) *shm.Message {
	q := p.qp
	a := &shm.Message{
		OneShot: q.OneShot(), Reads: q.Reads(), Data: q.PeerData(), Initiator: initiator,
		Local: q.LocalAddr().String(), Remote: q.RemoteAddr().String(),
	}
	n := firstSTags
	if o := a.OneShot; o != nil && initiator {
		n = min(n+int(min(o.Window, maxSTags)), maxSTags)
	}
	a.STags, _ = p.setAside(n) // if there are none, the program asks again
	return a
}

func (c *client) connect(ctx context.Context, cancel context.CancelFunc, m *shm.Message) {
	p, err := c.caughtUp(m.Number)
	var a *shm.Message
	if err == nil && m.Params == nil {
		err = errNone
	}
	if err == nil {
		err = c.dev.Connect(ctx, p.qp, m.Address, *m.Params)
	}
	if err == nil {
		a = p.connected(true)
	}
	c.mu.Lock()
	delete(c.connects, m.ID)
	c.mu.Unlock()
	cancel()
	c.reply(m, a, nil, err)
}

func (c *client) listen(m *shm.Message, _ []int) (*shm.Message, []int, error) {
	l, err := c.dev.Listen(m.Address)
	if err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.listeners == nil || c.listeners[m.Number] != nil || m.Number >= shm.MaxObjects:
		return nil, nil, errors.Join(errNumber, l.Close())
	case len(c.listeners) >= maxListeners:
		return nil, nil, errors.Join(fmt.Errorf("nic: a program listens on no more than %d addresses", maxListeners), l.Close())
	}
	c.listeners[m.Number] = l
	c.work.Go(func() { c.accepting(m.Number, l) })
	return &shm.Message{Address: l.Addr().String()}, nil, nil
}

// accepting tells the program of those who want a connection. If it answers none, the oldest give way; if it does not even read that
// they have come, those who come are rejected: strangers do not end a program that is held up.
func (c *client) accepting(number uint32, l rdma.Listener) {
	for {
		r, err := l.Accept()
		if err != nil {
			return
		}
		c.mu.Lock()
		var old rdma.Request
		if c.requests == nil || len(c.out) >= maxRequests {
			old = r
		} else {
			c.nextRequest++
			n := c.nextRequest
			c.requests[n] = r
			if k := n - maxRequests; c.requests[k] != nil {
				old = c.requests[k]
				delete(c.requests, k)
			}
			c.tell(&shm.Message{
				Op: shm.OpRequested, Listener: number, Number: n, Data: r.PeerData(), Local: r.LocalAddr().String(), Remote: r.RemoteAddr().String(),
			})
		}
		c.mu.Unlock()
		if old != nil {
			_ = old.Reject(nil)
		}
	}
}

func (c *client) closeListener(m *shm.Message, _ []int) (*shm.Message, []int, error) {
	c.mu.Lock()
	l := c.listeners[m.Number]
	delete(c.listeners, m.Number)
	c.mu.Unlock()
	if l == nil {
		return nil, nil, net.ErrClosed
	}
	return nil, nil, l.Close()
}

// takeRequest returns a request that waits.
func (c *client) takeRequest(n uint32) (rdma.Request, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.requests[n]
	delete(c.requests, n)
	if r == nil {
		return nil, errors.New("the connection request is no longer there")
	}
	return r, nil
}

func (c *client) accept(m *shm.Message, _ []int) (*shm.Message, []int, error) {
	r, err := c.takeRequest(m.Request)
	if err != nil {
		return nil, nil, err
	}
	p, err := c.caughtUp(m.Number)
	if err == nil && m.Params == nil {
		err = errNone
	}
	if err != nil {
		return nil, nil, errors.Join(err, r.Reject(nil))
	}
	if err := r.Accept(p.qp, *m.Params); err != nil {
		return nil, nil, err
	}
	return p.connected(false), nil, nil
}

func (c *client) reject(m *shm.Message, _ []int) (*shm.Message, []int, error) {
	r, err := c.takeRequest(m.Request)
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, r.Reject(m.Data)
}

func (c *client) disconnect(m *shm.Message, _ []int) (*shm.Message, []int, error) {
	p, err := c.caughtUp(m.Number)
	if err == nil {
		p.qp.Disconnect()
	}
	return nil, nil, err
}

// terminate is an error that the peer is told of.
type terminate [3]uint8

func (t terminate) Error() string                         { return "the program has ended the connection" }
func (t terminate) Terminate() (layer, etype, code uint8) { return t[0], t[1], t[2] }

func (c *client) abort(m *shm.Message, _ []int) (*shm.Message, []int, error) {
	p, err := c.caughtUp(m.Number)
	if err != nil {
		return nil, nil, err
	}
	var why error
	if len(m.Terminate) == 3 {
		why = terminate(m.Terminate)
	}
	p.qp.Abort(why)
	return nil, nil, nil
}

// closePair ends a queue pair. When it answers, everything posted has completed.
func (c *client) closePair(m *shm.Message, _ []int) (*shm.Message, []int, error) {
	p, err := c.caughtUp(m.Number)
	if err != nil {
		return nil, nil, err
	}
	a := new(shm.Message)
	err = p.qp.Close()
	counters := p.qp.Counters()
	a.Counters = &counters
	p.flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pair(m.Number) != p {
		return a, nil, errNone // two have closed it
	}
	c.outMu.Lock()
	p.closed = true
	// Its completions may have to wait for room: the program waits for this one, which comes behind them. Until then its queues
	// count: so what waits is bounded.
	c.append(shm.Completion{Kind: shm.KindAnswer, Token: m.Token})
	c.closing += p.sq.size
	if !p.shared {
		c.closing += p.rq.size
	}
	c.outMu.Unlock()
	c.work.Go(c.drain)
	c.aside -= p.aside
	c.drop(m.Number)
	if !p.shared {
		c.drop(m.Number + 1)
	}
	return a, nil, err
}

func (c *client) counters(m *shm.Message, _ []int) (*shm.Message, []int, error) {
	a := new(shm.Message)
	if m.Number == 0 {
		n := c.dev.Counters()
		n.PollingFound, n.PollingInVain, n.Sleeps = c.found.Load(), c.vain.Load(), c.sleeps.Load()
		a.Counters = &n
		var r unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
			return nil, nil, err
		}
		a.CPU = r.Utime.Nano() + r.Stime.Nano()
		return a, nil, nil
	}
	c.mu.Lock()
	p := c.pair(m.Number)
	c.mu.Unlock()
	if p == nil {
		return nil, nil, errNone
	}
	n := p.qp.Counters()
	a.Counters = &n
	return a, nil, nil
}

func (c *client) stags(m *shm.Message, _ []int) (*shm.Message, []int, error) {
	if m.Depth <= 0 || m.Depth > maxSTags {
		return nil, nil, errNumber
	}
	p, err := c.caughtUp(m.Number)
	if err != nil {
		return nil, nil, err
	}
	tags, err := p.setAside(m.Depth)
	return &shm.Message{STags: tags}, nil, err
}
