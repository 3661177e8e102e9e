package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
)

// Discovery configures discovery sessions, which belong to no target.
type Discovery struct {
	Auth Auth
	// Referrals are discovery services of NVMe over TCP elsewhere, of which hosts of NVMe are told.
	Referrals []netip.AddrPort
}

// maxReferrals is enough for the nodes of several clusters.
const maxReferrals = 64

func (d *decoder) discovery(v value, out *Discovery) {
	if !v.given() {
		return
	}
	if o := d.object(v.node, "discovery"); o != nil {
		d.auth(o.take("auth"), &out.Auth)
		out.Referrals = d.referrals(o.take("referrals"))
		o.done()
	}
}

// referrals reads [192.0.2.2, "[2001:db8::2]:4420"].
func (d *decoder) referrals(v value) []netip.AddrPort {
	var list []netip.AddrPort
	for _, item := range v.list("addresses") {
		var at netip.AddrPort
		switch {
		case !set(item, &at, "an address such as 192.0.2.2:8009", parseReferral):
		case slices.Contains(list, at):
			item.errorf("%v is there twice: remove one of the two", at)
		case len(list) == maxReferrals:
			item.errorf("there are more than %d referrals: remove this one and what follows", maxReferrals)
			return list
		default:
			list = append(list, at)
		}
	}
	return list
}

// parseReferral reads the address of a discovery service elsewhere.
func parseReferral(text string) (netip.AddrPort, error) {
	at, err := parseListenAt(text, nvmeDiscoveryPort)
	if err != nil || !at.Addr().IsValid() || at.Addr().IsUnspecified() || at.Port() == 0 {
		return at, fmt.Errorf("%q is the address of no machine: write the IP address of a discovery service, such as 192.0.2.2:8009", text)
	}
	return at, nil
}

// nvmeDiscoveryPort is where hosts look for discovery by themselves.
const nvmeDiscoveryPort = 8009

// crossCheck checks what concerns several sections of the file.
func (d *decoder) crossCheck(c *Config) {
	d.checkNodes(c)
	d.checkNodePorts(c)
	d.checkMetrics(c)
	d.checkMirrors(c)
	d.checkServes(c)
	d.checkTargetNames(c)
	d.checkPaths(c)
	d.checkObjects(c)
	d.checkExports(c)
	d.checkSerials(c)
	d.checkGroups(c)
	d.checkSubsystems(c)
	d.checkRDMAMemory(c)
	if d.othersMayRead && d.inlineSecret.Line > 0 {
		d.warnf(d.inlineSecret, "every user of this machine can read this secret: chmod o-r the file, or name another with {file: PATH}")
	}
}

// checkServes asks whether there is anything to serve.
func (d *decoder) checkServes(c *Config) {
	if d.noTarget != nil && !slices.ContainsFunc(c.Portals, func(p Portal) bool { return p.Serve == ServeObjects }) {
		d.errorf(*d.noTarget, "there is no target: add one under targets, such as {iqn: iqn.2026-11.com.example:disk, luns: {0: STORE}}")
	}
}

func (d *decoder) checkTargetNames(c *Config) {
	first := make(map[string]Position)
	for _, t := range c.Targets {
		if before, ok := first[t.Name]; ok && t.Name != "" {
			d.errorf(t.Pos, "the target %s is already defined in line %d: give one of them another name", t.Name, before.Line)
			continue
		}
		first[t.Name] = t.Pos
	}
}

// checkPaths refuses two stores in one file or device: the second could not lock it.
func (d *decoder) checkPaths(c *Config) {
	type placed struct {
		store *Store
		node  string
	}
	first := make(map[string][]placed) // several are on different nodes
	check := func(s *Store, node string) {
		kind := storeTypeOf(s.Type)
		if kind.place == nil || kind.place(s) == "" {
			return
		}
		path := kind.place(s)
		if abs, err := filepath.Abs(path); err == nil {
			path = abs
		}
		if i := slices.IndexFunc(first[path], func(o placed) bool { return mayMeet(o.node, node) }); i >= 0 {
			before := first[path][i].store
			d.errorf(s.Pos, "the stores %q and %q share the %s %s: export one store twice instead, or choose another path", before.Name, s.Name, kind.noun, kind.place(s))
			return
		}
		first[path] = append(first[path], placed{s, node})
	}
	for i := range c.Stores {
		s := &c.Stores[i]
		check(s, s.Node)
		if s.Mirror != nil {
			for j := range s.Mirror.Copies {
				check(&s.Mirror.Copies[j].Store, s.Mirror.Copies[j].Node)
			}
		}
	}
}

// checkExports warns of stores that nobody exports, and of those that several
// LUNs can write: only a cluster file system survives two writers.
func (d *decoder) checkExports(c *Config) {
	exported, writer := make(map[string]bool), make(map[string]Position)
	above := make(map[string]*Store)
	for i := range c.Stores {
		if s := &c.Stores[i]; s.On != nil {
			above[s.On.Name] = s
		}
	}
	for i := range c.Targets {
		for j := range c.Targets[i].LUNs {
			l := &c.Targets[i].LUNs[j]
			exported[l.Store] = true
			if s := above[l.Store]; s != nil {
				d.errorf(l.Pos, "the store %q is below %q, whose bytes nobody else may touch: export %q instead", l.Store, s.Name, s.Name)
				continue
			}
			if l.ReadOnly || c.Targets[i].Redirect != nil {
				continue // initiators of a target that has moved reach no LUN here
			}
			if before, ok := writer[l.Shows()]; ok {
				d.warnf(l.Pos, "line %d exports %q writable as well: without a cluster file system two initiators would destroy each other's data", before.Line, l.Shows())
				continue
			}
			writer[l.Shows()] = l.Pos
		}
	}
	for _, sub := range c.Subsystems {
		for _, n := range sub.Namespaces {
			exported[n.Store] = true
			if s := above[n.Store]; s != nil {
				d.errorf(n.Pos, "the store %q is below %q, whose bytes nobody else may touch: show %q instead", n.Store, s.Name, s.Name)
			} else if before, ok := writer[n.Store]; ok && !n.ReadOnly {
				d.warnf(n.Pos, "line %d exports %q writable as well: without a cluster file system two hosts would destroy each other's data", before.Line, n.Store)
			} else if !n.ReadOnly {
				writer[n.Store] = n.Pos
			}
		}
	}
	for _, s := range c.Stores {
		if !exported[s.Name] && above[s.Name] == nil && !s.Partitioned && !c.KeepsObjects(s.Name) {
			d.warnf(s.Pos, "no LUN exports the store %q, and no namespace: add it to the luns of a target or the namespaces of a subsystem, or remove it", s.Name)
		}
	}
}

// checkSerials refuses one serial number for two stores, or for blocks of two sizes: initiators would take both for
// one disk, and multipath would mix their data. Of LUNs that have the same number without saying so it warns.
func (d *decoder) checkSerials(c *Config) {
	first := make(map[string]*LUN)
	for i := range c.Targets {
		for j := range c.Targets[i].LUNs {
			l := &c.Targets[i].LUNs[j]
			serial := d.serialOf(&c.Targets[i], l)
			before := first[serial]
			switch {
			case before == nil:
				first[serial] = l
			case before.Shows() != l.Shows():
				d.errorf(l.Pos, "the serial %q already belongs to the store %q in line %d: choose another, or initiators take both for one disk and destroy their data", l.Serial, before.Shows(), before.Pos.Line)
			case before.BlockSize == l.BlockSize:
			case l.Serial != "":
				d.errorf(l.Pos, "the serial %q already belongs to the LUN in line %d, which has blocks of %d bytes: choose another, or initiators take both for one disk", l.Serial, before.Pos.Line, before.BlockSize)
			default:
				d.warnf(l.Pos, "line %d exports %q in blocks of %d bytes, with the same serial number: give one of the two a serial of its own, or initiators take both for one disk", before.Pos.Line, l.Shows(), before.BlockSize)
			}
		}
	}
}

// serialOf returns a text that is the same for LUNs with the same serial number.
func (d *decoder) serialOf(t *Target, l *LUN) string {
	if l.Serial != "" {
		return "said " + l.Serial
	}
	if l.Partition != "" && d.storeAt[l.Store].Type != StoreMemory { // it is made of the partition's UUID
		return "partition " + l.Shows()
	}
	return "names " + t.Name + " " + l.Shows()
}

// checkGroups refuses a portal group without portals: nobody would reach the target through it.
func (d *decoder) checkGroups(c *Config) {
	if d.portalBroken {
		return
	}
	var tags []uint16
	for _, p := range c.Portals {
		if p.Serve == ServeLUNs && !slices.Contains(tags, p.Group) {
			tags = append(tags, p.Group)
		}
	}
	slices.Sort(tags)
	for _, u := range d.groupUses {
		if !d.unread && !slices.Contains(tags, u.tag) {
			d.errorf(u.pos, "no portal is in the group %d: give a portal group: %d, or name one that there is (%s)", u.tag, u.tag, joinInts(tags, ", "))
		}
	}
}
