package sim

import (
	"fmt"
	"hash/fnv"
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
	dropped []int    // by block: how many were in pending before
	saved   replica.Saved
	lastRec []pos // by block: the record that was applied last, in this life of the process
	writing []replica.Record
	saving  *replica.Save
	slow    time.Duration // more for each work
	refuses bool
	bad     []bool // blocks that cannot be read until they are written
	wasBad  []bool // the same, when everything was mended
	stuck   []bool // blocks that cannot be read though they be written,
	solid   []bool // and refuse that, too
	rot     []bool // blocks that are not what was written, and nobody knows
	hung    bool
	badAt   time.Duration // when it has last refused to write, or hung
	late    []func()      // works that would have ended
}

func newDisk() *disk {
	return &disk{
		cache: make([]cell, blocks), medium: make([]cell, blocks), pending: make([][]cell, blocks), dropped: make([]int, blocks),
		bad: make([]bool, blocks), wasBad: make([]bool, blocks), stuck: make([]bool, blocks), solid: make([]bool, blocks), rot: make([]bool, blocks), lastRec: make([]pos, blocks),
	}
}

// at returns what is in a range.
func (d *disk) at(off, n int64) []cell { return d.cache[blockOf(off):][:n/blockSize] }

// isBad says whether the disk refuses to read a range.
func (d *disk) isBad(off, n int64) bool {
	return slices.Contains(d.bad[blockOf(off):][:n/blockSize], true)
}

// isSolid says whether the disk refuses to write a range.
func (d *disk) isSolid(off, n int64) bool {
	return slices.Contains(d.solid[blockOf(off):][:n/blockSize], true)
}

// growDisk makes a store larger. What is new reads as zeroes, durably. What it has already is left as it is, though the disk was set back.
func (n *node) growDisk(r *replica.Record) {
	for b := blockOf(secondOff + n.sizes[1]); b < blockOf(r.Off+r.Len); b++ {
		n.disk.putAll(b, cell{})
	}
	n.sizes[1] = max(n.sizes[1], r.Off+r.Len-secondOff)
}

// hang lets no work end until goOn.
func (d *disk) hang() { d.hung = true }

func (d *disk) goOn(now time.Duration) {
	if d.hung {
		d.badAt = now
	}
	late := d.late
	d.hung, d.late = false, nil
	for _, f := range late {
		f()
	}
}

func (d *disk) put(block int, c cell) {
	d.bad[block], d.rot[block] = d.stuck[block], false
	d.cache[block] = c
	d.pending[block] = append(d.pending[block], c)
}

// putAll writes what is atomic: the copy's journal makes it durable at once.
func (d *disk) putAll(block int, c cell) {
	d.bad[block], d.rot[block] = d.stuck[block], false
	d.cache[block], d.medium[block] = c, c
	d.dropped[block] += len(d.pending[block])
	d.pending[block] = nil
}

// mark returns up to which write of each block a sync that begins now makes them durable.
func (d *disk) mark() []int {
	n := make([]int, blocks)
	for i := range d.pending {
		n[i] = d.dropped[i] + len(d.pending[i])
	}
	return n
}

func (d *disk) sync(n []int) {
	for i, k := range n {
		if k -= d.dropped[i]; k > 0 {
			d.medium[i] = d.pending[i][k-1]
			d.pending[i] = slices.Delete(d.pending[i], 0, k)
			d.dropped[i] += k
		}
	}
}

func (d *disk) save(s *replica.Save) {
	d.saved.Mark = s.Mark
	for _, i := range s.Set {
		d.saved.Regions.Set(i)
	}
	if s.Bitmaps != nil {
		d.saved.View = s.View
		for i := range s.Bitmaps {
			d.saved.Bitmaps[i] = s.Bitmaps[i].Clone()
		}
	}
	for _, i := range s.Clear {
		d.saved.Regions.Clear(i)
	}
	if s.Missing != nil {
		d.saved.Missing = s.Missing.Clone()
	}
	d.saved.Unknown = d.saved.Unknown && !s.Known
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
	all := r.Atomic && n.oneIn(2)
	n.eachCell(r, func(block int, c cell) {
		switch {
		case all:
			n.disk.putAll(block, c)
		case !r.Atomic && n.oneIn(2):
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
		d.dropped[i] += len(d.pending[i])
		d.pending[i] = nil
	}
	copy(d.cache, d.medium)
}

// eachCell calls f with what a record writes to each block.
func (n *node) eachCell(r *replica.Record, f func(block int, c cell)) {
	for i := range int(r.Len / blockSize) {
		c := cell{pos: pos{r.Term, r.Seq}}
		if r.Kind == replica.KindGrow || r.Kind == replica.KindFit {
			return // as it was, or as large as it has to be
		}
		if r.Kind != replica.KindZero {
			h := n.heap[int(r.Addr/blockSize)+i]
			c.val = h.val
			if r.Kind == replica.KindResync {
				c.pos = h.pos
			}
		}
		f(blockOf(r.Off)+i, c)
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

// digestOf differs also where two records have written the same: zeroes. A world does not take them for each other, though a host could.
func digestOf(cells []cell) (d replica.Digest) {
	h := fnv.New64a()
	for _, c := range cells {
		_, _ = fmt.Fprint(h, c.val, c.pos)
	}
	h.Sum(d[:0])
	return d
}
