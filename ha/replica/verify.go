package replica

import "slices"

// verify compares the copies in S while writes go on. A record (KindCheck) has a place in the order, and each member
// hashes the range at that place: after all earlier writes, and before all later ones. So copies that are equal have
// equal hashes, whatever is on its way.
type verify struct {
	Verify
	store  int   // where it goes on
	next   int64 // offset in the store
	checks []*check
	finer  []span // that no member reads as a whole, or of which nobody knows who has it right: they are compared in smaller pieces
	faults []*fault
	until  uint64 // the newest record that repairs
}

// check is a range whose hashes are awaited.
type check struct {
	seq    uint64
	off, n int64
	got    Nodes
	failed Nodes // their disks refuse to read it
	digest [16]Digest
}

// fault is a range that is being repaired: odd members get what is on a right one.
type fault struct {
	off, n     int64
	right, odd Nodes
	unreadable Nodes
	busy       bool
}

// lose takes note of a member whose disk does not read the range any more.
func (f *fault) lose(id ID) {
	f.right, f.odd, f.unreadable = f.right.Without(id), f.odd.With(id), f.unreadable.With(id)
}

// oddIn returns the members that are known to have something in the range wrong. Nothing is taken from them.
func (c *Core) oddIn(off, n int64) Nodes {
	var odd Nodes
	if c.verify != nil {
		for _, f := range c.verify.faults {
			if f.off < off+n && off < f.off+f.n {
				odd |= f.odd
			}
		}
	}
	return odd
}

// oddLeave has odd members that have left S get, when they return, what they have wrong.
func (c *Core) oddLeave() {
	if c.verify == nil {
		return
	}
	for _, f := range c.verify.faults {
		for id := range (f.odd &^ c.view.InSync).All() {
			c.mark(&c.bitmaps[id], f.off, f.n)
		}
		f.odd &= c.view.InSync
	}
}

// verifyOn takes a verification on.
func (c *Core) verifyOn() {
	v := c.verify
	if v == nil || c.sealing {
		return
	}
	for len(v.checks)+len(v.faults) < c.cfg.Copying && c.hasRoom() && c.mayMove() && !c.pace.holds { // a copy that waits comes first
		r, ok := c.nextCheck(v)
		if !ok {
			break
		}
		c.moves(r.n)
		k := &check{seq: c.log.last() + 1, off: r.off, n: r.n}
		v.checks = append(v.checks, k)
		c.append(Record{Term: c.view.Term, Seq: k.seq, Kind: KindCheck, Off: k.off, Len: k.n})
	}
	for _, k := range v.checks {
		c.checkAgain(k)
	}
	v.checks = slices.DeleteFunc(v.checks, func(k *check) bool {
		if c.view.InSync&^k.got != 0 {
			return false
		}
		if !c.divide(v, k) {
			c.judge(v, k)
			c.verified += k.n
		}
		return true
	})
	for _, f := range v.faults {
		c.repair(v, f)
	}
	v.faults = slices.DeleteFunc(v.faults, func(f *fault) bool { return f.odd == 0 })
	if v.store == len(c.stores) && len(v.checks)+len(v.finer)+len(v.faults) == 0 && c.lowest(c.appliedBy) >= v.until {
		c.answer(v.ID, Good)
		c.verify = nil
	}
}

// nextCheck returns what is compared next.
func (c *Core) nextCheck(v *verify) (r span, ok bool) {
	if len(v.finer) > 0 {
		r, v.finer = v.finer[0], v.finer[1:]
		return r, true
	}
	for ; v.store < len(c.stores); v.store, v.next = v.store+1, 0 {
		if s := &c.stores[v.store]; v.next < s.Size {
			r = span{s.Off + v.next, c.granuleLen(s.Off + v.next)}
			v.next += r.n
			return r, true
		}
	}
	return r, false
}

// divide has a range compared in pieces that is to be repaired, and of which each member may have a part that others cannot read.
func (c *Core) divide(v *verify, k *check) bool {
	step := c.smaller(k.n)
	if !v.Repair || step == 0 || k.failed&c.view.InSync == 0 || c.rightOf(v, k) != 0 {
		return false
	}
	for off := k.off; off < k.off+k.n; off += step {
		v.finer = append(v.finer, span{off, min(step, k.off+k.n-off)})
	}
	return true
}

// Verified returns how much the verification under way, or the last one, has looked at, and how much there is.
func (c *Core) Verified() (bytes, of int64) {
	for i := range c.stores {
		of += c.stores[i].Size
	}
	return c.verified, of
}

// checkAgain gives a check another place in the order if a member has passed the one that it had, and its answer was
// lost with a connection.
func (c *Core) checkAgain(k *check) {
	for id := range (c.view.InSync &^ k.got).All() {
		if c.appliedBy(id) >= k.seq && c.hasRoom() {
			*k = check{seq: c.log.last() + 1, off: k.off, n: k.n}
			c.append(Record{Term: c.view.Term, Seq: k.seq, Kind: KindCheck, Off: k.off, Len: k.n})
			return
		}
	}
}

// hashed takes a hash. For a comparison of members that of a copy outside S does not count, for it may have got the range after that place in the order; once it
// is a member the check has another place.
func (c *Core) hashed(from ID, seq uint64, d Digest, failed bool) {
	if c.role != Primary {
		return
	}
	take := func(checks []*check) {
		for _, k := range checks {
			if k.seq == seq {
				k.got, k.digest[from] = k.got.With(from), d
				if failed {
					k.failed = k.failed.With(from)
				}
			}
		}
	}
	if c.verify != nil && c.view.InSync.Has(from) {
		take(c.verify.checks)
	}
	for id := range c.peer {
		if p := &c.peer[id]; p.stream != 0 && p.outside && (from == c.cfg.Self || from == ID(id)) {
			take(p.checks)
		}
	}
}

// judge says which members have a range right, and what becomes of the others.
func (c *Core) judge(v *verify, k *check) {
	members := c.view.InSync
	right := c.rightOf(v, k)
	if right == members {
		return
	}
	f := &fault{off: k.off, n: k.n, right: right, odd: members &^ right, unreadable: k.failed}
	known := right != 0
	if !known {
		f.odd = members // nobody knows who
	}
	repair := known && v.Repair
	c.out = append(c.out, Found{ID: v.ID, Off: k.off, Len: k.n, Odd: f.odd, Unreadable: f.unreadable, Known: known, Repair: repair})
	if repair {
		v.faults = append(v.faults, f)
	}
}

// rightOf returns the members that have the range right: all who are equal, if nobody differs; those whom the
// administrator trusts; the majority; or all whose disk reads it, if a disk's error tells. None: nobody knows.
func (c *Core) rightOf(v *verify, k *check) Nodes {
	var right Nodes
	readable := c.view.InSync &^ k.failed
	for id := range readable.All() {
		var equal Nodes
		for other := range readable.All() {
			if k.digest[other] == k.digest[id] {
				equal = equal.With(other)
			}
		}
		switch {
		case equal == readable:
			return equal
		case v.Trust&equal != 0:
			return equal
		case v.Trust&readable == 0 && equal.Len()*2 > c.view.InSync.Len():
			right = equal
		}
	}
	return right
}

// repair brings a range of odd members level: first this node's, then from here the others'.
func (c *Core) repair(v *verify, f *fault) {
	switch {
	case f.busy || f.odd == 0:
	case f.odd.Has(c.cfg.Self):
		f.busy = true
		c.mend(&mending{off: f.off, n: f.n, tried: ^f.right, then: func(ok bool) {
			f.busy, v.until = false, max(v.until, c.log.last())
			f.odd = f.odd.Without(c.cfg.Self)
			if !ok { // who had it right is gone, or cannot read it any more
				c.out = append(c.out, Found{ID: v.ID, Off: f.off, Len: f.n, Odd: f.odd.With(c.cfg.Self), Unreadable: f.unreadable, Known: true})
				f.odd = 0
			}
		}})
	default:
		for id := range f.odd.All() {
			c.level(f, id)
			return
		}
	}
}

// level copies a range to a member.
func (c *Core) level(f *fault, id ID) {
	p := &c.peer[id]
	if p.stream == 0 || p.outside || c.isLocked(f.off, f.n) || !c.hasRoomForJob() {
		return
	}
	addr, ok := c.alloc(c.spare, f.n)
	if !ok {
		return
	}
	f.busy = true
	c.locks = append(c.locks, span{f.off, f.n})
	c.jobs = append(c.jobs, &job{
		to: id, stream: p.stream, off: f.off, n: f.n, addr: addr, memory: true, locked: true, fault: f,
	})
}

// levelled: a record that repairs the range is in the log.
func (c *Core) levelled(f *fault, id ID) {
	f.busy, f.odd = false, f.odd.Without(id)
	if c.verify != nil {
		c.verify.until = max(c.verify.until, c.log.last())
	}
}
