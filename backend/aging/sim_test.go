package aging

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/durable"
	"oneshot/backend/faulty"
)

// world is a simulation: events at times, one after the other.
type world struct {
	r      *rand.Rand
	time   time.Duration
	events []event // by time; those of one time in the order in which they were made
	n      int
}

type event struct {
	at  time.Duration
	n   int
	run func()
}

func (w *world) now() time.Duration { return w.time }

func (w *world) call(at time.Duration, f func()) (stop func()) {
	w.n++
	n := w.n
	w.events = append(w.events, event{max(at, w.time), n, f})
	slices.SortFunc(w.events, func(a, b event) int {
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return a.n - b.n
	})
	return func() { w.events = slices.DeleteFunc(w.events, func(e event) bool { return e.n == n }) }
}

// step runs the next event, and reports whether there was one.
func (w *world) step() bool {
	if len(w.events) == 0 {
		return false
	}
	e := w.events[0]
	w.events = w.events[1:]
	w.time = e.at
	e.run()
	return true
}

// slowDisk takes its time. A flush makes durable what had completed when it was submitted, and nothing else.
type slowDisk struct {
	*world
	data, medium []byte
	flush        func() time.Duration
	fail         bool // flushes fail
	flushes      int
	longest      time.Duration
}

func (d *slowDisk) Info() backend.Info {
	return backend.Info{Size: int64(len(d.data)), BlockSize: 512, VolatileCache: true}
}
func (d *slowDisk) Close() error { return nil }

func (d *slowDisk) Submit(op *backend.Op) bool {
	took := time.Duration(d.r.IntN(300)) * time.Microsecond
	var image []byte
	if op.Kind == backend.Flush {
		took = d.flush()
		d.longest = max(d.longest, took)
		image = slices.Clone(d.data)
	}
	done := func() {
		switch {
		case op.Kind == backend.Flush && d.fail:
			op.Err = errors.New("the medium does not answer")
		case op.Kind == backend.Flush:
			d.flushes++
			d.keep(image)
		case op.Kind == backend.Write:
			copy(d.data[op.Off:], op.Segs[0])
			if op.Flags&backend.FUA != 0 {
				copy(d.medium[op.Off:], op.Segs[0])
			}
		}
	}
	if took == 0 {
		done()
		return true
	}
	d.call(d.time+took, func() { done(); op.Done.OpDone(op) })
	return false
}

// keep makes an image durable. Each block is written only once, so a block that is durable already is as new as that
// of the image.
func (d *slowDisk) keep(image []byte) {
	for i := 0; i < len(image); i += 512 {
		if binary.LittleEndian.Uint64(image[i:]) != 0 {
			copy(d.medium[i:i+512], image[i:])
		}
	}
}

type completer func()

func (f completer) OpDone(*backend.Op) { f() }

// A power cut at any time loses nothing that completed longer ago than the window: a thousand power cuts, with
// flushes that are fast, slow, and made by users.
func TestWindow(t *testing.T) {
	seed := faulty.Seed(t)
	cuts, late := 0, 0
	for round := 0; cuts < 1000 || late == 0 && round < 100; round++ {
		w := &world{r: rand.New(rand.NewPCG(seed, uint64(round)))}
		const window = 20 * time.Millisecond
		slow := time.Duration(1 + w.r.IntN(30))
		d := &slowDisk{world: w, data: make([]byte, 400*512), medium: make([]byte, 400*512)}
		d.flush = func() time.Duration { return time.Duration(w.r.Int64N(int64(slow*time.Millisecond))) + 1 }
		s := newStore(d, Config{Window: window, Logger: slog.New(slog.DiscardHandler)}, w).(*Store)
		completed := make([]time.Duration, 400) // of each block; 0: not yet
		var write func(i int)
		write = func(i int) {
			b := make([]byte, 512)
			binary.LittleEndian.PutUint64(b, uint64(i+1))
			op := &backend.Op{Kind: backend.Write, Off: int64(i) * 512, Len: 512, Segs: [][]byte{b}}
			if w.r.IntN(10) == 0 {
				op.Flags = backend.FUA
			}
			done := func() {
				completed[i] = w.time
				if w.r.IntN(12) == 0 {
					f := &backend.Op{Kind: backend.Flush, Done: completer(func() {})}
					s.Submit(f)
				}
				if i+1 < len(completed) {
					w.call(w.time+time.Duration(w.r.IntN(2000))*time.Microsecond*time.Duration(1+w.r.IntN(8)/7*20), func() { write(i + 1) })
				}
			}
			op.Done = completer(done)
			if s.Submit(op) {
				done()
			}
		}
		w.call(1, func() { write(0) })
		for w.step() {
			if w.r.IntN(5) > 0 {
				continue
			}
			cuts++
			bound := window
			if d.longest > window/2 {
				bound = window/2 + 2*d.longest
			}
			for i, at := range completed {
				there := binary.LittleEndian.Uint64(d.medium[i*512:]) != 0
				if at != 0 && !there && w.time > at+bound {
					t.Fatalf("round %d: block %d, which completed at %v, is lost in a power cut at %v: flushes take up to %v", round, i, at, w.time, d.longest)
				}
				if at != 0 && !there && w.time > at+window/2+d.longest {
					late++
				}
			}
		}
		if st := s.AgeStats(); st.Longest != d.longest || st.Flushes == 0 || d.flushes < int(st.Flushes) || st.Lost {
			t.Errorf("%+v, and the longest flush took %v of %d", st, d.longest, d.flushes)
		}
		if !slices.Equal(d.data, d.medium) {
			t.Errorf("round %d: something is never made durable", round)
		}
	}
	if late == 0 {
		t.Error("nothing was ever close to the bound: the test shows little")
	}
}

// A store without writes is not flushed, and neither is one that users flush often enough.
func TestQuiet(t *testing.T) {
	w := &world{r: rand.New(rand.NewPCG(1, 1))}
	d := &slowDisk{world: w, data: make([]byte, 4096), medium: make([]byte, 4096), flush: func() time.Duration { return time.Millisecond }}
	s := newStore(d, Config{Window: 20 * time.Millisecond}, w).(*Store)
	do := func(op backend.Op) {
		ended := false
		op.Done = completer(func() { ended = true })
		if s.Submit(&op) {
			return
		}
		for !ended && w.step() {
		}
	}
	b := [][]byte{make([]byte, 512)}
	do(backend.Op{Kind: backend.Read, Len: 512, Segs: b})
	do(backend.Op{Kind: backend.Write, Flags: backend.FUA, Len: 512, Segs: b})
	do(backend.Op{Kind: backend.Flush})
	for range 10 {
		do(backend.Op{Kind: backend.Write, Len: 512, Segs: b})
		do(backend.Op{Kind: backend.Flush})
	}
	for w.step() {
	}
	if st := s.AgeStats(); st.Flushes != 0 || w.time > 40*time.Millisecond {
		t.Errorf("%+v at %v", st, w.time)
	}
	for _, op := range []backend.Op{{Kind: backend.Write, Len: 512, Segs: b}, {Kind: backend.Discard, Len: 512}, {Kind: backend.WriteZeroes, Len: 512}} {
		before := s.AgeStats().Flushes
		do(op)
		for w.step() {
		}
		if n := s.AgeStats().Flushes - before; n != 1 {
			t.Errorf("%v: %d flushes", op.Kind, n)
		}
	}
}

// After a failed flush, be it its own or a user's, the store promises nothing any more.
func TestLost(t *testing.T) {
	for _, own := range []bool{true, false} {
		w := &world{r: rand.New(rand.NewPCG(1, 1))}
		d := &slowDisk{world: w, data: make([]byte, 4096), medium: make([]byte, 4096), flush: func() time.Duration { return time.Millisecond }}
		s := newStore(d, Config{Window: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}, w).(*Store)
		do := func(op backend.Op) error {
			op.Segs = [][]byte{make([]byte, op.Len)}
			ended := false
			op.Done = completer(func() { ended = true })
			if !s.Submit(&op) {
				for !ended && w.step() {
				}
			}
			return op.Err
		}
		if err := do(backend.Op{Kind: backend.Write, Len: 512}); err != nil {
			t.Fatal(err)
		}
		d.fail = true
		if own {
			for w.step() {
			}
		} else if err := do(backend.Op{Kind: backend.Flush}); err == nil {
			t.Error("the flush has not failed")
		}
		d.fail = false
		if st := s.AgeStats(); !st.Lost {
			t.Errorf("%+v", st)
		}
		for _, op := range []backend.Op{{Kind: backend.Flush}, {Kind: backend.Write, Flags: backend.FUA, Len: 512}, {Kind: backend.Read, Flags: backend.Barrier, Len: 512}} {
			if _, ok := errors.AsType[*durable.LostError](do(op)); !ok {
				t.Errorf("%v, flags %d: no *durable.LostError", op.Kind, op.Flags)
			}
		}
		for _, op := range []backend.Op{{Kind: backend.Write, Len: 512}, {Kind: backend.Read, Flags: backend.FUA, Len: 512}} {
			if err := do(op); err != nil {
				t.Errorf("%v: %v", op.Kind, err)
			}
		}
		if _, ok := errors.AsType[*durable.LostError](s.Close()); !ok {
			t.Error("Close says nothing")
		}
	}
}

// observer notes what it is told.
type observed struct{ begins, good, bad int }

func (o *observed) FlushBegins() { o.begins++ }
func (o *observed) FlushEnded(err error) {
	if err == nil {
		o.good++
	} else {
		o.bad++
	}
}

func TestObserve(t *testing.T) {
	w := &world{r: rand.New(rand.NewPCG(1, 1))}
	d := &slowDisk{world: w, data: make([]byte, 4096), medium: make([]byte, 4096), flush: func() time.Duration { return 0 }}
	s := newStore(d, Config{Window: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}, w).(*Store)
	var a, b observed
	stopA, stopB := s.Observe(func() backend.FlushObserver { return &a }), s.Observe(func() backend.FlushObserver { return &b })
	defer stopA()
	write := func() {
		op := &backend.Op{Kind: backend.Write, Len: 512, Segs: [][]byte{make([]byte, 512)}, Done: completer(func() {})}
		s.Submit(op)
		for w.step() {
		}
	}
	write()
	stopB()
	d.fail = true
	write()
	if a != (observed{2, 1, 1}) || b != (observed{1, 1, 0}) {
		t.Errorf("%+v, %+v", a, b)
	}
}

// Where there is nothing to do, New returns the store below.
func TestOff(t *testing.T) {
	d := backendtest.NewDisk(4096, 512)
	if New(d, Config{}) != backend.Store(d) {
		t.Error("a window of 0 wraps")
	}
	safe := New(solid{d}, Config{Window: time.Second})
	if _, ok := safe.(solid); !ok {
		t.Error("a store that loses nothing is wrapped")
	}
}

type solid struct{ *backendtest.Disk }

func (s solid) Info() backend.Info {
	i := s.Disk.Info()
	i.VolatileCache = false
	return i
}
