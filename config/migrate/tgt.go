package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// directive is a line of targets.conf, or a section with its content.
type directive struct {
	at       string // "line 3", or "/etc/tgt/conf.d/a.conf, line 3"
	name     string
	args     []string
	section  bool
	children []directive
}

// value returns the text after the name.
func (d *directive) value() string { return strings.Join(d.args, " ") }

// tgtParser holds the state of parsing one file.
type tgtParser struct {
	name     string
	nesting  int  // files around it
	included *int // files read so far
}

// parseTGT reads the format of Apache's configuration, as tgt-admin does: "name arguments",
// <name arguments> to </name>, comments from # to the end of the line, "include PATTERN" anywhere.
func (m *model) parseTGT(p *tgtParser, text string) ([]directive, error) {
	type open struct {
		d    *directive
		list *[]directive
	}
	var root []directive
	stack := []open{{nil, &root}}
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(stripComment(strings.TrimSuffix(line, "\r")))
		at := fmt.Sprintf("line %d", i+1)
		if p.nesting > 0 {
			at = p.name + ", " + at
		}
		top := stack[len(stack)-1]
		switch {
		case line == "":
		case strings.HasPrefix(line, "<<include") && strings.HasSuffix(line, ">>"):
			list, err := m.include(p, strings.TrimSpace(line[len("<<include"):len(line)-len(">>")]), at)
			if err != nil {
				return nil, err
			}
			*top.list = append(*top.list, list...)
		case strings.HasPrefix(line, "</"):
			name := strings.TrimSuffix(strings.TrimPrefix(line, "</"), ">")
			if top.d == nil || !strings.EqualFold(strings.TrimSpace(name), top.d.name) {
				return nil, fmt.Errorf("%s: %s ends nothing that is open", at, line)
			}
			stack = stack[:len(stack)-1]
			*stack[len(stack)-1].list = append(*stack[len(stack)-1].list, *top.d)
		case strings.HasPrefix(line, "<"):
			words := words(strings.TrimSuffix(strings.TrimPrefix(line, "<"), ">"))
			if words[0] == "" || !strings.HasSuffix(line, ">") {
				return nil, fmt.Errorf("%s: %q is not a section", at, line)
			}
			if len(stack) > maxDepth {
				return nil, fmt.Errorf("%s: sections in sections in sections", at)
			}
			d := &directive{at: at, name: strings.ToLower(words[0]), args: words[1:], section: true}
			stack = append(stack, open{d, &d.children})
		default:
			w := words(line)
			d := directive{at: at, name: strings.ToLower(w[0]), args: w[1:]}
			if d.name != "include" || len(d.args) == 0 {
				*top.list = append(*top.list, d)
				continue
			}
			list, err := m.include(p, d.value(), at)
			if err != nil {
				return nil, err
			}
			*top.list = append(*top.list, list...)
		}
	}
	if top := stack[len(stack)-1]; top.d != nil {
		return nil, fmt.Errorf("%s: <%s> is not closed", top.d.at, top.d.name)
	}
	return root, nil
}

// maxDepth is how deep sections may be nested: <backing-store> in <target>, and one more.
const maxDepth = 3

// stripComment removes a comment: a # outside of quotation marks, and what follows it.
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

// words splits a line at blanks outside of quotation marks. A line that is not empty has at least one
// word.
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
	list, err := m.parseTGT(&tgtParser{name: m.name, included: new(int)}, text)
	if err != nil {
		return fmt.Errorf("what does not begin with { is read as a targets.conf of tgt, and this is none: %w", err)
	}
	isns := make(map[string]string)
	known := len(list) == 0 || len(m.remarks) > 0 // as one of tgt, be it empty, or with files that are not there
	for _, d := range merged(list) {
		known = known || d.section || slices.Contains(directives, d.name)
		switch {
		case d.section && d.name == "target" && len(d.args) == 1:
			m.tgtTarget(d)
		case d.name == "default-driver" && slices.Equal(d.args, []string{"iscsi"}), d.name == "ignore-errors":
		case d.name == unread: // that is said already
		case strings.HasPrefix(d.name, "isns"):
			isns[d.name] = d.value()
		case d.name == "incomingdiscoveryuser" && len(d.args) == 2:
			m.discovery.chap = credentials{d.args[0], d.args[1]}
		case d.name == "outgoingdiscoveryuser" && len(d.args) == 2:
			m.discovery.mutual = credentials{d.args[0], d.args[1]}
		default:
			m.leftOut(d)
		}
	}
	if len(m.targets) == 0 {
		if name := foreign(list); name != "" {
			return fmt.Errorf("it looks like a configuration of %s, which import does not read: it reads those of targetcli (LIO), nvmetcli and tgt", name)
		}
		if !known {
			return errors.New("it is none of the formats that import reads: saveconfig.json of targetcli (LIO), config.json of nvmetcli, and targets.conf of tgt")
		}
		return m.nothing()
	}
	if server := isns["isnsserverip"]; strings.EqualFold(isns["isns"], "on") && server != "" {
		m.isns = net.JoinHostPort(server, cmp.Or(isns["isnsserverport"], "3205"))
	}
	m.checkSecrets("discovery", m.discovery)
	m.addPortal(portal{address: "*:3260"}) // where tgtd listens
	m.remark("tgtd gets its addresses from its command line: check portals")
	m.remark("disks get new names (WWN): initiators that mount by the UUID or label of a file system find it again; check multipath and /dev/disk/by-id")
	return nil
}

// directives are those that stand outside of sections.
var directives = []string{
	"default-driver", "ignore-errors", "control-port", "include", "isns", "isnsaccesscontrol", "isnsserverip", "isnsserverport",
	"incomingdiscoveryuser", "outgoingdiscoveryuser",
}

// foreign names the software whose configuration the list seems to be; empty: unknown.
func foreign(list []directive) string {
	for i, d := range list {
		switch {
		case d.name == "handler", d.name == "target_driver":
			return "SCST"
		case strings.HasPrefix(d.name, "[portalgroup"), strings.HasPrefix(d.name, "[logicalunit"):
			return "istgt"
		case i == 0 && slices.Contains([]string{"log:", "cluster:", "stores:", "targets:", "subsystems:", "portals:"}, d.name):
			return "oneshot itself"
		}
	}
	return ""
}

// nothing returns the error that there is no target, with the remarks in the same line.
func (m *model) nothing() error {
	err := errors.New("it describes no target: is it a saveconfig.json of targetcli, or a targets.conf of tgt?")
	if len(m.remarks) > 0 {
		err = fmt.Errorf("it describes no target that can be taken over (%s)", strings.Join(m.remarks, "; "))
	}
	return err
}

// merged joins sections for one target, as tgt-admin does.
func merged(list []directive) (all []*directive) {
	first := make(map[string]*directive)
	for i := range list {
		d := &list[i]
		if d.section && d.name == "target" && len(d.args) == 1 {
			if before := first[d.args[0]]; before != nil {
				before.children = append(before.children, d.children...)
				continue
			}
			first[d.args[0]] = d
		}
		all = append(all, d)
	}
	return all
}

func (m *model) leftOut(d *directive) {
	m.remark("%s: %s is not taken over", d.at, strings.Join(append([]string{d.name}, d.shown()...), " "))
}

// shown returns the arguments without secrets.
func (d *directive) shown() []string {
	if strings.HasSuffix(d.name, "user") && len(d.args) > 1 {
		return []string{d.args[0], "…"}
	}
	return d.args
}

// tgtOptions holds the options that a target sets for all its LUNs, or a LUN for itself.
type tgtOptions struct {
	noCache, sync, direct, readOnly, removable bool // noCache and sync: a write is durable when it is answered
	blockSize, physicalShift                   int
	vendor, product, serial                    string
	deviceType, storeType                      string // empty: disk, and rdwr
	lun                                        int    // 0: not said, for LUN 0 is tgt's controller
}

// tgtAccess are the directives of a target that say who may log in.
var tgtAccess = []string{"incominguser", "initiator-name", "initiator-address"}

func (m *model) tgtTarget(d *directive) {
	t := target{iqn: d.args[0]}
	where := fmt.Sprintf("target %s", t.iqn)
	var options tgtOptions
	byAddress, unknown := false, "" // what may say who may log in, and is not understood
	var chaps []credentials
	var stores []*directive
	for i := range d.children {
		c := &d.children[i]
		switch {
		case (c.name == "backing-store" || c.name == "direct-store") && len(c.args) > 0:
			stores = append(stores, c)
		case c.name == "incominguser" && len(c.args) == 2:
			chaps = append(chaps, credentials{c.args[0], c.args[1]})
		case c.name == "outgoinguser" && len(c.args) == 2:
			t.auth.mutual = credentials{c.args[0], c.args[1]}
		case c.name == "initiator-name" && len(c.args) == 1:
			switch name := c.args[0]; {
			case strings.EqualFold(name, "ALL"):
			case m.isPlain(c.at, name):
				t.initiators = append(t.initiators, initiator{name: name})
			default:
				unknown = cmp.Or(unknown, c.at+": initiator-name "+name)
			}
		case c.name == "initiator-address" && len(c.args) == 1:
			byAddress = byAddress || !strings.EqualFold(c.args[0], "ALL")
		case c.name == unread:
			unknown = cmp.Or(unknown, c.at+": the file "+c.value())
		case slices.Contains(tgtAccess, c.name):
			unknown = cmp.Or(unknown, c.at+": "+strings.Join(append([]string{c.name}, c.shown()...), " "))
		case c.name == "driver" && slices.Equal(c.args, []string{"iscsi"}), c.name == "controller_tid":
		case m.tgtOption(c, &options):
		default:
			m.leftOut(c)
		}
	}
	if unknown != "" {
		m.remark("%s: it is not known who may log in (%s): left out", where, unknown)
		return
	}
	if byAddress && len(t.initiators) == 0 {
		m.remark("%s is for initiators at certain addresses, which has no counterpart: left out; write it with the names of its initiators", where)
		return
	}
	if byAddress {
		m.remark("%s: the addresses of initiators are not looked at, only their names", where)
	}
	m.tgtStores(&t, stores, options)
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

// Lengths of INQUIRY fields (SPC-4 §6.6.2) in bytes. tgt, too, cuts off longer values.
const (
	vendorLen  = 8
	productLen = 16
	serialLen  = 32
)

// tgtOption reads an option of LUNs. False: the directive is no such option.
func (m *model) tgtOption(d *directive, t *tgtOptions) bool {
	if len(d.args) == 0 || d.section {
		return false
	}
	value := d.value()
	number := func(n *int) bool {
		v, err := strconv.Atoi(value)
		if err == nil {
			*n = v
		}
		return err == nil
	}
	switch d.name {
	case "write-cache":
		t.noCache = strings.EqualFold(value, "off")
	case "bsoflags":
		t.direct, t.sync = strings.Contains(value, "direct"), strings.Contains(value, "sync")
	case "readonly":
		t.readOnly = isSet(value)
	case "removable":
		t.removable = isSet(value)
	case "vendor_id":
		t.vendor = value[:min(len(value), vendorLen)]
	case "product_id":
		t.product = value[:min(len(value), productLen)]
	case "scsi_sn":
		t.serial = value[:min(len(value), serialLen)]
	case "device-type":
		t.deviceType = value
	case "bs-type":
		t.storeType = value
	case "block-size":
		return number(&t.blockSize)
	case "lbppbe":
		return number(&t.physicalShift)
	case "lun":
		return number(&t.lun)
	default:
		return false
	}
	return true
}

// tgtStores adds the stores of a target and their LUNs. A LUN without a number gets the lowest one that is free,
// backing-store before direct-store.
func (m *model) tgtStores(t *target, stores []*directive, defaults tgtOptions) {
	slices.SortStableFunc(stores, func(a, b *directive) int { return cmp.Compare(a.name, b.name) })
	options := make([]tgtOptions, len(stores))
	taken := make(map[int]bool)
	for i, d := range stores {
		o := defaults
		for j := range d.children {
			if c := &d.children[j]; c.name != unread && !m.tgtOption(c, &o) {
				m.leftOut(c)
			}
		}
		options[i], taken[o.lun] = o, true
	}
	next := 1
	for i, d := range stores {
		o := &options[i]
		for o.lun == 0 {
			if !taken[next] {
				o.lun = next
			}
			next++
		}
		m.tgtStore(t, d, o)
	}
}

// tgtStore adds a store and its LUN.
func (m *model) tgtStore(t *target, d *directive, o *tgtOptions) {
	path := d.value()
	where := fmt.Sprintf("%s: LUN %d of target %s", d.at, o.lun, t.iqn)
	switch {
	case o.deviceType != "" && o.deviceType != "disk":
		m.remark("%s is of the device type %s, and all LUNs are disks here: left out", where, o.deviceType)
		return
	case !slices.Contains([]string{"", "rdwr", "aio"}, o.storeType):
		m.remark("%s, %s, has bs-type %s, which has no counterpart: left out", where, path, o.storeType)
		return
	}
	s := store{kind: string(m.kindOf(path)), path: path, through: o.noCache || o.sync, direct: o.direct}
	l := lun{
		number: o.lun, readOnly: o.readOnly, removable: o.removable,
		vendor: o.vendor, product: o.product, serial: o.serial,
	}
	if o.blockSize != 512 {
		l.blockSize = o.blockSize
	}
	if o.physicalShift > 0 && o.physicalShift < 8 {
		l.physical = cmp.Or(o.blockSize, 512) << o.physicalShift
	}
	if d.name == "direct-store" {
		m.remark("%s: %s is not passed through: it is served as a disk of oneshot", d.at, path)
	}
	if at := slices.IndexFunc(m.stores, func(o store) bool { return o.path == s.path }); at >= 0 {
		s.name = m.stores[at].name // shown twice
		m.stores[at].through = m.stores[at].through || s.through
	} else {
		s.name = m.storeName(strings.TrimSuffix(filepath.Base(s.path), filepath.Ext(s.path)))
		m.stores = append(m.stores, s)
	}
	l.store = s.name
	t.luns = append(t.luns, l)
}
