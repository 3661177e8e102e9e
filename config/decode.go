package config

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// decoder holds the state of reading one file. Its methods do not stop at a
// problem: they note it and go on with the rest.
type decoder struct {
	src      *source
	text     string
	anchors  map[string]ast.Node
	secrets  secretReader
	problems []Problem // at most maxProblems
	warnings []Problem // at most maxProblems
	unread   bool      // there are more problems

	// visits counts the nodes that may still be visited, and one more for each visitBytes of a scalar. Without
	// aliases no file of maxFileBytes has that many; with aliases it ends loops, and bounds the work.
	visits int

	storeAt    map[string]*Store // by name; they are those of the Config
	partitions map[string]bool   // "store/partition", of memory stores
	stands     map[string]stand  // by the store that stands on another one

	groupUses    []groupUse // portal groups that targets name
	noTarget     *Position  // where a target could be, if there is none, nor a subsystem
	portalBroken bool       // a portal was left out because something is wrong with it

	nodeUses []nodeUse // nodes of the cluster that something names

	memory value // limits.memory

	othersMayRead bool     // the file itself
	inlineSecret  Position // of the first one; zero when there is none
}

const (
	maxVisits  = maxFileBytes
	visitBytes = 64

	// maxProblems bounds the problems, and the warnings, that are told. The first problem that is left out ends
	// the reading.
	maxProblems = 100

	// maxDepth bounds lists and mappings within each other. A configuration has 8 levels at most. The YAML parser
	// calls itself for each level, and looks at the rest of the text each time.
	maxDepth = 64
	// maxKeys bounds the keys of a mapping that is not in braces, because the YAML parser looks at all earlier ones for each.
	// A file of maxFileBytes has no room for as many stores and the targets that show them.
	maxKeys = 1 << 14
	// maxEarlier bounds how many earlier keys it looks at in the whole text: as many as for two mappings of maxKeys, which
	// take seconds.
	maxEarlier = maxKeys * (maxKeys + 1)
	// maxDocuments bounds the documents that the YAML parser is shown. Only one may have content.
	maxDocuments = 16
)

func newDecoder(file string, data []byte, secrets secretReader) *decoder {
	text := strings.TrimPrefix(string(data), "\uFEFF") // byte order mark
	return &decoder{src: newSource(file, text), text: text, secrets: secrets, visits: maxVisits}
}

func (d *decoder) errorf(pos Position, format string, args ...any) {
	if len(d.problems) == maxProblems {
		d.unread, d.visits = true, 0
		return
	}
	d.problems = append(d.problems, d.src.problem(pos, format, args...))
}

func (d *decoder) warnf(pos Position, format string, args ...any) {
	if len(d.warnings) < maxProblems {
		d.warnings = append(d.warnings, d.src.problem(pos, format, args...))
	}
}

// decode reads the text: first the YAML, then each section, then what concerns
// several sections.
func (d *decoder) decode() (*Config, error) {
	c := &Config{File: d.src.file, Log: defaultLog, Limits: DefaultLimits()}
	if root := d.parse(); root != nil {
		d.config(c, root)
		if !d.unread {
			d.crossCheck(c)
		}
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	sortProblems(d.warnings)
	c.Warnings = d.warnings
	return c, nil
}

// err is what is wrong; nil: nothing.
func (d *decoder) err() error {
	if len(d.problems) == 0 {
		return nil
	}
	sortProblems(d.problems)
	return &Error{Problems: d.problems, More: d.unread}
}

// decodeMoving reads what LoadMoving returns.
func (d *decoder) decodeMoving() (*Cluster, error) {
	c := new(Cluster)
	if root := d.parse(); root != nil {
		if o := d.object(root, "the configuration"); o != nil {
			d.cluster(o.take("cluster"), c)
			for _, p := range d.portals(o) {
				if p.Mirror != "" {
					c.Moving = append(c.Moving, p)
				}
			}
		}
	}
	return c, d.err()
}

func (d *decoder) config(c *Config, root ast.Node) {
	o := d.object(root, "the configuration")
	if o == nil {
		return
	}
	d.log(o.take("log"), &c.Log)
	d.cluster(o.take("cluster"), &c.Cluster)
	c.Stores = d.stores(o.take("stores"))
	c.Targets = d.targets(o, c.Stores)
	c.Subsystems = d.subsystems(o, c.Stores)
	c.Portals = d.portals(o)
	d.discovery(o.take("discovery"), &c.Discovery)
	d.limits(o.take("limits"), &c.Limits)
	d.state(o.take("state"), &c.State)
	d.isns(o.take("isns"), &c.ISNS)
	d.metrics(o.take("metrics"), &c.Metrics)
	d.management(o.take("management"), &c.Management)
	o.done()
}

// parse returns the root of the only document. Without one it notes the reason and
// returns nil.
func (d *decoder) parse() ast.Node {
	if !d.checkText() {
		return nil
	}
	tokens := lexer.Tokenize(d.text)
	if !d.checkTokens(tokens) {
		return nil
	}
	file, err := parseYAML(tokens)
	if err != nil {
		d.syntaxError(err)
		return nil
	}
	var bodies []ast.Node
	for _, doc := range file.Docs {
		if _, directive := doc.Body.(*ast.DirectiveNode); doc.Body != nil && !directive {
			bodies = append(bodies, doc.Body)
		}
	}
	if len(bodies) == 0 {
		d.errorf(d.at(1, 1), "the file holds no configuration: it needs stores and targets, such as {stores: {disk: {type: memory, size: 64MiB}}, targets: [{iqn: iqn.2026-11.com.example:disk, luns: {0: disk}}]}")
		return nil
	}
	if len(bodies) > 1 {
		d.errorf(d.pos(bodies[1]), "a second YAML document begins here: a configuration is one document; remove the line --- and merge the two")
	}
	d.findAnchors(bodies[0])
	return bodies[0]
}

// parseYAML turns a panic of the YAML library into an error. The library has had
// some on strange input, and a reload must not end the daemon.
func parseYAML(tokens token.Tokens) (file *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			file, err = nil, fmt.Errorf("the YAML parser gave up (%v)", r)
		}
	}()
	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
}

// checkTokens refuses what would occupy the YAML parser for minutes, or overflow its stack: levels, keys and documents
// without end.
func (d *decoder) checkTokens(tokens token.Tokens) bool {
	documents := 0
	var brackets []token.Type // that are open
	dashes, line := 0, 0      // of "- - - x", and where they are
	var open mappings
	earlier := 0
	for _, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			brackets = append(brackets, t.Type)
		case token.SequenceEndType, token.MappingEndType:
			brackets = brackets[:max(0, len(brackets)-1)]
		case token.DocumentHeaderType, token.DocumentEndType:
			documents++
		}
		depth := len(brackets)
		if t.Type == token.MappingValueType && depth > 0 && brackets[depth-1] == token.MappingStartType && isGlued(t) {
			d.errorf(d.at(t.Position.Line, t.Position.Column), "in braces a colon needs a space behind it: write %q", t.Prev.Value+": "+t.Next.Value)
			return false
		}
		if t.Position.Line != line {
			dashes, line = 0, t.Position.Line
		}
		switch {
		case t.Type == token.SequenceEntryType:
			dashes++
			open = open.inside(t.Position.Column)
		case t.Type == token.MappingValueType && depth == 0 && t.Prev != nil:
			open = open.inside(t.Prev.Position.Column).count(t.Prev.Position.Column)
			keys := open[len(open)-1].keys
			if keys > maxKeys {
				d.errorf(d.at(t.Prev.Position.Line, t.Prev.Position.Column), "this mapping has more than %d keys, which no configuration needs: is this the file that you meant?", maxKeys)
				return false
			}
			if earlier += keys; earlier > maxEarlier {
				d.errorf(d.at(t.Prev.Position.Line, t.Prev.Position.Column), "several mappings up to here have thousands of keys, which no configuration needs: is this the file that you meant?")
				return false
			}
		}
		switch {
		case depth > maxDepth || dashes > maxDepth:
			d.errorf(d.at(t.Position.Line, t.Position.Column), "there are more than %d lists and mappings within each other, which no configuration needs: close some of them", maxDepth)
			return false
		case documents > maxDocuments:
			d.errorf(d.at(t.Position.Line, t.Position.Column), "the file has more than %d lines --- or ...: a configuration is one document; remove these lines", maxDocuments)
			return false
		}
	}
	return true
}

// isGlued reports whether a value follows a colon in braces without a space. For YAML {size:1GiB} has a key "size:1GiB", but
// this library makes two words of it. Behind a key in quotation marks no space is needed, and before a bracket none.
func isGlued(colon *token.Token) bool {
	key, v := colon.Prev, colon.Next
	if key == nil || key.CharacterType != token.CharacterTypeMiscellaneous || v == nil || v.Position.Line != colon.Position.Line || v.Position.Column != colon.Position.Column+1 {
		return false
	}
	switch v.Type {
	case token.SequenceStartType, token.MappingStartType, token.MappingEndType, token.CollectEntryType:
		return false
	}
	return true
}

// mappings are those that are open at one place of a text, the outermost first: where their keys begin, and how many there
// are. Mappings in braces are not among them.
type mappings []struct{ column, keys int }

// inside leaves the mappings that go on at a line that begins in column.
func (m mappings) inside(column int) mappings {
	for len(m) > 0 && m[len(m)-1].column > column {
		m = m[:len(m)-1]
	}
	return m
}

// count counts a key in column, of the innermost mapping or of another one in it.
func (m mappings) count(column int) mappings {
	if len(m) == 0 || m[len(m)-1].column != column {
		m = append(m, struct{ column, keys int }{column: column})
	}
	m[len(m)-1].keys++
	return m
}

// checkText refuses a file that is not text. It runs before the YAML parser, which
// might accept such bytes.
func (d *decoder) checkText() bool {
	line, col := 1, 1
	for i, r := range d.text {
		switch {
		case r == '\n':
			line, col = line+1, 0
		case r == utf8.RuneError && !strings.HasPrefix(d.text[i:], "\uFFFD"):
			d.errorf(d.at(line, col), "byte %#02x is not UTF-8: save the file as UTF-8", d.text[i])
			return false
		case r < ' ' && r != '\t' && r != '\r':
			d.errorf(d.at(line, col), "control character %U: remove it", r)
			return false
		}
		col++
	}
	return true
}

// advice maps messages of the YAML library to what the user has to do.
var advice = []struct{ message, hint string }{
	{"mapping value is not allowed", "quote a value that contains \": \", and check the indentation"},
	{"value is not allowed in this context", "check the indentation, and quote a value that begins with a special character"},
	{"cannot start any token", "indent with spaces, not tabs, and quote a value that begins with @ or `"},
	{"could not find end character", "close the quotation mark"},
	{"sequence end token", "close the list with ]"},
	{"',' or '}' must be specified", "close the braces, put a comma between entries, and quote a value that contains brackets, such as \"[::1]:3260\""},
	{"',' or ']' must be specified", "close the list, and put a comma between entries"},
	{"invalid key for this map", "quote a value that contains brackets, such as \"[::1]:3260\""},
	{"unexpected key name", "every line of a mapping is \"key: value\"; check for a missing colon"},
	{"non-map value is specified", "every line of a mapping is \"key: value\"; check for a missing colon and for the indentation"},
}

func (d *decoder) syntaxError(err error) {
	yamlErr, ok := errors.AsType[yaml.Error](err)
	if !ok || yamlErr.GetToken() == nil {
		d.errorf(d.at(1, 1), "not valid YAML: %v", err)
		return
	}
	message := strings.NewReplacer("\t", `\t`, "\n", `\n`).Replace(yamlErr.GetMessage())
	for _, a := range advice {
		if strings.Contains(message, a.message) {
			message += ": " + a.hint
			break
		}
	}
	p := yamlErr.GetToken().Position
	d.errorf(d.at(p.Line, p.Column), "not valid YAML: %s", message)
}

func (d *decoder) at(line, column int) Position {
	return Position{File: d.src.file, Line: line, Column: column}
}

func oneLine(err error) string {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Path + ": " + pathErr.Err.Error()
	}
	return err.Error()
}
