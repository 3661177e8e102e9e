package replica

// wrote are the blocks that hosts have written since the stream of a copy began, in granules that are still to be copied. The copy has them, whatever
// this primary's disk does.
type wrote struct {
	regions []Bits // counted from the region's beginning
	chunks  int    // of them all
}

// maxWrote bounds the chunks of wrote: 18 MiB for each copy. What hosts write beyond is not noted.
const maxWrote = 1 << 18

// wroteFor notes a record of a host, which a copy outside S gets.
func (c *Core) wroteFor(p *peer, r *Record) {
	if p.stream == 0 || !p.outside {
		return
	}
	n := c.lossLen()
	for off := (r.Off + n - 1) / n * n; off+n <= r.Off+r.Len; off += n {
		if g := c.granule(off); !p.todo.Has(g) && (p.sift == nil || p.sift.granule != g) {
			continue
		}
		p.wrote.set(int(off/c.cfg.Region), int(off%c.cfg.Region/n))
	}
}

// set notes a block of a region.
func (w *wrote) set(region, block int) {
	if w.chunks >= maxWrote {
		return
	}
	for len(w.regions) <= region {
		w.regions = append(w.regions, nil)
	}
	b := &w.regions[region]
	w.chunks -= len(*b)
	b.Set(block)
	w.chunks += len(*b)
}

// has says whether hosts have written all of a range of blocks, within a region.
func (w *wrote) has(region, first, end int) bool {
	for ; first < end && region < len(w.regions) && w.regions[region].Has(first); first++ {
	}
	return first == end
}

// forget drops a range of blocks, within a region.
func (w *wrote) forget(region, first, end int) {
	if region >= len(w.regions) {
		return
	}
	b := &w.regions[region]
	for i := b.next(first); i >= 0 && i < end; i = b.next(i + 1) {
		b.Clear(i)
	}
	if b.Empty() {
		w.chunks -= len(*b)
		*b = nil
	}
}

// hasGot says whether a copy has got all of a piece from hosts.
func (c *Core) hasGot(p *peer, off, n int64) bool {
	return p.wrote.has(c.blocksOf(off, n))
}

// blocksOf says which blocks of which region a range has.
func (c *Core) blocksOf(off, n int64) (region, first, end int) {
	in, block := off%c.cfg.Region, c.lossLen()
	return int(off / c.cfg.Region), int(in / block), int((in + n) / block)
}
