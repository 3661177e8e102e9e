package rdmatest

import (
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"oneshot/transport/rdma"
)

// Fake is a device whose peers are the test: what is posted ends when, and as, the test says. Nobody comes to its listeners.
// It cannot connect.
type Fake struct {
	rdma.Device             // nobody asks for what is missing
	Says        rdma.Limits // what Limits returns; to be changed before it is used

	mu      sync.Mutex
	regions map[*fakeRegion]bool // registered
	domains int
}

// NewFake returns a Fake that can do most, and shares receives.
func NewFake() *Fake {
	return &Fake{regions: make(map[*fakeRegion]bool), Says: rdma.Limits{
		Name: "fake", MaxWork: 1000, MaxSGE: 4, MaxReadSGE: 4, MaxMessage: 1 << 30, MaxReads: 16, MaxInline: 64, MaxPrivate: 56,
		ReceiveWait: true, SendInvalidate: true,
	}}
}

func (d *Fake) Limits() rdma.Limits     { return d.Says }
func (d *Fake) Counters() rdma.Counters { return rdma.Counters{} }
func (d *Fake) Close() error            { return nil }

func (d *Fake) NewDomain() (rdma.Domain, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.domains++
	return &fakeDomain{d}, nil
}

// Writable counts regions that a peer may write to.
func (d *Fake) Writable() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for r := range d.regions {
		if r.access&rdma.AccessRemoteWrite != 0 {
			n++
		}
	}
	return n
}

// Registered counts the regions, and the domains.
func (d *Fake) Registered() (regions, domains int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.regions), d.domains
}

// Knows reports whether a region has all of b.
func (d *Fake) Knows(b []byte) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for r := range d.regions {
		for i := range r.b {
			if &r.b[i] == &b[0] {
				return len(r.b)-i >= len(b)
			}
		}
	}
	return false
}

type fakeDomain struct{ d *Fake }

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

func (d *Fake) NewCompletionQueue(_ int, event func()) (rdma.CompletionQueue, error) {
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
	mu      sync.Mutex
	list    []rdma.Receive
	refuses error // what PostReceive says; it takes none then
}

func (d *Fake) NewReceiveQueue(rdma.Domain, int) (rdma.ReceiveQueue, error) {
	return new(fakeReceives), nil
}
func (q *fakeReceives) Close() error { return nil }
func (q *fakeReceives) PostReceive(rs []rdma.Receive) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.refuses != nil {
		return 0, q.refuses
	}
	for _, r := range rs {
		q.list = append(q.list, rdma.Receive{ID: r.ID, SGL: slices.Clone(r.SGL)})
	}
	return len(rs), nil
}

func (q *fakeReceives) take() rdma.Receive {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.list[0]
	q.list = slices.Delete(q.list, 0, 1)
	return r
}

// FakePair is a queue pair of a Fake. Its fields are for the test while the consumer does nothing.
type FakePair struct {
	rdma.QueuePair
	Shot     *rdma.OneShot // what was agreed on
	cfg      rdma.QueuePairConfig
	receives *fakeReceives

	mu    sync.Mutex
	works []rdma.Work
	Posts []int // how many work requests each call of Post had
	dead  bool
	// Refuses, if set, is what Post says, and no more than Takes work requests are posted.
	Refuses error
	Takes   int
	Over    chan struct{} // closed by Abort, Disconnect and Close
	once    sync.Once
	Data    []byte // the private data of the answer

	connected atomic.Bool
}

func (d *Fake) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	p := &FakePair{cfg: c, Over: make(chan struct{})}
	if c.Receives != nil {
		p.receives = c.Receives.(*fakeReceives)
	} else {
		p.receives = new(fakeReceives)
	}
	return p, nil
}

func (p *FakePair) PostReceive(rs []rdma.Receive) (int, error) { return p.receives.PostReceive(rs) }
func (p *FakePair) Counters() rdma.Counters                    { return rdma.Counters{} }
func (p *FakePair) Abort(error)                                { p.Disconnect() }

func (p *FakePair) OneShot() *rdma.OneShot { return p.Shot }

func (p *FakePair) Revoke(_ rdma.STag, done func()) error {
	done()
	return nil
}

// Disconnect has no effect before there is a connection, and neither has Abort, as with most devices.
func (p *FakePair) Disconnect() {
	if p.connected.Load() {
		p.over()
	}
}

func (p *FakePair) over() { p.once.Do(func() { close(p.Over) }) }

func (p *FakePair) Post(ws []rdma.Work) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return 0, rdma.ErrDisconnected
	}
	if p.Refuses != nil {
		ws = ws[:min(p.Takes, len(ws))]
	}
	for _, w := range ws {
		w.SGL = slices.Clone(w.SGL)
		if w.Flags&rdma.Inline != 0 {
			w.SGL[0].Bytes = slices.Clone(w.SGL[0].Bytes)
		}
		p.works = append(p.works, w)
	}
	p.Posts = append(p.Posts, len(ws))
	return len(ws), p.Refuses
}

// Close flushes what has not ended.
func (p *FakePair) Close() error {
	p.over()
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

func (p *FakePair) cq() *fakeCQ { return p.cfg.SendCQ.(*fakeCQ) }

// Say sends a message to the consumer.
func (p *FakePair) Say(b []byte) { p.SayWith(b, rdma.Completion{}) }

// SayWith is Say with a completion that has c's flags and STag, too.
func (p *FakePair) SayWith(b []byte, c rdma.Completion) {
	r := p.receives.take()
	c.ID, c.Op, c.Bytes = r.ID, rdma.OpReceive, copy(r.SGL[0].Bytes, b)
	p.cq().put(c)
	p.cq().event()
}

// Fail uses up a receive for a message that ends with s.
func (p *FakePair) Fail(s rdma.Status) {
	p.cq().put(rdma.Completion{ID: p.receives.take().ID, Op: rdma.OpReceive, Status: s})
	p.cq().event()
}

// Posted is how many receives are posted.
func (p *FakePair) Posted() int {
	p.receives.mu.Lock()
	defer p.receives.mu.Unlock()
	return len(p.receives.list)
}

// RefuseReceives has PostReceive fail with err, also for others that share the queue; nil: not any more.
func (p *FakePair) RefuseReceives(err error) {
	p.receives.mu.Lock()
	p.receives.refuses = err
	p.receives.mu.Unlock()
}

// Next takes the works that were posted since, and have not ended.
func (p *FakePair) Next() []rdma.Work {
	p.mu.Lock()
	defer p.mu.Unlock()
	ws := p.works
	p.works = nil
	return ws
}

// Finish ends works.
func (p *FakePair) Finish(ws []rdma.Work, s rdma.Status) {
	for i := range ws {
		if ws[i].Flags&rdma.Signaled != 0 || s != rdma.StatusOK {
			p.cq().put(rdma.Completion{ID: ws[i].ID, Op: ws[i].Op, Status: s})
		}
	}
	p.cq().event()
}

// End is the end of the connection, as the network tells it.
func (p *FakePair) End() { p.EndFor(nil) }

// EndFor is the end of the connection for a reason.
func (p *FakePair) EndFor(reason error) { p.cfg.Disconnected(reason) }

// FakeRequest asks for a connection.
type FakeRequest struct {
	Data []byte    // what the peer says
	Pair *FakePair // that it was accepted with
	No   []byte    // what it was rejected with
	// Meanwhile, if set, is called while the request is accepted.
	Meanwhile func()
}

func (r *FakeRequest) Device() rdma.Device { return nil }
func (r *FakeRequest) PeerData() []byte    { return r.Data }
func (r *FakeRequest) LocalAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 4420}
}

func (r *FakeRequest) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 5} }

func (r *FakeRequest) Reject(b []byte) error {
	r.No = b
	return nil
}

func (r *FakeRequest) Accept(qp rdma.QueuePair, c rdma.ConnParams) error {
	r.Pair = qp.(*FakePair)
	r.Pair.Data = c.PrivateData
	if r.Meanwhile != nil {
		r.Meanwhile()
	}
	r.Pair.connected.Store(true)
	return nil
}

// Listen returns a listener that nobody comes to.
func (d *Fake) Listen(string) (rdma.Listener, error) {
	return &fakeListener{over: make(chan struct{})}, nil
}

type fakeListener struct {
	once sync.Once
	over chan struct{}
}

func (l *fakeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 4420} }

func (l *fakeListener) Accept() (rdma.Request, error) {
	<-l.over
	return nil, net.ErrClosed
}

func (l *fakeListener) Close() error {
	l.once.Do(func() { close(l.over) })
	return nil
}
