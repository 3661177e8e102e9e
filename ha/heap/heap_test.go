package heap

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"go.uber.org/goleak"

	"oneshot/backend"
	"oneshot/backend/memory"
	"oneshot/ha/heap/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// blocks is a store with other blocks.
type blocks struct {
	backend.Store
	size int
}

func (b blocks) Info() backend.Info {
	i := b.Store.Info()
	i.BlockSize = b.size
	return i
}

func store(size int64, block int) backend.Store {
	s, err := memory.New(size)
	if err != nil {
		panic(err)
	}
	return blocks{s, block}
}

// served is a store that this process serves, until it is moved.
type served struct {
	backend.Store
	term  atomic.Uint64
	reads atomic.Int64
}

func (s *served) Term() uint64 { return s.term.Load() }

func (s *served) Submit(op *backend.Op) bool {
	if op.Kind == backend.Read {
		s.reads.Add(1)
	}
	if op.Term != s.term.Load() {
		op.Err = &backend.MovedError{Name: "store"}
		return true
	}
	return s.Store.Submit(op)
}

func newServed() *served {
	s := &served{Store: store(testSize, 512)}
	s.term.Store(1)
	return s
}

func open(t *testing.T, s backend.Store) *Heap {
	t.Helper()
	h, err := Open(s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func shut(t *testing.T, h *Heap) {
	t.Helper()
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

func want(t *testing.T, m wire.Message, s wire.Status) wire.Message {
	t.Helper()
	if m.Status != s {
		t.Fatalf("%v: %v, want %v", m.Op, m.Status, s)
	}
	return m
}

// TestHeap: objects are there again when the heap is opened again, under the same pointers.
func TestHeap(t *testing.T) {
	s := newServed()
	h := open(t, s)
	const clients = 8
	var all [clients]wire.Pointer
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			id := uint64(i + 1)
			want(t, h.Do(wire.Message{Op: wire.Join, Client: id}), wire.OK)
			all[i] = want(t, h.Do(wire.Message{Op: wire.Insert, Client: id, Number: 1, Data: fmt.Append(nil, "object ", i)}), wire.OK).Pointer
		})
	}
	wg.Wait()
	address := uint64(uintptr(unsafe.Pointer(&h.Memory()[0])))
	if address != h.Base() {
		t.Errorf("the memory is at %#x, not at %#x", address, h.Base())
	}
	base, key := h.Base(), h.Key()
	if key>>8 < 0xfff000 || base < FirstAddress || (base-FirstAddress)%AddressStep != 0 {
		t.Errorf("address %#x, key %#x", base, key)
	}
	shut(t, h)

	other := open(t, s) // where the address is taken there is another one, which nobody can tell
	for i, p := range all {
		if m := want(t, other.Do(wire.Message{Op: wire.Read, Pointer: p}), wire.OK); string(m.Data) != fmt.Sprint("object ", i) {
			t.Errorf("%v: %q", p, m.Data)
		}
		got, _, status := wire.ReadPlace(other.Memory()[p.Addr-base:], p)
		if status != wire.OK || string(got) != fmt.Sprint("object ", i) {
			t.Errorf("%v in the memory: %q, %v", p, got, status)
		}
	}
	m := want(t, other.Do(wire.Message{Op: wire.Insert, Client: 1, Number: 1, Data: []byte("object 0")}), wire.OK)
	if m.Pointer != all[0] {
		t.Errorf("a retry after the restart: %v, want %v", m.Pointer, all[0])
	}
	if other.Base() != base || other.Key() != key {
		t.Error("address or key have changed")
	}
	shut(t, other)
}

// TestTaken: the address may be taken; the pointers are the same.
func TestTaken(t *testing.T) {
	s := newServed()
	h := open(t, s)
	number := h.core.super.number
	base := h.Base()
	shut(t, h)
	m, err := mapMemory(number, 4096)
	if err != nil {
		t.Fatal(err)
	}
	h = open(t, s)
	if h.Base() != base || uint64(uintptr(unsafe.Pointer(&h.Memory()[0]))) == base {
		t.Error("the memory is in the place of another one")
	}
	shut(t, h)
	if err := m.free(); err != nil {
		t.Error(err)
	}
}

// TestErased: who erases the beginning of a store that has had a heap, and makes another one, finds nothing of the first one in that, though
// its journal is as long, and what follows behind its end was written by the same steps.
func TestErased(t *testing.T) {
	s := store(testSize, 512)
	fill := func(h *Heap, b byte, changes uint64) wire.Pointer {
		t.Helper()
		data := bytes.Repeat([]byte{b}, 30000)
		want(t, h.Do(wire.Message{Op: wire.Join, Client: 1}), wire.OK)
		p := want(t, h.Do(wire.Message{Op: wire.Insert, Client: 1, Number: 1, Data: data}), wire.OK).Pointer
		for n := uint64(2); n <= changes; n++ {
			want(t, h.Do(wire.Message{Op: wire.Update, Client: 1, Number: n, Pointer: p, Data: data}), wire.OK)
		}
		return p
	}
	const fits = 34 // changes, without a checkpoint
	h := open(t, s)
	fill(h, 'o', fits)
	shut(t, h)
	finished := make(finished, 1)
	zeroes := &backend.Op{Kind: backend.Write, Len: blankLen, Segs: [][]byte{make([]byte, blankLen)}, Done: finished}
	if !s.Submit(zeroes) {
		<-finished
	}
	h = open(t, s)
	p := fill(h, 'n', fits-1)
	if h.core.index != fits { // and that of Join
		t.Fatalf("the journal has %d batches, and the next one would not lie where the first heap has its last one", h.core.index)
	}
	shut(t, h)
	h = open(t, s)
	got := want(t, h.Do(wire.Message{Op: wire.Read, Pointer: p}), wire.OK)
	if i := bytes.IndexFunc(got.Data, func(r rune) bool { return r != 'n' }); i >= 0 {
		t.Errorf("the object has %q at %d: it is of the heap before", got.Data[i], i)
	}
	shut(t, h)
}

// TestMoved: when somebody else serves the store nothing is answered any more, not even what needs no write.
func TestMoved(t *testing.T) {
	for _, m := range []wire.Message{
		{Op: wire.Read},
		{Op: wire.Join, Client: 2},
		{Op: wire.Insert, Client: 1, Number: 9, Data: []byte("x")},
		{Op: wire.Insert, Client: 1, Number: 1, Data: []byte("x")}, // that was answered
		{Op: wire.Delete, Client: 1, Number: 9, Pointer: wire.Pointer{Addr: 1}},
		{Op: wire.Join, Client: 1},
		{Op: wire.Update, Client: 3, Number: 1},
	} {
		s := newServed()
		h := open(t, s)
		want(t, h.Do(wire.Message{Op: wire.Join, Client: 1}), wire.OK)
		p := want(t, h.Do(wire.Message{Op: wire.Insert, Client: 1, Number: 1, Data: []byte("x")}), wire.OK).Pointer
		if m.Op == wire.Read {
			m.Pointer = p
		}
		s.term.Store(2)
		want(t, h.Do(m), wire.Moved)
		<-h.Failed()
		if is := (*backend.MovedError)(nil); !errors.As(h.Err(), &is) {
			t.Errorf("%v: %v", m.Op, h.Err())
		}
		want(t, h.Do(wire.Message{Op: wire.Read, Pointer: p}), wire.Moved)
		shut(t, h)
		h = open(t, s) // and here again
		want(t, h.Do(wire.Message{Op: wire.Read, Pointer: p}), wire.OK)
		shut(t, h)
	}
	s := newServed()
	s.term.Store(0)
	if _, err := Open(s); err == nil {
		t.Error("a heap is opened that somebody else serves")
	}
}

func TestSizes(t *testing.T) {
	if _, err := Open(store(MinSize-4096, 512)); err == nil {
		t.Error("too small")
	}
	if _, err := Open(store(MinSize+8192, 8192)); err == nil {
		t.Error("blocks too large")
	}
	h := open(t, store((MinSize+4095)&^4095, 4096))
	want(t, h.Do(wire.Message{Op: wire.Join, Client: 1}), wire.OK)
	want(t, h.Do(wire.Message{Op: wire.Insert, Client: 1, Number: 1, Data: make([]byte, wire.MaxObject)}), wire.OK)
	shut(t, h)
}

// grown is a store that has become larger.
type grown struct {
	backend.Store
	size int64
}

func (g grown) Info() backend.Info {
	i := g.Store.Info()
	i.Size = g.size
	return i
}

// TestGrown: a heap is there, as large as it was, in a store that has grown beyond what a new heap can have.
func TestGrown(t *testing.T) {
	s := store(testSize, 512)
	h := open(t, s)
	want(t, h.Do(wire.Message{Op: wire.Join, Client: 1}), wire.OK)
	p := want(t, h.Do(wire.Message{Op: wire.Insert, Client: 1, Number: 1, Data: []byte("object")}), wire.OK).Pointer
	shut(t, h)
	if _, err := Open(grown{store(testSize, 512), MaxSize + 4096}); err == nil {
		t.Error("a heap is made in a store that is too large")
	}
	h = open(t, grown{s, MaxSize + 4096})
	if m := want(t, h.Do(wire.Message{Op: wire.Read, Pointer: p}), wire.OK); string(m.Data) != "object" {
		t.Errorf("%q", m.Data)
	}
	shut(t, h)
}
