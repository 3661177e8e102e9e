package quorum

import (
	"net"
	"slices"

	"oneshot/ha/replica"
)

// Views joins a core of ha/replica with consensus: a register of the views of one set, with compare-and-swap. What
// the core proposes goes in by Propose; what Agreed returns goes to it as replica.Agreed. It is used by the goroutine
// that owns the Core.
//
// In a new life a node learns again what was agreed on, oldest first, and a core of ha/replica that has lost its memory
// would believe a view that was outlived: one in which a copy is in sync, say, so that it forgets what that copy lacks.
// So nothing is told before a majority has confirmed that the view is the newest.
type Views struct {
	core    *Core
	key     Key
	lineage uint64
	asked   uint64 // the read that confirms
	isNew   bool   // it has
	pending uint64 // the last proposal, while its end is not known; 0: none
}

// ViewsOf returns the views of a set.
func ViewsOf(c *Core, set string, lineage uint64) (*Views, error) {
	asked, err := c.Read()
	return &Views{core: c, key: Key{KindSet, set}, lineage: lineage, asked: asked}, err
}

// Now returns the newest view that this node knows, false if the set has none yet, or none that was confirmed.
func (v *Views) Now() (replica.View, bool) {
	if !v.isNew {
		return replica.View{}, false
	}
	if r := v.core.state.Get(v.key); r != nil {
		if s, err := DecodeSet(r.Value); err == nil {
			return s.View, true
		}
	}
	return replica.View{}, false
}

// Propose asks for a view, whose version follows the one that the core knows. The core asks again while it hears of
// nothing; this takes the place of what it has asked before.
func (v *Views) Propose(view replica.View) error {
	s := Set{View: view}
	if r := v.core.state.Get(v.key); r != nil {
		old, err := DecodeSet(r.Value)
		if err != nil {
			return err
		}
		if s = old; s.Lineage != v.lineage {
			return &RefusedError{"the administrator has begun another lineage of the mirror, with one of its copies"}
		}
		s.View = view
	}
	v.core.Forget(v.pending)
	var err error
	v.pending, err = v.core.Put(v.key, view.Version-1, s.Encode())
	return err
}

// Agreed returns the views of the set among what Work has done, oldest first.
func (v *Views) Agreed(out *Output) (views []replica.View) {
	if !v.isNew {
		if v.isNew = slices.Contains(out.Reads, v.asked); v.isNew {
			if view, ok := v.Now(); ok {
				return []replica.View{view}
			}
		}
		return nil
	}
	for _, r := range out.Changed {
		if r.Key != v.key || r.Deleted {
			continue
		}
		if s, err := DecodeSet(r.Value); err == nil {
			views = append(views, s.View)
		}
	}
	return views
}

// Follower joins a core of ha/replica with a Node.
type Follower struct {
	n      *Node
	views  *Views
	agreed func(replica.View)
}

// Follow calls agreed with the views of a set, oldest first: the first one that a majority has confirmed in this life
// of the node, and each later one. What it is called with goes to the core as replica.Agreed; agreed must not block,
// and runs in a goroutine of the node. Nothing is proposed for another lineage than that. An error says that the node is
// closed, or asks too much at once.
func (n *Node) Follow(set string, lineage uint64, agreed func(replica.View)) (*Follower, error) {
	f, err := &Follower{n: n, agreed: agreed}, net.ErrClosed
	n.do(func() {
		if f.views, err = ViewsOf(n.core, set, lineage); err == nil {
			n.follows = append(n.follows, f)
		}
	})
	return f, err
}

// Propose asks for a view: what the core says in replica.Propose. It returns before the end is known; if the view
// becomes the next one Follow tells. A core asks again while it hears of nothing.
func (f *Follower) Propose(v replica.View) error {
	err := net.ErrClosed
	f.n.do(func() { err = f.views.Propose(v) })
	return err
}

// Close ends the calls: none is made after it has returned.
func (f *Follower) Close() {
	f.n.do(func() { f.n.follows = slices.DeleteFunc(f.n.follows, func(o *Follower) bool { return o == f }) })
}
