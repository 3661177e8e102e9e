package aging

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/faulty"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// It passes the suite of all stores, whether the flushes are its own or those of users.
func TestStore(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) backend.Store {
		return New(backendtest.NewDisk(backendtest.MinSize, 512), Config{Window: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	}, "NoAllocation", "Model", "Disjoint")
}

func write(t testing.TB, s backend.Store, v byte) {
	t.Helper()
	op := &backend.Op{Kind: backend.Write, Len: 512, Segs: [][]byte{bytes.Repeat([]byte{v}, 512)}}
	if err := backendtest.Do(s, op); err != nil {
		t.Fatal(err)
	}
}

// The timer is a real one: a write is durable after half the window, and not before.
func TestTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := backendtest.NewDisk(4096, 512)
		s := New(d, Config{Window: 200 * time.Millisecond})
		for v := range byte(5) {
			write(t, s, v+1)
			time.Sleep(100*time.Millisecond - 1)
			synctest.Wait()
			if d.Crash(nil, 0)[0] == v+1 {
				t.Error("it is durable too early")
			}
			write(t, s, v+1)
			time.Sleep(1 * time.Nanosecond)
			synctest.Wait()
			if d.Crash(nil, 0)[0] != v+1 {
				t.Error("it is not durable in time")
			}
		}
		write(t, s, 9)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
	})
}

// A flush that takes longer than half the window is logged, with what that means, and Close waits for it.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := backendtest.NewDisk(4096, 512)
		ended := 0
		d.After = func(op *backend.Op) {
			if op.Kind == backend.Flush {
				ended++
			}
		}
		f := faulty.New(d, 1)
		f.Delay(faulty.Match{Kinds: []backend.Kind{backend.Flush}}, 150*time.Millisecond)
		var text bytes.Buffer
		s := New(closing{f, func() {
			if ended != 4 {
				t.Errorf("closed after %d flushes", ended)
			}
		}}, Config{Window: 200 * time.Millisecond, Name: "disk1", Logger: slog.New(slog.NewTextHandler(&text, nil))})
		for range 3 {
			write(t, s, 1)
			time.Sleep(300 * time.Millisecond)
		}
		write(t, s, 2)
		time.Sleep(120 * time.Millisecond)
		if err := s.Close(); err != nil { // 130 ms before the end of the flush
			t.Error(err)
		}
		if a, ok := backend.As[backend.Ager](s); !ok || a.Window() != 200*time.Millisecond {
			t.Error("the store says nothing of its window")
		}
		if st := s.(*Store).AgeStats(); st.Longest != 150*time.Millisecond || st.Flushes != 4 {
			t.Errorf("%+v", st)
		}
		if n := strings.Count(text.String(), "store=disk1 window=200ms flush=150ms durable_after=400ms"); n != 1 {
			t.Errorf("the log has it %d times:\n%s", n, text.String())
		}
	})
}

// A barrier that the store refuses makes nothing durable. What was written before it is, in the time that it was promised.
func TestRefusedBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := backendtest.NewDisk(4096, 512)
		s := New(d, Config{Window: 200 * time.Millisecond})
		write(t, s, 1)
		time.Sleep(60 * time.Millisecond)
		op := &backend.Op{Kind: backend.Write, Flags: backend.Barrier, Off: 4096, Len: 512, Segs: [][]byte{make([]byte, 512)}}
		if err := backendtest.Do(s, op); err == nil {
			t.Error("a write beyond the end is possible")
		}
		time.Sleep(40 * time.Millisecond)
		synctest.Wait()
		if d.Crash(nil, 0)[0] != 1 {
			t.Error("what was written before the barrier is not durable in time")
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// closing says when it is closed.
type closing struct {
	*faulty.Store
	closed func()
}

func (c closing) Close() error {
	c.closed()
	return c.Store.Close()
}
