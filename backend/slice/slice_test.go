package slice

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/faulty"
	"oneshot/backend/fdio"
	"oneshot/backend/file"
	"oneshot/backend/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The slice begins off the boundaries of what the memory store locks.
const off = 1<<20 + 4096

func newMemory(t testing.TB, size int64) *memory.Store {
	t.Helper()
	s, err := memory.New(size)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newFile(t testing.TB, cfg file.Config) *file.Store {
	t.Helper()
	cfg.Path, cfg.Log = filepath.Join(t.TempDir(), "disk.img"), slog.New(slog.DiscardHandler)
	s, err := file.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustSlice(t testing.TB, inner backend.Store, off, size int64) backend.Store {
	t.Helper()
	s, err := New(inner, off, size)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A slice of a store is a store, whatever is below.
func TestSlice(t *testing.T) {
	const size = off + 2*backendtest.MinSize
	for name, inner := range map[string]func(t *testing.T) backend.Store{
		"memory": func(t *testing.T) backend.Store { return newMemory(t, size) },
		"file":   func(t *testing.T) backend.Store { return newFile(t, file.Config{Size: size, Sparse: true}) },
		"ring": func(t *testing.T) backend.Store {
			return newFile(t, file.Config{Size: size, Sparse: true, IO: fdio.Uring, Cache: file.Writethrough})
		},
		"slice": func(t *testing.T) backend.Store { return mustSlice(t, newMemory(t, 1<<20+size), 1<<20, size) },
	} {
		t.Run(name, func(t *testing.T) {
			backendtest.Run(t, func(t *testing.T) backend.Store { return mustSlice(t, inner(t), off, backendtest.MinSize) })
		})
	}
}

// What is around a slice stays as it is, and slices of one store do not meet.
func TestNeighbours(t *testing.T) {
	whole := newMemory(t, 3<<20)
	all := bytes.Repeat([]byte{7}, 3<<20)
	if err := backendtest.Do(whole, &backend.Op{Kind: backend.Write, Len: 3 << 20, Segs: [][]byte{all}}); err != nil {
		t.Fatal(err)
	}
	s := mustSlice(t, whole, off+512, 1<<20)
	for _, op := range []backend.Op{
		{Kind: backend.Write, Len: 1 << 20, Segs: [][]byte{bytes.Repeat([]byte{9}, 1<<20)}},
		{Kind: backend.Discard, Len: 1 << 20},
		{Kind: backend.WriteZeroes, Len: 1 << 20},
	} {
		if err := backendtest.Do(s, &op); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, 3<<20)
	if err := backendtest.Do(whole, &backend.Op{Kind: backend.Read, Len: 3 << 20, Segs: [][]byte{got}}); err != nil {
		t.Fatal(err)
	}
	clear(all[off+512 : off+512+1<<20])
	if !bytes.Equal(got, all) {
		t.Error("bytes around the slice have changed, or those in it not")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Errors tell where in the slice they are.
func TestErrors(t *testing.T) {
	inner := faulty.New(newMemory(t, 4<<20), 1)
	s := mustSlice(t, inner, off, 1<<20)
	b := [][]byte{make([]byte, 4096)}
	medium := &backend.MediumError{Kind: backend.Read, Off: off + 8192, Err: errors.New("scratched")}
	defer inner.Fail(faulty.Match{Kinds: faulty.Reads}, medium)()
	err := backendtest.Do(s, &backend.Op{Kind: backend.Read, Off: 8192, Len: 4096, Segs: b})
	if e, ok := errors.AsType[*backend.MediumError](err); !ok || e.Off != 8192 || !errors.Is(err, medium.Err) {
		t.Errorf("read: %v", err)
	}
	defer inner.Fail(faulty.Match{Kinds: faulty.Writes}, &backend.SpaceError{Off: off + 512, Err: medium.Err})()
	err = backendtest.Do(s, &backend.Op{Kind: backend.Write, Len: 4096, Segs: b})
	if e, ok := errors.AsType[*backend.SpaceError](err); !ok || e.Off != 512 {
		t.Errorf("write: %v", err)
	}
	err = backendtest.Do(s, &backend.Op{Kind: backend.Read, Off: 1 << 20, Len: 4096, Segs: b})
	if e, ok := errors.AsType[*backend.RangeError](err); !ok || e.Off != 1<<20 || e.Max != 1<<20 {
		t.Errorf("beyond the end: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// What is beside a slice is not lent: who asks for it has made a mistake.
func TestLendWithin(t *testing.T) {
	s := mustSlice(t, newMemory(t, 4<<20), 1<<20, 1<<20)
	defer s.Close()
	l, ok := backend.As[backend.Lender](s)
	if !ok {
		t.Fatal("a slice of memory does not lend")
	}
	for _, r := range [][2]int64{{-512, 512}, {-512, 1024}, {1 << 20, 512}, {1<<20 - 512, 1024}, {512, 1<<63 - 1}, {512, -512}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d bytes at %d were lent", r[1], r[0])
				}
			}()
			l.Lend(nil, r[0], r[1], false)
		}()
	}
}

func TestNewRefuses(t *testing.T) {
	inner := newMemory(t, 1<<20)
	defer inner.Close()
	for _, c := range []struct {
		off, size int64
		want      string
	}{
		{-512, 0, "multiple"},
		{100, 0, "multiple"},
		{0, 100, "multiple"},
		{0, -512, "multiple"},
		{1 << 20, 0, "begins at"},
		{2 << 20, 512, "begins at"},
		{512, 1 << 20, "from 512 on"},
	} {
		if s, err := New(inner, c.off, c.size); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("offset %d, size %d: %v, %v", c.off, c.size, s, err)
		}
	}
}

// A slice grows within the store below, and follows it with 0.
func TestResize(t *testing.T) {
	inner := newFile(t, file.Config{Size: 4 << 20, Sparse: true})
	s := mustSlice(t, inner, 1<<20, 1<<20)
	r, ok := backend.As[backend.Resizer](s)
	if !ok {
		t.Fatal("no resizer")
	}
	for _, c := range []struct {
		size, want int64
		ok         bool
	}{{2 << 20, 2 << 20, true}, {1 << 20, 2 << 20, false}, {4 << 20, 2 << 20, false}, {0, 3 << 20, true}} {
		if err := r.Resize(c.size); (err == nil) != c.ok || s.Info().Size != c.want {
			t.Errorf("Resize(%d): %v, %d bytes", c.size, err, s.Info().Size)
		}
	}
	if err := inner.Resize(5 << 20); err != nil {
		t.Fatal(err)
	}
	if err := r.Resize(0); err != nil || s.Info().Size != 4<<20 {
		t.Errorf("the store below has grown: %v, %d bytes", err, s.Info().Size)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Slices say what they are, and what they let pass.
func TestAbilities(t *testing.T) {
	inner := newFile(t, file.Config{Size: 4 << 20, Sparse: true})
	a, b := mustSlice(t, inner, 0, 1<<20), mustSlice(t, inner, 1<<20, 1<<20)
	if x, y := backend.IdentityOf(a), backend.IdentityOf(b); x == "" || x == y || x == backend.IdentityOf(inner) {
		t.Errorf("identities %q and %q", x, y)
	}
	for i, id := range backend.IdentitiesOf(inner) {
		if got := backend.IdentitiesOf(b); i >= len(got) || got[i] != id+"@1048576" {
			t.Errorf("of a store %q a slice is %q", backend.IdentitiesOf(inner), got)
		}
	}
	if x, ok := backend.As[backend.Batcher](a); !ok || x != inner {
		t.Error("batches are not started in the store below")
	}
	for what, ok := range map[string]bool{"lends": as[backend.Lender](a), "knows what it takes": as[backend.Meter](a)} {
		if ok {
			t.Errorf("a slice of a file %s", what)
		}
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	m := mustSlice(t, newMemory(t, 1<<20), 4096, 4096)
	if !as[backend.Lender](m) {
		t.Error("a slice of memory does not lend")
	}
	if id := backend.IdentityOf(m); id != "" {
		t.Errorf("a slice of memory is %q", id)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

func as[T backend.Store](s backend.Store) bool {
	_, ok := backend.As[T](s)
	return ok
}
