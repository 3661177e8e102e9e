package service

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"oneshot/ha/heap"
	"oneshot/ha/heap/wire"
	"oneshot/transport/rdma"
)

// conn is one connection. Its goroutine receives a message, does what it asks for, and answers; the client then sends the
// next one. A client that does not wait finds no receive, and its connection ends.
type conn struct {
	s    *Service
	peer string
	host string
	qp   rdma.QueuePair
	cq   rdma.CompletionQueue
	in   rdma.Region // of the message that is received; out of the one that is sent
	out  rdma.Region
	free []func() error

	wake chan struct{} // holds one element if there may be completions
	gone chan struct{} // closed when the connection has to end, or has
	once sync.Once
	over chan struct{} // closed when nothing is left of it
	err  error         // why; set by end

	hello  wire.Greeting
	greets wire.Op // which message of the greeting is due; 0: the name is proved
	secret []byte
	leaves bool             // after the answer
	early  *rdma.Completion // the next message, if it came before the completion of the answer
}

const (
	idReceive = 1
	idSend    = 2
)

func newConn(s *Service, peer, host string) *conn {
	return &conn{s: s, peer: peer, host: host, greets: wire.Hello, wake: make(chan struct{}, 1), gone: make(chan struct{}), over: make(chan struct{})}
}

// end ends the connection. It does not wait.
func (c *conn) end(err error) {
	c.once.Do(func() {
		c.err = err
		c.s.conns.Part(c)
		close(c.gone)
	})
}

// open makes the queue pair and accepts the connection. After an error nothing is left of it.
func (c *conn) open(req rdma.Request) error {
	err := c.make()
	if err == nil {
		err = c.receive()
	}
	if err != nil {
		err = errors.Join(err, req.Reject(nil))
	} else {
		err = req.Accept(c.qp, rdma.ConnParams{PrivateData: []byte(wire.Private)})
	}
	if err != nil {
		err = errors.Join(err, c.release())
		c.left()
	}
	return err
}

func (c *conn) make() (err error) {
	dev := c.s.cfg.Device
	if c.cq, err = dev.NewCompletionQueue(4, func() {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}); err != nil {
		return err
	}
	c.free = append(c.free, c.cq.Close)
	for _, r := range []*rdma.Region{&c.in, &c.out} {
		b, free, err := rdma.Alloc(dev, wire.MaxMessage)
		if err != nil {
			return err
		}
		c.free = append(c.free, func() error { return free(b) })
		if *r, err = c.s.dom.Register(b, rdma.AccessLocalWrite); err != nil {
			return err
		}
		c.free = append(c.free, (*r).Deregister)
	}
	if c.qp, err = dev.NewQueuePair(rdma.QueuePairConfig{
		Domain: c.s.dom, SendCQ: c.cq, RecvCQ: c.cq, MaxWork: 2, MaxRecv: 1, MaxSGE: 1,
		Disconnected: func(err error) { c.end(err) },
	}); err != nil {
		return err
	}
	c.free = append(c.free, c.qp.Close)
	b, ok := c.qp.(rdma.Barrer)
	if !ok {
		return rdma.ErrUnsupported
	}
	b.Bar()
	return nil
}

// release frees what make has made, the last first.
func (c *conn) release() (err error) {
	for _, free := range slices.Backward(c.free) {
		err = errors.Join(err, free())
	}
	return err
}

func (c *conn) receive() error {
	_, err := c.qp.PostReceive([]rdma.Receive{{ID: idReceive, SGL: []rdma.SGE{{Bytes: c.in.Bytes(), Region: c.in}}}})
	return err
}

// left says that nothing is left of the connection.
func (c *conn) left() {
	c.s.conns.Leave(c)
	close(c.over)
}

// run serves the connection until it ends.
func (c *conn) run() {
	timeout := time.NewTimer(c.s.limits.Load().StartTimeout)
	defer timeout.Stop()
	for c.turn(timeout) {
	}
	c.end(nil)
	if c.leaves {
		c.qp.Disconnect()
	} else {
		c.qp.Abort(c.err)
	}
	if c.err != nil {
		c.s.log.Debug("connection for objects has ended", slog.String("client", c.peer), slog.Any("reason", c.err))
	}
	if err := c.release(); err != nil {
		c.s.log.Error("a connection for objects stays with its device", slog.Any("reason", err))
	}
	c.left()
}

var (
	errSlow    = errors.New("it takes no answers")
	errStart   = errors.New("it has not proved its name in time")
	errMessage = errors.New("a message that is not due, or cannot be understood")
)

// turn is one message and its answer. False: the connection has to end.
func (c *conn) turn(start *time.Timer) bool {
	var deadline <-chan time.Time
	if c.greets != 0 {
		deadline = start.C
	}
	done, ok := rdma.Completion{}, true
	if c.early != nil {
		done, c.early = *c.early, nil
	} else {
		done, ok = c.await(deadline, errStart)
	}
	if !ok || done.Flags != 0 {
		c.end(errMessage)
		return false
	}
	m, err := wire.Parse(c.in.Bytes()[:done.Bytes])
	if err != nil || m.Status != wire.OK {
		c.end(errMessage)
		return false
	}
	answer := c.answer(&m)
	select {
	case <-c.gone:
		return false
	default:
	}
	c.s.cfg.Counters.count(&answer)
	b := answer.AppendTo(c.out.Bytes()[:0])
	if err := c.receive(); err != nil {
		return false
	}
	if _, err := c.qp.Post([]rdma.Work{{ID: idSend, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: []rdma.SGE{{Bytes: b, Region: c.out}}}}); err != nil {
		return false
	}
	slow := time.NewTimer(c.s.limits.Load().Patience)
	defer slow.Stop()
	done, ok = c.await(slow.C, errSlow)
	if ok && done.ID == idReceive {
		next := done
		c.early = &next
		_, ok = c.await(slow.C, errSlow)
	}
	return ok && !c.leaves
}

// await waits for a completion that is good. Otherwise the connection ends: at the deadline, for the reason late.
func (c *conn) await(deadline <-chan time.Time, late error) (done rdma.Completion, ok bool) {
	var one [1]rdma.Completion
	for {
		if c.cq.Poll(one[:]) == 1 {
			return one[0], one[0].Status == rdma.StatusOK
		}
		if !c.cq.Arm() {
			continue
		}
		select {
		case <-c.wake:
		case <-c.gone:
			return done, false
		case <-deadline:
			c.end(late)
			return done, false
		}
	}
}

// answer does what a message asks for. If the connection ends there is none.
func (c *conn) answer(m *wire.Message) wire.Message {
	answer := wire.Message{Op: m.Op, Client: m.Client, Number: m.Number}
	switch {
	case c.greets != 0 && m.Op != c.greets, c.greets == 0 && m.Op < wire.Join:
		c.end(errMessage)
	case m.Op == wire.Hello:
		c.greet(m, &answer)
	case m.Op == wire.Prove:
		c.prove(m, &answer)
	default:
		return c.ask(m)
	}
	return answer
}

func (c *conn) greet(m, answer *wire.Message) {
	name, nonce, ok := wire.ParseHello(m.Data)
	if !ok {
		answer.Status, c.leaves = wire.Malformed, true
		return
	}
	c.hello.Name, c.hello.Client = name, nonce
	_, _ = rand.Read(c.hello.Service[:]) // never fails
	answer.Data = c.hello.Service[:]
	c.greets = wire.Prove
}

func (c *conn) prove(m, answer *wire.Message) {
	known := c.s.cfg.Secret == nil && c.hello.Name == ""
	if c.s.cfg.Secret != nil {
		c.secret, known = c.s.cfg.Secret(c.hello.Name)
	}
	if !known { // it takes as long as a wrong proof
		c.secret = c.hello.Service[:]
	}
	var own wire.Proof
	if c.s.cfg.Secret != nil || !known {
		var want wire.Proof
		want, own = c.hello.Proofs(c.secret)
		if equal := len(m.Data) == len(want) && want.Equal((*wire.Proof)(m.Data)); !equal || !known {
			c.s.log.Warn("client of objects does not know its secret", slog.String("client", c.peer), slog.String("name", c.hello.Name))
			select {
			case <-c.gone:
			case <-time.After(c.s.cfg.Penalty):
			}
			answer.Status, c.leaves = wire.Denied, true
			return
		}
	}
	if err := c.takePlace(); err != nil {
		c.s.log.Warn("client of objects has too many connections", slog.String("client", c.peer), slog.Any("reason", err))
		answer.Status, c.leaves = wire.Busy, true
		return
	}
	c.greets = 0
	c.qp.(rdma.Barrer).Admit()
	w := wire.Welcome{Proof: own, Nodes: c.s.cfg.Nodes()}
	w.Nodes = w.Nodes[:min(len(w.Nodes), wire.MaxNodes)]
	if h := c.s.current(); h != nil {
		w.Primary, w.Base, w.Key, w.Length = true, h.Base(), h.Key(), uint64(len(h.Memory()))
	}
	answer.Data = w.AppendTo(nil)
}

// takePlace takes one of the client's share of the places. If he has all of that, and one of his connections is on its way out, it waits:
// that may be the one that he comes back from.
func (c *conn) takePlace() error {
	who := "name:" + c.hello.Name
	if c.s.cfg.Secret == nil {
		who = "host " + c.host
	}
	late := time.NewTimer(c.s.limits.Load().StartTimeout)
	defer late.Stop()
	for {
		left := c.s.conns.Parting(who)
		err := c.s.conns.ProveAs(c, c.s.limits.Load().Connections, []string{who})
		if err == nil || left == nil {
			return err
		}
		select {
		case <-left:
		case <-c.gone:
			return err
		case <-late.C:
			return err
		}
	}
}

// ask has the heap do a request.
func (c *conn) ask(m *wire.Message) (answer wire.Message) {
	r := *m
	var h *heap.Heap
	if h = c.s.current(); h == nil {
		answer.Status = wire.Moved
	} else if m.Op != wire.Read && m.Client == 0 || m.Op == wire.Read && len(m.Data) > 0 {
		answer.Status = wire.Malformed
	} else {
		r.Client = clientOf(c.hello.Name, m.Client)
		answer = h.Do(r)
	}
	answer.Op, answer.Client, answer.Number = m.Op, m.Client, m.Number
	return answer
}

// clientOf returns the ID that a heap knows a client by. Clients of two names do not have the same.
func clientOf(name string, id uint64) uint64 {
	b := binary.BigEndian.AppendUint64([]byte(name), id)
	sum := sha256.Sum256(b)
	return max(1, binary.BigEndian.Uint64(sum[:]))
}
