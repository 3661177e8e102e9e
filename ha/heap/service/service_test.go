package service

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"oneshot/backend/memory"
	"oneshot/ha/heap"
	"oneshot/ha/heap/wire"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rig is a service, and the heap that it serves.
type rig struct {
	t    *testing.T
	s    *Service
	h    *heap.Heap
	at   string
	dev  rdma.Device // of peers
	over []func()
}

var secrets = map[string]string{"app": "secret", "other": "another"}

func secretOf(name string) ([]byte, bool) {
	s, ok := secrets[name]
	return []byte(s), ok
}

func newRig(t *testing.T, c Config) *rig {
	t.Helper()
	r := &rig{t: t}
	store, err := memory.New(8 << 20)
	check(t, err)
	r.h, err = heap.Open(store)
	check(t, err)
	c.Device, err = iwarp.Open(iwarp.Config{})
	check(t, err)
	c.Penalty = time.Millisecond
	if c.Nodes == nil {
		c.Nodes = func() []string { return []string{"192.0.2.7:1", "192.0.2.8:2"} }
	}
	r.s, err = New(c)
	check(t, err)
	check(t, r.s.SetHeap(r.h))
	l, err := c.Device.Listen("127.0.0.1:0")
	check(t, err)
	r.at = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- r.s.Serve(l) }()
	r.dev, err = iwarp.Open(iwarp.Config{})
	check(t, err)
	t.Cleanup(func() {
		for _, f := range r.over {
			f()
		}
		check(t, l.Close())
		check(t, <-served)
		check(t, r.s.Close())
		check(t, r.h.Close())
		check(t, errors.Join(c.Device.Close(), r.dev.Close(), store.Close()))
	})
	return r
}

// peer is a connection of whoever it is.
type peer struct {
	r    *rig
	qp   rdma.QueuePair
	cq   rdma.CompletionQueue
	mem  rdma.Region // half of it receives
	wake chan struct{}
	gone chan error
}

func (r *rig) peer() *peer {
	r.t.Helper()
	p := r.unconnected()
	check(r.t, r.dev.Connect(context.Background(), p.qp, r.at, rdma.ConnParams{PrivateData: []byte(wire.Private)}))
	return p
}

const half = 1 << 20

func (r *rig) unconnected() *peer {
	r.t.Helper()
	p := &peer{r: r, wake: make(chan struct{}, 1), gone: make(chan error, 1)}
	dom, err := r.dev.NewDomain()
	check(r.t, err)
	p.cq, err = r.dev.NewCompletionQueue(64, func() {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	})
	check(r.t, err)
	p.mem, err = dom.Register(make([]byte, 2*half), rdma.AccessLocalWrite)
	check(r.t, err)
	p.qp, err = r.dev.NewQueuePair(rdma.QueuePairConfig{
		Domain: dom, SendCQ: p.cq, RecvCQ: p.cq, MaxWork: 32, MaxRecv: 8, Disconnected: func(err error) { p.gone <- err },
	})
	check(r.t, err)
	r.over = append(r.over, func() {
		check(r.t, errors.Join(p.qp.Close(), p.cq.Close(), p.mem.Deregister(), dom.Close()))
	})
	return p
}

// post posts work, unless the service was quicker, and has ended the connection.
func (p *peer) post(ws ...rdma.Work) {
	p.r.t.Helper()
	if _, err := p.qp.Post(ws); !errors.Is(err, rdma.ErrDisconnected) {
		check(p.r.t, err)
	}
}

// send sends octets as a message, without waiting for anything.
func (p *peer) send(b []byte) {
	p.r.t.Helper()
	n := copy(p.mem.Bytes()[half:], b)
	p.post(rdma.Work{ID: 9, Op: rdma.OpSend, SGL: []rdma.SGE{{Bytes: p.mem.Bytes()[half : half+n], Region: p.mem}}})
}

func (p *peer) receive() {
	_, err := p.qp.PostReceive([]rdma.Receive{{ID: 1, SGL: []rdma.SGE{{Bytes: p.mem.Bytes()[:half], Region: p.mem}}}})
	check(p.r.t, err)
}

// next waits for the next completion.
func (p *peer) next() rdma.Completion {
	var one [1]rdma.Completion
	for p.cq.Poll(one[:]) == 0 {
		if p.cq.Arm() {
			<-p.wake
		}
	}
	return one[0]
}

// ask sends a message and returns the answer.
func (p *peer) ask(m wire.Message) wire.Message {
	p.r.t.Helper()
	p.receive()
	p.send(m.AppendTo(nil))
	return p.answer(m)
}

// answer waits for the answer to m.
func (p *peer) answer(m wire.Message) wire.Message {
	p.r.t.Helper()
	c := p.next()
	if c.Status != rdma.StatusOK || c.Op != rdma.OpReceive {
		p.r.t.Fatalf("%v: %v of %v", m.Op, c.Status, c.Op)
	}
	a, err := wire.Parse(append([]byte{}, p.mem.Bytes()[:c.Bytes]...))
	check(p.r.t, err)
	if a.Op != m.Op || a.Number != m.Number || a.Client != m.Client {
		p.r.t.Fatalf("the answer to %v is %+v", m.Op, a)
	}
	return a
}

// greet proves a name, and returns the answer to that.
func (p *peer) greet(name, secret string) (wire.Message, wire.Proof) {
	p.r.t.Helper()
	m, want := p.prove(name, secret)
	return p.answer(m), want
}

// prove sends the proof of a name, and does not wait for the answer.
func (p *peer) prove(name, secret string) (wire.Message, wire.Proof) {
	p.r.t.Helper()
	g := wire.Greeting{Name: name}
	_, _ = rand.Read(g.Client[:])
	a := p.ask(wire.Message{Op: wire.Hello, Data: wire.HelloData(name, g.Client)})
	if a.Status != wire.OK || copy(g.Service[:], a.Data) != len(g.Service) {
		p.r.t.Fatalf("hello: %v", a.Status)
	}
	var own, want wire.Proof
	if secret != "" {
		own, want = g.Proofs([]byte(secret))
	}
	m := wire.Message{Op: wire.Prove, Data: own[:]}
	p.receive()
	p.send(m.AppendTo(nil))
	return m, want
}

// user is a peer that has proved its name and joined.
func (r *rig) user(name string, id uint64) *peer {
	r.t.Helper()
	p := r.peer()
	a, _ := p.greet(name, secrets[name])
	if a.Status != wire.OK {
		r.t.Fatalf("prove: %v", a.Status)
	}
	if a := p.ask(wire.Message{Op: wire.Join, Client: id}); a.Status != wire.OK {
		r.t.Fatalf("join: %v", a.Status)
	}
	return p
}

// TestService: who has a secret gets a welcome that proves that the service knows it, too, and uses objects; so does RDMA Read.
func TestService(t *testing.T) {
	r := newRig(t, Config{Secret: secretOf})
	p := r.peer()
	a, want := p.greet("app", "secret")
	w, err := wire.ParseWelcome(a.Data)
	check(t, err)
	if !w.Proof.Equal(&want) || !w.Primary || w.Base != r.h.Base() || w.Key != r.h.Key() || w.Length != uint64(len(r.h.Memory())) || len(w.Nodes) != 2 {
		t.Errorf("%+v", w)
	}
	p.ask(wire.Message{Op: wire.Join, Client: 5})
	in := p.ask(wire.Message{Op: wire.Insert, Client: 5, Number: 1, Data: []byte("hello")})
	if b := p.ask(wire.Message{Op: wire.Read, Client: 5, Pointer: in.Pointer}); string(b.Data) != "hello" {
		t.Errorf("%q", b.Data)
	}
	sge := []rdma.SGE{{Bytes: p.mem.Bytes()[:64], Region: p.mem}}
	p.post(rdma.Work{ID: 3, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: sge, RemoteSTag: rdma.STag(in.Pointer.Key), RemoteOffset: in.Pointer.Addr})
	if c := p.next(); c.Status != rdma.StatusOK || c.Op != rdma.OpRead {
		t.Fatalf("%v", c.Status)
	}
	if b, _, s := wire.ReadPlace(p.mem.Bytes()[:64], in.Pointer); s != wire.OK || string(b) != "hello" {
		t.Errorf("%q, %v", b, s)
	}
	// The same ID under another name is another client.
	other := r.user("other", 5)
	a = other.ask(wire.Message{Op: wire.Insert, Client: 5, Number: 1, Data: []byte("other")})
	if a.Status != wire.OK || a.Pointer == in.Pointer {
		t.Errorf("a client has the answer of another one: %v", a)
	}
	// And the same client on another connection has its own answer again.
	again := r.user("app", 5)
	if a := again.ask(wire.Message{Op: wire.Insert, Client: 5, Number: 1, Data: []byte("hello")}); a.Pointer != in.Pointer {
		t.Errorf("%v, want %v", a.Pointer, in.Pointer)
	}
}

// TestDenied: without the secret there is no welcome, and nothing to reach.
func TestDenied(t *testing.T) {
	for _, c := range []struct{ name, secret string }{{"app", "wrong"}, {"app", ""}, {"nobody", "secret"}, {"", ""}, {"other", "secret"}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			r := newRig(t, Config{Secret: secretOf})
			p := r.peer()
			if a, _ := p.greet(c.name, c.secret); a.Status != wire.Denied || len(a.Data) > 0 {
				t.Errorf("%v, %d octets", a.Status, len(a.Data))
			}
			<-p.gone
		})
	}
	r := newRig(t, Config{}) // without clients nobody has a name
	if a, _ := r.peer().greet("", ""); a.Status != wire.OK {
		t.Errorf("without clients: %v", a.Status)
	}
	if a, _ := r.peer().greet("app", "secret"); a.Status != wire.Denied {
		t.Errorf("a name that nobody knows: %v", a.Status)
	}
}

// TestHostile: what a peer may not do ends its connection, and reaches and changes nothing; others go on.
func TestHostile(t *testing.T) {
	message := func(m wire.Message) []byte { return m.AppendTo(nil) }
	with := func(b []byte, at int, x byte) []byte {
		b = append([]byte{}, b...)
		b[at] = x
		return b
	}
	insert := message(wire.Message{Op: wire.Insert, Client: 5, Number: 2, Data: []byte("x")})
	hello := message(wire.Message{Op: wire.Hello, Data: wire.HelloData("app", wire.Nonce{})})
	for name, attack := range map[string]struct {
		unproved bool
		do       func(p *peer, at wire.Pointer)
	}{
		"insert without proof": {true, func(p *peer, _ wire.Pointer) { p.send(insert) }},
		"prove without hello":  {true, func(p *peer, _ wire.Pointer) { p.send(message(wire.Message{Op: wire.Prove, Data: make([]byte, 32)})) }},
		"hello twice": {true, func(p *peer, _ wire.Pointer) {
			p.ask(wire.Message{Op: wire.Hello, Data: wire.HelloData("app", wire.Nonce{})})
			p.send(hello)
		}},
		"another version": {true, func(p *peer, _ wire.Pointer) { p.send(with(hello, wire.MessageLen, 9)) }},
		"a long name": {true, func(p *peer, _ wire.Pointer) {
			p.send(message(wire.Message{Op: wire.Hello, Data: wire.HelloData(strings.Repeat("x", 300), wire.Nonce{})}))
		}},
		"hello again":          {false, func(p *peer, _ wire.Pointer) { p.send(hello) }},
		"nothing":              {false, func(p *peer, _ wire.Pointer) { p.send(nil) }},
		"half a header":        {false, func(p *peer, _ wire.Pointer) { p.send(insert[:wire.MessageLen-1]) }},
		"a wrong length":       {false, func(p *peer, _ wire.Pointer) { p.send(with(insert, 7, 200)) }},
		"a huge length":        {false, func(p *peer, _ wire.Pointer) { p.send(with(insert, 4, 255)) }},
		"an unknown operation": {false, func(p *peer, _ wire.Pointer) { p.send(with(insert, 0, 99)) }},
		"operation 0":          {false, func(p *peer, _ wire.Pointer) { p.send(with(insert, 0, 0)) }},
		"an answer":            {false, func(p *peer, _ wire.Pointer) { p.send(with(insert, 1, byte(wire.Full))) }},
		"more than a message":  {false, func(p *peer, _ wire.Pointer) { p.send(make([]byte, wire.MaxMessage+1)) }},
		"many at once": {false, func(p *peer, _ wire.Pointer) {
			for range 20 {
				p.send(insert)
			}
		}},
		"write":           {false, func(p *peer, at wire.Pointer) { p.write(at.Key, at.Addr) }},
		"read before":     {false, func(p *peer, at wire.Pointer) { p.read(at.Key, p.r.h.Base()-1, 8) }},
		"read behind":     {false, func(p *peer, at wire.Pointer) { p.read(at.Key, p.r.h.Base()+uint64(len(p.r.h.Memory()))-7, 8) }},
		"read offset 0":   {false, func(p *peer, at wire.Pointer) { p.read(at.Key, 0, 8) }},
		"another key":     {false, func(p *peer, at wire.Pointer) { p.read(at.Key^1, at.Addr, 8) }},
		"another index":   {false, func(p *peer, at wire.Pointer) { p.read(at.Key^0x100, at.Addr, 8) }},
		"messages of his": {false, func(p *peer, _ wire.Pointer) { p.read(1<<8|1, 0, 8) }},
		"invalidate": {false, func(p *peer, at wire.Pointer) {
			p.post(rdma.Work{Op: rdma.OpSend, Flags: rdma.Invalidate, STag: rdma.STag(at.Key), SGL: p.sge(8)})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{Secret: secretOf})
			good := r.user("app", 5)
			at := good.ask(wire.Message{Op: wire.Insert, Client: 5, Number: 1, Data: []byte("mine")}).Pointer
			p := r.peer()
			if !attack.unproved {
				p = r.user("other", 5)
			}
			attack.do(p, at)
			<-p.gone
			if a := good.ask(wire.Message{Op: wire.Read, Client: 5, Pointer: at}); string(a.Data) != "mine" {
				t.Errorf("%q, %v", a.Data, a.Status)
			}
		})
	}
}

func (p *peer) sge(n int) []rdma.SGE {
	return []rdma.SGE{{Bytes: p.mem.Bytes()[half : half+n], Region: p.mem}}
}

func (p *peer) read(key uint32, at uint64, n int) {
	p.post(rdma.Work{Op: rdma.OpRead, SGL: p.sge(n), RemoteSTag: rdma.STag(key), RemoteOffset: at})
}

func (p *peer) write(key uint32, at uint64) {
	p.post(rdma.Work{Op: rdma.OpWrite, SGL: p.sge(8), RemoteSTag: rdma.STag(key), RemoteOffset: at})
}

// TestReadWithoutProof: no octet of the heap is read over a connection whose client has not proved its name, though it knows where it is, and what it
// posts behind the proof is good.
func TestReadWithoutProof(t *testing.T) {
	r := newRig(t, Config{Secret: secretOf})
	at := r.user("app", 5).ask(wire.Message{Op: wire.Insert, Client: 5, Number: 1, Data: []byte("mine")}).Pointer
	read := func(p *peer) rdma.Status {
		w := rdma.Work{Op: rdma.OpRead, Flags: rdma.Signaled, SGL: p.sge(8), RemoteSTag: rdma.STag(at.Key), RemoteOffset: at.Addr}
		if _, err := p.qp.Post([]rdma.Work{w}); errors.Is(err, rdma.ErrDisconnected) {
			return rdma.StatusFlushed
		}
		c := p.next()
		for c.Op != rdma.OpRead {
			c = p.next()
		}
		return c.Status
	}
	greeted := r.peer()
	greeted.ask(wire.Message{Op: wire.Hello, Data: wire.HelloData("app", wire.Nonce{})})
	denied := r.peer()
	if a, _ := denied.greet("app", "another"); a.Status != wire.Denied {
		t.Errorf("a wrong secret: %v", a.Status)
	}
	for name, p := range map[string]*peer{"no message": r.peer(), "a hello": greeted, "a wrong proof": denied} {
		if s := read(p); s == rdma.StatusOK {
			t.Errorf("%s: the Read is served", name)
		}
	}
	if s := read(r.user("other", 6)); s != rdma.StatusOK {
		t.Errorf("with a proof: %v", s)
	}
}

// TestRefusedConnections: the private data, and how many there are.
func TestRefusedConnections(t *testing.T) {
	r := newRig(t, Config{Secret: secretOf, Limits: Limits{Connections: 4}})
	p := r.unconnected()
	if err := r.dev.Connect(context.Background(), p.qp, r.at, rdma.ConnParams{PrivateData: []byte("OSP1")}); err == nil {
		t.Error("a connection for something else is accepted")
	}
	users := []*peer{r.user("other", 1), r.user("other", 2)}
	first, second := r.peer(), r.peer()
	third := r.peer() // two of four may be without proof
	<-first.gone
	if a, _ := third.greet("app", "secret"); a.Status != wire.OK {
		t.Errorf("%v", a.Status)
	}
	if a, _ := second.greet("app", "secret"); a.Status != wire.OK {
		t.Errorf("%v", a.Status)
	}
	p = r.unconnected()
	if err := r.dev.Connect(context.Background(), p.qp, r.at, rdma.ConnParams{PrivateData: []byte(wire.Private)}); err == nil {
		t.Error("a fifth connection is accepted")
	}
	for i, u := range users {
		if a := u.ask(wire.Message{Op: wire.Join, Client: uint64(i + 1)}); a.Status != wire.OK {
			t.Errorf("%v", a.Status)
		}
	}
}

// TestShares: no client has the places of all, and the others are served. Where there are no names, that is so of hosts.
func TestShares(t *testing.T) {
	for name, secret := range map[string]func(string) ([]byte, bool){"app": secretOf, "": nil} {
		r := newRig(t, Config{Secret: secret, Limits: Limits{Connections: 8}})
		var users []*peer
		for i := range 4 {
			users = append(users, r.user(name, uint64(i+1)))
		}
		for range 3 { // who is told that he has too many gives his place back
			p := r.peer()
			if a, _ := p.greet(name, secrets[name]); a.Status != wire.Busy || len(a.Data) > 0 {
				t.Fatalf("a fifth connection of %q: %v", name, a.Status)
			}
			<-p.gone
		}
		if secret != nil {
			users = append(users, r.user("other", 1))
		}
		for i, u := range users {
			if a := u.ask(wire.Message{Op: wire.Join, Client: uint64(i + 1)}); a.Status != wire.OK {
				t.Errorf("%v", a.Status)
			}
		}
	}
}

// TestComesBack: who has his share, and comes back while one of his connections is on its way out, waits for that, and nobody else does.
func TestComesBack(t *testing.T) {
	hangs, reached := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	first.Store(true)
	r := newRig(t, Config{Secret: secretOf, Limits: Limits{Connections: 8}, Nodes: func() []string {
		if first.Swap(false) {
			close(reached)
			<-hangs
		}
		return nil
	}})
	lost := r.peer()
	lost.prove("app", "secret")
	<-reached // it has its place, and does not go on
	hung := r.s.conns.List()[0]
	for i := range 3 {
		r.user("app", uint64(i+1))
	}
	lost.qp.Abort(errors.New("it is lost"))
	<-hung.gone
	back := r.peer()
	proof, _ := back.prove("app", "secret")
	r.user("other", 1)
	close(hangs)
	if a := back.answer(proof); a.Status != wire.OK {
		t.Errorf("%v", a.Status)
	}
}

// TestTimes: who does not prove a name, or takes no answers, is ended.
func TestTimes(t *testing.T) {
	r := newRig(t, Config{Secret: secretOf, Limits: Limits{StartTimeout: time.Millisecond}})
	<-r.peer().gone
	r = newRig(t, Config{})
	p := r.peer()
	p.greet("", "")
	p.ask(wire.Message{Op: wire.Join, Client: 1})
	at := p.ask(wire.Message{Op: wire.Insert, Client: 1, Number: 1, Data: make([]byte, wire.MaxObject)}).Pointer
	r.s.SetLimits(Limits{Patience: time.Millisecond})                            // not before: a busy machine may need longer for a good answer
	p.send((&wire.Message{Op: wire.Read, Client: 1, Pointer: at}).AppendTo(nil)) // and there is no receive for the answer
	<-p.gone
}

// TestMoves: without a heap the service says so and where others are; when that changes, connections end, and nothing is reached any
// more of what was there.
func TestMoves(t *testing.T) {
	r := newRig(t, Config{Secret: secretOf})
	p := r.user("app", 5)
	at := p.ask(wire.Message{Op: wire.Insert, Client: 5, Number: 1, Data: []byte("hello")}).Pointer
	check(t, r.s.SetHeap(nil))
	<-p.gone
	p = r.peer()
	a, _ := p.greet("app", "secret")
	w, err := wire.ParseWelcome(a.Data)
	check(t, err)
	if w.Primary || w.Key != 0 || w.Base != 0 || w.Length != 0 || len(w.Nodes) != 2 {
		t.Errorf("%+v", w)
	}
	for _, m := range []wire.Message{{Op: wire.Join, Client: 5}, {Op: wire.Read, Pointer: at}, {Op: wire.Insert, Client: 5, Number: 1}} {
		if a := p.ask(m); a.Status != wire.Moved {
			t.Errorf("%v: %v", m.Op, a.Status)
		}
	}
	p.read(at.Key, at.Addr, 64)
	<-p.gone
	check(t, r.s.SetHeap(r.h))
	p = r.user("app", 5)
	if a := p.ask(wire.Message{Op: wire.Read, Pointer: at}); string(a.Data) != "hello" {
		t.Errorf("%q, %v", a.Data, a.Status)
	}
	if a := p.ask(wire.Message{Op: wire.Insert, Client: 5, Number: 1, Data: []byte("hello")}); a.Pointer != at {
		t.Errorf("%v, want %v", a.Pointer, at)
	}
}
