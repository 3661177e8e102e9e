package sim

import (
	"time"

	"oneshot/ha/replica"
)

// rotten is what a block becomes that changes by itself.
const rotten = 1 << 62

func (c cell) isRotten() bool { return c.val&rotten != 0 && c.val < 1<<63 }

func (c cell) healed() cell {
	if c.isRotten() {
		c.val &^= rotten
	}
	return c
}

// heal makes blocks what they were: members have changed, so a copy may have been brought level with a rotten one, and
// nobody can tell any more which is which.
func (r *run) heal() {
	r.healed, r.rotten = true, map[int]replica.ID{}
	for _, n := range r.nodes {
		for b := range n.disk.cache {
			n.disk.cache[b], n.disk.medium[b] = n.disk.cache[b].healed(), n.disk.medium[b].healed()
			n.disk.rot[b] = false
		}
	}
}

// verify compares the copies. Those of trust are right.
func (r *run) verify(trust replica.Nodes) {
	if r.verifying != nil {
		return
	}
	n := r.nodes[r.view.Primary]
	r.attempts++
	r.verifying = &attempt{command: &command{began: r.now}, id: r.attempts, node: n, life: n.lives, trust: trust}
	r.open[r.attempts] = r.verifying
	if n.core == nil {
		r.verifyAgain()
		return
	}
	n.tell(replica.Verify{ID: r.attempts, Repair: true, Trust: trust})
}

// stopVerify has a comparison end early, unless it has to find something.
func (r *run) stopVerify() {
	if a := r.verifying; a != nil && len(r.rotten) == 0 && a.node.core != nil && a.node.lives == a.life {
		a.node.tell(replica.StopVerify{})
	}
}

// verifyAgain: the primary is another. Nobody repeats it for ever.
func (r *run) verifyAgain() {
	a := r.verifying
	delete(r.open, a.id)
	if len(r.rotten) == 0 {
		r.verifying = nil
		return
	}
	r.after(50*time.Millisecond, func() {
		r.verifying = nil
		r.verify(a.trust)
	})
}

// verified: nothing differs any more.
func (r *run) verified(a *attempt, e *replica.Answer) {
	if e.Status != replica.Good {
		r.verifyAgain()
		return
	}
	if len(r.rotten) > 0 && r.view.Version != r.rotAt {
		r.heal()
	}
	for _, n := range r.nodes {
		for b, rot := range n.disk.rot {
			if rot {
				r.fail(19, "the copies were compared and repaired, and block %d of node %d is still not what was written", b, n.id)
			}
		}
	}
	if len(r.rotten) > 0 && !r.healed {
		r.checkRepaired()
	}
	delete(r.open, a.id)
	r.verifying = nil
	r.rotten = nil
	r.Verified++
}

// found: a range differs. Then it was not what was written, or cannot be read.
func (r *run) found(f *replica.Found) {
	r.Found++
	if len(r.rotten) > 0 && r.view.Version != r.rotAt {
		r.heal()
	}
	if r.healed {
		return
	}
	if f.Unreadable&^replica.NodesOf(r.worn) != 0 && !r.isAnyGone(blockOf(f.Off), blockOf(f.Off+f.Len)) {
		r.fail(19, "%b are said to have a bad disk at %d", f.Unreadable, f.Off)
	}
	odd, ok := r.rotten[int(f.Off/granuleSize)]
	switch {
	case f.Unreadable != 0 && !ok:
	case !ok:
		r.fail(19, "%b are said to differ at %d, and nothing has changed there", f.Odd, f.Off)
	case !f.Known || f.Odd != replica.NodesOf(odd) && f.Unreadable == 0:
		r.fail(19, "%b are said to differ at %d, and %d does (known: %v)", f.Odd, f.Off, odd, f.Known)
	}
}

// rotOn lets some blocks change by themselves, each on one copy; then copies are compared. Of two copies nobody can
// know which is right, so the administrator says it: of three, if one has just been dropped, he would have to say it too.
func (r *run) rotOn() {
	if r.violation != nil || r.view.InSync != r.cfg.Copies {
		return
	}
	if r.verifying != nil {
		r.fail(19, "the copies are compared, and it does not end")
	}
	r.rotten, r.rotAt = map[int]replica.ID{}, r.view.Version
	one := replica.ID(r.r.IntN(len(r.nodes)))
	trust := replica.Nodes(0)
	for range 3 {
		x := r.nodes[one]
		if len(r.nodes) > 2 {
			x = r.nodes[r.r.IntN(len(r.nodes))]
		} else {
			trust = r.view.InSync.Without(one)
		}
		b := r.r.IntN(inFirst)
		granule := int(offOf(b) / granuleSize)
		if _, ok := r.rotten[granule]; ok || r.isAnyGone(granule*granuleSize/blockSize, (granule+1)*granuleSize/blockSize) || len(x.disk.pending[b]) > 0 || x.content(b) != x.disk.cache[b].pos {
			continue
		}
		r.rotten[granule] = x.id
		x.disk.cache[b].val |= rotten
		x.disk.medium[b] = x.disk.cache[b]
		x.disk.rot[b] = true
		r.logf("block %d rots on node %d", b, x.id)
	}
	r.verify(trust)
}
