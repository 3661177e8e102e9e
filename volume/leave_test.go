package volume

import (
	"bytes"
	"errors"
	"testing"

	"oneshot/backend"
	"oneshot/volume/access"
)

// A store ends a read although its medium may still write to the memory: the request leaves that, and nobody gets it until it is free.
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
}

// Whatever reads before it does something else leaves its memory when the read fails, and does nothing else. What writes does not.
func TestAllReadsLeaveTheirMemory(t *testing.T) {
	ones := bytes.Repeat([]byte{1}, 4096)
	for what, x := range map[string]struct {
		data []byte
		step func(r *Request, then Step) Next
		done int // operations before the one that reads
	}{
		"verify":            {nil, func(r *Request, then Step) Next { return r.Verify(0, 2*scratchBytes, false, then) }, 0},
		"verify, 2nd piece": {nil, func(r *Request, then Step) Next { return r.Verify(0, 2*scratchBytes, false, then) }, 1},
		"verify with data":  {ones, func(r *Request, then Step) Next { return r.Verify(0, 4096, true, then) }, 0},
		"write and verify":  {ones, func(r *Request, then Step) Next { return r.WriteAndVerify(0, 4096, true, then) }, 1},
		"compare and write": {bytes.Repeat(ones, 2), func(r *Request, then Step) Next { return r.CompareAndWrite(0, 4096, false, "", then) }, 0},
		"or":                {ones, func(r *Request, then Step) Next { return r.OrWrite(0, 4096, false, then) }, 0},
		"copy": {nil, func(r *Request, then Step) Next {
			return r.CopyMemory(4096, func(r *Request) Next { return r.CopyRead(r.v, 0, 0, 4096, then) })
		}, 0},
	} {
		t.Run(what, func(t *testing.T) {
			store := &heldStore{sliceStore: newSliceStore(1 << 20)}
			v := open(t, Config{Store: store})
			s := newShow(v, 512, access.Holder{})
			all := s.pool.Free()
			if err := s.begin(true, x.data, x.step); err != nil {
				t.Fatal(err)
			}
			for range x.done {
				if store.held[0].Kind == backend.Write {
					if _, ok := backend.Leave(store.held[0].Done); ok {
						t.Error("a write leaves its data")
					}
				}
				store.complete()
				s.drive(Wait)
			}
			op := store.held[0]
			store.held = nil
			free, ok := backend.Leave(op.Done)
			if !ok {
				t.Fatal("it does not leave its memory")
			}
			op.Err = &backend.MovedError{Name: "x"}
			op.Done.OpDone(op)
			var moved *backend.MovedError
			if got, at, err := s.end(t); !errors.As(err, &moved) || len(got) != 0 || at != -1 {
				t.Errorf("it ends with %v, %d bytes, and a mismatch at %d", err, len(got), at)
			}
			if s.pool.Free() == all || len(store.held) != 0 {
				t.Errorf("%d bytes are free of %d, and the store has %d operations", s.pool.Free(), all, len(store.held))
			}
			free()
			if err := v.Settled(); err != nil || s.pool.Free() != all {
				t.Errorf("%d bytes are free of %d: %v", s.pool.Free(), all, err)
			}
		})
	}
}
