package mirror

import (
	"errors"

	"oneshot/ha/fabric"
	"oneshot/ha/replica"
	"oneshot/internal/iov"
)

// do does an action of the core.
func (m *Mirror) do(a replica.Action) {
	switch a := a.(type) {
	case *replica.Post:
		m.post(a)
	case *replica.SendAck:
		if c := m.conns[a.To]; c != nil {
			c.send(frameAck, func(c *coder) { c.ack(&a.Ack) }, 0, nil)
		}
	case replica.Send:
		if c := m.conns[a.To]; c != nil {
			if l, ok := a.Msg.(replica.Lend); ok {
				c.theirs = l.Stream
			}
			kind, head := message(a.Msg)
			c.send(kind, head, 0, nil)
		}
	case *replica.SendBeat:
		if c := m.pulse(a.To); c != nil {
			c.beat, c.beaten, c.queued = a.Beat, true, true
		}
	case *replica.SendEcho:
		if c := m.pulse(a.To); c != nil {
			c.sendBeat(frameEcho, func(c *coder) { c.echo(&a.Echo) })
		}
	case replica.Grant:
		m.grant(a.To, a.Stream)
	case replica.Cut:
		m.cut(a.To)
	case replica.Drop:
		if c := m.conns[a.Peer]; c != nil {
			c.end(errors.New("the other node begins anew: it was not heard in time, or its disk is bad or too slow"))
		}
	case replica.Propose:
		m.noteProposal(&a.View)
		m.opts.Views.Propose(a.View)
	case *replica.Answer:
		m.answered(a)
	case replica.Found:
		if v := m.verifying; v != nil && v.id == a.ID {
			v.add(&a)
		}
	case replica.Lost:
		m.lose(&a)
	case replica.Deliver:
		if t := m.tasks.find(a.Req); t != nil {
			c := iov.At(t.op.Segs, int(a.Off-t.op.Off))
			c.CopyIn(m.arena[a.Addr : a.Addr+a.Len])
		}
	default:
		m.work(a)
	}
}

// grant lets a node write into the arena, as a stream, and nobody else by a queue pair.
func (m *Mirror) grant(to replica.ID, stream uint64) {
	m.grants[to] = stream
	c := m.conns[to]
	if c == nil || c.link == nil {
		return
	}
	k, err := m.shared.Grant(c.link, stream)
	if err != nil {
		m.opts.Log.Info("a node of a mirror gets another connection before it writes", "node", to, "reason", err)
		c.close()
		return
	}
	if m.granted = to; k != nil {
		c.send(frameKey, func(c *coder) { c.key(k) }, 0, nil)
	}
}

// cut takes that away. When it returns nothing of the node is placed any more.
func (m *Mirror) cut(to replica.ID) {
	m.grants[to] = 0
	if m.shared != nil && m.granted == to {
		m.shared.Cut()
	}
}

// maxPart is how many bytes of data a frame has, if it has more than one record: the other node goes on with one part while the next is
// on its way, and memory of that size is used again. Granules that are copied have frames of their own: each is acknowledged when it comes, so
// a slow link is not silent for longer than one takes.
const maxPart = 512 << 10

// post sends records, with the data that the other one needs, in one frame or several.
func (m *Mirror) post(a *replica.Post) {
	c := m.conns[a.To]
	if c == nil {
		return
	}
	p := post{stream: a.Stream, bell: a.Bell}
	c.theirs = a.Stream
	for rest, first := a.Recs, true; first || len(rest) > 0; first = false {
		k, n := partOf(rest, a.To)
		p.recs, rest = rest[:k:k], rest[k:]
		if k > 0 {
			p.bell.First = p.recs[0].Seq
		}
		if c.link != nil {
			m.copied += c.place(p.recs)
			c.send(framePost, func(c *coder) { c.post(&p) }, 0, nil)
			p.bell.Start = nil
			continue
		}
		c.send(framePost, func(c *coder) { c.post(&p) }, int(n), func(b []byte) []byte {
			for i := range p.recs {
				if r := &p.recs[i]; r.HasDataFor(a.To) {
					b = append(b, m.arena[r.Addr:r.Addr+r.Len]...)
					if r.Kind == replica.KindResync {
						m.copied += r.Len
					}
				}
			}
			return b
		})
		p.bell.Start = nil // it is with the first
	}
}

// partOf returns how many records go into one frame to a node, and the bytes of their data.
func partOf(recs []replica.Record, to replica.ID) (k int, n int64) {
	for ; k < len(recs); k++ {
		var data int64
		r := &recs[k]
		if r.HasDataFor(to) {
			data = r.Len
		}
		if k > 0 && (n+data > maxPart || data > 0 && r.Kind == replica.KindResync) {
			break
		}
		n += data
	}
	return k, n
}

// connected: a node has a connection, perhaps in the place of one whose end was not noticed.
func (m *Mirror) connected(c *conn) {
	if m.core == nil || m.closing {
		c.close()
		return
	}
	if c.beats {
		m.pulsed(c)
		return
	}
	if old := m.conns[c.peer]; old != nil {
		old.close()
		if old.link != nil { // until it has ended it may place what was pulled
			if late := m.next[c.peer]; late != nil {
				late.close()
			}
			m.next[c.peer] = c
			return
		}
		m.disconnected(old)
	}
	m.conns[c.peer] = c
	close(c.begun)
	m.step(replica.Up{Peer: c.peer})
}

func (m *Mirror) disconnected(c *conn) {
	if m.pulses[c.peer] == c {
		m.pulses[c.peer] = nil
		return
	}
	if m.next[c.peer] == c {
		m.next[c.peer] = nil
		return
	}
	if m.conns[c.peer] != c {
		return
	}
	m.conns[c.peer] = nil
	if p := m.pulses[c.peer]; p != nil { // beats of a node that gets no data would keep it in sync
		p.close()
	}
	m.cut(c.peer)
	for id, p := range m.pulls {
		if p.from == c.peer {
			delete(m.pulls, id)
			m.later(replica.Done{ID: id, Failed: true})
		}
	}
	m.step(replica.Down{Peer: c.peer})
	if next := m.next[c.peer]; next != nil {
		m.next[c.peer] = nil
		m.connected(next)
	}
}

// arrived takes a frame.
func (m *Mirror) arrived(c *conn, f *received) {
	if m.conns[c.peer] != c && (m.pulses[c.peer] != c || m.conns[c.peer] == nil) || m.closing {
		return // of a connection that is over
	}
	switch f.kind {
	case framePost:
		p := &f.post
		if p.stream == 0 || m.grants[c.peer] != p.stream {
			return
		}
		data := f.data
		for i := range p.recs {
			if r := &p.recs[i]; c.link == nil && r.HasDataFor(m.cfg.Self) {
				copy(m.arena[r.Addr:], data[:r.Len])
				data = data[r.Len:]
			}
		}
		m.step(replica.Rang{From: c.peer, Stream: p.stream, Recs: p.recs, Bell: p.bell})
	case framePull:
		p := &f.pull
		if c.link != nil { // its node reads itself
			c.close()
			return
		}
		if p.addr < 0 || p.len <= 0 || p.len > m.cfg.Heap || p.addr > m.cfg.Heap-p.len {
			c.close()
			return
		}
		p.sum = sumOf(m.arena[p.addr : p.addr+p.len])
		c.send(framePulled, func(c *coder) { c.pull(p) }, int(p.len), func(b []byte) []byte { return append(b, m.arena[p.addr:p.addr+p.len]...) })
	case frameKey:
		if c.link == nil {
			c.close()
			return
		}
		c.link.Learn(f.key)
	case framePulled:
		m.pulled(c, &f.pull, f.data)
	case frameAck:
		m.tell(replica.Message{From: c.peer, Msg: f.ack})
	case frameBeat:
		m.step(replica.BeatFrom{From: c.peer, Beat: f.beat})
		m.office.heardOf(c.peer, f.beat.View.Term)
	case frameEcho:
		m.step(replica.EchoFrom{From: c.peer, Echo: f.echo})
	default:
		m.step(replica.Message{From: c.peer, Msg: f.msg})
	}
}

// pulling is a Pull that has not come yet.
type pulling struct {
	from      replica.ID
	addr, len int64
}

// pull reads another node's memory.
func (m *Mirror) pull(a *replica.Pull) {
	c := m.conns[a.From]
	if c == nil {
		m.later(replica.Done{ID: a.ID, Failed: true})
		return
	}
	w := pulling{a.From, a.Addr, a.Len}
	m.pulls[a.ID] = w
	p := pull{id: a.ID, addr: a.Addr, len: a.Len}
	if c.link == nil {
		c.send(framePull, func(c *coder) { c.pull(&p) }, 0, nil)
		return
	}
	if c.fetch(fabric.Run{Addr: a.Addr, Len: a.Len, Grant: c.theirs}, func() { m.push(item{call: func() { m.fetched(c, p.id) }}) }) != nil {
		delete(m.pulls, a.ID)
		m.later(replica.Done{ID: a.ID, Failed: true})
	}
}

// fetched: a Pull has been read by RDMA, to its place.
func (m *Mirror) fetched(c *conn, id uint64) {
	w, ok := m.pulls[id]
	if !ok || m.conns[c.peer] != c || m.closing {
		return
	}
	delete(m.pulls, id)
	m.step(replica.Done{ID: id, Sum: sumOf(m.arena[w.addr : w.addr+w.len])})
}

func (m *Mirror) pulled(c *conn, p *pull, data []byte) {
	w, ok := m.pulls[p.id]
	if !ok || w.from != c.peer {
		return
	}
	delete(m.pulls, p.id)
	if int64(len(data)) != w.len || sumOf(data) != p.sum {
		c.close()
		m.step(replica.Done{ID: p.id, Failed: true})
		return
	}
	copy(m.arena[w.addr:], data)
	m.step(replica.Done{ID: p.id, Sum: p.sum})
}
