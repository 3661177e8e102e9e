// Package attack is what tests of hostile peers share: an attack with a bound on the memory that it may cost the process which is attacked,
// and a witness, an innocent session that writes and reads back meanwhile.
package attack

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// Bounded does an attack on a process. The test fails if the process has had more memory meanwhile than before, by more than that many MiB.
func Bounded(t testing.TB, pid int, name string, most int64, do func()) {
	t.Helper()
	ForgetPeak(t, pid)
	before := Resident(t, pid)
	do()
	if more := (Peak(t, pid) - before) >> 20; more > most {
		t.Errorf("%s: the memory grew by %d MiB, want at most %d", name, more, most)
	} else {
		t.Logf("%s: %d MiB", name, more)
	}
}

// Resident returns the resident memory of a process in bytes.
func Resident(t testing.TB, pid int) int64 {
	t.Helper()
	return kibibytes(t, pid, "VmRSS:")
}

// Peak returns the most resident memory that a process has had, in bytes.
func Peak(t testing.TB, pid int) int64 {
	t.Helper()
	return kibibytes(t, pid, "VmHWM:")
}

// kibibytes reads a line of /proc/PID/status (proc(5)), and returns bytes.
func kibibytes(t testing.TB, pid int, key string) (n int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err == nil {
		_, after, _ := strings.Cut(string(text), key)
		_, err = fmt.Sscan(after, &n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// ForgetPeak makes Peak count from now on.
func ForgetPeak(t testing.TB, pid int) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
}

// Disk is what a witness uses: the second half of it.
type Disk interface {
	Size() int64
	io.ReaderAt
	io.WriterAt
}

// Witness writes and reads back, and keeps the first error.
type Witness struct {
	t    testing.TB
	stop chan struct{}
	done sync.WaitGroup

	mu     sync.Mutex
	more   sync.Cond // on mu
	rounds int       // guarded by mu
	err    error     // guarded by mu
}

// A pace says for how many times as long as a round of writing and reading back takes a witness rests after it: the processors are for what
// is attacked.
const (
	Often  = 3
	Seldom = 40 // for loads of which each session checks what it reads
)

// Watch starts a witness on disks in turn, of a connection that end ends. The test fails if the connection ends before, or if other bytes
// are read than were written.
func Watch(t testing.TB, pace int, disks []Disk, end func() error) *Witness {
	t.Helper()
	w := &Witness{t: t, stop: make(chan struct{})}
	w.more.L = &w.mu
	w.done.Go(func() {
		pause := time.After(0)
		for i := 0; ; i++ {
			select {
			case <-w.stop:
				return
			case <-pause:
			}
			began := time.Now()
			err := round(disks[i%len(disks)], i)
			pause = time.After(time.Duration(pace) * time.Since(began))
			w.mu.Lock()
			w.rounds, w.err = i+1, err
			w.mu.Unlock()
			w.more.Broadcast()
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		close(w.stop)
		w.done.Wait()
		if w.err != nil {
			t.Errorf("the witness, after %d rounds: %v", w.rounds, w.err)
		}
		if err := end(); err != nil {
			t.Error("the witness: ", err)
		}
	})
	return w
}

// round writes random bytes, and reads them back.
func round(d Disk, i int) error {
	const n = 64 << 10
	want, got := make([]byte, n), make([]byte, n)
	_, _ = rand.Read(want)
	off := d.Size()/2 + int64(i)*n%(d.Size()/2)
	if _, err := d.WriteAt(want, off); err != nil {
		return err
	}
	if _, err := d.ReadAt(got, off); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("other bytes than written at %d", off)
	}
	return nil
}

// Works returns when the witness has done some more rounds.
func (w *Witness) Works() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for enough := w.rounds + 10; w.rounds < enough && w.err == nil; {
		w.more.Wait()
	}
	if w.err != nil {
		w.t.FailNow() // the end of the test reports the reason
	}
}
