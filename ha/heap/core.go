package heap

import (
	"slices"

	"oneshot/ha/heap/wire"
)

// Request is what a client wants. Core and Heap borrow it, and its data, until it is answered.
type Request struct {
	wire.Message
	done chan struct{} // of Heap
}

// Answer is the end of a request.
type Answer struct {
	Request *Request
	Status  wire.Status
	Pointer wire.Pointer // Insert, Update
}

// Work is one step at the store. The next step is asked for when it is done.
type Work struct {
	Flush bool   // make durable what was written
	Off   int64  // else write Data there: whole blocks
	Data  []byte // borrowed until Done
}

// Core is a heap, without its store. One goroutine at a time calls its methods.
type Core struct {
	super  super
	block  int    // octets: what is written begins and ends at a multiple
	memory []byte // the places

	table   [Clients]entry
	slots   map[uint64]int // of table, by client
	starts  []uint64       // a bit for each Unit: a place begins there
	free    [wire.Classes][]int64
	seq     uint64
	carved  int64 // octets of memory that are in places
	planned int64 // the same, with what is staged
	objects int   // places in use
	octets  int64 // of objects

	head  int64  // octets of the journal that are in use
	index uint64 // of the next batch
	dirty map[int64]struct{}
	told  bool // the table has changed since the last checkpoint

	queue   []*Request
	staged  []staged
	busy    map[int64]bool  // places of staged
	senders map[uint64]bool // clients of staged, and of those that wait for staged
	joining map[int]bool    // slots that staged gives to clients

	steps   []Work // of what is under way; the first is being done
	after   func() // when all are done
	answers []Answer
	batch   []byte
}

type staged struct {
	record
	request *Request
}

// maxBatch bounds a batch: those behind it wait for it.
const maxBatch = 512 << 10

// newCore makes an empty heap in memory, which is all zero.
func newCore(s super, block int, memory []byte) *Core {
	return &Core{
		super: s, block: max(block, 512), memory: memory, seq: s.seq, slots: make(map[uint64]int),
		starts: make([]uint64, (len(memory)/wire.Unit+63)/64), dirty: make(map[int64]struct{}),
		busy: make(map[int64]bool), senders: make(map[uint64]bool), joining: make(map[int]bool),
	}
}

// Base returns the address of the memory, Key its STag.
func (c *Core) Base() uint64 { return FirstAddress + uint64(c.super.number)*AddressStep }

// Key returns the STag of the memory.
func (c *Core) Key() uint32 { return c.super.key }

// Submit takes a request that changes something. Its answer comes with Answers.
func (c *Core) Submit(r *Request) { c.queue = append(c.queue, r) }

// Answers returns what has been answered since it was called last.
func (c *Core) Answers() []Answer {
	a := c.answers
	c.answers = nil
	return a
}

// Next returns the next step at the store; false: there is nothing to do, and no request waits.
func (c *Core) Next() (Work, bool) {
	if len(c.steps) > 0 {
		return c.steps[0], true
	}
	c.stageAll()
	if len(c.staged) == 0 {
		return Work{}, false
	}
	c.seal()
	if c.head+int64(len(c.batch)) > journalLen(c.super.size) {
		c.checkpoint() // the batch is written when that is done
		return c.steps[0], true
	}
	c.steps = append(c.steps, Work{Off: journalOff + c.head, Data: c.batch})
	c.after = c.commit
	return c.steps[0], true
}

// Done notes that the step of Next has ended well. If it has not the Core is of no use any more: nobody knows what the store has.
func (c *Core) Done() {
	c.steps[0] = Work{}
	if c.steps = c.steps[1:]; len(c.steps) == 0 {
		c.steps = nil
		after := c.after
		c.after = nil
		after()
	}
}

// Read returns a copy of an object.
func (c *Core) Read(p wire.Pointer) ([]byte, wire.Status) {
	off, s := c.place(p)
	if s != wire.OK {
		return nil, s
	}
	h := wire.HeaderOf(c.memory[off:])
	class, _ := h.Class()
	object, _, s := wire.ReadPlace(c.memory[off:off+int64(wire.PlaceLen(class))], p)
	return slices.Clone(object), s
}

// place returns where the object is that p names.
func (c *Core) place(p wire.Pointer) (int64, wire.Status) {
	switch {
	case p.Key != c.Key():
		return 0, wire.Key
	case p.Addr < c.Base() || p.Addr-c.Base() >= uint64(c.carved):
		return 0, wire.Range
	}
	off := int64(p.Addr - c.Base())
	if off%wire.Unit != 0 || !c.begins(off) {
		return 0, wire.Range
	}
	h := wire.HeaderOf(c.memory[off:])
	if _, ok := h.Class(); !ok {
		return 0, wire.Changing
	}
	if h.State != wire.StateUsed || h.Generation != p.Generation {
		return 0, wire.Stale
	}
	return off, wire.OK
}

func (c *Core) begins(off int64) bool {
	i := off / wire.Unit
	return c.starts[i/64]>>(i%64)&1 != 0
}

// stageAll goes through those who wait: it answers them, or stages what they want. Others wait until what is staged is done.
func (c *Core) stageAll() {
	if len(c.staged) > 0 {
		return // they have waited for a checkpoint
	}
	n := batchLen
	waiting := c.queue[:0]
	for _, r := range c.queue {
		if n+recordLen+len(r.Data)+8 > maxBatch || c.senders[r.Client] {
			waiting = append(waiting, r)
			continue
		}
		rec, s, wait := c.stage(r)
		switch {
		case wait:
			waiting = append(waiting, r)
			c.senders[r.Client] = true // what it has sent later does not go before
		case rec == nil:
			c.answers = append(c.answers, s)
		default:
			c.seq++
			rec.seq = c.seq
			n += rec.len()
			c.staged = append(c.staged, staged{*rec, r})
			c.senders[r.Client] = true
		}
	}
	clear(c.queue[len(waiting):])
	c.queue = waiting
}

// stage says what a request would change; or, without a record, how it has ended; or that it has to wait.
func (c *Core) stage(r *Request) (rec *record, a Answer, wait bool) {
	refuse := func(s wire.Status) (*record, Answer, bool) { return nil, Answer{Request: r, Status: s}, false }
	slot, known := c.slots[r.Client]
	rec = &record{op: r.Op, slot: slot, client: r.Client, number: r.Number, old: noPlace}
	switch {
	case r.Client == 0:
		return refuse(wire.Malformed)
	case r.Op == wire.Join && known:
		return refuse(wire.OK)
	case r.Op == wire.Join:
		if rec.slot = c.oldest(); rec.slot < 0 {
			return nil, Answer{}, true
		}
		c.joining[rec.slot] = true
		rec.number = 0
		return rec, Answer{}, false
	case !known || c.joining[slot]:
		return refuse(wire.Unknown)
	}
	e := &c.table[slot]
	switch {
	case r.Number == 0 || r.Number == e.number && r.Op != e.op:
		return refuse(wire.Malformed)
	case r.Number < e.number:
		return refuse(wire.Old)
	case r.Number == e.number:
		return nil, Answer{Request: r, Pointer: e.pointer}, false
	case len(r.Data) > wire.MaxObject:
		return refuse(wire.TooLong)
	}
	switch r.Op {
	case wire.Insert:
		return c.stageInsert(rec, r)
	case wire.Update, wire.Delete:
	default:
		return refuse(wire.Malformed)
	}
	off, s := c.place(r.Pointer)
	if s != wire.OK {
		return refuse(s)
	}
	if c.busy[off] {
		return nil, Answer{}, true
	}
	h := wire.HeaderOf(c.memory[off:])
	class, _ := h.Class()
	if r.Op == wire.Update && len(r.Data) > int(h.Capacity) {
		rec.old, rec.oldClass, rec.oldGen = off, class, h.Generation
		rec, a, wait = c.stageInsert(rec, r)
		c.busy[off] = rec != nil
		return rec, a, wait
	}
	c.busy[off] = true
	rec.off, rec.class, rec.generation, rec.data = off, class, h.Generation, r.Data
	if r.Op == wire.Delete {
		rec.data = nil
	}
	return rec, Answer{}, false
}

func (c *Core) stageInsert(rec *record, r *Request) (*record, Answer, bool) {
	off, class, ok := c.alloc(wire.ClassOf(len(r.Data)))
	if !ok {
		return nil, Answer{Request: r, Status: wire.Full}, false
	}
	rec.off, rec.class, rec.data = off, class, r.Data
	rec.generation = wire.HeaderOf(c.memory[off:]).Generation + 1
	if rec.generation == 0 { // it is never that of an object
		rec.generation = 1
	}
	return rec, Answer{}, false
}

// alloc takes a place of a class, or of a larger one.
func (c *Core) alloc(class int) (off int64, got int, ok bool) {
	for got = class; got < wire.Classes; got++ {
		if n := len(c.free[got]); n > 0 {
			off = c.free[got][n-1]
			c.free[got] = c.free[got][:n-1]
			return off, got, true
		}
		if n := int64(wire.PlaceLen(class)); got == class && c.planned <= int64(len(c.memory))-n {
			off = c.planned
			c.planned += n
			return off, class, true
		}
	}
	return 0, 0, false
}

// oldest returns the slot for a client that joins: an empty one, or that of the client whose last change is the oldest. -1: those
// have something staged.
func (c *Core) oldest() int {
	found := -1
	for i := range c.table {
		e := &c.table[i]
		if c.joining[i] || c.senders[e.client] && e.client != 0 {
			continue
		}
		if e.client == 0 {
			return i
		}
		if found < 0 || e.seq < c.table[found].seq {
			found = i
		}
	}
	return found
}

// seal makes a batch of what is staged.
func (c *Core) seal() {
	b := append(c.batch[:0], make([]byte, batchLen)...)
	for i := range c.staged {
		b = c.staged[i].appendTo(b)
	}
	c.batch = sealBatch(b, c.super.epoch, c.index, c.block)
}

// commit is when the batch is in the journal.
func (c *Core) commit() {
	c.head += int64(len(c.batch))
	c.index++
	for i := range c.staged {
		s := &c.staged[i]
		p := c.apply(&s.record)
		c.answers = append(c.answers, Answer{Request: s.request, Pointer: p})
	}
	clear(c.staged)
	c.staged = c.staged[:0]
	clear(c.busy)
	clear(c.senders)
	clear(c.joining)
}

// apply makes a change in the memory and the table, and returns the pointer that answers it.
func (c *Core) apply(r *record) (p wire.Pointer) {
	switch r.op {
	case wire.Insert, wire.Update:
		p = wire.Pointer{Addr: c.Base() + uint64(r.off), Key: c.Key(), Generation: r.generation}
		c.write(r.off, r.class, wire.Header{Generation: r.generation, Seq: r.seq, State: wire.StateUsed}, r.data)
		if r.old != noPlace {
			c.release(r.old, r.oldClass, r.oldGen, r.seq)
		}
	case wire.Delete:
		c.release(r.off, r.class, r.generation, r.seq)
	}
	if e := &c.table[r.slot]; e.client != r.client {
		delete(c.slots, e.client)
		c.slots[r.client] = r.slot
	}
	c.table[r.slot] = entry{r.client, r.number, r.seq, p, r.op}
	c.told = true
	return p
}

// write writes a place.
func (c *Core) write(off int64, class int, h wire.Header, object []byte) {
	n := int64(wire.PlaceLen(class))
	h.Capacity = uint32(n - wire.HeaderLen)
	if c.begins(off) {
		c.count(off, -1)
	}
	wire.PutPlace(c.memory[off:off+n], h, object)
	c.count(off, 1)
	c.starts[off/wire.Unit/64] |= 1 << (off / wire.Unit % 64)
	c.carved = max(c.carved, off+n)
	c.planned = max(c.planned, c.carved)
	for p := off / page; p <= (off+wire.HeaderLen+int64(len(object))-1)/page; p++ {
		c.dirty[p] = struct{}{}
	}
}

// count counts the object of a place, if it has one, sign times.
func (c *Core) count(off int64, sign int) {
	if h := wire.HeaderOf(c.memory[off:]); h.State == wire.StateUsed {
		c.objects += sign
		c.octets += int64(sign) * int64(h.Size)
	}
}

// release makes a place free.
func (c *Core) release(off int64, class int, generation uint32, seq uint64) {
	c.write(off, class, wire.Header{Generation: generation, Seq: seq, State: wire.StateFree}, nil)
	c.free[class] = append(c.free[class], off)
}

// maxWrite bounds a write of a checkpoint, in octets.
const maxWrite = 1 << 20

// checkpoint plans one.
func (c *Core) checkpoint() {
	next := c.super
	next.epoch, next.used, next.seq = c.super.epoch+1, c.carved, c.committed()
	c.steps = append(c.steps, Work{Flush: true})
	pages := make([]int64, 0, len(c.dirty))
	for p := range c.dirty {
		pages = append(pages, p)
	}
	slices.Sort(pages)
	for i := 0; i < len(pages); {
		n := 1
		for i+n < len(pages) && pages[i+n] == pages[i]+int64(n) && (n+1)*page <= maxWrite {
			n++
		}
		at := pages[i] * page
		c.steps = append(c.steps, Work{Off: placesOff(c.super.size) + at, Data: c.memory[at : at+int64(n*page)]})
		i += n
	}
	if c.told {
		b := make([]byte, tableLen)
		for i := range c.table {
			c.table[i].put(b[i*entryLen:])
		}
		c.steps = append(c.steps, Work{Off: tableOff, Data: b})
	}
	c.steps = append(c.steps, Work{Flush: true}, Work{Off: superOff(next.epoch), Data: next.encode()}, Work{Flush: true})
	c.after = func() {
		c.super = next
		c.head, c.index, c.told = 0, 0, false
		clear(c.dirty)
	}
}

// committed is the number of the last change that is in the memory.
func (c *Core) committed() uint64 { return c.seq - uint64(len(c.staged)) }
