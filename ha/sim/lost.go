package sim

import (
	"slices"

	"oneshot/ha/replica"
)

// sectorOf is the number by which the core knows a block that a copy misses.
func sectorOf(block int) int { return int(offOf(block) / blockSize) }

// misses says whether a node knows that its copy does not have a block, because nobody could read it.
func (n *node) misses(block int) bool {
	if n.core != nil {
		return n.core.Misses(offOf(block), blockSize)
	}
	is := n.disk.saved.Missing.Has(sectorOf(block))
	if n.left == nil {
		return is
	}
	for i := range n.left.Log {
		rec := &n.left.Log[i]
		switch {
		case rec.Seq > n.left.Applied || !covers(rec, block):
		case rec.Kind == replica.KindLost:
			is = is || rec.Copy == n.id
		case rec.Kind == replica.KindWrite, rec.Kind == replica.KindZero, rec.Kind == replica.KindResync && rec.Copy == n.id:
			is = false
		}
	}
	return is
}

// checkLost: a copy goes without what no member can read.
func (r *run) checkLost(n *node, l *replica.Lost) {
	members := n.core.State().View.InSync
	for b := blockOf(l.Off); b < blockOf(l.Off+l.Len); b++ {
		r.Lost++
		p := r.floors[b].pos
		for _, x := range r.nodes {
			if q := x.content(b); p.less(q) {
				p = q
			}
		}
		r.gone[b] = p
		for id := range members.All() {
			if x := r.nodes[id]; !x.disk.bad[b] && !x.disk.wasBad[b] && !x.misses(b) {
				r.fail(20, "node %d gets in sync without block %d, which node %d has", l.To, b, id)
			}
		}
		for _, x := range r.nodes {
			if n.core.Keeps(x.id, offOf(b), blockSize) && !n.hasJustCleaned(x, b) && !x.disk.bad[b] && !x.disk.wasBad[b] && !x.misses(b) && !n.hasToldToMiss(x, b) {
				r.fail(20, "node %d gets in sync without block %d, which node %d has kept", l.To, b, x.id)
			}
		}
	}
}

// hasJustCleaned says whether a node has found out behind the newest loss, perhaps in the same step, that another one has the granule of a block.
func (n *node) hasJustCleaned(x *node, block int) (has bool) {
	n.eachRecord(func(rec *replica.Record) {
		switch rec.Kind {
		case replica.KindLost:
			has = false
		case replica.KindClean:
			has = has || rec.Copy == x.id && covers(rec, block)
		}
	})
	return has
}

// hasToldToMiss says whether a node has told another one to go without a block, and has given it nothing for that place since. If the other one has lost its
// power it may have forgotten that; it has refused to lend the block while it knew.
func (n *node) hasToldToMiss(x *node, block int) (has bool) {
	n.eachRecord(func(rec *replica.Record) {
		switch {
		case !covers(rec, block):
		case rec.Kind == replica.KindLost:
			has = has || rec.Copy == x.id
		case rec.Kind == replica.KindWrite, rec.Kind == replica.KindZero, rec.Kind == replica.KindResync && rec.Copy == x.id:
			has = false
		}
	})
	return has
}

// isGone says whether nobody has a block of a read, and it was not written before the read began. What has been written since, or is in
// another view by now, nobody may have had then; nor what a write has changed that is under way. A write of before that power cuts have taken does not
// count: that it is gone is known when the next primary has its office, and a read may have begun before and be its first.
func (r *run) isGone(a *attempt) bool {
	changed := r.viewsAt[len(r.viewsAt)-1] >= a.began
	for k := range a.n {
		b := a.block + k
		p, ok := r.gone[b]
		if want := r.remains(b, a.floor[k]); ok && !p.less(want) && (changed || r.floors[b].pos != want || !r.isThere(b, p)) {
			return true
		}
	}
	return false
}

// isThere says whether a member can read a block, and has nothing there that is newer than p.
func (r *run) isThere(b int, p pos) bool {
	for id := range r.view.InSync.All() {
		if x := r.nodes[id]; !x.disk.bad[b] && !x.disk.wasBad[b] && !x.misses(b) && !p.less(x.content(b)) {
			return true
		}
	}
	return false
}

// isAnyGone says whether a copy went without one of these blocks.
func (r *run) isAnyGone(from, to int) bool {
	for b := range r.gone {
		if from <= b && b < to {
			return true
		}
	}
	return false
}

// checkRepaired: all copies were compared, and all disks can read: a copy has what another one has.
func (r *run) checkRepaired() {
	for b := range blocks {
		var with, without []*node
		for _, n := range r.nodes {
			if n.misses(b) {
				without = append(without, n)
			} else {
				with = append(with, n)
			}
		}
		if len(with) > 0 && len(without) > 0 && !r.isUnderWay(b-b%(granuleSize/blockSize)) {
			r.fail(19, "the copies were compared and repaired, and node %d still goes without block %d, which node %d has", without[0].id, b, with[0].id)
		}
	}
}

// blocksFrom are the blocks of a granule.
func blocksFrom(first int) (list []int) {
	for b := first; b < first+granuleSize/blockSize; b++ {
		list = append(list, b)
	}
	return list
}

// isUnderWay says whether a record of a granule is in a log: not all disks may have it.
func (r *run) isUnderWay(first int) (is bool) {
	for _, n := range r.nodes {
		n.eachRecord(func(rec *replica.Record) {
			is = is || slices.ContainsFunc(blocksFrom(first), func(b int) bool { return covers(rec, b) })
		})
	}
	return is
}
