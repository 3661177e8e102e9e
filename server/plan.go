package server

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"oneshot/config"
)

// plan lists the steps from one configuration to the next. What no list contains stays as it is, and its users
// notice nothing.
//
//	stores   opened, resized, or kept
//	targets  added, removed, or given other rules of access
//	LUNs     put at numbers of targets that stay, or taken away; and likewise subsystems and namespaces
//	portals  opened, closed
type plan struct {
	open   []*config.Store // stores of media that no LUN has shown so far
	divide []*config.Store // divided stores that are new
	parts  []lunChange     // LUNs of partitions that no LUN has shown so far, one for each
	frozen []*config.Store // stores that are for reading only, and that next wants to write: they have to be open for that
	resize []*config.Store // stores whose size has changed
	paces  []*config.Store // mirrors whose copies are brought level at another pace

	converted []*config.Store // are open as a whole, divided or for objects, and are to be another of these

	add    []*config.Target
	remove []*config.Target // of the old configuration
	access []*config.Target // anything but their LUNs has changed
	luns   []lunChange

	addSubs    []*config.Subsystem
	removeSubs []*config.Subsystem // of the old configuration
	hosts      []*config.Subsystem // others may connect
	spaces     []spaceChange

	openPortals, closePortals []*config.Portal // of the new configuration, and of the old one

	changed []string // what changes in the node and the services, in words
	pending []string // what takes effect only at the next start, in words
}

// lunChange is a change of one LUN of a target that stays.
type lunChange struct {
	target   *config.Target // of the new configuration
	number   uint16
	from, to *config.LUN // nil: there is none
}

// newPlan compares two valid configurations. It changes neither, and does nothing else.
func newPlan(old, new *config.Config) *plan {
	p := &comparison{old: old, new: new}
	p.compareStores()
	p.compareTargets()
	p.compareSubsystems()
	p.comparePortals()
	p.compareRest()
	return &p.plan
}

// comparison is the state of newPlan.
type comparison struct {
	plan
	old, new *config.Config
}

// shown returns what LUNs show, or has objects, by the name of its medium: stores, and for partitions the stores that they are of.
func shown(c *config.Config) map[string]*config.Store {
	stores := make(map[string]*config.Store)
	for i := range c.Targets {
		for j := range c.Targets[i].LUNs {
			l := &c.Targets[i].LUNs[j]
			stores[mediumOf(c, l)] = c.Store(l.Store)
		}
	}
	for i := range c.Subsystems {
		for j := range c.Subsystems[i].Namespaces {
			n := &c.Subsystems[i].Namespaces[j]
			stores[mediumOfSpace(c, n)] = c.Store(n.Store)
		}
	}
	for i := range c.Portals {
		if p := &c.Portals[i]; p.Serve == config.ServeObjects {
			stores[medium(c.Store(p.Store))] = c.Store(p.Store)
		}
	}
	return stores
}

// dividedIn returns the stores that are divided, by medium.
func dividedIn(c *config.Config) map[string]*config.Store {
	stores := make(map[string]*config.Store)
	for i := range c.Stores {
		if s := &c.Stores[i]; s.Partitioned {
			stores[medium(s)] = s
		}
	}
	return stores
}

func (c *comparison) compareStores() {
	before, now := shown(c.old), shown(c.new)
	wasDivided, isDivided := dividedIn(c.old), dividedIn(c.new)
	for i := range c.old.Stores {
		if s := &c.old.Stores[i]; s.Partitioned && isDivided[medium(s)] == nil {
			c.did("store %q is no longer served in partitions", s.Name)
		}
	}
	for i := range c.new.Stores {
		s := &c.new.Stores[i]
		m := medium(s)
		was, otherwise, open := before[m], wasDivided[m], &c.open
		if s.Partitioned {
			was, otherwise, open = otherwise, was, &c.divide
		} else if now[m] != s {
			continue // nobody shows it
		}
		switch {
		case otherwise != nil, was != nil && c.old.KeepsObjects(was.Name) != c.new.KeepsObjects(s.Name):
			c.converted = append(c.converted, s)
		case was == nil:
			if *open = append(*open, s); s.Partitioned {
				c.did("store %q is served in partitions", s.Name)
			}
		default:
			c.compareStore(was, s)
		}
	}
	for i := range c.new.Targets {
		t := &c.new.Targets[i]
		for j := range t.LUNs {
			l := &t.LUNs[j]
			m := mediumOf(c.new, l)
			if l.Partition == "" || before[m] != nil || slices.ContainsFunc(c.parts, func(p lunChange) bool { return mediumOf(c.new, p.to) == m }) {
				continue
			}
			c.parts = append(c.parts, lunChange{target: t, number: l.Number, to: l})
		}
	}
}

// compareStore compares two of one medium.
func (c *comparison) compareStore(was, s *config.Store) {
	if was.Size != s.Size {
		c.resize = append(c.resize, s)
	}
	if b := bottom(s); storeTypes[b.Type].modal && bottom(was).ReadOnly && !b.ReadOnly {
		c.frozen = append(c.frozen, s)
	}
	if s.Mirror != nil && was.Mirror != nil && s.Mirror.Resync != was.Mirror.Resync {
		c.paces = append(c.paces, s)
		c.did("copies of the mirror %q are brought level %s", s.Name, s.Mirror.Resync)
	}
	if !equal(storeOptions(was), storeOptions(s)) {
		c.later("%s: the options of the store %q", s.Pos, s.Name)
	}
}

// bottom returns the store at the bottom of the stack of s: the one that stands on no other.
func bottom(s *config.Store) *config.Store {
	for s.On != nil {
		s = s.On
	}
	return s
}

// storeOptions returns s without its name, its size, readonly and the pace of a mirror, which are not options of an open store.
func storeOptions(s *config.Store) config.Store {
	o := *s
	o.Name, o.Size, o.ReadOnly = "", 0, false
	if s.On != nil {
		below := storeOptions(s.On)
		below.Size = s.On.Size // a store below is not resized
		o.On = &below
	}
	if s.Mirror != nil {
		m := *s.Mirror
		m.Copies, m.Resync = slices.Clone(m.Copies), config.Resync{}
		for i := range m.Copies {
			m.Copies[i].Store.Size = 0 // is that of the mirror
		}
		o.Mirror = &m
	}
	if s.File != nil {
		f := *s.File
		f.Create = false // matters only while it is opened
		o.File = &f
	}
	return o
}

func (c *comparison) compareTargets() {
	for i := range c.old.Targets {
		if was := &c.old.Targets[i]; findTarget(c.new, was.Name) == nil {
			c.remove = append(c.remove, was)
		}
	}
	for i := range c.new.Targets {
		t := &c.new.Targets[i]
		was := findTarget(c.old, t.Name)
		if was == nil {
			c.add = append(c.add, t)
			continue
		}
		if !equal(accessOf(was), accessOf(t)) {
			c.access = append(c.access, t)
		}
		c.compareLUNs(was, t)
	}
}

func findTarget(c *config.Config, name string) *config.Target {
	i := slices.IndexFunc(c.Targets, func(t config.Target) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	return &c.Targets[i]
}

// accessOf returns t without its LUNs.
func accessOf(t *config.Target) config.Target {
	a := *t
	a.LUNs = nil
	return a
}

// compareLUNs walks two sorted lists.
func (c *comparison) compareLUNs(was, now *config.Target) {
	a, b := was.LUNs, now.LUNs
	for len(a) > 0 || len(b) > 0 {
		change := lunChange{target: now}
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].Number < b[0].Number:
			change.number, change.from, a = a[0].Number, &a[0], a[1:]
		case len(a) == 0 || b[0].Number < a[0].Number:
			change.number, change.to, b = b[0].Number, &b[0], b[1:]
		default:
			change.number, change.from, change.to = a[0].Number, &a[0], &b[0]
			a, b = a[1:], b[1:]
			if c.alike(change.from, change.to) {
				continue
			}
		}
		c.luns = append(c.luns, change)
	}
}

// alike reports whether two LUNs show one medium in the same way.
func (c *comparison) alike(was, now *config.LUN) bool {
	return equal(was, now) && mediumOf(c.old, was) == mediumOf(c.new, now)
}

// comparePortals takes equal portals for one and the same. Several portals with port 0 may be equal.
func (c *comparison) comparePortals() {
	left := make([]*config.Portal, 0, len(c.old.Portals))
	for i := range c.old.Portals {
		left = append(left, &c.old.Portals[i])
	}
	for i := range c.new.Portals {
		p := &c.new.Portals[i]
		at := slices.IndexFunc(left, func(was *config.Portal) bool { return equal(was, p) && c.servesTheSame(was, p) })
		if at < 0 {
			c.openPortals = append(c.openPortals, p)
			continue
		}
		left = slices.Delete(left, at, at+1)
	}
	c.closePortals = left
}

// servesTheSame reports whether the objects of two portals, if they are for objects, are in one store.
func (c *comparison) servesTheSame(was, now *config.Portal) bool {
	return now.Serve != config.ServeObjects || medium(c.old.Store(was.Store)) == medium(c.new.Store(now.Store))
}

// compareCluster: a member learns the addresses of others while it runs. Its own, its name, its directory, its device and its keeper are those of
// the start.
func (c *comparison) compareCluster() {
	was, now := &c.old.Cluster, &c.new.Cluster
	if was.Name != now.Name || was.State != now.State || was.Self != now.Self || was.Transport != now.Transport || was.Device != now.Device || was.Keeper != now.Keeper {
		c.later("cluster")
		return
	}
	for _, n := range now.Nodes {
		if before := was.Node(n.Name); before != nil && !slices.Equal(before.Fence, n.Fence) && n.Name != now.Self {
			c.did("node %s of the cluster is fenced by %s", n.Name, cmp.Or(strings.Join(n.Fence, " "), "nothing"))
		}
		switch before := was.Node(n.Name); {
		case before != nil && before.Address == n.Address && before.Witness == n.Witness && before.Data == n.Data:
		case n.Name == now.Self:
			c.later("cluster.nodes.%s", n.Name)
		case before != nil && before.Address == n.Address && before.Witness == n.Witness: // the node tells of that itself
			c.did("node %s of the cluster takes the data of mirrors at %s", n.Name, n.Data)
		default:
			c.did("node %s of the cluster is at %s%s", n.Name, n.Address, map[bool]string{true: ", a witness"}[n.Witness])
		}
	}
	for _, n := range was.Nodes {
		if now.Node(n.Name) == nil {
			c.did("node %s of the cluster has no address", n.Name)
		}
	}
}

// clusterInForce returns the cluster of a configuration, but for what holds since the first one.
func clusterInForce(cfg, first *config.Config) config.Cluster {
	c := first.Cluster
	if cfg.Cluster.Name != c.Name || c.Name == "" {
		return c
	}
	c.Nodes = slices.Clone(cfg.Cluster.Nodes)
	for i := range c.Nodes {
		if c.Nodes[i].Name == c.Self {
			c.Nodes[i] = *first.Cluster.Node(c.Self)
		}
	}
	return c
}

func (c *comparison) compareRest() {
	c.compareCluster()
	was, now := c.old.Limits, c.new.Limits
	c.limit(true, "connections", was.Connections, now.Connections)
	c.limit(true, "sessions", was.Sessions, now.Sessions)
	c.limit(false, "commands", was.Commands, now.Commands)
	c.limit(false, "connections_per_session", was.ConnectionsPerSession, now.ConnectionsPerSession)
	c.limit(false, "memory", was.Memory, now.Memory)
	c.limit(false, "memory_per_connection", was.MemoryPerConnection, now.MemoryPerConnection)
	c.limit(true, "login_timeout", was.LoginTimeout, now.LoginTimeout)
	c.limit(true, "nop_interval", was.NopInterval, now.NopInterval)
	c.limit(true, "nop_timeout", was.NopTimeout, now.NopTimeout)
	c.limit(true, "read_timeout", was.ReadTimeout, now.ReadTimeout)
	if !equal(c.old.Discovery.Auth, c.new.Discovery.Auth) {
		c.did("discovery.auth has changed")
	}
	if !equal(c.old.Discovery.Referrals, c.new.Discovery.Referrals) {
		c.did("discovery.referrals has changed")
	}
	if c.old.Metrics.Pprof != c.new.Metrics.Pprof && c.new.Metrics.Given {
		c.did("metrics.pprof is %t", c.new.Metrics.Pprof)
	}
	if c.old.State.Dir != c.new.State.Dir {
		c.later("state")
	}
	if c.old.ISNS.Server != c.new.ISNS.Server || c.old.ISNS.Entity != c.new.ISNS.Entity {
		c.later("isns")
	}
	if c.old.Log.Format != c.new.Log.Format {
		c.later("log.format")
	}
}

// limit compares a limit. atOnce says whether a change takes effect at once or at the next start.
func (c *comparison) limit(atOnce bool, key string, was, now any) {
	switch {
	case was == now:
	case atOnce:
		c.did("limits.%s is %v, was %v", key, now, was)
	default:
		c.later("limits.%s", key)
	}
}

func (c *comparison) did(format string, args ...any) {
	c.changed = append(c.changed, fmt.Sprintf(format, args...))
}

func (c *comparison) later(format string, args ...any) {
	c.pending = append(c.pending, fmt.Sprintf(format, args...)+" will change at the next start only")
}
