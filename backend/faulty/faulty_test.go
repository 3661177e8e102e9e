package faulty

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newStore(t *testing.T) *Store {
	inner, err := memory.New(backendtest.MinSize)
	if err != nil {
		t.Fatal(err)
	}
	return New(inner, Seed(t))
}

func closeStore(t *testing.T, s *Store) {
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Without faults, and with completions in any order, it is a store like others.
func TestFaultless(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) backend.Store { return newStore(t) })
}

func TestShuffled(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) backend.Store {
		s := newStore(t)
		s.Shuffle()
		return s
	})
}

func block(kind backend.Kind, off int64) *backend.Op {
	op := &backend.Op{Kind: kind, Off: off, Len: 4096}
	if kind <= backend.Write {
		op.Segs = [][]byte{make([]byte, 4096)}
	}
	return op
}

func TestFail(t *testing.T) {
	s := newStore(t)
	defer closeStore(t, s)
	boom := errors.New("boom")
	stop := s.Fail(Match{Kinds: Reads, Off: 8192, Len: 4096, Times: 2}, boom)
	for i, c := range []struct {
		op   *backend.Op
		want error
	}{
		{block(backend.Read, 4096), nil},
		{block(backend.Read, 12288), nil},
		{block(backend.Write, 8192), nil},
		{&backend.Op{Kind: backend.Flush}, nil},
		{block(backend.Read, 8192), boom},
		{block(backend.Read, 8192), boom},
		{block(backend.Read, 8192), nil},
	} {
		if err := backendtest.Do(s, c.op); err != c.want {
			t.Errorf("operation %d: %v, want %v", i, err, c.want)
		}
	}
	stop()
	all := s.Fail(Match{}, boom)
	if err := backendtest.Do(s, &backend.Op{Kind: backend.Flush}); err != boom {
		t.Errorf("flush: %v", err)
	}
	all()
	if err := backendtest.Do(s, &backend.Op{Kind: backend.Flush}); err != nil {
		t.Errorf("flush after the fault: %v", err)
	}
}

// The same seed gives the same faults.
func TestChance(t *testing.T) {
	seed := Seed(t)
	run := func() (failed []bool) {
		s := newStore(t)
		s.rand = New(s.inner, seed).rand
		defer closeStore(t, s)
		s.Fail(Match{Chance: 0.5}, errors.New("bad luck"))
		for range 100 {
			failed = append(failed, backendtest.Do(s, block(backend.Read, 0)) != nil)
		}
		return failed
	}
	a, b := run(), run()
	n := 0
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("operation %d differs between two runs", i)
		}
		if a[i] {
			n++
		}
	}
	if n == 0 || n == len(a) {
		t.Errorf("%d of %d failed at a chance of one half", n, len(a))
	}
}

func TestFill(t *testing.T) {
	s := newStore(t)
	defer closeStore(t, s)
	s.Fill(8192)
	for i, c := range []struct {
		op   *backend.Op
		full bool
	}{
		{block(backend.Write, 0), false},
		{block(backend.Write, 0), false},
		{block(backend.WriteZeroes, 4096), false},
		{block(backend.Write, 8192), true},
		{block(backend.Read, 8192), false},
		{block(backend.Discard, 0), false},
		{block(backend.Write, 8192), false},
		{block(backend.Write, 0), true},
	} {
		err := backendtest.Do(s, c.op)
		if _, full := errors.AsType[*backend.SpaceError](err); full != c.full {
			t.Errorf("operation %d: %v", i, err)
		}
	}
	s.Fill(-1)
	if err := backendtest.Do(s, block(backend.Write, 0)); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

func TestTruncate(t *testing.T) {
	s := newStore(t)
	defer closeStore(t, s)
	s.Truncate(6144)
	err := backendtest.Do(s, block(backend.Read, 4096))
	if e, ok := errors.AsType[*backend.MediumError](err); !ok || e.Off != 6144 {
		t.Errorf("read across the end: %v", err)
	}
	if err := backendtest.Do(s, block(backend.Read, 0)); err != nil {
		t.Errorf("read before the end: %v", err)
	}
}

type waiter chan *backend.Op

func (w waiter) OpDone(op *backend.Op) { w <- op }

// What hangs holds a fence back, and nothing else.
func TestHold(t *testing.T) {
	s := newStore(t)
	defer closeStore(t, s)
	gate := s.Hold(Match{Kinds: Writes})
	w := make(waiter, 10)
	submit := func(op *backend.Op, flags backend.Flags) bool {
		op.Done, op.Flags = w, flags
		return s.Submit(op)
	}
	a, b, fence := block(backend.Write, 0), block(backend.Write, 4096), block(backend.Read, 0)
	if submit(a, 0) || submit(b, 0) || submit(fence, backend.Fence) {
		t.Fatal("something completed that should hang")
	}
	if !submit(block(backend.Read, 0), 0) {
		t.Error("a read without a fence waits too")
	}
	gate.Await(2)
	gate.Next()
	if op := <-w; op != a || gate.Held() != 1 {
		t.Errorf("%v at %d went on, %d held", op.Kind, op.Off, gate.Held())
	}
	if len(w) != 0 {
		t.Error("the fence went on too early")
	}
	gate.Release()
	if op := <-w; op != b {
		t.Errorf("%v at %d went on", op.Kind, op.Off)
	}
	if op := <-w; op != fence {
		t.Errorf("%v at %d went on", op.Kind, op.Off)
	}
	if !submit(a, 0) {
		t.Error("held after Release")
	}
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		defer closeStore(t, s)
		s.Delay(Match{}, time.Minute)
		start := time.Now()
		if err := backendtest.Do(s, block(backend.Write, 0)); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d != time.Minute {
			t.Errorf("delayed by %v", d)
		}
	})
}
