package service_test

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"oneshot/backend"
	"oneshot/mem"
	"oneshot/partition"
	"oneshot/partition/service"
	"oneshot/partition/wire"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
	"oneshot/transport/rdma/local"
	"oneshot/transport/rdma/rdmatest"
	"oneshot/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const size = 4 << 20

// bench is a service with the partitions disk/log, for all, and disk/own, for the client "owner".
type bench struct {
	t      testing.TB
	wire   rdma.Device // of the service and of clients; nil: by default
	listen string
	store  *rdmatest.Volatile            // nil: a store of another kind
	lends  bool                          // it is memory
	device func(rdma.Device) rdma.Device // if it is set, it makes the service's device of wire
	doors  chan chan struct{}            // if not nil, partitions are opened when these channels are closed
	late   chan func()                   // if not nil, operations of 512 octets complete when these functions are called
	quits  chan struct{}                 // if not nil, there is one for each endpoint that is given up
	v      *volume.Volume
	pool   *mem.Pool
	svc    *service.Service
	l      rdma.Listener

	most int // endpoints that may be open; 0: there is no limit

	mu   sync.Mutex
	open int
	told []func(error)
	who  partition.Identity // of the last Open
}

// asked returns who has opened a partition last.
func (b *bench) asked() partition.Identity {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.who
}

func (b *bench) Open(_ context.Context, q service.Request) (service.Endpoint, error) {
	if q.Name != "disk/log" && (q.Name != "disk/own" || q.Identity.Name != "owner") {
		return nil, rdma.ErrNoEndpoint
	}
	if q.Want == 0 {
		q.Want = rdma.AllRights
	}
	if b.doors != nil {
		door := make(chan struct{})
		b.doors <- door
		<-door
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.most > 0 && b.open == b.most {
		return nil, errors.New("too many endpoints are open")
	}
	b.open++
	b.told, b.who = append(b.told, q.Gone), q.Identity
	return &endpoint{Handle: b.v.Open(func() {}), b: b, info: rdma.Endpoint{Name: q.Name, Rights: q.Want, Durability: rdma.DurabilityMedium}}, nil
}

func (b *bench) List(id partition.Identity) []rdma.Endpoint {
	all := []rdma.Endpoint{{Name: "disk/log", Size: size, Unit: 512, Rights: rdma.AllRights}}
	if id.Name == "owner" {
		for range 20 { // more than a message holds
			all = append(all, rdma.Endpoint{Name: "disk/own", UUID: "0b7f4c1a-53d2-4e8f-a9c6-71e2d8b40f15", Size: size, Unit: 512})
		}
	}
	return all
}

type endpoint struct {
	*volume.Handle
	b     *bench
	info  rdma.Endpoint
	under atomic.Int64 // operations in Submit, and late
	shut  atomic.Bool
}

// Submit implements service.Endpoint.
func (e *endpoint) Submit(op *backend.Op) bool {
	e.under.Add(1)
	if e.shut.Load() {
		e.b.t.Error("an operation is submitted to an endpoint that is closed")
	}
	if e.b.late != nil && op.Len == 512 {
		e.b.late <- func() {
			if e.Handle.Submit(op) {
				e.under.Add(-1)
				op.Done.OpDone(op)
			}
		}
		return false
	}
	defer e.under.Add(-1)
	return e.Handle.Submit(op)
}

// GiveUp is for the provider.
func (e *endpoint) GiveUp() {
	e.Handle.GiveUp()
	if e.b.quits != nil {
		e.b.quits <- struct{}{}
	}
}

// Close implements service.Endpoint.
func (e *endpoint) Close() {
	e.shut.Store(true)
	if n := e.under.Load(); n > 0 {
		e.b.t.Errorf("an endpoint is closed with %d operations under way", n)
	}
	e.Handle.Close()
	e.b.mu.Lock()
	e.b.open--
	e.b.mu.Unlock()
}

func (e *endpoint) Describe() rdma.Endpoint { return e.info }
func (e *endpoint) Lends() bool             { return e.b.lends }
func (e *endpoint) Lineage() uint64         { return 0 }

var secret = []byte("a secret of the owner's")

// newBench serves over pairs inside of the process, or over iWARP.
// plenty is memory for the receives of more connections than a test has, though all are of one host.
const plenty = 256 << 20

func newBench(t testing.TB, overIWARP bool, poolSize int64, c service.Config) *bench {
	t.Helper()
	b := &bench{t: t, pool: mem.NewPool(poolSize), store: rdmatest.NewVolatile(size, 1)}
	b.serve(b.store, overIWARP, c)
	return b
}

// serve serves s, and closes it when the test ends.
func (b *bench) serve(s backend.Store, overIWARP bool, c service.Config) {
	t := b.t
	t.Helper()
	b.listen = "pair:0"
	if b.wire != nil {
		b.listen = "127.0.0.1:0"
	} else if overIWARP {
		var err error
		b.wire, err = iwarp.Open(iwarp.Config{})
		check(t, err)
		b.listen = "127.0.0.1:0"
	} else {
		b.wire = local.Open(local.Config{})
	}
	var err error
	b.v, err = volume.New(volume.Config{Store: s})
	check(t, err)
	c.Device, c.Pool, c.Opener = b.wire, b.pool, b
	if b.device != nil {
		c.Device = b.device(b.wire)
	}
	c.Secret = func(name string) ([]byte, bool) { return secret, name == "owner" }
	b.svc, err = service.New(c)
	check(t, err)
	b.l, err = b.wire.Listen(b.listen)
	check(t, err)
	var wg sync.WaitGroup
	wg.Go(func() { check(t, b.svc.Serve(b.l)) })
	t.Cleanup(func() {
		check(t, b.l.Close())
		wg.Wait()
		check(t, b.svc.Close())
		check(t, b.wire.Close())
		check(t, b.v.Close())
		if st := b.pool.Stats(); st.Leases != 0 {
			t.Errorf("%d leases are left of the service", st.Leases)
		}
		b.pool.Close()
	})
}

// client speaks messages, good ones and bad ones.
type client struct {
	b      *bench
	t      testing.TB
	dom    rdma.Domain
	cq     rdma.CompletionQueue
	qp     rdma.QueuePair
	mem    rdma.Region
	gone   chan error
	wake   chan struct{}
	closed []rdma.STag
	g      wire.Greeting
	handle uint32
	info   wire.AttachedMessage
}

// Memory of a client: messages that come, messages that go, and data.
const (
	inLen   = 512
	ins     = 80
	outAt   = ins * inLen
	dataAt  = outAt + 128*(64+8192)
	dataLen = 2 << 20
)

// connect makes a connection. With receives 0 nothing that the service sends is taken.
func (b *bench) connect(receives int) *client {
	b.t.Helper()
	c := &client{b: b, t: b.t, gone: make(chan error, 1), wake: make(chan struct{}, 1)}
	var err error
	c.dom, err = b.wire.NewDomain()
	check(b.t, err)
	c.cq, err = b.wire.NewCompletionQueue(512, func() {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	})
	check(b.t, err)
	c.qp, err = b.wire.NewQueuePair(rdma.QueuePairConfig{
		Domain: c.dom, SendCQ: c.cq, RecvCQ: c.cq, MaxWork: 256, MaxRecv: ins, Disconnected: func(err error) { c.gone <- err },
	})
	check(b.t, err)
	c.mem, err = c.dom.Register(make([]byte, dataAt+dataLen), rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
	check(b.t, err)
	for i := range receives {
		c.receive(i)
	}
	b.t.Cleanup(c.close)
	p := rdma.ConnParams{PrivateData: []byte(wire.Private)}
	if b.wire.Limits().OneShot {
		p.OneShot = &rdma.OneShotOffer{Flags: true, Advertise: true, Close: true, Window: 64}
	}
	check(b.t, b.wire.Connect(b.t.Context(), c.qp, b.l.Addr().String(), p))
	return c
}

func (c *client) close() {
	if c.qp == nil {
		return
	}
	check(c.t, c.qp.Close())
	check(c.t, c.cq.Close())
	check(c.t, c.mem.Deregister())
	c.qp = nil
}

func (c *client) sge(off, n int) []rdma.SGE {
	return []rdma.SGE{{Bytes: c.mem.Bytes()[off : off+n], Region: c.mem}}
}

func (c *client) receive(i int) {
	_, err := c.qp.PostReceive([]rdma.Receive{{ID: uint64(i), SGL: c.sge(i*inLen, inLen)}})
	if err != nil && !errors.Is(err, rdma.ErrDisconnected) {
		c.t.Fatal(err)
	}
}

// send sends a message from the given place; w may say more.
func (c *client) send(place int, b []byte, w rdma.Work) {
	c.t.Helper()
	copy(c.mem.Bytes()[placeAt(place):], b)
	c.post(place, len(b), w)
}

func placeAt(place int) int { return outAt + place*(64+8192) }

// post sends the first n octets of what is in a place already.
func (c *client) post(place, n int, w rdma.Work) {
	c.t.Helper()
	w.ID, w.Op, w.SGL = 1<<40, rdma.OpSend, c.sge(placeAt(place), n)
	if _, err := c.qp.Post([]rdma.Work{w}); err != nil && !errors.Is(err, rdma.ErrDisconnected) {
		c.t.Fatal(err)
	}
}

const patience = 20 * time.Second

// next returns the next message; nil: the connection has ended.
func (c *client) next() []byte {
	c.t.Helper()
	deadline := time.After(patience)
	var one [1]rdma.Completion
	for ended := false; ; {
		for c.cq.Poll(one[:]) > 0 {
			x := &one[0]
			if x.Op != rdma.OpReceive || x.Status != rdma.StatusOK {
				continue
			}
			if x.Flags&rdma.Closed != 0 {
				c.closed = append(c.closed, x.STag)
			}
			i := int(x.ID)
			b := append([]byte(nil), c.mem.Bytes()[i*inLen:i*inLen+x.Bytes]...)
			c.receive(i)
			return b
		}
		if !c.cq.Arm() {
			continue
		}
		if ended {
			return nil
		}
		select {
		case <-c.wake:
		case err := <-c.gone:
			c.gone <- err
			ended = true // and nothing comes any more, beside what is in the queue
		case <-deadline:
			c.t.Fatal("nothing comes")
		}
	}
}

// ends waits for the end of the connection, and fails if something is answered first.
func (c *client) ends(what string) {
	c.t.Helper()
	if b := c.next(); b != nil {
		c.t.Errorf("%s: the service answers %x", what, b)
	}
}

func (c *client) hello(name string) {
	c.t.Helper()
	m := wire.HelloMessage{Version: wire.Version, Name: name}
	_, _ = rand.Read(m.Nonce[:])
	c.send(0, m.AppendTo(nil), rdma.Work{})
	answer, err := wire.ParseChallenge(c.next())
	check(c.t, err)
	if answer.Status != wire.OK {
		c.t.Fatalf("%+v", answer)
	}
	c.g = wire.Greeting{Name: name, Client: m.Nonce, Service: answer.Nonce}
}

// attach sends an ATTACH with the proof of who knows secret; nil: none.
func (c *client) attach(m wire.AttachMessage, secret []byte) {
	if secret != nil {
		m.Proof = c.g.ClientProof(secret, &m)
	}
	c.send(0, m.AppendTo(nil), rdma.Work{})
}

func (c *client) attached() wire.AttachedMessage {
	c.t.Helper()
	m, err := wire.ParseAttached(c.next())
	check(c.t, err)
	c.handle, c.info = m.Handle, m
	return m
}

// use is a client with a handle of disk/log.
func (b *bench) use(rights rdma.Rights) *client {
	b.t.Helper()
	c := b.connect(ins)
	c.hello("")
	c.attach(wire.AttachMessage{Partition: "disk/log", Order: uint16(rdma.FreeStart | rdma.FreeFinish), Rights: uint32(rights)}, nil)
	if m := c.attached(); m.Status != wire.OK {
		b.t.Fatalf("%+v", m)
	}
	return c
}

// resume closes a connection and goes on with its session on another one.
func (b *bench) resume(c *client, session uint64, rights rdma.Rights) *client {
	b.t.Helper()
	c.close()
	c = b.connect(ins)
	c.hello("")
	c.attach(wire.AttachMessage{Partition: "disk/log", Order: 3, Rights: uint32(rights), Session: session}, nil)
	if m := c.attached(); !m.Known {
		b.t.Fatalf("%+v", m)
	}
	return c
}

// request sends r for the handle, unless it names one, with the memory at data, as the device has it.
func (c *client) request(r wire.Request) {
	c.t.Helper()
	if r.Handle == 0 && r.Op != wire.List {
		r.Handle = c.handle
	}
	var w rdma.Work
	if (r.Op == wire.Read || r.Op == wire.Write) && r.Length > 0 && r.Flags&wire.Inline == 0 && r.STag == 0 {
		if c.qp.OneShot() != nil {
			w = rdma.Work{Flags: rdma.Advertise, Memory: c.sge(dataAt, int(r.Length)), Access: rdma.AccessRemoteRead | rdma.AccessRemoteWrite}
		} else {
			r.STag, r.TO = uint32(c.mem.STag()), c.mem.Base()+dataAt
		}
	}
	b := r.AppendTo(nil)
	if r.Flags&wire.Inline != 0 {
		b = append(b, c.mem.Bytes()[dataAt:dataAt+int(r.Length)]...)
	}
	c.send(int(r.Tag%128), b, w)
}

func (c *client) response() wire.Response {
	c.t.Helper()
	b := c.next()
	r, _, err := wire.ParseResponse(b)
	if err != nil {
		c.t.Fatalf("%x: %v", b, err)
	}
	return r
}

// do asks and waits for the answer.
func (c *client) do(r wire.Request) wire.Response {
	c.t.Helper()
	c.request(r)
	got := c.response()
	if got.Tag != r.Tag || got.Op != r.Op {
		c.t.Fatalf("%+v answers %+v", got, r)
	}
	return got
}

func (c *client) data() []byte { return c.mem.Bytes()[dataAt:] }

// works checks that the client can still read and write.
func (c *client) works() {
	c.t.Helper()
	c.data()[0] = 77
	if r := c.do(wire.Request{Op: wire.Write, Tag: 100, Length: 512, Offset: size - 512}); r.Status != wire.OK {
		c.t.Errorf("%+v", r)
	}
	c.data()[0] = 0
	if r := c.do(wire.Request{Op: wire.Read, Tag: 101, Length: 512, Offset: size - 512}); r.Status != wire.OK || c.data()[0] != 77 {
		c.t.Errorf("%+v, %d", r, c.data()[0])
	}
}

// settle waits until only n connections are left of the service.
func (b *bench) settle(n int) {
	b.t.Helper()
	for deadline := time.Now().Add(patience); b.svc.Connections() != n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("%d connections are left, want %d", b.svc.Connections(), n)
		}
	}
}

// returned waits until at most base bytes are in use. The memory of a response is in use until the device has
// reported that the response has left.
func (b *bench) returned(base int64) {
	b.t.Helper()
	for deadline := time.Now().Add(patience); b.pool.Stats().InUse != base; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("%d bytes are in use, want %d", b.pool.Stats().InUse, base)
		}
	}
}

func everything(*backend.Op) bool { return true }
