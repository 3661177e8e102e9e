package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The log names why something happened in one way: who searches JSON logs for "reason" finds all of it.
func TestLogsNameTheReason(t *testing.T) {
	calls := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2 {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !isLogCall(call) {
				return true
			}
			calls++
			for _, a := range call.Args {
				if lit, ok := a.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if key, _ := strconv.Unquote(lit.Value); slices.Contains([]string{"err", "error", "cause"}, key) {
						t.Errorf("%s: the key %q: what a line is about is its \"reason\"", files.Position(lit.Pos()), key)
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if calls < 100 {
		t.Errorf("only %d calls of a log: were they found?", calls)
	}
}

// isLogCall reports whether a call writes to a log, or makes an attribute of it.
func isLogCall(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	if p, ok := f.X.(*ast.Ident); ok && p.Name == "slog" {
		return true
	}
	return slices.Contains([]string{"Debug", "Info", "Warn", "Error", "With", "LogAttrs"}, f.Sel.Name)
}
