// Package doctest reads the project's documents, so that tests can hold them to what the program
// does: links and references lead somewhere, examples load, commands exist.
package doctest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// Root returns the directory of the module.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the working directory")
		}
	}
}

// Files returns the files of the module whose names match, as paths relative to root. What is
// built or downloaded does not count.
func Files(t testing.TB, root string, match func(name string) bool) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch d.Name() {
			case ".git", ".cache", "bin", "testdata":
				return filepath.SkipDir
			}
			return nil
		}
		if d.Type().IsRegular() && match(d.Name()) {
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			paths = append(paths, rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// Page is a Markdown file.
type Page struct {
	Path   string // relative to the module's directory
	Text   string
	Blocks []Block
	Lines  []Line // those outside of blocks
}

// Block is a fenced block of code.
type Block struct {
	Language string
	Line     int // of its first line
	Text     string
}

// Line is a line of text with its number.
type Line struct {
	Number int
	Text   string
}

// Pages reads all Markdown files of the module.
func Pages(t testing.TB, root string) (pages []Page) {
	t.Helper()
	for _, path := range Files(t, root, func(name string) bool { return strings.HasSuffix(name, ".md") }) {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		p := Parse(string(text))
		p.Path = path
		pages = append(pages, p)
	}
	if len(pages) < 5 {
		t.Fatalf("only %d pages", len(pages))
	}
	return pages
}

// Parse separates blocks of code from text.
func Parse(text string) Page {
	p := Page{Text: text}
	var block *Block
	for i, line := range strings.Split(text, "\n") {
		fence, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case isFence && block == nil:
			block = &Block{Language: fence, Line: i + 2}
		case isFence:
			p.Blocks = append(p.Blocks, *block)
			block = nil
		case block != nil:
			block.Text += line + "\n"
		default:
			p.Lines = append(p.Lines, Line{i + 1, line})
		}
	}
	return p
}

var (
	heading = regexp.MustCompile(`^#+ +(.*)$`)
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	span    = regexp.MustCompile("`([^`]+)`")
	section = regexp.MustCompile(`^[0-9]+(\.[0-9]+)*`)
)

// Headings returns the text of the page's headings.
func (p *Page) Headings() (list []string) {
	for _, l := range p.Lines {
		if m := heading.FindStringSubmatch(l.Text); m != nil {
			list = append(list, m[1])
		}
	}
	return list
}

// Anchors returns what links into the page may name behind a #.
func (p *Page) Anchors() map[string]bool {
	anchors := make(map[string]bool)
	for _, h := range p.Headings() {
		anchors[slug(h)] = true
	}
	return anchors
}

// Sections returns the numbers with which the page's headings begin, such as 5.1.
func (p *Page) Sections() map[string]bool {
	numbers := make(map[string]bool)
	for _, h := range p.Headings() {
		if n := section.FindString(h); n != "" {
			numbers[n] = true
		}
	}
	return numbers
}

// Links returns the targets of the page's links and pictures.
func (p *Page) Links() (list []Line) {
	for _, l := range p.Lines {
		for _, m := range link.FindAllStringSubmatch(l.Text, -1) {
			list = append(list, Line{l.Number, m[1]})
		}
	}
	return list
}

// Spans returns what stands between backquotes.
func (p *Page) Spans() (list []Line) {
	for _, l := range p.Lines {
		for _, m := range span.FindAllStringSubmatch(l.Text, -1) {
			list = append(list, Line{l.Number, strings.ReplaceAll(m[1], `\|`, "|")})
		}
	}
	return list
}

// Commands returns what the page shows of a program: in spans, and as lines of blocks that are
// for a shell.
func (p *Page) Commands(program string) (list []Line) {
	add := func(n int, text string) {
		for _, part := range strings.Split(text, "&&") {
			part = strings.TrimSpace(part)
			if i := strings.Index(part, " #"); i >= 0 {
				part = part[:i]
			}
			first, _, _ := strings.Cut(part, " ")
			if (first == program || first == "bin/"+program) && !strings.Contains(part, "──") { // a drawing
				list = append(list, Line{n, part})
			}
		}
	}
	for _, s := range p.Spans() {
		add(s.Number, s.Text)
	}
	for _, b := range p.Blocks {
		if b.Language != "" {
			continue
		}
		for i, l := range strings.Split(b.Text, "\n") {
			add(b.Line+i, l)
		}
	}
	return list
}

// slug is what GitHub makes of a heading to link to it.
func slug(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			b.WriteRune(r)
		case r == ' ':
			b.WriteByte('-')
		}
	}
	return b.String()
}
