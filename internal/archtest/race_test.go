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

// TestWithoutRaceDetector: the packages that scripts/test.sh leaves out of the step with the race detector start no goroutine, nor
// do their tests, nor what both import of this module.
func TestWithoutRaceDetector(t *testing.T) {
	root := filepath.Join("..", "..")
	script, err := os.ReadFile(filepath.Join(root, "scripts", "test.sh"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^without='(.*)'$`).FindSubmatch(script)
	if found == nil {
		t.Fatal("scripts/test.sh does not say what it leaves out")
	}
	without := regexp.MustCompile(string(found[1]))
	all := map[string]listed{}
	for _, p := range list(t, "race,invariants,verbs") {
		all[p.ImportPath] = p
	}
	starts := func(p string, lists ...[]string) bool {
		for _, files := range lists {
			for _, f := range files {
				if startsGoroutine(t, filepath.Join(root, strings.TrimPrefix(p, module), f)) {
					return true
				}
			}
		}
		return false
	}
	n := 0
	for name, p := range all {
		if !without.MatchString(name) {
			continue
		}
		n++
		if starts(name, p.TestGoFiles, p.XTestGoFiles) {
			t.Errorf("a test of %s starts a goroutine: have the race detector look (scripts/test.sh)", name)
		}
		seen := map[string]bool{}
		var look func(string)
		look = func(i string) {
			d, ours := all[i]
			if seen[i] || !ours {
				return
			}
			seen[i] = true
			if starts(i, d.GoFiles, d.CgoFiles) {
				t.Errorf("%s starts a goroutine, and %s uses it: have the race detector look (scripts/test.sh)", i, name)
			}
			for _, next := range d.Imports {
				look(next)
			}
		}
		look(name)
		for _, imports := range [][]string{p.TestImports, p.XTestImports} {
			for _, i := range imports {
				look(i)
			}
		}
	}
	if n < 20 {
		t.Errorf("%d packages are left out: does this test still look at what it should?", n)
	}
}

// startsGoroutine reports whether a file has a go statement, a call of a Go method, as sync.WaitGroup's, or of one of the functions
// that have others called beside the caller.
func startsGoroutine(t *testing.T, path string) (does bool) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			does = true
		case *ast.SelectorExpr:
			switch n.Sel.Name {
			case "Go", "AfterFunc", "Parallel", "RunParallel":
				does = true
			}
		}
		return !does
	})
	return does
}
