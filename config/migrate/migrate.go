// Package migrate turns the configurations of other targets into ours: saveconfig.json of
// targetcli (LIO), config.json of nvmetcli (Linux's target of NVMe), and targets.conf of tgt.
//
// What has no counterpart becomes a remark. A rule of access without a counterpart is left out, in most
// cases with the initiators that it admits; where the result admits more than before, the remark says so.
package migrate

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"oneshot/config"
)

// Result is a configuration, with remarks on what was not taken over.
type Result struct {
	YAML    []byte
	Remarks []string // one line each
}

// stateDir is the state directory of the Debian package.
const stateDir = "/var/lib/oneshot/state"

// maxBytes is the largest file that Import reads.
const maxBytes = 16 << 20

// Read reads the file that is to be imported, or what a shell has put in the place of one. Of one that is too large it reads no more than
// Import needs to refuse it.
func Read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxBytes+1))
}

// Import converts data, whose format it recognizes. name is the path of the file. files gives access to included
// files, and to the paths of stores, which may be files or devices; nil: there are none. The result may lack
// something that only the administrator knows; config.Parse says what. Import returns an error if data has none of
// the formats.
func Import(name string, data []byte, files Files) (*Result, error) {
	if len(data) > maxBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes: this is probably not the file that you meant", name, maxBytes)
	}
	if files == nil {
		files = noFiles{}
	}
	m := model{name: name, files: files}
	var err error
	if trimmed := bytes.TrimLeft(data, " \t\r\n\ufeff"); len(trimmed) > 0 && trimmed[0] == '{' {
		if isNVMET(data) {
			err = m.readNVMET(data)
		} else {
			err = m.readLIO(data)
		}
	} else {
		err = m.readTGT(string(data))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &Result{YAML: m.yaml(name), Remarks: m.remarks}, nil
}

// model is the configuration that Import builds.
type model struct {
	name  string // of the file
	files Files

	stores     []store
	targets    []target
	subsystems []subsystem
	portals    []portal
	discovery  auth
	referrals  []string // addresses of discovery services of NVMe
	apart      bool     // each portal is a group, whatever targets say
	isns       string   // the server; empty: none
	remarks    []string
}

type store struct {
	name, kind, path string
	size             int64 // bytes; 0: unknown
	through          bool  // cache: writethrough
	direct           bool
	readOnly         bool
}

type target struct {
	iqn        string
	luns       []lun
	auth       auth
	initiators []initiator // none: all
	portals    []portal    // of the target; none: all
}

// initiator is a rule for one initiator.
type initiator struct {
	name string
	auth auth        // empty: that of the target
	luns map[int]int // from the numbers that it sees to those of the target; nil: the same
}

type lun struct {
	number                  int
	store                   string
	blockSize               int // 0: the default
	physical                int // block size; 0: what the store says
	readOnly, removable     bool
	vendor, product, serial string
}

// credentials are one side of CHAP; empty: no CHAP.
type credentials struct{ user, secret string }

type auth struct{ chap, mutual credentials }

type portal struct {
	address   string
	transport string // empty: TCP
}

func (m *model) remark(format string, args ...any) {
	m.remarks = append(m.remarks, fmt.Sprintf(format, args...))
}

// isPlain reports whether a name stands for one initiator or host in the result, too.
func (m *model) isPlain(where, name string) bool {
	plain := !strings.Contains(name, "*")
	if !plain {
		m.remark("%s: the asterisk of %q stands for itself, and would let in whoever has a name like it: left out", where, name)
	}
	return plain
}

// storeName returns a name for a store: want, or a similar name that is free.
func (m *model) storeName(want string) string {
	name := strings.Map(func(r rune) rune {
		if r < 128 && (r == '-' || r == '_' || r == '.' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z') {
			return r
		}
		return '-'
	}, want)
	name = cmp.Or(strings.Trim(name[:min(len(name), 48)], "-."), "store")
	if strings.EqualFold(name, "null") { // which YAML takes for nothing
		name += "-disk"
	}
	taken := func(n string) bool { return slices.ContainsFunc(m.stores, func(s store) bool { return s.name == n }) }
	unique := name
	for i := 2; taken(unique); i++ {
		unique = fmt.Sprintf("%s-%d", name, i)
	}
	return unique
}

// addPortal adds a portal, and keeps none that another portal covers.
func (m *model) addPortal(p portal) {
	if slices.ContainsFunc(m.portals, func(q portal) bool { return q.covers(p) }) {
		return
	}
	m.portals = append(slices.DeleteFunc(m.portals, p.covers), p)
}

// covers reports whether p listens at the address of q, too.
func (p portal) covers(q portal) bool {
	a, err1 := netip.ParseAddrPort(p.address)
	b, err2 := netip.ParseAddrPort(q.address)
	if p == q || p.transport != q.transport || err1 != nil || err2 != nil {
		return p == q
	}
	return a.Port() == b.Port() && a.Addr().IsUnspecified() && a.Addr().Is4() == b.Addr().Is4()
}

// groups returns the portal groups of a target, or nil if every target has all portals. The groups
// have the numbers of the portals.
func (m *model) groups(t *target) []int {
	if !m.grouped() {
		return nil
	}
	var groups []int
	for i, p := range m.portals {
		if slices.ContainsFunc(t.portals, p.covers) {
			groups = append(groups, i+1)
		}
	}
	return groups
}

func (m *model) grouped() bool {
	return m.apart || slices.ContainsFunc(m.targets, func(t target) bool {
		return len(t.portals) > 0 && slices.ContainsFunc(m.portals, func(p portal) bool { return !slices.ContainsFunc(t.portals, p.covers) })
	})
}

// checkSecrets remarks secrets that config.Parse will refuse.
func (m *model) checkSecrets(where string, a auth) {
	for _, c := range []credentials{a.chap, a.mutual} {
		if c.user != "" && len(c.secret) < 12 {
			m.remark("%s: the secret of %q has %d characters: choose one of at least 12, here and at the initiator (RFC 7143 §9.2.1)", where, c.user, len(c.secret))
		}
	}
	if a.chap.user != "" && a.chap.secret == a.mutual.secret {
		m.remark("%s: both sides of CHAP have the same secret: choose two (RFC 7143 §9.2.1)", where)
	}
}

// yaml returns the text of the configuration, with the remarks at the top.
func (m *model) yaml(name string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Imported from %s.\n", oneLine(name))
	for _, r := range m.remarks {
		fmt.Fprintf(&b, "# NOTE %s\n", oneLine(r))
	}
	if len(m.stores) > 0 {
		b.WriteString("\nstores:\n")
	}
	for _, s := range m.stores {
		fmt.Fprintf(&b, "  %s: %s\n", s.name, s.yaml())
	}
	if len(m.targets) > 0 {
		b.WriteString("\ntargets:\n")
	}
	for _, t := range m.targets {
		t.yaml(&b, m.groups(&t))
	}
	if len(m.subsystems) > 0 {
		b.WriteString("\nsubsystems:\n")
	}
	for _, s := range m.subsystems {
		s.yaml(&b)
	}
	if len(m.portals) > 0 {
		b.WriteString("\nportals:\n")
	}
	for i, p := range m.portals {
		w := fields{"transport: " + cmp.Or(p.transport, string(config.TransportTCP)), "listen: " + quote(p.address)}
		if m.grouped() {
			w.add("group", fmt.Sprint(i+1))
		}
		fmt.Fprintf(&b, "  - %s\n", w)
	}
	var found fields
	if a := m.discovery.yaml(); a != "" {
		found.add("auth", a)
	}
	if len(m.referrals) > 0 {
		quoted := make([]string, len(m.referrals))
		for i, r := range m.referrals {
			quoted[i] = quote(r)
		}
		found.add("referrals", "["+strings.Join(quoted, ", ")+"]")
	}
	if len(found) > 0 {
		fmt.Fprintf(&b, "\ndiscovery: %s\n", found)
	}
	if m.isns != "" {
		fmt.Fprintf(&b, "\nisns: {server: %s}\n", quote(m.isns))
	}
	fmt.Fprintf(&b, "\nstate: %s\nmanagement: {socket: %s}\n", stateDir, config.DefaultSocket)
	return b.Bytes()
}

func (s store) yaml() string {
	w := fields{}
	w.add("type", s.kind)
	if s.path != "" {
		w.add("path", quote(s.path))
	}
	if s.size > 0 {
		w.add("size", config.FormatSize(s.size))
	}
	if s.kind == string(config.StoreFile) && !s.readOnly {
		w.add("create", "false") // the file exists, or else the path is wrong
	}
	if s.through && s.path != "" {
		w.add("cache", string(config.CacheWritethrough))
	}
	if s.direct && s.kind == string(config.StoreFile) {
		w.add("direct", "true")
	}
	if s.readOnly {
		w.add("readonly", "true")
	}
	return w.String()
}

func (t target) yaml(b *bytes.Buffer, groups []int) {
	fmt.Fprintf(b, "  - iqn: %s\n", quote(t.iqn))
	if groups != nil {
		fmt.Fprintf(b, "    portal_groups: %s\n", strings.ReplaceAll(fmt.Sprint(groups), " ", ", "))
	}
	if len(t.luns) > 0 {
		b.WriteString("    luns:\n")
	}
	for _, l := range t.luns {
		w := fields{}
		w.add("store", l.store)
		if l.blockSize != 0 {
			w.add("block_size", fmt.Sprint(l.blockSize))
		}
		if l.physical != 0 {
			w.add("physical_block_size", fmt.Sprint(l.physical))
		}
		if l.readOnly {
			w.add("readonly", "true")
		}
		if l.removable {
			w.add("removable", "true")
		}
		for _, f := range [][2]string{{"vendor", l.vendor}, {"product", l.product}, {"serial", l.serial}} {
			if f[1] != "" {
				w.add(f[0], quote(f[1]))
			}
		}
		fmt.Fprintf(b, "      %d: %s\n", l.number, w)
	}
	if a := t.auth.yaml(); a != "" {
		fmt.Fprintf(b, "    auth: %s\n", a)
	}
	if len(t.initiators) > 0 {
		b.WriteString("    initiators:\n")
	}
	for _, i := range t.initiators {
		fmt.Fprintf(b, "      - %s\n", i.yaml())
	}
}

func (i initiator) yaml() string {
	w := fields{}
	w.add("name", quote(i.name))
	if a := i.auth.yaml(); a != "" {
		w.add("auth", a)
	}
	if i.luns != nil {
		luns := fields{}
		for _, n := range slices.Sorted(maps.Keys(i.luns)) {
			luns.add(fmt.Sprint(n), fmt.Sprint(i.luns[n]))
		}
		w.add("luns", luns.String())
	}
	if len(w) == 1 {
		return quote(i.name)
	}
	return w.String()
}

func (a auth) yaml() string {
	if a.chap.user == "" {
		return ""
	}
	w := fields{}
	w.add("chap", a.chap.yaml())
	if a.mutual.user != "" {
		w.add("mutual", a.mutual.yaml())
	}
	return w.String()
}

func (c credentials) yaml() string {
	return fmt.Sprintf("{user: %s, secret: %s}", quote(c.user), quote(c.secret))
}

// fields are the entries of a mapping in braces.
type fields []string

func (f *fields) add(key, value string) { *f = append(*f, key+": "+value) }
func (f fields) String() string         { return "{" + strings.Join(f, ", ") + "}" }

// quote writes text as a double-quoted scalar of YAML.
func quote(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range strings.ToValidUTF8(text, "\ufffd") {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfeff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// oneLine makes text fit a comment.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfeff {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}
