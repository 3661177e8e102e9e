package memory

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"oneshot/backend"
	"oneshot/backend/backendtest"
)

func newStore(t testing.TB, size int64) *Store {
	s, err := New(size)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMemory(t *testing.T) {
	for _, size := range []int64{backendtest.MinSize, 64<<20 + 512} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			backendtest.Run(t, func(t *testing.T) backend.Store { return newStore(t, size) })
		})
	}
}

func TestNewRefuses(t *testing.T) {
	for _, size := range []int64{-512, 0, 1, 513, 1<<62 + 512} {
		if s, err := New(size); err == nil {
			s.Close()
			t.Errorf("%d bytes: no error", size)
		}
	}
}

// A store far beyond the machine's memory costs nothing while it is empty.
func TestHuge(t *testing.T) {
	s := newStore(t, 1<<44)
	defer s.Close()
	b := []byte("at the end of 16 TiB, padded to a block")
	b = append(b, make([]byte, 512-len(b))...)
	op := backend.Op{Kind: backend.Write, Off: 1<<44 - 512, Len: 512, Segs: [][]byte{b}}
	if err := backendtest.Do(s, &op); err != nil {
		t.Fatal(err)
	}
	st := backend.Op{Kind: backend.Status, Off: 1<<44 - 1<<30, Len: 1 << 30}
	if err := backendtest.Do(s, &st); err != nil || st.Mapped || st.Extent != 1<<30-4096 {
		t.Errorf("mapped %v, extent %d, %v", st.Mapped, st.Extent, err)
	}
}

func TestLendIsOneSegment(t *testing.T) {
	s := newStore(t, 8<<20)
	defer s.Close()
	if segs := s.Lend(nil, 512, 7<<20, false); len(segs) != 1 || len(segs[0]) != 7<<20 || cap(segs[0]) != 7<<20 {
		t.Errorf("%d segments, the first of %d bytes", len(segs), len(segs[0]))
	}
}

// At its end a store has no bytes whose status could be told, wherever the end is in a page.
func TestStatusAtEnd(t *testing.T) {
	for _, size := range []int64{8192, 8192 + 512} {
		s := newStore(t, size)
		op := backend.Op{Kind: backend.Status, Off: size}
		if s.Submit(&op); op.Err != nil || op.Mapped || op.Extent != 0 {
			t.Errorf("%d bytes: %+v", size, op)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Whatever writes and discards of the same pages do to each other, no byte stands in a page
// that counts as unmapped.
func TestDiscardAgainstWrite(t *testing.T) {
	s := newStore(t, 1<<20)
	defer s.Close()
	b := make([]byte, 8192)
	for i := range b {
		b[i] = 1
	}
	for range 2000 {
		var wg sync.WaitGroup
		wg.Go(func() { s.Submit(&backend.Op{Kind: backend.Write, Len: 8192, Segs: [][]byte{b}}) })
		wg.Go(func() { s.Submit(&backend.Op{Kind: backend.Discard, Len: 8192}) })
		wg.Wait()
		for off := int64(0); off < 8192; off += 4096 {
			st := backend.Op{Kind: backend.Status, Off: off, Len: 4096}
			if s.Submit(&st); !st.Mapped && s.data[off] != 0 {
				t.Fatalf("bytes at %d, and not mapped", off)
			}
		}
	}
}

// When a discard is complete its range reads as zeroes, also beside another discard of the range that is not complete yet.
func TestDiscardTwice(t *testing.T) {
	const size = 1 << 20
	s := newStore(t, size)
	defer s.Close()
	b := bytes.Repeat([]byte{1}, size)
	discard := func() {
		s.Submit(&backend.Op{Kind: backend.Discard, Len: size})
		for off := 0; off < size; off += pageSize {
			if s.data[off] != 0 {
				t.Errorf("the byte at %d is still there", off)
				return
			}
		}
	}
	for i := 0; i < 100 && !t.Failed(); i++ {
		s.Submit(&backend.Op{Kind: backend.Write, Len: size, Segs: [][]byte{b}})
		start := make(chan struct{})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { <-start; discard() })
		}
		close(start)
		wg.Wait()
	}
}

// While a page is written and discarded again, a discard of other bytes does all that it is to do, and a Status does not mix the states that
// the page has had.
func TestPageThatComesAndGoes(t *testing.T) {
	s := newStore(t, 2*pageSize)
	defer s.Close()
	b := bytes.Repeat([]byte{1}, blockSize)
	var over atomic.Bool
	var other sync.WaitGroup
	other.Go(func() {
		for !over.Load() { // as writes and discards of the first block do
			s.mapped.set(0, 1)
			s.mapped.clear(0, 1)
		}
	})
	const off, n = blockSize, 2*pageSize - blockSize // all but what the other one writes
	for i := 0; i < 10_000 && !t.Failed(); i++ {
		s.Submit(&backend.Op{Kind: backend.Write, Off: pageSize, Len: blockSize, Segs: [][]byte{b}})
		for range 40 {
			op := backend.Op{Kind: backend.Status, Off: off, Len: n}
			if s.Submit(&op); op.Mapped && op.Extent != n || !op.Mapped && op.Extent != pageSize-off {
				t.Errorf("mapped %v, %d bytes", op.Mapped, op.Extent)
			}
		}
		if s.Submit(&backend.Op{Kind: backend.Discard, Off: off, Len: n}); s.data[pageSize] != 0 {
			t.Error("what was discarded is still there")
		}
	}
	over.Store(true)
	other.Wait()
}

func BenchmarkMemory(b *testing.B) {
	const size = 256 << 20
	for _, n := range []int64{4 << 10, 256 << 10} {
		for _, kind := range []backend.Kind{backend.Read, backend.Write} {
			b.Run(fmt.Sprintf("%v/%d", kind, n), func(b *testing.B) {
				s := newStore(b, size)
				defer s.Close()
				clear(s.data)
				op := backend.Op{Kind: kind, Len: n, Segs: [][]byte{make([]byte, n)}}
				b.SetBytes(n)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					op.Off = int64(i) * 7919 % (size / n) * n
					s.Submit(&op)
				}
			})
		}
	}
	b.Run("lend", func(b *testing.B) {
		s := newStore(b, size)
		defer s.Close()
		var segs [][]byte
		b.ReportAllocs()
		for b.Loop() {
			segs = s.Lend(segs[:0], 4096, 4096, true)
			s.Commit(4096, 4096)
		}
	})
}
