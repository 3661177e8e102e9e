// Package storm tests the daemon with hostile and broken initiators. Meanwhile a witness writes and reads
// back, and notices if it is disturbed.
package storm

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"oneshot/initiator"
	"oneshot/mgmt"
	"oneshot/test/targettest"
)

func TestMain(m *testing.M) { targettest.Main(m) }

const iqn = "iqn.2026-11.example.oneshot:"

// patience is how long an expected event may take, on a machine with other load.
const patience = 2 * time.Minute

// daemon is the daemon, with a client of its management API.
type daemon struct {
	*targettest.Target
	t     *testing.T
	admin *mgmt.Client
	text  string // of the configuration
}

func start(t *testing.T, config string) *daemon {
	t.Helper()
	return watched(t, targettest.Start(t, config))
}

// watched returns the daemon of a target that runs.
func watched(t *testing.T, g *targettest.Target) *daemon {
	t.Helper()
	d := &daemon{Target: g, t: t}
	text, err := os.ReadFile(d.configPath())
	if err != nil {
		t.Fatal(err)
	}
	d.text = string(text)
	d.admin = mgmt.NewClient(filepath.Join(d.Dir, "socket"))
	t.Cleanup(d.admin.Close)
	return d
}

func (d *daemon) configPath() string { return filepath.Join(d.Dir, "target.yaml") }

// reload replaces old by new in the configuration, and makes the daemon read it again.
func (d *daemon) reload(old, new string) error {
	d.t.Helper()
	if !strings.Contains(d.text, old) {
		d.t.Fatalf("the configuration has no %q", old)
	}
	if err := os.WriteFile(d.configPath(), []byte(strings.Replace(d.text, old, new, 1)), 0o600); err != nil {
		d.t.Fatal(err)
	}
	_, err := d.admin.Reload(d.t.Context())
	return err
}

func (d *daemon) status() *mgmt.Status {
	d.t.Helper()
	s, err := d.admin.Status(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	return s
}

// descriptors returns how many descriptors the daemon has open.
func (d *daemon) descriptors() int {
	d.t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.PID()))
	if err != nil {
		d.t.Fatal(err)
	}
	return len(open)
}

// resident returns the resident memory of the daemon in bytes.
func (d *daemon) resident() int64 {
	d.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", d.PID()))
	var total, pages int64
	if err == nil {
		_, err = fmt.Sscan(string(text), &total, &pages)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// until polls until the condition holds, because the daemon does not report it.
func (d *daemon) until(what string, holds func() bool) {
	d.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	over := time.After(patience)
	for !holds() {
		select {
		case <-tick.C:
		case <-over:
			d.t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// logged returns how many lines of the log contain text.
func (d *daemon) logged(text string) int { return strings.Count(d.Log(), text) }

func (d *daemon) login(target string, chap *initiator.Credentials) (*initiator.Session, error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	return initiator.Dial(ctx, initiator.URL{Address: d.Portal(), Target: iqn + target, LUN: -1, CHAP: chap}, initiator.Options{})
}

// witness writes and reads back, and keeps the first error.
type witness struct {
	t    *testing.T
	stop chan struct{}
	done sync.WaitGroup

	mu     sync.Mutex
	more   sync.Cond // on mu
	rounds int       // guarded by mu
	err    error     // guarded by mu
}

// watch starts a witness on both LUNs of target t. The test fails if its session ends, or if it reads
// other bytes than it wrote.
func (d *daemon) watch() *witness {
	d.t.Helper()
	s, err := d.login("t", nil)
	if err != nil {
		d.t.Fatal(err)
	}
	return d.witness(s)
}

// witness is watch over an existing session.
func (d *daemon) witness(s *initiator.Session) *witness {
	d.t.Helper()
	var disks []disk
	for lun := range 2 {
		lu, err := s.LU(d.t.Context(), lun)
		if err != nil {
			d.t.Fatal(err)
		}
		disks = append(disks, lu)
	}
	return d.watchDisks(disks, s.Close)
}

// disk is what a witness uses.
type disk interface {
	Size() int64
	io.ReaderAt
	io.WriterAt
}

// watchDisks starts a witness on disks in turn, of a connection that end ends.
func (d *daemon) watchDisks(disks []disk, end func() error) *witness {
	d.t.Helper()
	w := &witness{t: d.t, stop: make(chan struct{})}
	w.more.L = &w.mu
	w.done.Go(func() {
		pause := time.After(0)
		for i := 0; ; i++ {
			select {
			case <-w.stop:
				return
			case <-pause: // the processors are for what is attacked
			}
			began := time.Now()
			err := round(disks[i%len(disks)], i)
			pause = time.After(3 * time.Since(began))
			w.mu.Lock()
			w.rounds, w.err = i+1, err
			w.mu.Unlock()
			w.more.Broadcast()
			if err != nil {
				return
			}
		}
	})
	d.t.Cleanup(func() {
		close(w.stop)
		w.done.Wait()
		if w.err != nil {
			d.t.Errorf("the witness, after %d rounds: %v", w.rounds, w.err)
		}
		if err := end(); err != nil {
			d.t.Error("the witness: ", err)
		}
	})
	return w
}

// round writes random bytes, and reads them back.
func round(lu disk, i int) error {
	const n = 64 << 10
	want, got := make([]byte, n), make([]byte, n)
	_, _ = rand.Read(want)
	off := lu.Size()/2 + int64(i)*n%(lu.Size()/2)
	if _, err := lu.WriteAt(want, off); err != nil {
		return err
	}
	if _, err := lu.ReadAt(got, off); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("other bytes than written at %d", off)
	}
	return nil
}

// bounded is for tests of how much memory the daemon takes, which the race detector multiplies: short runs, which it watches,
// leave them out.
func bounded(t *testing.T) {
	if testing.Short() {
		t.Skip("not in short runs")
	}
}

// works returns when the witness has done some more rounds.
func (w *witness) works() {
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
