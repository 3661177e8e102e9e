package replica

import (
	"math/rand/v2"
	"testing"
	"time"
)

// The heap gives no byte to two users, and in the end all of it is one block again.
func TestHeap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	h := newHeap(0, 64*512, 512)
	type block struct{ addr, n int64 }
	var blocks []block
	taken := map[int64]bool{}
	for range 5000 {
		if len(blocks) > 0 && r.IntN(2) == 0 {
			i := r.IntN(len(blocks))
			b := blocks[i]
			blocks[i] = blocks[len(blocks)-1]
			blocks = blocks[:len(blocks)-1]
			for a := b.addr; a < b.addr+b.n; a += 512 {
				delete(taken, a)
			}
			h.release(b.addr, b.n)
			continue
		}
		n := int64(1+r.IntN(9)) * 512
		addr, ok := h.alloc(n)
		if !ok {
			continue
		}
		for a := addr; a < addr+n; a += 512 {
			if taken[a] || a >= 64*512 {
				t.Fatalf("%d bytes at %#x overlap another block", n, addr)
			}
			taken[a] = true
		}
		blocks = append(blocks, block{addr, n})
	}
	other := newHeap(0, 64*512, 512)
	for _, b := range blocks {
		other.claim(b.addr, b.n)
	}
	if other.used != h.used {
		t.Errorf("claimed %d units, allocated were %d", other.used, h.used)
	}
	for _, b := range blocks {
		h.release(b.addr, b.n)
		other.release(b.addr, b.n)
	}
	for _, h := range []*heap{h, other} {
		if _, ok := h.alloc(64 * 512); !ok {
			t.Error("the heap is not one block again")
		}
	}
}

// alone returns a primary without other copies.
func alone(t *testing.T) (*Core, Config) {
	t.Helper()
	cfg := Config{
		Copies: NodesOf(0), Quorum: 2, Stores: []Store{{Size: 64 * 512}}, Granule: 2048, Region: 8192, Heap: 16 * 512, Unit: 512, Ring: 8,
		Heartbeat: 50 * time.Millisecond, Lease: 250 * time.Millisecond, Grace: 350 * time.Millisecond,
		SlowCopy: time.Second, FlushEvery: time.Hour, SaveEvery: 1000 * time.Hour, Copying: 1,
	}
	c := New(cfg, time.Hour, &Memory{}, Saved{})
	view := View{Version: 1, Term: 1, InSync: NodesOf(0), First: 1}
	for range 2 { // then it has proposed itself
		actions := c.Step(time.Hour, Agreed{view})
		if view.Version == 1 {
			view = find[Propose](t, actions).View
		}
		actions = c.Step(time.Hour, Done{ID: find[Save](t, actions).ID}) // of the view
		if len(actions) > 0 {
			t.Fatalf("%+v", actions)
		}
	}
	if s := c.State(); s.Role != Primary || s.View.Term != 2 {
		t.Fatalf("%v", c)
	}
	return c, cfg
}

// find returns the first action of a type.
// as returns an action of a type, which may be behind a pointer.
func as[A Action](a Action) (A, bool) {
	if p, ok := any(a).(*A); ok {
		return *p, true
	}
	v, ok := a.(A)
	return v, ok
}

func find[A Action](t *testing.T, actions []Action) A {
	t.Helper()
	for _, a := range actions {
		if a, ok := as[A](a); ok {
			return a
		}
	}
	var none A
	t.Fatalf("no %T in %+v", none, actions)
	return none
}

// A write without other copies: memory, answer, region, disk, and a read that waits for the disk.
func TestAlone(t *testing.T) {
	c, _ := alone(t)
	now := 2 * time.Hour
	step := func(e Event) []Action { now += time.Millisecond; return c.Step(now, e) }
	if a := find[Answer](t, step(Reserve{ID: 1, Len: 1024})); a.Status != Good {
		t.Fatalf("%+v", a)
	}
	actions := step(Write{ID: 1, Off: 512, Len: 1024, Sum: 7})
	if a := find[Answer](t, actions); a.Status != Good || a.Seq != 1 {
		t.Errorf("the write is answered with %+v", a)
	}
	save := find[Save](t, actions)
	if len(save.Set) != 1 || save.Set[0] != 0 {
		t.Errorf("saves %+v", save)
	}
	for _, a := range step(Read{ID: 2, Off: 0, Len: 1024}) {
		t.Errorf("%T, and the disk does not have the write yet", a)
	}
	apply := find[Apply](t, step(Done{ID: save.ID}))
	read := find[ReadFor](t, step(Done{ID: apply.ID}))
	if a := find[Answer](t, step(Done{ID: read.ID})); a.ID != 2 || a.Status != Good {
		t.Errorf("the read is answered with %+v", a)
	}
	find[Sync](t, step(Flush{ID: 3}))
}

// When the heap is full, a request gets its memory as soon as some is free again.
func TestFullHeap(t *testing.T) {
	c, cfg := alone(t)
	now := 2 * time.Hour
	find[Answer](t, c.Step(now, Reserve{ID: 1, Len: cfg.Heap / 2}))
	find[Answer](t, c.Step(now, Reserve{ID: 2, Len: cfg.Heap / 4})) // the rest is for copies
	if actions := c.Step(now, Reserve{ID: 3, Len: 512}); len(actions) != 0 {
		t.Fatalf("%+v", actions)
	}
	if a := find[Answer](t, c.Step(now, Cancel{ID: 1})); a.ID != 3 || a.Status != Good {
		t.Errorf("%+v", a)
	}
}

// Who does not wait any more leaves nothing, whatever the request has waited for. What the disk reads for it has no answer.
func TestCancel(t *testing.T) {
	c, cfg := alone(t)
	now := 2 * time.Hour
	step := func(e Event) []Action { now += time.Millisecond; return c.Step(now, e) }
	step(Reserve{ID: 1, Len: cfg.Heap / 4})
	step(Write{ID: 1, Len: cfg.Heap / 4}) // is in the order, and its disk has not done it
	step(Reserve{ID: 2, Len: cfg.Heap / 4})
	step(Reserve{ID: 3, Len: cfg.Heap / 4})
	c.cfg.MinCopies = 2
	step(Reserve{ID: 4, Len: cfg.Heap / 4}) // waits for memory
	step(Write{ID: 2, Off: 4096, Len: cfg.Heap / 4})
	step(Zero{ID: 5, Off: 8192, Len: 512})
	step(Read{ID: 6, Len: 512}) // waits for the disk
	step(Flush{ID: 7})
	read := find[ReadFor](t, step(Read{ID: 8, Off: 16384, Len: 512}))
	for _, id := range []uint64{4, 2, 3, 5, 6, 7, 8} {
		for _, a := range step(Cancel{ID: id}) {
			if a, ok := a.(*Answer); ok {
				t.Errorf("request %d is answered when %d is cancelled", a.ID, id)
			}
		}
	}
	for _, a := range step(Done{ID: read.ID}) {
		t.Errorf("%+v, when a read is over that nobody wants", a)
	}
	if n := c.Waiting(); n != 0 {
		t.Errorf("%d requests wait", n)
	}
	if used := c.State().HeapUsed; used != cfg.Heap/4 {
		t.Errorf("%d bytes of the heap are in use, want those of the record, %d", used, cfg.Heap/4)
	}
}

// A set of bits is what a map is, whatever lies between its members.
func TestBits(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var b Bits
	want := map[int]bool{}
	for range 3000 {
		i := r.IntN(2000) + r.IntN(3)<<30
		if r.IntN(3) == 0 {
			b.Clear(i)
			delete(want, i)
		} else {
			b.Set(i)
			want[i] = true
		}
		if !b.Has(i) == want[i] {
			t.Fatalf("%d: %v", i, b.Has(i))
		}
	}
	last := -1
	n := 0
	for i := range b.All() {
		if i <= last || !want[i] {
			t.Fatalf("%d after %d", i, last)
		}
		last = i
		n++
	}
	if n != len(want) || n != b.Len() {
		t.Errorf("%d and %d numbers of %d", n, b.Len(), len(want))
	}
	var sum Bits
	sum.Add(b.Clone())
	sum.Add(Bits{})
	if sum.Len() != n || sum.Empty() {
		t.Errorf("%d numbers after adding %d", sum.Len(), n)
	}
}

// A store grows: region, disk, sync, mark, answer. It does not shrink.
func TestGrow(t *testing.T) {
	c, _ := alone(t)
	now := 2 * time.Hour
	step := func(e Event) []Action { now += time.Millisecond; return c.Step(now, e) }
	if a := find[Answer](t, step(Grow{ID: 1, Size: 512})); a.Status != Refused {
		t.Errorf("a smaller size is answered with %+v", a)
	}
	save := find[Save](t, step(Grow{ID: 2, Size: 128 * 512}))
	apply := find[Apply](t, step(Done{ID: save.ID}))
	if r := apply.Rec; r.Kind != KindGrow || r.Off != 64*512 || r.Len != 64*512 {
		t.Fatalf("%+v", r)
	}
	sync := find[Sync](t, step(Done{ID: apply.ID}))
	mark := find[Save](t, step(Done{ID: sync.ID}))
	if a := find[Answer](t, step(Done{ID: mark.ID})); a.ID != 2 || a.Status != Good {
		t.Errorf("%+v", a)
	}
}
