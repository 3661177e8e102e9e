package server

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/backend/file"
	"oneshot/config"
	"oneshot/initiator"
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

// growing gives the only file store that is opened afterwards a size in MiB, and tells the stores on it.
func growing(t *testing.T) (grow func(size int64)) {
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
	return func(size int64) {
		t.Helper()
		if err := below.(backend.Resizer).Resize(size << 20); err != nil {
			t.Fatal(err)
		}
		grown()
	}
}

// A slice that is configured without a size grows with the store below, at once, and a unit attention tells
// initiators. A slice with a size keeps it.
func TestSlicesGrow(t *testing.T) {
	grow := growing(t)
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
	grow(16)
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

// stacked has the stores of memory fail when a test says so, and tells what became of the opening of each store.
func stacked(t *testing.T) (bottom func() *faulty.Store, tried map[string]chan error) {
	seed, inner := faulty.Seed(t), opener
	t.Cleanup(func() { opener = inner })
	var disk *faulty.Store
	tried = map[string]chan error{"later": make(chan error, 9)}
	opener = func(c *config.Store, o opening) (backend.Store, error) {
		s, err := inner(c, o)
		if c.Name == "disk" && err == nil {
			disk = faulty.New(s, seed)
			return disk, nil
		}
		if tried[c.Name] != nil {
			tried[c.Name] <- err
		}
		return s, err
	}
	return func() *faulty.Store { return disk }, tried
}

const manySlices = `
stores:
  m: {type: memory, size: 1MiB}
  disk: {type: memory, size: 16MiB}
  kept: {type: slice, on: disk, offset: 12MiB}
  SLICE
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: m, 1: kept, LUN}}]
portals: [{listen: "127.0.0.1:0"}]
`

// A slice that a reload takes away has its bytes until its commands have ended: one that has bytes in common with it, or is the same
// one again, is opened after that. So what the old commands write does not come over what others have written since.
func TestBytesOfASliceThatIsTakenAway(t *testing.T) {
	for name, later := range map[string]string{
		"another one":  "later: {type: slice, on: disk, offset: 4MiB, size: 4MiB}",
		"the same one": "later: {type: slice, on: disk, offset: 2MiB, size: 6MiB}",
	} {
		t.Run(name, func(t *testing.T) {
			disk, tried := stacked(t)
			r := serve(t, strings.NewReplacer("SLICE", "first: {type: slice, on: disk, offset: 2MiB, size: 6MiB}", "LUN", "2: first").Replace(manySlices))
			s := r.login("a")
			attentions(t, s, 2)
			gate := disk().Hold(faulty.Match{Kinds: faulty.Writes, Off: 5 << 20, Len: 512, Times: 1})
			old := &initiator.Command{LUN: 2, CDB: []byte{0x2a, 0, 0, 0, 3 << 11 >> 8, 0, 0, 0, 1, 0}, Out: bytes.Repeat([]byte{1}, 512)} // at 3 MiB of it
			var ended sync.WaitGroup
			ended.Add(1)
			old.Done = func(*initiator.Command) { ended.Done() }
			s.Start(old)
			gate.Await(1)
			r.apply(strings.NewReplacer("SLICE", "", ", LUN", "").Replace(manySlices))
			next := r.parse(strings.NewReplacer("SLICE", later, "LUN", "3: later").Replace(manySlices))
			applied := make(chan error, 1)
			go func() {
				_, err := r.Apply(next)
				applied <- err
			}()
			var once sync.Once
			if err := <-tried["later"]; err != nil {
				once.Do(gate.Release)
			}
			if err := <-applied; err != nil {
				t.Fatal(err)
			}
			lu := unit(t, r.login("a"), 3)
			at := int64(5<<20) - next.Store("later").Slice.Offset
			if _, err := lu.WriteAt(bytes.Repeat([]byte{2}, 512), at); err != nil {
				t.Fatal(err)
			}
			once.Do(gate.Release)
			ended.Wait()
			got := make([]byte, 512)
			if _, err := lu.ReadAt(got, at); err != nil || got[0] != 2 {
				t.Errorf("%d is read, and 2 was written last; %v", got[0], err)
			}
		})
	}
}

// A reload that gives a slice a size ends its growing with the store below, and one that takes the size away begins it. However it has
// become large, no other slice gets its bytes.
func TestSlicesGrowAsTheReloadSays(t *testing.T) {
	grow := growing(t)
	path := filepath.Join(t.TempDir(), "disk.img")
	text := func(first, luns string) string {
		return `
stores:
  disk: {type: file, path: ` + path + `}
  first: {type: slice, on: disk` + first + `}
  second: {type: slice, on: disk, offset: 8MiB}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {` + luns + `}}]
portals: [{listen: "127.0.0.1:0"}]
`
	}
	alone := func(first string) string {
		return strings.Replace(text(first, "0: first"), "  second: {type: slice, on: disk, offset: 8MiB}\n", "", 1)
	}
	if err := os.WriteFile(path, make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	r := serve(t, alone(""))
	size := func(want int64) {
		t.Helper()
		if got := unit(t, r.login("a"), 0).Size() >> 20; got != want {
			t.Errorf("the first slice has %d MiB, want %d", got, want)
		}
	}
	r.apply(alone(", size: 8MiB"))
	grow(12)
	size(8)
	r.apply(text(", size: 8MiB", "0: first, 1: second"))
	works(t, r.login("a"), 1)
	r.apply(alone(", size: 8MiB"))
	r.apply(alone("")) // waits for the second one
	size(12)
	grow(16)
	size(16)
	if _, err := r.Apply(r.parse(text(", size: 8MiB", "0: first, 1: second"))); err == nil || !strings.Contains(err.Error(), `the store "first" has 16777216 of these bytes from 0 on`) {
		t.Errorf("the second slice is opened over the first one: %v", err)
	}
}

// Whoever adds a slice of a store that is open learns that other options of that store are not in force; and a slice that is to be written
// does not come from a store that was opened read-only.
func TestOptionsOfASharedStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, make([]byte, 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	text := func(options, slice string) string {
		return `
stores:
  m: {type: memory, size: 1MiB}
  disk: {type: file, path: ` + path + options + `}
  s: {type: slice, on: disk, size: 8MiB, offset: ` + slice + `}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: m, 1: s}}]
portals: [{listen: "127.0.0.1:0"}]
`
	}
	r := serve(t, text("", "0"))
	done := r.apply(text(", cache: writethrough", "8MiB"))
	if len(done.Pending) != 1 || !strings.Contains(done.Pending[0], `the options of the store "disk"`) {
		t.Errorf("writethrough is not in force, and the reload says %q", done.Pending)
	}
	if done = r.apply(text(", cache: writethrough", "8MiB")); len(done.Pending) != 0 {
		t.Errorf("the same once more says %q", done.Pending)
	}

	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	r = serve(t, text(", size: 16MiB, readonly: true", "0"))
	if _, err := r.Apply(r.parse(text(", size: 16MiB", "8MiB"))); err == nil || !strings.Contains(err.Error(), "was opened read-only") {
		t.Errorf("a slice to write of a store that was opened read-only: %v", err)
	}
}
