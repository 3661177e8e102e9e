package file

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"oneshot/backend"
	"oneshot/backend/backendtest"
)

// locked returns a file at path that is locked as long as it is open, by a process that is gone: as after a crash, Open waits for the lock.
func locked(t *testing.T, path string, size int64) *os.File {
	t.Helper()
	f, err := os.Create(path)
	if err == nil {
		err = f.Truncate(size)
	}
	if err != nil {
		t.Fatal(err)
	}
	lock := exec.Command("flock", "--exclusive", "3")
	lock.ExtraFiles = []*os.File{f}
	if out, err := lock.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return f
}

// opened waits until this process has path open twice.
func opened(t *testing.T, path string) {
	t.Helper()
	for n := 0; n < 2; runtime.Gosched() {
		n = 0
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); to == path {
				n++
			}
		}
	}
}

// A file that is removed or replaced while Open waits for its lock is not served: nobody would find what was written to it.
func TestReplacedBeforeLock(t *testing.T) {
	const size = 1 << 20
	for what, replace := range map[string]func(path string) error{
		"removed": os.Remove,
		"replaced": func(path string) error {
			if err := os.WriteFile(path+".new", make([]byte, size), 0o600); err != nil {
				return err
			}
			return os.Rename(path+".new", path)
		},
	} {
		t.Run(what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "disk")
			f := locked(t, path, size)
			type result struct {
				s   *Store
				err error
			}
			made := make(chan result, 1)
			go func() {
				s, err := Open(Config{Path: path, Size: size, Sparse: true})
				made <- result{s, err}
			}()
			opened(t, path)
			if err := replace(path); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			r := <-made
			if r.err != nil {
				t.Fatal(r.err)
			}
			b := make([]byte, 4096)
			b[0] = 1
			if err := backendtest.Do(r.s, &backend.Op{Kind: backend.Write, Len: 4096, Segs: [][]byte{b}}); err != nil {
				t.Error(err)
			}
			if err := r.s.Close(); err != nil {
				t.Error(err)
			}
			if got, err := os.ReadFile(path); err != nil || len(got) != size || got[0] != 1 {
				t.Errorf("%d bytes are at the path, %v; what was written is in no file", len(got), err)
			}
		})
	}
}
