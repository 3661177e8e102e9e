package fdio

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/uring"
	"oneshot/mem"
)

// submitted returns op counted in, as Submit and the ring do before the kernel has it.
func submitted(s *Store, op *backend.Op, d done) request {
	op.Done = d
	s.seq.Enter(op)
	q := request{op: op}
	if op.Kind == backend.Write && s.durable(op) {
		q.token = s.door.Enter()
	}
	return q
}

// Whatever the ring answers other than success, the operation is done again by a worker and
// has that worker's answer: short, cancelled for the end of a thread, interrupted, failed.
func TestRingAnswers(t *testing.T) {
	s := mustOpen(t, Config{IO: Uring}, false)
	defer mustClose(t, s)
	d := make(done, 1)
	for _, res := range []int32{0, 1, 511, -int32(unix.ECANCELED), -int32(unix.EAGAIN), -int32(unix.EINTR), -int32(unix.EIO)} {
		s.ring.settle(submitted(s, write(512, 512, byte(res), 0), d), res)
		if op := <-d; op.Err != nil {
			t.Errorf("write after %d: %v", res, op.Err)
		}
		s.ring.settle(submitted(s, read(512, 512), d), res)
		if op := <-d; op.Err != nil || op.Segs[0][511] != byte(res) {
			t.Errorf("read after %d: %v, %v", res, op.Err, op.Segs[0][511])
		}
	}
}

// A write with FUA that failed in the ring: if it was not begun, or the disk is full, a worker
// has the answer. Otherwise the kernel may have told of a loss, which it does not do a second
// time: the store promises nothing more.
func TestRingLosesDurability(t *testing.T) {
	s := mustOpen(t, Config{IO: Uring}, true)
	d := make(done, 1)
	block := s.info.BlockSize
	fua := func() *backend.Op {
		return &backend.Op{Kind: backend.Write, Len: int64(block), Segs: [][]byte{aligned(t, block)}, Flags: backend.FUA}
	}
	s.ring.settle(submitted(s, fua(), d), 256)
	if op := <-d; op.Err != nil {
		t.Errorf("after a short transfer: %v", op.Err)
	}
	for _, errno := range []unix.Errno{unix.EAGAIN, unix.EINTR, unix.ECANCELED} { // nothing was begun
		s.ring.settle(submitted(s, fua(), d), -int32(errno))
		if op := <-d; op.Err != nil {
			t.Errorf("after %v: %v", errno, op.Err)
		}
	}
	s.ring.settle(submitted(s, fua(), d), -int32(unix.EIO))
	if op := <-d; !errors.Is(op.Err, unix.EIO) {
		t.Errorf("after EIO: %v", op.Err)
	}
	if op := fua(); s.ring.takes(op) {
		t.Error("the ring takes a write that has to be durable")
	} else if err := backendtest.Do(s, op); !errors.Is(err, unix.EIO) {
		t.Errorf("the next one: %v", err)
	}
	plain := fua()
	plain.Flags = 0
	if err := backendtest.Do(s, plain); err != nil {
		t.Errorf("a plain write: %v", err)
	}
	if err := s.Close(); !errors.Is(err, unix.EIO) {
		t.Errorf("close: %v", err)
	}
}

// A file cut short: the ring reads less than asked, and the answer says from where on.
func TestRingShortFile(t *testing.T) {
	s := mustOpen(t, Config{IO: Uring}, true)
	defer mustClose(t, s)
	if err := unix.Ftruncate(s.fd, 8192); err != nil {
		t.Fatal(err)
	}
	b := aligned(t, 16384)
	for off, want := range map[int64]int64{0: 8192, 4096: 8192, 16384: 16384} {
		op := &backend.Op{Kind: backend.Read, Off: off, Len: 16384, Segs: [][]byte{b}}
		if !s.ring.takes(op) {
			t.Fatal("not for the ring")
		}
		err := backendtest.Do(s, op)
		if e, ok := errors.AsType[*backend.MediumError](err); !ok || e.Off != want || !errors.Is(err, errTruncated) {
			t.Errorf("read at %d: %v", off, err)
		}
	}
}

func aligned(t *testing.T, n int) []byte {
	p := mem.NewPool(int64(mem.RoundUp(n)))
	l := p.Lease(n)
	t.Cleanup(func() { l.Release(); p.Close() })
	return l.Bytes()
}

// More operations than the kernel is given at once, and nothing starts before the kick.
func TestRingHolds(t *testing.T) {
	s := mustOpen(t, Config{IO: Uring}, true)
	defer mustClose(t, s)
	const n = 3 * ringDepth
	block := s.info.BlockSize
	b := aligned(t, n*block)
	d := make(done, n)
	ops := make([]backend.Op, n)
	for _, kind := range []backend.Kind{backend.Write, backend.Read} {
		for i := range ops {
			seg := b[i*block:][:block]
			if kind == backend.Write {
				copy(seg, bytes.Repeat([]byte{byte(i), byte(i >> 8)}, block/2))
			} else {
				clear(seg)
			}
			ops[i] = backend.Op{Kind: kind, Off: int64(i * block), Len: int64(block), Segs: [][]byte{seg}, Done: d, Flags: backend.More}
			if s.Submit(&ops[i]) {
				t.Fatal("completed at once")
			}
		}
		if len(d) != 0 {
			t.Error("started before the kick")
		}
		s.Kick()
		for range n {
			if op := <-d; op.Err != nil {
				t.Fatal(op.Err)
			}
		}
		for i := range ops {
			if want := bytes.Repeat([]byte{byte(i), byte(i >> 8)}, block/2); !bytes.Equal(b[i*block:][:block], want) {
				t.Fatalf("%v: block %d is another", kind, i)
			}
		}
	}
	if len(s.ring.slots) != ringDepth || len(s.ring.free) != ringDepth {
		t.Errorf("%d slots, %d of them free", len(s.ring.slots), len(s.ring.free))
	}
}

// What the kernel does not take is done by workers, and so is what waits for a slot.
func TestRingRefused(t *testing.T) {
	s := mustOpen(t, Config{IO: Uring}, true)
	defer mustClose(t, s)
	const n = ringDepth + 2
	d := make(done, n)
	b := aligned(t, n*4096)
	s.ring.mu.Lock()
	for i := range n {
		s.ring.enter(submitted(s, &backend.Op{Kind: backend.Write, Off: int64(i) * 4096, Len: 4096, Segs: [][]byte{b[i*4096:][:4096]}}, d).op)
	}
	s.ring.withdraw()
	held := s.ring.held.Len()
	s.ring.mu.Unlock()
	for range n - held {
		if op := <-d; op.Err != nil {
			t.Error(op.Err)
		}
	}
	if held != 0 {
		t.Errorf("%d operations wait for completions, and none is to come", held)
	}
	if len(s.ring.free) != ringDepth {
		t.Errorf("%d slots are free", len(s.ring.free))
	}
}

// Many completions at once call helpers, which end.
func TestRingHelpers(t *testing.T) {
	s := mustOpen(t, Config{IO: Uring}, true)
	b := aligned(t, ringDepth*4096)
	var at, most atomic.Int32
	left := make(chan struct{}, ringDepth)
	count := completer(func(*backend.Op) {
		most.Store(max(most.Load(), at.Add(1)))
		at.Add(-1)
		left <- struct{}{}
	})
	ops := make([]backend.Op, ringDepth)
	for range 20 {
		for i := range ops {
			ops[i] = backend.Op{Kind: backend.Read, Off: int64(i) * 4096, Len: 4096, Segs: [][]byte{b[i*4096:][:4096]}, Done: count, Flags: backend.More}
			s.Submit(&ops[i])
		}
		s.Kick()
		for range ops {
			<-left
		}
	}
	mustClose(t, s)
	if s.ring.reapers != 0 {
		t.Errorf("%d helpers are left", s.ring.reapers)
	}
	if n := most.Load(); n < 1 || n > maxReapers {
		t.Errorf("%d goroutines completed at once", n)
	}
}

// Who waits for many completions himself calls no helper, which would have to be woken.
func TestAwaitNeedsNoHelp(t *testing.T) {
	s := mustOpen(t, Config{IO: Uring}, true)
	defer mustClose(t, s)
	r, err := newRing(s) // nobody serves it: what completes, Await takes
	if err != nil {
		t.Fatal(err)
	}
	r.help = func() {
		defer r.wg.Done()
		t.Error("a helper was called")
	}
	b := aligned(t, ringDepth*4096)
	ops, left := make([]backend.Op, ringDepth), 0
	count := completer(func(*backend.Op) { left-- })
	for range 20 {
		for left = range ops {
			ops[left] = backend.Op{Kind: backend.Read, Off: int64(left) * 4096, Len: 4096, Segs: [][]byte{b[left*4096:][:4096]}, Done: count, Flags: backend.More}
			s.seq.Enter(&ops[left])
			r.start(&ops[left])
		}
		r.kick()
		for left++; left > 0; {
			r.await()
		}
	}
	if err := r.close(); err != nil {
		t.Error(err)
	}
}

// corker is a Completer of several operations.
type corker struct {
	log []string
}

func (c *corker) OpDone(op *backend.Op)  { c.log = append(c.log, "done") }
func (c *corker) Cork() backend.Uncorker { c.log = append(c.log, "cork"); return c }
func (c *corker) Uncork()                { c.log = append(c.log, "uncork") }

// What completes together is told together: a cork for all but the last, and each taken out
// when all are told.
func TestRingCorks(t *testing.T) {
	s := mustOpen(t, Config{IO: Uring}, true)
	defer mustClose(t, s)
	c := &corker{}
	var ops []request
	var cqes []uring.CQE
	for range 3 {
		op := read(0, 512)
		op.Done = c
		s.seq.Enter(op)
		ops, cqes = append(ops, request{op: op}), append(cqes, uring.CQE{Res: 512})
	}
	s.ring.deliver(cqes, ops)
	if got := strings.Join(c.log, " "); got != "cork cork done done done uncork uncork" {
		t.Error(got)
	}
}

type completer func(*backend.Op)

func (f completer) OpDone(op *backend.Op) { f(op) }

// seccompEnv makes the test process one that may not have a ring: the error it gets instead.
const seccompEnv = "ONESHOT_NO_IO_URING"

// Where the kernel has no io_uring, or forbids it, auto does without and uring says why.
func TestWithoutRing(t *testing.T) {
	if name := os.Getenv(seccompEnv); name != "" {
		withoutRing(t, map[string]unix.Errno{"ENOSYS": unix.ENOSYS, "EPERM": unix.EPERM}[name])
		return
	}
	for _, name := range []string{"ENOSYS", "EPERM"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestWithoutRing$", "-test.v")
		cmd.Env = append(os.Environ(), seccompEnv+"="+name)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS: TestWithoutRing") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

func withoutRing(t *testing.T, errno unix.Errno) {
	forbidRing(t, errno)
	s := mustOpen(t, Config{IO: Auto}, true)
	if s.ring != nil {
		t.Error("auto has a ring")
	}
	if err := backendtest.Do(s, write(0, 4096, 3, 0)); err != nil {
		t.Error(err)
	}
	_, err := New(Config{FD: s.fd, Kind: "test store", IO: Uring, Medium: plain(s.fd), Info: s.info})
	if _, ok := errors.AsType[*uring.UnavailableError](err); !ok || !errors.Is(err, errno) || !strings.Contains(err.Error(), "set io to auto or threads") {
		t.Errorf("uring: %v", err)
	}
	mustClose(t, s)
}

// forbidRing has the kernel answer io_uring_setup with errno, in this process for good
// (seccomp(2)).
func forbidRing(t *testing.T, errno unix.Errno) {
	const loadNumber, equal, ret = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	filter := []unix.SockFilter{
		{Code: loadNumber},
		{Code: equal, K: unix.SYS_IO_URING_SETUP, Jf: 1},
		{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
		{Code: ret, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog))); e != 0 {
		t.Fatal(e)
	}
}

// What somebody waits for is delivered by him or by others, and nothing is left lying: not what comes while nobody else
// may take it.
func TestAwait(t *testing.T) {
	s := mustOpen(t, Config{IO: Uring}, true)
	defer mustClose(t, s)
	if s.Await() {
		t.Error("there is something to wait for in a store that rests")
	}
	var all sync.WaitGroup
	var awaited atomic.Int32
	for g := range 3 {
		b := aligned(t, 8*4096)
		all.Go(func() {
			for range 50 {
				var left atomic.Int32
				left.Store(8)
				over := make(chan struct{})
				count := completer(func(op *backend.Op) {
					if op.Err != nil {
						t.Error(op.Err)
					}
					if left.Add(-1) == 0 {
						close(over)
					}
				})
				ops := make([]backend.Op, 8)
				for i := range ops {
					ops[i] = backend.Op{Kind: backend.Write, Off: int64(g*8+i) * 4096, Len: 4096, Segs: [][]byte{b[i*4096:][:4096]}, Done: count, Flags: backend.More}
					s.Submit(&ops[i])
				}
				s.Kick()
				for left.Load() > 0 && s.Await() {
					awaited.Add(1)
				}
				<-over
			}
		})
	}
	all.Wait()
	if awaited.Load() == 0 {
		t.Error("nobody has waited")
	}
	rests := func() bool { // who has delivered the last answer may be about to say so
		s.ring.reapMu.Lock()
		defer s.ring.reapMu.Unlock()
		return !s.ring.awaited && s.ring.inside == 0
	}
	for !rests() {
		runtime.Gosched()
	}
}

// Whoever waits takes what comes, and others do not: they would have to wake him.
func TestAwaitTakes(t *testing.T) {
	s := mustOpen(t, Config{IO: Uring}, true)
	defer mustClose(t, s)
	set := func(v bool) {
		s.ring.reapMu.Lock()
		s.ring.awaited = v
		s.ring.reapMu.Unlock()
	}
	set(true) // as if somebody were on his way into the kernel
	d := make(done, 1)
	op := &backend.Op{Kind: backend.Read, Len: 4096, Segs: [][]byte{aligned(t, 4096)}, Done: d}
	s.Submit(op)
	s.ring.u.Wait(time.Minute)
	s.ring.reap(true) // as Serve does
	if len(d) != 0 || s.Await() {
		t.Error("somebody else has taken what is waited for, or waits, too")
	}
	set(false)
	s.Await() // unless Serve is about to look for the first time, it takes it
	<-d
}
