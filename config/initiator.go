package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

func (d *decoder) initiators(v value, luns []LUN) []Initiator {
	items := v.list("initiator names")
	if isEmptyList(v) {
		d.warnf(v.at, "an empty list of initiators lets every initiator in: name those you mean, or remove the key to say that you mean all")
	}
	numbers := make(map[uint16]bool)
	for _, l := range luns {
		numbers[l.Number] = true
	}
	var rules []Initiator
	c := covered{d: d}
	for _, item := range items {
		if r, ok := d.initiator(item, numbers); ok {
			rules = append(rules, r)
			c.add(string(r.Name), r.Pos)
		}
	}
	return rules
}

// covered warns of rules that never apply, because an earlier one is for all whom they are for.
type covered struct {
	d        *decoder
	earlier  map[string]Position // by pattern
	patterns []string            // of the earlier ones, the first maxPatterns that have an asterisk
}

// maxPatterns bounds what each of many rules is compared with.
const maxPatterns = 100

func (c *covered) add(pattern string, pos Position) {
	by, found := c.earlier[pattern]
	if i := slices.IndexFunc(c.patterns, func(p string) bool { return glob(p, pattern) }); i >= 0 { // an asterisk of pattern is one for an asterisk, too
		by, found = c.earlier[c.patterns[i]], true
	}
	if found {
		c.d.warnf(pos, "the rule never applies, for that in line %d comes first and is for all of these: write it above that one, or remove it", by.Line)
		return
	}
	if c.earlier == nil {
		c.earlier = make(map[string]Position)
	}
	c.earlier[pattern] = pos
	if len(c.patterns) < maxPatterns && strings.Contains(pattern, "*") {
		c.patterns = append(c.patterns, pattern)
	}
}

// initiator reads a pattern, or {name: PATTERN, auth: …, luns: {0: 5}}. numbers are those of the target's LUNs.
func (d *decoder) initiator(v value, numbers map[uint16]bool) (Initiator, bool) {
	r := Initiator{Pos: v.pos()}
	switch v.node.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
	default:
		return r, set(v, &r.Name, "an initiator name", parsePattern)
	}
	o := d.object(v.node, "an initiator")
	if o == nil {
		return r, false
	}
	if !o.has("name") {
		d.errorf(o.pos, "the rule is for no initiator: add name: and a name in quotation marks, such as \"iqn.2026-11.com.example:client\", or a pattern with an asterisk")
	}
	ok := set(o.take("name"), &r.Name, "an initiator name", parsePattern)
	if auth := o.take("auth"); auth.given() {
		r.Auth = new(Auth)
		d.auth(auth, r.Auth)
	}
	r.LUNs = d.shownLUNs(o.take("luns"), numbers)
	o.done()
	return r, ok
}

// shownLUNs reads {0: 5, 1: 6}: the initiator's numbers, and the target's.
func (d *decoder) shownLUNs(v value, numbers map[uint16]bool) []ShownLUN {
	if !v.given() {
		return nil
	}
	o := d.object(v.node, "luns")
	if o == nil {
		return nil
	}
	shown := []ShownLUN{}
	numberTaken, lunShown := make(map[uint16]bool), make(map[uint16]bool)
	for _, f := range o.fields {
		item := o.take(f.key)
		n, err := strconv.ParseUint(item.key, 10, 64)
		if err != nil || n > maxLUN {
			d.errorf(item.at, "%q is not a LUN: write a number from 0 to %d", item.key, maxLUN)
			continue
		}
		s := ShownLUN{Number: uint16(n)}
		if !set(item, &s.LUN, "a LUN of the target", parseLUN) {
			continue
		}
		switch {
		case !numbers[s.LUN]:
			item.errorf("the target has no LUN %d: write one of its luns", s.LUN)
		case numberTaken[s.Number]:
			d.errorf(item.at, "LUN %d is there twice: choose another number", s.Number)
		case lunShown[s.LUN]:
			item.errorf("the target's LUN %d has a number already: an initiator sees a LUN once", s.LUN)
		default:
			numberTaken[s.Number], lunShown[s.LUN] = true, true
			shown = append(shown, s)
		}
	}
	slices.SortFunc(shown, func(a, b ShownLUN) int { return cmp.Compare(a.Number, b.Number) })
	return shown
}

func parseLUN(text string) (uint16, error) {
	n, err := parseInteger(text)
	if err == nil && (n < 0 || n > maxLUN) {
		err = fmt.Errorf("%d is out of range: write a number from 0 to %d", n, maxLUN)
	}
	return uint16(n), err
}

// groups reads [1, 2].
func (d *decoder) groups(v value) []uint16 {
	if !v.given() {
		return nil
	}
	groups, named := []uint16{}, make(map[uint16]bool)
	for _, item := range v.list("portal groups") {
		var g uint16
		switch {
		case !set(item, &g, "a portal group", parseGroup):
		case named[g]:
			item.errorf("the portal group %d is named twice: remove one of the two", g)
		default:
			groups, named[g] = append(groups, g), true
			d.groupUses = append(d.groupUses, groupUse{g, item.pos()})
		}
	}
	if len(groups) == 0 {
		v.errorf("the target is in no portal group, so nobody reaches it: name one, or remove the key to say that you mean all")
	}
	return groups
}

// groupUse is a place of the file where a target names a portal group.
type groupUse struct {
	tag uint16
	pos Position
}

// parseGroup reads a target portal group tag. 0 is none that a target may have (RFC 7143 §13.9).
func parseGroup(text string) (uint16, error) {
	n, err := parseInteger(text)
	if err == nil && (n < 1 || n > 65535) {
		err = fmt.Errorf("%d is out of range: write a number from 1 to 65535", n)
	}
	return uint16(n), err
}

// redirect reads host:port, or {address: host:port, permanent: true}.
func (d *decoder) redirect(v value) *Redirect {
	if !v.given() {
		return nil
	}
	var r Redirect
	if _, short := scalarText(v.node); short {
		set(v, &r.Address, "an address such as 192.0.2.1:3260", parseAddress)
		return &r
	}
	o := d.object(v.node, "redirect")
	if o == nil {
		return nil
	}
	if !o.has("address") {
		d.errorf(o.pos, "redirect has no address: add one, such as address: 192.0.2.1:3260")
	}
	set(o.take("address"), &r.Address, "an address such as 192.0.2.1:3260", parseAddress)
	set(o.take("permanent"), &r.Permanent, "true or false", parseBool)
	o.done()
	return &r
}

// parseAddress reads the address of another node.
func parseAddress(text string) (string, error) { return parseNode(text, defaultPort) }
