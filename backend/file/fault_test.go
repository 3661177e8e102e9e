package file

import (
	"errors"
	"path/filepath"
	"strings"
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

// On a full disk writes fail as such, what was written before is there, and after a discard
// there is room again.
func TestFullDisk(t *testing.T) {
	for _, cache := range []Cache{Writeback, Writethrough} {
		var log strings.Builder
		s := mustOpen(t, Config{Path: filepath.Join(tmpfs(t, 1<<20), "disk.img"), Size: 4 << 20, Sparse: true, Cache: cache, Log: logTo(&log)})
		const piece = 64 << 10
		good, full := 0, 0
		for off := 0; off < 4<<20; off += piece {
			err := backendtest.Do(s, write(off, piece, byte(1+off/piece), 0))
			if err == nil && full == 0 {
				good++
				continue
			}
			full++
			if e, ok := errors.AsType[*backend.SpaceError](err); !ok || !errors.Is(err, unix.ENOSPC) || e.Off < int64(off) || e.Off >= int64(off+piece) {
				t.Fatalf("write at %d: %v", off, err)
			}
		}
		if good == 0 || full == 0 {
			t.Fatalf("%d writes went well and %d did not", good, full)
		}
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "no space") || !strings.Contains(log.String(), "disk.img") {
			t.Errorf("%d lines for %d failures:\n%s", n, full, log.String())
		}
		for i := range good {
			op := read(i*piece, piece)
			if err := backendtest.Do(s, op); err != nil || string(op.Segs[0]) != string(filled(piece, byte(1+i))) {
				t.Fatalf("piece %d is not what was written: %v", i, err)
			}
		}
		if err := backendtest.Do(s, &backend.Op{Kind: backend.Flush}); err != nil {
			t.Errorf("flush: %v", err)
		}
		if err := backendtest.Do(s, &backend.Op{Kind: backend.Discard, Len: 4 * piece}); err != nil {
			t.Errorf("discard: %v", err)
		}
		if err := backendtest.Do(s, write(good*piece, piece, 7, 0)); err != nil {
			t.Errorf("write after the discard: %v", err)
		}
		mustClose(t, s)
	}
}

// WriteZeroes needs room too: tmpfs has no other way than to write them.
func TestFullDiskZeroes(t *testing.T) {
	s := mustOpen(t, Config{Path: filepath.Join(tmpfs(t, 1<<20), "disk.img"), Size: 4 << 20, Sparse: true})
	defer mustClose(t, s)
	err := backendtest.Do(s, &backend.Op{Kind: backend.WriteZeroes, Len: 4 << 20})
	if _, ok := errors.AsType[*backend.SpaceError](err); !ok {
		t.Errorf("4 MiB of zeroes on 1 MiB: %v", err)
	}
}

// A file cut short by somebody else: what is there is read, the rest is an error that says
// where, and why.
func TestShortFile(t *testing.T) {
	for _, direct := range []bool{false, true} {
		var log strings.Builder
		s := mustOpen(t, Config{Size: 1 << 20, Sparse: true, Direct: direct, Log: logTo(&log)})
		if err := backendtest.Do(s, write(0, 1<<20, 1, 0)); err != nil {
			t.Fatal(err)
		}
		if err := unix.Truncate(s.Path(), 512<<10); err != nil {
			t.Fatal(err)
		}
		if err := backendtest.Do(s, read(256<<10, 256<<10)); err != nil {
			t.Errorf("direct=%v: read before the end: %v", direct, err)
		}
		err := backendtest.Do(s, read(448<<10, 128<<10))
		if e, ok := errors.AsType[*backend.MediumError](err); !ok || e.Off != 512<<10 || !errors.Is(err, errTruncated) {
			t.Errorf("direct=%v: read across the end: %v", direct, err)
		}
		if !strings.Contains(log.String(), "truncated") {
			t.Errorf("direct=%v: the log says %q", direct, log.String())
		}
		mustClose(t, s)
	}
}

// After a failed fdatasync nothing more is promised: Linux would report success next time.
func TestFailedSync(t *testing.T) {
	for _, cache := range []Cache{Writeback, Writethrough} {
		s := mustOpen(t, Config{Size: 1 << 20, Sparse: true, Cache: cache, Log: logTo(new(strings.Builder))})
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
		if err := backendtest.Do(s, write(0, 512, 1, 0)); (err == nil) != (cache == Writeback) {
			t.Errorf("cache %d: plain write: %v", cache, err)
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
	s := mustOpen(t, Config{Size: 1 << 20, Sparse: true, Log: logTo(new(strings.Builder))})
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
	s := mustOpen(t, Config{Size: 1 << 20, Sparse: true})
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
	s := mustOpen(t, Config{Size: 1 << 20, Sparse: true})
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
