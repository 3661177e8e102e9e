package mounted

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Nothing is to be made where the file system that should hold it is not mounted.
func TestCheck(t *testing.T) {
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
	link := func(to, path string) string {
		path = filepath.Join(dir, path)
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	lost, unit, there, blank := mkdir("lost/below"), mkdir("by-unit"), mkdir("there/below"), mkdir("with blank")
	old := system
	system = mkdir("system")
	t.Cleanup(func() { system = old })
	write("system/etc/fstab", "# comment\n/dev/x "+filepath.Dir(lost)+"/ ext4 defaults 0 2\n/dev/y "+filepath.Dir(there)+" xfs\n/dev/z none swap\n/dev/w "+
		strings.ReplaceAll(blank, " ", `\040`)+" ext4\n")
	write("system/proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda rw\n23 22 8:2 / "+filepath.Dir(there)+" rw - xfs /dev/y rw\n")
	write("system/etc/systemd/system/"+unitName(unit), "[Mount]\n")
	masked := mkdir("masked")
	link("/dev/null", filepath.Join("system/etc/systemd/system", unitName(masked)))
	linked := link(lost, "linked")

	for _, c := range []struct {
		name, dir string
		want      string // in the error; empty: none
	}{
		{"fstab", filepath.Dir(lost), "(/etc/fstab), has none mounted"},
		{"below", lost, "(/etc/fstab), has none mounted"},
		{"what does not exist", filepath.Join(lost, "no/directory"), filepath.Dir(lost) + ", where a file system belongs (/etc/fstab), has none mounted"},
		{"by a link", linked, "(/etc/fstab), has none mounted"},
		{"what does not exist, by a link", filepath.Join(linked, "no/directory"), "(/etc/fstab), has none mounted"},
		{"a blank in fstab", blank, "(/etc/fstab), has none mounted"},
		{"a unit", unit, ".mount), has none mounted"},
		{"a masked unit", masked, ""},
		{"mounted", there, ""},
		{"elsewhere", filepath.Join(dir, "no/directory"), ""},
	} {
		err := Check(c.dir)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", c.name, err)
		}
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
