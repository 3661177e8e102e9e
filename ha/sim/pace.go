package sim

import (
	"math/rand/v2"
	"time"

	"oneshot/ha/replica"
)

// pacing is what the administrator wants of copies that are brought level or compared: one pace after the other, the same on all nodes.
// It has a generator of its own, so that worlds without it are what they were.
type pacing struct {
	chance *rand.Rand // nil: there is none
	now    replica.Pace
}

// drawPacing decides whether a world has it. One in four does.
func drawPacing(seed uint64) (p pacing) {
	if chance := rand.New(rand.NewPCG(seed, 1)); chance.IntN(4) == 0 {
		p.chance = chance
	}
	return p
}

// next draws a pace. At the least of them two copies get all of what there is in half of the time that they have at the end of a world.
func (p *pacing) next() {
	p.now = replica.Pace{Min: 16<<10 + p.chance.Int64N(48<<10)}
	if p.chance.IntN(2) == 0 {
		p.now.Rate = p.now.Min + p.chance.Int64N(64<<10)
	}
}

// repace lets all nodes load another pace, now and then.
func (r *run) repace() {
	if r.pacing.chance == nil {
		return
	}
	r.pacing.next()
	for _, n := range r.nodes {
		n.tell(r.pacing.now)
	}
	r.after(time.Second+time.Duration(r.pacing.chance.Int64N(int64(10*time.Second))), r.repace)
}

// givesWay says whether the primary gives way to hosts while it brings a copy level.
func (r *run) givesWay() bool {
	n := r.nodes[r.view.Primary]
	if n.core == nil || r.view.InSync == r.cfg.Copies {
		return false
	}
	_, yields := n.core.Paced()
	return yields
}
