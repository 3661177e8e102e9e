package object

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"oneshot/ha/heap/wire"
	"oneshot/transport/rdma"
)

// link is a connection with a node.
type link struct {
	node string
	w    wire.Welcome
	qp   rdma.QueuePair
	cq   rdma.CompletionQueue
	in   rdma.Region // of the answer
	out  rdma.Region // of the request
	peek rdma.Region // of what is read by RDMA Read
	free []func() error
	wake chan struct{}
	gone chan struct{} // closed when the connection has ended
}

var (
	errEnded  = errors.New("the connection has ended")
	errSilent = errors.New("it does not answer")
	errAnswer = errors.New("an answer that cannot be understood")
)

// dial connects with a node and proves who the client is.
func dial(ctx context.Context, dev rdma.Device, node, name string, secret []byte, patience time.Duration) (*link, *wire.Welcome, error) {
	l := &link{node: node, wake: make(chan struct{}, 1), gone: make(chan struct{})}
	err := l.make(dev)
	if err == nil {
		err = dev.Connect(ctx, l.qp, node, rdma.ConnParams{PrivateData: []byte(wire.Private)})
	}
	if err == nil {
		err = l.greet(ctx, name, secret, patience)
	}
	if err != nil {
		return nil, nil, errors.Join(err, l.close())
	}
	return l, &l.w, nil
}

func (l *link) make(dev rdma.Device) error {
	dom, err := dev.NewDomain()
	if err != nil {
		return err
	}
	l.free = append(l.free, dom.Close)
	if l.cq, err = dev.NewCompletionQueue(4, func() {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}); err != nil {
		return err
	}
	l.free = append(l.free, l.cq.Close)
	for _, m := range []struct {
		r *rdma.Region
		n int
	}{{&l.in, wire.MaxMessage}, {&l.out, wire.MaxMessage}, {&l.peek, wire.MaxPlace}} {
		b, free, err := rdma.Alloc(dev, m.n)
		if err != nil {
			return err
		}
		l.free = append(l.free, func() error { return free(b) })
		if *m.r, err = dom.Register(b, rdma.AccessLocalWrite); err != nil {
			return err
		}
		l.free = append(l.free, (*m.r).Deregister)
	}
	if l.qp, err = dev.NewQueuePair(rdma.QueuePairConfig{
		Domain: dom, SendCQ: l.cq, RecvCQ: l.cq, MaxWork: 2, MaxRecv: 1, MaxSGE: 1,
		Disconnected: func(error) { close(l.gone) },
	}); err != nil {
		return err
	}
	l.free = append(l.free, l.qp.Close)
	return nil
}

func (l *link) close() (err error) {
	for _, free := range slices.Backward(l.free) {
		err = errors.Join(err, free())
	}
	return err
}

// greet proves who the client is, and that the node knows that, too.
func (l *link) greet(ctx context.Context, name string, secret []byte, patience time.Duration) error {
	g := wire.Greeting{Name: name}
	_, _ = rand.Read(g.Client[:]) // never fails
	a, err := l.ask(ctx, wire.Message{Op: wire.Hello, Data: wire.HelloData(name, g.Client)}, patience)
	switch {
	case err != nil:
		return err
	case a.Status != wire.OK:
		return fmt.Errorf("the service says: %v", a.Status)
	case len(a.Data) != len(g.Service):
		return errAnswer
	}
	copy(g.Service[:], a.Data)
	var own, want wire.Proof
	if name != "" || len(secret) > 0 {
		own, want = g.Proofs(secret)
	}
	a, err = l.ask(ctx, wire.Message{Op: wire.Prove, Data: own[:]}, patience)
	switch {
	case err != nil:
		return err
	case a.Status == wire.Denied:
		return ErrDenied
	case a.Status != wire.OK:
		return fmt.Errorf("the service says: %v", a.Status)
	}
	if l.w, err = wire.ParseWelcome(a.Data); err != nil {
		return err
	}
	if !l.w.Proof.Equal(&want) {
		return errors.New("the service does not know the secret of the client")
	}
	return nil
}

const (
	idReceive = 1
	idSend    = 2
	idRead    = 3
)

// ask sends a message, and returns the answer, whose data are the caller's. After an error the connection is of no use.
func (l *link) ask(ctx context.Context, m wire.Message, patience time.Duration) (a wire.Message, err error) {
	if _, err := l.qp.PostReceive([]rdma.Receive{{ID: idReceive, SGL: []rdma.SGE{{Bytes: l.in.Bytes(), Region: l.in}}}}); err != nil {
		return a, errEnded
	}
	b := m.AppendTo(l.out.Bytes()[:0])
	if _, err := l.qp.Post([]rdma.Work{{ID: idSend, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: []rdma.SGE{{Bytes: b, Region: l.out}}}}); err != nil {
		return a, errEnded
	}
	var got int
	for need := 2; need > 0; need-- { // the send, and the answer
		c, err := l.await(ctx, patience)
		if err != nil {
			return a, err
		}
		if c.ID == idReceive {
			got = c.Bytes
		}
	}
	if a, err = wire.Parse(l.in.Bytes()[:got]); err != nil || a.Op != m.Op || a.Client != m.Client || a.Number != m.Number {
		return a, errAnswer
	}
	a.Data = slices.Clone(a.Data)
	return a, nil
}

// await waits for a completion.
func (l *link) await(ctx context.Context, patience time.Duration) (rdma.Completion, error) {
	var one [1]rdma.Completion
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		if l.cq.Poll(one[:]) == 1 {
			if one[0].Status != rdma.StatusOK {
				return one[0], fmt.Errorf("%w: %v", errEnded, one[0].Status)
			}
			return one[0], nil
		}
		if !l.cq.Arm() {
			continue
		}
		select {
		case <-l.wake:
		case <-l.gone:
			if l.cq.Poll(one[:]) == 1 && one[0].Status == rdma.StatusOK {
				return one[0], nil
			}
			return one[0], errEnded
		case <-ctx.Done():
			return one[0], ctx.Err()
		case <-timer.C:
			return one[0], errSilent
		}
	}
}
