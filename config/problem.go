package config

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Position is a place in a configuration file. Line and Column count from 1;
// columns are characters, not bytes.
type Position struct {
	File   string
	Line   int
	Column int
}

// String returns file:line:column, which editors and terminals can jump to.
func (p Position) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

// Problem is one thing that is wrong, or suspicious, in a configuration.
type Problem struct {
	Pos     Position
	Message string // says what to change; one line, no secrets
	Excerpt string // the line and a caret below the place, no secrets
}

// String returns the position and message in one line and the excerpt below.
func (p Problem) String() string { return p.Pos.String() + ": " + p.Message + "\n" + p.Excerpt }

// Error holds what is wrong with a configuration, in the order of the file: at least one problem, and
// everything unless More says otherwise.
type Error struct {
	Problems []Problem
	More     bool // reading ended at 100 problems, and there are more
}

// Error returns all problems, an empty line between them.
func (e *Error) Error() string {
	parts := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		parts[i] = p.String()
	}
	if e.More {
		parts = append(parts, fmt.Sprintf("there are more problems than these %d: mend these first", len(e.Problems)))
	}
	return strings.Join(parts, "\n\n")
}

func sortProblems(p []Problem) {
	slices.SortStableFunc(p, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Pos.Line, b.Pos.Line), cmp.Compare(a.Pos.Column, b.Pos.Column))
	})
}

// source is the text that excerpts are cut from.
type source struct {
	file  string
	lines []string
	cache map[int][]rune // what shown returned, by number of the line

	masked int // calls of mask
}

func newSource(file, text string) *source {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSuffix(line, "\r")
	}
	return &source{file: file, lines: lines, cache: make(map[int][]rune)}
}

// maxMessage bounds a message, in bytes, which may quote a value of the file.
const maxMessage = 4096

func (s *source) problem(pos Position, format string, args ...any) Problem {
	message := fmt.Sprintf(format, args...)
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + "…"
	}
	return Problem{Pos: pos, Message: message, Excerpt: s.excerpt(pos)}
}

// excerptRunes is the number of characters of a long line that an excerpt shows,
// and excerptLead the number of those before the caret.
const (
	excerptRunes = 100
	excerptLead  = 60
)

// excerpt returns the line at pos and a line with a caret below the column.
func (s *source) excerpt(pos Position) string {
	line, col := window(s.shown(pos.Line), max(pos.Column-1, 0))
	margin := fmt.Sprintf("%5d | ", pos.Line)
	pad := []rune(strings.Repeat(" ", len(margin)-2) + "| ")
	for _, r := range line[:col] {
		if r != '\t' { // a tab stays, so that the caret lines up whatever the width of tabs
			r = ' '
		}
		pad = append(pad, r)
	}
	return strings.TrimRight(margin+string(line), " ") + "\n" + string(pad) + "^"
}

// window returns the part of a long line around col, with an ellipsis at each end
// that was cut, and the column in this part.
func window(line []rune, col int) ([]rune, int) {
	col = min(col, len(line))
	from := max(min(col-excerptLead, len(line)-excerptRunes), 0)
	to := min(from+excerptRunes, len(line))
	cut := slices.Clone(line[from:to])
	if from > 0 {
		cut[0] = '…'
	}
	if to < len(line) {
		cut[len(cut)-1] = '…'
	}
	return cut, col - from
}

var (
	secretInline = regexp.MustCompile(`(?i)(secret["']?[ \t]*:[ \t]*)("(?:[^"\\]|\\.)*"?|'(?:[^']|'')*'?|[^\s{,}"'][^,}]*)`)
	secretAbove  = regexp.MustCompile(`(?i)secret["']?[ \t]*:[ \t]*([|>][-+0-9]*)?[ \t]*(#.*)?$`)
	secretMapped = regexp.MustCompile(`^[ \t]*(\{|["']?(file|env)["']?[ \t]*:)`)
	anyRune      = regexp.MustCompile(`\S`)
)

// shown returns line n in a form that may be printed. The caller must not change it. The work is done once for each
// line: a line can be as long as the file, and have many problems.
func (s *source) shown(n int) []rune {
	if n < 1 || n > len(s.lines) {
		return nil
	}
	line, ok := s.cache[n]
	if !ok {
		line = []rune(s.mask(n))
		s.cache[n] = line
	}
	return line
}

// mask hides secrets in line n, character by character so that columns stay, and replaces control characters. It works
// on text instead of nodes, because it must also work if the YAML is broken.
func (s *source) mask(n int) string {
	s.masked++
	line := secretInline.ReplaceAllStringFunc(s.lines[n-1], func(m string) string {
		parts := secretInline.FindStringSubmatch(m)
		return parts[1] + anyRune.ReplaceAllString(parts[2], "*")
	})
	if n > 1 && secretAbove.MatchString(s.lines[n-2]) && !secretMapped.MatchString(line) {
		line = anyRune.ReplaceAllString(line, "*")
	}
	return strings.Map(func(r rune) rune {
		if r != '\t' && !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, line)
}
