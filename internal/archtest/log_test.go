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
		n, wrong := logKeys(file)
		calls += n
		for _, lit := range wrong {
			t.Errorf("%s: %s: what a line is about is its \"reason\"", files.Position(lit.Pos()), lit.Value)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if calls < 100 {
		t.Errorf("only %d calls of a log: were they found?", calls)
	}
}

// logKeys returns how many calls of a file write to a log, the keys in them that should be "reason", and the
// messages to which a reason is appended.
func logKeys(file *ast.File) (calls int, wrong []*ast.BasicLit) {
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || !isLogCall(call) {
			return true
		}
		calls++
		for _, a := range call.Args {
			if sum, ok := a.(*ast.BinaryExpr); ok && sum.Op == token.ADD {
				if lit, ok := sum.X.(*ast.BasicLit); ok && strings.HasSuffix(lit.Value, `: "`) {
					wrong = append(wrong, lit)
				}
			}
			if lit, ok := a.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if key, _ := strconv.Unquote(lit.Value); slices.Contains([]string{"err", "error", "cause", "why"}, key) {
					wrong = append(wrong, lit)
				}
			}
		}
		return true
	})
	return calls, wrong
}

// Whatever the call is that writes a line, its keys are looked at.
func TestLogKeys(t *testing.T) {
	for _, call := range []string{
		`log.Warn("a", "KEY", err)`, `t.cfg.Logger.Error("a", "n", 1, "KEY", err)`, `c.log.With("KEY", err).Info("a")`,
		`log.Info("a", slog.Any("KEY", err))`, `log.LogAttrs(ctx, level, "a", slog.String("KEY", "b"))`,
		`log.Log(ctx, level, "a", "KEY", err)`, `log.DebugContext(ctx, "a", "KEY", err)`, `slog.Group("a", "KEY", err)`,
	} {
		for key, want := range map[string]int{"reason": 0, "err": 1, "error": 1, "cause": 1, "why": 1} {
			src := "package p\nfunc f() { " + strings.ReplaceAll(call, "KEY", key) + " }"
			file, err := parser.ParseFile(token.NewFileSet(), "", src, 0)
			if err != nil {
				t.Fatal(err)
			}
			if calls, wrong := logKeys(file); calls == 0 || len(wrong) != want {
				t.Errorf("%s with %q: %d calls, %d wrong keys, want %d", call, key, calls, len(wrong), want)
			}
		}
	}
}

// A reason is not appended to the message either.
func TestLogMessages(t *testing.T) {
	for call, want := range map[string]int{
		`log.Warn("dropped: " + why)`: 1, `log.LogAttrs(ctx, level, "dropped: "+fmt.Sprint(a))`: 1,
		`log.Warn("dropped", "reason", why)`: 0, `log.Error("close a portal for "+what, "reason", why)`: 0,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "", "package p\nfunc f() { "+call+" }", 0)
		if err != nil {
			t.Fatal(err)
		}
		if calls, wrong := logKeys(file); calls != 1 || len(wrong) != want {
			t.Errorf("%s: %d calls, %d wrong messages, want %d", call, calls, len(wrong), want)
		}
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
	name := strings.TrimSuffix(f.Sel.Name, "Context")
	return slices.Contains([]string{"Debug", "Info", "Warn", "Error", "With", "Log", "LogAttrs"}, name)
}
