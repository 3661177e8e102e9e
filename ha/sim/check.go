package sim

import (
	"fmt"
	"time"

	"oneshot/ha/replica"
)

// Violation is what a run has found.
type Violation struct {
	Invariant int // its number in docs/architecture/ha.md
	At        time.Duration
	Text      string
}

func (v *Violation) Error() string {
	return fmt.Sprintf("invariant %d at %.6f s: %s", v.Invariant, v.At.Seconds(), v.Text)
}

// fail notes the first violation, which ends the run.
func (r *run) fail(invariant int, format string, args ...any) {
	if r.violation == nil {
		r.violation = &Violation{invariant, r.now, fmt.Sprintf(format, args...)}
		r.logf("VIOLATION %v", r.violation)
	}
}

// floor is what a block has to be at least, and since when.
type floor struct {
	pos     pos // answered or read
	at      time.Duration
	acked   pos // answered
	flushed pos // before a Flush that was answered

	was   pos           // from where it was set back last,
	wasAt time.Duration // and since when it had been there
}

// raise: n has answered that a block is at p. Who goes on after a pause answers by what it has heard in it, and since
// then others may have lost their power, and the block what it had. So does who answers in a term that is over: what was there before the next term is not there anew.
func (r *run) raise(n *node, block int, p pos) {
	f := &r.floors[block]
	switch {
	case !f.pos.less(p), n.resuming && r.forgotten(n.since):
		return
	case n.resuming:
		f.pos, f.at = p, n.since
	case n.core.State().View.Term < r.view.Term && !f.was.less(p):
		f.pos, f.at = p, f.wasAt
	default:
		f.pos, f.at = p, r.now
	}
}

// checkStep looks at a node after each of its steps.
func (r *run) checkStep(n *node) {
	if n.core == nil {
		return
	}
	s := n.core.State()
	r.note(uint64(n.id), uint64(s.Role), s.View.Version, s.Last, s.Commit, s.Applied, s.Durable)
	if s.HeapUsed > r.cfg.Heap || s.Retained > r.cfg.Ring {
		r.fail(10, "node %d holds %d bytes and %d records", n.id, s.HeapUsed, s.Retained)
	}
	if n.keeper != nil {
		n.keeper.served(&s)
	}
	n.addresses.lookAt(n, &s)
	if s.Role != replica.Primary {
		return
	}
	if who, ok := r.primaries[s.View.Term]; ok && who != (reign{n.id, n.lives}) {
		r.fail(1, "node %d is primary in term %d, and node %d has been", n.id, s.View.Term, who.id)
	}
	if _, ok := r.primaries[s.View.Term]; !ok {
		r.primaries[s.View.Term] = reign{n.id, n.lives}
		r.Takeovers++
		r.checkPromoted(n, &s.View)
	}
}

// reign is one life of a node as the primary.
type reign struct {
	id   replica.ID
	life uint32
}

// content returns what a node has of a block: in its log, or on its disk.
func (n *node) content(block int) pos {
	p := n.disk.cache[block].pos
	n.eachRecord(func(rec *replica.Record) {
		q := pos{rec.Term, rec.Seq}
		if (rec.Kind == replica.KindWrite || rec.Kind == replica.KindZero) && covers(rec, block) && p.less(q) {
			p = q
		}
	})
	return p
}

func covers(rec *replica.Record, block int) bool {
	off := offOf(block)
	return rec.Off <= off && off < rec.Off+rec.Len
}

// eachRecord calls f for the records in the node's memory, whether its process is running or not.
func (n *node) eachRecord(f func(*replica.Record)) {
	if n.core != nil {
		for rec := range n.core.Log {
			f(rec)
		}
	} else if n.left != nil {
		for i := range n.left.Log {
			f(&n.left.Log[i])
		}
	}
}

// has says whether a node holds a record.
func (n *node) has(p pos) bool {
	switch {
	case n.core != nil:
		return n.core.Has(p.term, p.seq)
	case n.left != nil:
		return p.seq <= n.left.Base || isIn(n.left, p)
	}
	return false
}

// isIn says whether a log has a record.
func isIn(m *replica.Memory, p pos) bool {
	i := p.seq - m.Base - 1
	return p.seq > m.Base && i < uint64(len(m.Log)) && m.Log[i].Term == p.term
}

func quorum(cfg *replica.Config, v *replica.View) int { return min(cfg.Quorum, v.InSync.Len()) }

// underWay is how long after a power cut others may still act on what the node has told before.
const underWay = 50 * time.Millisecond

// hasLost says whether a node lost its power after a floor was there, or before, while it held what the floor is: a moment before, for who was told that it does
// tells the host a moment later; and, as long as it is off, 2/5 of SlowCopy before, for a primary that was cut off from it takes in for so long whom it has
// heard last. Nobody can tell that from a loss behind the floor. It may lack what was not flushed.
func (n *node) hasLost(f *floor) bool {
	acts := underWay
	if n.core == nil {
		acts = n.cfg.SlowCopy * 2 / 5
	}
	return n.wasAt != 0 && (n.wasAt >= f.at || n.wasAt >= f.at-acts && n.cutOff != nil && isIn(n.cutOff, f.pos))
}

// lost counts the members that have.
func (r *run) lost(members replica.Nodes, f *floor) int {
	k := 0
	for id := range members.All() {
		k += b2i(r.nodes[id].hasLost(f))
	}
	return k
}

// checkView looks at a view as it is agreed on.
func (r *run) checkView(old, v *replica.View) {
	if v.Primary != old.Primary && !old.InSync.Has(v.Primary) {
		r.fail(7, "node %d is promoted, but only %b were in sync", v.Primary, old.InSync)
	}
	if v.Term == old.Term && v.Primary != old.Primary {
		r.fail(1, "nodes %d and %d share the term %d", old.Primary, v.Primary, v.Term)
	}
	for b := range r.floors {
		f := &r.floors[b]
		k := 0
		for id := range v.InSync.All() {
			if n := r.nodes[id]; !n.content(b).less(f.pos) || n.hasLost(f) || n.misses(b) {
				k++
			}
		}
		if k < quorum(&r.cfg, v) && r.lost(old.InSync, f) < quorum(&r.cfg, old) {
			invariant := 2
			if v.Term != old.Term && r.nodes[v.Primary].content(b).less(f.pos) {
				invariant = 3
			}
			r.fail(invariant, "block %d at %v is held by %d of %b", b, f.pos, k, v.InSync)
		}
		if v.Term != old.Term && !r.nodes[v.Primary].misses(b) {
			r.setBack(b, r.nodes[v.Primary].content(b)) // its primary may never reign
		}
	}
	r.checkDurable(v)
	r.checkBehind(v)
	r.checkDifferences(v)
}

// checkDurable: W members of a view have durable what was flushed.
func (r *run) checkDurable(v *replica.View) {
	for b := range r.floors {
		k := 0
		for id := range v.InSync.All() {
			k += b2i(r.nodes[id].isDurable(b, r.floors[b].flushed))
		}
		if k < quorum(&r.cfg, v) {
			r.fail(9, "block %d at %v was flushed, and %d of %b have it durable", b, r.floors[b].flushed, k, v.InSync)
		}
	}
}

// isDurable says whether a disk has what was written, or had it before it was set back: its node is a member until
// others know.
func (n *node) isDurable(block int, p pos) bool {
	return n.disk.saved.Unknown || !n.disk.medium[block].pos.less(p) || n.disk.saved.Missing.Has(sectorOf(block))
}

// checkPromoted looks at what a new primary has.
func (r *run) checkPromoted(n *node, v *replica.View) {
	if v.Version == 1 {
		return
	}
	if v.Version > r.view.Version {
		r.fail(1, "node %d is primary by a view that was not agreed on", n.id)
		return
	}
	r.checkAtomics(n)
	old := r.views[v.Version-2]
	for b := range r.floors {
		f := &r.floors[b]
		p := n.content(b)
		if n.misses(b) {
			if g, ok := r.gone[b]; ok && r.lost(old.InSync, f) >= quorum(&r.cfg, &old) {
				r.setBack(b, g) // what was written there since is lost, and it is missing again
			}
			continue
		}
		// If a floor is of a later term the view is not the newest any more: this primary answers nothing.
		if f.flushed.term <= v.Term && p.less(f.flushed) {
			r.fail(9, "block %d of the new primary %d is at %v, and %v was flushed", b, n.id, p, f.flushed)
		}
		if f.pos.term > v.Term || !p.less(f.pos) {
			continue
		}
		if lost := r.lost(old.InSync, f); lost < quorum(&r.cfg, &old) {
			r.fail(3, "block %d of the new primary %d is at %v, and %v was acknowledged or read; %d of %b have lost their power", b, n.id, p, f.pos, lost, old.InSync)
		}
		r.setBack(b, p)
	}
}

// setBack: power cuts of W members have taken what a block had after p.
func (r *run) setBack(block int, p pos) {
	if f := &r.floors[block]; p.less(f.pos) {
		r.Losses++
		f.was, f.wasAt = f.pos, f.at
		f.pos, f.acked = p, p
	}
}

// checkAnswer looks at what a host is told.
func (r *run) checkAnswer(n *node, a *attempt, e *replica.Answer) {
	s := n.core.State()
	if e.Status == replica.Failed {
		if !r.wasAlone(r.worn, a.began) && !r.isGone(a) {
			r.fail(20, "node %d cannot read, and other disks of %b can", n.id, s.View.InSync)
		}
		return
	}
	if s.Role != replica.Primary {
		r.fail(1, "node %d answers, and is not the primary", n.id)
	}
	if !s.View.InSync.Has(n.id) {
		r.fail(7, "node %d answers, and is not in sync", n.id)
	}
	switch {
	case a.kind == doRead:
		r.checkRead(n, a)
	case a.kind == doFlush:
		r.checkFlush(n, a)
	case a.kind == doGrow:
		r.checkGrown(a, e)
	case a.kind == doSwap && e.Status == replica.Miscompare:
		if got := a.got[0]; got.val == a.write[0] && got.pos.term < s.View.Term && !r.forgotten(a.command.began) {
			r.fail(12, "a COMPARE AND WRITE of term %d was done, and its initiator is told in term %d that it was not", got.pos.term, s.View.Term)
		}
		r.checkRead(n, a)
	case a.kind == doSwap && e.Seq < s.View.First:
		r.SwapsKept++ // it was done before a takeover
	default:
		r.checkWritten(n, a, pos{s.View.Term, e.Seq})
	}
}

// wasAlone says whether one node was all of S at some time since.
func (r *run) wasAlone(id replica.ID, since time.Duration) bool {
	for i := len(r.views) - 1; i >= 0; i-- {
		if r.views[i].InSync == replica.NodesOf(id) {
			return true
		}
		if r.viewsAt[i] < since {
			break
		}
	}
	return false
}

// remains returns what there is of a block that was at p when an attempt began: power cuts may have taken that since.
func (r *run) remains(block int, p pos) pos {
	if now := r.floors[block].pos; now.less(p) {
		return now
	}
	return p
}

// checkRead: a block is a register. What was answered or read before is the least.
func (r *run) checkRead(n *node, a *attempt) {
	for k, got := range a.got {
		b := a.block + k
		want := r.remains(b, a.floor[k])
		if got.pos.less(want) {
			r.fail(8, "block %d reads %v of %v, and %v was answered or read before", b, got.val, got.pos, want)
		}
		if !r.forgotten(a.began) { // else it may tell what was so before that
			r.raise(n, b, got.pos)
		}
		if r.cfg.Stores[b2i(b >= inFirst)].Through && !got.pos.less(want) {
			r.checkThrough(b, got.pos)
		}
	}
}

// checkWritten: W members hold what is acknowledged.
func (r *run) checkWritten(n *node, a *attempt, p pos) {
	if a.nexus != nil {
		r.fencing.checkFenced(a, p)
	}
	if a.kind == doSwap {
		if q, ok := r.swapped[a.key]; ok && q != p && !r.forgotten(a.command.began) {
			r.fail(12, "a COMPARE AND WRITE was done as %v and as %v", q, p)
		}
		r.swapped[a.key] = p
	}
	k, holders := 0, 0
	for _, m := range r.nodes {
		holders += b2i(m.has(p) || m.wasAt != 0 && m.wasAt >= a.began)
	}
	for id := range r.view.InSync.All() {
		if m := r.nodes[id]; m.has(p) || m.wasAt != 0 && m.wasAt >= a.began {
			k++
		}
	}
	if k < quorum(&r.cfg, &r.view) || holders < r.cfg.MinCopies {
		r.fail(2, "node %d acknowledges %v, which %d of %b hold", n.id, p, k, r.view.InSync)
	}
	if a.atomic {
		r.noteAtomic(p, a)
	}
	for b := a.block; b < a.block+a.n; b++ {
		r.raise(n, b, p)
		if r.cfg.Stores[b2i(b >= inFirst)].Through {
			r.checkThrough(b, p)
		}
		if r.floors[b].acked.less(p) && !(n.resuming && r.forgotten(n.since)) {
			r.floors[b].acked = p
		}
	}
}

// forgotten says whether as many members have lost their power since a time as may have been the only ones that
// knew of something.
func (r *run) forgotten(since time.Duration) bool {
	w := len(r.nodes)
	for i := len(r.views) - 1; i >= 0; i-- {
		w = min(w, quorum(&r.cfg, &r.views[i]))
		if r.viewsAt[i] < since {
			break
		}
	}
	lost := 0
	for id := range r.cfg.Copies.All() {
		lost += b2i(r.nodes[id].wasAt != 0 && r.nodes[id].wasAt >= since)
	}
	return lost >= w
}

// checkThrough: W disks have what is acknowledged or read of a store that writes through.
func (r *run) checkThrough(b int, p pos) {
	k := 0
	for id := range r.view.InSync.All() {
		k += b2i(r.nodes[id].isDurable(b, p))
	}
	if k < quorum(&r.cfg, &r.view) {
		r.fail(9, "block %d at %v, which goes through, is answered, and %d of %b have it durable", b, p, k, r.view.InSync)
	}
	if r.floors[b].flushed.less(p) {
		r.floors[b].flushed = p
	}
}

// checkBehind: a member that is larger than the hosts know, and so will be when it serves, has nothing there.
func (r *run) checkBehind(v *replica.View) {
	for id := range v.InSync.All() {
		x := r.nodes[id]
		for b := inFirst + int(r.size/blockSize); b < inFirst+int(x.sizes[1]/blockSize); b++ {
			if got := x.disk.cache[b]; got != (cell{}) && !x.disk.saved.Unknown && !x.misses(b) {
				r.fail(18, "behind the end of a store node %d, which is in sync, has %v", id, got)
			}
		}
	}
}

// checkGrown: all members have the size that the hosts learn, and nothing is in what is new, but for what a copy does not show, as nobody could read it.
func (r *run) checkGrown(a *attempt, e *replica.Answer) {
	if e.Status == replica.Refused {
		if a.grow >= r.asked {
			r.fail(18, "a store of %d bytes may not have %d", r.size, a.grow)
		}
		return
	}
	for id := range r.view.InSync.All() {
		if x := r.nodes[id]; x.sizes[1] < a.grow && !x.disk.saved.Unknown {
			r.fail(18, "a store has %d bytes on node %d, and the host is told that it has %d", x.sizes[1], id, a.grow)
		}
	}
	for b := inFirst + int(r.size/blockSize); b < inFirst+int(a.grow/blockSize); b++ {
		for id := range r.view.InSync.All() {
			if x := r.nodes[id]; x.disk.cache[b] != (cell{}) && !x.disk.saved.Unknown && !x.misses(b) {
				got := x.disk.cache[b]
				r.fail(18, "what is new in a store reads as %v on node %d", got, id)
			}
		}
	}
	r.size = max(r.size, a.grow)
}

// atomic is a write of which no disk may have a part.
type atomic struct {
	pos      pos
	block, n int
}

func (r *run) noteAtomic(p pos, a *attempt) {
	const kept = 64
	if len(r.atomics) == kept {
		r.atomics = append(r.atomics[:0], r.atomics[1:]...)
	}
	r.atomics = append(r.atomics, atomic{p, a.block, a.n})
}

// checkAtomics: what a new primary has of an atomic write is all of it, or was overwritten.
func (r *run) checkAtomics(n *node) {
	for _, a := range r.atomics {
		some, all := false, true
		for b := a.block; b < a.block+a.n; b++ {
			if n.misses(b) {
				continue
			}
			p := n.content(b)
			some = some || p == a.pos
			all = all && !p.less(a.pos)
		}
		if some && !all {
			r.fail(17, "the new primary %d has a part of the atomic write %v", n.id, a.pos)
		}
	}
}

// checkFlush: W disks have durably what was answered before.
func (r *run) checkFlush(n *node, a *attempt) {
	for b := range r.floors {
		want := r.remains(b, a.floor[b])
		k := 0
		for id := range r.view.InSync.All() {
			k += b2i(r.nodes[id].isDurable(b, want))
		}
		if k < quorum(&r.cfg, &r.view) {
			r.fail(9, "node %d answers a Flush of block %d at %v, which %d of %b have durable", n.id, b, want, k, r.view.InSync)
		}
		if r.floors[b].flushed.less(want) {
			r.floors[b].flushed = want
		}
	}
	r.Flushes++
}

// checkApply: on no disk a record precedes an earlier one that it overlaps.
func (r *run) checkApply(n *node, rec *replica.Record) {
	for i := range n.disk.writing {
		if w := &n.disk.writing[i]; w.Off < rec.Off+rec.Len && rec.Off < w.Off+w.Len {
			r.fail(4, "node %d has %d and %d under way, which overlap", n.id, w.Seq, rec.Seq)
		}
	}
	p := pos{rec.Term, rec.Seq}
	for b := blockOf(rec.Off); b < blockOf(rec.Off+rec.Len); b++ {
		if !n.disk.lastRec[b].less(p) && n.disk.lastRec[b] != p {
			r.fail(4, "node %d applies %v to block %d after %v", n.id, p, b, n.disk.lastRec[b])
		}
	}
	if !n.regionsSet(rec) {
		r.fail(5, "node %d applies %d, and its regions are not set", n.id, rec.Seq)
	}
}

func (n *node) regionsSet(rec *replica.Record) bool {
	for i := int(rec.Off / regionSize); int64(i)*regionSize < rec.Off+rec.Len; i++ {
		if !n.disk.saved.Regions.Has(i) {
			return false
		}
	}
	return true
}

// checkPlaced: nobody else writes into a node's memory than whom it follows.
func (r *run) checkPlaced(to *node, f *flight) {
	if to.core == nil {
		return
	}
	if s := to.core.State(); s.Stream != f.stream || s.Writer != f.from {
		r.fail(10, "node %d writes as %d into the memory of node %d, which takes it from %d as %d", f.from, f.stream, to.id, s.Writer, s.Stream)
	}
}

// checkRepair: what a primary takes from another copy is what it has written, though it cannot read that.
func (r *run) checkRepair(n *node, rec *replica.Record) {
	if rec.Kind != replica.KindResync || rec.Copy != n.id || n.core == nil || n.core.State().Role != replica.Primary {
		return
	}
	n.eachCell(rec, func(b int, c cell) {
		if !n.misses(b) && !n.disk.rot[b] && !r.same(c, n.disk.cache[b]) {
			r.fail(20, "block %d of node %d, %v, becomes %v when it is repaired", b, n.id, n.disk.cache[b], c)
		}
	})
}

// checkData: the memory of a record is the record's until its disk has it.
func (r *run) checkData(n *node, rec *replica.Record) {
	if rec.Kind == replica.KindZero {
		return
	}
	if got := sum(n.heap[rec.Addr/blockSize : (rec.Addr+rec.Len)/blockSize]); got != rec.Sum {
		r.fail(10, "the memory of record %d was used again on node %d before it was applied", rec.Seq, n.id)
	}
}

// checkDifferences: where two copies differ, a bit, a region or a record says so.
func (r *run) checkDifferences(v *replica.View) {
	p := r.nodes[v.Primary]
	if p.core == nil {
		return
	}
	if s := p.core.State(); s.Role != replica.Primary || s.View.Version != v.Version {
		return
	}
	for _, x := range r.nodes {
		if x == p || x.disk.saved.Unknown {
			continue
		}
		for b := range x.disk.cache {
			if r.same(x.disk.cache[b], p.disk.cache[b]) || x.misses(b) || p.misses(b) || x.disk.rot[b] || p.disk.rot[b] || !r.isInside(b) || x.sizes != p.sizes && !v.InSync.Has(x.id) {
				continue
			}
			if r.isKnown(p, x, b, v.InSync.Has(x.id)) {
				if p.core.Keeps(x.id, offOf(b), blockSize) && !p.hasRecordOf(b) {
					r.fail(20, "block %d is %v on node %d and %v on node %d, from which it would be taken", b, p.disk.cache[b], p.id, x.disk.cache[b], x.id)
				}
				continue
			}
			invariant := 5
			if p.core.Streams(x.id) {
				invariant = 6 // it lacked the block, and the bit was cleared
			}
			r.fail(invariant, "block %d is %v on node %d and %v on node %d, and nothing says so", b, p.disk.cache[b], p.id, x.disk.cache[b], x.id)
		}
	}
}

// same compares blocks; once heal was called, without what has rotted, for that was on its way then, perhaps.
func (r *run) same(a, b cell) bool { return a == b || r.healed && a.healed() == b.healed() }

// hasRecordOf says whether a record in a node's memory changes a block.
func (n *node) hasRecordOf(block int) (has bool) {
	n.eachRecord(func(rec *replica.Record) { has = has || covers(rec, block) })
	return has
}

// isKnown says whether something tells that two copies may differ in a block.
func (r *run) isKnown(p, x *node, block int, member bool) bool {
	granule, region := int(offOf(block)/granuleSize), int(offOf(block)/regionSize)
	known := false
	note := func(rec *replica.Record) { known = known || covers(rec, block) }
	p.eachRecord(note)
	if member {
		x.eachRecord(note)
		return known
	}
	return known || p.core.Bitmap(x.id).Has(granule) || x.core != nil && x.core.Suspects().Has(granule) ||
		!p.core.Streams(x.id) && x.disk.saved.Regions.Has(region)
}
