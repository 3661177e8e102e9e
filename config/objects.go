package config

import "slices"

// serveObjects finishes a portal for objects, and refuses its keys to others.
func (d *decoder) serveObjects(o *object, p *Portal) bool {
	v := o.take("store")
	if p.Serve != ServeObjects {
		if v.given() {
			v.errorf("store is that of objects, and the portal serves %s: remove it, or add serve: objects", p.Serve)
		}
		return !v.given()
	}
	ok := true
	if p.Transport != TransportIWARP {
		d.errorf(p.Pos, "objects are served over RDMA in user space, and the transport is %s: make it transport: iwarp", p.Transport)
		ok = false
	}
	for _, key := range []string{"group", "one_shot"} {
		if o.has(key) {
			o.take(key).errorf("%s is for initiators, and a portal with serve: objects is not: remove it", key)
			ok = false
		}
	}
	if !v.given() {
		d.errorf(p.Pos, "the portal does not say where its objects are: add store: NAME")
		return false
	}
	p.Group, p.OneShot = 0, nil
	return set(v, &p.Store, "the name of a store", func(text string) (string, error) { return text, nil }) && ok
}

// minObjects and maxObjects bound a store for objects, in bytes. Package heap takes some that are smaller.
const minObjects, maxObjects = 2 << 20, 64 << 30

// KeepsObjects reports whether a portal has objects in the store of that name.
func (c *Config) KeepsObjects(store string) bool {
	return slices.ContainsFunc(c.Portals, func(p Portal) bool { return p.Serve == ServeObjects && p.Store == store })
}

// checkObjects asks whether the stores of objects can keep some, and belong to them alone.
func (d *decoder) checkObjects(c *Config) {
	above := make(map[string]string)
	for i := range c.Stores {
		if s := &c.Stores[i]; s.On != nil {
			above[s.On.Name] = s.Name
		}
	}
	for i := range c.Portals {
		p := &c.Portals[i]
		if p.Serve != ServeObjects {
			continue
		}
		s := c.Store(p.Store)
		switch {
		case s == nil:
			names := make([]string, len(c.Stores))
			for i := range names {
				names[i] = c.Stores[i].Name
			}
			d.errorf(p.Pos, "there is no store %q for the objects: %s", p.Store, choices(p.Store, names))
			continue
		case s.Partitioned:
			d.errorf(p.Pos, "the store %q is divided into partitions, and objects need one of their own", s.Name)
		case s.ReadOnly:
			d.errorf(p.Pos, "the store %q is read-only, and nobody could insert an object", s.Name)
		case s.Size > 0 && (s.Size < minObjects || s.Size > maxObjects):
			d.errorf(p.Pos, "the store %q has %s, and one for objects has %s to %s: give it another size", s.Name, FormatSize(s.Size), FormatSize(minObjects), FormatSize(maxObjects))
		case s.Type == StoreNull:
			d.errorf(p.Pos, "a null store keeps nothing, and so no objects: name another one")
		case above[s.Name] != "":
			d.errorf(p.Pos, "the store %q is below %q, whose bytes nobody else may touch: keep the objects in %q", s.Name, above[s.Name], above[s.Name])
		case c.Cluster.Name != "" && p.Node == "":
			d.errorf(p.Pos, "each node has a portal for objects of its own: say of which one it is, such as node: a")
		case s.Mirror != nil && c.Cluster.Name != "" && s.Mirror.Copy(p.Node) == nil:
			d.errorf(p.Pos, "the mirror %q has no copy on node %s: remove the portal, or add a copy", s.Name, p.Node)
		case s.Mirror == nil && c.Cluster.Name != "" && p.Node != s.Node:
			d.errorf(p.Pos, "the store %q of the objects is not on node %s alone: make it a mirror, or give both the same node", s.Name, p.Node)
		}
		for t := range c.Targets {
			for _, l := range c.Targets[t].LUNs {
				if l.Store == s.Name {
					d.errorf(l.Pos, "the store %q keeps the objects of the portal in line %d, and no LUN can show it: use two stores", s.Name, p.Pos.Line)
				}
			}
		}
		for t := range c.Subsystems {
			for _, n := range c.Subsystems[t].Namespaces {
				if n.Store == s.Name {
					d.errorf(n.Pos, "the store %q keeps the objects of the portal in line %d, and no namespace can show it: use two stores", s.Name, p.Pos.Line)
				}
			}
		}
	}
}
