package volume

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/backend/memory"
	"oneshot/mem"
	"oneshot/volume/access"
)

// abort aborts the request of s, whose operation the store has not returned.
func (s *show) abort(t *testing.T) {
	t.Helper()
	if _, due := s.r.Resume(true); due {
		t.Fatal("an aborted request ends before the store has returned its operation")
	}
}

// aborted is the end of the request that was aborted.
func (s *show) aborted(t *testing.T) {
	t.Helper()
	if next, due := s.r.Resume(true); !due || next != Aborted {
		t.Fatalf("the aborted request: %v, %v", next, due)
	}
	s.r.Settle()
	s.r.Release()
	s.r = nil
}

// What the store still writes for a request that was aborted does not overwrite what is answered later: whoever touches these bytes waits until
// the store has returned it. Nobody else does, not even in the same stripe, while somebody waits.
func TestAbortedWriteIsWaitedFor(t *testing.T) {
	old, other := bytes.Repeat([]byte{1}, 8192), bytes.Repeat([]byte{2}, 4096)
	begin := map[string]func(r *Request, then Step) Next{
		"Write":           func(r *Request, then Step) Next { return r.Write(0, 8192, true, then) },
		"WriteAndVerify":  func(r *Request, then Step) Next { return r.WriteAndVerify(0, 8192, true, then) },
		"WriteSame":       func(r *Request, then Step) Next { return r.WriteSame(0, 8192, 512, false, then) },
		"Erase":           func(r *Request, then Step) Next { return r.Erase([]Range{{0, 8192}}, true, then) },
		"CompareAndWrite": func(r *Request, then Step) Next { return r.CompareAndWrite(0, 4096, false, "", then) },
		"copy": func(r *Request, then Step) Next {
			return r.CopyMemory(8192, func(r *Request) Next { return r.CopyWrite(r.v, 0, 0, 8192, false, then) })
		},
	}
	for name, first := range begin {
		t.Run(name, func(t *testing.T) {
			store, v, unit, namespace, apart := twoShows(t)
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(unit.begin(true, old, first))
			unit.abort(t)
			unit.abort(t) // it may be told twice
			stuck := store.held
			store.held = nil
			must(namespace.write(t, 0, 1, other))
			if len(store.held) != 0 {
				t.Fatal("a write goes to the store beside one that was aborted and is there still")
			}
			reader := newShow(v, 512, unit.holder)
			must(reader.read(t, 3, 1))
			if len(store.held) != 0 {
				t.Error("a read of bytes that are about to change under it goes to the store")
			}
			var beside []*backend.Op
			if name != "CompareAndWrite" { // that holds its stripe for itself anyway
				must(apart.write(t, 2, 1, other))
				if beside = store.held; len(beside) != 1 {
					t.Error("a write of other bytes waits")
				}
			}
			store.held = stuck
			store.complete()
			unit.aborted(t)
			namespace.drive(Wait)
			reader.drive(Wait)
			if len(store.held) != 2 {
				t.Fatalf("%d operations are in the store when the aborted one is over", len(store.held))
			}
			store.complete()
			if _, _, err := namespace.end(t); err != nil {
				t.Error(err)
			}
			if _, _, err := reader.end(t); err != nil {
				t.Error(err)
			}
			if beside != nil { // it was there all the time
				store.held = beside
				store.complete()
				if _, _, err := apart.end(t); err != nil {
					t.Error(err)
				}
			}
			if !bytes.Equal(store.data[:4096], other) {
				t.Error("the aborted write is over the one that was answered")
			}
			must(v.Settled())
		})
	}
}

// Several may bar ranges of one stripe. Who waits for an exclusive place waits for them, and keeps those who come later behind.
func TestAbortedWritesBesideExclusive(t *testing.T) {
	store, v, unit, namespace, other := twoShows(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	block := make([]byte, 4096)
	must(unit.write(t, 0, 8, block))
	must(namespace.write(t, 1, 1, block))
	first, second := store.held[:1:1], store.held[1:2:2]
	store.held = nil
	unit.abort(t)
	namespace.abort(t)
	must(other.begin(true, make([]byte, 8192), func(r *Request, then Step) Next { return r.CompareAndWrite(8192, 4096, false, "", then) }))
	late := newShow(v, 4096, other.holder)
	must(late.write(t, 4, 1, block))
	held := func(want int, when string) {
		t.Helper()
		for _, s := range []*show{other, late} {
			if s.r != nil {
				s.drive(Wait)
			}
		}
		if len(store.held) != want {
			t.Fatalf("%s %d operations are in the store, want %d", when, len(store.held), want)
		}
	}
	held(0, "while both are there")
	store.held = second
	store.complete()
	namespace.aborted(t)
	held(0, "while the first is there")
	store.held = first
	store.complete()
	unit.aborted(t)
	held(1, "when both are over")
	for range 2 { // it reads, then writes
		store.complete()
		other.drive(Wait)
	}
	if _, _, err := other.end(t); err != nil {
		t.Error(err)
	}
	held(1, "in the end")
	if store.held[0].Kind != backend.Write {
		t.Error("the one that came last is not the last")
	}
	store.complete()
	if _, _, err := late.end(t); err != nil {
		t.Error(err)
	}
	must(v.Settled())
}

// What is changed by a command that has been under way for long, and that its host may have given up, does not come over what others have
// written since: what it has begun is waited for, and what it has not is left alone.
func TestLateIsOvertaken(t *testing.T) {
	const size = 3 * eraseBytes
	was := bytes.Repeat([]byte{7}, size)
	block := bytes.Repeat([]byte{2}, 4096)
	for name, first := range map[string]func(r *Request, then Step) Next{
		"one range":    func(r *Request, then Step) Next { return r.Erase([]Range{{0, size}}, true, then) },
		"ranges":       func(r *Request, then Step) Next { return r.Erase([]Range{{0, 4096}, {size - 4096, 4096}}, true, then) },
		"zeroes again": func(r *Request, then Step) Next { return r.WriteSame(0, size, 512, false, then) },
	} {
		for _, at := range []int64{0, size - 4096} {
			for _, overdue := range []int{0, 1, 2} { // operations that are over before
				store := &heldStore{sliceStore: newSliceStore(size)}
				copy(store.data, was)
				v := open(t, Config{Store: store})
				late, other := newShow(v, 512, access.Holder{}), newShow(v, 4096, access.Holder{})
				step := func(s *show) {
					store.complete()
					s.drive(Wait)
				}
				if err := late.begin(true, make([]byte, 512), first); err != nil {
					t.Fatal(err)
				}
				for range overdue {
					step(late)
				}
				late.r.Overdue()
				stuck := store.held
				store.held = nil
				if err := other.write(t, at/4096, 1, block); err != nil {
					t.Fatal(err)
				}
				if len(store.held) > 0 { // it does not wait, and so it is answered
					step(other)
				}
				store.held = stuck
				for !late.ended || !other.ended {
					step(late)
					step(other)
				}
				for _, s := range []*show{late, other} {
					if _, _, err := s.end(t); err != nil && err != ErrOvertaken {
						t.Error(err)
					}
				}
				if !bytes.Equal(store.data[at:at+4096], block) {
					t.Errorf("%s, overdue after %d operations: what was written at %d is gone", name, overdue, at)
				}
				if err := v.Settled(); err != nil || v.tokens.count.Load() != 0 {
					t.Errorf("%s, overdue after %d operations, at %d: %v, %d tokens", name, overdue, at, err, v.tokens.count.Load())
				}
			}
		}
	}
}

// A write that has waited for long bars its range as soon as it is in the store, and is not done if others have been faster.
func TestLateWriteWaits(t *testing.T) {
	for _, overtaken := range []bool{false, true} {
		store, v, unit, namespace, other := twoShows(t)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		fill := func(b byte) []byte { return bytes.Repeat([]byte{b}, 4096) }
		must(unit.write(t, 0, 8, fill(1)))
		unit.abort(t)
		must(namespace.write(t, 0, 1, fill(2)))
		namespace.r.Overdue()
		if overtaken {
			must(other.write(t, 0, 1, fill(3)))
		}
		store.complete()
		unit.aborted(t)
		namespace.drive(Wait)
		stuck := store.held
		store.held = nil
		if !overtaken {
			must(other.write(t, 0, 1, fill(3)))
		}
		other.drive(Wait)
		if overtaken == (len(store.held) == 0) {
			t.Errorf("overtaken %v: %d operations of the other one are in the store", overtaken, len(store.held))
		}
		store.complete()
		other.drive(Wait)
		store.held = stuck
		store.complete()
		if _, _, err := namespace.end(t); overtaken != (err == ErrOvertaken) {
			t.Errorf("overtaken %v: %v", overtaken, err)
		}
		other.drive(Wait)
		store.complete()
		if _, _, err := other.end(t); err != nil {
			t.Error(err)
		}
		if !bytes.Equal(store.data[:4096], fill(3)) {
			t.Error("the late write is over the other one")
		}
		must(v.Settled())
	}
}

// Where nothing was written an abort keeps nobody from anything.
func TestAbortedReadIsNotWaitedFor(t *testing.T) {
	store, v, unit, namespace, _ := twoShows(t)
	if err := unit.read(t, 0, 1); err != nil {
		t.Fatal(err)
	}
	unit.abort(t)
	if err := namespace.write(t, 0, 1, make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	if len(store.held) != 2 {
		t.Error("a write waits for a read that was aborted")
	}
	store.complete()
	unit.aborted(t)
	if _, _, err := namespace.end(t); err != nil {
		t.Error(err)
	}
	if err := v.Settled(); err != nil {
		t.Error(err)
	}
}

// orderStore holds operations, and complains about those that overlap one whose request has given its range up.
type orderStore struct {
	*sliceStore
	t      *testing.T
	held   []*backend.Op
	barred map[*backend.Op]bool
}

func (s *orderStore) Submit(op *backend.Op) bool {
	verifies := op.Kind == backend.Read && op.Done.(*Request).writes // what it has written: it has had the range since then
	for _, o := range s.held {
		if s.barred[o] && !verifies && op.Off < o.Off+o.Len && o.Off < op.Off+op.Len {
			s.t.Errorf("%v of %d bytes at %d goes to the store beside an aborted one at %d", op.Kind, op.Len, op.Off, o.Off)
		}
	}
	s.held = append(s.held, op)
	return false
}

// Whatever requests come, are aborted, or take long, in whatever order the store returns their operations: none goes to the store beside one
// that bars its bytes, and none waits when the store has nothing left.
func TestBarsInAnyOrder(t *testing.T) {
	seed := faulty.Seed(t)
	rnd := rand.New(rand.NewPCG(seed, seed))
	const size, users, rounds, steps = 4 << 20, 8, 20, 400
	pool := mem.NewPool(16 << 20)
	for range rounds {
		store := &orderStore{sliceStore: newSliceStore(size), t: t, barred: make(map[*backend.Op]bool)}
		v := open(t, Config{Store: store})
		all := make([]*show, users)
		aborted := make([]bool, users)
		for i := range all {
			all[i] = &show{v: v, block: 512, pool: pool, data: make([]byte, 8192)}
		}
		drive := func(i int) {
			s := all[i]
			if s.r == nil {
				return
			}
			if next, due := s.r.Resume(aborted[i]); due {
				if next == Aborted {
					s.ended = true
				} else if !s.ended {
					s.drive(next)
				}
			}
			if s.ended {
				s.r.Settle()
				s.r.Release()
				s.r, aborted[i] = nil, false
			}
		}
		begin := func(i int) {
			off, n := 512*rnd.Int64N(64), 512*(1+rnd.Int64N(8))
			off += rnd.Int64N(3) << stripeShift
			if rnd.IntN(8) == 0 {
				off = 1<<stripeShift - 512*rnd.Int64N(8) - 512 // over the end of a stripe
			}
			do := []func(r *Request, then Step) Next{
				func(r *Request, then Step) Next { return r.Read(off, n, n, false, then) },
				func(r *Request, then Step) Next { return r.Write(off, n, false, then) },
				func(r *Request, then Step) Next { return r.Write(off, n, false, then) },
				func(r *Request, then Step) Next { return r.Erase([]Range{{off, n}, {off + 8192, n}}, true, then) },
				func(r *Request, then Step) Next { return r.WriteAndVerify(off, n, true, then) },
				func(r *Request, then Step) Next { return r.CompareAndWrite(off, 512, false, "", then) },
			}[rnd.IntN(6)]
			if err := all[i].begin(true, all[i].data, do); err != nil {
				t.Fatal(err)
			}
			drive(i)
		}
		giveUp := func(i int) {
			s := all[i]
			if s.r == nil || s.r.phase != phaseOp {
				return
			}
			if rnd.IntN(3) == 0 {
				s.r.Overdue()
			} else {
				aborted[i] = true
				if _, due := s.r.Resume(true); due {
					t.Fatal("an aborted request ends before the store has returned its operation")
				}
			}
			store.barred[&s.r.op] = s.r.writes && s.r.hold != holdExclusive
		}
		complete := func() {
			i := rnd.IntN(len(store.held))
			op := store.held[i]
			store.held = slices.Delete(store.held, i, i+1)
			delete(store.barred, op)
			store.sliceStore.Submit(op)
			op.Done.OpDone(op)
			for range 3 { // one may let the next one go on
				for i := range all {
					drive(i)
				}
			}
		}
		for range steps {
			i := rnd.IntN(users)
			switch {
			case all[i].r == nil:
				begin(i)
			case rnd.IntN(3) == 0:
				giveUp(i)
			case len(store.held) > 0:
				complete()
			}
		}
		for len(store.held) > 0 {
			complete()
		}
		for i, s := range all {
			if drive(i); s.r != nil {
				t.Fatalf("request %d waits, in phase %d, and the store has nothing left", i, s.r.phase)
			}
		}
		if v.ranges.queued != (waiting{}) {
			t.Fatal("nobody is in the queue, and it says otherwise")
		}
		if err := v.Settled(); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			return
		}
	}
}

// What the store still writes for a handle that was given up does not overwrite what is answered later, and what waits for its range, or comes
// later, is not done.
func TestGivenUpHandle(t *testing.T) {
	for _, kind := range []backend.Kind{backend.Write, backend.Discard} {
		store := &heldStore{sliceStore: newSliceStore(1 << 20)}
		v := open(t, Config{Store: store})
		former, next := v.Open(nil), v.Open(nil)
		defer former.Close()
		defer next.Close()
		done := make(opDone, 4)
		write := func(h *Handle, kind backend.Kind, off int64, fill byte) *backend.Op {
			op := &backend.Op{Kind: kind, Off: off, Len: 4096, Done: done}
			if kind == backend.Write {
				op.Segs = [][]byte{bytes.Repeat([]byte{fill}, 4096)}
			}
			if h.Submit(op) {
				done <- op
			}
			return op
		}
		write(former, kind, 0, 1)
		write(former, kind, 8192, 1)
		former.GiveUp()
		former.GiveUp()
		stuck := store.held
		store.held = nil
		waits := write(next, backend.Write, 0, 2)
		if len(store.held) != 0 {
			t.Fatal("a write goes to the store beside one that was given up and is there still")
		}
		late := write(former, backend.Write, 4096, 1)
		if <-done; late.Err == nil || len(store.held) != 0 {
			t.Fatal("a handle that was given up writes")
		}
		next.GiveUp() // while it waits
		store.held = stuck
		store.complete()
		for range 3 {
			<-done
		}
		if waits.Err == nil || len(store.held) != 0 {
			t.Error("a write that waited when its handle was given up is done")
		}
		if err := v.Settled(); err != nil {
			t.Error(err)
		}
	}
}

// wholeStore is a store that keeps atomic writes whole itself.
type wholeStore struct{ *heldStore }

func (wholeStore) MaxAtomic() int64 { return 1 << 20 }

// A late command that holds its range for itself does not come over what others have written while its data were on the way either.
func TestLateExclusiveIsOvertaken(t *testing.T) {
	for name, first := range map[string]func(r *Request, then Step) Next{
		"WriteAtomic":     func(r *Request, then Step) Next { return r.WriteAtomic(0, 4096, false, then) },
		"OrWrite":         func(r *Request, then Step) Next { return r.OrWrite(0, 4096, false, then) },
		"CompareAndWrite": func(r *Request, then Step) Next { return r.CompareAndWrite(0, 4096, false, "", then) },
	} {
		for _, at := range []int64{0, 1} {
			store := &heldStore{sliceStore: newSliceStore(1 << 20)}
			v := open(t, Config{Store: wholeStore{store}})
			late, other := newShow(v, 512, access.Holder{}), newShow(v, 4096, access.Holder{})
			newer := bytes.Repeat([]byte{2}, 4096)
			late.r, late.data = new(Request), slices.Concat(newer, bytes.Repeat([]byte{1}, 4096)) // which would be found, and replaced
			late.r.Begin(late, v, 512, mem.MaxLease, false, false)
			if next := first(late.r, func(*Request) Next { return Done }); next != Pull {
				t.Fatal(next)
			}
			late.r.Overdue()
			if err := other.write(t, at, 1, newer); err != nil {
				t.Fatal(err)
			}
			store.complete()
			if _, _, err := other.end(t); err != nil {
				t.Fatal(err)
			}
			late.drive(Pull)
			for range 2 {
				store.complete()
				late.drive(Wait)
			}
			_, _, err := late.end(t)
			if overtaken := at == 0; overtaken != (err == ErrOvertaken) || !overtaken && err != nil {
				t.Errorf("%s beside a write of block %d: %v", name, at, err)
			}
			if got := store.data[at*4096:][:4096]; !bytes.Equal(got, newer) {
				t.Errorf("%s: block %d is %x", name, at, got[:4])
			}
			if err := v.Settled(); err != nil || v.tokens.count.Load() != 0 {
				t.Errorf("%s: %v, %d tokens", name, err, v.tokens.count.Load())
			}
		}
	}
}

// In the queue for its range it has its place, late or not: who comes to write there waits behind it.
func TestLateExclusiveKeepsItsPlace(t *testing.T) {
	for _, early := range []bool{false, true} { // late before it is in the queue
		store, v, unit, namespace, other := twoShows(t)
		fill := func(b byte) []byte { return bytes.Repeat([]byte{b}, 4096) }
		if err := unit.write(t, 0, 8, fill(1)); err != nil {
			t.Fatal(err)
		}
		namespace.r, namespace.data = new(Request), slices.Concat(fill(1), fill(2))
		namespace.r.Begin(namespace, v, 4096, mem.MaxLease, false, false)
		next := namespace.r.CompareAndWrite(0, 4096, false, "", func(*Request) Next { return Done })
		if early {
			namespace.r.Overdue()
		}
		namespace.drive(next)
		namespace.r.Overdue()
		if err := other.write(t, 0, 1, fill(3)); err != nil {
			t.Fatal(err)
		}
		for _, s := range []*show{unit, namespace, other} {
			for store.complete(); !s.ended; store.complete() {
				s.drive(Wait)
			}
			if _, mismatch, err := s.end(t); err != nil || mismatch >= 0 {
				t.Errorf("late before %v: %d, %v", early, mismatch, err)
			}
		}
		if store.data[0] != 3 {
			t.Errorf("late before %v: the block begins with %x", early, store.data[0])
		}
		if err := v.Settled(); err != nil || v.tokens.count.Load() != 0 {
			t.Errorf("%v, %d tokens", err, v.tokens.count.Load())
		}
	}
}

// lateOp is an operation that its owner has had for a while.
type lateOp struct {
	opDone
	guard backend.Guard
}

func (l lateOp) Age() (uint8, backend.Guard) { return OverdueTicks, l.guard }

// handles are two handles of a volume.
type handles struct {
	t           *testing.T
	store       *heldStore
	v           *Volume
	former, now *Handle
	done        opDone
}

func twoHandles(t *testing.T) *handles {
	store := &heldStore{sliceStore: newSliceStore(1 << 20)}
	v := open(t, Config{Store: store})
	hs := &handles{t, store, v, v.Open(nil), v.Open(nil), make(opDone, 8)}
	t.Cleanup(func() {
		if err := v.Settled(); err != nil {
			t.Error(err)
		}
		hs.former.Close()
		hs.now.Close()
	})
	return hs
}

// submit begins an operation of [0, 4096) that puts 8 or 4096 octets of fill there.
func (hs *handles) submit(h *Handle, kind handleKind, fill byte, done backend.Completer) *backend.Op {
	op := &backend.Op{Kind: backend.Write, Len: 4096, Done: done, Segs: [][]byte{bytes.Repeat([]byte{fill}, 4096)}}
	if kind >= kindCompareSwap {
		op.Len, op.Segs = 8, [][]byte{make([]byte, 8)}
	}
	if h.begin(op, kind, 0, uint64(fill)) {
		hs.done <- op
	}
	return op
}

// complete has the store complete what it has, until there are n operations done.
func (hs *handles) complete(n int) {
	for range n {
		for len(hs.done) == 0 {
			if len(hs.store.held) == 0 {
				hs.t.Fatal("an operation is neither in the store nor done")
			}
			held := hs.store.held
			hs.store.held = nil
			for _, op := range held {
				hs.store.sliceStore.Submit(op)
				op.Done.OpDone(op)
			}
		}
		<-hs.done
	}
}

// What the store has been writing for a handle for three seconds does not come on top of what others are told is done: nobody knows
// whether its user is there still.
func TestOverdueHandle(t *testing.T) {
	for _, kind := range []handleKind{kindTransfer, kindFetchAdd} {
		hs := twoHandles(t)
		hs.submit(hs.former, kind, 1, hs.done)
		for range OverdueTicks - 1 {
			hs.former.Tick()
		}
		if kind == kindTransfer {
			hs.submit(hs.now, kind, 2, hs.done)
			if len(hs.store.held) != 2 {
				t.Error("a write waits for one that has just begun")
			}
			stuck := hs.store.held[:1]
			hs.store.held = hs.store.held[1:]
			hs.complete(1)
			hs.store.held = stuck
		}
		hs.former.Tick()
		stuck := hs.store.held
		hs.store.held = nil
		hs.submit(hs.now, kind, 3, hs.done)
		if len(hs.store.held) != 0 {
			t.Error("a write goes to the store beside one that hangs there")
		}
		hs.store.held = stuck
		hs.complete(2)
		if want := map[handleKind]byte{kindTransfer: 3, kindFetchAdd: 4}[kind]; hs.store.data[0] != want {
			t.Errorf("%d, want %d", hs.store.data[0], want)
		}
	}
}

// What has waited for its range so long is not done if others come to change the same octets; if they do not, it is.
func TestOverdueHandleWaits(t *testing.T) {
	for _, kind := range []handleKind{kindTransfer, kindFetchAdd} {
		for _, overtaken := range []bool{false, true} {
			hs := twoHandles(t)
			other := hs.v.Open(nil)
			hs.submit(other, kindTransfer, 1, hs.done)
			other.GiveUp()
			stuck := hs.store.held
			hs.store.held = nil
			late := hs.submit(hs.former, kind, 2, hs.done)
			for range OverdueTicks {
				hs.former.Tick()
			}
			hs.submit(hs.former, kindTransfer, 1, hs.done) // its own are no others
			n := 3
			if overtaken {
				hs.submit(hs.now, kindTransfer, 3, hs.done)
				n++
			}
			if len(hs.store.held) != 0 {
				t.Fatal("somebody does not wait")
			}
			hs.store.held = stuck
			hs.complete(n)
			denied, _ := errors.AsType[*backend.DeniedError](late.Err)
			if isLate := denied != nil && denied.Late; isLate != overtaken {
				t.Errorf("overtaken %v: the late one ends with %v", overtaken, late.Err)
			}
			other.Close()
		}
	}
}

// An operation that its owner has had for long already is treated as one that has waited here.
func TestOverdueBeforeHandle(t *testing.T) {
	lends, err := memory.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []handleKind{kindTransfer, kindFetchAdd, kindCompareSwap} {
		for _, lent := range []bool{false, true} {
			for _, overtaken := range []bool{false, true} {
				hs := twoHandles(t)
				if lent {
					v := open(t, Config{Store: lends})
					hs.v, hs.former, hs.now = v, v.Open(nil), v.Open(nil)
				}
				guard := hs.former.Guard(0, 4096)
				hs.submit(hs.former, kindTransfer, 1, hs.done)
				hs.complete(1)
				if overtaken {
					hs.submit(hs.now, kindTransfer, 2, hs.done)
					hs.complete(1)
				}
				late := hs.submit(hs.former, kind, 3, lateOp{hs.done, guard})
				if stuck := hs.store.held; !overtaken && !lent && kind == kindTransfer {
					hs.store.held = nil
					hs.submit(hs.now, kind, 4, hs.done)
					if len(hs.store.held) != 0 {
						t.Error("a write goes to the store beside one that is late")
					}
					hs.store.held = stuck
					hs.complete(1)
				}
				hs.complete(1)
				guard.Revoke()
				if denied, _ := errors.AsType[*backend.DeniedError](late.Err); (denied != nil && denied.Late) != overtaken {
					t.Errorf("lent %v, overtaken %v: the late one ends with %v", lent, overtaken, late.Err)
				}
				if n := hs.v.tokens.count.Load(); n != 0 {
					t.Errorf("%d tokens are left", n)
				}
			}
		}
	}
}
