package config

import (
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// value is a node of the file with the key it belongs to. A value without node
// stands for a key that was not given.
type value struct {
	d    *decoder
	key  string
	at   Position // of the key
	node ast.Node
}

func (v value) given() bool   { return v.node != nil }
func (v value) pos() Position { return v.d.pos(v.node) }

func (v value) errorf(format string, args ...any) { v.d.errorf(v.pos(), format, args...) }

// pos returns the position of the first character of n. (For the YAML library a
// mapping begins at its first colon.)
func (d *decoder) pos(n ast.Node) Position {
	switch m := n.(type) {
	case *ast.MappingNode:
		if !m.IsFlowStyle && len(m.Values) > 0 {
			return d.pos(m.Values[0])
		}
	case *ast.MappingValueNode:
		return d.pos(m.Key)
	}
	p := n.GetToken().Position
	return d.at(p.Line, p.Column)
}

// findAnchors notes all anchors below root, so that aliases can be followed.
func (d *decoder) findAnchors(root ast.Node) {
	d.anchors = make(map[string]ast.Node)
	for _, n := range ast.Filter(ast.AnchorType, root) {
		anchor := n.(*ast.AnchorNode)
		name := anchor.Name.GetToken().Value
		if d.anchors[name] != nil {
			d.errorf(d.pos(anchor), "the anchor &%s is defined twice: give one of them another name", name)
			continue
		}
		d.anchors[name] = anchor.Value
	}
}

// resolve follows anchors and aliases to the node they stand for. It returns
// nil after noting a problem.
func (d *decoder) resolve(n ast.Node) ast.Node {
	for n != nil {
		if d.visits <= 0 {
			return nil
		}
		if d.visits -= cost(n); d.visits <= 0 {
			d.errorf(d.pos(n), "aliases make this configuration endless: write out what they stand for")
			return nil
		}
		switch m := n.(type) {
		case *ast.AnchorNode:
			n = m.Value
		case *ast.AliasNode:
			name := m.Value.GetToken().Value
			if n = d.anchors[name]; n == nil {
				d.errorf(d.pos(m), "no anchor &%s is defined: a value that begins with * needs quotation marks", name)
			}
		case *ast.TagNode:
			d.errorf(d.pos(m), "the tag %s has no meaning here: remove it", m.GetToken().Value)
			return nil
		default:
			return n
		}
	}
	return nil
}

// cost returns what a visit of n counts. Texts are copied and compared; other nodes cost as much as one that is short.
func cost(n ast.Node) int {
	text, _ := scalarText(n)
	return 1 + len(text)/visitBytes
}

// object is a mapping that is being read: its reader takes the keys it knows, and
// done notes a problem for each key that was not taken.
type object struct {
	d      *decoder
	what   string // "a file store", for messages
	pos    Position
	fields []value
	index  map[string]int  // of a key in fields
	known  []string        // keys that were asked for
	asked  map[string]bool // the same
}

// wayToWrite shows for each mapping how it may be written.
var wayToWrite = map[string]string{
	"the configuration": "stores, targets and portals, each with a colon behind it",
	"log":               "{level: debug}, for example",
	"transport":         "{type: verbs, device: rxe0}, for example",
	"stores":            "{disk: {type: memory, size: 1GiB}}, for example",
	"a store":           "{type: memory, size: 1GiB}, for example",
	"copies":            "{a: {type: file, path: /srv/disk.img}, b: {type: file, path: /srv/disk.img}}, for example",
	"resync":            "{rate: auto, min: 20MiB/s}, for example",
	"a copy":            "{type: file, path: /srv/disk.img}, for example",
	"partitions":        "{log: {size: 1GiB}}, for example",
	"a partition":       "{size: 1GiB}, for example",
	"access":            "{any: r}, for example",
	"a target":          "{iqn: NAME, luns: {0: STORE}}, for example",
	"luns":              "{0: STORE}, for example",
	"a LUN":             "{store: NAME}, for example",
	"auth":              "{chap: {user: NAME, secret: TEXT}}, or leave it out",
	"chap":              "{user: NAME, secret: TEXT}",
	"mutual":            "{user: NAME, secret: TEXT}",
	"a secret":          "{file: PATH}, {env: NAME} or the text of the secret",
	"an initiator":      "{name: NAME}, for example",
	"a host":            "{nqn: NQN}, for example",
	"auth of hosts":     "{dhchap_secret: SECRET}, or leave it out",
	"redirect":          "{address: HOST}, or only the host",
	"a subsystem":       "{nqn: NAME, namespaces: {1: STORE}}, for example",
	"namespaces":        "{1: STORE}, for example",
	"a namespace":       "{store: NAME}, for example",
	"a portal":          "{transport: tcp, listen: ADDRESS}, for example",
	"clients":           "{NAME: SECRET}",
	"one_shot":          "{window: 256}, for example",
	"discovery":         "{auth: {chap: {user: NAME, secret: TEXT}}}",
	"limits":            "{memory: 2GiB}, for example",
	"cluster":           "{name: NAME, state: DIRECTORY, nodes: {a: {address: HOST}}}, for example",
	"nodes":             "{a: {address: HOST}}, for example",
	"a node":            "{address: HOST}",
	"keeper":            "{socket: /run/oneshot-keeper/keeper.sock}",
	"isns":              "{server: HOST}",
	"metrics":           "{listen: 127.0.0.1:9327}, for example",
	"management":        "{socket: PATH}",
}

// object returns n as a mapping, or nil after noting that it is none.
func (d *decoder) object(n ast.Node, what string) *object {
	n = d.resolve(n)
	if n == nil {
		return nil
	}
	entries, ok := mappingEntries(n)
	if !ok {
		d.errorf(d.pos(n), "%s is a mapping of keys to values, not %s: write %s", what, kind(n), wayToWrite[what])
		return nil
	}
	o := &object{d: d, what: what, pos: d.pos(n), index: make(map[string]int), asked: make(map[string]bool)}
	o.add(entries)
	return o
}

func mappingEntries(n ast.Node) ([]*ast.MappingValueNode, bool) {
	switch m := n.(type) {
	case *ast.MappingNode:
		return m.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{m}, true
	}
	return nil, false
}

// add adds the entries of a mapping, and then those of the mappings that it merges
// in (<<). An explicit entry has precedence over a merged one.
func (o *object) add(entries []*ast.MappingValueNode) {
	var merges []ast.Node
	for _, e := range entries {
		if e.Key.IsMergeKey() {
			merges = append(merges, e.Value)
			continue
		}
		o.addField(e)
	}
	for _, m := range merges {
		o.merge(m)
	}
}

func (o *object) addField(e *ast.MappingValueNode) {
	key, ok := o.d.scalar(e.Key)
	if !ok {
		return
	}
	v := value{d: o.d, key: key, at: o.d.pos(e.Key), node: e.Value}
	if first, found := o.find(key); found {
		o.d.errorf(v.at, "%q is already given in line %d: remove one of the two", key, first.at.Line)
		return
	}
	o.append(v)
}

func (o *object) append(v value) {
	o.index[v.key] = len(o.fields)
	o.fields = append(o.fields, v)
}

func (o *object) merge(n ast.Node) {
	n = o.d.resolve(n)
	if n == nil {
		return
	}
	if list, ok := n.(*ast.SequenceNode); ok {
		for _, item := range list.Values {
			o.mergeOne(o.d.resolve(item))
		}
		return
	}
	o.mergeOne(n)
}

// mergeOne adds the entries of one merged mapping. It refuses a merge within a
// merge, so that it cannot loop.
func (o *object) mergeOne(n ast.Node) {
	if n == nil {
		return
	}
	entries, ok := mappingEntries(n)
	if !ok {
		o.d.errorf(o.d.pos(n), "<< merges mappings, not %s", kind(n))
		return
	}
	for _, e := range entries {
		if e.Key.IsMergeKey() {
			o.d.errorf(o.d.pos(e), "a mapping that is merged in cannot merge another: write its keys out")
			continue
		}
		key, ok := o.d.scalar(e.Key)
		if _, found := o.find(key); ok && !found {
			o.append(value{d: o.d, key: key, at: o.d.pos(e.Key), node: e.Value})
		}
	}
}

func (o *object) find(key string) (value, bool) {
	i, ok := o.index[key]
	if !ok {
		return value{}, false
	}
	return o.fields[i], true
}

func (o *object) ask(key string) {
	if !o.asked[key] {
		o.asked[key] = true
		o.known = append(o.known, key)
	}
}

// take returns the value of a key. A key without value, or with null, is noted
// as a problem and counts as not given.
func (o *object) take(key string) value {
	o.ask(key)
	v, found := o.find(key)
	if !found {
		return value{d: o.d, key: key, at: o.pos}
	}
	v.node = o.d.valueOf(v)
	return v
}

// takeWord is take for a key that has the word null as a valid value. YAML's other spellings
// of null (an empty value, ~) are still a problem.
func (o *object) takeWord(key string) value {
	if v, found := o.find(key); found {
		if n, null := o.d.resolve(v.node).(*ast.NullNode); null && n.GetToken().Type == token.NullType && n.GetToken().Value == "null" {
			o.ask(key)
			v.node = ast.String(n.GetToken())
			return v
		}
	}
	return o.take(key)
}

// has reports whether the key stands in the file, with a usable value or not.
func (o *object) has(key string) bool {
	_, found := o.find(key)
	return found
}

// valueOf returns the node behind v, or nil after noting that there is none.
func (d *decoder) valueOf(v value) ast.Node {
	n := d.resolve(v.node)
	if _, null := n.(*ast.NullNode); null {
		d.errorf(v.at, "%q has no value: give it one, or remove it", v.key)
		return nil
	}
	return n
}

// done notes every key that was not taken.
func (o *object) done() {
	for _, v := range o.fields {
		if !o.asked[v.key] {
			o.d.errorf(v.at, "unknown key %q in %s: %s", v.key, o.what, suggest(v.key, o.known))
		}
	}
}

// list returns the items of a list, or nil after noting that v is none.
func (v value) list(of string) []value {
	if !v.given() {
		return nil
	}
	seq, ok := v.node.(*ast.SequenceNode)
	if !ok {
		v.errorf("%q is a list of %s, not %s: put a dash before each, or brackets around them", v.key, of, kind(v.node))
		return nil
	}
	var items []value
	for _, n := range seq.Values {
		item := value{d: v.d, key: v.key, at: v.d.pos(n), node: n}
		if item.node = v.d.valueOf(item); item.given() {
			items = append(items, item)
		}
	}
	return items
}

// scalar returns the text of a key as it was written.
func (d *decoder) scalar(n ast.Node) (string, bool) {
	if k, ok := n.(*ast.MappingKeyNode); ok {
		n = k.Value
	}
	n = d.resolve(n)
	if n == nil {
		return "", false
	}
	text, ok := scalarText(n)
	if !ok {
		d.errorf(d.pos(n), "a key is a word or a number, not %s", kind(n))
	}
	return text, ok
}

// scalarText returns the text of a scalar as it stands in the file. It does not
// convert 0x10 or 1.50 to numbers, because sizes, names and secrets need the text.
func scalarText(n ast.Node) (string, bool) {
	switch s := n.(type) {
	case *ast.StringNode:
		return s.Value, true
	case *ast.LiteralNode:
		return s.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return s.GetToken().Value, true
	}
	return "", false
}

// kind describes n for a user who does not know YAML's terms.
func kind(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	}
	if text, ok := scalarText(n); ok {
		if len(text) > 40 || strings.ContainsRune(text, '\n') {
			return "a text"
		}
		return "the text " + strconv.Quote(text)
	}
	return "this"
}
