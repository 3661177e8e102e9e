package replica

import "slices"

// Store is one of the set's. All stores of a set are in one address space, and in one log: a record does not know
// stores, but its range lies in one of them. Where a store lies never changes, so the distance to the next one is how
// far it can grow. All nodes have copies of all stores; a node whose copy of one fails is out of sync with all.
type Store struct {
	Off     int64 // a multiple of Config.Region
	Size    int64 // of this node's copy when the process starts
	Through bool  // a write is answered when W disks have it
}

// end returns where the store that has off ends on this node, 0 if there is none.
func (c *Core) end(off int64) int64 {
	if s := c.storeOf(off); s != nil && off < s.Off+s.Size {
		return s.Off + s.Size
	}
	return 0
}

// storeOf returns the store that has off, also behind its end.
func (c *Core) storeOf(off int64) *Store {
	for i := len(c.stores) - 1; i >= 0; i-- {
		if c.stores[i].Off <= off {
			return &c.stores[i]
		}
	}
	return nil
}

// granuleLen returns how long the granule at off is: the last one of a store may be shorter.
func (c *Core) granuleLen(off int64) int64 { return min(c.cfg.Granule, c.end(off)-off) }

// granuleFor is granuleLen for a copy that is brought level. It may be larger: it has done a growth that was given up, because its primary was
// lost. What it has behind the end of the store here no host knows of. That has to be zeroes, which its disk may have lost since: it was
// exchanged, or set back.
func (c *Core) granuleFor(p *peer, off int64) int64 {
	end, s := c.end(off), c.storeOf(off)
	for i := range p.sizes {
		if i < len(c.stores) && s == &c.stores[i] && off-s.Off < p.sizes[i] {
			end = max(end, s.Off+p.sizes[i])
		}
	}
	return min(c.cfg.Granule, end-off)
}

// grow adds the record that makes a store larger on all copies. The answer comes when all of S have done that.
func (c *Core) grow(o *op) {
	s := c.storeOf(o.off)
	switch {
	case o.n < c.sizeOf(s), c.storeOf(o.off+o.n-1) != s: // stores do not shrink, and there is no room behind this one
		c.answer(o.id, Refused)
		return
	case o.n > c.sizeOf(s):
		from := s.Off + c.sizeOf(s)
		c.append(Record{Term: c.view.Term, Seq: c.log.last() + 1, Kind: KindGrow, Off: from, Len: s.Off + o.n - from})
	}
	o.seq = c.log.last()
	c.growing = append(c.growing, o)
	c.syncTo = max(c.syncTo, o.seq)
}

// fits returns the records that make the stores of a copy, which has said hello, as large as they are here. What the copy gets from
// the log makes them larger by itself: the records behind applied.
//
// A member's are smaller if this copy has done a growth that was given up, because its primary was lost. No host knows of that
// size, so there is nothing in what is new.
func (c *Core) fits(id ID, sizes []int64, applied uint64) []Record {
	var list []Record
	for i := range c.stores {
		s := &c.stores[i]
		size := c.sizeOf(s)
		for k := range c.entries {
			if e := &c.entries[k]; e.Seq > applied && c.storeOf(e.Off) == s && (e.Kind == KindGrow || e.Kind == KindFit && e.Copy == id) {
				size = min(size, e.Off-s.Off)
			}
		}
		if i < len(sizes) && sizes[i] < size {
			list = append(list, Record{Kind: KindFit, Copy: id, Off: s.Off + sizes[i], Len: size - sizes[i]})
		}
	}
	return list
}

// fit gives those records their places.
func (c *Core) fit(p *peer) {
	for _, r := range p.fits {
		r.Term, r.Seq = c.view.Term, c.log.last()+1
		c.append(r)
	}
	p.fits = nil
}

// fitOn does that for members, when there is room.
func (c *Core) fitOn() {
	for id := range c.cfg.Copies.Without(c.cfg.Self).All() {
		p := &c.peer[id]
		if len(p.fits) == 0 || p.stream == 0 || !c.hasRoomFor(len(p.fits)) {
			continue
		}
		c.fit(p)
		for _, o := range c.growing { // it is not done yet
			o.seq = c.log.last()
			c.syncTo = max(c.syncTo, o.seq)
		}
	}
}

// areFit says whether it is known that no member's stores are smaller than they are here, but for what is in the log.
func (c *Core) areFit() bool {
	for id := range c.view.InSync.Without(c.cfg.Self).All() {
		if p := &c.peer[id]; p.stream == 0 || len(p.fits) > 0 {
			return false
		}
	}
	return true
}

// sizeOf returns how large a store is at the end of the log.
func (c *Core) sizeOf(s *Store) int64 {
	size := s.Size
	for i := range c.entries {
		if e := &c.entries[i]; e.Kind == KindGrow && c.storeOf(e.Off) == s {
			size = max(size, e.Off+e.Len-s.Off)
		}
	}
	return size
}

// resized: this copy's store goes to the end of a record.
func (c *Core) resized(r *Record) {
	if s := c.storeOf(r.Off); r.Kind == KindGrow || r.Kind == KindFit {
		s.Size = max(s.Size, r.Off+r.Len-s.Off)
	}
}

// grown answers who waits for a store to become larger.
func (c *Core) grown() {
	if len(c.growing) == 0 || !c.areFit() {
		return
	}
	c.growing = slices.DeleteFunc(c.growing, func(o *op) bool {
		if o.seq > c.trim {
			return false
		}
		c.answer(o.id, Good)
		return true
	})
}

func (c *Core) sizes() []int64 {
	var n []int64
	for _, s := range c.stores {
		n = append(n, s.Size)
	}
	return n
}
