package config

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"oneshot/nvme"
)

// Subsystem is an NVM subsystem: what hosts of NVMe over Fabrics connect to.
type Subsystem struct {
	NQN        string      // unique
	Pos        Position    // of the NQN
	Node       string      // of the cluster, that serves it; empty: there is no cluster
	Serial     string      // printable ASCII of at most 20 bytes; empty: the daemon's own choice, which depends on the NQN only
	Namespaces []Namespace // by number; may be empty
	// CNTLIDs are the first and the last identifier of its controllers; zero: all that there are. Daemons that show one subsystem need
	// different ones. Those of a mirror get theirs from On.
	CNTLIDs [2]uint16

	// Hosts are rules for the hosts that may connect: the first that matches counts. Empty: all may.
	Hosts []Host
	Auth  *HostAuth // of hosts whose rule has none; nil: they need not prove anything
}

// Namespace is a namespace of a subsystem.
//
// Its identity must stay the same over restarts, so it is derived from Subsystem.NQN and Store, unless UUID is set.
type Namespace struct {
	NSID      uint32   // 1 to 1024, unique within the subsystem
	Store     string   // name of an existing store, which is not divided; once in a subsystem
	Pos       Position // of the number
	ReadOnly  bool
	BlockSize int      // bytes: 512, 1024, 2048 or 4096; divides the store's size
	UUID      [16]byte // zero: the daemon's own choice
}

// HostPattern stands for the NQNs that match it. An asterisk matches any characters, or none. The pattern has to match
// the whole name. Upper and lower case differ, as in NQNs.
type HostPattern string

// Match reports whether the NQN matches.
func (p HostPattern) Match(nqn string) bool { return glob(string(p), nqn) }

// maxNSID is the largest number of a namespace.
const maxNSID = 1024

func (d *decoder) subsystems(root *object, stores []Store) []Subsystem {
	var list []Subsystem
	for _, item := range root.take("subsystems").list("subsystems") {
		if s, ok := d.subsystem(item, stores); ok {
			list = append(list, s)
		}
	}
	return list
}

func (d *decoder) subsystem(v value, stores []Store) (Subsystem, bool) {
	o := d.object(v.node, "a subsystem")
	if o == nil {
		return Subsystem{}, false
	}
	s := Subsystem{Pos: o.pos}
	if name := o.take("nqn"); name.given() {
		s.Pos = name.pos()
		set(name, &s.NQN, "an NQN", parseNQN)
	} else if !o.has("nqn") {
		d.errorf(o.pos, "the subsystem has no name: add one, such as nqn: nqn.2026-11.com.example:disk")
	}
	set(o.take("serial"), &s.Serial, "a text", printableASCII(20))
	set(o.take("cntlids"), &s.CNTLIDs, "a range such as 1-1000", parseCNTLIDs)
	s.Namespaces = d.namespaces(o, stores)
	d.inNode(o, &s.Node)
	s.Auth = d.hostAuth(o.take("auth"))
	s.Hosts = d.hosts(o.take("hosts"))
	o.done()
	return s, true
}

func parseNQN(text string) (string, error) {
	if text == nvme.DiscoveryNQN {
		return "", fmt.Errorf("%q is the name of every discovery service: choose another", text)
	}
	if err := nvme.CheckNQN(text); err != nil {
		return "", fmt.Errorf("%q is not an NQN: %w", text, err)
	}
	return text, nil
}

func parseCNTLIDs(text string) (ids [2]uint16, err error) {
	first, last, _ := strings.Cut(text, "-")
	for i, s := range []string{first, last} {
		n, err := strconv.ParseUint(s, 10, 16)
		if err != nil || n < 1 || n > nvme.LastCNTLID {
			return ids, fmt.Errorf("%q is not a range of identifiers: write two numbers from 1 to %d, such as 1-1000", text, nvme.LastCNTLID)
		}
		ids[i] = uint16(n)
	}
	if ids[0] > ids[1] {
		return ids, fmt.Errorf("the range %s is empty: write the smaller number first", text)
	}
	return ids, nil
}

// parseHost checks that a pattern can match an NQN.
func parseHost(text string) (HostPattern, error) {
	before, _, wild := strings.Cut(text, "*")
	if !wild {
		name, err := parseNQN(text)
		return HostPattern(name), err
	}
	const prefix = "nqn."
	switch {
	case len(text) > nvme.MaxNQN:
		return "", fmt.Errorf("the pattern has %d bytes: names have at most %d", len(text), nvme.MaxNQN)
	case !strings.HasPrefix(prefix, before) && !strings.HasPrefix(before, prefix), strings.ContainsAny(text, " \t\n"):
		return "", fmt.Errorf("%q matches no host: a name begins with nqn., as in \"nqn.2014-08.org.nvmexpress:uuid:*\"", text)
	}
	return HostPattern(text), nil
}

func (d *decoder) namespaces(sub *object, stores []Store) []Namespace {
	v := sub.take("namespaces")
	if !v.given() {
		if !sub.has("namespaces") {
			d.warnf(sub.pos, "the subsystem has no namespaces, so hosts will see no disk: add namespaces: {1: STORE}")
		}
		return nil
	}
	o := d.object(v.node, "namespaces")
	if o == nil {
		return nil
	}
	var list []Namespace
	for _, f := range o.fields {
		n, ok := d.namespace(o.take(f.key), stores)
		if !ok {
			continue
		}
		if i := slices.IndexFunc(list, func(m Namespace) bool { return m.NSID == n.NSID }); i >= 0 {
			d.errorf(n.Pos, "namespace %d is already defined in line %d: choose another number", n.NSID, list[i].Pos.Line)
			continue
		}
		if i := slices.IndexFunc(list, func(m Namespace) bool { return m.Store == n.Store }); i >= 0 {
			d.errorf(n.Pos, "line %d shows the store %q already: hosts would take the two for paths to one disk; show it in another subsystem", list[i].Pos.Line, n.Store)
			continue
		}
		list = append(list, n)
	}
	slices.SortFunc(list, func(a, b Namespace) int { return cmp.Compare(a.NSID, b.NSID) })
	return list
}

// namespace reads "1: scratch" or "2: {store: disk1, …}".
func (d *decoder) namespace(v value, stores []Store) (Namespace, bool) {
	n := Namespace{Pos: v.at, BlockSize: minBlockBytes}
	number, err := strconv.ParseUint(v.key, 10, 64)
	if err != nil || number < 1 || number > maxNSID {
		d.errorf(v.at, "%q is not a namespace: write a number from 1 to %d", v.key, maxNSID)
		return n, false
	}
	n.NSID = uint32(number)
	if !v.given() {
		return n, false
	}
	if _, short := scalarText(v.node); short {
		return n, d.namespaceStore(v, stores, &n)
	}
	o := d.object(v.node, "a namespace")
	if o == nil {
		return n, false
	}
	if !o.has("store") {
		d.errorf(v.at, "namespace %d shows no store: add store: NAME", n.NSID)
	}
	set(o.take("block_size"), &n.BlockSize, "a block size", parseBlockSize)
	ok := d.namespaceStore(o.take("store"), stores, &n)
	readOnly, storeReadOnly := o.take("readonly"), n.ReadOnly
	if set(readOnly, &n.ReadOnly, "true or false", parseBool) && storeReadOnly && !n.ReadOnly {
		readOnly.errorf("the store %q is read-only, so this namespace cannot be writable: remove one of the two", n.Store)
	}
	set(o.take("uuid"), &n.UUID, "a UUID", parseUUID)
	o.done()
	return n, ok
}

// namespaceStore looks up the store that v names and checks the namespace against it.
func (d *decoder) namespaceStore(v value, stores []Store, n *Namespace) bool {
	if !set(v, &n.Store, "the name of a store", func(s string) (string, error) { return s, nil }) {
		return false
	}
	i := slices.IndexFunc(stores, func(s Store) bool { return s.Name == n.Store })
	if i < 0 {
		v.errorf("there is no store %q: %s", n.Store, suggestStore(n.Store, stores))
		return false
	}
	s := &stores[i]
	n.ReadOnly = s.ReadOnly
	if s.Partitioned {
		v.errorf("the store %q is divided, and a namespace shows a whole store: name another", n.Store)
		return false
	}
	if over := s.Size % int64(n.BlockSize); over != 0 {
		v.errorf("the size of %q, %d bytes, is not a multiple of the block size, %d: make it %d", s.Name, s.Size, n.BlockSize, s.Size-over+int64(n.BlockSize))
	}
	return true
}

func parseUUID(text string) (id [16]byte, err error) {
	b, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	if err != nil || len(b) != len(id) || len(text) != 36 || [16]byte(b) == id {
		return id, fmt.Errorf("%q is not a UUID: write one as uuidgen prints it", text)
	}
	return [16]byte(b), nil
}

// checkSubsystems checks what concerns several subsystems, and the portals.
func (d *decoder) checkSubsystems(c *Config) {
	first := make(map[string]Position)
	uuids := make(map[[16]byte]Position)
	for i := range c.Subsystems {
		s := &c.Subsystems[i]
		if before, ok := first[s.NQN]; ok && s.NQN != "" {
			d.errorf(s.Pos, "the subsystem %s is already defined in line %d: give one of them another name", s.NQN, before.Line)
		}
		first[s.NQN] = s.Pos
		for _, n := range s.Namespaces {
			if before, ok := uuids[n.UUID]; ok && n.UUID != [16]byte{} {
				d.errorf(n.Pos, "the UUID already belongs to the namespace in line %d: choose another, for hosts refuse the second", before.Line)
			}
			uuids[n.UUID] = n.Pos
		}
	}
	if d.portalBroken {
		return
	}
	portal := slices.IndexFunc(c.Portals, func(p Portal) bool { return p.Transport.NVMe() })
	switch {
	case portal < 0 && len(c.Subsystems) > 0:
		d.errorf(c.Subsystems[0].Pos, "no portal is one of NVMe, so nobody reaches the subsystem: add {transport: nvme-tcp, listen: \"127.0.0.1:4420\"} to portals")
	case portal >= 0 && len(c.Subsystems) == 0:
		d.warnf(c.Portals[portal].Pos, "there is no subsystem, so hosts find nothing here: add one under subsystems, or remove the portal")
	}
}

// nvmePortal finishes a portal of NVMe over Fabrics.
func (d *decoder) nvmePortal(o *object, p *Portal) bool {
	ok := true
	if o.has("serve") {
		o.take("serve").errorf("serve is for portals of iSCSI and of partitions, and this one serves the namespaces of all subsystems: remove it")
		ok = false
	}
	if _, err := netip.ParseAddrPort(p.Advertise); p.Advertise != "" && err != nil {
		o.take("advertise").errorf("hosts of NVMe are told IP addresses, and %s is a name: write its address", p.Advertise)
		ok = false
	}
	p.Serve = ServeNamespaces
	return ok
}
