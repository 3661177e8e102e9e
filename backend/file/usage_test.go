package file

import (
	"path/filepath"
	"testing"

	"oneshot/backend"
)

type doneChan chan struct{}

func (c doneChan) OpDone(*backend.Op) { c <- struct{}{} }

func TestUsage(t *testing.T) {
	s, err := Open(Config{Path: filepath.Join(t.TempDir(), "disk.img"), Size: 64 << 20, Sparse: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	before, available, err := s.Usage()
	if err != nil || available <= 0 {
		t.Fatalf("%d available, %v", available, err)
	}
	done := make(doneChan, 1)
	data := make([]byte, 1<<20)
	data[0] = 1
	op := &backend.Op{Kind: backend.Write, Flags: backend.FUA, Off: 8 << 20, Len: 1 << 20, Segs: [][]byte{data}, Done: done}
	if !s.Submit(op) {
		<-done
	}
	if op.Err != nil {
		t.Fatal(op.Err)
	}
	if used, _, err := s.Usage(); used < before+1<<20 || err != nil {
		t.Errorf("%d bytes used, %d before 1 MiB was written, %v", used, before, err)
	}
}
