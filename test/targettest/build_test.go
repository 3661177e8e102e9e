package targettest

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// TestShare: processes that share a directory have one daemon, which is linked again only when its sources have changed.
func TestShare(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	built := func() *os.File {
		path, err := share(root, dir)
		if err != nil {
			t.Error(err)
			return nil
		}
		f, err := os.Open(path) // so no other file has its inode
		if err != nil {
			t.Error(err)
			return nil
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	same := func(a, b *os.File) bool {
		t.Helper()
		if a == nil || b == nil {
			t.FailNow()
		}
		i, err := a.Stat()
		if err != nil {
			t.Fatal(err)
		}
		j, err := b.Stat()
		if err != nil {
			t.Fatal(err)
		}
		return os.SameFile(i, j)
	}
	says := func(f *os.File, want string) {
		t.Helper()
		if out, err := exec.Command(f.Name()).CombinedOutput(); err != nil || string(out) != want {
			t.Errorf("the daemon says %q, %v; want %q", out, err, want)
		}
	}
	write("go.mod", "module shared\n")
	write("cmd/target/main.go", "package main\n\nfunc main() { print(\"old\") }\n")
	var all sync.WaitGroup
	var files [3]*os.File
	for i := range files {
		all.Go(func() { files[i] = built() })
	}
	all.Wait()
	for _, f := range append(files[1:], built()) {
		if !same(files[0], f) {
			t.Error("a daemon that is up to date was linked again")
		}
	}
	says(files[0], "old")
	write("cmd/target/main.go", "package main\n\nfunc main() { print(\"new\") }\n")
	if f := built(); !same(files[0], f) {
		says(f, "new")
	} else {
		t.Error("the daemon is that of older sources")
	}
}
