package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml/lexer"
)

// Texts of some kilobytes whose aliases stand for a million nodes. Each has to end for a reason that is counted: the
// budget of visits, or the bound of problems. What a visit or a problem costs must not depend on the length of the text.
func TestAliasesAreBounded(t *testing.T) {
	const head = "stores: {d: {type: memory, size: 64MiB}}\n"
	luns := numbered(501, "%d: d")
	for name, c := range map[string]struct {
		text     string
		problems bool
	}{
		"luns":               {text: head + "targets: [{iqn: iqn.2026-11.com.example:a, luns: &a {" + luns + "}}" + repeat(2000, ", {luns: *a}") + "]", problems: true},
		"luns of no store":   {text: "targets: [{iqn: iqn.2026-11.com.example:a, luns: &a {" + luns + "}}" + repeat(2000, ", {luns: *a}") + "]", problems: true},
		"targets":            {text: head + "targets: [&a {iqn: iqn.2026-11.com.example:a, luns: {" + luns + "}}" + repeat(110, ", *a") + "]", problems: true},
		"lists as targets":   {text: head + "targets: [&a [" + numbered(501, "%d") + "]" + repeat(2000, ", *a") + "]", problems: true},
		"initiators":         {text: head + "targets: [{iqn: iqn.2026-11.com.example:a, initiators: &a [" + repeat(501, "x,") + "]}" + repeat(2000, ", {initiators: *a}") + "]", problems: true},
		"merged":             {text: head + "targets: [&a {" + numbered(501, "k%d: 1") + "}" + repeat(2000, ", {<<: *a}") + "]", problems: true},
		"merged, many times": {text: head + "a: &a {" + numbered(501, "k%d: 1") + "}\ntargets: [{<<: [*a" + repeat(400, ", *a") + "]}]", problems: true},
		"a long text":        {text: head + "targets: [{iqn: iqn.2026-11.com.example:a, alias: &a " + repeat(4000, "x") + "}" + repeat(2000, ", {alias: *a}") + "]", problems: true},
		"stores of one path": {text: "stores: {f: &a {type: file, size: 1MiB, path: /x}, " + numbered(2000, "f%d: *a") + "}\ntargets: []", problems: true},
		"warnings": {text: "stores: {" + numbered(2000, "f%d: {type: memory, size: 1MiB}") + "}\n" +
			"targets: [{iqn: iqn.2026-11.com.example:a, luns: {0: f0}}]"},
	} {
		d := newDecoder("aliases.yaml", []byte(c.text), fakeSecrets{})
		_, err := d.decode()
		bad, _ := errors.AsType[*Error](err)
		switch {
		case (err != nil) != c.problems:
			t.Errorf("%s: %v", name, err)
		case bad != nil && (len(bad.Problems) > maxProblems || bad.More && len(bad.Problems) < maxProblems):
			t.Errorf("%s: %d problems, more: %t", name, len(bad.Problems), bad.More)
		case bad != nil && bad.More && d.visits > 0:
			t.Errorf("%s: reading goes on after %d problems", name, len(bad.Problems))
		}
		if len(d.warnings) > maxProblems {
			t.Errorf("%s: %d warnings", name, len(d.warnings))
		}
		if lines := strings.Count(c.text, "\n") + 1; d.src.masked > lines {
			t.Errorf("%s: %d lines were made ready for excerpts, and there are %d", name, d.src.masked, lines)
		}
	}
}

// The YAML parser takes more time for each further key of a mapping that is not in braces. A list of mappings may be as long
// as it likes, and so may one in braces.
func TestKeysAreBounded(t *testing.T) {
	lines := func(n int, format string) string { return strings.ReplaceAll(numbered(n, format), ", ", "\n") }
	const half = "k%d: {a: 1}"
	for name, c := range map[string]struct {
		text string
		at   string // where there is one too many; empty: nowhere
	}{
		"as many as may be": {text: lines(maxKeys, "k%d: 1")},
		"one more":          {lines(maxKeys+1, "k%d: 1"), "16385:1"},
		"further in":        {"a: 1\nstores:\n" + lines(maxKeys+1, "  k%d: {a: 1}"), "16387:3"},
		"around others":     {lines(maxKeys/2, half) + "\nl:\n  - x: 1\n    y:\n     z: 1\n" + lines(maxKeys/2, "z"+half), "16389:1"},
		"in a list":         {text: "l:\n" + lines(maxKeys/2, "  - a: %d\n    b: 1\n    c: 1")},
		"of mappings":       {text: lines(maxKeys/2, "k%d:\n  a: 1\n  b: 1\n  c: 1")},
		"two large ones":    {"a:\n" + lines(maxKeys, "  k%d: 1") + "\nb:\n" + lines(maxKeys, "  k%d: 1"), "32771:3"},
		"in braces":         {text: "{" + numbered(maxKeys+1, "k%d: 1") + "}"},
	} {
		d := newDecoder("keys.yaml", []byte(c.text), fakeSecrets{})
		fine := d.checkTokens(lexer.Tokenize(d.text))
		switch {
		case fine != (c.at == ""):
			t.Errorf("%s: %v", name, d.problems)
		case !fine && fmt.Sprintf("%d:%d", d.problems[0].Pos.Line, d.problems[0].Pos.Column) != c.at:
			t.Errorf("%s: %v, want it at %s", name, d.problems[0], c.at)
		}
	}
}

// A text counts by its length each time that an alias stands for it.
func TestVisitsCountBytes(t *testing.T) {
	visits := func(bytes int) int {
		d := newDecoder("x.yaml", []byte("stores: {a: {type: file, size: 1MiB, path: &p "+repeat(bytes, "x")+"}, b: {type: file, size: 1MiB, path: *p}}\ntargets: []"), fakeSecrets{})
		_, _ = d.decode()
		return maxVisits - d.visits
	}
	if more := visits(100*visitBytes) - visits(1); more < 200 || more > 400 {
		t.Errorf("a path of %d bytes that is used twice counts %d more than one of a byte", 100*visitBytes, more)
	}
}

// A message about an unknown name compares it with names of about its length, and lists some.
func TestSuggestionsAreBounded(t *testing.T) {
	names := strings.Split(strings.TrimSuffix(numbered(maxCompared+1, "store%d"), ", "), ", ")
	if text := choices("disk", names); len(strings.Split(text, ",")) > maxListed || !strings.HasSuffix(text, " and 1951 more") {
		t.Errorf("%q", text)
	}
	last := names[maxCompared]
	if got := nearest(last+"x", names); got == last {
		t.Errorf("%q was found at place %d", got, maxCompared)
	}
	if got := nearest("stor7", names); got != "store7" {
		t.Errorf("stor7 is near %q", got)
	}
	if testing.AllocsPerRun(10, func() { nearest(strings.Repeat("x", 10000), names) }) > 10 {
		t.Error("a word of 10,000 bytes was compared with short names")
	}
}

// A message does not grow with the value that it quotes.
func TestMessagesAreBounded(t *testing.T) {
	_, err := newDecoder("x.yaml", []byte("portals: [{transport: "+repeat(100000, "é")+"}]"), fakeSecrets{}).decode()
	bad, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatal(err)
	}
	longest := slices.MaxFunc(bad.Problems, func(a, b Problem) int { return len(a.Message) - len(b.Message) })
	if n := len(longest.Message); n > maxMessage+len("…") || n < maxMessage/2 {
		t.Errorf("a message has %d bytes", n)
	}
}

func repeat(n int, text string) string { return strings.Repeat(text, n) }

// numbered returns n items of a format with a number in it, each with a comma behind it.
func numbered(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format+", ", i)
	}
	return b.String()
}
