package nbd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// failingDevice cannot write back, and notes what is done with it. It is its kernel, too.
type failingDevice struct{ said []string }

func (d *failingDevice) say(what string) error {
	d.said = append(d.said, what)
	return nil
}

func (d *failingDevice) Sync() error                { return errors.Join(d.say("sync"), unix.EIO) }
func (d *failingDevice) Close() error               { return errors.Join(d.say("close"), unix.EIO) }
func (*failingDevice) Connect(Setting) (int, error) { return 0, unix.ENOTSUP }
func (*failingDevice) Reconfigure(Setting) error    { return unix.ENOTSUP }
func (d *failingDevice) Disconnect(int) error       { return d.say("disconnect") }

// A device whose data cannot be written back stays, unless it is to end all the same.
func TestEnd(t *testing.T) {
	d := new(failingDevice)
	if err := end(d, d, 0, false); !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), "--force") {
		t.Errorf("end returns %v", err)
	}
	if want := []string{"sync", "close"}; !slices.Equal(d.said, want) {
		t.Errorf("without force: %v, want %v", d.said, want)
	}
	d = new(failingDevice)
	if err := end(d, d, 0, true); err != nil {
		t.Errorf("end with force returns %v", err)
	}
	if want := []string{"disconnect", "close"}; !slices.Equal(d.said, want) {
		t.Errorf("with force: %v, want %v", d.said, want)
	}
}

// Who looks whether a device is served is in nobody's way: neither in that of a process that is about to serve it, nor in
// that of another one that looks.
func TestLookDoesNotLock(t *testing.T) {
	index := os.Getpid()%1000*50 + 2
	path := filepath.Join(t.TempDir(), fmt.Sprintf("nbd%d", index))
	check(t, os.Mkdir(path, 0o755))
	check(t, os.WriteFile(filepath.Join(path, "pid"), nil, 0o644))
	var enough atomic.Bool
	var looks sync.WaitGroup
	for range 2 {
		looks.Go(func() {
			for !enough.Load() {
				if _, err := deviceIn(path); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	defer looks.Wait()
	defer enough.Store(true)
	for i := range 2000 {
		if d, err := deviceIn(path); err != nil || d.Served {
			t.Fatalf("look %d, while nobody serves the device: served is %v, %v", i, d.Served, err)
		}
		unlock, err := lock(index)
		if err != nil {
			t.Fatalf("lock %d: %v", i, err)
		}
		if d, err := deviceIn(path); err != nil || !d.Served {
			t.Fatalf("look %d, while somebody serves the device: served is %v, %v", i, d.Served, err)
		}
		unlock()
	}
}
