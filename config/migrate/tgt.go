package migrate

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"oneshot/config"
)

// directive is a line of targets.conf, or a section with what is in it.
type directive struct {
	line     int
	name     string
	args     []string
	section  bool
	children []directive
}

// parseTGT reads the format of Apache's configuration that tgt-admin understands: "name
// arguments", <name arguments> to </name>, comments from # on.
func parseTGT(text string) ([]directive, error) {
	type open struct {
		d    *directive
		list *[]directive
	}
	var root []directive
	stack := []open{{nil, &root}}
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(stripComment(strings.TrimSuffix(line, "\r")))
		top := stack[len(stack)-1]
		switch {
		case line == "":
		case strings.HasPrefix(line, "</"):
			name := strings.TrimSuffix(strings.TrimPrefix(line, "</"), ">")
			if top.d == nil || !strings.EqualFold(strings.TrimSpace(name), top.d.name) {
				return nil, fmt.Errorf("line %d: %s ends nothing that is open", i+1, line)
			}
			stack = stack[:len(stack)-1]
			*stack[len(stack)-1].list = append(*stack[len(stack)-1].list, *top.d)
		case strings.HasPrefix(line, "<"):
			words := words(strings.TrimSuffix(strings.TrimPrefix(line, "<"), ">"))
			if words[0] == "" || !strings.HasSuffix(line, ">") {
				return nil, fmt.Errorf("line %d: %q is no section", i+1, line)
			}
			if len(stack) > maxDepth {
				return nil, fmt.Errorf("line %d: sections in sections in sections", i+1)
			}
			d := &directive{line: i + 1, name: strings.ToLower(words[0]), args: words[1:], section: true}
			stack = append(stack, open{d, &d.children})
		default:
			w := words(line)
			*top.list = append(*top.list, directive{line: i + 1, name: strings.ToLower(w[0]), args: w[1:]})
		}
	}
	if top := stack[len(stack)-1]; top.d != nil {
		return nil, fmt.Errorf("line %d: <%s> is not closed", top.d.line, top.d.name)
	}
	return root, nil
}

// maxDepth is of sections: <backing-store> in <target>, and one more.
const maxDepth = 3

// stripComment cuts what follows a # that is in no quotation marks.
func stripComment(line string) string {
	quoted := false
	for i, r := range line {
		switch {
		case r == '"':
			quoted = !quoted
		case r == '#' && !quoted:
			return line[:i]
		}
	}
	return line
}

// words splits at blanks outside of quotation marks. A line that is not empty has one at
// least.
func words(line string) []string {
	var list []string
	var word strings.Builder
	quoted, any := false, false
	for _, r := range line {
		switch {
		case r == '"':
			quoted, any = !quoted, true
		case (r == ' ' || r == '\t') && !quoted:
			if any {
				list = append(list, word.String())
			}
			word.Reset()
			any = false
		default:
			word.WriteRune(r)
			any = true
		}
	}
	if any || len(list) == 0 {
		list = append(list, word.String())
	}
	return list
}

func (m *model) readTGT(text string) error {
	list, err := parseTGT(text)
	if err != nil {
		return fmt.Errorf("this is neither a saveconfig.json of targetcli nor a targets.conf of tgt: %w", err)
	}
	for i := range list {
		d := &list[i]
		switch {
		case d.section && d.name == "target" && len(d.args) == 1:
			m.tgtTarget(d)
		case d.name == "default-driver" && slices.Equal(d.args, []string{"iscsi"}):
		case d.name == "include":
			m.remark("line %d: the files %s are not read: import them one by one", d.line, strings.Join(d.args, " "))
		case d.name == "incomingdiscoveryuser" && len(d.args) == 2:
			m.discovery.chap = credentials{d.args[0], d.args[1]}
		case d.name == "outgoingdiscoveryuser" && len(d.args) == 2:
			m.discovery.mutual = credentials{d.args[0], d.args[1]}
		default:
			m.leftOut(d)
		}
	}
	if len(m.targets) == 0 {
		return errors.New("it describes no target: is it a saveconfig.json of targetcli, or a targets.conf of tgt?")
	}
	m.checkSecrets("discovery", m.discovery)
	m.addPortal(portal{"*:3260"}) // where tgtd listens
	m.remark("tgtd says on its command line where it listens: look at portals")
	m.remark("disks get other names (WWN): what is mounted by the UUID or label of its file system is found again; multipath and /dev/disk/by-id have to be looked at")
	return nil
}

func (m *model) leftOut(d *directive) {
	m.remark("line %d: %s is not taken over", d.line, strings.Join(append([]string{d.name}, d.shown()...), " "))
}

// shown are the arguments without secrets.
func (d *directive) shown() []string {
	if strings.HasSuffix(d.name, "user") && len(d.args) > 1 {
		return []string{d.args[0], "…"}
	}
	return d.args
}

// tgtDefaults are what a target says for all its LUNs.
type tgtDefaults struct {
	through, readOnly bool
	blockSize         int
	vendor, product   string
}

func (m *model) tgtTarget(d *directive) {
	t := target{iqn: d.args[0]}
	where := fmt.Sprintf("target %s", t.iqn)
	var defaults tgtDefaults
	for i := range d.children {
		m.tgtDefault(&d.children[i], &defaults)
	}
	next, byAddress := 1, false // LUN 0 is tgt's controller
	var chaps []credentials
	for i := range d.children {
		c := &d.children[i]
		switch {
		case (c.name == "backing-store" || c.name == "direct-store") && len(c.args) == 1:
			next = m.tgtStore(c, defaults, &t, next)
		case c.name == "incominguser" && len(c.args) == 2:
			chaps = append(chaps, credentials{c.args[0], c.args[1]})
		case c.name == "outgoinguser" && len(c.args) == 2:
			t.auth.mutual = credentials{c.args[0], c.args[1]}
		case c.name == "initiator-name" && len(c.args) == 1:
			if !strings.EqualFold(c.args[0], "ALL") {
				t.initiators = append(t.initiators, initiator{name: c.args[0]})
			}
		case c.name == "initiator-address" && len(c.args) == 1:
			byAddress = byAddress || !strings.EqualFold(c.args[0], "ALL")
		case c.name == "driver" && slices.Equal(c.args, []string{"iscsi"}), isTGTDefault(c):
		default:
			m.leftOut(c)
		}
	}
	if byAddress && len(t.initiators) == 0 {
		m.remark("%s is for initiators at certain addresses, which has no counterpart: left out; write it with the names of its initiators", where)
		return
	}
	if byAddress {
		m.remark("%s: the addresses of initiators are not looked at, only their names", where)
	}
	if len(chaps) > 0 {
		t.auth.chap = chaps[0]
	}
	if len(chaps) > 1 {
		m.remark("%s: only the first of %d users can log in", where, len(chaps))
	}
	if t.auth.chap.user == "" && t.auth.mutual.user != "" {
		m.remark("%s: without incominguser the outgoinguser %s has no use", where, t.auth.mutual.user)
		t.auth.mutual = credentials{}
	}
	m.checkSecrets(where, t.auth)
	m.targets = append(m.targets, t)
}

func isTGTDefault(d *directive) bool {
	switch d.name {
	case "write-cache", "readonly", "block-size", "vendor_id", "product_id":
		return len(d.args) == 1
	}
	return false
}

// tgtDefault takes what holds for the LUNs behind it, or for all in a target.
func (m *model) tgtDefault(d *directive, t *tgtDefaults) {
	if !isTGTDefault(d) {
		return
	}
	value := d.args[0]
	switch d.name {
	case "write-cache":
		t.through = strings.EqualFold(value, "off")
	case "readonly":
		t.readOnly = isSet(value)
	case "vendor_id":
		t.vendor = value
	case "product_id":
		t.product = value
	case "block-size":
		n, err := strconv.Atoi(value)
		if err != nil {
			m.leftOut(d)
			return
		}
		t.blockSize = n
	}
}

// tgtStore adds a store and its LUN, and returns the number for the next LUN.
func (m *model) tgtStore(d *directive, def tgtDefaults, t *target, next int) int {
	l := lun{number: next}
	for i := range d.children {
		c := &d.children[i]
		switch {
		case isTGTDefault(c):
			m.tgtDefault(c, &def)
		case c.name == "lun" && len(c.args) == 1:
			if n, err := strconv.Atoi(c.args[0]); err == nil {
				l.number = n
			}
		case c.name == "scsi_sn" && len(c.args) == 1:
			l.serial = c.args[0]
		default:
			m.leftOut(c)
		}
	}
	s := store{kind: string(config.StoreFile), path: d.args[0], through: def.through}
	if strings.HasPrefix(s.path, "/dev/") {
		s.kind = string(config.StoreDevice)
	}
	l.readOnly = def.readOnly
	if def.blockSize != 512 {
		l.blockSize = def.blockSize
	}
	l.vendor, l.product = def.vendor, def.product
	if d.name == "direct-store" {
		m.remark("line %d: %s is not passed through but served as a disk of our own", d.line, s.path)
	}
	if at := slices.IndexFunc(m.stores, func(o store) bool { return o.path == s.path }); at >= 0 {
		s.name = m.stores[at].name // shown twice
	} else {
		s.name = m.storeName(strings.TrimSuffix(filepath.Base(s.path), filepath.Ext(s.path)))
		m.stores = append(m.stores, s)
	}
	l.store = s.name
	t.luns = append(t.luns, l)
	return max(next, l.number) + 1
}
