package volume

import (
	"bytes"
	"errors"
	"testing"

	"oneshot/backend"
	"oneshot/volume/access"
)

// A store ends a read although its medium may still write to the memory: the request leaves that, and nobody gets it until it is free. A request that
// still needs its memory does not.
func TestReadLeavesItsMemory(t *testing.T) {
	store := &heldStore{sliceStore: newSliceStore(1 << 20)}
	v := open(t, Config{Store: store})
	s := newShow(v, 512, access.Holder{})
	all := s.pool.Free()
	if err := s.read(t, 0, 8); err != nil {
		t.Fatal(err)
	}
	op := store.held[0]
	store.held = nil
	memory := op.Segs[0]
	free, ok := backend.Leave(op.Done)
	if !ok {
		t.Fatal("a read does not leave its memory")
	}
	if _, again := backend.Leave(op.Done); again {
		t.Error("it leaves it twice")
	}
	op.Err = &backend.MovedError{Name: "x"}
	op.Done.OpDone(op)
	var moved *backend.MovedError
	if got, _, err := s.end(t); !errors.As(err, &moved) || len(got) != 0 {
		t.Errorf("the read ends with %v and %d bytes", err, len(got))
	}
	if s.pool.Free() == all {
		t.Error("the memory is free, and the medium may write there")
	}
	if err := s.read(t, 0, 8); err != nil { // the next one has other memory
		t.Fatal(err)
	}
	copy(memory, bytes.Repeat([]byte{0xee}, 4096))
	store.complete()
	if got, _, err := s.end(t); err != nil || !bytes.Equal(got, make([]byte, 4096)) {
		t.Errorf("the next read: %v, % x", err, got[:4])
	}
	free()
	if s.pool.Free() != all {
		t.Error("the memory is not free after all")
	}

	if err := s.begin(true, bytes.Repeat([]byte{1}, 4096), func(r *Request, then Step) Next { return r.OrWrite(0, 4096, false, then) }); err != nil {
		t.Fatal(err)
	}
	if _, ok := backend.Leave(store.held[0].Done); ok {
		t.Error("a request that has data there leaves its memory")
	}
	store.complete()
	s.drive(Wait)
	store.complete()
	if _, _, err := s.end(t); err != nil {
		t.Error(err)
	}
}
