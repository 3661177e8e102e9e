package file

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
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

// TestReadNow: what the page cache has is read at once, and nothing else is begun.
func TestReadNow(t *testing.T) {
	const size = 1 << 20
	for name, c := range map[string]struct {
		direct   bool
		off, len int64
		want     bool
	}{
		"cached":         {off: 4096, len: 8192, want: true},
		"beyond the end": {off: size - 4096, len: 8192},
		"direct":         {direct: true, off: 4096, len: 8192},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Open(Config{Path: filepath.Join(t.TempDir(), "f"), Size: size, BlockSize: 512, Sparse: true, Direct: c.direct})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			done := make(waiter, 1)
			data := bytes.Repeat([]byte{7}, size)
			inline := false // what Submit does: a file system that refuses RWF_NOWAIT has said so after the second
			for _, kind := range []backend.Kind{backend.Write, backend.Read, backend.Read} {
				op := &backend.Op{Kind: kind, Len: size, Segs: [][]byte{slices.Clone(data)}, Done: done}
				if inline = s.Submit(op); !inline {
					<-done
				}
				if op.Err != nil {
					t.Fatal(op.Err)
				}
			}
			op := &backend.Op{Kind: backend.Read, Off: c.off, Len: c.len, Segs: [][]byte{make([]byte, c.len)}, Done: done}
			got := s.ReadNow(op)
			if got && !bytes.Equal(op.Segs[0], data[:c.len]) {
				t.Error("it has read something else")
			}
			if got != (c.want && inline) {
				t.Errorf("it was read at once: %t", got)
			}
			select {
			case <-done:
				t.Error("something was begun")
			default:
			}
		})
	}
}

// waiter tells of operations that are done.
type waiter chan *backend.Op

func (w waiter) OpDone(op *backend.Op) { w <- op }
