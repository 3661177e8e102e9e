package sim

import (
	"slices"
	"time"

	"oneshot/ha/replica"
)

// link is the connection of two nodes.
type link struct {
	up      bool
	life    uint64 // another one for each connection
	told    [2]bool
	arrives [2]time.Duration // the last message of each direction
	flying  []flight
}

// flight is a Post on its way.
type flight struct {
	from, to replica.ID
	stream   uint64
	recs     []replica.Record
	data     [][]cell
}

func (r *run) link(a, b replica.ID) *link {
	if a > b {
		a, b = b, a
	}
	return &r.links[a][b]
}

// reaches says whether packets get from a to b.
func (r *run) reaches(a, b replica.ID) bool { return !r.cut[a][b] }

// connect tries to connect two nodes, again and again.
func (r *run) connect(a, b replica.ID) {
	r.after(r.between(5*time.Millisecond, 40*time.Millisecond), func() { r.connect(a, b) })
	if r.mayConnect(a, b) {
		r.connectNow(a, b)
	}
}

// mayConnect says whether two nodes are not connected, know that, and reach each other.
func (r *run) mayConnect(a, b replica.ID) bool {
	l, x, y := r.link(a, b), r.nodes[a], r.nodes[b]
	return !l.up && !l.told[0] && !l.told[1] && x.core != nil && y.core != nil && !x.paused && !y.paused && r.reaches(a, b) && r.reaches(b, a)
}

// connectNow connects two nodes.
func (r *run) connectNow(a, b replica.ID) {
	l, x, y := r.link(a, b), r.nodes[a], r.nodes[b]
	l.up, l.told = true, [2]bool{true, true}
	l.life++
	x.tell(replica.Up{Peer: b})
	y.tell(replica.Up{Peer: a})
}

// breakLink ends a connection. Posts on their way have been placed in part. Each end learns of it within the time.
func (r *run) breakLink(a, b replica.ID, within time.Duration) {
	if a > b {
		a, b = b, a
	}
	l := r.link(a, b)
	if !l.up {
		return
	}
	r.logf("%d and %d are disconnected", a, b)
	l.up = false
	l.life++
	for _, f := range l.flying {
		r.placeSome(&f)
	}
	l.flying = nil
	r.nodes[a].grants[b], r.nodes[b].grants[a] = 0, 0
	for i, ids := range [2][2]replica.ID{{a, b}, {b, a}} {
		n := r.nodes[ids[0]]
		if n.core == nil {
			l.told[i] = false
			continue
		}
		life, at := n.lives, l.life
		r.await(evIsDown, ids[0], ids[1], r.between(0, within), func() {
			if n.lives != life || l.life != at || n.core == nil {
				return
			}
			l.told[i] = false
			n.tell(replica.Down{Peer: ids[1]})
		})
	}
}

// died: the node's process is gone, and its connections with it.
func (r *run) died(n *node, within time.Duration) {
	for _, o := range r.nodes {
		if o == n {
			continue
		}
		r.breakLink(n.id, o.id, within)
		l := r.link(n.id, o.id)
		l.told[b2i(n.id > o.id)] = false
	}
	r.lostNode(n)
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// send delivers over the connection, in order, unless the bytes change on their way.
func (r *run) send(from, to replica.ID, f func()) {
	r.carry(from, to, func() {
		if r.corrupting.hits() {
			r.corrupting.ends(from, to)
			return
		}
		f()
	})
}

// carry has something arrive over the connection, in order.
func (r *run) carry(from, to replica.ID, f func()) {
	l := r.link(from, to)
	if !l.up {
		return
	}
	life := l.life
	r.await(evMessage, to, from, r.arrival(l, from, to), func() {
		if l.life == life {
			f()
		}
	})
}

// arrival draws when the next message arrives.
func (r *run) arrival(l *link, from, to replica.ID) time.Duration {
	dir := b2i(from > to)
	at := r.now + r.between(20*time.Microsecond, 300*time.Microsecond)
	if r.oneIn(200) {
		at += r.between(0, 40*time.Millisecond)
	}
	l.arrives[dir] = max(l.arrives[dir]+1, at)
	return l.arrives[dir] - r.now
}

// post places data in the other node's memory, and rings.
func (r *run) post(n *node, p *replica.Post) {
	l := r.link(n.id, p.To)
	if !l.up {
		return
	}
	f := flight{from: n.id, to: p.To, stream: p.Stream, recs: slices.Clone(p.Recs)}
	for i := range p.Recs {
		var data []cell
		if rec := &p.Recs[i]; rec.HasDataFor(p.To) {
			data = slices.Clone(n.heap[rec.Addr/blockSize : (rec.Addr+rec.Len)/blockSize])
		}
		f.data = append(f.data, data)
	}
	l.flying = append(l.flying, f)
	bell := p.Bell
	r.carry(n.id, p.To, func() {
		// In order: it is the first of its direction that is on its way.
		i := slices.IndexFunc(l.flying, func(g flight) bool { return g.from == n.id })
		l.flying = slices.Delete(l.flying, i, i+1)
		to := r.nodes[f.to]
		if to.grants[n.id] != f.stream || f.stream == 0 {
			return
		}
		r.checkPlaced(to, &f)
		if r.corrupting.hits() {
			r.corrupting.post(&f)
			r.corrupting.ends(n.id, f.to)
			return
		}
		for i := range f.recs {
			copy(to.heap[f.recs[i].Addr/blockSize:], f.data[i])
		}
		to.tell(replica.Rang{From: n.id, Stream: f.stream, Recs: f.recs, Bell: bell})
	})
}

// placeSome places any part of a Post whose connection has ended.
func (r *run) placeSome(f *flight) {
	to := r.nodes[f.to]
	if to.grants[f.from] != f.stream || f.stream == 0 {
		return
	}
	r.checkPlaced(to, f)
	for i := range f.recs {
		for k, c := range f.data[i] {
			if r.oneIn(2) {
				to.heap[int(f.recs[i].Addr/blockSize)+k] = c
			}
		}
	}
}

// datagram delivers perhaps, late, and twice; when the network is at its best, once or twice, and soon.
func (r *run) datagram(from, to replica.ID, f func()) {
	for range 1 + b2i(r.oneIn(100)) {
		if !r.reaches(from, to) || r.mute[from] || r.oneIn(100) && !r.atBest {
			continue
		}
		d := r.between(20*time.Microsecond, 500*time.Microsecond)
		if r.oneIn(100) && !r.atBest {
			d = r.between(0, 300*time.Millisecond)
		}
		lineage := r.lineage
		r.await(evDatagram, to, from, d, func() {
			if n := r.nodes[to]; r.lineage == lineage && (!n.paused || !n.stops) { // a machine that is stopped takes nothing
				f()
			}
		})
	}
}

// setCut cuts one direction, or mends it. What is on its way is lost, so the connection ends as well.
func (r *run) setCut(a, b replica.ID, cut bool) {
	if r.cut[a][b] == cut {
		return
	}
	r.cut[a][b] = cut
	if cut && int(a) < len(r.nodes) && int(b) < len(r.nodes) {
		r.breakLink(a, b, 300*time.Millisecond)
	}
}
