package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// variants are names of subtests that the turns of scripts/test.sh tell apart; the last one stands for all others.
var variants = []string{
	"rxe0", "siw0", "ext4", "xfs",
	"power_cut", "kernel_hangs", "stopped_with_its_clocks", "stopped_but_for_its_clocks", "wall_clock", "clock_rates", "no_memory", "slow_disk", "disk_hangs",
	"another",
}

// TestTurns: what waits in one turn of scripts/test.sh has its turn in the other, and there are tests of these names.
func TestTurns(t *testing.T) {
	script, err := os.ReadFile(filepath.Join(root, "scripts", "test.sh"))
	if err != nil {
		t.Fatal(err)
	}
	tests := testsOf(t, filepath.Join(root, "test", "vm"))
	waiting := map[string]string{} // from what waits to the turn in which it does
	for _, turn := range []string{"1", "2"} {
		list := regexp.MustCompile(`(?m)^` + turn + `\) waits='(.*)' ;;$`).FindSubmatch(script)
		if list == nil {
			t.Fatalf("scripts/test.sh has no list of what waits in turn %s", turn)
		}
		for _, pattern := range alternatives(string(list[1])) {
			name, variant, _ := strings.Cut(pattern, "/")
			is, isVariant := regexp.MustCompile(name), regexp.MustCompile(variant)
			found := false
			for _, test := range tests {
				for _, v := range variants {
					if !is.MatchString(test) || !isVariant.MatchString(v) {
						continue
					}
					found = true
					if other := waiting[test+"/"+v]; other != "" && other != turn {
						t.Errorf("no turn runs %s/%s (scripts/test.sh)", test, v)
					}
					waiting[test+"/"+v] = turn
				}
			}
			if !found {
				t.Errorf("turn %s: %s is the name of no test in test/vm (scripts/test.sh)", turn, pattern)
			}
		}
	}
}

// alternatives splits a pattern at each | that is in no parentheses, as go test does.
func alternatives(pattern string) (all []string) {
	depth, begin := 0, 0
	for i, c := range pattern {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		case '|':
			if depth == 0 {
				all = append(all, pattern[begin:i])
				begin = i + 1
			}
		}
	}
	return append(all, pattern[begin:])
}

// testsOf are the names of the tests in a directory.
func testsOf(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", dir, len(files), err)
	}
	for _, path := range files {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}
