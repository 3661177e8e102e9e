package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml/ast"
)

// Target is one iSCSI target node.
type Target struct {
	Name  string   // iSCSI name, normalised: see ParseName; unique
	Alias string   // TargetAlias, may be empty; at most 255 bytes
	Pos   Position // of the name
	Node  string   // of the cluster, that serves it; empty: there is no cluster
	LUNs  []LUN    // by number; may be empty

	Auth Auth

	// Initiators holds the rules for initiators. An initiator may log in if a
	// rule matches its name, or if there are no rules: see Admits.
	Initiators []Initiator

	// Groups holds the tags of the portal groups through which initiators reach the target; nil: all.
	Groups []uint16
	// Redirect is the address to which initiators that log in are sent; nil: the target is here.
	Redirect *Redirect
}

// Initiator is a rule for the initiators that match its pattern.
type Initiator struct {
	Name NamePattern
	Pos  Position
	Auth *Auth      // nil: that of the target
	LUNs []ShownLUN // nil: all of the target's, as they are; sorted by Number
}

// ShownLUN is a LUN of the target as some initiators see it.
type ShownLUN struct {
	Number uint16 // that these initiators see
	LUN    uint16 // of the target
}

// Redirect sends initiators elsewhere.
type Redirect struct {
	Address   string // host:port
	Permanent bool   // initiators are told to remember it
}

// Admits reports whether the access list lets the initiator of that name in.
func (t *Target) Admits(initiator string) bool {
	return len(t.Initiators) == 0 || t.Rule(initiator) != nil
}

// Rule returns the first rule that matches the initiator of that name, or nil.
func (t *Target) Rule(initiator string) *Initiator {
	for i := range t.Initiators {
		if t.Initiators[i].Name.Match(initiator) {
			return &t.Initiators[i]
		}
	}
	return nil
}

// maxLUN is the highest number that fits the flat addressing of SAM-5 §4.7.7.4.
const maxLUN = 1<<14 - 1

// LUN is one logical unit of a target.
//
// Its identity must stay the same over restarts, so it is derived from Target.Name
// and Store, or from Serial if that is set. Two LUNs have the same Serial only if
// they export the same store: initiators take them for two paths to one disk.
type LUN struct {
	Number    uint16   // 0 to 16383, unique within the target
	Store     string   // name of an existing store
	Partition string   // of that store; empty: the LUN shows the whole, which is not divided
	Pos       Position // of the number
	ReadOnly  bool
	BlockSize int // logical block, bytes: 512, 1024, 2048 or 4096; divides the store's size
	// PhysicalBlockSize is the size in bytes to which initiators should align: a power of two from
	// BlockSize to 64 KiB; 0: the one that the store says.
	PhysicalBlockSize int
	Removable         bool
	ALUA              ALUA // by whom access states may be changed

	// What INQUIRY reports; empty means the daemon's own choice. Printable ASCII
	// of at most 8, 16 and 32 bytes.
	Vendor, Product, Serial string
}

// ALUA says who may change the access states of target port groups.
type ALUA string

// Values of ALUA.
const (
	ALUANone     ALUA = "none"
	ALUAImplicit ALUA = "implicit" // by the administrator
	ALUAExplicit ALUA = "explicit" // by initiators
	ALUABoth     ALUA = "both"
)

// minBlockBytes is the smallest block size, and the default.
const minBlockBytes = 512

var blockSizes = []int{512, 1024, 2048, 4096}

// Auth says which side has to prove its identity at login. Without CHAP neither side has to.
type Auth struct {
	CHAP   *Credentials // of the initiator; nil: it need not prove anything
	Mutual *Credentials // of the target; nil unless CHAP is set
}

// Credentials are the user and secret of one side of CHAP.
type Credentials struct {
	User   string // CHAP_N, 1 to 255 bytes
	Secret Secret // at least 12 bytes; differs between the two sides of an Auth
}

func (d *decoder) targets(root *object, stores []Store) []Target {
	v := root.take("targets")
	items := v.list("targets")
	subsystems := root.take("subsystems")
	if (!root.has("targets") || isEmptyList(v)) && (!root.has("subsystems") || isEmptyList(subsystems)) {
		at := v.at
		d.noTarget = &at
	}
	var targets []Target
	for _, item := range items {
		if t, ok := d.target(item, stores); ok {
			targets = append(targets, t)
		}
	}
	return targets
}

func (d *decoder) target(v value, stores []Store) (Target, bool) {
	o := d.object(v.node, "a target")
	if o == nil {
		return Target{}, false
	}
	t := Target{Pos: o.pos}
	if name := o.take("iqn"); name.given() {
		t.Pos = name.pos()
		set(name, &t.Name, "an iSCSI name", ParseName)
	} else if !o.has("iqn") {
		d.errorf(o.pos, "the target has no name: add one, such as iqn: iqn.2026-11.com.example:disk")
	}
	set(o.take("alias"), &t.Alias, "a text", parseAlias)
	d.inNode(o, &t.Node)
	t.LUNs = d.luns(o, stores)
	d.auth(o.take("auth"), &t.Auth)
	t.Initiators = d.initiators(o.take("initiators"), t.LUNs)
	t.Groups = d.groups(o.take("portal_groups"))
	t.Redirect = d.redirect(o.take("redirect"))
	o.done()
	return t, true
}

// parseAlias checks a TargetAlias, RFC 7143 §13.4 and §6.1.
func parseAlias(text string) (string, error) {
	if len(text) > 255 {
		return "", fmt.Errorf("the alias has %d bytes: an iSCSI text value has at most 255 (RFC 7143 §6.1)", len(text))
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		return "", fmt.Errorf("%q holds a control character: remove it", text)
	}
	return text, nil
}

func (d *decoder) luns(target *object, stores []Store) []LUN {
	v := target.take("luns")
	if !v.given() {
		if !target.has("luns") && !target.has("redirect") {
			d.warnf(target.pos, "the target has no LUNs, so initiators will see no disk: add luns: {0: STORE}")
		}
		return nil
	}
	o := d.object(v.node, "luns")
	if o == nil {
		return nil
	}
	var luns []LUN
	line := make(map[uint16]int) // where a number is defined
	for _, f := range o.fields {
		lun, ok := d.lun(o.take(f.key), stores)
		if !ok {
			continue
		}
		if first := line[lun.Number]; first > 0 {
			d.errorf(lun.Pos, "LUN %d is already defined in line %d: choose another number", lun.Number, first)
			continue
		}
		line[lun.Number] = lun.Pos.Line
		luns = append(luns, lun)
	}
	slices.SortFunc(luns, func(a, b LUN) int { return cmp.Compare(a.Number, b.Number) })
	return luns
}

// lun reads "0: scratch" or "1: {store: disk1, …}".
func (d *decoder) lun(v value, stores []Store) (LUN, bool) {
	lun := LUN{Pos: v.at, BlockSize: minBlockBytes, ALUA: ALUAImplicit}
	number, err := strconv.ParseUint(v.key, 10, 64)
	if err != nil || number > maxLUN {
		d.errorf(v.at, "%q is not a LUN: write a number from 0 to %d", v.key, maxLUN)
		return lun, false
	}
	lun.Number = uint16(number)
	if !v.given() {
		return lun, false
	}
	if _, short := scalarText(v.node); short {
		return lun, d.lunStore(v, stores, &lun)
	}
	o := d.object(v.node, "a LUN")
	if o == nil {
		return lun, false
	}
	if !o.has("store") {
		d.errorf(v.at, "LUN %d exports no store: add store: NAME", lun.Number)
	}
	set(o.take("block_size"), &lun.BlockSize, "a block size", parseBlockSize)
	d.lunPhysical(o.take("physical_block_size"), &lun)
	ok := d.lunStore(o.take("store"), stores, &lun)
	d.lunReadOnly(o, &lun)
	o.bool("removable", &lun.Removable)
	set(o.take("alua"), &lun.ALUA, "a word", oneOf(ALUANone, ALUAImplicit, ALUAExplicit, ALUABoth))
	set(o.take("vendor"), &lun.Vendor, "a text", printableASCII(8))
	set(o.take("product"), &lun.Product, "a text", printableASCII(16))
	set(o.take("serial"), &lun.Serial, "a text", printableASCII(32))
	o.done()
	return lun, ok
}

// lunReadOnly reads the readonly key of the LUN. A LUN of a read-only store cannot be writable.
func (d *decoder) lunReadOnly(o *object, lun *LUN) {
	v, storeReadOnly := o.take("readonly"), lun.ReadOnly
	if set(v, &lun.ReadOnly, "true or false", parseBool) && storeReadOnly && !lun.ReadOnly {
		v.errorf("the store %q is read-only, so this LUN cannot be writable: remove one of the two", lun.Store)
	}
}

func parseBlockSize(text string) (int, error) {
	n, err := ParseSize(text)
	if err != nil {
		return 0, err
	}
	if !slices.Contains(blockSizes, int(n)) {
		return 0, fmt.Errorf("%d is not a block size: write %s", n, joinInts(blockSizes, ", "))
	}
	return int(n), nil
}

// maxPhysicalBytes is the largest physical block that a LUN may report.
const maxPhysicalBytes = 64 << 10

// lunPhysical reads physical_block_size. It comes after block_size, which bounds it from below.
func (d *decoder) lunPhysical(v value, lun *LUN) {
	set(v, &lun.PhysicalBlockSize, "a block size", func(text string) (int, error) {
		n, err := ParseSize(text)
		if err != nil {
			return 0, err
		}
		if n < int64(lun.BlockSize) || n > maxPhysicalBytes || n&(n-1) != 0 {
			return 0, fmt.Errorf("%d is not the size of a physical block: write a power of two from the block size, %d, to %d",
				n, lun.BlockSize, maxPhysicalBytes)
		}
		return int(n), nil
	})
}

// lunStore looks up the store that v names and checks the LUN against it.
func (d *decoder) lunStore(v value, stores []Store, lun *LUN) bool {
	if !set(v, &lun.Store, "the name of a store", func(s string) (string, error) { return s, nil }) {
		return false
	}
	lun.Store, lun.Partition = cutPartition(lun.Store)
	s := d.storeAt[lun.Store]
	if s == nil {
		v.errorf("there is no store %q: %s", lun.Store, suggestStore(lun.Store, stores))
		return false
	}
	lun.ReadOnly = s.ReadOnly
	if !d.lunPartition(v, s, lun) {
		return false
	}
	if lun.Partition != "" {
		return true // the size of a partition is a multiple of every block size
	}
	if over := s.Size % int64(lun.BlockSize); over != 0 {
		v.errorf("the size of %q, %d bytes, is not a multiple of the block size, %d: make it %d", s.Name, s.Size, lun.BlockSize, s.Size-over+int64(lun.BlockSize))
	}
	return true
}

func suggestStore(name string, stores []Store) string {
	if len(stores) == 0 {
		return "define it under stores"
	}
	names := make([]string, len(stores))
	for i, s := range stores {
		names[i] = s.Name
	}
	return choices(name, names)
}

func (d *decoder) auth(v value, a *Auth) {
	if !v.given() {
		return
	}
	o := d.object(v.node, "auth")
	if o == nil {
		return
	}
	chap, mutual := o.take("chap"), o.take("mutual")
	a.CHAP, a.Mutual = d.credentials(chap), d.credentials(mutual)
	o.done()
	switch {
	case o.has("mutual") && !o.has("chap"):
		d.errorf(mutual.at, "mutual CHAP needs chap as well: the initiator proves itself first (RFC 7143 §12.1.3); add chap: {user: …, secret: …}")
	case !o.has("mutual") && !o.has("chap"):
		d.warnf(v.at, "auth is empty, so every initiator may log in without CHAP: add chap: {user: …, secret: …}, or remove auth")
	case a.CHAP != nil && a.Mutual != nil && a.CHAP.Secret == a.Mutual.Secret:
		d.errorf(mutual.at, "chap and mutual have the same secret: choose two, for with one an attacker can answer our challenge with our own response (RFC 7143 §9.2.1)")
	}
}

// credentials reads the credentials of one side. It returns nil if v is not given or wrong.
func (d *decoder) credentials(v value) *Credentials {
	if !v.given() {
		return nil
	}
	o := d.object(v.node, v.key)
	if o == nil {
		return nil
	}
	var c Credentials
	user := set(o.take("user"), &c.User, "a name", parseUser)
	secret, ok := d.secret(o.take("secret"))
	c.Secret = secret
	o.done()
	for _, key := range []string{"user", "secret"} {
		if !o.has(key) {
			d.errorf(v.at, "%s has no %s: add one", v.key, key)
		}
	}
	if !user || !ok {
		return nil
	}
	return &c
}

func parseUser(text string) (string, error) {
	if text == "" || len(text) > 255 {
		return "", fmt.Errorf("the user has %d bytes: a CHAP name has 1 to 255 (RFC 7143 §6.1)", len(text))
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		return "", fmt.Errorf("%q holds a control character: remove it", text)
	}
	return text, nil
}

func isEmptyList(v value) bool {
	seq, ok := v.node.(*ast.SequenceNode)
	return ok && len(seq.Values) == 0
}
