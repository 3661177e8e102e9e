package config

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"oneshot/nvme"
)

var mirrorStore = storeType{
	name: StoreMirror, read: (*decoder).mirrorStore,
	details: func(s *Store) []string {
		words := []string{string(s.Mirror.Cache)}
		if s.Mirror.Reads != ReadsAuto {
			words = append(words, "reads "+string(s.Mirror.Reads))
		}
		if s.Mirror.MinCopies > 1 {
			words = append(words, fmt.Sprintf("writes with %d copies in sync or more", s.Mirror.MinCopies))
		}
		if s.Mirror.Resync != usualResync {
			words = append(words, "resync "+s.Mirror.Resync.String())
		}
		for i := range s.Mirror.Copies {
			c := &s.Mirror.Copies[i]
			words = append(words, fmt.Sprintf("copy on %s: %s", c.Node, c.path()))
		}
		return words
	},
}

// MirrorStore is a store that has a copy on each of several nodes of the cluster. One of them serves it at a time.
type MirrorStore struct {
	Copies []Copy // in the order of the file: a new mirror begins with the bytes of the first one
	Cache  CacheMode
	Reads  Reads
	// MinCopies is how many copies in sync it takes that something is written. With fewer, writes wait.
	MinCopies int
	Resync    Resync
}

// Resync is how fast copies are brought level, and compared, in bytes a second.
type Resync struct {
	Rate int64 // at most; 0: as fast as can be, while hosts are idle
	Min  int64 // at least, however much hosts do
}

// usualResync is what holds if nothing is said.
var usualResync = Resync{Min: 20 << 20}

// leastResync is the smallest Min, in bytes a second.
const leastResync = 64 << 10

// String says it for people.
func (r Resync) String() string {
	text := "as fast as can be"
	if r.Rate > 0 {
		text = "at up to " + FormatSize(r.Rate) + "/s"
	}
	if r.Rate == r.Min {
		return text
	}
	return text + ", and at " + FormatSize(r.Min) + "/s while hosts are busy"
}

// Reads is what a primary relies on when it answers a read: nobody else may be primary then.
type Reads string

const (
	// ReadsAuto leases where clocks are known to go on while the machine is stopped, and confirms elsewhere.
	ReadsAuto Reads = "auto"
	// ReadsLeased relies on clocks: others have promised to wait.
	ReadsLeased Reads = "leased"
	// ReadsConfirmed asks another node each time.
	ReadsConfirmed Reads = "confirmed"
)

// Copy is the copy of a mirror on one node.
type Copy struct {
	Node  string
	Store Store // a file or a device, named as the mirror
}

// path returns the path of the copy's file or device.
func (c *Copy) path() string {
	if c.Store.File != nil {
		return c.Store.File.Path
	}
	return c.Store.Device.Path
}

// Copy returns the copy on a node, or nil.
func (m *MirrorStore) Copy(node string) *Store {
	for i := range m.Copies {
		if m.Copies[i].Node == node {
			return &m.Copies[i].Store
		}
	}
	return nil
}

// ObstacleOn is Store.Obstacle of the copy on a node, which has one. Its file may be longer than the mirror is here, which has grown, or was to.
func (m *MirrorStore) ObstacleOn(node string) string {
	c := *m.Copy(node)
	if c.File != nil {
		if st, err := os.Stat(c.File.Path); err == nil {
			c.Size = max(c.Size, st.Size())
		}
	}
	return c.Obstacle()
}

// Nodes returns the names of the nodes with a copy, in the order of the file.
func (m *MirrorStore) Nodes() []string {
	names := make([]string, len(m.Copies))
	for i := range m.Copies {
		names[i] = m.Copies[i].Node
	}
	return names
}

const (
	minCopies = 2
	maxCopies = 5
)

// copyTypes are the stores that a copy can be: those of which a copy can tell that they are the ones of the last time.
var copyTypes = []StoreType{StoreFile, StoreDevice}

func (d *decoder) mirrorStore(o *object, s *Store) {
	m := &MirrorStore{Cache: CacheWriteback, Reads: ReadsAuto, MinCopies: 1, Resync: usualResync}
	s.Mirror = m
	d.storeSize(o, s)
	if !o.has("size") {
		d.errorf(s.Pos, "the mirror %q has no size: add the one that all copies have, such as size: 100GiB", s.Name)
	}
	set(o.take("cache"), &m.Cache, "a cache mode", oneOf(CacheWriteback, CacheWritethrough))
	set(o.take("reads"), &m.Reads, "a way to prove reads", oneOf(ReadsAuto, ReadsLeased, ReadsConfirmed))
	if s.ReadOnly {
		o.take("readonly").errorf("a mirror is written to by those who keep its copies equal: remove readonly, and give it to the LUN")
	}
	if s.Node != "" {
		o.take("node").errorf("a mirror is on the nodes of its copies: remove node")
	}
	if s.Partitioned {
		o.take("partitioned").errorf("a mirror cannot be divided into partitions: remove partitioned")
	}
	least := o.take("min_copies")
	set(least, &m.MinCopies, "a number of copies", parseInteger)
	d.resync(o.take("resync"), &m.Resync)
	v := o.take("copies")
	if !v.given() {
		if !o.has("copies") {
			d.errorf(s.Pos, "the mirror %q has no copies: add at least %d, such as copies: {a: {type: file, path: /srv/%s.img}, b: {type: file, path: /srv/%s.img}}", s.Name, minCopies, s.Name, s.Name)
		}
		return
	}
	list := d.object(v.node, "copies")
	if list == nil {
		return
	}
	for _, f := range list.fields {
		if c, ok := d.mirrorCopy(list.take(f.key), s); ok {
			m.Copies = append(m.Copies, c)
		}
	}
	switch n := len(list.fields); {
	case n < minCopies || n > maxCopies:
		v.errorf("the mirror %q has %d copies, and it needs %d to %d: each on a node of its own", s.Name, n, minCopies, maxCopies)
	case m.MinCopies < 1 || m.MinCopies > n:
		least.errorf("min_copies is %d, and the mirror %q has %d copies: write a number from 1 to %d", m.MinCopies, s.Name, n, n)
	}
}

// resync reads how fast copies are brought level.
func (d *decoder) resync(v value, r *Resync) {
	if !v.given() {
		return
	}
	o := d.object(v.node, "resync")
	if o == nil {
		return
	}
	rate, least := o.take("rate"), o.take("min")
	set(rate, &r.Rate, "a number of bytes a second, such as 100MiB/s, or auto", func(text string) (int64, error) {
		if text == "auto" {
			return 0, nil
		}
		return parseRate(text)
	})
	if r.Rate > 0 {
		r.Min = min(r.Min, r.Rate)
	}
	if set(least, &r.Min, "a number of bytes a second, such as 20MiB/s", parseRate) && r.Rate > 0 && r.Min > r.Rate {
		least.errorf("min is %s/s, and rate, the most, is %s/s: write a min that is no more than that", FormatSize(r.Min), FormatSize(r.Rate))
	}
	o.done()
}

// parseRate reads bytes a second: a size, with or without /s behind it.
func parseRate(text string) (int64, error) {
	n, err := ParseSize(strings.TrimSuffix(text, "/s"))
	if err == nil && n < leastResync {
		err = fmt.Errorf("%q is less than %s/s, by which no copy would be level for very long: write more", text, FormatSize(leastResync))
	}
	return n, err
}

// mirrorCopy reads one copy of the mirror s. ok is false if it is not known where it is.
func (d *decoder) mirrorCopy(v value, s *Store) (c Copy, ok bool) {
	c = Copy{Node: v.key, Store: Store{Name: s.Name, Pos: v.at}}
	d.nodeUses = append(d.nodeUses, nodeUse{v.at, v.key, true})
	if !v.given() {
		return c, false
	}
	o := d.object(v.node, "a copy")
	if o == nil {
		return c, false
	}
	if !set(o.take("type"), &c.Store.Type, "a type of copies", oneOf(copyTypes...)) {
		if !o.has("type") {
			d.errorf(v.at, "the copy on %s has no type: add one; %s", c.Node, choices("", words(copyTypes)))
		}
		return c, false
	}
	o.what = fmt.Sprintf("a %s store", c.Store.Type)
	if c.Store.Type == StoreFile {
		d.fileStore(o, &c.Store)
	} else {
		d.deviceStore(o, &c.Store)
	}
	for _, key := range []string{"cache", "aging"} {
		if o.has(key) {
			o.take(key).errorf("when the bytes of a copy are durable is the mirror's to say: remove %s here; the mirror has cache", key)
		}
	}
	switch {
	case c.Store.Size == 0:
		c.Store.Size = s.Size
	case s.Size != 0 && c.Store.Size != s.Size:
		o.take("size").errorf("the copy on %s has %d bytes and the mirror %q has %d: all copies are of one size, so remove this one", c.Node, c.Store.Size, s.Name, s.Size)
	}
	if c.Store.Type == StoreDevice {
		c.Store.Size = 0 // all of it is opened; it may be larger than the mirror
	}
	o.done()
	return c, true
}

// view is what a target or a subsystem shows.
type view struct {
	what   string // it is
	pos    Position
	node   string
	stores []shown
}

// shown is a store at a number.
type shown struct {
	store string
	pos   Position // of the number
}

func (t *Target) view() view {
	v := view{what: "target", pos: t.Pos, node: t.Node}
	for i := range t.LUNs {
		v.stores = append(v.stores, shown{t.LUNs[i].Store, t.LUNs[i].Pos})
	}
	return v
}

func (s *Subsystem) view() view {
	v := view{what: "subsystem", pos: s.Pos, node: s.Node}
	for i := range s.Namespaces {
		v.stores = append(v.stores, shown{s.Namespaces[i].Store, s.Namespaces[i].Pos})
	}
	return v
}

// mirrorsIn returns the mirrors that are shown.
func mirrorsIn(c *Config, v view) (list []*Store) {
	for _, x := range v.stores {
		if s := c.Store(x.store); s != nil && s.Mirror != nil {
			list = append(list, s)
		}
	}
	return list
}

// cntlids are the identifiers of controllers that a node gives: each of the nodes has a part of its own, which stays, as a mirror keeps
// its nodes.
func (m *MirrorStore) cntlids(node string) [2]uint16 {
	nodes := slices.Sorted(slices.Values(m.Nodes()))
	size := nvme.LastCNTLID / len(nodes)
	first := 1 + slices.Index(nodes, node)*size
	return [2]uint16{uint16(first), uint16(first + size - 1)}
}

// checkMirrors checks how mirrors are shown: by targets and subsystems that all nodes with a copy serve, each through portal
// groups of its own.
func (d *decoder) checkMirrors(c *Config) {
	for i := range c.Stores {
		s := &c.Stores[i]
		if s.Mirror != nil && c.Cluster.Pos.Line == 0 {
			d.errorf(s.Pos, "there is no cluster, whose nodes the mirror %q would have its copies on: add cluster: {name: …, state: …, nodes: …}", s.Name)
		}
		if s.On != nil && s.On.Mirror != nil {
			d.errorf(d.stands[s.Name].pos, "the store %q is a mirror, and no other store stands on it: a mirror is shown as it is", s.On.Name)
		}
	}
	for i := range c.Portals {
		if p := &c.Portals[i]; p.Mirror != "" && c.Cluster.Pos.Line == 0 {
			d.errorf(p.Pos, "there is no cluster, from node to node of which the address would move: remove mirror and interface")
		}
	}
	if c.Cluster.Name == "" {
		return
	}
	for i := range c.Targets {
		t := &c.Targets[i]
		mirrors := mirrorsIn(c, t.view())
		if len(mirrors) == 0 {
			continue
		}
		d.checkMirrorView(c, t.view(), mirrors[0])
		d.checkMirrorGroups(c, t, mirrors[0])
		d.checkMirrorReached(c, t.view(), mirrors[0], func(p *Portal) bool {
			return p.Serve == ServeLUNs && (t.Groups == nil || slices.Contains(t.Groups, p.Group))
		})
		for j := range t.LUNs {
			l := &t.LUNs[j]
			s := c.Store(l.Store)
			switch {
			case s == nil || s.Mirror == nil:
			case l.ALUA != ALUAImplicit:
				d.errorf(l.Pos, "LUN %d shows the mirror %q, whose access states say which node serves it: remove alua: %s", l.Number, l.Store, l.ALUA)
			case l.Removable:
				d.errorf(l.Pos, "LUN %d shows the mirror %q, and the other node would not know that it was ejected: remove removable", l.Number, l.Store)
			}
		}
	}
	for i := range c.Subsystems {
		s := &c.Subsystems[i]
		mirrors := mirrorsIn(c, s.view())
		if len(mirrors) == 0 {
			continue
		}
		d.checkMirrorView(c, s.view(), mirrors[0])
		if s.CNTLIDs != [2]uint16{} {
			d.errorf(s.Pos, "the subsystem shows the mirror %q, each of whose nodes has a part of the identifiers: remove cntlids", mirrors[0].Name)
		}
		d.checkMirrorReached(c, s.view(), mirrors[0], func(p *Portal) bool { return p.Transport.NVMe() })
		d.checkMirrorBoth(c, mirrors)
	}
	for i := range c.Portals {
		if p := &c.Portals[i]; p.Mirror != "" {
			d.checkMoving(c, p)
		}
	}
}

// checkMirrorView checks who serves a view of mirrors, and that nothing else is in it.
func (d *decoder) checkMirrorView(c *Config, v view, first *Store) {
	if v.node != "" {
		d.errorf(v.pos, "the %s shows the mirror %q, so all nodes with a copy serve it: remove node: %s", v.what, first.Name, v.node)
	}
	for _, x := range v.stores {
		s := c.Store(x.store)
		switch {
		case s == nil:
		case s.Mirror == nil:
			d.errorf(x.pos, "the %s shows the mirror %q, which moves from node to node, and the store %q, which does not: give each a %s of its own", v.what, first.Name, s.Name, v.what)
		case !sameNames(s.Mirror.Nodes(), first.Mirror.Nodes()):
			d.errorf(x.pos, "the mirrors %q and %q have copies on different nodes: give each a %s of its own", first.Name, s.Name, v.what)
		}
	}
}

// checkMirrorGroups checks that initiators can tell the nodes of a target apart.
func (d *decoder) checkMirrorGroups(c *Config, t *Target, first *Store) {
	nodes := first.Mirror.Nodes()
	node := make(map[uint16]string) // that has a portal of the group
	for i := range c.Portals {
		p := &c.Portals[i]
		if p.Serve != ServeLUNs || p.Mirror != "" || t.Groups != nil && !slices.Contains(t.Groups, p.Group) {
			continue
		}
		at := nodes
		if p.Node != "" {
			at = []string{p.Node}
		}
		for _, n := range at {
			if !slices.Contains(nodes, n) {
				continue
			}
			if other := node[p.Group]; other != "" && other != n {
				d.errorf(p.Pos, "initiators reach the mirror %q on the nodes %s and %s through the portal group %d, and tell nodes apart by groups: give the portals of each node another one, such as {node: %s, listen: …, group: %d}", first.Name, other, n, p.Group, n, p.Group+1)
				return
			}
			node[p.Group] = n
		}
	}
}

// checkMirrorReached warns of nodes with a copy of first through which nobody reaches a view, while no portal goes with the mirror: hosts lose
// the disk when such a node serves it. fits says whether the view is reached through a portal.
func (d *decoder) checkMirrorReached(c *Config, v view, first *Store, fits func(*Portal) bool) {
	nodes := first.Mirror.Nodes()
	for i := range c.Portals {
		p := &c.Portals[i]
		switch {
		case !fits(p):
		case p.Node == "":
			return
		default:
			nodes = slices.DeleteFunc(nodes, func(n string) bool { return n == p.Node })
		}
	}
	if len(nodes) > 0 && !d.portalBroken {
		d.warnf(v.pos, "nobody reaches the %s on node %s, and the disk is lost to its users while that node serves the mirror %q: add a portal there", v.what, nodes[0], first.Name)
	}
}

// checkMirrorBoth checks that no portal of NVMe is in the group of another node's portal of iSCSI, where mirrors are namespaces and LUNs:
// each node tells initiators of the groups of the others.
func (d *decoder) checkMirrorBoth(c *Config, mirrors []*Store) {
	isLUN := slices.ContainsFunc(c.Targets, func(t Target) bool {
		return slices.ContainsFunc(t.LUNs, func(l LUN) bool {
			return slices.ContainsFunc(mirrors, func(s *Store) bool { return s.Name == l.Store })
		})
	})
	if !isLUN {
		return
	}
	for i := range c.Portals {
		p := &c.Portals[i]
		if p.Serve != ServeNamespaces {
			continue
		}
		for _, o := range c.Portals {
			if o.Serve == ServeLUNs && o.Group == p.Group && (p.Node == "" || p.Node != o.Node) {
				d.errorf(p.Pos, "the mirror %q is a namespace and a LUN, and its portal group %d has a portal of iSCSI on another node, too: give the portals of each node groups of their own, such as {node: …, group: %d}", mirrors[0].Name, p.Group, p.Group+1)
				return
			}
		}
	}
}

// checkMoving checks a portal whose address goes with a mirror: all that is reached there has to move with it.
func (d *decoder) checkMoving(c *Config, p *Portal) {
	if s := c.Store(p.Mirror); s == nil || s.Mirror == nil {
		var names []string
		for i := range c.Stores {
			if c.Stores[i].Mirror != nil {
				names = append(names, c.Stores[i].Name)
			}
		}
		d.errorf(p.Pos, "the address goes with the mirror %q, and there is no such mirror: %s", p.Mirror, choices(p.Mirror, names))
		return
	}
	isBefore := true
	for i := range c.Portals {
		q := &c.Portals[i]
		isBefore = isBefore && q != p
		if q.Serve == ServeLUNs && q.Group == p.Group && q.Mirror != p.Mirror {
			d.errorf(p.Pos, "the address goes with the mirror %q, and the portal in line %d, of the same group %d, does not: give this one a group of its own, such as group: %d", p.Mirror, q.Pos.Line, p.Group, p.Group+1)
			return
		}
		switch isSame := isBefore && q.Listen.Addr() == p.Listen.Addr(); {
		case isSame && q.Mirror != "" && q.Mirror != p.Mirror:
			d.errorf(p.Pos, "the address goes with the mirror %q, and in line %d with %q, which another node may serve: give each an address of its own", p.Mirror, q.Pos.Line, q.Mirror)
			return
		case isSame && q.Mirror != "" && q.Interface != p.Interface:
			d.errorf(p.Pos, "the address is on the interface %s, and in line %d on %s: it is on one of a machine at a time, so write the same", p.Interface, q.Pos.Line, q.Interface)
			return
		}
	}
	for i := range c.Targets {
		t := &c.Targets[i]
		if t.Groups != nil && !slices.Contains(t.Groups, p.Group) {
			continue
		}
		for j := range t.LUNs {
			if l := &t.LUNs[j]; l.Store != p.Mirror && c.Store(l.Store) != nil {
				d.errorf(l.Pos, "the target is reached at the address of line %d, which goes with the mirror %q, and the store %q may be on another node then: give each a target of its own, and this one portal_groups without %d", p.Pos.Line, p.Mirror, l.Store, p.Group)
				return
			}
		}
	}
}

func sameNames(a, b []string) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

// mirroredOn reports whether the node has a copy of every mirror that is shown.
func (c *Config) mirroredOn(node string, v view) bool {
	for _, s := range mirrorsIn(c, v) {
		if s.Mirror.Copy(node) == nil {
			return false
		}
	}
	return true
}
