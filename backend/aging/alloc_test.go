//go:build !race

package aging

import (
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/backend/backendtest"
)

func TestAllocations(t *testing.T) {
	s := New(nothingDone{backendtest.NewDisk(4096, 512)}, Config{Window: time.Hour})
	defer s.Close()
	op := &backend.Op{Kind: backend.Write, Len: 512, Segs: [][]byte{make([]byte, 512)}}
	flush := &backend.Op{Kind: backend.Flush}
	if n := testing.AllocsPerRun(100, func() {
		for range 100 {
			s.Submit(op)
		}
		s.Submit(flush)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// nothingDone completes at once.
type nothingDone struct{ *backendtest.Disk }

func (nothingDone) Submit(*backend.Op) bool { return true }
