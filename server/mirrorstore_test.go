package server

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"oneshot/backend/memory"
	"oneshot/config"
	"oneshot/ha/quorum"
)

// TestBeginsWithASmallCopy: a mirror does not begin with a size that its first copy does not have. Nodes agree on no size then, for it would stay, and
// the mirror begins when the configuration is right.
func TestBeginsWithASmallCopy(t *testing.T) {
	text, on := clusterOn(t)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	m := s.member
	path := filepath.Join(m.state, mirrorsDir, "e")
	dir, err := quorum.OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	disk, err := memory.New(16 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	c := &config.Store{Name: "e", Mirror: &config.MirrorStore{Copies: []config.Copy{{Node: "a"}, {Node: "b"}}}}
	for _, size := range []int64{32 << 20, 1<<20 + 1} {
		c.Size = size
		_, err := m.recordOf(c, dir, disk)
		if err == nil || !strings.Contains(err.Error(), "write a size that it has") {
			t.Errorf("%d bytes: %v", size, err)
		}
		if _, err := os.Stat(filepath.Join(path, recordFile)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%d bytes: the node has noted the mirror: %v", size, err)
		}
	}
	c.Size = 16 << 20
	if r, err := m.recordOf(c, dir, disk); err != nil || r.Size != c.Size {
		t.Errorf("%+v, %v", r, err)
	}
}
