package quorum

import (
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
