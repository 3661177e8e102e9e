package memory

import (
	"testing"

	"oneshot/backend"
)

func TestUsage(t *testing.T) {
	s, err := New(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	expect := func(want int64) {
		t.Helper()
		if used, available, err := s.Usage(); used != want || available <= 0 || err != nil {
			t.Errorf("%d used, %d available, %v; want %d", used, available, err, want)
		}
	}
	expect(0)
	s.Submit(&backend.Op{Kind: backend.Write, Off: 4096, Len: 512, Segs: [][]byte{make([]byte, 512)}})
	s.Lend(nil, 1<<29, 8192, true)
	s.Commit(1<<29, 8192)
	expect(3 * 4096)
	s.Submit(&backend.Op{Kind: backend.Discard, Len: 1 << 30})
	expect(0)
}
