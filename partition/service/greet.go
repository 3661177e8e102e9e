package service

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"oneshot/mem"
	"oneshot/partition/wire"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/local"
)

var errTurn = errors.New("a message that is not due")

// greeted handles a message of the greeting: HELLO, ATTACH, and LIST and INFO before there is a handle.
func (c *conn) greeted(b []byte, x *rdma.Completion) {
	o, isAnswer, err := wire.Kind(b)
	switch {
	case err != nil:
		c.violation(err)
	case x.Flags != 0:
		c.violation(errors.New("a greeting that advertises memory, or ends some"))
	case isAnswer || c.busy || (o == wire.Hello) != (c.phase == wantHello):
		c.violation(errTurn)
	case o == wire.Hello:
		c.greetHello(b)
	case o == wire.Attach:
		c.greetAttach(b)
	case o == wire.List || o == wire.Info:
		r, data, err := wire.ParseRequest(b)
		if err != nil {
			c.violation(err)
			return
		}
		c.reply(c.list(&r, data))
	default:
		c.violation(errTurn)
	}
}

// reply sends a message of the greeting. The client sends its next one when it has this one. If it does not take what it is sent, the
// service takes no more of it.
func (c *conn) reply(b []byte) {
	if c.dead {
		return
	}
	c.next = !c.attached
	c.unsent++
	out := c.far.sge(c.page, pageOut+c.replies%pageOuts*(mem.PageSize-pageOut)/pageOuts, len(b))
	c.replies++
	copy(out.Bytes, b)
	c.queue(rdma.Work{ID: idGreet, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: []rdma.SGE{out}}, nil)
}

func (c *conn) greetHello(b []byte) {
	m, err := wire.ParseHello(b)
	if err != nil {
		c.violation(err)
		return
	}
	c.hello.Name, c.hello.Client = m.Name, m.Nonce
	_, _ = rand.Read(c.hello.Service[:])
	answer := wire.ChallengeMessage{Nonce: c.hello.Service}
	if m.Version != wire.Version {
		answer.Status = wire.Malformed
		c.leaving = true
	}
	c.phase = wantAttach
	c.reply(answer.AppendTo(nil))
}

// greetAttach checks the proof, and opens the partition in another goroutine.
func (c *conn) greetAttach(b []byte) {
	m, err := wire.ParseAttach(b)
	if err != nil {
		c.violation(err)
		return
	}
	secret := []byte(nil)
	if c.hello.Name != "" {
		known := false
		if c.s.cfg.Secret != nil {
			secret, known = c.s.cfg.Secret(c.hello.Name)
		}
		if !known { // it takes as long as a wrong proof, and is answered as that
			secret = c.hello.Service[:]
		}
		want := c.hello.ClientProof(secret, &m)
		if equal := want.Equal(&m.Proof); !equal || !known {
			c.deny(&m)
			return
		}
		c.id.Name = c.hello.Name
	} else if m.Proof != (wire.Proof{}) {
		c.deny(&m)
		return
	}
	if m.Partition == "" {
		c.replyAttached(&wire.AttachedMessage{Tag: m.Tag}, secret)
		return
	}
	c.busy = true
	c.spawn(func() {
		h, answer, entered := c.attachAndEnter(&m)
		c.mu.Lock()
		c.busy = false
		if entered {
			c.timer.Stop()
		}
		c.replyAttached(answer, secret)
		c.unlock()
		if h != nil && !entered {
			h.close()
		}
	})
}

// attachAndEnter opens a partition and makes the handle usable. If the client has his share of the endpoints or connections, and one of his
// connections is on its way out, it waits for that and tries again: it may be the one that he comes back from.
func (c *conn) attachAndEnter(m *wire.AttachMessage) (h *handle, answer *wire.AttachedMessage, entered bool) {
	who := c.id.Shares()
	for {
		left := c.s.conns.Parting(who[len(who)-1])
		if h == nil {
			h, answer = c.attach(m)
		}
		var why error
		if h != nil {
			c.mu.Lock()
			entered, why = c.enter(h, answer)
			c.unlock()
		}
		if !entered && (h != nil || answer.Status == wire.Busy) && left != nil && !c.isDead() {
			select {
			case <-left:
				continue
			case <-time.After(c.s.limits.Load().StartTimeout):
			}
		}
		if why != nil {
			c.s.refused.Add(1)
			c.s.log.Warn("partition not opened", slog.String("client", c.peer), slog.Any("reason", why))
		}
		if h != nil && !entered {
			answer = &wire.AttachedMessage{Status: wire.Busy, Tag: m.Tag}
		}
		return h, answer, entered
	}
}

// replyAttached answers an ATTACH. With a secret it proves that the service knows it, too.
func (c *conn) replyAttached(m *wire.AttachedMessage, secret []byte) {
	if secret != nil {
		m.Proof = c.hello.ServiceProof(secret, m)
	}
	c.reply(m.AppendTo(nil))
}

// deny answers a wrong proof after Config.Penalty, and ends the connection. No other connection waits for that.
func (c *conn) deny(m *wire.AttachMessage) {
	c.s.log.Warn("client of partitions does not know its secret", slog.String("client", c.peer), slog.String("name", c.hello.Name))
	answer := wire.AttachedMessage{Status: wire.Denied, Tag: m.Tag}
	c.busy = true
	time.AfterFunc(c.s.cfg.Penalty, func() {
		c.spawn(func() {
			c.mu.Lock()
			defer c.unlock()
			c.leaving = true
			c.reply(answer.AppendTo(nil))
		})
	})
}

// enter makes a handle usable, unless there is no place or memory for it: why says whose. The lock is held.
func (c *conn) enter(h *handle, answer *wire.AttachedMessage) (entered bool, why error) {
	if len(c.handles) >= maxHandles || c.dead {
		return false, nil
	}
	if !c.attached {
		if err := c.s.conns.ProveAs(c, c.s.places(), c.id.Shares()); err != nil {
			return false, err
		}
		if err := c.widen(); err != nil {
			return false, err
		}
	}
	for h.number == 0 || c.handles[h.number] != nil {
		h.number = uint32(random())
	}
	answer.Handle = h.number
	c.handles[h.number] = h
	return true, nil
}

func random() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return binary.BigEndian.Uint64(b[:])
}

// opening is what openEndpoint needs to know, and what it has opened.
type opening struct {
	opener  Opener
	request Request
	handle  *handle
	direct  atomic.Pointer[direct]
}

type openingKey struct{}

// openEndpoint is the local.Opener of all services: it finds the opening in its context.
func openEndpoint(ctx context.Context, _ string, _ rdma.Rights, gone func(error)) (local.Opened, error) {
	o := ctx.Value(openingKey{}).(*opening)
	h := o.handle
	o.request.Gone = func(err error) {
		h.gone.Store(&err)
		if d := o.direct.Load(); d != nil {
			d.revoke()
		}
		gone(err)
	}
	e, err := o.opener.Open(ctx, o.request)
	if err != nil {
		return local.Opened{}, err
	}
	h.endpoint = e
	h.guards, _ = e.(guarder)
	shut := e.Close
	if e.Lends() {
		h.direct = &direct{medium: e}
		o.direct.Store(h.direct)
		shut = func() {
			h.direct.end()
			e.Close()
		}
	}
	return local.Opened{Medium: e, Info: e.Describe(), Memory: e.Lends(), Age: h.age, Close: shut}, nil
}

// attach opens a partition. Without a handle the message says why.
func (c *conn) attach(m *wire.AttachMessage) (*handle, *wire.AttachedMessage) {
	s := c.s
	answer := &wire.AttachedMessage{Tag: m.Tag}
	refuse := func(st wire.Status) (*handle, *wire.AttachedMessage) {
		answer.Status = st
		return nil, answer
	}
	if !s.await(m.Session, c.client()) || c.isDead() { // else it would take the place of the connection that its client has by now
		return refuse(wire.Busy)
	}
	lineage := s.lineage(m.Session, c.client())
	forgotten := m.Session != 0 && lineage == 0
	if forgotten && rdma.Rights(m.Rights)&rdma.RightSole != 0 {
		return refuse(wire.Replaced) // for all that is known; and he ends nobody
	}
	h := &handle{c: c, client: c.client(), order: rdma.Order(m.Order)}
	qp, err := s.ends.NewQueuePair(rdma.QueuePairConfig{
		Domain: s.near.dom, SendCQ: c.ends, RecvCQ: c.ends, MaxWork: s.cfg.Credits, Order: h.order | rdma.FreeFinish,
	})
	if err != nil {
		return refuse(wire.Busy)
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.limits.Load().StartTimeout)
	defer cancel()
	o := &opening{opener: s.cfg.Opener, handle: h, request: Request{
		Name: m.Partition, Identity: c.id, Want: rdma.Rights(m.Rights), Order: h.order, Via: s.cfg.Device.Limits().Name + " " + c.peer,
		Follows: lineage, Forgotten: forgotten,
	}}
	if err := s.ends.Connect(context.WithValue(ctx, openingKey{}, o), qp, m.Partition, rdma.ConnParams{Rights: rdma.Rights(m.Rights)}); err != nil {
		_ = qp.Close()
		switch {
		case errors.Is(err, rdma.ErrNoEndpoint):
			return refuse(wire.NoHandle)
		case errors.Is(err, rdma.ErrReplaced):
			return refuse(wire.Replaced)
		}
		s.log.Warn("partition not opened", slog.String("client", c.peer), slog.String("partition", m.Partition), slog.Any("reason", err))
		return refuse(wire.Busy)
	}
	h.qp, h.info = qp, *qp.Endpoint()
	for !s.resume(h, m.Session) { // the client has lost that connection, too
		if c.isDead() || !s.await(m.Session, c.client()) {
			_ = qp.Close()
			return refuse(wire.Busy)
		}
	}
	seq := h.endpoint.Sequence()
	stag := h.expose()
	if h.gone.Load() != nil && stag != 0 { // it may have gone before there was an STag to end
		h.direct.revoke()
	}
	*answer = wire.AttachedMessage{
		Tag: m.Tag, Rights: uint32(h.info.Rights), Size: uint64(h.info.Size), Unit: uint32(h.info.Unit), Durability: uint8(h.info.Durability),
		Inline: wire.MaxInline, Credits: uint32(s.cfg.Credits), Durable: seq.Durable(), Sequence: seq.Count(),
		Session: h.session, MaxLength: uint32(s.limit()), AgingMS: uint32(h.info.Aging.Milliseconds()), UUID: uuidOf(h.info.UUID),
		STag: uint32(stag), Known: h.known, Name: h.info.Name,
	}
	return h, answer
}

// client tells clients apart whose sessions are remembered.
func (c *conn) client() string { return c.id.String() }

// await ends the connection of a session whose client has come back on another one, and waits until nothing of it
// is under way any more. False: that takes too long.
func (s *Service) await(session uint64, client string) bool {
	s.mu.Lock()
	h := s.sessions[session]
	s.mu.Unlock()
	if h == nil || h.client != client {
		return true
	}
	h.c.end(errors.New("its client has come back on another connection"))
	select {
	case <-h.closed():
		return true
	case <-time.After(s.limits.Load().StartTimeout):
		return false
	}
}

// list answers LIST and INFO.
func (c *conn) list(r *wire.Request, data []byte) []byte {
	all := c.s.cfg.Opener.List(c.id)
	answer := wire.Response{Op: r.Op, Tag: r.Tag, Credits: uint32(c.s.cfg.Credits), Value: uint64(len(all))}
	var body []byte
	if r.Op == wire.Info {
		answer.Status = wire.NoHandle
		for i := range all {
			if name := string(data); name == all[i].Name || all[i].UUID != "" && name == "uuid:"+all[i].UUID {
				answer.Status = wire.OK
				e := entryOf(&all[i])
				body = e.AppendTo(nil)
				break
			}
		}
	} else {
		for i := r.Offset; i < uint64(len(all)); i++ {
			e := entryOf(&all[i])
			if wire.ResponseLen+len(body)+e.Len() > wire.MaxAttached {
				break
			}
			body = e.AppendTo(body)
		}
	}
	answer.Done = uint32(len(body))
	return append(answer.AppendTo(nil), body...)
}

func entryOf(p *rdma.Endpoint) wire.Entry {
	return wire.Entry{
		UUID: uuidOf(p.UUID), Size: uint64(p.Size), Unit: uint32(p.Unit), Rights: uint8(p.Rights), Durability: uint8(p.Durability), Name: p.Name,
	}
}

// uuidOf returns the octets of a UUID (RFC 9562 §4); zero: there is none.
func uuidOf(s string) (u [16]byte) {
	if b, err := hex.DecodeString(strings.ReplaceAll(s, "-", "")); err == nil && len(b) == len(u) {
		copy(u[:], b)
	}
	return u
}
