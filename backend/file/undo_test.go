package file

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Undo removes the file that Open has created, unless somebody has written to it or put another one there.
func TestUndo(t *testing.T) {
	times := func(path string) (st unix.Stat_t, err error) { return st, unix.Stat(path, &st) }
	// in does something to the file whose time of change nobody sees: clocks of file systems tick slowly.
	in := func(f func(*os.File) error) func(string) error {
		return func(path string) error {
			st, err := times(path)
			if err != nil {
				return err
			}
			file, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			at := time.Unix(st.Mtim.Unix())
			return errors.Join(f(file), file.Close(), os.Chtimes(path, at, at))
		}
	}
	const size = 1 << 20
	for name, c := range map[string]struct {
		meanwhile func(path string) error
		stays     bool
	}{
		"nothing": {func(string) error { return nil }, false},
		"written": {func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err == nil {
				_, err = f.WriteString("precious")
				err = errors.Join(err, f.Close())
			}
			return err
		}, true},
		"written in the same tick": {in(func(f *os.File) error { _, err := f.WriteString("precious"); return err }), true},
		"longer in the same tick":  {in(func(f *os.File) error { return f.Truncate(2 * size) }), true},
		"touched":                  {func(path string) error { return os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)) }, true},
		"another file":             {func(path string) error { return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600)) }, true},
		"another that looks like it": {func(path string) error {
			st, err := times(path)
			at := time.Unix(st.Mtim.Unix())
			return errors.Join(err, os.Rename(path, path+".mine"), os.WriteFile(path, nil, 0o600), os.Truncate(path, size), os.Chtimes(path, at, at))
		}, true},
		"renamed, and a link to it": {func(path string) error {
			return errors.Join(os.Rename(path, path+".mine"), os.Symlink(path+".mine", path))
		}, true},
		"renamed": {func(path string) error { return os.Rename(path, path+".mine") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "d.img")
			s, err := Open(Config{Path: path, Size: size, Sparse: true})
			if err != nil {
				t.Fatal(err)
			}
			if err := c.meanwhile(path); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(s.Undo(), s.Close()); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(path); c.stays != (err == nil) || err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
	path := filepath.Join(t.TempDir(), "d.img")
	for range 2 {
		s, err := Open(Config{Path: path, Size: size, Sparse: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	s, err := Open(Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Undo(), s.Close()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("a file that was there before: %v", err)
	}
}
