package backendtest_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"oneshot/backend"
	"oneshot/backend/backendtest"
)

func TestDisk(t *testing.T) {
	backendtest.Run(t, func(*testing.T) backend.Store { return backendtest.NewDisk(backendtest.MinSize, 512) }, "NoAllocation")
}

// A power cut leaves what was made durable, and of the rest sectors of any write.
func TestDiskCrash(t *testing.T) {
	d := backendtest.NewDisk(64<<10, 512)
	r := rand.New(rand.NewPCG(1, 2))
	write := func(v byte, off, n int, f backend.Flags) {
		t.Helper()
		op := &backend.Op{Kind: backend.Write, Flags: f, Off: int64(off), Len: int64(n), Segs: [][]byte{bytes.Repeat([]byte{v}, n)}}
		if err := backendtest.Do(d, op); err != nil {
			t.Fatal(err)
		}
	}
	write(1, 0, 8192, 0)
	if b := d.Crash(r, 0); b[0] != 0 {
		t.Error("a write is durable by itself")
	}
	write(2, 512, 512, backend.FUA)
	if b := d.Crash(r, 1); b[0] != 1 || b[512] != 2 || b[1024] != 1 {
		t.Errorf("%d, %d, %d", b[0], b[512], b[1024])
	}
	if b := d.Crash(r, 0); b[0] != 0 || b[512] != 2 || b[1024] != 0 {
		t.Errorf("%d, %d, %d", b[0], b[512], b[1024])
	}
	if err := backendtest.Do(d, &backend.Op{Kind: backend.Flush}); err != nil {
		t.Fatal(err)
	}
	write(3, 0, 32768, 0)
	seen := map[byte]int{}
	for i, b := range d.Crash(r, 0.5) {
		if i%512 == 0 {
			seen[b]++
		}
	}
	if seen[1] == 0 || seen[1]+seen[2] > 16 || seen[3] < 16 || seen[3] > 48 || seen[0] < 64 {
		t.Errorf("%v", seen)
	}
}
