package fdio

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/backend/backendtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plain is a medium whose ranges are written over.
type plain int

func (fd plain) Discard(off, n int64) error             { return Zero(int(fd), off, n) }
func (fd plain) WriteZeroes(off, n int64) error         { return Zero(int(fd), off, n) }
func (fd plain) Status(_, n int64) (bool, int64, error) { return true, n, nil }

const testSize = backendtest.MinSize

// mustOpen returns a store on a new file of testSize bytes. Of cfg it takes what is not about
// the file.
func mustOpen(t testing.TB, cfg Config, direct bool) *Store {
	t.Helper()
	flags := unix.O_RDWR | unix.O_CREAT | unix.O_CLOEXEC
	if direct {
		flags |= unix.O_DIRECT
	}
	cfg.Kind, cfg.Path, cfg.Info = "test store", filepath.Join(t.TempDir(), "f"), backend.Info{Size: testSize, BlockSize: 512}
	fd, err := unix.Open(cfg.Path, flags, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, testSize); err != nil {
		t.Fatal(err)
	}
	if direct {
		if cfg.Direct, err = AlignmentOf(fd); err != nil {
			t.Fatal(err)
		}
		cfg.Info.BlockSize = max(512, cfg.Direct.Offset)
	}
	cfg.FD, cfg.Medium = fd, plain(fd)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s, err := New(cfg)
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

// Every way to the kernel passes the suite, with and without page cache.
func TestStore(t *testing.T) {
	for _, io := range []IO{Threads, Uring} {
		for _, direct := range []bool{false, true} {
			for _, through := range []bool{false, true} {
				t.Run(fmt.Sprintf("io=%d direct=%v through=%v", io, direct, through), func(t *testing.T) {
					backendtest.Run(t, func(t *testing.T) backend.Store {
						return mustOpen(t, Config{IO: io, Through: through}, direct)
					})
				})
			}
		}
	}
}

func filled(n int, v byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = v
	}
	return b
}
