package config

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// unseen lists the messages that no file in testdata/problems can cause, each with the test that does.
var unseen = map[string]string{
	"every user of this machine can read this secret: chmod o-r the file, or name another with {file: PATH}": "TestLoadWarnsOfSecrets",
	"cannot read the configuration: %w":                                                                                  "TestLoadWarnsOfSecrets",
	"%s is not a regular file":                                                                                           "TestLoad",
	"%s is larger than %d bytes: this is probably not the file that you meant":                                           "TestLoad",
	"aliases make this configuration endless: write out what they stand for":                                             "TestAliasesEnd",
	"%s: there is no node %q in the cluster %s: %s; --node, or else the host name, says which node this machine is":      "TestOn",
	"this mapping has more than %d keys, which no configuration needs: is this the file that you meant?":                 "TestKeysAreBounded",
	"several mappings up to here have thousands of keys, which no configuration needs: is this the file that you meant?": "TestKeysAreBounded",
	"the YAML parser gave up (%v)":                                                                                       "FuzzParse: no input is known that makes it",
}

// Every message of this package stands in testdata/problems as a user would read it, with its place and its excerpt.
// So whoever adds a message has to look at it there.
func TestEveryMessageIsSeen(t *testing.T) {
	golden := goldenText(t)
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	messages := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !makesMessage(call) {
				return true
			}
			for _, format := range literals(call.Args) {
				messages++
				if _, listed := unseen[format]; !listed && !pattern(format).MatchString(golden) {
					t.Errorf("%s: no file in testdata/problems shows %q", set.Position(call.Pos()), format)
				}
			}
			return true
		})
	}
	if messages < 80 {
		t.Errorf("only %d messages: were they found?", messages)
	}
}

// makesMessage reports whether a call makes a message for users.
func makesMessage(call *ast.CallExpr) bool {
	name := ""
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		name = f.Sel.Name
	case *ast.Ident:
		name = f.Name
	}
	return slices.Contains([]string{"errorf", "warnf", "Errorf", "New"}, name)
}

// literals returns the formats among the arguments of a call: texts of several words.
func literals(args []ast.Expr) (list []string) {
	for _, a := range args {
		if lit, ok := a.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil && strings.Contains(text, " ") {
				list = append(list, text)
			}
		}
	}
	return list
}

var verb = regexp.MustCompile(`%[#+0-9.]*[a-zA-Z]`)

// pattern returns a pattern that matches the messages of a format.
func pattern(format string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString(`(?m)`)
	rest := strings.ReplaceAll(format, "%%", "%")
	for {
		at := verb.FindStringIndex(rest)
		if at == nil {
			break
		}
		b.WriteString(regexp.QuoteMeta(rest[:at[0]]) + `.*`)
		rest = rest[at[1]:]
	}
	b.WriteString(regexp.QuoteMeta(rest))
	return regexp.MustCompile(b.String())
}

func goldenText(t *testing.T) string {
	var b strings.Builder
	paths, err := filepath.Glob("testdata/problems/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
	}
	return b.String()
}
