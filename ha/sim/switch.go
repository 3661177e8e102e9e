package sim

import (
	"time"

	"oneshot/ha/replica"
)

// switching is an order of the administrator to hand over.
type switching struct {
	node    *node
	life    uint32
	to      replica.ID
	version uint64 // of the newest view then
}

// switchTo asks a node to hand over.
func (r *run) switchTo(n *node, to replica.ID) {
	r.attempts++
	r.switches[r.attempts] = &switching{n, n.lives, to, r.view.Version}
	n.tell(replica.Switch{ID: r.attempts, To: to})
}

// switched: a node has answered. Good means that a view since then says so.
func (r *run) switched(s *switching, e *replica.Answer) {
	delete(r.switches, e.ID)
	if e.Status != replica.Good {
		return
	}
	for _, v := range r.views[s.version:] {
		if v.Planned && v.Primary == s.to {
			r.Switched++
			return
		}
	}
	r.fail(21, "node %d says that it has handed over to %d, and nobody has agreed on that", s.node.id, s.to)
}

// checkOffice: a node that knows that it is drained does not ask for the office, nor anybody for it, while another
// member may have it. If all who may have lost their memory it does, for itself. A primary whose disk is bad may not have it, and asks others; so
// does one that goes on after a pause, and takes work that was not done meanwhile for that.
func (r *run) checkOffice(n *node, v *replica.View) {
	now := n.core.State().View
	takers := now.InSync &^ n.drains
	if d := n.disk; v.Planned && (n.resuming || d.hung || d.badAt > 0 && r.now-d.badAt < time.Second) {
		takers = takers.Without(n.id)
	}
	if v.Term != now.Term && now.InSync.Has(v.Primary) && n.drains.Has(v.Primary) && takers != 0 && *v != n.asked && !(v.Primary == n.id && r.forget(takers)) {
		r.fail(21, "node %d wants to make %d the primary of %b, and knows that %b are drained", n.id, v.Primary, now.InSync, n.drains)
	}
	n.asked = *v
}

// forget says whether all of these nodes have lost their memory.
func (r *run) forget(nodes replica.Nodes) bool {
	for id := range nodes.All() {
		memory := r.nodes[id].left
		if c := r.nodes[id].core; c != nil {
			memory = c.Memory()
		}
		if memory != nil {
			return false
		}
	}
	return true
}

// drainNews tells a node who is drained.
func (r *run) drainNews(n *node) {
	nodes := r.drained
	r.after(r.between(0, 20*time.Millisecond), func() {
		if n.core != nil && !n.paused && n.drains != nodes {
			n.drains = nodes
			n.tell(replica.Drained{Nodes: nodes})
		}
	})
}

// drainOn drains the primary when nothing is wrong: another one takes its place.
func (r *run) drainOn() {
	if r.violation != nil || r.view.InSync != r.cfg.Copies {
		return
	}
	n, began := r.view.Primary, r.now
	r.logf("node %d is drained", n)
	r.drained = replica.NodesOf(n)
	for r.violation == nil && r.view.Primary == n && r.world.step(began+15*time.Second) {
		r.Steps++
	}
	if r.view.Primary == n {
		r.fail(21, "15 s after node %d was drained it is the primary still", n)
	}
	r.drained = 0
}
