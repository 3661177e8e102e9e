package sim

import (
	"slices"
	"time"

	"oneshot/ha/replica"
	"oneshot/volume/access"
)

// initiator sends one command after the other. What is not answered in time, or lost with its node, is sent again to
// the next one.
type initiator struct {
	*run
	port       int
	target     int
	n          uint64
	command    *command // nil: it thinks
	pace       time.Duration
	keys       uint64        // so many it has had, to register with
	registered bool          // as far as it knows
	timer      time.Duration // how long it waits for an answer
}

// command is what an initiator wants, over all its attempts.
type command struct {
	kind     int
	block, n int
	atomic   bool
	key      uint64   // of a COMPARE AND WRITE
	write    []uint64 // of one, the same in each attempt
	expect   []uint64
	grow     int64 // the size that a store is to have
	began    time.Duration
	attempt  *attempt
	failures int
	change   *access.Change // PERSISTENT RESERVE OUT; nil: another command
	at       int            // the node to which that goes first
}

const (
	doRead = iota
	doWrite
	doZero
	doSwap
	doFlush
	doGrow
)

// attempt is a command at one node. The node may go on with it when the initiator has given up.
type attempt struct {
	*command
	kind    int // the command's may be another by now
	from    *initiator
	id      uint64
	node    *node
	life    uint32
	over    bool
	write   []uint64
	got     []cell
	floor   []pos // of each block, when it began
	began   time.Duration
	trust   replica.Nodes // of one that compares copies
	reserve bool          // the memory for data is asked for

	nexus            *nexus   // of a write, once its node looks at what its initiator may do; nil: there are no reservations
	term             uint64   // in which it has to take place
	answered, agreed uint64   // of the states of reservations then: the newest that somebody was told of, and the newest
	told             bool     // the core has heard of it
	aborted          []func() // to be called when it has ended
}

// think waits, then draws the next command.
func (i *initiator) think() {
	i.command = nil
	d := i.between(0, i.pace)
	if i.oneIn(8) {
		d *= 6
	}
	i.after(d, func() {
		if i.stopped {
			return
		}
		i.next()
	})
}

func (i *initiator) next() {
	if i.fencing != nil && i.fencing.draws(i) {
		return
	}
	c := &command{kind: doRead, began: i.now, n: 1 + i.r.IntN(6)}
	switch k := i.r.IntN(100); {
	case k < 45:
		c.kind = doWrite
	case k < 50:
		c.kind = doZero
	case k < 62:
		c.kind, c.n = doSwap, 1
	case k < 70:
		c.kind = doFlush
	case k < 71:
		c.kind, c.grow = doGrow, i.size+blockSize*int64(i.r.IntN(4))
		if c.grow > (blocks-inFirst)*blockSize {
			c.grow = i.size
		}
		i.asked = max(i.asked, c.grow)
	}
	c.block = i.r.IntN(inFirst - c.n + 1)
	switch i.r.IntN(8) {
	case 0, 1, 2, 3:
		c.block = i.r.IntN(hot - c.n + 1)
	case 4, 5:
		c.block = inFirst + i.r.IntN(int(i.size/blockSize)-c.n+1)
	}
	c.atomic = c.kind == doWrite && i.oneIn(6)
	i.command = c
	i.Commands++
	if c.kind == doSwap {
		i.n++
		c.key = uint64(i.port)<<32 | i.n
		c.write = i.unique(1)
		c.kind = doRead // what to expect is read first
		c.expect = []uint64{0}
	}
	i.try()
}

// unique draws values that nobody has written before.
func (r *run) unique(n int) []uint64 {
	v := make([]uint64, n)
	for i := range v {
		r.values++
		v[i] = r.values
	}
	return v
}

func (i *initiator) try() {
	c := i.command
	r := i.run
	if c.change != nil {
		r.fencing.try(i)
		return
	}
	r.attempts++
	a := &attempt{command: c, kind: c.kind, from: i, id: r.attempts, node: r.nodes[i.target], began: r.now, write: c.write}
	c.attempt = a
	if c.kind == doWrite {
		a.write = r.unique(c.n) // each attempt is told from the others
		if r.fencing != nil {
			r.fencing.wrote[a.write[0]] = a
		}
	}
	r.open[a.id] = a
	a.floor = make([]pos, c.n)
	for k := range a.floor {
		a.floor[k] = r.floors[c.block+k].pos
	}
	if c.kind == doFlush {
		a.floor = make([]pos, len(r.floors))
		for k := range r.floors {
			a.floor[k] = r.floors[k].acked
		}
	}
	n := a.node
	r.await(evAtHost, n.id, replica.ID(i.port), r.between(50*time.Microsecond, time.Millisecond), func() {
		if n.core == nil {
			i.lost(a, r.between(10*time.Millisecond, 300*time.Millisecond))
			return
		}
		a.life = n.lives
		if r.fencing != nil {
			r.fencing.admit(a)
			return
		}
		n.tell(a.request())
	})
	r.after(i.timer, func() { i.lost(a, 0) })
}

// request is the first event of an attempt.
func (a *attempt) request() replica.Event {
	off, n := offOf(a.block), int64(a.n)*blockSize
	switch a.kind {
	case doRead:
		return replica.Read{ID: a.id, Off: off, Len: n}
	case doZero:
		return replica.Zero{ID: a.id, Off: off, Len: n, Durable: a.id%4 == 0}
	case doFlush:
		return replica.Flush{ID: a.id}
	case doGrow:
		return replica.Grow{ID: a.id, Off: secondOff, Size: a.grow}
	}
	a.reserve = true
	return replica.Reserve{ID: a.id, Len: n}
}

// lost: the attempt has come to nothing; the next one follows.
func (i *initiator) lost(a *attempt, wait time.Duration) {
	if a.over || i.command != a.command {
		return
	}
	a.over = true
	a.failures++
	i.await(evAgain, replica.ID((i.target+1)%len(i.nodes)), replica.ID(i.port), wait, func() {
		if i.command == a.command && a.command.attempt == a {
			i.target = (i.target + 1) % len(i.nodes)
			i.try()
		}
	})
}

// lostNode: the process of a node has ended; its initiators' connections are reset.
func (r *run) lostNode(n *node) {
	for _, i := range r.initiators {
		if c := i.command; c != nil && c.attempt.node == n && c.attempt.life == n.lives {
			i.lost(c.attempt, r.between(time.Millisecond, 30*time.Millisecond))
		}
	}
	for id, s := range r.switches {
		if s.node == n && s.life == n.lives {
			delete(r.switches, id)
		}
	}
	for id, a := range r.open {
		if a.node == n && a.life == n.lives {
			delete(r.open, id)
			if a == r.verifying {
				r.verifyAgain()
			}
		}
	}
}

// answered is an answer of a node's core.
func (r *run) answered(n *node, e *replica.Answer) {
	if s := r.switches[e.ID]; s != nil {
		r.switched(s, e)
		return
	}
	a := r.open[e.ID]
	if a != nil && a == r.verifying {
		r.verified(a, e)
		return
	}
	if a == nil || a.node != n {
		r.fail(1, "node %d answers request %d, which it does not have", n.id, e.ID)
		return
	}
	if a.reserve && e.Status == replica.Good {
		a.reserve = false
		// The data arrives, then the command has its place.
		life, addr := n.lives, e.Addr
		took := r.between(0, time.Millisecond)
		if a.nexus != nil {
			took += r.fencing.fills()
		}
		r.await(evAtHost, n.id, replica.ID(a.from.port), took, func() {
			if n.lives != life || n.core == nil {
				return
			}
			n.cover(func() { a.data(addr) })
		})
		return
	}
	delete(r.open, e.ID)
	if a.nexus != nil {
		defer a.nexus.end(a)
	}
	if e.Status == replica.Moved {
		if !a.over {
			a.from.lost(a, r.between(5*time.Millisecond, 60*time.Millisecond))
		}
		return
	}
	r.checkAnswer(n, a, e)
	if a.kind == doSwap && e.Status == replica.Good {
		r.moment(n, 40)
	}
	delay := r.between(50*time.Microsecond, time.Millisecond)
	if r.oneIn(40) {
		delay = r.between(0, 200*time.Millisecond)
	}
	status := e.Status
	r.await(evAtHost, n.id, replica.ID(a.from.port), delay, func() { a.from.hear(a, status) })
}

// hear takes an answer, which is lost if the node's process has ended in between.
func (i *initiator) hear(a *attempt, status replica.Status) {
	r, c := i.run, a.command
	if a.over || a.node.core == nil || a.node.lives != a.life {
		return
	}
	a.over = true
	if c.kind == doRead && c.key != 0 && status == replica.Good && a.got[0].val != 0 { // of a COMPARE AND WRITE; zeroes come back
		c.kind, c.expect = doSwap, []uint64{a.got[0].val}
		if i.oneIn(5) {
			c.expect[0]++
		}
		i.try()
		return
	}
	r.Completed++
	i.think()
}

// data has arrived in the heap.
func (a *attempt) data(addr int64) {
	n := a.node
	if n.open[a.id] != a {
		return // the memory was taken back
	}
	at := n.heap[addr/blockSize:][:a.n]
	for k := range at {
		at[k] = cell{val: a.write[k]}
	}
	off, length := offOf(a.block), int64(a.n)*blockSize
	if a.kind == doSwap {
		n.tell(replica.Swap{ID: a.id, Key: a.key, Off: off, Len: length, Sum: sum(at)})
		return
	}
	n.tell(replica.Write{ID: a.id, Off: off, Len: length, Sum: sum(at), Atomic: a.atomic, Durable: a.id%4 == 0})
}

// fill takes what a read has found, and matches compares.
func (r *run) fill(req uint64, cells []cell) {
	if a := r.open[req]; a != nil {
		a.got = slices.Clone(cells)
	}
}

// deliver takes a part of that from elsewhere.
func (r *run) deliver(req uint64, block int, cells []cell) {
	if a := r.open[req]; a != nil {
		copy(a.got[block-a.block:], cells)
	}
}

// matches compares with what a disk has; without that, with what was delivered.
func (r *run) matches(req uint64, cells []cell) bool {
	a := r.open[req]
	if a == nil {
		return false
	}
	if cells != nil {
		a.got = slices.Clone(cells)
	}
	return a.expect[0] == a.got[0].val
}
