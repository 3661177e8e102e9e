package file

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// Undo removes the file that Open has created, unless somebody has written to it or put another one there.
func TestUndo(t *testing.T) {
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
		"another file": {func(path string) error { return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600)) }, true},
		"renamed":      {func(path string) error { return os.Rename(path, path+".mine") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "d.img")
			s, err := Open(Config{Path: path, Size: 1 << 20, Sparse: true})
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
		s, err := Open(Config{Path: path, Size: 1 << 20, Sparse: true})
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
