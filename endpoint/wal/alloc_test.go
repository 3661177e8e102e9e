//go:build !race

package wal

import (
	"testing"

	"oneshot/backend/memory"
)

func TestAllocations(t *testing.T) {
	s, err := memory.New(64 << 20)
	must(t, err)
	l := mustOpen(t, s, Options{})
	p := make([]byte, 512)
	mustAppend(t, l, p)
	if n := testing.AllocsPerRun(100, func() {
		_, w := l.Append(p)
		if err := w.Wait(); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for a record", n)
	}
}
