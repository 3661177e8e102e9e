package file

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/fdio"
)

func TestMain(m *testing.M) {
	if os.Getenv(crashEnv) != "" {
		crashChild(os.Getenv(crashEnv))
		return
	}
	if os.Getenv(ringEnv) != "" {
		ringChild(os.Getenv(ringEnv))
		return
	}
	goleak.VerifyTestMain(m)
}

// logTo returns a logger whose lines come together in the builder.
func logTo(b *strings.Builder) *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

func mustOpen(t testing.TB, cfg Config) *Store {
	t.Helper()
	if cfg.Path == "" {
		cfg.Path = filepath.Join(t.TempDir(), "disk.img")
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustClose(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// tmpfs mounts a file system of size bytes in memory, which says no to other things than
// the one that tests usually run on.
func tmpfs(t *testing.T, size int) string {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Fatalf("mount a tmpfs, for which tests run as root: %v", err)
	}
	t.Cleanup(func() {
		// A ring lets go of its files some time after it is closed.
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

func TestFile(t *testing.T) {
	const size = backendtest.MinSize + 3*4096
	for name, cfg := range map[string]Config{
		"sparse":       {Sparse: true},
		"allocated":    {},
		"writethrough": {Sparse: true, Cache: Writethrough},
		"direct":       {Sparse: true, Direct: true},
		"direct 4096":  {Direct: true, Cache: Writethrough, BlockSize: 4096},
		"block 4096":   {Sparse: true, BlockSize: 4096},
		"threads":      {Sparse: true, Direct: true, IO: fdio.Threads},
		"ring":         {Sparse: true, IO: fdio.Uring},
	} {
		t.Run(name, func(t *testing.T) {
			backendtest.Run(t, func(t *testing.T) backend.Store {
				cfg := cfg
				cfg.Size = size
				return mustOpen(t, cfg)
			})
		})
	}
	t.Run("tmpfs", func(t *testing.T) {
		backendtest.Run(t, func(t *testing.T) backend.Store {
			return mustOpen(t, Config{Path: filepath.Join(tmpfs(t, 2*size), "disk.img"), Size: size, Sparse: true})
		})
	})
}

func TestOpenCreates(t *testing.T) {
	for _, sparse := range []bool{true, false} {
		path := filepath.Join(t.TempDir(), "disk.img")
		s := mustOpen(t, Config{Path: path, Size: 1 << 20, Sparse: sparse})
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		if st.Size != 1<<20 || st.Mode&0o777 != 0o600 {
			t.Errorf("sparse=%v: %d bytes, mode %o", sparse, st.Size, st.Mode)
		}
		if allocated := st.Blocks * 512; sparse != (allocated < 1<<20) {
			t.Errorf("sparse=%v: %d bytes allocated", sparse, allocated)
		}
		if i := s.Info(); i.Size != 1<<20 || i.BlockSize != 512 || sparse != (i.DiscardGranularity > 0) || !i.VolatileCache {
			t.Errorf("sparse=%v: %+v", sparse, i)
		}
		mustClose(t, s)
	}
}

// A store comes back with its bytes, and grows.
func TestOpenAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	want := strings.Repeat("oneshot!", 64)
	s := mustOpen(t, Config{Path: path, Size: 1 << 20, Sparse: true, Cache: Writethrough})
	if s.Info().VolatileCache {
		t.Error("writethrough has a volatile cache")
	}
	if err := backendtest.Do(s, &backend.Op{Kind: backend.Write, Off: 512, Len: 512, Segs: [][]byte{[]byte(want)}}); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	for _, c := range []struct{ size, want int64 }{{0, 1 << 20}, {1 << 20, 1 << 20}, {2 << 20, 2 << 20}, {0, 2 << 20}} {
		for _, sparse := range []bool{true, false} {
			s := mustOpen(t, Config{Path: path, Size: c.size, Sparse: sparse})
			b := make([]byte, 512)
			err := backendtest.Do(s, &backend.Op{Kind: backend.Read, Off: 512, Len: 512, Segs: [][]byte{b}})
			if s.Info().Size != c.want || err != nil || string(b) != want {
				t.Errorf("size %d: %+v, %v", c.size, s.Info(), err)
			}
			mustClose(t, s)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	has := func(name string, n int) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, make([]byte, n), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cfg  Config
		want string // what the message says
	}{
		{Config{Path: filepath.Join(dir, "missing")}, "give a size"},
		{Config{Path: filepath.Join(dir, "no", "where"), Size: 512}, "no does not exist; create it"},
		{Config{Path: dir, Size: 512}, "regular file"},
		{Config{Path: fifo, Size: 512}, "not a regular file"},
		{Config{Path: has("empty", 0)}, "is empty; give a size"},
		{Config{Path: has("large", 4096), Size: 2048}, "set it to 4096"},
		{Config{Path: has("odd", 1000)}, "1024 would be"},
		{Config{Path: has("odd2", 512), Size: 4096 + 512, BlockSize: 4096}, "not a multiple of the block size 4096"},
		{Config{Path: has("size", 512), Size: -1}, "has to be positive"},
		{Config{Path: has("block", 512), BlockSize: 1000}, "power of two"},
		{Config{Path: has("cache", 512), Cache: 7}, "unknown cache mode"},
		{Config{Path: filepath.Join(tmpfs(t, 1<<20), "f"), Size: 1 << 30}, "set sparse to true"},
	} {
		s, err := Open(c.cfg)
		if err == nil {
			mustClose(t, s)
			t.Errorf("%+v: no error", c.cfg)
			continue
		}
		if msg := err.Error(); !strings.Contains(msg, c.want) || !strings.Contains(msg, c.cfg.Path) || strings.Contains(msg, "\n") {
			t.Errorf("%+v: %q, want %q in one line with the path", c.cfg, msg, c.want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "missing")); err == nil {
		t.Error("a file was left behind")
	}
}

// A file that could not be allocated is not left behind.
func TestOpenCleansUp(t *testing.T) {
	path := filepath.Join(tmpfs(t, 1<<20), "disk.img")
	if _, err := Open(Config{Path: path, Size: 1 << 30}); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("1 GiB on 1 MiB: %v", err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
}

func TestLock(t *testing.T) {
	cfg := Config{Path: filepath.Join(t.TempDir(), "disk.img"), Size: 4096}
	s := mustOpen(t, cfg)
	_, err := Open(cfg)
	if err == nil || !strings.Contains(err.Error(), "in use by another store of this process") {
		t.Errorf("second store: %v", err)
	}
	mustClose(t, s)
	mustClose(t, mustOpen(t, cfg))
}

// A punched hole gives its space back to the file system.
func TestDiscardFreesSpace(t *testing.T) {
	s := mustOpen(t, Config{Size: 8 << 20, Sparse: true})
	defer mustClose(t, s)
	used := func() int64 {
		if err := backendtest.Do(s, &backend.Op{Kind: backend.Flush}); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(s.Path(), &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	if err := backendtest.Do(s, &backend.Op{Kind: backend.Write, Len: 4 << 20, Segs: [][]byte{filled(4<<20, 1)}}); err != nil {
		t.Fatal(err)
	}
	full := used()
	if err := backendtest.Do(s, &backend.Op{Kind: backend.Discard, Len: 3 << 20}); err != nil {
		t.Fatal(err)
	}
	if rest := used(); full-rest < 3<<20 {
		t.Errorf("%d bytes used before the discard of 3 MiB, %d after", full, rest)
	}
}

func filled(n int, v byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = v
	}
	return b
}
