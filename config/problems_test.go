package config

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite the expected texts in testdata/problems")

// TestProblems reads every NAME.yaml of the archives in testdata/problems and
// expects the text of NAME.want: errors, or else "valid" and warnings.
func TestProblems(t *testing.T) {
	archives, err := filepath.Glob("testdata/problems/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no archives: %v", err)
	}
	for _, path := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) { testArchive(t, path) })
	}
}

func testArchive(t *testing.T, path string) {
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string]*txtar.File)
	for i := range a.Files {
		if want[a.Files[i].Name] != nil {
			t.Fatalf("%s is there twice", a.Files[i].Name)
		}
		want[a.Files[i].Name] = &a.Files[i]
	}
	out := &txtar.Archive{Comment: a.Comment}
	for _, f := range a.Files {
		name, isInput := strings.CutSuffix(f.Name, ".yaml")
		if !isInput {
			continue
		}
		got := outcome(f.Name, f.Data)
		if strings.Contains(got, ":0:0:") {
			t.Errorf("%s: a problem has no place:\n%s", f.Name, got)
		}
		out.Files = append(out.Files, f, txtar.File{Name: name + ".want", Data: []byte(got)})
		if *update {
			continue
		}
		if want[name+".want"] == nil {
			t.Errorf("%s: no %s.want beside it", f.Name, name)
			continue
		}
		if diff := cmp.Diff(string(want[name+".want"].Data), got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", f.Name, diff)
		}
	}
	if *update {
		if err := os.WriteFile(path, txtar.Format(out), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// outcome returns what a user would read about a configuration: errors, or "valid" and warnings.
func outcome(name string, data []byte) string {
	c, err := newDecoder(name, data, fakeSecrets{}).decode()
	if err != nil {
		return err.Error() + "\n"
	}
	text := "valid\n"
	for _, w := range c.Warnings {
		text += w.String() + "\n"
	}
	return text
}

// fakeSecrets keeps tests away from files and variables of this machine.
type fakeSecrets struct{}

func (fakeSecrets) file(path string) ([]byte, fs.FileMode, error) {
	switch path {
	case "good.secret":
		return []byte("from-a-file-1234\n"), 0o600, nil
	case "windows.secret":
		return []byte("from-a-file-1234\r\n"), 0o600, nil
	case "open.secret":
		return []byte("from-a-file-1234"), 0o644, nil
	case "short.secret":
		return []byte("short\n"), 0o600, nil
	case "lines.secret":
		return []byte("first line\nsecond line\n"), 0o600, nil
	case "denied.secret":
		return nil, 0, &fs.PathError{Op: "open", Path: path, Err: errors.New("permission denied")}
	}
	return nil, 0, &fs.PathError{Op: "open", Path: path, Err: errors.New("no such file or directory")}
}

func (fakeSecrets) env(name string) (string, bool) {
	return "from-the-environment", name == "GOOD_SECRET"
}

// A value in the place of a mapping is answered with a way to write that mapping, whichever it is.
func TestEveryMappingHasAWayToWriteIt(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	read := regexp.MustCompile(`\.object\([^"\n]*"([^"\n]+)"\)`)
	n := 0
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range read.FindAllStringSubmatch(string(text), -1) {
			n++
			if wayToWrite[m[1]] == "" {
				t.Errorf("%s: %q has no way to write it", f, m[1])
			}
		}
	}
	if n < 20 {
		t.Errorf("%d mappings found", n)
	}
}
