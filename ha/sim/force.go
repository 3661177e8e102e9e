package sim

import (
	"time"

	"oneshot/ha/replica"
)

// force is the administrator's: all nodes end, and one of them goes on with the copy that it has, as if the others were lost. They come back
// when they have given up what it does not have. What hosts were told before counts only as far as that copy has it.
func (r *run) force(x *node) {
	for _, n := range r.nodes {
		if n.disk.saved.Unknown || x.sizes[1] < r.size {
			return // of a smaller copy hosts would see the end
		}
	}
	for _, n := range r.nodes {
		if r.oneIn(2) {
			n.kill()
		} else {
			n.powerCut()
		}
		n.left, n.cutOff, n.wasAt = nil, nil, r.now
		n.disk.sync(n.disk.mark()) // what a life without memory does at its begin
	}
	known := x.disk.saved.View
	if known.Version < x.knew.Version {
		known = x.knew
	}
	v := replica.View{Version: r.view.Version + 1, Term: r.view.Term + 1, First: r.view.First, Primary: x.id, InSync: replica.NodesOf(x.id)}
	r.logf("node %d is forced, as it knows %+v, by %+v", x.id, known, v)
	x.disk.saved.Force(v, known.InSync.Has(x.id), r.configOf(x))
	for _, n := range r.nodes {
		if n == x {
			continue
		}
		if n.disk.saved.GiveUp(n.id, r.configOf(n)) {
			r.GivenUp++
		} else {
			n.disk.saved = replica.Saved{Regions: replica.AllRegions(r.configOf(n))}
		}
	}
	r.checkForced(x)
	r.lineage++
	r.Forced++
	r.view = v
	r.views, r.viewsAt = append(r.views, v), append(r.viewsAt, r.now)
	r.after(r.between(5*time.Millisecond, time.Second), x.start)
	for _, n := range r.nodes {
		r.after(r.between(50*time.Millisecond, 3*time.Second), n.start)
	}
}

// configOf is what a node's process would begin with.
func (r *run) configOf(n *node) *replica.Config {
	cfg := r.cfg
	cfg.Stores = append([]replica.Store(nil), cfg.Stores...)
	for i := range cfg.Stores {
		cfg.Stores[i].Size = n.sizes[i]
	}
	return &cfg
}

// checkForced: a copy in sync, without which nothing was durable, has what was flushed. From now on what it has counts.
func (r *run) checkForced(x *node) {
	whole := r.view.InSync.Has(x.id) && quorum(&r.cfg, &r.view) == r.view.InSync.Len()
	for b := range r.floors {
		f := &r.floors[b]
		if whole && !x.isDurable(b, f.flushed) {
			r.fail(9, "block %d of the copy that is forced is at %v on its disk, and %v was flushed", b, x.disk.medium[b].pos, f.flushed)
		}
		if x.misses(b) {
			continue // nothing older is shown
		}
		p := x.disk.cache[b].pos
		f.pos, f.acked, f.at = p, p, r.now+1
		if q := x.disk.medium[b].pos; q.less(f.flushed) {
			f.flushed = q
		}
	}
	r.atomics = nil
}
