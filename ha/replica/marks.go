package replica

// marks say where copies may differ.
type marks struct {
	bitmaps  [16]Bits // by copy outside S: the granules that it lacks
	suspects Bits     // of this copy, outside S: granules that it may have changed by itself
}

func (c *Core) granule(off int64) int { return int(off / c.cfg.Granule) }

// mark adds the granules of a range.
func (c *Core) mark(b *Bits, off, n int64) {
	for i := c.granule(off); i <= c.granule(off+n-1); i++ {
		b.Set(i)
	}
}

// markWritten adds what a record changes. What is new in a store is not: a copy outside S is made as large by KindFit.
func (c *Core) markWritten(b *Bits, r *Record) {
	if r.Kind != KindGrow && r.Kind != KindFit && r.Kind != KindCheck {
		c.mark(b, r.Off, r.Len)
	}
}

// granulesOf returns the granules of regions.
func (c *Core) granulesOf(regions Bits) Bits {
	var b Bits
	for i := range regions.All() {
		if off := int64(i) * c.cfg.Region; off < c.end(off) {
			c.mark(&b, off, min(c.cfg.Region, c.end(off)-off))
		}
	}
	return b
}

// markRecord keeps the bitmaps as a record asks for.
func (c *Core) markRecord(r *Record) {
	switch r.Kind {
	case KindWrite, KindZero:
		for id := range (c.cfg.Copies &^ c.view.InSync).Without(c.cfg.Self).All() {
			c.mark(&c.bitmaps[id], r.Off, r.Len)
			c.wroteFor(&c.peer[id], r)
			if c.left.Has(id) {
				c.mark(&c.lacks[id], r.Off, r.Len)
			}
		}
	case KindClean:
		c.bitmaps[r.Copy].Clear(c.granule(r.Off))
		if r.Copy == c.cfg.Self {
			c.suspects.Clear(c.granule(r.Off)) // what has led to that is in the log, and suspect, until all of S have it durable
		}
	}
}

// marksFor keeps the bitmaps as a new view asks for. A copy that leaves S may lack what is not durable on all of S, but for what it has told this primary to be
// on its disk.
func (c *Core) marksFor(old, v View) {
	isPrimary := c.role == Primary && v.Primary == c.cfg.Self && v.Term == old.Term
	for id := range c.cfg.Copies.Without(c.cfg.Self).All() {
		switch {
		case v.InSync.Has(id):
			c.bitmaps[id] = nil
		case old.InSync.Has(id):
			c.bitmaps[id].Add(c.early)
			for i := range c.entries {
				if e := &c.entries[i]; !isPrimary || e.Seq > c.onDiskOf(id) {
					c.markWritten(&c.bitmaps[id], &e.Record)
				}
			}
		}
	}
	if v.InSync.Has(c.cfg.Self) && c.memory {
		c.suspects = nil
	}
}

// suspect takes the log for what this copy, now outside S, has done by itself. What was found to be equal is like what was copied: see compare.go.
func (c *Core) suspect() {
	for i := range c.entries {
		switch e := &c.entries[i]; {
		case !e.begun:
		case e.Kind == KindCheck:
			c.mark(&c.suspects, e.Off, e.Len)
		case e.changes(c.cfg.Self):
			c.markWritten(&c.suspects, &e.Record)
		}
	}
}
