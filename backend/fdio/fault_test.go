package fdio

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
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

// kernel is a file system that fails as the test wants.
type kernel struct {
	mu     sync.Mutex
	fail   map[string]error // what each call of a name ends with
	told   error            // a failed write-back: the next call that makes bytes durable is told, once
	during func(Call)       // called before each call
	calls  map[string]int   // made so far
}

func (k *kernel) Before(c Call) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.calls == nil {
		k.calls = map[string]int{}
	}
	k.calls[c.Name]++
	if err := k.fail[c.Name]; err != nil {
		return err
	}
	if k.told != nil && (c.Name == "fdatasync" || c.Name == "fsync" || c.Name == "msync" || c.Flags&unix.RWF_DSYNC != 0) {
		err := k.told
		k.told = nil
		if k.during != nil {
			k.mu.Unlock()
			k.during(c)
			k.mu.Lock()
		}
		return err
	}
	return nil
}

// After is the end of what a ring was asked for, which fails as it would have from the start.
func (k *kernel) After(c Call) error { return k.Before(c) }

// set has calls of a name end with err; nil: as they do.
func (k *kernel) set(name string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fail == nil {
		k.fail = map[string]error{}
	}
	k.fail[name] = err
}

// lose has the kernel lose bytes that it had taken, and tell once.
func (k *kernel) lose(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.told = err
}

// modes are the ways from a store to the kernel.
var modes = []struct {
	name   string
	cfg    Config
	direct bool
}{
	{"threads", Config{IO: Threads}, false},
	{"threads through", Config{IO: Threads, Through: true}, false},
	{"ring", Config{IO: Uring}, false},
	{"ring through", Config{IO: Uring, Through: true}, false},
	{"threads direct", Config{IO: Threads}, true},
	{"threads direct through", Config{IO: Threads, Through: true}, true},
	{"ring direct", Config{IO: Uring}, true},
	{"ring direct through", Config{IO: Uring, Through: true}, true},
}

// eachMode runs test on a store of each mode, on a kernel that fails.
func eachMode(t *testing.T, test func(t *testing.T, s *Store, k *kernel)) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			k := &kernel{}
			m.cfg.Faults = k
			test(t, mustOpen(t, m.cfg, m.direct), k)
		})
	}
}

// alignedWrite is write with memory that direct I/O takes.
func alignedWrite(t *testing.T, off, n int, flags backend.Flags) *backend.Op {
	b := aligned(t, n)
	return &backend.Op{Kind: backend.Write, Off: int64(off), Len: int64(n), Segs: [][]byte{b}, Flags: flags}
}

// promises are the operations that promise durability.
func promises(t *testing.T) map[string]*backend.Op {
	return map[string]*backend.Op{
		"flush":            {Kind: backend.Flush},
		"write with FUA":   alignedWrite(t, 0, 4096, backend.FUA),
		"write, barrier":   alignedWrite(t, 0, 4096, backend.Barrier),
		"unaligned FUA":    {Kind: backend.Write, Len: 4096, Segs: [][]byte{filled(100, 1), filled(3996, 1)}, Flags: backend.FUA},
		"zeroes with FUA":  {Kind: backend.WriteZeroes, Len: 4096, Flags: backend.FUA},
		"discard with FUA": {Kind: backend.Discard, Len: 4096, Flags: backend.FUA},
		"discard, barrier": {Kind: backend.Discard, Len: 4096, Flags: backend.Barrier},
	}
}

// promisesNothing checks that the store gives no promise, says why, and does the rest as before.
func promisesNothing(t *testing.T, s *Store, why error) {
	t.Helper()
	for range 2 {
		for name, op := range promises(t) {
			err := backendtest.Do(s, op)
			if e, ok := errors.AsType[*backend.MediumError](err); !ok || e.Kind != op.Kind || !errors.Is(err, why) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if err := s.Durably(func() error { t.Error("it syncs"); return nil }); !errors.Is(err, why) {
		t.Errorf("Durably: %v", err)
	}
	if err := backendtest.Do(s, alignedWrite(t, 0, 4096, 0)); (err != nil) != s.through {
		t.Errorf("plain write: %v", err)
	}
	if err := backendtest.Do(s, read(0, 4096)); err != nil {
		t.Errorf("read: %v", err)
	}
	if err := s.Close(); !errors.Is(err, why) {
		t.Errorf("close: %v", err)
	}
}

// The kernel has lost bytes and tells once: whatever operation is told, the store promises
// nothing more.
func TestLossIsKept(t *testing.T) {
	eachMode(t, func(t *testing.T, s *Store, k *kernel) {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for name := range promises(t) {
			for _, why := range []error{unix.EIO, unix.ENOSPC, unix.EDQUOT, unix.ENOMEM, unix.EROFS} {
				s := mustOpen(t, Config{IO: ioOf(s), Through: s.through, Faults: k}, s.direct != nil)
				k.lose(why)
				if err := backendtest.Do(s, promises(t)[name]); !errors.Is(err, why) {
					t.Errorf("%s, %v: %v", name, why, err)
				}
				promisesNothing(t, s, why)
			}
		}
	})
}

func ioOf(s *Store) IO {
	if s.ring != nil {
		return Uring
	}
	return Threads
}

// So it does if the size of the file could not be made durable.
func TestLossAtDurably(t *testing.T) {
	eachMode(t, func(t *testing.T, s *Store, k *kernel) {
		k.lose(unix.EIO)
		if err := s.Durably(func() error { return nil }); !errors.Is(err, unix.EIO) {
			t.Errorf("Durably: %v", err)
		}
		promisesNothing(t, s, unix.EIO)
	})
}

// A write that failed, and again when it was tried without durability, was told of a loss all the
// same.
func TestLossThenFailedWrite(t *testing.T) {
	eachMode(t, func(t *testing.T, s *Store, k *kernel) {
		k.set("pwritev2", unix.EIO)
		if err := backendtest.Do(s, alignedWrite(t, 0, 4096, backend.FUA)); !errors.Is(err, unix.EIO) {
			t.Errorf("write: %v", err)
		}
		k.set("pwritev2", nil)
		if s.direct != nil {
			promisesNothing(t, s, unix.EIO)
			return
		}
		mustClose(t, s) // a plain write comes first, which is told of nothing
	})
}

// Errors of operations that promise nothing are theirs alone: the kernel tells the next sync, if
// there was a loss.
func TestPlainErrorsAreNotKept(t *testing.T) {
	eachMode(t, func(t *testing.T, s *Store, k *kernel) {
		for name, op := range map[string]*backend.Op{
			"preadv2":      read(0, 512),
			"pwritev2":     write(0, 512, 1, 0),
			"discard":      {Kind: backend.Discard, Len: 4096},
			"write-zeroes": {Kind: backend.WriteZeroes, Len: 4096},
		} {
			if s.through && s.direct != nil && name == "pwritev2" {
				continue // durable, TestLossThenFailedWrite
			}
			if name == "preadv2" && s.direct == nil {
				op.Flags = backend.FUA // not from the page cache at once
			}
			k.set(name, unix.EIO)
			if err := backendtest.Do(s, op); !errors.Is(err, unix.EIO) {
				t.Errorf("%s: %v", name, err)
			}
			k.set(name, nil)
		}
		for name, op := range promises(t) {
			if err := backendtest.Do(s, op); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		mustClose(t, s)
	})
}

// A full disk is no loss, however durable the write was to be, and ends.
func TestFullIsNoLoss(t *testing.T) {
	eachMode(t, func(t *testing.T, s *Store, k *kernel) {
		for _, full := range []error{unix.ENOSPC, unix.EDQUOT, unix.EFBIG} {
			k.set("pwritev2", full)
			for range 3 {
				err := backendtest.Do(s, alignedWrite(t, 0, 4096, backend.FUA))
				if _, ok := errors.AsType[*backend.SpaceError](err); !ok || !errors.Is(err, full) {
					t.Errorf("%v: %v", full, err)
				}
			}
			k.set("pwritev2", nil)
			for name, op := range promises(t) {
				if err := backendtest.Do(s, op); err != nil {
					t.Errorf("after %v: %s: %v", full, name, err)
				}
			}
		}
		mustClose(t, s)
	})
}

// A write with FUA is told of a loss, and between that and its completion somebody flushes: the
// flush is not good. The kernel tells it nothing.
func TestFlushBesideLoss(t *testing.T) {
	eachMode(t, func(t *testing.T, s *Store, k *kernel) {
		for _, why := range []error{unix.EIO, unix.ENOSPC} {
			d := make(done, 1)
			k.during = func(Call) {
				k.during = nil
				syncs := func() int { k.mu.Lock(); defer k.mu.Unlock(); return k.calls["fdatasync"] }
				before := syncs()
				s.Submit(&backend.Op{Kind: backend.Flush, Done: d})
				// The flush has been to the kernel before the write goes on.
				for syncs() == before {
					runtime.Gosched()
				}
			}
			k.lose(why)
			if err := backendtest.Do(s, alignedWrite(t, 0, 4096, backend.FUA)); !errors.Is(err, why) {
				t.Errorf("write: %v", err)
			}
			if op := <-d; !errors.Is(op.Err, why) {
				t.Errorf("%v: flush: %v, and the bytes are lost", why, op.Err)
			}
			if err := s.Close(); !errors.Is(err, why) {
				t.Errorf("close: %v", err)
			}
			s = mustOpen(t, Config{IO: ioOf(s), Through: s.through, Faults: k}, s.direct != nil)
		}
		mustClose(t, s)
	})
}

// A durable write through the page cache has its own range made durable, not all that waits there;
// where there are no mappings, everything.
func TestRangeSync(t *testing.T) {
	for _, through := range []bool{false, true} {
		var calls []string
		var mu sync.Mutex
		s := mustOpen(t, Config{Through: through, Faults: before(func(c Call) error {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, fmt.Sprintf("%s %d+%d", c.Name, c.Off, c.Len))
			return nil
		})}, false)
		took := func(want ...string) {
			t.Helper()
			calls = nil
			if err := backendtest.Do(s, write(8192+512, 1024, 1, backend.FUA)); err != nil {
				t.Error(err)
			}
			if !slices.Equal(calls, want) {
				t.Errorf("through %v: %q, want %q", through, calls, want)
			}
		}
		took("pwritev2 8704+1024", "msync 8704+1024")
		s.noRangeSync.Store(true)
		took("pwritev2 8704+1024", "fdatasync 0+0")
		mustClose(t, s)
	}
}

// The kernel tells of a loss once to each descriptor. If a durable write through the page cache is told, another one beside it does not
// end well before the first has said so: the bytes that are lost may be its own.
func TestDurableWritesBesideLoss(t *testing.T) {
	for _, through := range []bool{false, true} {
		var (
			s      *Store
			mu     sync.Mutex
			told   = map[int]bool{}
			inside error
		)
		s = mustOpen(t, Config{IO: Threads, Through: through, Faults: before(func(c Call) error {
			if c.Name != "msync" {
				return nil
			}
			mu.Lock()
			first, again := len(told) == 0, told[c.FD]
			told[c.FD] = true
			mu.Unlock()
			switch {
			case again:
				return nil
			case first: // the kernel has told, and nobody knows yet
				inside = backendtest.Do(s, write(8192, 4096, 2, backend.FUA))
			}
			return unix.EIO
		})}, false)
		if err := backendtest.Do(s, write(0, 4096, 1, backend.FUA)); !errors.Is(err, unix.EIO) {
			t.Errorf("through %v: who is told of the loss says %v", through, err)
		}
		if !errors.Is(inside, unix.EIO) {
			t.Errorf("through %v: a write beside that one: %v, and its bytes may be lost", through, inside)
		}
		_ = s.Close()
	}
}

// More durable writes than there are workers fail at once, and flushes wait: nobody waits for ever.
func TestManyLosses(t *testing.T) {
	eachMode(t, func(t *testing.T, s *Store, k *kernel) {
		const n = 4 * maxWorkers
		d := make(done, 2*n)
		for i := range n {
			k.lose([]error{unix.EIO, unix.ENOSPC}[i%2])
			op := alignedWrite(t, i*4096, 4096, backend.FUA)
			op.Done = d
			if s.Submit(op) {
				d <- op
			}
			s.Submit(&backend.Op{Kind: backend.Flush, Done: d})
		}
		for range 2 * n {
			<-d
		}
		if err := backendtest.Do(s, &backend.Op{Kind: backend.Flush}); err == nil {
			t.Error("the store promises")
		}
		if s.Close() == nil {
			t.Error("close says that all is well")
		}
	})
}

// before is Faults that a function decides.
type before func(Call) error

func (f before) Before(c Call) error { return f(c) }
func (f before) After(Call) error    { return nil }

type done chan *backend.Op

func (d done) OpDone(op *backend.Op) { d <- op }

// Flushes that wait for one another are served together, and none by a sync that had
// started before it was submitted.
func TestFlushesShareSync(t *testing.T) {
	var syncs atomic.Int32
	entered, goOn := make(chan struct{}), make(chan struct{})
	s := mustOpen(t, Config{Faults: before(func(c Call) error {
		if c.Name == "fdatasync" && syncs.Add(1) == 1 {
			close(entered)
			<-goOn
		}
		return nil
	})}, false)
	const flushes = 10
	d := make(done, flushes)
	submit := func() { s.Submit(&backend.Op{Kind: backend.Flush, Done: d}) }
	submit()
	<-entered
	for range flushes - 1 {
		submit()
	}
	for s.door.Wanted() < flushes {
		runtime.Gosched() // until all have asked
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
	entered, goOn := make(chan struct{}, 9), make(chan struct{})
	s := mustOpen(t, Config{Faults: before(func(c Call) error {
		if c.Name == "fdatasync" {
			entered <- struct{}{}
			<-goOn
		}
		return nil
	})}, false)
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
		}, func(*worker) { ended <- struct{}{} })
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

// doubt ends the durable write at 0 with an error that may be about it alone, whichever way it goes, and calls again when it is tried again.
type doubt struct {
	again func() error
	syncs atomic.Int32
}

func (d *doubt) Before(c Call) error {
	switch {
	case c.Name == "fdatasync":
		d.syncs.Add(1)
	case c.Name == "pwritev2" && c.Off == 0 && c.Flags&unix.RWF_DSYNC == 0:
		return d.again()
	case c.Name == "pwritev2" && c.Off == 0:
		return unix.ENOSPC
	}
	return nil
}

func (d *doubt) After(c Call) error {
	if c.Name == "pwritev2" && c.Off == 0 {
		return unix.ENOSPC
	}
	return nil
}

// A durable write around the page cache fails, and is tried again, for its error may be about it alone. Another one that goes well meanwhile
// is not good before it is known whether the first was told of a loss: the bytes that are lost may be its own.
func TestDirectWritesBesideDoubt(t *testing.T) {
	for _, m := range modes {
		for _, full := range []error{nil, unix.ENOSPC} {
			if !m.direct {
				continue
			}
			var s *Store
			f, second := new(doubt), make(done, 1)
			f.again = func() error {
				op := alignedWrite(t, 4096, 4096, backend.FUA)
				op.Done = second
				if s.Submit(op) {
					second.OpDone(op)
				}
				for len(second) == 0 && f.syncs.Load() == 0 {
					runtime.Gosched()
				}
				return full
			}
			m.cfg.Faults = f
			s = mustOpen(t, m.cfg, true)
			if err := backendtest.Do(s, alignedWrite(t, 0, 4096, backend.FUA)); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("%s: %v", m.name, err)
			}
			if op := <-second; errors.Is(op.Err, unix.ENOSPC) != (full == nil) {
				t.Errorf("%s: the first write ends with %v at its second try, and the one beside it with %v", m.name, full, op.Err)
			}
			if err := s.Close(); (err != nil) != (full == nil) {
				t.Errorf("%s: close: %v", m.name, err)
			}
		}
	}
}

// What comes after Close, by a mistake, does not go to the descriptor, which may be another file's by then.
func TestAfterClose(t *testing.T) {
	eachMode(t, func(t *testing.T, s *Store, k *kernel) {
		mustClose(t, s)
		before := maps.Clone(k.calls)
		for _, op := range []*backend.Op{alignedWrite(t, 0, 4096, 0), alignedWrite(t, 0, 4096, backend.FUA), read(0, 4096), {Kind: backend.Flush}, {Kind: backend.Discard, Len: 4096}, {Kind: backend.WriteZeroes, Len: 4096}, {Kind: backend.Status, Len: 4096}} {
			if err := backendtest.Do(s, op); err == nil {
				t.Errorf("%v after Close", op.Kind)
			}
		}
		if !maps.Equal(k.calls, before) {
			t.Errorf("the kernel was called: %v", k.calls)
		}
		s.workers.close()
	})
}
