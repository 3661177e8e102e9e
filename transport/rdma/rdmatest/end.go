package rdmatest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"

	"oneshot/transport/rdma"
)

// testT is what *testing.T and *rapid.T have in common.
type testT interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// options say how a connection under test is to be. Zero values are replaced.
type options struct {
	memory         int  // bytes of the region of each end
	maxWork        int  // 0: 64
	maxRecv        int  // 0: 64
	shared         bool // receives of both ends come from a shared queue
	reads          int  // InitiatorDepth and ResponderResources
	client, server *rdma.OneShotOffer
	event          func(*end) // of the queue of receives; nil: recvs waits
}

const (
	defaultMemory = 1 << 16
	defaultDepth  = 64
)

const allRemote = rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite

// queue is a completion queue and a way to wait for it.
type queue struct {
	t      testT
	cq     rdma.CompletionQueue
	wake   chan struct{}
	events atomic.Int32
	one    [1]rdma.Completion
}

// newQueue makes a queue with an event of its own, or one that lets next go on.
func newQueue(t testT, dev rdma.Device, depth int, event func()) *queue {
	t.Helper()
	q := &queue{t: t, wake: make(chan struct{}, 1)}
	if event == nil {
		event = q.awake
	}
	var err error
	q.cq, err = dev.NewCompletionQueue(depth, event)
	check(t, err)
	return q
}

func (q *queue) awake() {
	q.events.Add(1)
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// next waits for the next completion.
func (q *queue) next() rdma.Completion {
	for q.cq.Poll(q.one[:]) == 0 {
		if q.cq.Arm() {
			<-q.wake
		}
	}
	return q.one[0]
}

// want waits for a completion that is to be good.
func (q *queue) want(op rdma.Opcode, id uint64) rdma.Completion {
	q.t.Helper()
	c := q.next()
	if c.Status != rdma.StatusOK || c.Op != op || c.ID != id {
		q.t.Fatalf("completion of %v %d: %v (%v); want %v %d", c.Op, c.ID, c.Status, c.Err, op, id)
	}
	return c
}

// none checks that there is no completion now.
func (q *queue) none() {
	q.t.Helper()
	if q.cq.Poll(q.one[:]) != 0 {
		q.t.Fatalf("unexpected completion %+v", q.one[0])
	}
}

// end is one end of a connection under test. It has a completion queue for what it posts and
// one for what it receives.
type end struct {
	t            testT
	dev          rdma.Device
	dom          rdma.Domain
	sends, recvs *queue
	srq          rdma.ReceiveQueue
	qp           rdma.QueuePair
	mem          rdma.Region

	started  bool
	farewell error // see Defects.Farewell
	gone     chan error
	ends     atomic.Int32 // calls of Disconnected
}

func check(t testT, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

func newEnd(t testT, dev rdma.Device, o options) *end {
	t.Helper()
	or := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	or(&o.memory, defaultMemory)
	or(&o.maxWork, defaultDepth)
	or(&o.maxRecv, defaultDepth)
	e := &end{t: t, dev: dev, gone: make(chan error, 4)}
	var err error
	e.dom, err = dev.NewDomain()
	check(t, err)
	var event func()
	if o.event != nil {
		event = func() { o.event(e) }
	}
	e.sends, e.recvs = newQueue(t, dev, o.maxWork, nil), newQueue(t, dev, o.maxRecv, event)
	c := rdma.QueuePairConfig{
		Domain: e.dom, SendCQ: e.sends.cq, RecvCQ: e.recvs.cq, MaxWork: o.maxWork, MaxRecv: o.maxRecv, Context: e,
		Disconnected: func(err error) { e.ends.Add(1); e.gone <- err },
	}
	if o.shared {
		e.srq, err = dev.NewReceiveQueue(e.dom, o.maxRecv)
		check(t, err)
		c.Receives = e.srq
	}
	e.qp, err = dev.NewQueuePair(c)
	check(t, err)
	e.mem = e.register(o.memory, allRemote)
	t.Cleanup(e.close)
	return e
}

func (e *end) register(n int, a rdma.Access) rdma.Region {
	e.t.Helper()
	r, err := e.dom.Register(alloc(e.t, e.dev, n), a)
	check(e.t, err)
	return r
}

// alloc returns memory that dev can register, until the test ends.
func alloc(t testT, dev rdma.Device, n int) []byte {
	t.Helper()
	a, ok := dev.(rdma.Allocator)
	if !ok {
		return make([]byte, n)
	}
	b, err := a.Alloc(n)
	check(t, err)
	t.Cleanup(func() { check(t, a.Free(b)) })
	return b
}

// close takes the end down; nothing of it may be in use afterwards. An event of recvs may still run, and polls both queues until Close of recvs is over.
func (e *end) close() {
	e.t.Helper()
	check(e.t, e.qp.Close())
	var one [1]rdma.Completion
	for _, q := range []*queue{e.recvs, e.sends} {
		for q.cq.Poll(one[:]) > 0 {
		}
		check(e.t, q.cq.Close())
	}
	if e.srq != nil {
		check(e.t, e.srq.Close())
	}
	check(e.t, e.mem.Deregister())
	check(e.t, e.dom.Close())
	want := int32(0)
	if e.started {
		want = 1
	}
	if n := e.ends.Load(); n != want {
		e.t.Errorf("Disconnected was called %d times, want %d", n, want)
	}
}

// connect returns two ends that are connected.
func connect(t testT, p Pair, o options) (client, server *end) {
	t.Helper()
	client, server = newEnd(t, p.Client, o), newEnd(t, p.Server, o)
	link(t, p, client, server, o)
	return client, server
}

// listen listens until the test ends.
func listen(t testT, p Pair) rdma.Listener {
	t.Helper()
	l, err := p.Server.Listen(p.Listen)
	check(t, err)
	t.Cleanup(func() { check(t, l.Close()) })
	return l
}

// link connects two ends.
func link(t testT, p Pair, client, server *end, o options) {
	t.Helper()
	l := listen(t, p)
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept()
		if err == nil {
			err = r.Accept(server.qp, rdma.ConnParams{
				OneShot: o.server, InitiatorDepth: o.reads, ResponderResources: o.reads,
			})
		}
		accepted <- err
	}()
	check(t, client.dev.Connect(context.Background(), client.qp, l.Addr().String(), rdma.ConnParams{
		OneShot: o.client, InitiatorDepth: o.reads, ResponderResources: o.reads,
	}))
	check(t, <-accepted)
	client.started, server.started = true, true
	client.farewell, server.farewell = p.Defects.Farewell, p.Defects.Farewell
}

// sge names memory of the end's region.
func (e *end) sge(off, n int) []rdma.SGE { return sge(e.mem, off, n) }

func sge(r rdma.Region, off, n int) []rdma.SGE {
	return []rdma.SGE{{Bytes: r.Bytes()[off : off+n : off+n], Region: r}}
}

func (e *end) bytes(off, n int) []byte { return e.mem.Bytes()[off : off+n] }

// to is the tagged offset of memory of the end's region.
func (e *end) to(off int) uint64 { return e.mem.Base() + uint64(off) }

func (e *end) send(id uint64, f rdma.Flags, off, n int) rdma.Work {
	return rdma.Work{ID: id, Op: rdma.OpSend, Flags: f, SGL: e.sge(off, n)}
}

// write is a Write of own memory at off to that of peer at peerOff, read a Read from there.
func (e *end) write(id uint64, f rdma.Flags, off, n int, peer *end, peerOff int) rdma.Work {
	return rdma.Work{
		ID: id, Op: rdma.OpWrite, Flags: f, SGL: e.sge(off, n),
		RemoteSTag: peer.mem.STag(), RemoteOffset: peer.to(peerOff),
	}
}

func (e *end) read(id uint64, f rdma.Flags, off, n int, peer *end, peerOff int) rdma.Work {
	return rdma.Work{
		ID: id, Op: rdma.OpRead, Flags: f, SGL: e.sge(off, n),
		RemoteSTag: peer.mem.STag(), RemoteOffset: peer.to(peerOff),
	}
}

// post posts ws, all of which are to be taken, and returns them as the provider left them.
func (e *end) post(ws ...rdma.Work) []rdma.Work {
	e.t.Helper()
	n, err := e.qp.Post(ws)
	if err != nil || n != len(ws) {
		e.t.Fatalf("Post of %d: %d, %v", len(ws), n, err)
	}
	return ws
}

// refused checks that w is refused as wrong.
func (e *end) refused(what string, w rdma.Work) {
	e.t.Helper()
	n, err := e.qp.Post([]rdma.Work{w})
	if _, ok := errors.AsType[*rdma.WorkError](err); !ok || n != 0 {
		e.t.Errorf("%s: Post: %d, %v; want a WorkError", what, n, err)
	}
}

// receive posts a receive for n bytes at off.
func (e *end) receive(id uint64, off, n int) {
	e.t.Helper()
	rs := []rdma.Receive{{ID: id, SGL: e.sge(off, n)}}
	post := e.qp.PostReceive
	if e.srq != nil {
		post = e.srq.PostReceive
	}
	k, err := post(rs)
	if err != nil || k != 1 {
		e.t.Fatalf("PostReceive: %d, %v", k, err)
	}
}

// fill fills memory with something that depends on seed.
func fill(b []byte, seed uint64) {
	r := rand.NewPCG(seed, 1)
	for len(b) > 0 {
		b = b[copy(b, chance[r.Uint64()%(1<<16):][:512]):]
	}
}

// chance is what memory is filled from: the race detector looks at a copy in one go, and at each byte that is
// computed.
var chance = func() []byte {
	b := make([]byte, 1<<16+512)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b)
	return b
}()

func filled(n int, seed uint64) []byte {
	b := make([]byte, n)
	fill(b, seed)
	return b
}

// same compares memory.
func same(t testT, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	if len(got) != len(want) {
		t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
	}
	i := 0
	for got[i] == want[i] {
		i++
	}
	t.Fatalf("%s: byte %d of %d is %#02x, want %#02x", what, i, len(want), got[i], want[i])
}

// good waits for the end of the connection, which is to be in good order, bad for one that is
// not.
func (e *end) good() {
	e.t.Helper()
	if err := <-e.gone; err != nil && (e.farewell == nil || !errors.Is(err, e.farewell)) {
		e.t.Fatalf("the connection ends with %v, want a good end", err)
	}
}

func (e *end) bad() {
	e.t.Helper()
	if err := <-e.gone; err == nil {
		e.t.Fatalf("the connection ends as if in good order")
	}
}

// told waits for the end of a connection that by has ended in anger, which it tells if it can.
func (e *end) told(by *end) {
	e.t.Helper()
	if err := <-e.gone; err == nil && by.dev.Limits().EndTold {
		e.t.Fatalf("the connection ends as if in good order")
	}
}
