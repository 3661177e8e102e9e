package config

// stand names the store that another one stands on, with the place in the configuration.
type stand struct {
	on  string
	pos Position
}

// below reads the name of the store that s stands on. stack looks it up when all stores are known.
func (d *decoder) below(o *object, s *Store) {
	v := o.take("on")
	on := stand{pos: v.at}
	switch {
	case set(v, &on.on, "the name of a store", func(text string) (string, error) { return text, nil }):
		if d.stands == nil {
			d.stands = make(map[string]stand)
		}
		d.stands[s.Name] = on
	case !o.has("on"):
		d.errorf(s.Pos, "the %s store %q stands on no other: add on: NAME", s.Type, s.Name)
	}
}

// stack finds for each store the one that it stands on.
func (d *decoder) stack(stores []Store) {
	for i := range stores {
		s := &stores[i]
		on, ok := d.stands[s.Name]
		if !ok {
			continue
		}
		if s.On = d.storeAt[on.on]; s.On == nil {
			d.errorf(on.pos, "there is no store %q: %s", on.on, suggestStore(on.on, stores))
		}
	}
	for i := range stores {
		s := &stores[i]
		if s.stack() <= maxStack {
			continue
		}
		if s.circular() {
			d.errorf(d.stands[s.Name].pos, "the store %q stands on itself, directly or by way of others: name another one", s.Name)
		} else {
			d.errorf(d.stands[s.Name].pos, "the store %q stands on more than %d others: put fewer between it and the lowest", s.Name, maxStack)
		}
		s.On = nil // breaks a circle, so that no loop over stores is endless
	}
	for i := range stores {
		for o := stores[i].On; o != nil; o = o.On {
			stores[i].ReadOnly = stores[i].ReadOnly || o.ReadOnly
		}
	}
	d.checkSlices(stores)
	d.checkBelow(stores)
}

// maxStack bounds how many stores one stands on, directly and by way of others.
const maxStack = 64

// stack returns how many stores s stands on, and more than maxStack if they are more, or have no end.
func (s *Store) stack() (n int) {
	for o := s.On; o != nil && n <= maxStack; o = o.On {
		n++
	}
	return n
}

// circular reports whether the stores below s have no end. The slow walker makes one step, the fast one two: they meet
// in a circle.
func (s *Store) circular() bool {
	slow, fast := s, s
	for fast.On != nil && fast.On.On != nil {
		if slow, fast = slow.On, fast.On.On; slow == fast {
			return true
		}
	}
	return false
}

// checkBelow refuses two stores on one store, unless both are slices: each would overwrite the other's bytes.
func (d *decoder) checkBelow(stores []Store) {
	first := make(map[*Store]*Store)
	for i := range stores {
		s := &stores[i]
		if s.On == nil {
			continue
		}
		before := first[s.On]
		switch {
		case s.On.Partitioned:
			d.errorf(d.stands[s.Name].pos, "the store %q is divided into partitions, so no other store stands on it: create a partition instead", s.On.Name)
		case before == nil:
			first[s.On] = s
		case before.Slice == nil || s.Slice == nil:
			d.errorf(d.stands[s.Name].pos, "the stores %q and %q both stand on %q: only slices share a store", before.Name, s.Name, s.On.Name)
		}
	}
}
