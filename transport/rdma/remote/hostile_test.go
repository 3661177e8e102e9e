package remote_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"oneshot/partition/wire"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/remote"
)

// liar is a service that answers as it is told.
type liar struct {
	t *testing.T
	l rdma.Listener
}

// lie serves over pairs: change is done to each ATTACHED, and answer makes each response.
func lie(t *testing.T, secret []byte, change func(*wire.AttachedMessage), answer func(wire.Request, *wire.Response) []byte) *liar {
	t.Helper()
	dev := newLocal(t)
	l, err := dev.Listen("pair:0")
	check(t, err)
	s := &liar{t, l}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			req, err := l.Accept()
			if err != nil {
				return
			}
			s.serve(dev, req, secret, change, answer)
		}
	}()
	t.Cleanup(func() {
		check(t, l.Close())
		<-served
	})
	return s
}

func (s *liar) serve(dev rdma.Device, req rdma.Request, secret []byte, change func(*wire.AttachedMessage), answer func(wire.Request, *wire.Response) []byte) {
	dom, _ := dev.NewDomain()
	wake, over := make(chan struct{}, 1), make(chan struct{})
	cq, _ := dev.NewCompletionQueue(64, func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	qp, _ := dev.NewQueuePair(rdma.QueuePairConfig{
		Domain: dom, SendCQ: cq, RecvCQ: cq, MaxWork: 64, MaxRecv: 8, Disconnected: func(error) { close(over) },
	})
	mem, _ := dom.Register(make([]byte, 16<<10), rdma.AccessLocalWrite)
	post := func() {
		_, _ = qp.PostReceive([]rdma.Receive{{SGL: []rdma.SGE{{Bytes: mem.Bytes()[:9000], Region: mem}}}})
	}
	post()
	if req.Accept(qp, rdma.ConnParams{}) != nil {
		s.t.Error("not accepted")
		return
	}
	var g wire.Greeting
	handle := func(b []byte) []byte {
		switch o, _, _ := wire.Kind(b); o {
		case wire.Hello:
			m, _ := wire.ParseHello(b)
			g = wire.Greeting{Name: m.Name, Client: m.Nonce}
			return (&wire.ChallengeMessage{}).AppendTo(nil)
		case wire.Attach:
			m := wire.AttachedMessage{
				Handle: 5, Rights: uint32(rdma.AllRights), Size: 1 << 20, Unit: 512, Credits: 4, MaxLength: 1 << 20, Inline: 8192, Name: "disk/log",
			}
			change(&m)
			if g.Name != "" {
				m.Proof = g.ServiceProof(secret, &m)
			}
			return m.AppendTo(nil)
		}
		r, _, err := wire.ParseRequest(b)
		if err != nil {
			s.t.Error(err)
		}
		p := wire.Response{Op: r.Op, Tag: r.Tag, Done: r.Length, Credits: 4}
		return answer(r, &p)
	}
	var one [1]rdma.Completion
	for ended := false; !ended; {
		for cq.Poll(one[:]) > 0 {
			if one[0].Op != rdma.OpReceive || one[0].Status != rdma.StatusOK {
				continue
			}
			b := handle(append([]byte(nil), mem.Bytes()[:one[0].Bytes]...))
			post()
			n := copy(mem.Bytes()[10000:], b)
			_, _ = qp.Post([]rdma.Work{{Op: rdma.OpSend, SGL: []rdma.SGE{{Bytes: mem.Bytes()[10000 : 10000+n], Region: mem}}}})
		}
		if cq.Arm() {
			select {
			case <-wake:
			case <-over:
				ended = true
			}
		}
	}
	_ = qp.Close()
	_ = cq.Close()
	_ = mem.Deregister()
}

func truth(*wire.AttachedMessage) {}

func obey(_ wire.Request, p *wire.Response) []byte { return p.AppendTo(nil) }

// A service that lies about a request loses its connection, and the work does not end well.
func TestServiceLies(t *testing.T) {
	for what, answer := range map[string]func(wire.Request, *wire.Response) []byte{
		"another tag":         func(_ wire.Request, p *wire.Response) []byte { p.Tag ^= 1; return p.AppendTo(nil) },
		"a tag out of bounds": func(_ wire.Request, p *wire.Response) []byte { p.Tag = 1 << 31; return p.AppendTo(nil) },
		"another operation":   func(_ wire.Request, p *wire.Response) []byte { p.Op = wire.Read; return p.AppendTo(nil) },
		"fewer octets":        func(_ wire.Request, p *wire.Response) []byte { p.Done = 0; return p.AppendTo(nil) },
		"half a response":     func(_ wire.Request, p *wire.Response) []byte { return p.AppendTo(nil)[:16] },
		"nothing":             func(wire.Request, *wire.Response) []byte { return nil },
		"a request":           func(r wire.Request, _ *wire.Response) []byte { return r.AppendTo(nil)[:32] },
	} {
		s := lie(t, nil, truth, answer)
		d := open(t, remote.Config{Device: newLocal(t), Patience: -1})
		u := use(t, d, s.l.Addr().String()+"/disk/log", rdma.OrderStrict)
		u.post(u.work(rdma.OpWrite, 1, 0, 0, 512, 0))
		if c := u.next(); c.Status != rdma.StatusFlushed || c.Err == nil {
			t.Errorf("%s: %+v", what, c)
		}
		if err := <-u.gone; err == nil {
			t.Errorf("%s: a good end", what)
		}
	}
}

// full is a device whose queue pairs take nothing while it is full.
type full struct {
	rdma.Device
	is atomic.Bool
}

type fullQueuePair struct {
	rdma.QueuePair
	d *full
}

func (d *full) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	qp, err := d.Device.NewQueuePair(c)
	return &fullQueuePair{qp, d}, err
}

func (d *full) Connect(ctx context.Context, qp rdma.QueuePair, addr string, p rdma.ConnParams) error {
	return d.Device.Connect(ctx, qp.(*fullQueuePair).QueuePair, addr, p)
}

func (q *fullQueuePair) Post(ws []rdma.Work) (int, error) {
	if q.d.is.Load() {
		return 0, rdma.ErrFull
	}
	return q.QueuePair.Post(ws)
}

// A service that answers a request before it was sent, because it knows the tag, loses its connection: the work's memory would be its
// owner's again, and be sent later.
func TestServiceKnowsTag(t *testing.T) {
	asked, goOn := make(chan struct{}), make(chan struct{})
	s := lie(t, nil, truth, func(_ wire.Request, p *wire.Response) []byte {
		close(asked)
		<-goOn
		p.Tag++ // that of the next request
		return p.AppendTo(nil)
	})
	below := &full{Device: newLocal(t)}
	u := use(t, open(t, remote.Config{Device: below, Patience: -1}), s.l.Addr().String()+"/disk/log", rdma.FreeStart|rdma.FreeFinish)
	u.post(u.work(rdma.OpWrite, 1, 0, 0, 512, 0))
	<-asked
	below.is.Store(true)
	u.post(u.work(rdma.OpWrite, 2, 512, 512, 512, 0))
	close(goOn)
	for range 2 {
		if c := u.next(); c.Status != rdma.StatusFlushed || c.Err == nil {
			t.Errorf("%+v", c)
		}
	}
	if err := <-u.gone; err == nil {
		t.Error("a good end")
	}
}

// A service that ends the use of the partition, because a Write has come too late, say, ends the queue pair.
func TestServiceEnds(t *testing.T) {
	s := lie(t, nil, truth, func(_ wire.Request, p *wire.Response) []byte {
		p.Status = wire.Ended
		return p.AppendTo(nil)
	})
	u := use(t, open(t, remote.Config{Device: newLocal(t)}), s.l.Addr().String()+"/disk/log", rdma.OrderStrict)
	u.post(u.work(rdma.OpWrite, 1, 0, 0, 512, 0))
	if c := u.want(1, rdma.StatusFlushed); c.Err == nil {
		t.Error("nothing says why")
	}
	if err := <-u.gone; err == nil {
		t.Error("a good end")
	}
}

// A service is not used if its numbers are impossible, if it refuses, or if it does not know the secret.
func TestServiceRefused(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*wire.AttachedMessage)
		name   string
		is     error
	}{
		"good":           {change: truth, name: "owner"},
		"unit 0":         {change: func(m *wire.AttachedMessage) { m.Unit = 0 }},
		"size":           {change: func(m *wire.AttachedMessage) { m.Size = 1 << 63 }},
		"no credits":     {change: func(m *wire.AttachedMessage) { m.Credits = 0 }},
		"inline":         {change: func(m *wire.AttachedMessage) { m.Inline = 16<<10 + 1 }},
		"length":         {change: func(m *wire.AttachedMessage) { m.MaxLength = 256 }},
		"no handle":      {change: func(m *wire.AttachedMessage) { m.Handle = 0 }},
		"no partition":   {change: func(m *wire.AttachedMessage) { m.Status = wire.NoHandle }, is: rdma.ErrNoEndpoint},
		"denied":         {change: func(m *wire.AttachedMessage) { m.Status = wire.Denied }},
		"another secret": {change: truth, name: "other"},
	} {
		secret := []byte("the secret")
		s := lie(t, secret, c.change, obey)
		if c.name == "other" {
			secret = []byte("another one")
		}
		d := open(t, remote.Config{Device: newLocal(t), Name: c.name, Secret: secret})
		dom, err := d.NewDomain()
		check(t, err)
		cq, err := d.NewCompletionQueue(4, nil)
		check(t, err)
		qp, err := d.NewQueuePair(rdma.QueuePairConfig{Domain: dom, SendCQ: cq, RecvCQ: cq, MaxWork: 4})
		check(t, err)
		err = d.Connect(t.Context(), qp, s.l.Addr().String()+"/disk/log", rdma.ConnParams{})
		if (err == nil) != (what == "good") || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v", what, err)
		}
		check(t, qp.Close())
		check(t, cq.Close())
	}
}
