package throttle

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustNew(t testing.TB, size int64, l Limits) *Store {
	t.Helper()
	inner, err := memory.New(size)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(inner, l)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// With limits it is a store like others, whether operations wait or not.
func TestThrottle(t *testing.T) {
	for _, l := range []Limits{{Operations: 1 << 40}, {Operations: 30000, Bytes: 1 << 32}} {
		backendtest.Run(t, func(t *testing.T) backend.Store { return mustNew(t, backendtest.MinSize, l) })
	}
}

type done chan *backend.Op

func (d done) OpDone(op *backend.Op) { d <- op }

// So many go in a second, and in their order; time is fake.
func TestRates(t *testing.T) {
	for _, c := range []struct {
		name   string
		limits Limits
		kind   backend.Kind
		len    int64
		rate   float64 // operations a second; 0: any
	}{
		{"operations", Limits{Operations: 100}, backend.Read, 4096, 100},
		{"few operations", Limits{Operations: 2}, backend.Write, 512, 2},
		{"bytes", Limits{Bytes: 1 << 20}, backend.Write, 64 << 10, 16},
		{"long operations", Limits{Bytes: 64 << 10}, backend.Read, 256 << 10, .25},
		{"both, operations less", Limits{Operations: 10, Bytes: 1 << 20}, backend.Read, 4096, 10},
		{"both, bytes less", Limits{Operations: 1000, Bytes: 1 << 20}, backend.Read, 32 << 10, 32},
		{"discards are operations", Limits{Operations: 50, Bytes: 1}, backend.Discard, 1 << 20, 50},
		{"flushes are free", Limits{Operations: 1, Bytes: 1}, backend.Flush, 0, 0},
		{"so is asking", Limits{Operations: 1, Bytes: 1}, backend.Status, 4096, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := mustNew(t, 8<<20, c.limits)
				const n = 200
				d := make(done, n)
				ops := make([]backend.Op, n)
				begin := time.Now()
				for i := range ops {
					ops[i] = backend.Op{Kind: c.kind, Len: c.len, Done: d}
					if c.kind <= backend.Write {
						ops[i].Segs = [][]byte{make([]byte, c.len)}
					}
					if s.Submit(&ops[i]) {
						d <- &ops[i]
					}
				}
				for i := range ops {
					if op := <-d; op != &ops[i] || op.Err != nil {
						t.Fatalf("operation %d is another, or failed: %v", i, op.Err)
					}
				}
				took := time.Since(begin).Seconds()
				if c.rate == 0 {
					if took != 0 {
						t.Errorf("%v s", took)
					}
				} else if want := (n-1)/c.rate - burst.Seconds(); took < want-1e-6 || took > want+burst.Seconds()+1e-6 {
					t.Errorf("%d operations took %v s, want %v", n, took, want)
				}
				// What was not used while nobody asked is not made up for.
				time.Sleep(time.Hour)
				begin = time.Now()
				for i := range ops {
					if s.Submit(&ops[i]) {
						d <- &ops[i]
					}
				}
				for range ops {
					<-d
				}
				if again := time.Since(begin).Seconds(); again < took-1e-6 || again > took+1e-6 {
					t.Errorf("later it took %v s, at first %v", again, took)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Who comes while an operation that has waited is on its way to the store below does not get there first: with a fence he would not wait
// for it.
func TestNobodyOvertakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, err := memory.New(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		d, below := make(done, 4), &looking{Store: inner}
		s, err := New(below, Limits{Operations: 1})
		if err != nil {
			t.Fatal(err)
		}
		ops := make([]backend.Op, 3)
		for i := range ops {
			ops[i] = backend.Op{Kind: backend.WriteZeroes, Len: 512, Done: d}
		}
		ops[2] = backend.Op{Kind: backend.Flush, Flags: backend.Fence, Done: d}
		below.before = func(op *backend.Op) {
			if op == &ops[1] && s.Submit(&ops[2]) {
				d <- &ops[2]
			}
		}
		for i := range ops[:2] {
			if s.Submit(&ops[i]) {
				d <- &ops[i]
			}
		}
		for i := range ops {
			if op := <-d; op != &ops[i] {
				t.Errorf("operation %d is another", i)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// looking calls before when an operation is on its way to the store.
type looking struct {
	backend.Store
	before func(*backend.Op)
}

func (l *looking) Submit(op *backend.Op) bool {
	l.before(op)
	return l.Store.Submit(op)
}

// A flush behind operations that wait for their time comes after them.
func TestFlushWaitsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustNew(t, 8<<20, Limits{Operations: 1})
		d := make(done, 4)
		for range 3 {
			op := &backend.Op{Kind: backend.WriteZeroes, Len: 512, Done: d, Flags: backend.More}
			if s.Submit(op) {
				d <- op
			}
		}
		flush := &backend.Op{Kind: backend.Flush, Done: d}
		if s.Submit(flush) {
			t.Error("the flush overtakes")
		}
		for i := range 4 {
			if op := <-d; (op == flush) != (i == 3) {
				t.Errorf("%v is number %d", op.Kind, i)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Nothing is written past the limits: memory is not lent, although the store below would.
func TestAbilities(t *testing.T) {
	s := mustNew(t, 1<<20, Limits{Bytes: 1})
	defer s.Close()
	if l, ok := backend.As[backend.Lender](s); ok {
		t.Errorf("%T lends past the limits", l)
	}
	if _, ok := backend.As[backend.Meter](s); !ok {
		t.Error("nobody knows what it takes")
	}
	for _, l := range []Limits{{}, {Operations: -1}, {Bytes: -1}} {
		if _, err := New(s.Store, l); err == nil {
			t.Errorf("%+v is taken", l)
		}
	}
}
