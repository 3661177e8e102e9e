package endpoint

import (
	"errors"
	"testing"

	"oneshot/transport/rdma"
)

// completed is a completion of a write or flush in a generation.
func completed(l *lineage, generation uint64, write bool) {
	l.see(&rdma.Completion{Durable: generation << 48})
	if write {
		l.written++
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
