package fdio

import (
	"io"
	"runtime/trace"
	"testing"

	"oneshot/backend"
)

// lengthOf counts the bytes of a trace.
type lengthOf int

func (n *lengthOf) Write(b []byte) (int, error) {
	*n += lengthOf(len(b))
	return len(b), nil
}

var _ io.Writer = (*lengthOf)(nil)

// A short read from the page cache is hidden from Go's scheduler, and a long one is not: a trace of the runtime has an
// event for each system call that it is told of.
func TestReadsAreRaw(t *testing.T) {
	s := mustOpen(t, Config{IO: Threads, Resident: true}, false)
	defer mustClose(t, s)
	const reads = 2000
	events := func(n int) int {
		op := &backend.Op{Kind: backend.Read, Len: int64(n), Segs: [][]byte{make([]byte, n)}, Done: nobody{}}
		var length lengthOf
		if err := trace.Start(&length); err != nil {
			t.Fatal(err)
		}
		for range reads {
			if !s.Submit(op) || op.Err != nil {
				trace.Stop()
				t.Fatal("a read that was not served from the page cache: ", op.Err)
			}
		}
		trace.Stop()
		return int(length)
	}
	// What the rest of the process does adds to a trace, now and then: the shortest of some counts.
	least := func(n int) int { return min(events(n), events(n), events(n)) }
	none, short, long := least(0), least(maxRaw), least(maxRaw+512)
	if long-none < 2*reads {
		t.Errorf("%d long reads add only %d bytes to a trace", reads, long-none)
	}
	if short-none > (long-none)/4 {
		t.Errorf("%d short reads add %d bytes to a trace, long ones %d", reads, short-none, long-none)
	}
}

// nobody waits for an operation.
type nobody struct{}

func (nobody) OpDone(*backend.Op) {}
