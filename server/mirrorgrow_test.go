package server

import (
	"strings"
	"testing"
)

// TestGrowIsBounded: no size, whoever asks for it, makes a node note more than it has memory for. The copy is not touched.
func TestGrowIsBounded(t *testing.T) {
	for _, size := range []int64{mostMirror + 1, 1 << 60} {
		if err := new(mirrored).makeRoom(size); err == nil || !strings.Contains(err.Error(), "256TiB at most") {
			t.Errorf("room for %d bytes: %v", size, err)
		}
	}
}
