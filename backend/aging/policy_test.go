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

// Whatever policies follow one another, a power cut takes nothing that the policy promised when the write was
// submitted: with Through nothing that had completed, with a window nothing that had completed longer ago than the
// window.
func TestPolicies(t *testing.T) {
	seed := faulty.Seed(t)
	promised := 0
	for round, cuts := 0, 0; cuts < 1000; round++ {
		w := &world{r: rand.New(rand.NewPCG(seed, uint64(round)))}
		d := &slowDisk{world: w, data: make([]byte, 300*512), medium: make([]byte, 300*512)}
		d.flush = func() time.Duration { return time.Duration(w.r.Int64N(int64(4*time.Millisecond))) + 1 }
		s := newPart(d, Config{Logger: slog.New(slog.DiscardHandler)}, w)
		policies := []Policy{{}, {Window: 20 * time.Millisecond}, {Window: 3 * time.Millisecond}, {Through: true}}
		var now Policy
		bound := make([]time.Duration, 300) // after completion; -1: nothing is promised
		completed := make([]time.Duration, 300)
		var write func(i int)
		write = func(i int) {
			if w.r.IntN(6) == 0 {
				now = policies[w.r.IntN(len(policies))]
				s.Set(now)
			}
			switch half := now.Window / 2; {
			case now.Through:
				bound[i] = 0
			case now.Window == 0:
				bound[i] = -1
			default:
				bound[i] = half + 8*time.Millisecond // twice the longest flush
			}
			b := make([]byte, 512)
			binary.LittleEndian.PutUint64(b, uint64(i+1))
			op := &backend.Op{Kind: backend.Write, Off: int64(i) * 512, Len: 512, Segs: [][]byte{b}}
			done := func() {
				if op.Err != nil || op.Flags != 0 {
					t.Error("the operation of the caller is not as it was", op.Err, op.Flags)
				}
				completed[i] = w.time
			}
			op.Done = completer(done)
			if s.Submit(op) {
				done()
			}
			if i+1 < len(bound) { // others are under way meanwhile
				w.call(w.time+time.Duration(w.r.IntN(1500))*time.Microsecond, func() { write(i + 1) })
			}
		}
		w.call(1, func() { write(0) })
		for w.step() {
			cuts++
			for i, at := range completed {
				there := binary.LittleEndian.Uint64(d.medium[i*512:]) != 0
				if at != 0 && !there && bound[i] >= 0 && w.time > at+bound[i] {
					t.Fatalf("round %d: block %d, which completed at %v with a bound of %v, is lost in a power cut at %v", round, i, at, bound[i], w.time)
				}
				if at != 0 && bound[i] >= 0 {
					promised++
				}
			}
		}
	}
	if promised == 0 {
		t.Error("nothing was ever promised: the test shows nothing")
	}
}

// With Through every operation that changes bytes is durable before it completes, and after a failure no bytes change
// any more.
func TestThrough(t *testing.T) {
	const size = 64 << 10
	f := faulty.New(backendtest.NewDisk(size, 512), 1)
	d := backendtest.NewDisk(size, 512)
	for _, below := range []backend.Store{d, f} {
		wrapped, s := Part(below, Config{Logger: slog.New(slog.DiscardHandler)})
		if s == nil || wrapped != backend.Store(s) {
			t.Fatal("a store with a cache is not wrapped")
		}
		do := func(kind backend.Kind, off int64, v byte) error {
			op := &backend.Op{Kind: kind, Off: off, Len: 512}
			if kind == backend.Write {
				op.Segs = [][]byte{slices.Repeat([]byte{v}, 512)}
			}
			err := backendtest.Do(s, op)
			if err == nil && op.Durable != s.Through() {
				t.Errorf("%v says that it is durable: %v", kind, op.Durable)
			}
			return err
		}
		if err := do(backend.Write, 512, 1); err != nil {
			t.Fatal(err)
		}
		if below == d && d.Crash(nil, 0)[512] == 1 {
			t.Error("it is durable by itself: the test shows nothing")
		}
		s.Set(Policy{Through: true})
		if !s.Through() || s.Window() != 0 {
			t.Error("the store says another policy")
		}
		if below == d && d.Crash(nil, 0)[512] != 1 {
			t.Error("what was written before is still in the cache")
		}
		for _, kind := range []backend.Kind{backend.Write, backend.Discard, backend.Write, backend.WriteZeroes} {
			if err := do(kind, 1024, 2); err != nil {
				t.Fatal(kind, err)
			}
			want := byte(0)
			if kind == backend.Write {
				want = 2
			}
			if below == d && d.Crash(nil, 0)[1024] != want {
				t.Errorf("%v is lost", kind)
			}
		}
		if below != f {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			continue
		}
		f.Fail(faulty.Match{Kinds: []backend.Kind{backend.Flush}, Times: 1}, errors.New("the medium does not answer"))
		for _, kind := range []backend.Kind{backend.Discard, backend.Write, backend.WriteZeroes} {
			err := do(kind, 0, 3)
			if _, ok := errors.AsType[*durable.LostError](err); err == nil || !ok && kind != backend.Discard {
				t.Errorf("%v after a failed flush: no *durable.LostError", kind)
			}
		}
	}
}

// If a store below has a shorter window, that is the window, and observers hear of both.
func TestBelow(t *testing.T) {
	w := &world{r: rand.New(rand.NewPCG(1, 1))}
	d := &slowDisk{world: w, data: make([]byte, 4096), medium: make([]byte, 4096), flush: func() time.Duration { return time.Millisecond }}
	whole := newStore(d, Config{Window: 20 * time.Millisecond}, w)
	s := newPart(whole, Config{}, w)
	seen := 0
	stop := s.Observe(func() backend.FlushObserver { seen++; return &observed{} })
	stop()
	for window, want := range map[time.Duration]time.Duration{0: 20, 30: 20, 20: 20, 10: 10} {
		s.Set(Policy{Window: window * time.Millisecond})
		if got := s.Window(); got != want*time.Millisecond {
			t.Errorf("with %v ms: %v", int64(window), got)
		}
	}
	s.Set(Policy{Window: time.Second})
	op := &backend.Op{Kind: backend.Write, Len: 512, Segs: [][]byte{make([]byte, 512)}, Done: completer(func() {})}
	before := d.flushes
	s.Submit(op)
	for w.step() {
	}
	if seen != 2 || d.flushes != before+1 || s.AgeStats().Longest != time.Millisecond {
		t.Errorf("%d observers, %d flushes, %+v", seen, d.flushes-before, s.AgeStats())
	}
}

// A write that is under way when the policy changes keeps the promise under which it was submitted.
func TestChangeUnderWrite(t *testing.T) {
	for _, next := range []Policy{{Window: time.Hour}, {}} {
		w := &world{r: rand.New(rand.NewPCG(1, 1))}
		d := &slowDisk{world: w, data: make([]byte, 4096), medium: make([]byte, 4096), flush: func() time.Duration { return time.Millisecond }}
		s := newPart(d, Config{}, w)
		s.Set(Policy{Window: 3 * time.Millisecond})
		var at time.Duration
		for at == 0 {
			b := slices.Repeat([]byte{1}, 512)
			op := &backend.Op{Kind: backend.Write, Len: 512, Segs: [][]byte{b}, Done: completer(func() { at = w.time })}
			if !s.Submit(op) {
				s.Set(next)
				for at == 0 && w.step() {
				}
			}
		}
		for len(w.events) > 0 && w.events[0].at <= at+3*time.Millisecond {
			w.step()
		}
		if d.medium[0] != 1 {
			t.Errorf("then %+v: it is not durable in time", next)
		}
	}
}
