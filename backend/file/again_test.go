package file

import (
	"path/filepath"
	"testing"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/fdio"
)

// Once closed, the file can be opened at once: the lock does not outlive Close in a ring that
// the kernel has yet to take apart.
func TestOpenAtOnce(t *testing.T) {
	for _, io := range []fdio.IO{fdio.Threads, fdio.Uring} {
		cfg := Config{Path: filepath.Join(t.TempDir(), "f"), Size: 1 << 20, Direct: true, IO: io}
		for range 50 {
			s := mustOpen(t, cfg)
			if err := backendtest.Do(s, &backend.Op{Kind: backend.Read, Len: 4096, Segs: [][]byte{make([]byte, 4096)}}); err != nil {
				t.Fatal(err)
			}
			mustClose(t, s)
		}
	}
}
