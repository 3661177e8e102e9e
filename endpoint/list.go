package endpoint

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"oneshot/partition/wire"
	"oneshot/transport/rdma"
)

// identify fills in who asks, where the URL does not say it.
func (u *URL) identify(o *Options) error {
	if u.Scheme == Local { // the kernel says who asks
		return nil
	}
	if u.User == "" {
		u.User = o.User
	}
	if len(u.Secret) == 0 {
		u.Secret = o.Secret
	}
	if u.User != "" && len(u.Secret) == 0 {
		return fmt.Errorf("%v has a user without a secret, with which he is proved", u)
	}
	return nil
}

// List asks the service at url (ParseServiceURL) which partitions it has for the user of the URL, or of the
// options: those of which he has any right. Of what describes them STag, Base and Aging are not told.
func List(ctx context.Context, url string, o Options) (list []rdma.Endpoint, err error) {
	u, err := ParseServiceURL(url)
	if err == nil {
		err = u.identify(&o)
	}
	if err != nil {
		return nil, err
	}
	below, release, err := deviceOf(u, o)
	if err != nil {
		return nil, err
	}
	l := &lister{u: u, gone: make(chan error, 1), event: make(chan struct{}, 1)}
	if err = l.open(ctx, below); err == nil {
		list, err = l.list(ctx)
	}
	if err = errors.Join(err, l.close(), release()); err != nil {
		return nil, fmt.Errorf("list %v: %w", u, err)
	}
	return list, nil
}

// lister is a connection of List. One message is under way at a time.
type lister struct {
	u      URL
	dom    rdma.Domain
	cq     rdma.CompletionQueue
	qp     rdma.QueuePair
	memory []byte // what comes, and from half on what goes
	free   func([]byte) error
	region rdma.Region
	gone   chan error    // capacity 1
	event  chan struct{} // capacity 1
}

const (
	listMemory = 4096
	// maxListed bounds what a service can make List hold; there are no more endpoints of a target.
	maxListed = 1 << 16
)

var errForeignService = errors.New("who answers is not a service of partitions, or not one of this version")

func (l *lister) open(ctx context.Context, d rdma.Device) (err error) {
	if l.dom, err = d.NewDomain(); err != nil {
		return err
	}
	if l.memory, l.free, err = rdma.Alloc(d, listMemory); err != nil {
		return err
	}
	if l.region, err = l.dom.Register(l.memory, rdma.AccessLocalWrite); err != nil {
		return err
	}
	l.cq, err = d.NewCompletionQueue(8, func() {
		select {
		case l.event <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return err
	}
	l.qp, err = d.NewQueuePair(rdma.QueuePairConfig{
		Domain: l.dom, SendCQ: l.cq, RecvCQ: l.cq, MaxWork: 4, MaxRecv: 4, Disconnected: func(err error) { l.gone <- err },
	})
	if err != nil {
		return err
	}
	if err := l.receive(); err != nil {
		return err
	}
	return d.Connect(ctx, l.qp, l.u.address(), rdma.ConnParams{PrivateData: []byte(wire.Private)})
}

func (l *lister) close() (err error) {
	if l.qp != nil {
		err = l.qp.Close()
	}
	if l.cq != nil {
		err = errors.Join(err, l.cq.Close())
	}
	if l.region != nil {
		err = errors.Join(err, l.region.Deregister())
	}
	if l.memory != nil {
		err = errors.Join(err, l.free(l.memory))
	}
	if l.dom != nil {
		err = errors.Join(err, l.dom.Close())
	}
	return err
}

func (l *lister) receive() error {
	_, err := l.qp.PostReceive([]rdma.Receive{{SGL: []rdma.SGE{{Bytes: l.memory[:wire.MaxAttached], Region: l.region}}}})
	return err
}

// ask sends a message and returns the answer, which stands until the next one.
func (l *lister) ask(ctx context.Context, message []byte) (answer []byte, err error) {
	n := copy(l.memory[listMemory/2:], message)
	out := rdma.SGE{Bytes: l.memory[listMemory/2:][:n], Region: l.region}
	if _, err := l.qp.Post([]rdma.Work{{Op: rdma.OpSend, Flags: rdma.Signaled, SGL: []rdma.SGE{out}}}); err != nil {
		return nil, err
	}
	nudge := time.NewTicker(rdma.NudgeTime)
	defer nudge.Stop()
	var ended error
	for {
		var cs [4]rdma.Completion
		for _, c := range cs[:l.cq.Poll(cs[:])] {
			switch {
			case c.Status != rdma.StatusOK:
				ended = errors.Join(rdma.ErrDisconnected, c.Err)
			case c.Op == rdma.OpReceive:
				answer = append([]byte(nil), l.memory[:c.Bytes]...)
			}
		}
		switch {
		case answer != nil:
			_ = l.receive() // if the connection has ended, the next question fails
			return answer, nil
		case ended != nil:
			return nil, ended
		case !l.cq.Arm():
			continue
		}
		select {
		case <-l.event:
		case err := <-l.gone:
			ended = errors.Join(rdma.ErrDisconnected, err) // after a last look
		case <-nudge.C:
			if l.u.Scheme == Verbs {
				rdma.Nudge(l.qp)
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("the service does not answer: %w", ctx.Err())
		}
	}
}

// greet is HELLO, and what proves the user.
func (l *lister) greet(ctx context.Context) error {
	g := wire.Greeting{Name: l.u.User}
	_, _ = rand.Read(g.Client[:])
	hello := wire.HelloMessage{Version: wire.Version, Nonce: g.Client, Name: g.Name}
	b, err := l.ask(ctx, hello.AppendTo(nil))
	if err != nil {
		return err
	}
	c, err := wire.ParseChallenge(b)
	if err != nil || c.Status != wire.OK {
		return errors.Join(errForeignService, err)
	}
	if g.Name == "" {
		return nil
	}
	g.Service = c.Nonce
	attach := wire.AttachMessage{}
	attach.Proof = g.ClientProof(l.u.Secret, &attach)
	if b, err = l.ask(ctx, attach.AppendTo(nil)); err != nil {
		return err
	}
	m, err := wire.ParseAttached(b)
	switch {
	case err != nil:
		return errors.Join(errForeignService, err)
	case m.Status == wire.Denied:
		return fmt.Errorf("the service does not know the user %q with this secret", g.Name)
	case m.Status != wire.OK:
		return fmt.Errorf("the service says: %v", m.Status)
	}
	if p := g.ServiceProof(l.u.Secret, &m); !p.Equal(&m.Proof) {
		return errors.New("the service does not know the secret")
	}
	return nil
}

func (l *lister) list(ctx context.Context) (list []rdma.Endpoint, err error) {
	if err := l.greet(ctx); err != nil {
		return nil, err
	}
	for {
		q := wire.Request{Op: wire.List, Offset: uint64(len(list))}
		b, err := l.ask(ctx, q.AppendTo(nil))
		if err != nil {
			return nil, err
		}
		r, data, err := wire.ParseResponse(b)
		if err != nil || r.Op != wire.List || r.Value > maxListed {
			return nil, errors.Join(errForeignService, err)
		}
		before := len(list)
		for len(data) > 0 {
			var e wire.Entry
			if e, data, err = wire.ParseEntry(data); err != nil {
				return nil, errors.Join(errForeignService, err)
			}
			list = append(list, rdma.Endpoint{
				Name: e.Name, UUID: uuidText(e.UUID), Size: int64(e.Size), Unit: int(e.Unit), Rights: rdma.Rights(e.Rights),
				Durability: rdma.Durability(e.Durability),
			})
		}
		if uint64(len(list)) >= r.Value || len(list) == before { // the list may have become shorter meanwhile
			return list, nil
		}
	}
}

// uuidText is the text of a UUID (RFC 9562 §4); empty: there is none.
func uuidText(u [16]byte) string {
	if u == ([16]byte{}) {
		return ""
	}
	s := hex.EncodeToString(u[:])
	return strings.Join([]string{s[:8], s[8:12], s[12:16], s[16:20], s[20:]}, "-")
}
