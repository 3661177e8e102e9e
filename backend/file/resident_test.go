package file

import (
	"os"
	"path/filepath"
	"testing"

	"oneshot/backend"
)

func TestSwapping(t *testing.T) {
	const heading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
	for text, want := range map[string]bool{"": false, heading: false, heading + "/dev/zram0                              partition\t524284\t\t0\t\t100\n": true} {
		if got := swapping([]byte(text)); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}

// Reads of a file in a tmpfs are done by the time that Submit returns, if the machine does not swap.
func TestResident(t *testing.T) {
	swaps, err := os.ReadFile("/proc/swaps")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/dev/shm", "oneshot-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s, err := Open(Config{Path: filepath.Join(dir, "f"), Size: 1 << 20, BlockSize: 512, Sparse: true})
	if err != nil {
		t.Fatal(err)
	}
	done := make(waiter, 1)
	for range 2 { // a kernel that does not take RWF_NOWAIT has said so after the first
		op := &backend.Op{Kind: backend.Read, Len: 4096, Segs: [][]byte{make([]byte, 4096)}, Done: done}
		inline := s.Submit(op)
		if !inline {
			<-done
		}
		if op.Err != nil || !inline && !swapping(swaps) {
			t.Errorf("%v, inline: %t", op.Err, inline)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// waiter tells of operations that are done.
type waiter chan *backend.Op

func (w waiter) OpDone(op *backend.Op) { w <- op }
