package device

import (
	"errors"
	"flag"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/fdio"
)

// devices are what the suite runs on besides loop devices. They are overwritten.
var devices = flag.String("devices", "", "block devices to overwrite, separated by commas")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustOpen(t *testing.T, cfg Config) *Store {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustClose(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func read(off, n int64) *backend.Op {
	return &backend.Op{Kind: backend.Read, Off: off, Len: n, Segs: [][]byte{make([]byte, n)}}
}

func write(off, n int64, v byte) *backend.Op {
	op := &backend.Op{Kind: backend.Write, Off: off, Len: n, Segs: [][]byte{make([]byte, n)}}
	for i := range op.Segs[0] {
		op.Segs[0][i] = v
	}
	return op
}

var variants = map[string]Config{
	"direct ring":    {IO: fdio.Uring},
	"direct threads": {IO: fdio.Threads},
	"through":        {Through: true},
	"buffered":       {Buffered: true},
	"buffered ring":  {Buffered: true, IO: fdio.Uring},
}

func TestDevice(t *testing.T) {
	suite := func(cfg Config, block int) func(*testing.T) {
		return func(t *testing.T) {
			backendtest.Run(t, func(t *testing.T) backend.Store {
				cfg := cfg
				cfg.Path = backendtest.NewLoop(t, backendtest.MinSize+3*4096, block).Path
				return mustOpen(t, cfg)
			})
		}
	}
	for name, cfg := range variants {
		t.Run(name, suite(cfg, 512))
	}
	t.Run("blocks of 4096", suite(Config{}, 4096))
}

// TestOthers runs the suite on the devices that the flag names; test/vm has some.
func TestOthers(t *testing.T) {
	for path := range strings.FieldsFuncSeq(*devices, func(r rune) bool { return r == ',' }) {
		for name, cfg := range variants {
			cfg.Path = path
			t.Run(filepath.Base(path)+" "+name, func(t *testing.T) {
				backendtest.Run(t, func(t *testing.T) backend.Store {
					s := mustOpen(t, cfg)
					for off := int64(0); off < s.Info().Size; off += 1 << 20 { // the suite wants a blank one
						n := min(1<<20, s.Info().Size-off)
						if err := backendtest.Do(s, &backend.Op{Kind: backend.Discard, Off: off, Len: n}); err != nil {
							t.Fatal(err)
						}
					}
					return s
				}, except(path)...)
			})
		}
	}
}

// except names the tests that a device cannot pass. Linux's RAM disk (brd) copies a block without a
// lock, so that two writes of it may mix; drives write a block as a whole.
func except(path string) []string {
	if strings.HasPrefix(path, "/dev/ram") {
		return []string{"Untorn"}
	}
	return nil
}

func TestInfo(t *testing.T) {
	for _, c := range []struct {
		block    int
		buffered bool
		want     backend.Info
	}{
		{512, false, backend.Info{Size: 8 << 20, BlockSize: 512, PhysicalBlockSize: 512}},
		{4096, false, backend.Info{Size: 8 << 20, BlockSize: 4096, PhysicalBlockSize: 4096}},
		{4096, true, backend.Info{Size: 8 << 20, BlockSize: 4096, PhysicalBlockSize: 4096}},
	} {
		s := mustOpen(t, Config{Path: backendtest.NewLoop(t, 8<<20, c.block).Path, Buffered: c.buffered})
		got := s.Info()
		if got.DiscardGranularity < int64(c.block) || !got.VolatileCache || !got.StatusUnknown {
			t.Errorf("%+v", got)
		}
		if got.Size != c.want.Size || got.BlockSize != c.want.BlockSize || got.PhysicalBlockSize != c.want.PhysicalBlockSize {
			t.Errorf("block %d: %+v, want %+v", c.block, got, c.want)
		}
		mustClose(t, s)
	}
}

// A discard is passed through: the file below the loop device gives its space back. Clearing
// keeps it.
func TestPassesThrough(t *testing.T) {
	l := backendtest.NewLoop(t, 8<<20, 512)
	s := mustOpen(t, Config{Path: l.Path})
	defer mustClose(t, s)
	used := func() int64 {
		t.Helper()
		if err := backendtest.Do(s, &backend.Op{Kind: backend.Flush}); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(l.File, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	if err := backendtest.Do(s, write(0, 4<<20, 1)); err != nil {
		t.Fatal(err)
	}
	full := used()
	if err := backendtest.Do(s, &backend.Op{Kind: backend.WriteZeroes, Off: 3 << 20, Len: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if now := used(); full-now > 64<<10 {
		t.Errorf("%d bytes used before write-zeroes, %d after", full, now)
	}
	if err := backendtest.Do(s, &backend.Op{Kind: backend.Discard, Len: 3 << 20}); err != nil {
		t.Fatal(err)
	}
	if now := used(); full-now < 3<<20 {
		t.Errorf("%d bytes used before the discard of 3 MiB, %d after", full, now)
	}
	if op := read(3<<20-512, 1024); backendtest.Do(s, op) != nil || strings.Trim(string(op.Segs[0]), "\x00") != "" {
		t.Error("what was cleared does not read as zeroes")
	}
}

// A device that cannot do both at once is discarded and cleared.
func TestDiscardAndClear(t *testing.T) {
	s := mustOpen(t, Config{Path: backendtest.NewLoop(t, 4<<20, 512).Path})
	defer mustClose(t, s)
	if err := backendtest.Do(s, write(0, 1<<20, 1)); err != nil {
		t.Fatal(err)
	}
	if err := medium(s.fd).discardAndClear(4096, 8192); err != nil {
		t.Fatal(err)
	}
	op := read(0, 16384)
	want := strings.Repeat("\x01", 4096) + strings.Repeat("\x00", 8192) + strings.Repeat("\x01", 4096)
	if err := backendtest.Do(s, op); err != nil || string(op.Segs[0]) != want {
		t.Errorf("the range is not clear, or others are: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	l, used, mounted, small := backendtest.NewLoop(t, 4<<20, 4096), backendtest.NewLoop(t, 4<<20, 512), backendtest.NewLoop(t, 16<<20, 512), backendtest.NewLoop(t, 1<<20, 512)
	s := mustOpen(t, Config{Path: used.Path})
	defer mustClose(t, s)
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", mounted.Path).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
	if err := unix.Mount(mounted.Path, dir, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	for _, c := range []struct {
		cfg  Config
		want string // what the message says
	}{
		{Config{Path: filepath.Join(dir, "missing")}, "does not exist"},
		{Config{Path: mounted.Path}, "is in use (mounted on " + dir + ")"},
		{Config{Path: used.Path}, "is in use: unmount it"},
		{Config{Path: "/dev/null"}, "not a block device"},
		{Config{Path: small.Path, Size: 2 << 20}, "the device has 1048576 bytes and the size is set to 2097152"},
		{Config{Path: l.Path, Size: 512}, "not a multiple of the block size 4096"},
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
	// The other way round: what is served cannot be mounted.
	if err := unix.Mount(used.Path, t.TempDir(), "ext4", 0, ""); err != unix.EBUSY {
		t.Errorf("mounting a device that is served: %v", err)
	}
	if _, err := sizeOf(0, 0, 512); err == nil || !strings.Contains(err.Error(), "no medium") {
		t.Errorf("an empty device: %v", err)
	}
}

// A regular file is told from a device.
func TestOpenRefusesFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Path: path}); err == nil || !strings.Contains(err.Error(), "set type to file") {
		t.Errorf("%v", err)
	}
}

func TestReadOnly(t *testing.T) {
	l := backendtest.NewLoop(t, 4<<20, 512)
	s := mustOpen(t, Config{Path: l.Path, ReadOnly: true})
	if err := backendtest.Do(s, read(0, 4096)); err != nil {
		t.Error(err)
	}
	if err := backendtest.Do(s, write(0, 4096, 1)); err == nil {
		t.Error("a write succeeds")
	}
	mustClose(t, s)
	setReadOnly := func(v int) {
		if err := unix.IoctlSetPointerInt(int(l.Dev.Fd()), unix.BLKROSET, v); err != nil {
			t.Fatal(err)
		}
	}
	setReadOnly(1)
	defer setReadOnly(0) // the loop device is used again
	if s, err := Open(Config{Path: l.Path}); err == nil || !strings.Contains(err.Error(), "readonly") {
		t.Errorf("opened for writing: %v", err)
		mustClose(t, s)
	}
	mustClose(t, mustOpen(t, Config{Path: l.Path, ReadOnly: true}))
}

// The device is free again as soon as Close has returned.
func TestOpenAtOnce(t *testing.T) {
	l := backendtest.NewLoop(t, 4<<20, 512)
	for range 20 {
		s := mustOpen(t, Config{Path: l.Path, IO: fdio.Uring})
		if err := backendtest.Do(s, read(0, 4096)); err != nil {
			t.Fatal(err)
		}
		mustClose(t, s)
	}
}

func TestResize(t *testing.T) {
	l := backendtest.NewLoop(t, 4<<20, 512)
	s := mustOpen(t, Config{Path: l.Path})
	defer mustClose(t, s)
	l.Resize(8 << 20)
	if n := s.Info().Size; n != 4<<20 {
		t.Errorf("the size is %d before anybody looked", n)
	}
	if err := s.Resize(0); err != nil || s.Info().Size != 8<<20 {
		t.Errorf("%d bytes, %v", s.Info().Size, err)
	}
	if err := backendtest.Do(s, write(8<<20-4096, 4096, 9)); err != nil {
		t.Error(err)
	}
	for size, want := range map[int64]string{4 << 20: "take the LUN away first", 16 << 20: "has 8388608 bytes", 8<<20 + 1: "multiple"} {
		if err := s.Resize(size); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), l.Path) {
			t.Errorf("Resize(%d): %v", size, err)
		}
	}
}

// The watch notices what becomes of the device, within its configured size, and what is beyond
// the end is refused.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := backendtest.NewLoop(t, 4<<20, 512)
		var log strings.Builder
		resized := make(chan struct{})
		s := mustOpen(t, Config{
			Path: l.Path, IO: fdio.Threads, Watch: time.Second, Resized: func() { resized <- struct{}{} },
			Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		for _, size := range []int64{8 << 20, 2 << 20, 6 << 20} {
			l.Resize(size)
			<-resized // time passes by itself here
			if n := s.Info().Size; n != size {
				t.Errorf("%d bytes, want %d", n, size)
			}
			if err := backendtest.Do(s, read(size-4096, 4096)); err != nil {
				t.Errorf("before the end: %v", err)
			}
			if _, ok := errors.AsType[*backend.RangeError](backendtest.Do(s, read(size, 4096))); !ok {
				t.Error("beyond the end there is something to read")
			}
		}
		mustClose(t, s)
		if text := log.String(); strings.Count(text, "another size") != 3 || strings.Count(text, "level=ERROR") != 1 {
			t.Errorf("the log says %s", text)
		}
		s = mustOpen(t, Config{Path: l.Path, Size: 3 << 20, IO: fdio.Threads})
		l.Resize(16 << 20)
		if s.look() || s.Info().Size != 3<<20 {
			t.Errorf("a size that was configured became %d", s.Info().Size)
		}
		l.Resize(1 << 20)
		if !s.look() || s.Info().Size != 1<<20 {
			t.Errorf("%d bytes of a device that has 1 MiB", s.Info().Size)
		}
		mustClose(t, s)
	})
}

// A device that shrinks under load: what is gone is an error, and nothing hangs.
func TestShrinks(t *testing.T) {
	for _, io := range []fdio.IO{fdio.Threads, fdio.Uring} {
		l := backendtest.NewLoop(t, 8<<20, 512)
		s := mustOpen(t, Config{Path: l.Path, IO: io})
		var calls []*backend.Op
		done := make(completions, 64)
		for i := range int64(64) {
			if i == 32 {
				l.Resize(4 << 20)
			}
			op := read(i*(128<<10), 4096)
			op.Done = done
			s.Submit(op)
			calls = append(calls, op)
		}
		for range calls {
			<-done
		}
		for i, op := range calls {
			_, medium := errors.AsType[*backend.MediumError](op.Err)
			if beyond := op.Off >= 4<<20; i >= 32 && beyond != medium || op.Err != nil && !medium {
				t.Errorf("io=%d: read at %d: %v", io, op.Off, op.Err)
			}
		}
		mustClose(t, s)
	}
}

type completions chan *backend.Op

func (c completions) OpDone(op *backend.Op) { c <- op }
