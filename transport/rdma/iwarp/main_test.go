package iwarp

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"oneshot/transport/rdma"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// end is one end of a connection under test.
type end struct {
	t    testing.TB
	dev  rdma.Device
	dom  rdma.Domain
	cq   rdma.CompletionQueue
	srq  rdma.ReceiveQueue
	qp   rdma.QueuePair
	mem  rdma.Region
	wake chan struct{}
	// event is called when completions have come; usually it fills wake.
	event func()
	last  [1]rdma.Completion
	gone  chan error
}

type setup struct {
	device        Config
	depth         int // of own receives
	shared        bool
	client        *rdma.OneShotOffer
	server        *rdma.OneShotOffer
	reads         int
	clientPrivate []byte
	serverPrivate []byte
}

const memLen = 8 << 20

func newEnd(t testing.TB, s setup) *end {
	t.Helper()
	dev, err := Open(s.device)
	check(t, err)
	return newEndOn(t, dev, s)
}

func newEndOn(t testing.TB, dev rdma.Device, s setup) *end {
	t.Helper()
	e := &end{t: t, dev: dev, wake: make(chan struct{}, 1), gone: make(chan error, 1)}
	e.event = func() {
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
	var err error
	e.dom, err = dev.NewDomain()
	check(t, err)
	e.cq, err = dev.NewCompletionQueue(1024, func() { e.event() })
	check(t, err)
	if s.depth == 0 {
		s.depth = 64
	}
	c := rdma.QueuePairConfig{
		Domain: e.dom, SendCQ: e.cq, RecvCQ: e.cq, MaxWork: 256, MaxRecv: s.depth, Context: e,
		Disconnected: func(err error) { e.gone <- err },
	}
	if s.shared {
		e.srq, err = dev.NewReceiveQueue(e.dom, s.depth)
		check(t, err)
		c.Receives = e.srq
	}
	e.qp, err = dev.NewQueuePair(c)
	check(t, err)
	e.mem, err = e.dom.Register(make([]byte, memLen),
		rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
	check(t, err)
	return e
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pair connects two ends, the client on a device of its own.
func pair(t testing.TB, s setup) (client, server *end) {
	t.Helper()
	client, server = newEnd(t, s), newEnd(t, s)
	connect(t, client, server, s)
	t.Cleanup(func() {
		client.close()
		server.close()
	})
	return client, server
}

func connect(t testing.TB, client, server *end, s setup) {
	t.Helper()
	l, err := server.dev.Listen("127.0.0.1:0")
	check(t, err)
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept()
		if err == nil {
			err = r.Accept(server.qp, rdma.ConnParams{
				PrivateData: s.serverPrivate, OneShot: s.server, ResponderResources: s.reads, InitiatorDepth: s.reads,
			})
		}
		accepted <- err
	}()
	err = client.dev.Connect(context.Background(), client.qp, l.Addr().String(), rdma.ConnParams{
		PrivateData: s.clientPrivate, OneShot: s.client, ResponderResources: s.reads, InitiatorDepth: s.reads,
	})
	check(t, err)
	check(t, <-accepted)
}

func (e *end) close() {
	e.t.Helper()
	check(e.t, e.qp.Close())
	check(e.t, e.cq.Close())
	if e.srq != nil {
		check(e.t, e.srq.Close())
	}
	check(e.t, e.mem.Deregister())
	check(e.t, e.dev.Close())
}

// next waits for the next completion.
func (e *end) next() rdma.Completion {
	for e.cq.Poll(e.last[:]) == 0 {
		if e.cq.Arm() {
			<-e.wake
		}
	}
	return e.last[0]
}

// want waits for a completion, which has to be successful.
func (e *end) want(op rdma.Opcode, id uint64) rdma.Completion {
	e.t.Helper()
	c := e.next()
	if c.Status != rdma.StatusOK || c.Op != op || c.ID != id || c.QueuePair != e.qp {
		e.t.Fatalf("completion %+v, want %v %d", c, op, id)
	}
	return c
}

// sge returns a list with memory of the end's region.
func (e *end) sge(off, n int) []rdma.SGE {
	return []rdma.SGE{{Bytes: e.mem.Bytes()[off : off+n], Region: e.mem}}
}

func (e *end) recv(id uint64, off, n int) {
	e.t.Helper()
	rs := []rdma.Receive{{ID: id, SGL: e.sge(off, n)}}
	var err error
	if e.srq != nil {
		_, err = e.srq.PostReceive(rs)
	} else {
		_, err = e.qp.PostReceive(rs)
	}
	check(e.t, err)
}

func (e *end) post(ws ...rdma.Work) {
	e.t.Helper()
	n, err := e.qp.Post(ws)
	if err != nil || n != len(ws) {
		e.t.Fatalf("Post: %d, %v", n, err)
	}
}

// fill fills memory with a pattern.
func (e *end) fill(off, n int, seed byte) {
	for i, b := 0, e.mem.Bytes()[off:off+n]; i < len(b); i++ {
		b[i] = byte(i)*7 + byte(i>>8) + seed
	}
}
