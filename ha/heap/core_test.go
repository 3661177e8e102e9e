package heap

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"oneshot/ha/heap/wire"
	"oneshot/internal/rounds"
)

const testSize = MinSize + 1<<20

// disk is a store whose writes are torn between sectors, and lost until they are flushed.
type disk struct {
	data    []byte // all that was written
	medium  []byte // all that was flushed
	pending []Work // written since
}

const sector = 512

func newDisk() *disk { return &disk{data: make([]byte, testSize), medium: make([]byte, testSize)} }

func (d *disk) do(w Work) {
	if w.Flush {
		for _, p := range d.pending {
			copy(d.medium[p.Off:], p.Data)
		}
		d.pending = nil
		return
	}
	w.Data = slices.Clone(w.Data)
	copy(d.data[w.Off:], w.Data)
	d.pending = append(d.pending, w)
}

func (d *disk) read(b []byte, off int64) error {
	copy(b, d.data[off:])
	return nil
}

// tear writes some of the sectors of w.
func tear(rng *rand.Rand, to []byte, w Work) {
	whole := rng.IntN(3)
	for at := 0; at < len(w.Data); at += sector {
		if whole == 0 || whole == 1 && rng.IntN(2) == 0 {
			n := min(sector, len(w.Data)-at)
			copy(to[w.Off+int64(at):], w.Data[at:at+n])
		}
	}
}

// killed is the disk after the process has died while it was writing w; cut: after the power was lost, too.
func (d *disk) killed(rng *rand.Rand, w Work, cut bool) *disk {
	var image []byte
	if cut {
		image = slices.Clone(d.medium)
		for _, p := range d.pending {
			tear(rng, image, p)
		}
	} else {
		image = slices.Clone(d.data)
	}
	if !w.Flush {
		tear(rng, image, w)
	}
	return &disk{data: image, medium: slices.Clone(image)}
}

// seen is what users know of a heap.
type seen struct {
	objects map[wire.Pointer]string
	table   map[uint64]entry
}

// rig is a heap, and what it has to have after each change.
type rig struct {
	t       *testing.T
	rng     *rand.Rand
	d       *disk
	c       *Core
	states  map[uint64]seen // by the number of the last change
	durable uint64          // the last change that was flushed
	told    uint64          // the last change that was answered
	numbers map[uint64]uint64
	gone    []wire.Pointer
}

// seed is that of a test, or ONESHOT_SEED.
func seed(t *testing.T, n uint64) *rand.Rand {
	if s, err := strconv.ParseUint(os.Getenv("ONESHOT_SEED"), 0, 64); err == nil {
		n = s
	}
	t.Logf("ONESHOT_SEED=%d", n)
	return rand.New(rand.NewPCG(n, 1))
}

func newRig(t *testing.T, rng *rand.Rand) *rig {
	r := &rig{t: t, rng: rng, d: newDisk(), states: map[uint64]seen{0: {map[wire.Pointer]string{}, map[uint64]entry{}}}, numbers: map[uint64]uint64{}}
	for _, w := range format(testSize, [24]byte{3, 16: 2, 17: 7}) {
		r.d.do(w)
	}
	r.open(r.d)
	return r
}

// open recovers a heap, and makes its first checkpoint.
func (r *rig) open(d *disk) {
	r.d = d
	r.c = recover1(r.t, d)
	r.run(nil)
}

func recover1(t *testing.T, d *disk) *Core {
	t.Helper()
	c, err := recovered(d.read, testSize, sector, make([]byte, MemoryLen(testSize)))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// run works until there is nothing to do; before each step it calls at.
func (r *rig) run(at func(Work)) []Answer {
	var all []Answer
	for {
		w, ok := r.c.Next()
		if !ok {
			return append(all, r.answered()...)
		}
		if at != nil {
			at(w)
		}
		before := r.c.committed()
		r.d.do(w)
		r.c.Done()
		if w.Flush {
			r.durable = before
		}
		all = append(all, r.answered()...)
	}
}

// answered notes what the heap has after the changes that were answered.
func (r *rig) answered() []Answer {
	list := r.c.Answers()
	for _, a := range list {
		if a.Status != wire.OK {
			continue
		}
		e := r.c.table[r.c.slots[a.Request.Client]]
		if e.seq <= r.told {
			continue // it was done before
		}
		r.told = e.seq
		was := r.states[e.seq-1]
		now := seen{maps.Clone(was.objects), maps.Clone(was.table)}
		q := a.Request
		switch q.Op {
		case wire.Insert:
			now.objects[a.Pointer] = string(q.Data)
		case wire.Update:
			delete(now.objects, q.Pointer)
			now.objects[a.Pointer] = string(q.Data)
		case wire.Delete:
			delete(now.objects, q.Pointer)
		case wire.Join:
			if len(now.table) == Clients {
				oldest := slices.MinFunc(slices.Collect(maps.Values(now.table)), func(a, b entry) int { return int(int64(a.seq - b.seq)) })
				delete(now.table, oldest.client)
			}
		}
		now.table[q.Client] = entry{q.Client, q.Number, e.seq, a.Pointer, q.Op}
		if q.Op == wire.Join {
			now.table[q.Client] = entry{q.Client, 0, e.seq, wire.Pointer{}, q.Op}
		}
		r.states[e.seq] = now
	}
	return list
}

// objects returns all that a heap has.
func objects(t *testing.T, c *Core) map[wire.Pointer]string {
	t.Helper()
	all := map[wire.Pointer]string{}
	var want Stats
	free := int64(len(c.memory))
	for off := int64(0); off < c.carved; {
		h := wire.HeaderOf(c.memory[off:])
		class, ok := h.Class()
		if !ok {
			t.Fatalf("no place at %#x", off)
		}
		if h.State == wire.StateUsed {
			p := wire.Pointer{Addr: c.Base() + uint64(off), Key: c.Key(), Generation: h.Generation}
			b, s := c.Read(p)
			if s != wire.OK {
				t.Fatalf("%v: %v", p, s)
			}
			all[p] = string(b)
			want.Objects, want.Bytes = want.Objects+1, want.Bytes+int64(len(b))
			free -= int64(wire.PlaceLen(class))
		}
		off += int64(wire.PlaceLen(class))
	}
	want.Memory, want.Free = int64(len(c.memory)), free
	if got := c.stats(); got != want && len(c.staged) == 0 { // what is staged may have places already
		t.Fatalf("the heap counts %+v, and has %+v", got, want)
	}
	return all
}

// holds checks that c is as the heap was after some change, from least on.
func (r *rig) holds(c *Core, least uint64, when string) {
	r.t.Helper()
	want, ok := r.states[c.seq]
	if c.seq < least || !ok {
		r.t.Fatalf("%s: the heap is as after change %d, and %d was promised", when, c.seq, least)
	}
	if got := objects(r.t, c); !maps.Equal(got, want.objects) {
		r.t.Fatalf("%s: after change %d: %d objects, want %d, or other bytes", when, c.seq, len(got), len(want.objects))
	}
	got := map[uint64]entry{}
	for _, e := range c.table {
		if e.client != 0 {
			got[e.client] = e
		}
	}
	if !maps.Equal(got, want.table) {
		r.t.Fatalf("%s: after change %d the table of clients is another one", when, c.seq)
	}
	free := 0
	for class, list := range c.free {
		for _, off := range list {
			h := wire.HeaderOf(c.memory[off:])
			if is, _ := h.Class(); is != class || h.State != wire.StateFree {
				r.t.Fatalf("%s: the place at %#x is not free", when, off)
			}
			free++
		}
	}
	places := 0
	for _, w := range c.starts {
		for ; w != 0; w &= w - 1 {
			places++
		}
	}
	if places != free+len(want.objects) {
		r.t.Fatalf("%s: %d places, of which %d are free, for %d objects", when, places, free, len(want.objects))
	}
}

func (r *rig) bytes() []byte {
	n := 1 << r.rng.IntN(16)
	if r.rng.IntN(25) == 0 {
		n = wire.MaxObject
	}
	b := make([]byte, r.rng.IntN(n)+1)
	for i := range b {
		b[i] = byte(r.rng.Uint32())
	}
	return b
}

// request makes one of some client, and reports what it may be answered with besides OK.
func (r *rig) request() *Request {
	client := uint64(r.rng.IntN(6) + 1)
	q := &Request{Message: wire.Message{Client: client}}
	if r.numbers[client] == 0 {
		r.numbers[client] = 1
		q.Op = wire.Join
		return q
	}
	q.Number = r.numbers[client]
	r.numbers[client]++
	q.Op = []wire.Op{wire.Insert, wire.Insert, wire.Update, wire.Update, wire.Delete}[r.rng.IntN(5)]
	now := r.states[r.told].objects
	if q.Op != wire.Insert {
		if len(now) == 0 {
			q.Op = wire.Insert
		} else {
			all := slices.SortedFunc(maps.Keys(now), func(a, b wire.Pointer) int { return int(int64(a.Addr - b.Addr)) })
			q.Pointer = all[r.rng.IntN(len(all))]
		}
	}
	if q.Op != wire.Delete {
		q.Data = r.bytes()
	}
	return q
}

// TestCrash kills the process, or cuts the power, before and in the middle of every step, for as long as some hundred
// changes and several checkpoints take. After each the heap is as it was after one of its changes: after one that was
// answered, or a later one, if the process was killed; after one that was flushed, or a later one, if the power was cut.
func TestCrash(t *testing.T) {
	r := newRig(t, seed(t, 11))
	crashes, checkpoints := 0, uint64(0)
	for range rounds.Of(500, 30) {
		for range r.rng.IntN(4) + 1 {
			r.c.Submit(r.request())
		}
		type image struct {
			d     *disk
			least uint64
			when  string
		}
		var images []image
		r.run(func(w Work) {
			n := 1
			if checkpoints == r.c.super.epoch {
				n = r.rng.IntN(8) / 7 // most steps are batches: one of them in eight
			}
			for range n {
				images = append(images, image{r.d.killed(r.rng, w, false), r.c.committed(), fmt.Sprintf("killed at %d", w.Off)})
				images = append(images, image{r.d.killed(r.rng, w, true), r.durable, fmt.Sprintf("power lost at %d", w.Off)})
			}
		})
		for _, i := range images { // now it is known what the heap had to become
			crashes++
			c := recover1(t, i.d)
			r.holds(c, i.least, i.when)
			// A crash while it recovers changes nothing.
			again := &rig{t: t, rng: r.rng, d: i.d, c: c, states: r.states, told: c.seq}
			at := again.rng.IntN(8)
			for range at {
				w, ok := c.Next()
				if !ok {
					break
				}
				i.d.do(w)
				c.Done()
			}
			if w, ok := c.Next(); ok {
				was := c.seq
				c = recover1(t, i.d.killed(r.rng, w, true))
				if c.seq != was {
					t.Fatalf("%s: the crash while it recovers has changed %d to %d", i.when, was, c.seq)
				}
				r.holds(c, i.least, i.when+", and again while it recovers")
			}
		}
		checkpoints = r.c.super.epoch
	}
	r.holds(r.c, r.told, "at the end")
	t.Logf("%d crashes, %d changes, %d checkpoints", crashes, r.told, checkpoints)
	if !testing.Short() && (checkpoints < 3 || crashes < 100) {
		t.Fatal("too little has happened")
	}
}

// TestModel does random requests, sends some of them again, opens the heap anew, and compares everything with what users know.
func TestModel(t *testing.T) {
	r := newRig(t, seed(t, 12))
	last := map[uint64]Answer{} // of each client
	for range rounds.Of(3000, 200) {
		switch r.rng.IntN(12) {
		case 0: // a retry has the same answer, and changes nothing
			for _, a := range last {
				again := &Request{Message: a.Request.Message}
				was := r.c.seq
				r.c.Submit(again)
				got := r.run(nil)
				if len(got) != 1 || got[0].Status != wire.OK || got[0].Pointer != a.Pointer || r.c.seq != was {
					t.Fatalf("%v again: %v, want %v; change %d after %d", again.Op, got, a, r.c.seq, was)
				}
				break
			}
		case 1: // what was deleted, or has moved, is stale
			if len(r.gone) > 0 {
				p := r.gone[r.rng.IntN(len(r.gone))]
				if b, s := r.c.Read(p); s != wire.Stale {
					t.Fatalf("%v is read after its end: %d octets, %v", p, len(b), s)
				}
			}
		case 2:
			r.open(&disk{data: r.d.data, medium: r.d.medium, pending: r.d.pending})
			r.holds(r.c, r.told, "opened again")
		default:
			before := r.states[r.told].objects
			for range r.rng.IntN(3) + 1 {
				r.c.Submit(r.request())
			}
			for _, a := range r.run(nil) {
				switch a.Status {
				case wire.OK:
					if a.Request.Op != wire.Join {
						last[a.Request.Client] = a
					}
				case wire.Full:
				case wire.Stale: // two of one batch were for one object
				default:
					t.Fatalf("%v: %v", a.Request.Op, a.Status)
				}
			}
			after := r.states[r.told].objects
			for p := range before {
				if _, ok := after[p]; !ok {
					r.gone = append(r.gone, p)
				}
			}
		}
	}
	r.holds(r.c, r.told, "at the end")
	for p, want := range r.states[r.told].objects {
		if b, s := r.c.Read(p); s != wire.OK || string(b) != want {
			t.Fatalf("%v: %v", p, s)
		}
	}
}

// do has a heap do one request.
func (r *rig) do(m wire.Message) Answer {
	r.t.Helper()
	r.c.Submit(&Request{Message: m})
	a := r.run(nil)
	if len(a) != 1 {
		r.t.Fatalf("%d answers to %v", len(a), m.Op)
	}
	return a[0]
}

// TestRefused: each thing that may be wrong with a request has its own answer, and nothing changes.
func TestRefused(t *testing.T) {
	r := newRig(t, seed(t, 13))
	r.do(wire.Message{Op: wire.Join, Client: 7})
	p := r.do(wire.Message{Op: wire.Insert, Client: 7, Number: 1, Data: []byte("one")}).Pointer
	gone := r.do(wire.Message{Op: wire.Insert, Client: 7, Number: 2, Data: []byte("two")}).Pointer
	r.do(wire.Message{Op: wire.Delete, Client: 7, Number: 3, Pointer: gone})
	with := func(change func(*wire.Pointer)) wire.Pointer {
		q := p
		change(&q)
		return q
	}
	pointers := map[wire.Pointer]wire.Status{
		with(func(q *wire.Pointer) { q.Key++ }):                      wire.Key,
		with(func(q *wire.Pointer) { q.Addr-- }):                     wire.Range,
		with(func(q *wire.Pointer) { q.Addr = 0 }):                   wire.Range,
		with(func(q *wire.Pointer) { q.Addr = 1<<64 - 64 }):          wire.Range,
		with(func(q *wire.Pointer) { q.Addr = r.c.Base() + 1<<40 }):  wire.Range,
		with(func(q *wire.Pointer) { q.Addr += 32 }):                 wire.Range,
		with(func(q *wire.Pointer) { q.Addr += uint64(r.c.carved) }): wire.Range,
		with(func(q *wire.Pointer) { q.Generation++ }):               wire.Stale,
		with(func(q *wire.Pointer) { q.Generation = 0 }):             wire.Stale,
		gone:                           wire.Stale,
		{Key: p.Key, Addr: 1 << 63}:    wire.Range,
		{Key: 0, Addr: p.Addr}:         wire.Key,
		{Key: p.Key, Addr: p.Addr - 1}: wire.Range,
	}
	before := r.c.seq
	for q, want := range pointers {
		for _, op := range []wire.Op{wire.Update, wire.Delete} {
			if a := r.do(wire.Message{Op: op, Client: 7, Number: 9, Pointer: q}); a.Status != want {
				t.Errorf("%v of %v: %v, want %v", op, q, a.Status, want)
			}
		}
		if _, s := r.c.Read(q); s != want {
			t.Errorf("read of %v: %v, want %v", q, s, want)
		}
	}
	for _, c := range []struct {
		m    wire.Message
		want wire.Status
	}{
		{wire.Message{Op: wire.Insert, Client: 8, Number: 1}, wire.Unknown},
		{wire.Message{Op: wire.Join, Client: 0}, wire.Malformed},
		{wire.Message{Op: wire.Insert, Client: 7, Number: 2}, wire.Old},
		{wire.Message{Op: wire.Insert, Client: 7, Number: 0}, wire.Malformed},
		{wire.Message{Op: wire.Insert, Client: 7, Number: 3}, wire.Malformed}, // that was a Delete
		{wire.Message{Op: wire.Read, Client: 7, Number: 9}, wire.Malformed},
		{wire.Message{Op: wire.Insert, Client: 7, Number: 9, Data: make([]byte, wire.MaxObject+1)}, wire.TooLong},
	} {
		if a := r.do(c.m); a.Status != c.want {
			t.Errorf("%v %d: %v, want %v", c.m.Op, c.m.Number, a.Status, c.want)
		}
	}
	if r.c.seq != before {
		t.Errorf("what was refused has changed something: %d, %d", before, r.c.seq)
	}
	damaged := r.c.memory[p.Addr-r.c.Base()+wire.HeaderLen:]
	damaged[0] ^= 1
	if _, s := r.c.Read(p); s != wire.Changing {
		t.Errorf("a damaged object: %v", s)
	}
}

// TestFull fills a heap. What was deleted can be used again, by its own generation.
func TestFull(t *testing.T) {
	r := newRig(t, seed(t, 14))
	r.do(wire.Message{Op: wire.Join, Client: 1})
	var all []wire.Pointer
	n := uint64(1)
	for ; ; n++ {
		a := r.do(wire.Message{Op: wire.Insert, Client: 1, Number: n, Data: make([]byte, 60000)})
		if a.Status == wire.Full {
			break
		}
		all = append(all, a.Pointer)
	}
	if want := int(MemoryLen(testSize) / 65536); len(all) != want {
		t.Fatalf("%d objects, want %d", len(all), want)
	}
	if a := r.do(wire.Message{Op: wire.Update, Client: 1, Number: n, Pointer: all[0], Data: make([]byte, 70000)}); a.Status != wire.Full {
		t.Fatalf("an object outgrows its place in a full heap: %v", a.Status)
	}
	r.do(wire.Message{Op: wire.Delete, Client: 1, Number: n, Pointer: all[3]})
	a := r.do(wire.Message{Op: wire.Insert, Client: 1, Number: n + 1, Data: []byte("small")}) // in a place that is too large
	if a.Pointer.Addr != all[3].Addr || a.Pointer.Generation != all[3].Generation+1 {
		t.Fatalf("%v, after %v", a, all[3])
	}
	r.holds(r.c, r.told, "full")
}

// TestForgotten: when there are too many clients, the one whose last change is the oldest is forgotten, and is told.
func TestForgotten(t *testing.T) {
	r := newRig(t, seed(t, 15))
	for i := range uint64(Clients) {
		r.do(wire.Message{Op: wire.Join, Client: i + 1})
	}
	p := r.do(wire.Message{Op: wire.Insert, Client: 1, Number: 1, Data: []byte("x")}).Pointer
	r.do(wire.Message{Op: wire.Join, Client: 5000})
	if a := r.do(wire.Message{Op: wire.Insert, Client: 2, Number: 1}); a.Status != wire.Unknown {
		t.Errorf("the oldest: %v", a.Status)
	}
	if a := r.do(wire.Message{Op: wire.Insert, Client: 1, Number: 1, Data: []byte("x")}); a.Pointer != p {
		t.Errorf("another one: %v, want %v", a, p)
	}
	r.open(r.d)
	r.holds(r.c, r.told, "opened again")
}

// TestOneBatch: what comes at once is written at once; two changes of one object are two batches.
func TestOneBatch(t *testing.T) {
	r := newRig(t, seed(t, 16))
	for i := range uint64(4) {
		r.do(wire.Message{Op: wire.Join, Client: i + 1})
	}
	p := r.do(wire.Message{Op: wire.Insert, Client: 1, Number: 1, Data: []byte("x")}).Pointer
	for i := range uint64(4) {
		r.c.Submit(&Request{Message: wire.Message{Op: wire.Insert, Client: i + 1, Number: 2, Data: []byte{byte(i)}}})
	}
	steps := 0
	if n := len(r.run(func(Work) { steps++ })); steps != 1 || n != 4 {
		t.Errorf("%d steps, %d answers", steps, n)
	}
	for i := range uint64(2) {
		r.c.Submit(&Request{Message: wire.Message{Op: wire.Update, Client: i + 1, Number: 3, Pointer: p, Data: []byte{byte(i)}}})
	}
	steps = 0
	if n := len(r.run(func(Work) { steps++ })); steps != 2 || n != 2 {
		t.Errorf("%d steps, %d answers", steps, n)
	}
	if b, _ := r.c.Read(p); !bytes.Equal(b, []byte{1}) {
		t.Errorf("% x", b)
	}
}

// TestNotBefore: nobody sees a change before it is in the journal.
func TestNotBefore(t *testing.T) {
	r := newRig(t, seed(t, 17))
	r.do(wire.Message{Op: wire.Join, Client: 1})
	p := r.do(wire.Message{Op: wire.Insert, Client: 1, Number: 1, Data: []byte("old")}).Pointer
	r.c.Submit(&Request{Message: wire.Message{Op: wire.Update, Client: 1, Number: 2, Pointer: p, Data: []byte("new")}})
	r.run(func(Work) {
		if b, s := r.c.Read(p); s != wire.OK || string(b) != "old" {
			t.Errorf("%q, %v", b, s)
		}
		if len(r.c.answers) > 0 {
			t.Error("it is answered")
		}
	})
	if b, _ := r.c.Read(p); string(b) != "new" {
		t.Errorf("%q", b)
	}
}

// TestForeign: what is no heap is left alone.
func TestForeign(t *testing.T) {
	d := newDisk()
	if is, err := isNew(d.read); !is || err != nil {
		t.Errorf("an empty store: %v, %v", is, err)
	}
	d.data[100000] = 1
	if is, err := isNew(d.read); is || err == nil {
		t.Errorf("a store in use: %v, %v", is, err)
	}
	if _, err := recovered(d.read, testSize, sector, make([]byte, MemoryLen(testSize))); err == nil {
		t.Error("it is opened")
	}
}
