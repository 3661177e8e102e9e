package mirror

import (
	"testing"

	"oneshot/backend"
)

// TestIsFlushedNext: only the last piece of what is to be durable is followed by a flush.
func TestIsFlushedNext(t *testing.T) {
	for _, x := range []struct {
		flags  backend.Flags
		off, n int64
		want   bool
	}{
		{0, 0, 8192, false},
		{backend.More, 4096, 4096, false},
		{backend.FUA, 0, 8192, true},
		{backend.FUA, 0, 4096, false},
		{backend.FUA, 4096, 4096, true},
		{backend.Barrier | backend.More, 4096, 4096, true},
	} {
		task := &task{op: &backend.Op{Kind: backend.Write, Flags: x.flags, Off: 0, Len: 8192}, off: x.off, n: x.n}
		if got := task.isFlushedNext(); got != x.want {
			t.Errorf("%+v: %v", x, got)
		}
	}
}
