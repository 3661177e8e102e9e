package nvmerdma

import (
	"errors"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"oneshot/nvme"
	"oneshot/nvmf"
	"oneshot/transport/rdma"
)

// fake is a device whose peers are the test: what is posted ends when, and as, the test says.
type fake struct {
	limits rdma.Limits

	mu      sync.Mutex
	regions map[*fakeRegion]bool // registered
	domains int
}

func newFake() *fake {
	return &fake{regions: make(map[*fakeRegion]bool), limits: rdma.Limits{
		Name: "fake", MaxWork: 1000, MaxSGE: 4, MaxReadSGE: 4, MaxMessage: 1 << 30, MaxReads: 16, MaxInline: 64, MaxPrivate: 56,
		ReceiveWait: true, SendInvalidate: true,
	}}
}

func (d *fake) Limits() rdma.Limits     { return d.limits }
func (d *fake) Counters() rdma.Counters { return rdma.Counters{} }
func (d *fake) Close() error            { return nil }

func (d *fake) NewDomain() (rdma.Domain, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.domains++
	return &fakeDomain{d}, nil
}

// writable counts regions that a peer may write to.
func (d *fake) writable() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for r := range d.regions {
		if r.access&rdma.AccessRemoteWrite != 0 {
			n++
		}
	}
	return n
}

type fakeDomain struct{ d *fake }

func (p *fakeDomain) NewWindow() (rdma.Window, error) { return nil, rdma.ErrUnsupported }
func (p *fakeDomain) Close() error {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.d.domains--
	return nil
}

func (p *fakeDomain) Register(b []byte, a rdma.Access) (rdma.Region, error) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	r := &fakeRegion{p, b, a}
	p.d.regions[r] = true
	return r, nil
}

type fakeRegion struct {
	domain *fakeDomain
	b      []byte
	access rdma.Access
}

func (r *fakeRegion) Bytes() []byte   { return r.b }
func (r *fakeRegion) STag() rdma.STag { return 1 }
func (r *fakeRegion) Base() uint64    { return 0 }
func (r *fakeRegion) Deregister() error {
	r.domain.d.mu.Lock()
	defer r.domain.d.mu.Unlock()
	if !r.domain.d.regions[r] {
		return errors.New("fake: not registered")
	}
	delete(r.domain.d.regions, r)
	return nil
}

// fakeCQ holds what the test has put there.
type fakeCQ struct {
	mu    sync.Mutex
	list  []rdma.Completion
	event func()
}

func (d *fake) NewCompletionQueue(_ int, event func()) (rdma.CompletionQueue, error) {
	return &fakeCQ{event: event}, nil
}

func (q *fakeCQ) Close() error { return nil }
func (q *fakeCQ) Arm() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.list) == 0
}

func (q *fakeCQ) Poll(c []rdma.Completion) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := copy(c, q.list)
	q.list = slices.Delete(q.list, 0, n)
	return n
}

func (q *fakeCQ) put(cs ...rdma.Completion) {
	q.mu.Lock()
	q.list = append(q.list, cs...)
	q.mu.Unlock()
}

// fakeReceives are receives, shared or not.
type fakeReceives struct {
	mu   sync.Mutex
	list []rdma.Receive
}

func (d *fake) NewReceiveQueue(rdma.Domain, int) (rdma.ReceiveQueue, error) {
	return new(fakeReceives), nil
}
func (q *fakeReceives) Close() error { return nil }
func (q *fakeReceives) PostReceive(rs []rdma.Receive) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range rs {
		q.list = append(q.list, rdma.Receive{ID: r.ID, SGL: slices.Clone(r.SGL)})
	}
	return len(rs), nil
}

// fakePair is a queue pair. What was posted and has not ended is in works; posts has how many requests each call had.
type fakePair struct {
	rdma.QueuePair
	t        testing.TB
	cfg      rdma.QueuePairConfig
	receives *fakeReceives
	shared   bool

	mu    sync.Mutex
	works []rdma.Work
	posts []int
	dead  bool
	over  chan struct{} // closed by Abort, Disconnect and Close
	once  sync.Once
	data  []byte // the private data of the answer
}

func (d *fake) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	p := &fakePair{cfg: c, over: make(chan struct{})}
	if c.Receives != nil {
		p.receives, p.shared = c.Receives.(*fakeReceives), true
	} else {
		p.receives = new(fakeReceives)
	}
	return p, nil
}

func (p *fakePair) PostReceive(rs []rdma.Receive) (int, error) { return p.receives.PostReceive(rs) }
func (p *fakePair) Counters() rdma.Counters                    { return rdma.Counters{} }
func (p *fakePair) Abort(error)                                { p.once.Do(func() { close(p.over) }) }

func (p *fakePair) Disconnect() { p.once.Do(func() { close(p.over) }) }

func (p *fakePair) Post(ws []rdma.Work) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return 0, rdma.ErrDisconnected
	}
	for _, w := range ws {
		w.SGL = slices.Clone(w.SGL)
		if w.Flags&rdma.Inline != 0 {
			w.SGL[0].Bytes = slices.Clone(w.SGL[0].Bytes)
		}
		p.works = append(p.works, w)
	}
	p.posts = append(p.posts, len(ws))
	return len(ws), nil
}

// Close flushes what has not ended.
func (p *fakePair) Close() error {
	p.Abort(nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return nil
	}
	p.dead = true
	for i := range p.works {
		p.cq().put(rdma.Completion{ID: p.works[i].ID, Op: p.works[i].Op, Status: rdma.StatusFlushed})
	}
	p.works = nil
	return nil
}

func (p *fakePair) cq() *fakeCQ { return p.cfg.SendCQ.(*fakeCQ) }

// say sends a message to the target.
func (p *fakePair) say(b []byte) {
	p.receives.mu.Lock()
	r := p.receives.list[0]
	p.receives.list = slices.Delete(p.receives.list, 0, 1)
	p.receives.mu.Unlock()
	p.cq().put(rdma.Completion{ID: r.ID, Op: rdma.OpReceive, Bytes: copy(r.SGL[0].Bytes, b)})
	p.cq().event()
}

// next takes the works that were posted since, and have not ended.
func (p *fakePair) next() []rdma.Work {
	p.mu.Lock()
	defer p.mu.Unlock()
	ws := p.works
	p.works = nil
	return ws
}

// finish ends works.
func (p *fakePair) finish(ws []rdma.Work, s rdma.Status) {
	for i := range ws {
		if ws[i].Flags&rdma.Signaled != 0 || s != rdma.StatusOK {
			p.cq().put(rdma.Completion{ID: ws[i].ID, Op: ws[i].Op, Status: s})
		}
	}
	p.cq().event()
}

// fetch is the end of Reads that brought data.
func (p *fakePair) fetch(ws []rdma.Work, data []byte) {
	p.t.Helper()
	for i := range ws {
		if ws[i].Op != rdma.OpRead {
			p.t.Fatalf("a %v instead of a Read", ws[i].Op)
		}
		for _, s := range ws[i].SGL {
			data = data[copy(s.Bytes, data):]
		}
	}
	p.finish(ws, rdma.StatusOK)
}

// answer expects RDMA Writes and a completion, in one post, which it ends.
func (p *fakePair) answer() (data []byte, e nvme.CQE, send rdma.Work) {
	p.t.Helper()
	ws := p.next()
	if len(ws) == 0 {
		p.t.Fatal("no answer")
	}
	for i := range ws[:len(ws)-1] {
		if ws[i].Op != rdma.OpWrite {
			p.t.Fatalf("a %v before the answer", ws[i].Op)
		}
		for _, s := range ws[i].SGL {
			data = append(data, s.Bytes...)
		}
	}
	send = ws[len(ws)-1]
	if send.Op != rdma.OpSend || len(send.SGL[0].Bytes) != nvme.CQELen {
		p.t.Fatalf("%+v instead of an answer", send)
	}
	e = nvme.ParseCQE(send.SGL[0].Bytes)
	p.finish(ws, rdma.StatusOK)
	return data, e, send
}

// end is the end of the connection, as the network tells it.
func (p *fakePair) end() {
	p.cfg.Disconnected(nil)
}

// fakeRequest asks for a connection.
type fakeRequest struct {
	d    *fake
	t    testing.TB
	data []byte
	pair chan *fakePair
	no   []byte
}

func (r *fakeRequest) Device() rdma.Device { return nil }
func (r *fakeRequest) PeerData() []byte    { return r.data }
func (r *fakeRequest) LocalAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 4420}
}

func (r *fakeRequest) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 5} }

func (r *fakeRequest) Reject(b []byte) error {
	r.no = b
	return nil
}

func (r *fakeRequest) Accept(qp rdma.QueuePair, c rdma.ConnParams) error {
	p := qp.(*fakePair)
	p.t, p.data = r.t, c.PrivateData
	r.pair <- p
	return nil
}

// deviceOf makes fake an rdma.Device: the calls that are missing nobody makes.
type deviceOf struct {
	rdma.Device
	*fake
}

func (d deviceOf) Limits() rdma.Limits             { return d.fake.Limits() }
func (d deviceOf) Counters() rdma.Counters         { return d.fake.Counters() }
func (d deviceOf) Close() error                    { return nil }
func (d deviceOf) NewDomain() (rdma.Domain, error) { return d.fake.NewDomain() }
func (d deviceOf) NewCompletionQueue(n int, f func()) (rdma.CompletionQueue, error) {
	return d.fake.NewCompletionQueue(n, f)
}

func (d deviceOf) NewReceiveQueue(p rdma.Domain, n int) (rdma.ReceiveQueue, error) {
	return d.fake.NewReceiveQueue(p, n)
}

func (d deviceOf) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	return d.fake.NewQueuePair(c)
}

// bench is a node behind a fake device.
type bench struct {
	*nvmf.Node
	t      testing.TB
	d      *fake
	target *Target
	sub    *nvmf.Subsystem
	rig    *rig
	cid    uint16
	ctrl   uint16 // of queues
	pairs  []*fakePair
}

func newBench(t testing.TB, d *fake) *bench {
	t.Helper()
	store := newStore(t)
	node, pool, sub, end := newNode(t, rigConfig{store: store, connections: 1000})
	b := &bench{sub: sub, Node: node, t: t, d: d, rig: &rig{t: t, store: store, pool: pool}}
	var err error
	b.target, err = NewTarget(Config{Node: node, Device: deviceOf{fake: d}, Pool: pool, Logger: slog.New(slog.DiscardHandler)})
	check(t, err)
	t.Cleanup(func() {
		for _, p := range b.pairs {
			p.end()
		}
		check(t, b.target.Close()) // when all connections are gone
		if n, w := len(d.regions), d.domains; n != 0 || w != 0 {
			t.Errorf("%d regions and %d domains are left", n, w)
		}
		end()
	})
	return b
}

// dial makes a connection.
func (b *bench) dial(private []byte) *fakePair {
	b.t.Helper()
	r := &fakeRequest{d: b.d, t: b.t, data: private, pair: make(chan *fakePair, 1)}
	check(b.t, b.target.accept(r, 1))
	p := <-r.pair
	b.pairs = append(b.pairs, p)
	return p
}

// memoryKey and memoryAt name the memory of every command.
const (
	memoryKey = 0x4711
	memoryAt  = 0x10000
)

// command makes a capsule with a keyed descriptor of n bytes.
func (b *bench) command(c nvme.Command, n int) []byte {
	b.cid++
	c.CID, c.SGL = b.cid, nvme.SGL{Address: memoryAt, Length: uint32(n), Key: memoryKey, Type: nvme.SGLKeyedInvalidate}
	return c.AppendTo(nil)
}

// run has a command with data, or without, run to its end, which has to be good.
func (b *bench) run(p *fakePair, c nvme.Command, out []byte, in int) []byte {
	b.t.Helper()
	p.say(b.command(c, max(len(out), in)))
	if len(out) > 0 {
		p.fetch(p.next(), out)
	}
	data, e, _ := p.answer()
	if e.Status != nvme.Success {
		b.t.Fatalf("%+v: %v", c, e.Status)
	}
	return data
}

// queue connects an I/O queue, and an admin queue before.
func (b *bench) queue() *fakePair {
	b.t.Helper()
	_, io := b.queues()
	return io
}

func (b *bench) queues() (admin, io *fakePair) {
	b.t.Helper()
	admin = b.dial(request(0, 32))
	admin.say(b.command(connect(0, 31), nvme.ConnectDataLen))
	admin.fetch(admin.next(), connectData(nvme.DynamicController))
	_, e, _ := admin.answer()
	b.ctrl = uint16(e.DW0)
	b.run(admin, propertySet(nvme.PropCC, 0x460001), nil, 0)
	io = b.dial(request(1, depth))
	b.run(io, connect(1, depth-1), connectData(b.ctrl), 0)
	io.posts = nil
	return admin, io
}

// until looks again and again until what is awaited holds.
func (b *bench) until(what string, holds func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); runtime.Gosched() { // only a hang reaches it
		if time.Now().After(deadline) {
			b.t.Fatalf("awaited in vain: %s", what)
		}
	}
}
