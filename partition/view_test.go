package partition

import (
	"bytes"
	"errors"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/faulty"
	"oneshot/backend/file"
	"oneshot/backend/memory"
)

func newMemory(t testing.TB, size int64) backend.Store {
	t.Helper()
	s, err := memory.New(size)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newFile(t testing.TB, size int64) backend.Store {
	t.Helper()
	s, err := file.Open(file.Config{Path: filepath.Join(t.TempDir(), "disk.img"), Size: size, Sparse: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func viewOf(t testing.TB, s *Set, name string) backend.Store {
	t.Helper()
	v, err := s.View(name)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// at divides inner and opens a partition that does not begin at a boundary of what the memory store locks.
func at(t testing.TB, inner backend.Store) (*Set, backend.Store) {
	t.Helper()
	s, err := Init(inner, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	create(t, s, New{Name: "p", Size: backendtest.MinSize, Offset: firstByte + 4096})
	return s, viewOf(t, s, "p")
}

// A partition passes the suite of all stores, whatever store it is a part of.
func TestView(t *testing.T) {
	for name, inner := range map[string]func(testing.TB, int64) backend.Store{"memory": newMemory, "file": newFile} {
		t.Run(name, func(t *testing.T) {
			backendtest.Run(t, func(t *testing.T) backend.Store { _, v := at(t, inner(t, 3*backendtest.MinSize)); return v })
		})
	}
}

// Operations of all kinds on several partitions, within their bounds and beyond: each partition changes as its model
// does, and nothing else changes, the table least of all.
func TestNeighbours(t *testing.T) {
	seed := faulty.Seed(t)
	r := rand.New(rand.NewPCG(seed, seed))
	const size = 4 << 20
	inner := newMemory(t, size)
	s, err := Init(inner, false)
	if err != nil {
		t.Fatal(err)
	}
	const n = 256 << 10
	var views []backend.Store
	var offs []int64
	for i, off := range []int64{firstByte, firstByte + n, 3<<20 - n, 3 << 20} {
		name := string(rune('a' + i))
		create(t, s, New{Name: name, Size: n, Offset: off})
		views, offs = append(views, viewOf(t, s, name)), append(offs, off)
	}
	read := func() []byte {
		b := make([]byte, size)
		if err := backendtest.Do(inner, &backend.Op{Kind: backend.Read, Len: size, Segs: [][]byte{b}}); err != nil {
			t.Fatal(err)
		}
		return b
	}
	fill := bytes.Repeat([]byte{0xcc}, size-firstByte)
	if err := backendtest.Do(inner, &backend.Op{Kind: backend.Write, Off: firstByte, Len: int64(len(fill)), Segs: [][]byte{fill}}); err != nil {
		t.Fatal(err)
	}
	want := read()
	kinds := []backend.Kind{backend.Write, backend.WriteZeroes, backend.Discard, backend.Write}
	for round := range 2000 {
		i := r.IntN(len(views))
		op := backend.Op{Kind: kinds[r.IntN(4)], Off: 512 * (r.Int64N(n/512+64) - 32), Len: 512 * r.Int64N(64)}
		b := bytes.Repeat([]byte{byte(round)}, int(op.Len))
		if op.Kind == backend.Write {
			op.Segs = [][]byte{b}
		}
		within := op.Off >= 0 && op.Off+op.Len <= n
		lender, _ := backend.As[backend.Lender](views[i])
		if op.Kind == backend.Write && within && round%2 == 0 {
			rest := b
			for _, seg := range lender.Lend(nil, op.Off, op.Len, true) {
				rest = rest[copy(seg, rest):]
			}
			lender.Commit(op.Off, op.Len)
		} else if err := backendtest.Do(views[i], &op); (err == nil) != within {
			t.Fatalf("%v of %d bytes at %d: %v", op.Kind, op.Len, op.Off, err)
		}
		if within {
			to := want[offs[i]+op.Off:][:op.Len]
			if clear(to); op.Kind == backend.Write {
				copy(to, b)
			}
		}
		if round%100 == 99 && !bytes.Equal(read(), want) {
			t.Fatalf("round %d: other octets have changed", round)
		}
	}
	for _, v := range views {
		err = errors.Join(err, v.Close())
	}
	if err = errors.Join(err, s.Close()); err != nil {
		t.Error(err)
	}
}

// Views have their own size and identity and pass on abilities of the store; offsets in errors are those in the
// partition.
func TestAbilities(t *testing.T) {
	inner := newFile(t, 3*backendtest.MinSize)
	s, v := at(t, inner)
	uuid := s.Table().Partitions[0].UUID.String()
	if id := backend.IdentityOf(v); id != backend.Identity("partition-"+uuid) && id != backend.Passing("partition-"+uuid) || id.Lasts() != backend.IdentityOf(inner).Lasts() {
		t.Errorf("identity %q", id)
	}
	if x, ok := backend.As[backend.Batcher](v); !ok || x != inner {
		t.Error("batches are not started in the store below")
	}
	if _, ok := backend.As[backend.Lender](v); ok {
		t.Error("a partition of a file lends")
	}
	if _, ok := backend.As[backend.Meter](v); ok {
		t.Error("a partition knows what it takes")
	}
	z, ok := backend.As[backend.Resizer](v)
	if !ok {
		t.Fatal("no resizer")
	}
	for _, c := range []struct {
		size, want int64
		ok         bool
	}{{0, 4 << 20, true}, {1 << 20, 4 << 20, false}, {5 << 20, 5 << 20, true}, {64 << 20, 5 << 20, false}, {0, 5 << 20, true}} {
		if err := z.Resize(c.size); (err == nil) != c.ok || v.Info().Size != c.want || s.Table().Partitions[0].Size != c.want {
			t.Errorf("Resize(%d): %v, %d bytes", c.size, err, v.Info().Size)
		}
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	_, m := at(t, newMemory(t, 3*backendtest.MinSize))
	if id := backend.IdentityOf(m); id == "" || id.Lasts() {
		t.Errorf("a partition in memory is %q", id)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	bad := faulty.New(newMemory(t, 3*backendtest.MinSize), 1)
	_, v = at(t, bad)
	defer bad.Fail(faulty.Match{Kinds: faulty.Reads}, &backend.MediumError{Kind: backend.Read, Off: firstByte + 4096 + 512, Err: errors.New("scratched")})()
	err := backendtest.Do(v, &backend.Op{Kind: backend.Read, Len: 4096, Segs: [][]byte{make([]byte, 4096)}})
	if e, ok := errors.AsType[*backend.MediumError](err); !ok || e.Off != 512 {
		t.Errorf("read: %v", err)
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}
