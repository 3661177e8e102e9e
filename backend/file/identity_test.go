package file

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"oneshot/backend"
)

// A file is the same one under any name, and another one is not.
func TestIdentity(t *testing.T) {
	for _, dir := range []string{t.TempDir(), tmpfs(t, 8<<20)} {
		path := filepath.Join(dir, "a.img")
		s := mustOpen(t, Config{Path: path, Size: 1 << 20, Sparse: true})
		id := backend.IdentityOf(s)
		mustClose(t, s)
		if id == "" || strings.ContainsAny(string(id), " \n/") {
			t.Fatalf("identity %q", id)
		}
		same := map[string]func(to string) error{
			"b.img": func(to string) error { return os.Symlink(path, to) },
			"c.img": func(to string) error { return os.Link(path, to) },
			"d.img": func(to string) error { return os.Rename(path, to) },
		}
		for _, name := range []string{"b.img", "c.img", "d.img"} {
			to := filepath.Join(dir, name)
			if err := same[name](to); err != nil {
				t.Fatal(err)
			}
			if got, err := IdentityOf(to); err != nil || got != id {
				t.Errorf("%s: %q, %v; want %q", name, got, err, id)
			}
		}
		s = mustOpen(t, Config{Path: filepath.Join(dir, "d.img")})
		if got := s.Identity(); got != id {
			t.Errorf("opened again: %q, want %q", got, id)
		}
		mustClose(t, s)
		other := mustOpen(t, Config{Path: path, Size: 1 << 20, Sparse: true})
		if got := other.Identity(); got == id {
			t.Errorf("another file is %q too", got)
		}
		mustClose(t, other)
	}
	if _, err := IdentityOf(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there has an identity")
	}
}
