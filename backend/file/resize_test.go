package file

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/backend/backendtest"
)

// A store grows while it is open, keeps what is in it, and does not shrink.
func TestResize(t *testing.T) {
	for _, sparse := range []bool{true, false} {
		path := filepath.Join(t.TempDir(), "disk.img")
		s, err := Open(Config{Path: path, Size: 1 << 20, Sparse: sparse})
		if err != nil {
			t.Fatal(err)
		}
		old := bytes.Repeat([]byte{7}, 4096)
		beyond := backend.Op{Kind: backend.Write, Off: 1 << 20, Len: 4096, Segs: [][]byte{old}}
		if err := backendtest.Do(s, &backend.Op{Kind: backend.Write, Off: 1<<20 - 4096, Len: 4096, Segs: [][]byte{old}}); err != nil {
			t.Fatal(err)
		}
		if err := backendtest.Do(s, &beyond); err == nil {
			t.Error("a write beyond the end succeeds")
		}
		if err := s.Resize(2 << 20); err != nil {
			t.Fatal(err)
		}
		if err := backendtest.Do(s, &beyond); err != nil || s.Info().Size != 2<<20 {
			t.Errorf("after growing to %d bytes: %v", s.Info().Size, err)
		}
		got := make([]byte, 12288)
		if err := backendtest.Do(s, &backend.Op{Kind: backend.Read, Off: 1<<20 - 4096, Len: 12288, Segs: [][]byte{got}}); err != nil {
			t.Fatal(err)
		}
		if want := append(bytes.Repeat([]byte{7}, 8192), make([]byte, 4096)...); !bytes.Equal(got, want) {
			t.Error("what was there, or what is new, has other bytes")
		}
		for size, want := range map[int64]string{1 << 20: "shrink", 2<<20 + 1: "multiple"} {
			if err := s.Resize(size); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
				t.Errorf("Resize(%d): %v", size, err)
			}
		}
		// With 0 it looks at what others have done to the file.
		if err := os.Truncate(path, 3<<20); err != nil {
			t.Fatal(err)
		}
		if err := s.Resize(0); err != nil || s.Info().Size != 3<<20 {
			t.Errorf("%d bytes: %v", s.Info().Size, err)
		}
		if err := os.Truncate(path, 1<<20); err != nil {
			t.Fatal(err)
		}
		if err := s.Resize(0); err == nil || s.Info().Size != 3<<20 {
			t.Errorf("a file that was cut: %d bytes, %v", s.Info().Size, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A store that finds no space to grow is as large as before, and leaves others the space that there is.
func TestNoSpaceToGrow(t *testing.T) {
	dir, disk := t.TempDir(), backendtest.NewLoop(t, 64<<20, 512)
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", disk.Path).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
	if err := unix.Mount(disk.Path, dir, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	const size, more = 1 << 20, 1 << 30
	cfg := Config{Path: filepath.Join(dir, "disk.img"), Size: size}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, before, err := s.Usage()
	if err != nil {
		t.Fatal(err)
	}
	left := func(what string) {
		t.Helper()
		st, err := os.Stat(cfg.Path)
		if err != nil {
			t.Fatal(err)
		}
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err != nil {
			t.Fatal(err)
		}
		if now := int64(fs.Bavail) * fs.Bsize; st.Size() != size || now < before-64<<10 { // it may keep a block of pointers
			t.Errorf("after %s the file has %d bytes, and %d are left of %d", what, st.Size(), now, before)
		}
	}
	if err := s.Resize(more); err == nil || s.Info().Size != size {
		t.Errorf("Resize: %v, %d bytes", err, s.Info().Size)
	}
	left("Resize")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if s, err := Open(Config{Path: cfg.Path, Size: more}); err == nil {
		t.Error("there is space for more than the file system has")
		_ = s.Close()
	}
	left("Open")
}
