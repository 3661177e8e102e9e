package server

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"oneshot/backend"
	"oneshot/backend/file"
	"oneshot/config"
)

// Stores stand on other stores, in any order and depth. Each LUN shows the right bytes of the store at the
// bottom, which is opened once, and closed with the last store above it.
func TestStacks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "whole.img")
	text := func(luns string) string {
		return `
stores:
  slow: {type: throttle, on: m, operations: 1000000, bandwidth: 100GiB}
  second: {type: slice, on: upper, size: 8MiB}
  first: {type: slice, on: whole, size: 8MiB}
  whole: {type: file, path: "` + path + `", size: 32MiB}
  upper: {type: slice, on: whole, offset: 8MiB}
  third: {type: slice, on: upper, offset: 8MiB}
  m: {type: memory, size: 8MiB}
  part: {type: slice, on: lent, offset: 4MiB, size: 8MiB}
  lent: {type: memory, size: 16MiB}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {` + luns + `}}]
portals: [{listen: "127.0.0.1:0"}]
`
	}
	const all = "0: first, 1: second, 2: third, 3: slow, 4: part"
	r := serve(t, text(all))
	s := r.login("a")
	for lun, size := range []int64{8 << 20, 8 << 20, 16 << 20, 8 << 20, 8 << 20} {
		lu := unit(t, s, lun)
		if n := lu.Size(); n != size {
			t.Errorf("LUN %d has %d bytes, want %d", lun, n, size)
		}
		if _, err := lu.WriteAt(bytes.Repeat([]byte{byte(lun + 1)}, 64<<10), 4096); err != nil {
			t.Fatal(err)
		}
		works(t, s, lun)
		if _, err := lu.WriteAt(bytes.Repeat([]byte{byte(lun + 1)}, 64<<10), 4096); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for lun := range 3 {
		if at := lun<<23 + 4096; !bytes.Equal(b[at:at+64<<10], bytes.Repeat([]byte{byte(lun + 1)}, 64<<10)) {
			t.Errorf("the bytes of LUN %d are not at %d of the file", lun, at)
		}
	}
	isOpen := func() bool {
		f, err := file.Open(file.Config{Path: path, Sparse: true})
		if err == nil {
			f.Close()
		}
		return err != nil
	}
	// Slices come and go; the file stays open as long as one of them is there.
	r.apply(text("2: third, 3: slow"))
	if !isOpen() {
		t.Error("the file is closed, and a slice of it is shown")
	}
	r.apply(text(all))
	works(t, s, 1)
	r.apply(text("3: slow"))
	for isOpen() && t.Context().Err() == nil {
		runtime.Gosched() // it is closed in the background
	}
	s = r.login("a")
	r.apply(text(all))
	works(t, s, 0)
}

// An error of a store below names that store, and nothing stays open.
func TestStacksThatDoNotOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "small.img")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	good := `
stores:
  s: {type: memory, size: 1MiB}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: s}}]
portals: [{listen: "127.0.0.1:0"}]
`
	r := serve(t, good)
	for stores, want := range map[string]string{
		`{type: slice, on: file, offset: 2MiB}, file: {type: file, path: "` + path + `"}`:                                            "begins at",
		`{type: slice, on: file, size: 2MiB}, file: {type: file, path: "` + path + `"}`:                                              "1048576 bytes",
		`{type: slice, on: file, size: 1MiB}, file: {type: file, path: "` + path + `x", create: false}`:                              `store "file" below`,
		`{type: throttle, on: x, operations: 1}, x: {type: slice, on: file, offset: 2MiB}, file: {type: file, path: "` + path + `"}`: `store "x" below`,
	} {
		text := strings.Replace(good, "{type: memory, size: 1MiB}", "{type: memory, size: 1MiB}\n  bad: "+strings.NewReplacer("}, file:", "}\n  file:", "}, x:", "}\n  x:").Replace(stores), 1)
		text = strings.Replace(text, "luns: {0: s}", "luns: {0: s, 1: bad}", 1)
		if _, err := r.Apply(r.parse(text)); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `store "bad"`) {
			t.Errorf("%s: %v", stores, err)
		}
		f, err := file.Open(file.Config{Path: path, Sparse: true})
		if err != nil {
			t.Fatalf("%s: it is open still: %v", stores, err)
		}
		f.Close()
	}
}

// A store that was removed is closed in the background. It may be opened again before that has ended.
func TestStoresComeBack(t *testing.T) {
	const with = `
stores:
  d: {type: file, path: d.img, size: 8MiB}
  whole: {type: file, path: whole.img, size: 8MiB}
  s: {type: slice, on: whole, offset: 1MiB}
  m: {type: memory, size: 8MiB}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: m, 1: d, 2: s}}]
portals: [{listen: "127.0.0.1:0"}]
`
	r := serve(t, with)
	for range 20 {
		r.apply(strings.Replace(with, "0: m, 1: d, 2: s", "0: m", 1))
		r.apply(with)
	}
	s := r.login("a")
	works(t, s, 1)
	works(t, s, 2)
}

// A slice that is configured without a size grows with the store below, at once, and a unit attention tells
// initiators. A slice with a size keeps it.
func TestSlicesGrow(t *testing.T) {
	var below backend.Store
	var grown func()
	inner := opener
	t.Cleanup(func() { opener = inner })
	opener = func(c *config.Store, o opening) (backend.Store, error) {
		s, err := inner(c, o)
		if c.Type == config.StoreFile {
			below, grown = s, o.resized
		}
		return s, err
	}
	r := serve(t, `
stores:
  disk: {type: file, path: `+filepath.Join(t.TempDir(), "disk.img")+`, size: 8MiB}
  first: {type: slice, on: disk, size: 2MiB}
  rest: {type: slice, on: disk, offset: 2MiB}
  part: {type: slice, on: rest, size: 1MiB}
  end: {type: slice, on: rest, offset: 1MiB}
  slow: {type: throttle, on: end, operations: 1000000}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: first, 1: part, 2: slow}}]
portals: [{listen: "127.0.0.1:0"}]
`)
	s := r.login("a")
	sizes := func() (list [3]int64) {
		for lun := range list {
			list[lun] = unit(t, s, lun).Size() >> 20
		}
		return list
	}
	if got, want := sizes(), [3]int64{2, 1, 5}; got != want {
		t.Fatalf("%v MiB, want %v", got, want)
	}
	for lun := range 3 {
		attentions(t, s, lun)
	}
	if err := below.(backend.Resizer).Resize(16 << 20); err != nil {
		t.Fatal(err)
	}
	grown()
	for lun, want := range []string{"", "", "62a09"} { // CAPACITY DATA HAS CHANGED
		if got := attentions(t, s, lun); got != want {
			t.Errorf("LUN %d hears %q, want %q", lun, got, want)
		}
	}
	if got, want := sizes(), [3]int64{2, 1, 13}; got != want {
		t.Errorf("%v MiB, want %v", got, want)
	}
	works(t, s, 2)
}
