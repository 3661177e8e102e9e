package nic_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/card"
)

// device is a nic.Device, or a nic.Lasting.
type device interface {
	rdma.Device
	rdma.Allocator
}

// end is one end of a connection, with one completion queue.
type end struct {
	t    testing.TB
	dev  device
	dom  rdma.Domain
	cq   rdma.CompletionQueue
	qp   rdma.QueuePair
	mem  rdma.Region
	b    []byte
	wake chan struct{}
	gone chan error
	one  [1]rdma.Completion
}

const endLen = 1 << 16

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newEnd(t testing.TB, dev device) *end {
	t.Helper()
	e := &end{t: t, dev: dev, wake: make(chan struct{}, 1), gone: make(chan error, 1)}
	var err error
	e.dom, err = dev.NewDomain()
	check(t, err)
	e.cq, err = dev.NewCompletionQueue(128, func() {
		select {
		case e.wake <- struct{}{}:
		default:
		}
	})
	check(t, err)
	e.qp, err = dev.NewQueuePair(rdma.QueuePairConfig{
		Domain: e.dom, SendCQ: e.cq, RecvCQ: e.cq, MaxWork: 64, MaxRecv: 64, Disconnected: func(err error) { e.gone <- err },
	})
	check(t, err)
	e.b, err = dev.Alloc(endLen)
	check(t, err)
	e.mem, err = e.dom.Register(e.b, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
	check(t, err)
	t.Cleanup(func() {
		check(t, e.qp.Close())
		check(t, e.cq.Close())
		check(t, e.mem.Deregister())
		check(t, dev.Free(e.b))
		check(t, e.dom.Close())
	})
	return e
}

// connect connects a, Host 1, with b.
func connect(t testing.TB, a, b *end, offer *rdma.OneShotOffer) {
	t.Helper()
	l, err := b.dev.Listen("127.0.0.1:0")
	check(t, err)
	done := make(chan error, 1)
	go func() {
		r, err := l.Accept()
		if err == nil {
			err = r.Accept(b.qp, rdma.ConnParams{OneShot: offer})
		}
		done <- err
	}()
	check(t, a.dev.Connect(context.Background(), a.qp, l.Addr().String(), rdma.ConnParams{OneShot: offer}))
	check(t, <-done)
	check(t, l.Close())
}

func (e *end) sge(off, n int) []rdma.SGE {
	return []rdma.SGE{{Bytes: e.mem.Bytes()[off : off+n : off+n], Region: e.mem}}
}

func (e *end) post(ws ...rdma.Work) {
	e.t.Helper()
	if n, err := e.qp.Post(ws); n != len(ws) || err != nil {
		e.t.Fatalf("Post: %d, %v", n, err)
	}
}

func (e *end) receive(id uint64, off, n int) {
	e.t.Helper()
	if n, err := e.qp.PostReceive([]rdma.Receive{{ID: id, SGL: e.sge(off, n)}}); n != 1 || err != nil {
		e.t.Fatalf("PostReceive: %d, %v", n, err)
	}
}

func (e *end) next() rdma.Completion {
	for e.cq.Poll(e.one[:]) == 0 {
		if e.cq.Arm() {
			<-e.wake
		}
	}
	return e.one[0]
}

func (e *end) want(op rdma.Opcode, id uint64) rdma.Completion {
	e.t.Helper()
	c := e.next()
	if c.Status != rdma.StatusOK || c.Op != op || c.ID != id {
		e.t.Fatalf("completion of %v %d: %v (%v); want %v %d", c.Op, c.ID, c.Status, c.Err, op, id)
	}
	return c
}

func (e *end) bad() {
	e.t.Helper()
	if err := <-e.gone; err == nil {
		e.t.Error("the connection ends as if in good order")
	}
}

func oneShot() *rdma.OneShotOffer {
	return &rdma.OneShotOffer{Flags: true, Advertise: true, Close: true, Window: 4}
}

// While Disconnected of one queue pair waits for a lock, its holder gets answers from the card: it may be in Post, which asks for
// STags.
func TestDisconnectedWaits(t *testing.T) {
	socket := serve(t, card.Config{})
	dev := open(t, socket)
	a, b := newEnd(t, dev), newEnd(t, open(t, socket))
	a.gone = make(chan error) // nobody takes it before the end of the test
	connect(t, a, b, nil)
	b.qp.Abort(nil)
	for { // it has come to the driver when Post fails
		_, err := a.qp.Post([]rdma.Work{{Op: rdma.OpSend, SGL: a.sge(0, 1)}})
		if errors.Is(err, rdma.ErrDisconnected) {
			break
		}
	}
	if _, err := dev.CardTime(); err != nil {
		t.Error(err)
	}
	<-a.gone
}

// A card that is told to poll takes what is posted without a sleep, and its counters say so. With one processor it does not poll.
func TestCardPolls(t *testing.T) {
	for _, c := range []struct {
		name       string
		poll       time.Duration
		processors int
		polls      bool
	}{{"polls", time.Hour, 2, true}, {"sleeps", 0, 2, false}, {"one processor", time.Hour, 1, false}} {
		t.Run(c.name, func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(c.processors))
			dev := open(t, serve(t, card.Config{Poll: c.poll}))
			a, b := newEnd(t, dev), newEnd(t, dev)
			connect(t, a, b, nil)
			b.receive(1, 0, 8)
			a.post(rdma.Work{ID: 2, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.sge(0, 8)})
			b.want(rdma.OpReceive, 1)
			a.want(rdma.OpSend, 2)
			n := dev.Counters()
			if (n.PollingFound > 0) != c.polls || (n.Sleeps == 0) != c.polls || n.PollingInVain > 0 {
				t.Errorf("polling has found something %d times, and nothing %d times; %d sleeps", n.PollingFound, n.PollingInVain, n.Sleeps)
			}
		})
	}
}
