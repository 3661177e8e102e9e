package file

import (
	"os"
	"path/filepath"
	"slices"
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
			if got, err := IdentitiesOf(to); err != nil || len(got) == 0 || got[0] != id {
				t.Errorf("%s: %q, %v; want %q", name, got, err, id)
			}
		}
		s = mustOpen(t, Config{Path: filepath.Join(dir, "d.img")})
		if got := backend.IdentityOf(s); got != id {
			t.Errorf("opened again: %q, want %q", got, id)
		}
		mustClose(t, s)
		other := mustOpen(t, Config{Path: path, Size: 1 << 20, Sparse: true})
		if got := backend.IdentityOf(other); got == id {
			t.Errorf("another file is %q too", got)
		}
		mustClose(t, other)
	}
	if _, err := IdentitiesOf(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there has an identity")
	}
}

// TestIdentityOfOlderKernel: a file has the identity that a kernel gives it which does not tell the UUID of the file system, and another one before it if
// the kernel does. Another file has neither.
func TestIdentityOfOlderKernel(t *testing.T) {
	tells := uuidOf
	defer func() { uuidOf = tells }()
	dir := tmpfs(t, 8<<20)
	path, another := filepath.Join(dir, "a.img"), filepath.Join(dir, "b.img")
	s := mustOpen(t, Config{Path: path, Size: 1 << 20, Sparse: true})
	defer mustClose(t, s)
	mustClose(t, mustOpen(t, Config{Path: another, Size: 1 << 20, Sparse: true}))
	with := func(uuid string) []backend.Identity {
		uuidOf = func(int) string { return uuid }
		ids, err := IdentitiesOf(path)
		if err != nil || !slices.Equal(backend.IdentitiesOf(s), ids) {
			t.Errorf("%q, %v; the store says %q", ids, err, backend.IdentitiesOf(s))
		}
		for _, id := range ids {
			if others, err := IdentitiesOf(another); err != nil || slices.Contains(others, id) {
				t.Errorf("another file is %q too, %v", id, err)
			}
		}
		return ids
	}
	older, newer, other := with(""), with("0123"), with("4567")
	if len(older) != 1 || len(newer) != 2 || newer[1] != older[0] || newer[0] == other[0] || !strings.HasPrefix(string(newer[0]), "file-0123-") {
		t.Errorf("with an older kernel %q, with a newer one %q; and with another UUID %q", older, newer, other)
	}
	if !backend.Is(s, older[0]) || backend.Is(s, newer[0]) || backend.Is(s, "") {
		t.Errorf("%q is not found", older)
	}
}
