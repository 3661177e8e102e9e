package fdio

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/backend/backendtest"
)

func write(off, n int, v byte, flags backend.Flags) *backend.Op {
	return &backend.Op{Kind: backend.Write, Off: int64(off), Len: int64(n), Segs: [][]byte{filled(n, v)}, Flags: flags}
}

func read(off, n int) *backend.Op {
	return &backend.Op{Kind: backend.Read, Off: int64(off), Len: int64(n), Segs: [][]byte{make([]byte, n)}}
}

// After a failed fdatasync nothing more is promised: Linux would report success next time.
func TestFailedSync(t *testing.T) {
	for _, through := range []bool{false, true} {
		s := mustOpen(t, Config{Through: through}, false)
		good := s.sync.fdatasync
		s.sync.fdatasync = func() error { return unix.EIO }
		flush := &backend.Op{Kind: backend.Flush}
		if err := backendtest.Do(s, flush); !errors.Is(err, unix.EIO) {
			t.Fatalf("flush: %v", err)
		}
		s.sync.fdatasync = good
		for i, op := range []*backend.Op{
			flush, flush, write(0, 512, 1, backend.FUA), write(0, 512, 1, backend.Barrier),
			{Kind: backend.WriteZeroes, Len: 512, Flags: backend.FUA},
			{Kind: backend.Discard, Len: 4096, Flags: backend.FUA},
		} {
			if err := backendtest.Do(s, op); err == nil {
				t.Errorf("operation %d (%v) promises durability", i, op.Kind)
			} else if e, ok := errors.AsType[*backend.MediumError](err); !ok || e.Kind != op.Kind {
				t.Errorf("operation %d (%v): %v", i, op.Kind, err)
			}
		}
		if err := backendtest.Do(s, write(0, 512, 1, 0)); (err == nil) == through {
			t.Errorf("through=%v: plain write: %v", through, err)
		}
		if err := backendtest.Do(s, read(0, 512)); err != nil {
			t.Errorf("read: %v", err)
		}
		if err := s.Close(); !errors.Is(err, unix.EIO) {
			t.Errorf("close: %v", err)
		}
	}
}

// A write that could not be made durable for want of room is a lost write, not a full disk.
func TestSyncWithoutRoom(t *testing.T) {
	s := mustOpen(t, Config{}, false)
	s.sync.fdatasync = func() error { return unix.ENOSPC }
	for _, op := range []*backend.Op{{Kind: backend.Flush}, write(0, 512, 1, backend.FUA)} {
		err := backendtest.Do(s, op)
		if _, ok := errors.AsType[*backend.MediumError](err); !ok {
			t.Errorf("%v: %v", op.Kind, err)
		}
	}
	if err := s.Close(); err == nil {
		t.Error("close says that all is well")
	}
}

type done chan *backend.Op

func (d done) OpDone(op *backend.Op) { d <- op }

// Flushes that wait for one another are served together, and none by a sync that had
// started before it was submitted.
func TestFlushesShareSync(t *testing.T) {
	s := mustOpen(t, Config{}, false)
	var syncs atomic.Int32
	entered, goOn := make(chan struct{}), make(chan struct{})
	s.sync.fdatasync = func() error {
		if syncs.Add(1) == 1 {
			close(entered)
			<-goOn
		}
		return nil
	}
	const flushes = 10
	d := make(done, flushes)
	submit := func() { s.Submit(&backend.Op{Kind: backend.Flush, Done: d}) }
	submit()
	<-entered
	for range flushes - 1 {
		submit()
	}
	for s.sync.wanted.Load() < flushes {
		unix.Getpid() // until all have asked
	}
	close(goOn)
	for range flushes {
		if op := <-d; op.Err != nil {
			t.Error(op.Err)
		}
	}
	if n := syncs.Load(); n != 2 {
		t.Errorf("%d syncs for %d flushes, want 2", n, flushes)
	}
	mustClose(t, s)
}

// A fence waits for an earlier operation that hangs in a worker; others do not.
func TestFenceWaitsForWorker(t *testing.T) {
	s := mustOpen(t, Config{}, false)
	entered, goOn := make(chan struct{}, 9), make(chan struct{})
	s.sync.fdatasync = func() error {
		entered <- struct{}{}
		<-goOn
		return nil
	}
	d := make(done, 9)
	hung := &backend.Op{Kind: backend.Flush, Done: d}
	s.Submit(hung)
	<-entered
	fence := read(0, 512)
	fence.Done, fence.Flags = d, backend.Fence
	if s.Submit(fence) {
		t.Error("the fence did not wait")
	}
	if err := backendtest.Do(s, write(0, 512, 9, 0)); err != nil {
		t.Error(err)
	}
	if len(d) != 0 {
		t.Error("the fence did not wait")
	}
	close(goOn)
	if first, second := <-d, <-d; first != hung || second != fence || fence.Err != nil || fence.Segs[0][0] != 9 {
		t.Errorf("completed %v, then %v", first.Kind, second.Kind)
	}
	mustClose(t, s)
}

// Workers are at most maxWorkers, and end when there is nothing to do.
func TestWorkersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ws workers
		var running, most atomic.Int32
		ended := make(chan struct{}, maxWorkers)
		d := make(done, 1000)
		gate := make(chan struct{})
		ws.init(func(op *backend.Op, _ *worker) {
			most.Store(max(most.Load(), running.Add(1)))
			<-gate
			running.Add(-1)
			op.Done.OpDone(op)
		}, func() { ended <- struct{}{} })
		for range 1000 {
			ws.put(&backend.Op{Done: d})
		}
		synctest.Wait()
		if n := running.Load(); n != maxWorkers {
			t.Errorf("%d workers at work, want %d", n, maxWorkers)
		}
		close(gate)
		for range 1000 {
			<-d
		}
		if n := most.Load(); n != maxWorkers {
			t.Errorf("%d workers at once", n)
		}
		for range maxWorkers {
			<-ended // time passes by itself here
		}
		ws.mu.Lock()
		if ws.running != 0 || ws.idle != 0 {
			t.Errorf("%d workers, %d of them idle", ws.running, ws.idle)
		}
		ws.mu.Unlock()
		ws.put(&backend.Op{Done: d})
		<-d
		ws.close()
	})
}
