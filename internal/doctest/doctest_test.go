package doctest

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"oneshot/config"
	"oneshot/ddp"
	"oneshot/internal/hexdump"
)

// Links between pages lead to files and headings that exist.
func TestLinks(t *testing.T) {
	root := Root(t)
	pages := Pages(t, root)
	for _, p := range pages {
		for _, l := range p.Links() {
			if offence := badLink(root, &p, pages, l.Text); offence != "" {
				t.Errorf("%s:%d: link to %s: %s", p.Path, l.Number, l.Text, offence)
			}
		}
	}
}

func badLink(root string, from *Page, pages []Page, to string) string {
	if strings.Contains(to, "://") {
		return ""
	}
	path, anchor, _ := strings.Cut(to, "#")
	target := from.Path
	if path != "" {
		target = filepath.Join(filepath.Dir(from.Path), path)
		if _, err := os.Stat(filepath.Join(root, target)); err != nil {
			return "no such file"
		}
	}
	if anchor == "" {
		return ""
	}
	i := slices.IndexFunc(pages, func(p Page) bool { return p.Path == target })
	if i < 0 || !pages[i].Anchors()[anchor] {
		return "no such heading"
	}
	return ""
}

var (
	reference = regexp.MustCompile(`(?:^|[^"A-Za-z0-9_./-])([A-Za-z0-9_./-]*[A-Za-z0-9_-]\.md)\b((?:(?:,| and| to| or)? §[0-9.]*[0-9])*)`)
	wrapped   = regexp.MustCompile(`\n[\t ]*(?://|#)[\t ]*`)
	number    = regexp.MustCompile(`[0-9.]*[0-9]`)
)

// Every page that comments, scripts and pages name exists, with the sections they name: as a path from
// the module's directory or from their own, or as the name of a file that is there once.
func TestReferences(t *testing.T) {
	root := Root(t)
	pages := Pages(t, root)
	text := func(name string) bool {
		switch filepath.Ext(name) {
		case ".go", ".md", ".sh", ".yaml", ".c", ".h", ".service", "":
			return true
		}
		return false
	}
	found := 0
	for _, path := range Files(t, root, text) {
		content, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range reference.FindAllStringSubmatch(wrapped.ReplaceAllString(string(content), " "), -1) {
			switch {
			case filepath.Dir(path) == "internal/doctest", strings.Contains(m[0], "//"), strings.HasPrefix(m[1], "usr/share/"):
				continue // about names, a URL, or where a package installs
			}
			found++
			if offence := badReference(pages, filepath.Dir(path), m[1], number.FindAllString(m[2], -1)); offence != "" {
				t.Errorf("%s: %q: %s", path, m[0], offence)
			}
		}
	}
	if found < 40 {
		t.Errorf("only %d references found: does this test still look at what it should?", found)
	}
}

func badReference(pages []Page, dir, name string, sections []string) string {
	name = strings.TrimPrefix(name, "/")
	var candidates []int
	for i := range pages {
		switch pages[i].Path {
		case filepath.Clean(name), filepath.Join(dir, name):
			candidates = []int{i}
		default:
			if filepath.Base(pages[i].Path) == name {
				candidates = append(candidates, i)
			}
			continue
		}
		break
	}
	switch len(candidates) {
	case 0:
		return "no such page"
	case 1:
	default:
		return "several pages have this name"
	}
	for _, s := range sections {
		if !pages[candidates[0]].Sections()[s] {
			return "no section " + s
		}
	}
	return ""
}

// A check is worth its name only if it was seen failing.
func TestOffences(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "a.md"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	a, b := Parse("# Title here\n\n## 3 Things, *and* more\n\n```\n# no heading\n```\n"), Parse("## 1 One\n")
	a.Path, b.Path = "a.md", "docs/b.md"
	pages := []Page{a, b}
	for to, bad := range map[string]bool{
		"a.md": false, "a.md#title-here": false, "#3-things-and-more": false, "https://example.com/x": false,
		"c.md": true, "a.md#title": true, "#no-heading": true,
	} {
		if got := badLink(root, &a, pages, to); (got != "") != bad {
			t.Errorf("link to %s: %q", to, got)
		}
	}
	for ref, bad := range map[string]bool{
		"a.md": false, "a.md §3": false, "b.md §1": false, "docs/b.md §1": false,
		"c.md": true, "a.md §2": true, "x/a.md": true, "b.md §1.1": true,
	} {
		name, section, _ := strings.Cut(ref, " §")
		sections := []string{section}
		if section == "" {
			sections = nil
		}
		if got := badReference(pages, "scsi", name, sections); (got != "") != bad {
			t.Errorf("reference to %s: %q", ref, got)
		}
	}
}

// Paths of the project that pages show exist.
func TestPaths(t *testing.T) {
	root := Root(t)
	pattern := regexp.MustCompile(`^(\./)?[a-z]+(/[A-Za-z0-9_.-]+)*/?$`)
	for _, p := range Pages(t, root) {
		for _, s := range p.Spans() {
			first, _, nested := strings.Cut(strings.TrimPrefix(s.Text, "./"), "/")
			if !nested || !pattern.MatchString(s.Text) || first == "bin" {
				continue
			}
			if info, err := os.Stat(filepath.Join(root, first)); err != nil || !info.IsDir() {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, s.Text)); err != nil {
				t.Errorf("%s:%d: %s does not exist", p.Path, s.Number, s.Text)
			}
		}
	}
}

// ARCHITECTURE.md or one of its chapters names every package, or the one it is below.
func TestPackagesAreNamed(t *testing.T) {
	root := Root(t)
	named := make(map[string]bool)
	for _, p := range Pages(t, root) {
		if p.Path == "ARCHITECTURE.md" || filepath.Dir(p.Path) == "docs/architecture" {
			for _, s := range p.Spans() {
				named[s.Text] = true
			}
		}
	}
	dirs := make(map[string]bool)
	for _, f := range Files(t, root, func(name string) bool { return strings.HasSuffix(name, ".go") }) {
		dirs[filepath.Dir(f)] = true
	}
	for dir := range dirs {
		parent := filepath.Dir(dir)
		if !named[dir] && !named[filepath.Base(dir)] && (parent == "." || parent == "internal" || parent == "backend" || !named[filepath.Base(parent)]) {
			t.Errorf("ARCHITECTURE.md does not say what %s is", dir)
		}
	}
}

// What pages tell readers to make can be made.
func TestMake(t *testing.T) {
	root := Root(t)
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range Pages(t, root) {
		for _, l := range p.Commands("make") {
			words := strings.Fields(l.Text)
			if len(words) > 1 && !strings.Contains(string(makefile), "\n"+words[1]+":") {
				t.Errorf("%s:%d: there is no %q in the Makefile", p.Path, l.Number, words[1])
			}
		}
	}
}

// Examples of configurations load. A target is added to those that show nothing.
func TestExamples(t *testing.T) {
	root := Root(t)
	n := 0
	for _, p := range Pages(t, root) {
		for _, b := range p.Blocks {
			if b.Language != "yaml" {
				continue
			}
			n++
			if err := load(t, b.Text); err != nil {
				t.Errorf("%s:%d: %v", p.Path, b.Line, err)
			}
		}
	}
	if n == 0 {
		t.Error("no examples")
	}
}

var secretFile = regexp.MustCompile(`(dhchap_)?(?:ctrl_)?secret: \{file: ([^}/]+)\}`)

func load(t *testing.T, text string) error {
	dir := t.TempDir()
	for _, m := range secretFile.FindAllStringSubmatch(text, -1) {
		secret := "secret of " + m[2]
		if m[1] != "" {
			secret = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:" // any will do
		}
		if err := os.WriteFile(filepath.Join(dir, m[2]), []byte(secret+"\n"), 0o600); err != nil {
			return err
		}
	}
	has := func(key string) bool { return strings.HasPrefix(text, key+":") || strings.Contains(text, "\n"+key+":") }
	if !has("targets") && !has("subsystems") && !strings.Contains(text, "serve: objects") {
		text += "targets: [{iqn: iqn.2026-11.example.oneshot:demo}]\n"
	}
	_, err := config.Parse(filepath.Join(dir, "example.yaml"), []byte(text))
	return err
}

// The reference of the configuration has exactly the keys that package config knows. A key that
// does not exist, put into a mapping, makes config name those that do.
func TestConfigurationKeys(t *testing.T) {
	const unknown = "zzzzzzzz"
	sections := map[string]string{ // a configuration with an unknown key: the headings of its keys
		"zzzzzzzz: 1":        "Top level",
		"log: {zzzzzzzz: 1}": "log",
		"stores: {s: {type: memory, size: 1MiB, zzzzzzzz: 1}}":                                                   "stores, Memory stores",
		"stores: {s: {type: null, size: 1MiB, zzzzzzzz: 1}}":                                                     "stores, Null stores",
		"stores: {s: {type: memory, size: 9MiB, partitioned: true, partitions: {p: {size: 1MiB, zzzzzzzz: 1}}}}": "Partitions of memory",
		"stores: {s: {type: file, path: x, size: 1MiB, zzzzzzzz: 1}}":                                            "stores, File stores",
		"stores: {s: {type: device, path: x, size: 1MiB, zzzzzzzz: 1}}":                                          "stores, Device stores",
		"stores: {s: {type: gotgt, plugin: file, path: x, zzzzzzzz: 1}}":                                         "stores, Stores of gotgt",
		"stores: {s: {type: slice, on: t, zzzzzzzz: 1}}":                                                         "stores, Slices",
		"stores: {s: {type: throttle, on: t, zzzzzzzz: 1}}":                                                      "stores, Throttles",
		"stores: {s: {type: mirror, zzzzzzzz: 1}}":                                                               "stores, Mirrors",
		"stores: {s: {type: mirror, resync: {zzzzzzzz: 1}}}":                                                     "Resync",
		"targets: [{zzzzzzzz: 1}]":                                                                               "targets",
		"targets: [{luns: {0: {zzzzzzzz: 1}}}]":                                                                  "luns",
		"targets: [{auth: {zzzzzzzz: 1}}]":                                                                       "auth",
		"targets: [{auth: {chap: {zzzzzzzz: 1}}}]":                                                               "Credentials",
		"targets: [{auth: {mutual: {zzzzzzzz: 1}}}]":                                                             "Credentials",
		"targets: [{auth: {chap: {secret: {zzzzzzzz: 1}}}}]":                                                     "Secrets elsewhere",
		"targets: [{initiators: [{zzzzzzzz: 1}]}]":                                                               "initiators",
		"targets: [{redirect: {zzzzzzzz: 1}}]":                                                                   "redirect",
		"subsystems: [{zzzzzzzz: 1}]":                                                                            "subsystems",
		"subsystems: [{hosts: [{zzzzzzzz: 1}]}]":                                                                 "hosts",
		"subsystems: [{auth: {zzzzzzzz: 1}}]":                                                                    "auth of hosts",
		"subsystems: [{auth: {dhchap_secret: {zzzzzzzz: 1}}}]":                                                   "Secrets elsewhere",
		"subsystems: [{namespaces: {1: {zzzzzzzz: 1}}}]":                                                         "namespaces",
		"portals: [{zzzzzzzz: 1}]":                                                                               "portals",
		"portals: [{transport: iwarp, one_shot: {zzzzzzzz: 1}, listen: ':1'}]":                                   "one_shot",
		"discovery: {zzzzzzzz: 1}":                                                                               "discovery",
		"limits: {zzzzzzzz: 1}":                                                                                  "limits",
		"cluster: {zzzzzzzz: 1}":                                                                                 "cluster",
		"cluster: {nodes: {a: {zzzzzzzz: 1}}}":                                                                   "Nodes",
		"isns: {zzzzzzzz: 1}":                                                                                    "isns",
		"metrics: {zzzzzzzz: 1}":                                                                                 "metrics",
		"management: {zzzzzzzz: 1}":                                                                              "management",
	}
	root := Root(t)
	text, err := os.ReadFile(filepath.Join(root, "docs/configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := keysBySection(string(text))
	used := make(map[string]bool)
	for yaml, headings := range sections {
		known := knownKeys(t, yaml, unknown)
		var have []string
		for h := range strings.SplitSeq(headings, ", ") {
			have = append(have, documented[h]...)
			used[h] = true
		}
		for _, k := range known {
			if !slices.Contains(have, k) {
				t.Errorf("docs/configuration.md: %s does not have %q", headings, k)
			}
		}
		for _, k := range have {
			if !slices.Contains(known, k) {
				t.Errorf("docs/configuration.md: %s has %q, which config does not know", headings, k)
			}
		}
	}
	full := example(t, root, "full.yaml") + example(t, root, "cluster.yaml") + example(t, root, "mirror.yaml")
	for h, keys := range documented {
		for _, k := range keys {
			if !regexp.MustCompile(`(?m)(^|[ {])`+k+`: `).MatchString(full) && !regexp.MustCompile(`(?m)^ *(- )?`+k+`:$`).MatchString(full) {
				t.Errorf("full.yaml, cluster.yaml and mirror.yaml do not show %q of %s", k, h)
			}
		}
		if !used[h] && len(keys) > 0 {
			t.Errorf("docs/configuration.md: %s is compared with nothing", h)
		}
	}
}

// example returns an example of a configuration.
func example(t *testing.T, root, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "configs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// knownKeys asks config which keys it knows where an unknown one stands.
func knownKeys(t *testing.T, yaml, unknown string) []string {
	t.Helper()
	_, err := config.Parse("x.yaml", []byte(yaml))
	for line := range strings.Lines(fmt.Sprint(err)) {
		if _, list, ok := strings.Cut(line, "known are "); ok && strings.Contains(line, fmt.Sprintf("unknown key %q", unknown)) {
			return strings.Split(strings.TrimSpace(list), ", ")
		}
	}
	t.Fatalf("%s: config does not say which keys it knows: %v", yaml, err)
	return nil
}

var tableKey = regexp.MustCompile("^\\| `([a-z_]+)` \\|")

func keysBySection(text string) map[string][]string {
	keys, at := make(map[string][]string), ""
	for line := range strings.Lines(text) {
		if m := heading.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			at = m[1]
		} else if m := tableKey.FindStringSubmatch(line); m != nil {
			keys[at] = append(keys[at], m[1])
		}
	}
	return keys
}

// The frames that pages show are whole: their length and CRC are right.
func TestFrames(t *testing.T) {
	root := Root(t)
	n := 0
	for _, p := range Pages(t, root) {
		for _, b := range p.Blocks {
			if b.Language != "hex" {
				continue
			}
			n++
			frame := unhex(t, b.Text)
			if strings.HasPrefix(string(frame), "MPA ID Re") {
				if want := 20 + int(binary.BigEndian.Uint16(frame[18:])); len(frame) != want {
					t.Errorf("%s:%d: %d octets, want %d", p.Path, b.Line, len(frame), want)
				}
				continue
			}
			body := frame[:len(frame)-ddp.CRCLen]
			if want := (ddp.LengthLen + int(binary.BigEndian.Uint16(frame)) + 3) &^ 3; len(body) != want {
				t.Errorf("%s:%d: %d octets before the CRC, want %d", p.Path, b.Line, len(body), want)
			}
			if crc := binary.LittleEndian.Uint32(frame[len(body):]); crc != ddp.CRC(0, body) {
				t.Errorf("%s:%d: CRC %08x, want %08x", p.Path, b.Line, crc, ddp.CRC(0, body))
			}
		}
	}
	if n < 10 {
		t.Errorf("only %d frames", n)
	}
}

var unhex = hexdump.Parse

// A README gets a newcomer to a working disk; the rest has pages of its own.
func TestREADMEIsShort(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(Root(t), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n > 150 {
		t.Errorf("README.md has %d lines: 150 are the most; move something to docs/", n)
	}
}
