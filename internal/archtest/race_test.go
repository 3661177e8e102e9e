package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the directory of the module.
var root = filepath.Join("..", "..")

// raceTags select what the step with the race detector builds.
const raceTags = "race,invariants,verbs"

// scripted returns the regular expression of packages that scripts/test.sh has in a variable.
func scripted(t *testing.T, variable string) *regexp.Regexp {
	t.Helper()
	script, err := os.ReadFile(filepath.Join(root, "scripts", "test.sh"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^` + variable + `='(.*)'$`).FindSubmatch(script)
	if found == nil {
		t.Fatalf("scripts/test.sh has no list %s", variable)
	}
	return regexp.MustCompile(string(found[1]))
}

// byPath has the packages of this module by their import paths.
func byPath(t *testing.T, tags string) map[string]listed {
	t.Helper()
	all := map[string]listed{}
	for _, p := range list(t, tags) {
		all[p.ImportPath] = p
	}
	return all
}

// reached are the packages of this module that these import, at any depth, and they themselves.
func reached(all map[string]listed, names ...string) []string {
	var found []string
	var look func([]string)
	look = func(names []string) {
		for _, i := range names {
			if p, ours := all[i]; ours && !slices.Contains(found, i) {
				found = append(found, i)
				look(p.Imports)
			}
		}
	}
	look(names)
	return found
}

// tested are the packages of this module that a package and its tests import, at any depth, and the package itself.
func tested(all map[string]listed, name string) []string {
	return reached(all, slices.Concat([]string{name}, all[name].TestImports, all[name].XTestImports)...)
}

// does reports whether one of these files of a package has a node that is so.
func does(t *testing.T, pkg string, is func(ast.Node) bool, files ...[]string) (found bool) {
	t.Helper()
	for _, name := range slices.Concat(files...) {
		path := filepath.Join(root, strings.TrimPrefix(pkg, module), name)
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			found = found || is(n)
			return !found
		})
	}
	return found
}

// installed is what users get: programs, and what they import of this module in programs of their own.
var installed = []string{"cmd/*", "appliance/init", "endpoint", "endpoint/*", "initiator", "initiator/*"}

// TestWithoutRaceDetector: the packages that scripts/test.sh leaves out of the step with the race detector start no goroutine, nor
// do their tests, nor what both import of this module; or they measure, or help tests, so that nothing that users get has them, and
// start no daemon, which the detector would watch.
func TestWithoutRaceDetector(t *testing.T) {
	without := scripted(t, "without")
	all := byPath(t, raceTags)
	var roots []string
	for name := range all {
		if matchesAny(installed, strings.TrimPrefix(name, module)) {
			roots = append(roots, name)
		}
	}
	users := reached(all, roots...)
	n := 0
	for name, p := range all {
		if !without.MatchString(name) {
			continue
		}
		n++
		if !slices.Contains(users, name) && !slices.Contains(tested(all, name), module+"test/targettest") {
			continue
		}
		if does(t, name, startsGoroutine, p.TestGoFiles, p.XTestGoFiles) {
			t.Errorf("a test of %s starts a goroutine: have the race detector look (scripts/test.sh)", name)
		}
		for _, i := range tested(all, name) {
			if does(t, i, startsGoroutine, all[i].GoFiles, all[i].CgoFiles) {
				t.Errorf("%s starts a goroutine, and %s uses it: have the race detector look (scripts/test.sh)", i, name)
			}
		}
	}
	if n < 20 {
		t.Errorf("%d packages are left out: does this test still look at what it should?", n)
	}
}

// startsGoroutine reports whether a node is a go statement, a Go method, as sync.WaitGroup's, or one of the functions that have
// others called beside the caller.
func startsGoroutine(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GoStmt:
		return true
	case *ast.SelectorExpr:
		return slices.Contains([]string{"Go", "AfterFunc", "Parallel", "RunParallel"}, n.Sel.Name)
	}
	return false
}

// TestOnce: the packages that scripts/test.sh leaves out of the step without build tags do the same with them. No file is
// there in one of the steps only, they ask for no assertions (what they import may, and has tests of its own), and nothing of what
// they use does less in a short run.
func TestOnce(t *testing.T) {
	once, without := scripted(t, "once"), scripted(t, "without")
	with, plain := byPath(t, raceTags), byPath(t, "")
	short := map[string]bool{}
	n := 0
	for name, p := range with {
		if !once.MatchString(name) {
			continue
		}
		n++
		if without.MatchString(name) {
			t.Errorf("no step runs %s (scripts/test.sh)", name)
		}
		q := plain[name]
		if !slices.Equal(filesOf(p), filesOf(q)) {
			t.Errorf("%s has files that only one of the steps builds: have both run it (scripts/test.sh)", name)
		}
		if slices.Contains(slices.Concat(p.Imports, p.TestImports, p.XTestImports), module+"internal/invariant") {
			t.Errorf("%s does more with assertions than without: have both steps run it (scripts/test.sh)", name)
		}
		if does(t, name, asksForShort, p.TestGoFiles, p.XTestGoFiles) {
			t.Errorf("tests of %s do less in a short run: have both steps run it (scripts/test.sh)", name)
		}
		for _, i := range slices.Concat(tested(with, name), tested(plain, name)) {
			if _, known := short[i]; !known {
				short[i] = does(t, i, asksForShort, with[i].GoFiles, with[i].CgoFiles)
			}
			if short[i] {
				t.Errorf("%s does less in a short run, and %s uses it: have both steps run it (scripts/test.sh)", i, name)
			}
		}
	}
	if n < 15 {
		t.Errorf("%d packages are run once: does this test still look at what it should?", n)
	}
}

// filesOf are all files of a package.
func filesOf(p listed) []string {
	return slices.Concat(p.GoFiles, p.CgoFiles, p.TestGoFiles, p.XTestGoFiles)
}

// asksForShort reports whether a node asks for short runs: as testing.Short, or by the number of rounds.
func asksForShort(n ast.Node) bool {
	s, ok := n.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	p, ok := s.X.(*ast.Ident)
	return ok && (p.Name == "testing" && s.Sel.Name == "Short" || p.Name == "rounds" && s.Sel.Name == "Of")
}
