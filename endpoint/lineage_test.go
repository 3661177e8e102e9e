package endpoint

import (
	"errors"
	"testing"

	"oneshot/transport/rdma"
)

// completed is a completion of a write or flush in a generation.
func completed(l *lineage, generation uint64, write bool) {
	c := rdma.Completion{Durable: generation << 48}
	l.see(&c)
	if write {
		l.wrote(&c)
	}
}

// A write that was durable when it completed is not lost.
func TestDurableIsNotLost(t *testing.T) {
	for _, durable := range []uint64{6, 7} {
		var l lineage
		c := rdma.Completion{Seq: 1<<48 | 7, Durable: 1<<48 | durable}
		l.see(&c)
		l.wrote(&c)
		f := l.begin()
		completed(&l, 2, false)
		if err := l.end(f); (err == nil) != (durable == 7) {
			t.Errorf("number 7 with the watermark %d: %v", durable, err)
		}
	}
}

// Of two Flushes at a time, the one that ends last does not answer for what was written after it had begun.
func TestFlushesAtATime(t *testing.T) {
	var l lineage
	completed(&l, 1, true)
	first, second := l.begin(), l.begin()
	if err := l.end(first); err != nil {
		t.Fatal(err)
	}
	completed(&l, 1, true)
	if err := l.end(second); err != nil {
		t.Fatal(err)
	}
	f := l.begin()
	completed(&l, 2, false)
	var lost *RestartedError
	if err := l.end(f); !errors.As(err, &lost) {
		t.Errorf("a write that no Flush has covered is lost: %v", err)
	}
	if err := l.end(l.begin()); err != nil {
		t.Errorf("it is told again: %v", err)
	}
}

// A loss is told by each Flush that was under way, because its caller may be the one whose write is gone.
func TestLossIsToldToAll(t *testing.T) {
	var l lineage
	completed(&l, 1, true)
	completed(&l, 1, true)
	first, second := l.begin(), l.begin()
	completed(&l, 2, false)
	for _, f := range []flushing{first, second} {
		if l.end(f) == nil {
			t.Error("a Flush does not tell of the loss")
		}
	}
	if err := l.end(l.begin()); err != nil {
		t.Errorf("it is told again: %v", err)
	}
}
