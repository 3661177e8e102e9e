package sim

import (
	"slices"
	"time"

	"oneshot/ha/replica"
)

// pos is a record's place in the order.
type pos struct{ term, seq uint64 }

func (p pos) less(q pos) bool { return p.term < q.term || p.term == q.term && p.seq < q.seq }

// cell is a block: what is in it, and which record the host's write had.
type cell struct {
	val uint64
	pos pos
}

// disk is a node's. What was written is in the cache, which a killed process leaves behind and a power cut does not.
type disk struct {
	cache   []cell
	medium  []cell
	pending [][]cell // by block: what was written since the last sync, in order
	saved   replica.Saved
	lastRec []pos // by block: the record that was applied last, in this life of the process
	writing []replica.Record
	saving  *replica.Save
	slow    time.Duration // more for each work
	refuses bool
}

func newDisk() *disk {
	return &disk{cache: make([]cell, blocks), medium: make([]cell, blocks), pending: make([][]cell, blocks), lastRec: make([]pos, blocks)}
}

func (d *disk) put(block int, c cell) {
	d.cache[block] = c
	d.pending[block] = append(d.pending[block], c)
}

// mark returns how much of pending a sync that begins now will make durable.
func (d *disk) mark() []int {
	n := make([]int, blocks)
	for i := range d.pending {
		n[i] = len(d.pending[i])
	}
	return n
}

func (d *disk) sync(n []int) {
	for i, k := range n {
		if k > 0 {
			d.medium[i] = d.pending[i][k-1]
			d.pending[i] = slices.Delete(d.pending[i], 0, k)
		}
	}
}

func (d *disk) save(s *replica.Save) {
	d.saved.Mark = s.Mark
	for _, i := range s.Set {
		d.saved.Regions.Set(i)
	}
	if s.Bitmaps != nil {
		for i := range s.Bitmaps {
			d.saved.Bitmaps[i] = s.Bitmaps[i].Clone()
		}
	}
	for _, i := range s.Clear {
		d.saved.Regions.Clear(i)
	}
}

// killed: the process is gone. What the kernel had been given may be done, block by block.
func (n *node) killedDisk() {
	d := n.disk
	for i := range d.writing {
		n.tear(&d.writing[i])
	}
	if d.saving != nil && n.oneIn(2) {
		d.save(d.saving)
	}
	d.writing, d.saving = nil, nil
	clear(d.lastRec)
}

// tear writes some blocks of a record.
func (n *node) tear(r *replica.Record) {
	n.eachCell(r, func(block int, c cell) {
		if n.oneIn(2) {
			n.disk.put(block, c)
		}
	})
}

// lostPower: of each block something that was written since the last sync is there, or what was before.
func (n *node) lostPower() {
	d := n.disk
	for i := range d.pending {
		if k := n.r.IntN(len(d.pending[i]) + 1); k > 0 {
			d.medium[i] = d.pending[i][k-1]
		}
		d.pending[i] = nil
	}
	copy(d.cache, d.medium)
}

// eachCell calls f with what a record writes to each block.
func (n *node) eachCell(r *replica.Record, f func(block int, c cell)) {
	for i := range int(r.Len / blockSize) {
		c := cell{pos: pos{r.Term, r.Seq}}
		if r.Kind != replica.KindZero {
			h := n.heap[int(r.Addr/blockSize)+i]
			c.val = h.val
			if r.Kind == replica.KindResync {
				c.pos = h.pos
			}
		}
		f(int(r.Off/blockSize)+i, c)
	}
}

// sum is the checksum of cells.
func sum(cells []cell) uint32 {
	h := uint64(14695981039346656037)
	for _, c := range cells {
		h = (h ^ c.val) * 1099511628211
	}
	return uint32(h ^ h>>32)
}
