// Package mutants builds tests of code that has mistakes, so that the tests show what they find.
package mutants

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A Mutant is one mistake: in a file of a package the text Old, which is there once, becomes New. In New, ON stands for
// the condition that the mistake is made.
type Mutant struct{ Name, File, Old, New string }

// Variable is the environment variable that tells a program of Build by its name which mistake it makes.
const Variable = "ONESHOT_MUTANT"

// Build builds the tests of the package in the working directory, with all mistakes in the package in dir, and returns
// the program. The compiler takes changed copies of the files; the files stay as they are. more is added to the
// package: what the texts need besides. A text that is not there once fails t.
func Build(t testing.TB, dir, more string, all []Mutant) (program string) {
	t.Helper()
	dir, err := filepath.Abs(dir)
	check(t, err)
	changed := map[string]string{
		"mutant.go": fmt.Sprintf("package %s\n\nimport \"os\"\n\nvar madeMistake = os.Getenv(%q)\n%s", filepath.Base(dir), Variable, more),
	}
	for _, m := range all {
		if _, ok := changed[m.File]; !ok {
			b, err := os.ReadFile(filepath.Join(dir, m.File))
			check(t, err)
			changed[m.File] = string(b)
		}
		if n := strings.Count(changed[m.File], m.Old); n != 1 {
			t.Fatalf("mutant %q: its place is %d times in %s: adapt it", m.Name, n, m.File)
		}
		made := strings.ReplaceAll(m.New, "ON", fmt.Sprintf("(madeMistake == %q)", m.Name))
		changed[m.File] = strings.Replace(changed[m.File], m.Old, made, 1)
	}
	temp := t.TempDir()
	replace := map[string]string{}
	for file, text := range changed {
		replace[filepath.Join(dir, file)] = filepath.Join(temp, file)
		check(t, os.WriteFile(filepath.Join(temp, file), []byte(text), 0o600))
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	check(t, err)
	overlay := filepath.Join(temp, "overlay.json")
	check(t, os.WriteFile(overlay, b, 0o600))
	program = filepath.Join(temp, "mutants.test")
	if out, err := exec.Command("go", "test", "-c", "-ldflags=-s -w", "-overlay", overlay, "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
