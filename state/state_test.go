package state

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// crashFS is a file system in memory that stops at a given step, as a process does that is killed
// or a machine that loses power. What was not synced may be there then, or not, or in part.
type crashFS struct {
	now       map[string][]byte // as processes see it
	durable   map[string][]byte // what a power cut leaves for sure
	gone      map[string]bool   // removed since the directory was synced: what is there now is another file, and may be lost
	steps     int               // that may still be done; negative: no limit
	torn      bool              // a step that is cut is half done
	fail      error             // of all that writes
	refuse    error             // of opening a file to write
	stays     error             // of removing a file
	unmounted error             // why the directory may be another one
	doubt     error             // of a file whose bytes have got there all the same
}

var errCrash = errors.New("crash")

func newCrashFS() *crashFS {
	return &crashFS{now: map[string][]byte{}, durable: map[string][]byte{}, gone: map[string]bool{}, steps: -1}
}

// step counts a step down; false: the crash comes before it.
func (f *crashFS) step() bool {
	if f.steps == 0 {
		return false
	}
	f.steps--
	return true
}

func (f *crashFS) Mounted(string) error        { return f.unmounted }
func (f *crashFS) MkdirAll(string) error       { return nil }
func (f *crashFS) Lock(string) (closer, error) { return f, nil }
func (f *crashFS) Close() error                { return nil }

func (f *crashFS) List(dir string) (names []string, err error) {
	for path := range f.now {
		names = append(names, filepath.Base(path))
	}
	return names, nil
}

func (f *crashFS) ReadFile(path string) ([]byte, error) {
	if data, ok := f.now[path]; ok {
		return data, nil
	}
	return nil, fs.ErrNotExist
}

// WriteFile is three steps: the file is there and empty, has its bytes, has them durably.
func (f *crashFS) WriteFile(path string, data []byte) error {
	if f.refuse != nil {
		return f.refuse
	}
	if f.fail != nil {
		f.now[path] = data[:len(data)/2]
		return f.fail
	}
	if !f.step() {
		return errCrash
	}
	f.now[path] = nil
	if !f.step() {
		if f.torn {
			f.now[path] = data[:len(data)/2]
		}
		return errCrash
	}
	f.now[path] = bytes.Clone(data)
	if !f.step() {
		return errCrash
	}
	if !f.gone[path] {
		f.durable[path] = f.now[path]
	}
	return f.doubt
}

func (f *crashFS) Rename(from, to string) error {
	if !f.step() {
		return errCrash
	}
	f.now[to] = f.now[from]
	delete(f.now, from)
	return nil
}

func (f *crashFS) Remove(path string) error {
	if f.stays != nil {
		return f.stays
	}
	if _, ok := f.now[path]; !ok {
		return fs.ErrNotExist
	}
	if !f.step() {
		return errCrash
	}
	delete(f.now, path)
	f.gone[path] = true
	return nil
}

func (f *crashFS) SyncDir(string) error {
	if !f.step() {
		return errCrash
	}
	f.durable = maps.Clone(f.now)
	clear(f.gone)
	return nil
}

// after is the file system after the crash: a kill leaves what processes saw; a power cut what is
// durable.
func (f *crashFS) after(powerCut bool) *crashFS {
	left := f.now
	if powerCut {
		left = f.durable
	}
	return &crashFS{now: maps.Clone(left), durable: maps.Clone(left), gone: map[string]bool{}, steps: -1}
}

// A crash between any two steps leaves the old state or the new one, and the new one once Save
// has returned; nothing half done is left, and the next Save works.
func TestCrashAtEveryStep(t *testing.T) {
	old, next := []byte("old"), []byte("the new state, which is longer")
	for _, c := range []struct{ before, after []byte }{{nil, old}, {old, next}, {next, old}, {old, nil}} {
		for _, torn := range []bool{false, true} {
			for _, powerCut := range []bool{false, true} {
				ended := false
				for steps := 0; !ended; steps++ {
					if steps > 20 {
						t.Fatal("Save does not end")
					}
					fsys := newCrashFS()
					d, err := open(fsys, "dir")
					if err != nil {
						t.Fatal(err)
					}
					f := d.File("lu")
					if err := f.Save(c.before); err != nil {
						t.Fatal(err)
					}
					fsys.steps, fsys.torn = steps, torn
					err = f.Save(c.after)
					ended = err == nil
					left := fsys.after(powerCut)
					d, err = open(left, "dir")
					if err != nil {
						t.Fatal(err)
					}
					got, err := d.File("lu").Load()
					switch {
					case err != nil:
						t.Errorf("%q → %q, step %d, torn %v, power cut %v: %v", c.before, c.after, steps, torn, powerCut, err)
					case ended && !bytes.Equal(got, c.after), !bytes.Equal(got, c.after) && !bytes.Equal(got, c.before):
						t.Errorf("%q → %q, step %d, torn %v, power cut %v: %q", c.before, c.after, steps, torn, powerCut, got)
					}
					for name := range left.now {
						if strings.HasSuffix(name, tempSuffix) {
							t.Errorf("%s is left", name)
						}
					}
					if err := d.File("lu").Save(next); err != nil {
						t.Errorf("saving after the crash: %v", err)
					}
				}
			}
		}
	}
}

// Where the file system of the directory may not be mounted there is no new one: it would have no reservations, and would be gone when
// the right one is back. One that was used before is the right one.
func TestNotMounted(t *testing.T) {
	fsys := newCrashFS()
	fsys.unmounted = errors.New("/srv, where a file system belongs, has none mounted: mount it")
	if _, err := open(fsys, "dir"); !errors.Is(err, fsys.unmounted) {
		t.Errorf("a directory that nobody has used: %v", err)
	}
	fsys.now[filepath.Join("dir", lockName)] = nil
	d, err := open(fsys, "dir")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// A full disk keeps the old state, and leaves nothing that takes room.
func TestFullDisk(t *testing.T) {
	fsys := newCrashFS()
	d, err := open(fsys, "dir")
	if err != nil {
		t.Fatal(err)
	}
	f := d.File("lu")
	if err := f.Save([]byte("old")); err != nil {
		t.Fatal(err)
	}
	fsys.fail = unix.ENOSPC
	if err := f.Save([]byte("new")); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "lu.state") {
		t.Errorf("Save: %v", err)
	}
	if got, err := f.Load(); string(got) != "old" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if names := slices.Collect(maps.Keys(fsys.now)); len(names) != 1 {
		t.Errorf("there are %q", names)
	}
}

// A state that was removed, but not for good, comes back after a power cut. So a second Save of nothing is not answered before it cannot.
func TestRemovedInDoubt(t *testing.T) {
	fsys := newCrashFS()
	d, err := open(fsys, "dir")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.File("lu").Save([]byte("old")); err != nil {
		t.Fatal(err)
	}
	fsys.steps = 1 // the directory is not synced
	if err := d.File("lu").Save(nil); err == nil {
		t.Fatal("what is not removed for good counts as removed")
	}
	fsys.steps = 0
	if err := d.File("lu").Save(nil); err == nil {
		t.Error("the second time it does")
	}
	fsys.steps = -1
	if err := d.File("lu").Save(nil); err != nil {
		t.Error(err)
	}
	if left := fsys.after(true).now; len(left) != 0 {
		t.Errorf("after a power cut there are %q", left)
	}
}

// The error of a Save says whether the new state may be there.
func TestSaveMayBeKept(t *testing.T) {
	for _, state := range [][]byte{[]byte("new"), nil} {
		for steps := range 10 {
			fsys := newCrashFS()
			d, err := open(fsys, "dir")
			if err != nil {
				t.Fatal(err)
			}
			f := d.File("lu")
			if err := f.Save([]byte("old")); err != nil {
				t.Fatal(err)
			}
			fsys.steps = steps
			err = f.Save(state)
			if err == nil {
				break
			}
			_, may := errors.AsType[*KeptError](err)
			if got, _ := f.Load(); may != (string(got) != "old") {
				t.Errorf("%q, step %d: %q is there, and the error says %v: %v", state, steps, got, may, err)
			}
		}
	}
}

// Whatever is cut from a file, or changed in it, is noticed.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	f := d.File("iqn/.. ü")
	state := []byte("{\n\"Format\": 1}")
	if err := f.Save(state); err != nil {
		t.Fatal(err)
	}
	if got, err := d.File("iqn/.. ü").Load(); !bytes.Equal(got, state) || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	whole, err := os.ReadFile(f.path)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, data []byte) {
		t.Helper()
		if err := os.WriteFile(f.path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := f.Load()
		if _, damaged := errors.AsType[*DamagedError](err); !damaged || got != nil || !strings.Contains(err.Error(), f.path) {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
	for n := range whole {
		check("cut short", whole[:n])
	}
	for i := range whole {
		changed := bytes.Clone(whole)
		changed[i] ^= 0x04
		check("changed", changed)
	}
	check("with more behind", append(bytes.Clone(whole), '\n'))
	if err := f.Save(nil); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Load(); got != nil || err != nil {
		t.Errorf("after it was removed: %q, %v", got, err)
	}
	if err := f.Save(nil); err != nil {
		t.Errorf("removed twice: %v", err)
	}
}

// One process at a time; what a killed one has begun is gone.
func TestOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "another process") {
		t.Errorf("opened twice: %v", err)
	}
	half := d.File("x").path + tempSuffix
	if err := os.WriteFile(half, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if d, err = Open(dir); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	if _, err := os.Stat(half); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: %v", half, err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	unlockable := t.TempDir() // as on a file system that is read-only: nobody has it
	if err := os.Mkdir(filepath.Join(unlockable, "lock"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(unlockable); err == nil || !strings.Contains(err.Error(), "let this user write") || strings.Contains(err.Error(), "end the target") {
		t.Errorf("a directory that cannot be locked: %v", err)
	}
	if _, err := Open(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file as directory: %v", err)
	}
}

// FuzzDecode reads any file: it is refused, or what it holds encodes to the same bytes.
func FuzzDecode(f *testing.F) {
	f.Add(encode([]byte("{}")))
	f.Add(encode([]byte("{}"))[:20])
	f.Add([]byte("oneshot state 1 -1 00000000\n"))
	f.Add([]byte("oneshot state 1 0 00000000\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		state, err := (&File{path: "x"}).decode(data)
		if err == nil && !bytes.Equal(encode(state), data) {
			t.Fatalf("%q is %q, which is written as %q", data, state, encode(state))
		}
	})
}

// TestRename: a crash between any two steps of it leaves what it can be done again with. What the new name has is newer; what the old one has is gone.
func TestRename(t *testing.T) {
	type kept struct{ state, write string }
	for _, c := range []struct{ from, to, want kept }{
		{kept{"a", "b"}, kept{}, kept{"a", "b"}},
		{kept{"a", ""}, kept{}, kept{"a", ""}},
		{kept{"", "b"}, kept{}, kept{"", "b"}},
		{kept{}, kept{"c", "d"}, kept{"c", "d"}},
		{kept{"a", "b"}, kept{"c", "d"}, kept{"c", "d"}},
		{kept{"a", "b"}, kept{"c", ""}, kept{"c", ""}},
		{kept{"a", "b"}, kept{"", "d"}, kept{"a", "d"}},
	} {
		for _, powerCut := range []bool{false, true} {
			ended := false
			for steps := 0; !ended; steps++ {
				fsys := newCrashFS()
				d, err := open(fsys, "dir")
				if err != nil {
					t.Fatal(err)
				}
				for name, k := range map[string]kept{"older": c.from, "newer": c.to} {
					if err := d.File(name).Save([]byte(k.state)); err != nil {
						t.Fatal(err)
					}
					if k.write != "" {
						if err := d.Journal(name).Begin(0, []byte(k.write)); err != nil {
							t.Fatal(err)
						}
					}
				}
				if fsys.steps = steps; steps > 20 {
					t.Fatal("Rename does not end")
				}
				ended = d.Rename("older", "newer") == nil
				left := fsys.after(powerCut)
				if d, err = open(left, "dir"); err != nil {
					t.Fatal(err)
				}
				if !ended {
					if err := d.Rename("older", "newer"); err != nil {
						t.Fatal(err)
					}
				}
				state, err := d.File("newer").Load()
				_, write, writeErr := d.Journal("newer").Pending()
				if got := (kept{string(state), string(write)}); err != nil || writeErr != nil || got != c.want {
					t.Errorf("%q and %q, crash at step %d, power cut %v: %q, %v, %v", c.from, c.to, steps, powerCut, got, err, writeErr)
				}
				for path := range left.now {
					if strings.Contains(path, "older") {
						t.Errorf("%q and %q, crash at step %d, power cut %v: there is %s", c.from, c.to, steps, powerCut, path)
					}
				}
			}
		}
	}
}
