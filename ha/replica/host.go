package replica

import (
	"slices"
	"time"
)

// resultsFor is how long after a takeover an initiator may ask for the end of a COMPARE AND WRITE again.
const resultsFor = 60 * time.Second

// host is what the primary has under way for its host.
type host struct {
	heap    *heap     // for what hosts write
	spare   *heap     // for copying and repairs: writes that wait for a copy to return must not have the memory that it needs
	hungry  []Reserve // wait for memory
	granted []grant   // have it, and wait for their data
	ops     []*op     // wait for a range, the ring or the end of a switch, in order
	swaps   []*op     // have their range, and are compared
	writes  []*op     // have a record, and wait until it is committed
	reads   []*op     // wait for records that they overlap
	reading int       // that the disk has
	proving []*op     // have their result, and wait until it is known to be true
	flushes []*op
	growing []*op  // wait until all of S have grown
	eager   uint64 // the newest record that a Flush follows
	locks   []span
	jobs    []*job
	nextJob uint64
	mends   []*mending
	verify  *verify
	unused  []*op // to be used again
}

// grant is memory of the heap that a request has.
type grant struct {
	id      uint64
	addr, n int64
}

// span is a range that a COMPARE AND WRITE or a job has to itself.
type span struct{ off, n int64 }

type op struct {
	kind      opKind
	id, key   uint64
	off, n    int64
	addr      int64
	sum       uint32
	seq       uint64
	after     uint64 // of a read: the newest record that it may have seen
	beat      uint64 // the first that is sent after the request came
	status    Status
	comparing bool
	delivered bool // what the disk refuses to read has come from others
	atomic    bool
	durable   bool // a flush follows
	dead      bool // answered, though a work is still under way
}

type opKind uint8

const (
	opWrite opKind = iota
	opZero
	opSwap
	opRead
	opFlush
	opGrow
)

// request takes what the host asks for.
func (c *Core) request(e Event) {
	var o *op
	switch e := e.(type) {
	case Cancel:
		c.cancel(e.ID)
		return
	case Verify:
		switch {
		case c.role != Primary:
			c.answer(e.ID, Moved)
			return
		case c.verify != nil:
			c.answer(e.ID, Refused)
			return
		}
		c.verify, c.verified = &verify{Verify: e}, 0
		return
	case Reserve:
		if c.role != Primary {
			c.answer(e.ID, Moved)
			return
		}
		c.hungry = append(c.hungry, e)
		return
	case Write:
		o = c.newOp(op{kind: opWrite, id: e.ID, key: e.Key, off: e.Off, n: e.Len, sum: e.Sum, atomic: e.Atomic, durable: e.Durable})
	case Zero:
		o = c.newOp(op{kind: opZero, id: e.ID, off: e.Off, n: e.Len, durable: e.Durable})
	case Swap:
		o = &op{kind: opSwap, id: e.ID, key: e.Key, off: e.Off, n: e.Len, sum: e.Sum}
	case Grow:
		o = &op{kind: opGrow, id: e.ID, off: e.Off, n: e.Size}
	case Read:
		o = c.newOp(op{kind: opRead, id: e.ID, off: e.Off, n: e.Len, beat: c.beatNo + 1})
	case Flush:
		o = c.newOp(op{kind: opFlush, id: e.ID, seq: c.commit, beat: c.beatNo + 1})
	}
	needs := o.kind == opWrite || o.kind == opSwap
	g, has := c.redeem(o.id)
	o.addr = g.addr
	switch {
	case c.role != Primary:
		c.answer(o.id, Moved)
	case needs && (!has || g.n != o.n):
		panic("replica: a write without memory of its size")
	case o.kind == opRead:
		c.reads = append(c.reads, o)
	case o.kind == opFlush:
		c.flushes = append(c.flushes, o)
		c.wants = o.beat
		c.syncTo = max(c.syncTo, o.seq)
	default:
		c.ops = append(c.ops, o)
	}
}

// cancel forgets a request. One that has its place in the order, or that the disk is reading for, ends by itself.
func (c *Core) cancel(id uint64) {
	if g, ok := c.redeem(id); ok {
		c.release(g.addr, g.n)
	}
	c.hungry = slices.DeleteFunc(c.hungry, func(r Reserve) bool { return r.ID == id })
	for _, list := range [...]*[]*op{&c.ops, &c.reads, &c.proving, &c.flushes} {
		*list = slices.DeleteFunc(*list, func(o *op) bool {
			if o.id != id || o.kind == opSwap || o.kind == opGrow {
				return false
			}
			if o.kind == opWrite {
				c.release(o.addr, o.n)
			}
			c.reuse(o)
			return true
		})
	}
	for i := range c.places {
		if w := &c.places[i].work; w.kind == workRead && w.op != nil && w.op.id == id {
			w.op.dead = true
		}
	}
	for _, m := range c.mends {
		if m.op != nil && m.op.kind == opRead && m.op.id == id {
			m.op.dead = true
		}
	}
}

// Waiting is how many requests of hosts have no answer and no place in the order.
func (c *Core) Waiting() int {
	return len(c.hungry) + len(c.granted) + len(c.ops) + len(c.swaps) + len(c.reads) + len(c.proving) + len(c.flushes)
}

// newOp returns one that is used again when it has been answered.
func (c *Core) newOp(o op) *op {
	if len(c.unused) == 0 {
		c.unused = append(c.unused, new(op))
	}
	n := len(c.unused) - 1
	p := c.unused[n]
	c.unused = c.unused[:n]
	*p = o
	return p
}

// reuse: nothing has the operation any more, for it was answered after its last work. A COMPARE AND WRITE has a repair that
// may know it still.
func (c *Core) reuse(o *op) {
	if o.kind != opSwap {
		c.unused = append(c.unused, o)
	}
}

// redeem takes the memory that was reserved for a request.
func (c *Core) redeem(id uint64) (grant, bool) {
	i := slices.IndexFunc(c.granted, func(g grant) bool { return g.id == id })
	if i < 0 {
		return grant{}, false
	}
	g := c.granted[i]
	c.granted = slices.Delete(c.granted, i, i+1)
	return g, true
}

func (c *Core) answer(id uint64, s Status) { c.answerWith(Answer{ID: id, Status: s}) }

func (c *Core) answerWith(a Answer) { c.out = append(c.out, c.made.answers.add(a)) }

// refuseAll ends everything: the initiators go to another node.
func (c *Core) refuseAll() {
	for _, e := range c.hungry {
		c.answer(e.ID, Moved)
	}
	for _, g := range c.granted {
		c.answer(g.id, Moved)
	}
	for _, list := range [][]*op{c.ops, c.swaps, c.writes, c.reads, c.proving, c.flushes, c.growing} {
		for _, o := range list {
			o.dead = true
			c.answer(o.id, Moved)
		}
	}
	for _, m := range c.mends {
		if m.op != nil && m.op.kind == opRead {
			c.answer(m.op.id, Moved)
		}
	}
	if c.verify != nil {
		c.answer(c.verify.ID, Moved)
	}
	for i := range c.places {
		p := &c.places[i]
		if p.id == 0 || p.work.kind != workRead && p.work.kind != workCompare {
			continue
		}
		if p.work.kind == workRead { // no list has it while the disk reads
			c.answer(p.work.op.id, Moved)
		}
		c.works.forget(p)
	}
	for _, j := range c.jobs {
		j.dead = true
	}
	c.host = host{nextJob: c.nextJob, unused: c.unused}
}

func (c *Core) isLocked(off, n int64) bool {
	return slices.ContainsFunc(c.locks, func(s span) bool { return s.off < off+n && off < s.off+s.n })
}

func (c *Core) unlock(off, n int64) {
	i := slices.Index(c.locks, span{off, n})
	c.locks = slices.Delete(c.locks, i, i+1)
}

// hasRoom says whether the log takes another record: also at the member that has to keep the most.
func (c *Core) hasRoom() bool { return c.hasRoomFor(1) }

func (c *Core) hasRoomFor(n int) bool {
	return !c.sealing && c.log.last()+uint64(n) <= min(c.trim, c.base)+uint64(c.cfg.Ring)
}

// mayWrite says whether there are enough copies. If not, what would write waits until there are.
func (c *Core) mayWrite() bool { return c.view.InSync.Len() >= c.cfg.MinCopies }

// isThrough says whether what writes there is answered when W disks have it.
func (c *Core) isThrough(off int64) bool { return c.storeOf(off).Through }

// isFinal says whether nothing takes a record back, as far as its store promises that.
func (c *Core) isFinal(r *Record) bool {
	return r.Seq <= c.commit && (r.Seq <= c.firm || !c.isThrough(r.Off))
}

// sequence gives memory to those who wait for it, and numbers to what waits for nothing else.
func (c *Core) sequence() {
	fed := 0
	for _, h := range c.hungry {
		addr, ok := c.alloc(c.heap, h.Len)
		if !ok {
			break
		}
		c.granted = append(c.granted, grant{h.ID, addr, h.Len})
		c.answerWith(Answer{ID: h.ID, Addr: addr})
		fed++
	}
	c.hungry = slices.Delete(c.hungry, 0, fed)
	waiting := c.ops[:0]
	for _, o := range c.ops {
		blocked := !c.hasRoom() || !c.mayWrite() || c.isLocked(o.off, o.n) ||
			slices.ContainsFunc(waiting, func(w *op) bool { return w.off < o.off+o.n && o.off < w.off+w.n })
		switch {
		case blocked:
			waiting = append(waiting, o)
		case o.kind == opSwap:
			c.locks = append(c.locks, span{o.off, o.n})
			c.swaps = append(c.swaps, o)
		case o.kind == opGrow:
			c.grow(o)
		default:
			c.record(o)
		}
	}
	clear(c.ops[len(waiting):])
	c.ops = waiting
	c.compare()
}

// record gives an operation its place in the order.
func (c *Core) record(o *op) {
	r := Record{Term: c.view.Term, Seq: c.log.last() + 1, Kind: KindWrite, Off: o.off, Len: o.n, Addr: o.addr, Sum: o.sum, Key: o.key, Atomic: o.atomic}
	if o.kind == opZero {
		r.Kind = KindZero
	}
	o.seq = r.Seq
	if o.durable { // others hear of it with the record; this disk gets the record when that is committed
		c.eager = o.seq
	}
	c.append(r)
	c.writes = append(c.writes, o)
}

// compare reads what swaps compare with, when the disk has the newest.
func (c *Core) compare() {
	for i := 0; i < len(c.swaps); i++ {
		o := c.swaps[i]
		if done := c.resultOf(o.key); done != nil && !c.unapplied(o.off, o.n) {
			c.swaps = slices.Delete(c.swaps, i, i+1)
			i--
			o.seq = done.Seq
			c.endSwap(o, Good)
			continue
		}
		if !o.comparing && c.hasRoom() && !c.unapplied(o.off, o.n) {
			o.comparing = true
			c.out = append(c.out, Compare{ID: c.begin(work{kind: workCompare, op: o, lost: !o.delivered && c.misses(o.off, o.n)}), Req: o.id, Off: o.off, Len: o.n, Delivered: o.delivered})
		}
	}
}

// resultOf: the same port has sent the same command before a takeover, it was done, and nothing has touched the
// range since. Then the bytes are what is wanted, and its own.
func (c *Core) resultOf(key uint64) *Result {
	for i := range c.results {
		if r := &c.results[i]; r.Key == key && r.Term < c.view.Term && c.now-c.took < resultsFor {
			return r
		}
	}
	return nil
}

// Did says, of a primary, whether a Write of a range with that key took place before the takeover, not long ago, and nothing has touched the range since. Whoever has
// sent it, and sends the same again, has not heard of its end. It is asked when a Read of the range was answered that nothing has overtaken.
func (c *Core) Did(key uint64, off, n int64) bool {
	if key == 0 || c.role != Primary {
		return false
	}
	r := c.resultOf(key)
	return r != nil && r.Off == off && r.Len == n
}

// endSwap ends one that writes nothing.
func (c *Core) endSwap(o *op, s Status) {
	c.unlock(o.off, o.n)
	c.release(o.addr, o.n)
	o.status, o.beat = s, c.beatNo+1
	c.wants = o.beat
	c.proving = append(c.proving, o)
}

func (c *Core) compared(o *op, e *Done) {
	if o.dead {
		return
	}
	i := slices.Index(c.swaps, o)
	if e.Equal && !e.Failed && !c.hasRoom() {
		o.comparing = false // compared again when there is room
		return
	}
	c.swaps = slices.Delete(c.swaps, i, i+1)
	switch {
	case e.Failed:
		c.swaps = append(c.swaps, o) // comparing is left set until the range is here
		c.mendFor(o, func(ok bool) {
			o.comparing, o.delivered = false, ok
			if !ok {
				c.swaps = slices.DeleteFunc(c.swaps, func(p *op) bool { return p == o })
				c.endSwap(o, Failed)
			}
		})
	case !e.Equal:
		c.endSwap(o, Miscompare)
	default:
		c.unlock(o.off, o.n)
		c.record(o)
	}
}

// committed answers what W members hold, on their disks where the store writes through.
func (c *Core) committed() {
	before := c.commit
	c.commit = max(c.commit, c.heldByAll(c.inMemoryOf))
	for seq := max(before, c.base) + 1; seq <= min(c.commit, c.log.last()); seq++ {
		c.entry(seq).at = c.now // before that no disk had to have it
	}
	c.firm = max(c.firm, c.securedByAll())
	if slices.ContainsFunc(c.stores, func(s Store) bool { return s.Through }) {
		c.flushed = max(c.flushed, c.firm) // what is answered, and what is read, is durable
	}
	if !c.mayWrite() {
		return
	}
	c.writes = slices.DeleteFunc(c.writes, func(o *op) bool {
		through := c.isThrough(o.off)
		if through {
			c.syncTo = max(c.syncTo, o.seq)
		}
		if o.seq > c.commit || through && o.seq > c.firm {
			return false
		}
		if o.durable {
			c.syncTo = max(c.syncTo, o.seq)
		}
		c.answerWith(Answer{ID: o.id, Seq: o.seq})
		c.reuse(o)
		return true
	})
}

// read starts reads of ranges of which the disk has everything. What is not committed could be taken back.
func (c *Core) read() {
	c.reads = slices.DeleteFunc(c.reads, func(o *op) bool {
		if c.unapplied(o.off, o.n) {
			return false
		}
		c.wants = max(c.wants, o.beat)
		c.out = append(c.out, c.made.reads.add(ReadFor{ID: c.begin(work{kind: workRead, op: o, lost: c.misses(o.off, o.n)}), Req: o.id, Off: o.off, Len: o.n}))
		c.reading++
		return true
	})
}

// MayRead says whether what this node's disk has of a range is what a host may be given that has asked by now, if it is read before anything else
// happens to the core. So such a read needs no request. now is not before any time that the core was told. Where reads are confirmed
// (Config.Confirm), and where the disk misses something, no read is like that.
func (c *Core) MayRead(now time.Duration, off, n int64) bool {
	return c.role == Primary && !c.cfg.Confirm && c.isProvenAt(now, c.beatNo+1) && !c.hasUnapplied(off, n) && !c.misses(off, n)
}

// mendFor has the range of an operation delivered by others, and repaired.
func (c *Core) mendFor(o *op, then func(ok bool)) {
	c.mend(&mending{op: o, off: o.off, n: o.n, until: c.awake() + c.cfg.SlowCopy, then: then})
}

// readDone: the disk has read what a host wants, or refuses to. Then the host gets what others have, and the disk is not asked again: it may
// refuse for good.
func (c *Core) readDone(o *op, failed bool) {
	c.reading--
	if failed && !o.dead {
		c.mendFor(o, func(ok bool) { c.endRead(o, ok) })
		return
	}
	// What goes through is written before it is committed, perhaps while the read went on.
	if c.isThrough(o.off) && c.unapplied(o.off, o.n) {
		o.after = c.newestChange(o.off, o.n)
	}
	c.endRead(o, true)
}

// endRead: the host has what it wants, or nobody can read that.
func (c *Core) endRead(o *op, ok bool) {
	if o.dead {
		c.reuse(o)
		return
	}
	if !ok {
		o.status = Failed
	}
	c.proving = append(c.proving, o)
}

// prove answers what was true when this node was the primary for sure.
func (c *Core) prove() {
	c.proving = slices.DeleteFunc(c.proving, func(o *op) bool {
		if !c.isProven(o.beat) || o.after > min(c.commit, c.firm) {
			return false
		}
		c.answerWith(Answer{ID: o.id, Status: o.status, Seq: o.seq})
		c.reuse(o)
		return true
	})
}

// flush answers what is secured, and asks for a flush now and then.
func (c *Core) flush() {
	if c.now >= c.flushAt+c.cfg.FlushEvery || 2*len(c.entries) > c.cfg.Ring {
		c.flushAt = c.now
		c.syncTo = max(c.syncTo, c.commit)
	}
	to := c.securedByAll()
	c.flushes = slices.DeleteFunc(c.flushes, func(o *op) bool {
		if o.seq > to {
			return false
		}
		c.flushed = max(c.flushed, o.seq)
		c.proving = append(c.proving, o) // another may have answered writes before this came
		return true
	})
}
