package file

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"oneshot/backend"
	"oneshot/backend/backendtest"
)

// While a block is written and discarded again, a Status of it tells of one block at least, and does not mix the states that it has had with those
// of the blocks behind it.
func TestStatusOfBlockThatComesAndGoes(t *testing.T) {
	const block, blocks = 4096, 3 // the second has data, the third has none
	s := mustOpen(t, Config{Path: filepath.Join(tmpfs(t, 1<<20), "disk.img"), Size: blocks * block, BlockSize: block, Sparse: true})
	defer mustClose(t, s)
	data := bytes.Repeat([]byte{1}, block)
	if err := backendtest.Do(s, &backend.Op{Kind: backend.Write, Off: block, Len: block, Segs: [][]byte{data}}); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(s.Path(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var over atomic.Bool
	var other sync.WaitGroup
	other.Go(func() {
		m := medium{int(f.Fd()), block}
		for !over.Load() {
			if _, err := f.WriteAt(data, 0); err != nil {
				t.Error(err)
			}
			if err := m.Discard(0, block); err != nil {
				t.Error(err)
			}
		}
	})
	for i := 0; i < 20_000 && !t.Failed(); i++ {
		op := backend.Op{Kind: backend.Status, Len: blocks * block}
		if err := backendtest.Do(s, &op); err != nil || op.Mapped && op.Extent != block && op.Extent != 2*block || !op.Mapped && op.Extent != block {
			t.Errorf("mapped %v, %d bytes, %v", op.Mapped, op.Extent, err)
		}
	}
	over.Store(true)
	other.Wait()
}
