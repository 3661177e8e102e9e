package sim

import (
	"math/rand/v2"
	"time"

	"oneshot/ha/replica"
)

// addresses are those that go with the primary. Who has them is decided by replica.State.Leads and replica.Tenure, by the clock of each node; what
// the daemon adds its kernel keeps for a lifetime, whatever becomes of the daemon. Chance has a source of its own.
type addresses struct {
	*run
	dice world
}

// lifetime is that of package front. promised is how long a node may go on to use the addresses when another one has them, and soon how long if its
// daemon runs: the one that has handed over hears that late, until it does not lead any more, and then they linger.
const (
	lifetime  = 2 * time.Second
	promised  = 3 * time.Second
	soon      = 600 * time.Millisecond
	retryTime = time.Second
)

// holding is what a machine has of the addresses, and what its daemon knows of that.
type holding struct {
	tenure replica.Tenure
	until  time.Duration // by the machine's clock: until then the kernel has them
	taken  bool          // another node says that it has them
	looks  uint64        // so many times it was arranged when to look again: the last one counts
	told   replica.State // as of the last look: another role or view is looked at at once

	term  uint64        // of the primary that added them
	rival bool          // another node, the primary by a newer view, has them, too
	since time.Duration // by the machine's running time
	stood bool          // the daemon did not run at some time since
}

func (r *run) drawAddresses() *addresses {
	return &addresses{run: r, dice: world{r: rand.New(rand.NewPCG(r.Seed, 13))}}
}

// running is how long a machine has run: not while it is stopped with its clocks.
func (n *node) running() time.Duration {
	if n.paused && n.stops {
		return n.from - n.behind
	}
	return n.now - n.behind
}

// hour is what the machine's clock shows now.
func (n *node) hour() time.Duration {
	return time.Duration(float64(n.running())*n.rate) + time.Hour
}

// hasAddresses says whether the kernel has them.
func (n *node) hasAddresses() bool { return n.holding.until > n.hour() }

// lookAt has a node look when its role or view has changed.
func (s *addresses) lookAt(n *node, is *replica.State) {
	if h := &n.holding; h.told.Role != is.Role || h.told.View.Version != is.View.Version || (h.told.Confirmed == 0) != (is.Confirmed == 0) {
		h.told = *is
		s.lookIn(n, 0)
	}
}

// lookIn has a node's daemon look after a time.
func (s *addresses) lookIn(n *node, d time.Duration) {
	n.holding.looks++
	life, no := n.lives, n.holding.looks
	s.after(d, func() {
		if n.lives == life && n.holding.looks == no {
			n.cover(func() { s.look(n) })
		}
	})
}

// look does what is due.
func (s *addresses) look(n *node) {
	h, st := &n.holding, n.core.State()
	now := n.hour()
	stay, again := h.tenure.Look(now, st.Leads(&s.cfg, now), &st, h.taken)
	switch stay {
	case replica.Here:
		h.taken = false
		if left := h.until - now; left > lifetime/2 {
			s.lookIn(n, min(again, left-lifetime/2))
			return
		}
		// The process may be stopped between its look and the call of the kernel.
		life := n.lives
		s.after(s.dice.between(0, time.Millisecond), func() {
			if n.lives == life {
				n.cover(func() { s.add(n, st.View.Term) })
			}
		})
	case replica.Lingers:
		s.lookIn(n, again)
	default:
		h.until = 0
		s.lookIn(n, retryTime)
	}
}

// add adds the addresses, or prolongs their stay, and then looks again.
func (s *addresses) add(n *node, term uint64) {
	h := &n.holding
	isNew := !n.hasAddresses()
	if isNew || h.term != term {
		h.rival = false
	}
	h.until, h.term = n.hour()+lifetime, term
	for _, o := range s.nodes {
		if o == n || !o.hasAddresses() {
			continue
		}
		old, newer := o, n
		if o.holding.term > term {
			old, newer = n, o
		}
		if x := &old.holding; !x.rival {
			x.rival, x.since, x.stood = true, old.running(), false
			s.logf("node %d has addresses of node %d, too", newer.id, old.id)
		}
	}
	if isNew {
		s.logf("node %d has the addresses", n.id)
		s.tellTaken(n)
	}
	s.look(n)
}

// tellTaken tells the other nodes.
func (s *addresses) tellTaken(n *node) {
	for _, o := range s.nodes {
		life := o.lives
		s.after(s.dice.between(100*time.Microsecond, 5*time.Millisecond), func() {
			if o != n && o.lives == life && s.reaches(n.id, o.id) && s.reaches(o.id, n.id) {
				o.cover(func() {
					o.holding.taken = true
					s.lookIn(o, 0)
				})
			}
		})
	}
}

// check: no node uses the addresses for longer than it may when another one has them.
func (s *addresses) check() {
	for _, n := range s.nodes {
		h := &n.holding
		if !n.hasAddresses() {
			h.rival = false
			continue
		}
		h.stood = h.stood || n.core == nil || n.paused
		most := soon
		if h.stood {
			most = promised
		}
		if h.rival && n.running()-h.since > most {
			s.fail(13, "node %d has the addresses as the primary of term %d, and another one has had them for %v; its daemon stood still: %v", n.id, h.term, n.running()-h.since, h.stood)
		}
	}
}
