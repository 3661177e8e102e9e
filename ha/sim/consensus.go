package sim

import (
	"time"

	"oneshot/ha/replica"
)

// consensus stands for the group that agrees on views: a register with compare-and-swap, which a node reaches while
// it is connected with a majority of voters. Proposals are lost and late, and so is the news.
type consensus struct {
	view    replica.View
	views   []replica.View // by version
	viewsAt []time.Duration
	slow    bool // it is choosing a leader
}

// witness is the voter without data: of two copies the third.
const witness = 15

// hasMajority says whether a node reaches more than half of the voters.
func (r *run) hasMajority(n *node) bool {
	voters, reached := len(r.nodes), 1
	for _, o := range r.nodes {
		if o != n && o.core != nil && !o.paused && r.reaches(n.id, o.id) && r.reaches(o.id, n.id) {
			reached++
		}
	}
	if len(r.nodes) == 2 {
		voters++
		if r.witnessUp && r.reaches(n.id, witness) && r.reaches(witness, n.id) {
			reached++
		}
	}
	return reached*2 > voters
}

// propose takes a proposal to the others, if it gets there.
func (r *run) propose(n *node, v replica.View) {
	r.moment(n, 100)
	if r.group != nil {
		r.group.propose(n, v)
		return
	}
	late := 15 * time.Millisecond
	if r.slow {
		late = time.Second
	}
	r.await(evProposal, n.id, n.id, r.between(time.Millisecond, late), func() {
		if r.oneIn(20) || !r.hasMajority(n) {
			return
		}
		if v.Version != r.view.Version+1 {
			return
		}
		r.agreed(v)
		for _, o := range r.nodes {
			r.news(o, late)
		}
	})
}

// agreed: v is the newest view.
func (r *run) agreed(v replica.View) {
	old := r.view
	r.view = v
	r.views = append(r.views, v)
	r.viewsAt = append(r.viewsAt, r.now)
	r.logf("AGREED %+v", v)
	if r.fencing != nil {
		r.fencing.agreed(&v)
	}
	r.Returns += (v.InSync &^ old.InSync).Len()
	r.checkView(&old, &v)
	r.moment(r.nodes[v.Primary], 20)
}

// news tells a node of the newest view.
func (r *run) news(n *node, within time.Duration) {
	v, lineage := r.view, r.lineage
	r.await(evNews, n.id, n.id, r.between(time.Millisecond, within), func() {
		if r.lineage == lineage && n.core != nil && !n.paused && !r.oneIn(10) && r.hasMajority(n) {
			if n.keeper != nil {
				n.keeper.learnView(v.Version)
			}
			n.tell(replica.Agreed{View: v})
		}
	})
}

// newsOn tells all nodes now and then.
func (r *run) newsOn() {
	for _, n := range r.nodes {
		r.drainNews(n)
		if r.group != nil {
			r.group.news(n)
		} else if !r.slow {
			if n.keeper != nil {
				r.fencing.tell(n, 20*time.Millisecond)
			}
			r.news(n, 20*time.Millisecond)
		}
	}
	r.after(100*time.Millisecond, r.newsOn)
}
