//go:build !race

package mirror

import (
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/ha/replica"
)

// TestAllocations: writes and reads take no memory of the Go heap on any node, over sockets.
func TestAllocations(t *testing.T) {
	l := newLab(t, 2)
	l.real = true
	l.wrap = func(s backend.Store) backend.Store { return &plain{s, make([]byte, testSize)} }
	l.tune = func(c *replica.Config) {
		c.Lease, c.Grace, c.SlowCopy = time.Minute, 2*time.Minute, time.Minute
		c.Ring, c.FlushEvery, c.SaveEvery = 1<<16, time.Hour, time.Hour // a flush allocates
	}
	for _, n := range l.nodes {
		n.start()
	}
	l.level(l.nodes[0])
	m := l.nodes[0].mirror
	const depth = 4
	done := make(waiter, depth)
	var ops [depth]backend.Op
	var bufs [depth][][]byte
	for i := range bufs {
		bufs[i] = [][]byte{bytesOf(4096, 1)}
	}
	all := func(kind backend.Kind, times int) {
		for range times {
			for i := range ops {
				ops[i] = backend.Op{Kind: kind, Off: int64(i) * 8192, Len: 4096, Segs: bufs[i], Done: done}
				if m.Submit(&ops[i]) {
					done.OpDone(&ops[i])
				}
			}
			for range ops {
				<-done
			}
		}
	}
	for _, kind := range []backend.Kind{backend.Write, backend.Read} {
		all(kind, 3000) // what is used again is there
		const times = 100
		if n := testing.AllocsPerRun(10, func() { all(kind, times) }); n > depth*times/100 {
			t.Errorf("%v: %v allocations in %d operations", kind, n, depth*times)
		}
	}
	for _, op := range ops {
		if op.Err != nil {
			t.Error(op.Err)
		}
	}
	l.end()
}
