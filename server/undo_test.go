package server

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A change that comes to nothing removes the files that it has created, and no other.
func TestFailedChangeLeavesNoFiles(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	const good = `
stores:
  m: {type: memory, size: 1MiB}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: m}}]
portals: [{listen: "127.0.0.1:0"}]
`
	r := serve(t, good)
	dir := t.TempDir()
	old := filepath.Join(dir, "old.img")
	if err := os.WriteFile(old, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	stores := strings.NewReplacer("DIR", dir).Replace(`stores:
  plain: {type: file, path: DIR/plain.img, size: 1MiB}
  full: {type: file, path: DIR/full.img, size: 1MiB, sparse: false}
  below: {type: file, path: DIR/below.img, size: 1MiB}
  first: {type: slice, on: below, size: 512KiB}
  second: {type: slice, on: below, offset: 512KiB}
  old: {type: file, path: DIR/old.img}
`)
	const luns = "1: plain, 2: full, 3: first, 4: second, 5: old"
	next := func(replace ...string) string {
		text := strings.NewReplacer("stores:\n", stores, "0: m", "0: m, "+luns).Replace(good)
		return strings.NewReplacer(replace...).Replace(text)
	}
	for name, c := range map[string]struct{ text, want string }{
		"a portal is taken":        {next(`"127.0.0.1:0"`, `"`+taken.Addr().String()+`"`), "address already in use"},
		"the last store is broken": {next("old.img}", "old.img, size: 512KiB}"), "size is set to"},
		"a slice does not fit":     {next("offset: 512KiB}", "offset: 524388}"), "not a multiple"},
	} {
		if _, err := r.Apply(r.parse(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Fatalf("%s: %v", name, err)
		}
		for _, file := range []string{"plain.img", "full.img", "below.img"} {
			if _, err := os.Stat(filepath.Join(dir, file)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %s is left behind: %v", name, file, err)
			}
		}
		if _, err := os.Stat(old); err != nil {
			t.Fatalf("%s: the file that was there before: %v", name, err)
		}
	}
	// What a change has put into force stays, whatever becomes of the next one.
	r.apply(next())
	if _, err := r.Apply(r.parse(next("luns: {0: m, ", "luns: {9: x, ", "stores:\n", "stores:\n  x: {type: file, path: "+dir+"/none/x.img, size: 1MiB}\n"))); err == nil {
		t.Fatal("a file without a directory was created")
	}
	for _, file := range []string{"plain.img", "full.img", "below.img", "old.img"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			t.Error(err)
		}
	}
}
