package backend

import (
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

func TestQueue(t *testing.T) {
	var q Queue
	ops := make([]Op, 3)
	for round := range 2 {
		for i := range ops {
			q.Push(&ops[i])
		}
		q.Unpop(q.Pop())
		for i := range ops {
			if n := q.Len(); n != len(ops)-i {
				t.Fatalf("round %d: length %d", round, n)
			}
			op := q.Pop()
			q.Unpop(op)
			if op = q.Pop(); op != &ops[i] {
				t.Fatalf("round %d: operation %d is another", round, i)
			}
		}
		if q.Pop() != nil || q.Len() != 0 {
			t.Fatal("not empty at the end")
		}
	}
}

// The sequencer against what the flags promise: a fence starts after everything before it
// has left, and as soon as that is so at the latest when nothing runs any more.
func TestSequencerAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []*Op // in order of Enter
		started, left := map[*Op]bool{}, map[*Op]bool{}
		start := func(op *Op) {
			if started[op] {
				t.Fatal("started twice")
			}
			started[op] = true
			for _, earlier := range all {
				if earlier == op {
					return
				}
				if op.Flags != 0 && !left[earlier] {
					t.Fatal("a fence started before an earlier operation had completed")
				}
			}
		}
		q := NewSequencer(start)
		enter := func(f Flags) func(*rapid.T) {
			return func(*rapid.T) {
				op := &Op{Flags: f}
				all = append(all, op)
				if q.Enter(op) {
					start(op)
				} else if f == 0 {
					t.Fatal("an operation without a fence has to wait")
				}
			}
		}
		running := func() (ops []*Op) {
			for _, op := range all {
				if started[op] && !left[op] {
					ops = append(ops, op)
				}
			}
			return ops
		}
		leave := func(op *Op) {
			left[op] = true
			q.Leave(op.Private)
		}
		t.Repeat(map[string]func(*rapid.T){
			"plain":   enter(0),
			"fence":   enter(Fence),
			"barrier": enter(Barrier),
			"leave": func(t *rapid.T) {
				ops := running()
				if len(ops) == 0 {
					t.Skip("nothing runs")
				}
				leave(rapid.SampledFrom(ops).Draw(t, "op"))
			},
			"": func(t *rapid.T) {
				if len(running()) == 0 && len(left) != len(all) {
					t.Fatalf("nothing runs, and %d operations wait", len(all)-len(left))
				}
			},
		})
		for ops := running(); len(ops) > 0; ops = running() {
			leave(ops[0])
		}
		if len(left) != len(all) {
			t.Fatalf("%d of %d operations never started", len(all)-len(left), len(all))
		}
	})
}

// Goroutines enter operations and fences at once; all of them end.
func TestSequencerConcurrent(t *testing.T) {
	const goroutines, rounds = 4, 20000
	var left atomic.Int64
	done := make(chan struct{})
	var q *Sequencer
	leave := func(op *Op) {
		q.Leave(op.Private)
		if left.Add(1) == goroutines*rounds {
			close(done)
		}
	}
	q = NewSequencer(func(op *Op) { go leave(op) })
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := range rounds {
				op := &Op{}
				if i%3 == 0 {
					op.Flags = Fence
				}
				if q.Enter(op) {
					leave(op)
				}
			}
		})
	}
	wg.Wait()
	<-done
	if q.waiting.Load() || q.running[0].Load() != 0 || q.running[1].Load() != 0 {
		t.Error("all have left, and something is still counted")
	}
}

func TestSequencerAllocatesNothing(t *testing.T) {
	q := NewSequencer(func(*Op) { t.Error("nothing waits here") })
	op, fence := &Op{}, &Op{Flags: Fence}
	if n := testing.AllocsPerRun(100, func() {
		q.Enter(op)
		q.Leave(op.Private)
		q.Enter(fence)
		q.Leave(fence.Private)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		kind     Kind
		off, len int64
		ok       bool
	}{
		{Read, 0, 100, true},
		{Read, 100, 0, true},
		{Read, 99, 1, true},
		{Read, 0, 101, false},
		{Write, 100, 1, false},
		{Write, 101, 0, false},
		{Write, -1, 1, false},
		{Write, 1, -1, false},
		{Read, 1<<63 - 1, 1<<63 - 1, false},
		{Discard, 1, 1<<63 - 1, false},
		{Flush, 1 << 40, 1, true},
	} {
		op := Op{Kind: c.kind, Off: c.off, Len: c.len}
		if err := op.Check(100); (err == nil) != c.ok {
			t.Errorf("%v off %d len %d: %v", c.kind, c.off, c.len, err)
		}
	}
}
