package null

import (
	"bytes"
	"errors"
	"testing"

	"oneshot/backend"
	"oneshot/backend/backendtest"
)

func TestNull(t *testing.T) {
	s, err := New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	full := bytes.Repeat([]byte{1}, 4096)
	op := &backend.Op{Kind: backend.Write, Len: 4096, Segs: [][]byte{full}}
	if err := backendtest.Do(s, op); err != nil || !bytes.Equal(full, bytes.Repeat([]byte{1}, 4096)) {
		t.Errorf("write: %v", err)
	}
	op = &backend.Op{Kind: backend.Read, Len: 4096, Segs: [][]byte{full[:1000], full[1000:]}}
	if err := backendtest.Do(s, op); err != nil || !bytes.Equal(full, make([]byte, 4096)) {
		t.Errorf("read: %v", err)
	}
	for _, kind := range []backend.Kind{backend.Flush, backend.Discard, backend.WriteZeroes} {
		if err := backendtest.Do(s, &backend.Op{Kind: kind, Len: 1 << 20, Flags: backend.Barrier}); err != nil {
			t.Errorf("%v: %v", kind, err)
		}
	}
	op = &backend.Op{Kind: backend.Status, Off: 4096, Len: 8192}
	if err := backendtest.Do(s, op); err != nil || !op.Mapped || op.Extent != 8192 {
		t.Errorf("status: %v, %v, %d", err, op.Mapped, op.Extent)
	}
	op = &backend.Op{Kind: backend.Read, Off: 1 << 20, Len: 512}
	if _, ok := errors.AsType[*backend.RangeError](backendtest.Do(s, op)); !ok {
		t.Errorf("beyond the end: %v", op.Err)
	}
	if err := s.Resize(2 << 20); err != nil || s.Info().Size != 2<<20 || backendtest.Do(s, op) != nil {
		t.Errorf("resize: %v, %+v", err, s.Info())
	}
	if s.Resize(1<<20) == nil || s.Resize(0) != nil || s.Info().Size != 2<<20 {
		t.Errorf("%+v", s.Info())
	}
	if n := testing.AllocsPerRun(100, func() { s.Submit(op) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, size := range []int64{0, -512, 100} {
		if _, err := New(size); err == nil {
			t.Errorf("New(%d) succeeds", size)
		}
	}
}
