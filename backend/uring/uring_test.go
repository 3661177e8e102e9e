package uring

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client is a ring over a file, and what has completed there.
type client struct {
	t    *testing.T
	r    *Ring
	f    *os.File
	done chan CQE
	end  chan error
}

func newClient(t *testing.T, entries int) *client {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(int(f.Fd()), entries)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, r: r, f: f, done: make(chan CQE, 1024), end: make(chan error, 1)}
	go func() { c.end <- r.Serve(c.reap) }()
	t.Cleanup(func() {
		if err := errors.Join(r.Stop(), <-c.end, r.Close(), f.Close()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *client) reap() {
	var out [3]CQE
	for more := true; more; {
		var n int
		n, more = c.r.Reap(out[:])
		for _, e := range out[:n] {
			c.done <- e
		}
	}
}

// put fills an entry in; false: there is none.
func (c *client) put(op uint8, off int, b []byte, data uint64) bool {
	e := c.r.Next()
	if e == nil {
		return false
	}
	e.Op, e.Off, e.UserData = op, uint64(off), data
	e.Addr, e.Len = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), uint32(len(b))
	return true
}

func (c *client) submit() {
	c.t.Helper()
	if err := c.r.Submit(); err != nil {
		c.t.Fatal(err)
	}
}

// A batch goes in with one call, comes back whole, and the bytes are those that were written,
// round after round over the end of the queues.
func TestBatches(t *testing.T) {
	const entries, n = 8, 512
	c := newClient(t, entries)
	for round := range 50 {
		var bufs [entries][]byte
		for i := range bufs {
			bufs[i] = bytes.Repeat([]byte{byte(round + i)}, n)
			if !c.put(OpWrite, i*n, bufs[i], uint64(i)) {
				t.Fatalf("round %d: no room for entry %d", round, i)
			}
		}
		if c.put(OpWrite, 0, bufs[0], 99) {
			t.Fatal("the queue has more room than it was made with")
		}
		c.submit()
		seen := map[uint64]bool{}
		for range entries {
			e := <-c.done
			if e.Res != n || seen[e.UserData] {
				t.Fatalf("round %d: %+v", round, e)
			}
			seen[e.UserData] = true
		}
		got := make([]byte, n*entries)
		var iov [2]unix.Iovec
		iov[0].Base, iov[1].Base = &got[0], &got[1000]
		iov[0].SetLen(1000)
		iov[1].SetLen(len(got) - 1000)
		e := c.r.Next()
		e.Op, e.Addr, e.Len, e.UserData = OpReadv, uint64(uintptr(unsafe.Pointer(&iov[0]))), 2, 7
		c.submit()
		if e := <-c.done; int(e.Res) != len(got) || e.UserData != 7 {
			t.Fatalf("read: %+v", e)
		}
		for i := range bufs {
			if !bytes.Equal(got[i*n:][:n], bufs[i]) {
				t.Fatalf("round %d: block %d is not what was written", round, i)
			}
		}
	}
}

// What the kernel refuses comes back as a completion, short reads as what they are.
func TestAnswers(t *testing.T) {
	c := newClient(t, 4)
	if _, err := c.f.WriteAt(make([]byte, 100), 0); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 512)
	c.put(OpRead, 0, b, 1)
	c.put(OpRead, 4096, b, 2)
	c.put(200, 0, b, 3) // no such operation
	c.put(OpRead, 0, b, 4)
	c.submit()
	want := map[uint64]int32{1: 100, 2: 0, 3: -int32(unix.EINVAL), 4: 100}
	for range 4 {
		if e := <-c.done; e.Res != want[e.UserData] {
			t.Errorf("entry %d: %d, want %d", e.UserData, e.Res, want[e.UserData])
		}
	}
}

func TestWithdraw(t *testing.T) {
	c := newClient(t, 4)
	b := []byte{1}
	for i := range uint64(4) {
		c.put(OpWrite, 0, b, 10+i)
	}
	var back []uint64
	c.r.Withdraw(func(n uint64) { back = append(back, n) })
	if len(back) != 4 || back[0] != 10 || back[3] != 13 {
		t.Errorf("withdrawn: %v", back)
	}
	c.submit() // nothing
	if !c.put(OpWrite, 0, b, 20) {
		t.Fatal("the queue is still full")
	}
	c.submit()
	if e := <-c.done; e.UserData != 20 || e.Res != 1 {
		t.Errorf("%+v", e)
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(-5, 8); err == nil || !strings.Contains(err.Error(), "register the file") {
		t.Errorf("a file that is none: %v", err)
	}
	for errno, want := range map[unix.Errno]string{
		unix.ENOSYS: "seccomp", unix.EPERM: "kernel.io_uring_disabled", unix.ENOMEM: "could not be made",
	} {
		err := unavailable(errno)
		if _, ok := errors.AsType[*UnavailableError](err); !ok || !errors.Is(err, errno) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", errno, err)
		}
	}
}

// Wait returns when something completes, whoever reaps it, and in time when nothing does.
func TestWait(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(int(f.Fd()), 4)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, r: r, f: f}
	begin := time.Now()
	r.Wait(time.Millisecond)
	if took := time.Since(begin); took < time.Millisecond {
		t.Errorf("it waited for %v", took)
	}
	c.put(OpWrite, 0, []byte{1}, 7)
	c.submit()
	r.Wait(time.Hour)
	var out [4]CQE
	if n, _ := r.Reap(out[:]); n != 1 || out[0].UserData != 7 {
		t.Errorf("%d completions, %+v", n, out[0])
	}
	if err := errors.Join(r.Stop(), r.Close(), f.Close()); err != nil {
		t.Error(err)
	}
}

// While somebody is in Wait, what completes does not wake the poller; afterwards it does.
func TestWaitIsQuiet(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	r, err := New(pipe[0], 4)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, r: r}
	told := func() bool { // the kernel has written to the descriptor since the last call
		var b [8]byte
		n, err := unix.Read(int(r.event.Fd()), b[:])
		return n == 8 && err == nil
	}
	b := make([]byte, 1)
	for round := range 10 {
		c.put(OpRead, 0, b, uint64(round))
		c.submit()
		written := make(chan error)
		go func() {
			for atomic.LoadUint32(r.cqFlags) == 0 {
				runtime.Gosched()
			}
			_, err := unix.Write(pipe[1], []byte{1})
			written <- err
		}()
		r.Wait(time.Hour)
		if err := <-written; err != nil {
			t.Fatal(err)
		}
		if told() {
			t.Fatal("what somebody waits for wakes the poller, too")
		}
		var out [4]CQE
		if n, _ := r.Reap(out[:]); n != 1 || out[0].Res != 1 {
			t.Fatalf("%d completions, %+v", n, out[0])
		}
		if _, err := unix.Write(pipe[1], []byte{1}); err != nil {
			t.Fatal(err)
		}
		c.put(OpRead, 0, b, 99)
		c.submit()
		for !told() { // a thread of the kernel may do it
			runtime.Gosched()
		}
		r.Reap(out[:])
	}
	if err := errors.Join(r.Stop(), r.Close(), unix.Close(pipe[0]), unix.Close(pipe[1])); err != nil {
		t.Error(err)
	}
}
