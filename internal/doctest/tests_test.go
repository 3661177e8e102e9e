package doctest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testName = regexp.MustCompile(`^Test[A-Z]\w*$`)
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(`)
	testLink = regexp.MustCompile("\\[`(Test[A-Z]\\w*)`\\]\\(([^)\\s]+)\\)")
)

// Tests that pages name exist; a link with such a name leads to the file that has it.
func TestNamedTests(t *testing.T) {
	root := Root(t)
	known := map[string]bool{} // by name, and by file and name
	for _, path := range Files(t, root, func(name string) bool { return strings.HasSuffix(name, "_test.go") }) {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
			known[m[1]], known[path+" "+m[1]] = true, true
		}
	}
	n := 0
	for _, p := range Pages(t, root) {
		for _, l := range unknownTests(&p, known) {
			t.Errorf("%s:%d: %s", p.Path, l.Number, l.Text)
		}
		n += strings.Count(p.Text, "`Test")
	}
	if n < 60 {
		t.Errorf("the pages name %d tests: does this test still look at what it should?", n)
	}
}

func unknownTests(p *Page, known map[string]bool) (list []Line) {
	for _, s := range p.Spans() {
		if testName.MatchString(s.Text) && !known[s.Text] {
			list = append(list, Line{s.Number, "there is no " + s.Text})
		}
	}
	for _, l := range p.Lines {
		for _, m := range testLink.FindAllStringSubmatch(l.Text, -1) {
			if !known[filepath.Join(filepath.Dir(p.Path), m[2])+" "+m[1]] {
				list = append(list, Line{l.Number, "there is no " + m[1] + " in " + m[2]})
			}
		}
	}
	return list
}

// Each row of the failure matrix names a test, or says that there is none.
func TestMatrixIsShown(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(Root(t), "docs/ha.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, matrix, _ := strings.Cut(string(text), "\n## What is tried\n")
	rows := matrixRows(matrix)
	if len(rows) < 40 {
		t.Errorf("the matrix has %d rows", len(rows))
	}
	for _, row := range rows {
		if !isShown(row) {
			t.Errorf("no test: %s", row)
		}
	}
}

// matrixRows returns the rows of the tables, without their heads.
func matrixRows(text string) (rows []string) {
	body := false
	for line := range strings.Lines(text) {
		switch {
		case !strings.HasPrefix(line, "|"):
			body = false
		case strings.HasPrefix(line, "| --"):
			body = true
		case body:
			rows = append(rows, strings.TrimSpace(line))
		}
	}
	return rows
}

func isShown(row string) bool {
	return testLink.MatchString(row) || strings.Contains(row, "none yet")
}

func TestUnknownTests(t *testing.T) {
	p := Parse("`TestA`, [`TestA`](../x/a_test.go) `Testing`\n\n| a | b |\n| --- | --- |\n| one | [`TestA`](../x/a_test.go) |\n| two | by hand |\n| three | none yet |\n")
	p.Path = "docs/p.md"
	if got := unknownTests(&p, map[string]bool{"TestA": true, "x/a_test.go TestA": true}); len(got) != 0 {
		t.Errorf("%v", got)
	}
	if got := unknownTests(&p, map[string]bool{"TestA": true, "y/a_test.go TestA": true}); len(got) != 2 {
		t.Errorf("a link to another file: %v", got)
	}
	if got := unknownTests(&p, map[string]bool{}); len(got) != 5 {
		t.Errorf("no such test: %v", got)
	}
	var missing []string
	for _, row := range matrixRows(p.Text) {
		if !isShown(row) {
			missing = append(missing, row)
		}
	}
	if len(missing) != 1 || missing[0] != "| two | by hand |" {
		t.Errorf("rows without a test: %q", missing)
	}
}
