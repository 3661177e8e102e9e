//go:build !race

package mirror

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/ha/replica"
)

// later is a store that ends writes after Submit, as one does that waits for a disk.
type later struct {
	backend.Store
	ops  chan *backend.Op
	done sync.WaitGroup
}

func (l *later) Submit(op *backend.Op) bool {
	if op.Kind != backend.Write {
		return l.Store.Submit(op)
	}
	l.ops <- op
	return false
}

func (l *later) Close() error {
	close(l.ops)
	l.done.Wait()
	return l.Store.Close()
}

func endLater(s backend.Store) backend.Store {
	l := &later{Store: s, ops: make(chan *backend.Op, 1024)}
	l.done.Go(func() {
		for op := range l.ops {
			l.Store.Submit(op)
			op.Done.OpDone(op)
		}
	})
	return l
}

// TestAllocations: writes and reads take no memory of the Go heap on any node, from Submit over the streams of a cluster to the
// copies and back. The profile counts each allocation by where it is made, so that what consensus does meanwhile is not in it. What
// crypto/tls takes to read from a connection is: 24 bytes, once for all that has come.
func TestAllocations(t *testing.T) {
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = 1
	for _, confirm := range []bool{false, true} {
		l := newLab(t, 2)
		l.real, l.members = true, newMembers(t, true)
		l.wrap = func(s backend.Store) backend.Store { return endLater(&plain{s, make([]byte, testSize)}) }
		l.tune = func(c *replica.Config) {
			c.Lease, c.Grace, c.SlowCopy, c.Confirm = time.Minute, 2*time.Minute, time.Minute, confirm
			c.Heap, c.Ring, c.FlushEvery, c.SaveEvery = 64<<20, 1<<18, time.Hour, time.Hour // a flush allocates
		}
		for _, n := range l.nodes {
			n.start()
		}
		l.level(l.nodes[0])
		ctx, cancel := context.WithCancel(context.Background())
		var watchers sync.WaitGroup
		for _, n := range l.nodes { // as the daemon has them
			role := n.mirror.State().Role
			watchers.Go(func() { _ = n.mirror.Await(ctx, func(s replica.State) bool { return s.Role != role }) })
		}
		for _, load := range []struct{ size, depth, times int }{{4 << 10, 1, 4000}, {4 << 10, 32, 4000}, {256 << 10, 8, 400}, {256 << 10, 32, 1600}} {
			for _, kind := range []backend.Kind{backend.Write, backend.Read} {
				t.Run(fmt.Sprintf("%v of %d bytes, depth %d, confirmed %t", kind, load.size, load.depth, confirm), func(t *testing.T) {
					countAllocations(t, l.nodes[0].mirror, kind, load.size, load.depth, load.times)
				})
			}
		}
		cancel()
		watchers.Wait()
		l.end()
		l.members.close()
	}
}

func countAllocations(t *testing.T, m *Mirror, kind backend.Kind, size, depth, times int) {
	done := make(ops, depth)
	for i := range depth {
		done <- &backend.Op{Kind: kind, Off: int64(i*size) % testSize, Len: int64(size), Segs: [][]byte{bytesOf(size, 1)}, Done: done}
	}
	many := func(n int) {
		for i := 0; i < n; i += depth { // batches, as a transport submits them
			for range depth {
				op := <-done
				op.Err, op.Flags = nil, backend.More
				if m.Submit(op) {
					done <- op
				}
			}
			m.Kick()
			for len(done) < depth {
				op := <-done
				if op.Err != nil {
					t.Error(op.Err)
				}
				done <- op
				runtime.Gosched()
			}
		}
	}
	many(times) // what is used again is there
	before := allocations()
	many(times)
	for place, n := range allocations() {
		n -= before[place]
		limit := int64(times/100 + 8*maxIdle) // a frame that was not used before grows
		if strings.Contains(place, "crypto/tls.(*Conn).readFromUntil") {
			limit = int64(2 * times * (1 + size/(16<<10))) // of each record, if they come one by one
		}
		if n > limit {
			t.Errorf("%d allocations in %d operations: %s", n, times, place)
		}
	}
}

// allocations returns how many there were so far in the path of an operation, by place.
func allocations() map[string]int64 {
	runtime.GC() // the profile has what was allocated before the last two collections
	runtime.GC()
	var records []runtime.MemProfileRecord
	for n, ok := runtime.MemProfile(nil, true); !ok; {
		records = make([]runtime.MemProfileRecord, n+100)
		n, ok = runtime.MemProfile(records, true)
		records = records[:min(n, len(records))]
	}
	places := map[string]int64{}
	for i := range records {
		var names []string
		frames := runtime.CallersFrames(records[i].Stack())
		inPath := false
		for {
			f, more := frames.Next()
			names = append(names, f.Function)
			if strings.HasSuffix(f.Function, "(*Mirror).lookFor") { // what it costs that nothing was heard of a node, as on a busy machine
				inPath = false
				break
			}
			inPath = inPath || strings.HasPrefix(f.Function, "oneshot/ha/mirror.(*Mirror)") || strings.HasPrefix(f.Function, "oneshot/ha/mirror.(*conn)")
			if !more {
				break
			}
		}
		if inPath {
			places[strings.Join(names, " < ")] += records[i].AllocObjects
		}
	}
	return places
}
