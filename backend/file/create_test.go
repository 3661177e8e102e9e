package file

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file is not created for a store that is not to be created or written; what is there already is served. TestUnmounted has a file
// whose file system is not mounted.
func TestOpenCreatesOnlyWhatIsMeant(t *testing.T) {
	dir := t.TempDir()
	there, missing := filepath.Join(dir, "d.img"), filepath.Join(dir, "no.img")
	for _, c := range []struct {
		name string
		cfg  Config
		want string // in the error; empty: none
	}{
		{"to be created", Config{Path: there, Size: 1 << 20}, ""},
		{"not to be created", Config{Path: missing, Size: 1 << 20, Existing: true}, "create is false"},
		{"read-only", Config{Path: missing, Size: 1 << 20, ReadOnly: true}, "a read-only store is not created"},
		{"read-only, larger", Config{Path: there, Size: 2 << 20, ReadOnly: true}, "a read-only store does not grow"},
		{"there", Config{Path: there, Size: 1 << 20, Existing: true}, ""},
		{"there, read-only", Config{Path: there, ReadOnly: true}, ""},
	} {
		s, err := Open(c.cfg)
		if err == nil {
			if e := s.Close(); e != nil {
				t.Error(e)
			}
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", c.name, err)
		}
		if _, err := os.Stat(missing); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the file was created", c.name)
		}
	}
}

// A read-only store never writes: not its length, nor its space, nor its bytes.
func TestReadOnlyLeavesTheFileAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.img")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o444); err != nil {
		t.Fatal(err)
	}
	s, err := Open(Config{Path: path, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Resize(2 << 20); err == nil || !strings.Contains(err.Error(), "does not grow") {
		t.Errorf("resize: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != 1<<20 {
		t.Errorf("%v, %v", info, err)
	}
}
