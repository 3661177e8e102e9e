package file

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file is not created where the file system that should hold it is not mounted, nor for a store that is not
// to be created or written; what is there already is served.
func TestOpenCreatesOnlyWhatIsMeant(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	mkdir := func(path string) string {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write := func(path, text string) {
		mkdir(filepath.Dir(path))
		if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	lost, unit, there, blank := mkdir("lost/below"), mkdir("by-unit"), mkdir("there"), mkdir("with blank")
	old := system
	system = mkdir("system")
	t.Cleanup(func() { system = old })
	write("system/etc/fstab", "# comment\n/dev/x "+filepath.Dir(lost)+"/ ext4 defaults 0 2\n/dev/y "+there+" xfs\n/dev/z none swap\n/dev/w "+
		strings.ReplaceAll(blank, " ", `\040`)+" ext4\n")
	write("system/proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda rw\n23 22 8:2 / "+there+" rw - xfs /dev/y rw\n")
	write("system/etc/systemd/system/"+unitName(unit), "[Mount]\n")

	masked := mkdir("masked")
	if err := os.Symlink("/dev/null", filepath.Join(system, "etc/systemd/system", unitName(masked))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		cfg  Config
		want string // in the error; empty: none
	}{
		{"fstab", Config{Path: filepath.Join(lost, "d.img"), Size: 1 << 20}, "(/etc/fstab), has none mounted"},
		{"a blank in fstab", Config{Path: filepath.Join(blank, "d.img"), Size: 1 << 20}, "(/etc/fstab), has none mounted"},
		{"a unit", Config{Path: filepath.Join(unit, "d.img"), Size: 1 << 20}, ".mount), has none mounted"},
		{"a masked unit", Config{Path: filepath.Join(masked, "d.img"), Size: 1 << 20}, ""},
		{"mounted", Config{Path: filepath.Join(there, "d.img"), Size: 1 << 20}, ""},
		{"not to be created", Config{Path: filepath.Join(dir, "no.img"), Size: 1 << 20, Existing: true}, "create is false"},
		{"read-only", Config{Path: filepath.Join(dir, "no.img"), Size: 1 << 20, ReadOnly: true}, "a read-only store is not created"},
		{"read-only, larger", Config{Path: filepath.Join(there, "d.img"), Size: 2 << 20, ReadOnly: true}, "a read-only store does not grow"},
		{"there", Config{Path: filepath.Join(there, "d.img"), Size: 1 << 20, Existing: true}, ""},
		{"there, read-only", Config{Path: filepath.Join(there, "d.img"), ReadOnly: true}, ""},
	} {
		s, err := Open(c.cfg)
		if err == nil {
			if e := s.Close(); e != nil {
				t.Error(e)
			}
		}
		switch {
		case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v", c.name, err)
		case c.want == "":
		default:
			if _, err := os.Stat(c.cfg.Path); c.cfg.Path != filepath.Join(there, "d.img") && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: the file was created", c.name)
			}
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

func TestUnitName(t *testing.T) {
	for dir, want := range map[string]string{
		"/srv/images": "srv-images.mount", "/mnt/a-b": `mnt-a\x2db.mount`, "/.x/y.z": `\x2ex-y.z.mount`, "/a b": `a\x20b.mount`,
	} {
		if got := unitName(dir); got != want {
			t.Errorf("%s: %s, want %s", dir, got, want)
		}
	}
}
