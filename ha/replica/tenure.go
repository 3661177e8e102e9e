package replica

import "time"

// Leads returns for how long this node may still be taken for the primary, unless others confirm it again: addresses that go with the primary are
// gone before another one has them. 0: it may not. now is the exact time by the clock of the core. What is answered does not depend on it.
func (s *State) Leads(cfg *Config, now time.Duration) time.Duration {
	switch {
	case s.Role != Primary:
		return 0
	case s.Confirmed == Undisputed:
		return cfg.Grace
	}
	// Others give up a grace after they have received a beat. Between the lease and that the primary can still be
	// confirmed as the only member.
	return max(0, s.Confirmed+(cfg.Lease+cfg.Grace)/2-now)
}

// Tenure decides whether the addresses that go with the primary stay at a node.
//
//	       leads
//	away ─────────► here ── the lease has run out ─────────────► away
//	                 │                                             ▲
//	                 └── another node was given the office: Linger ┘ when that one has them, or after Linger
type Tenure struct {
	leading bool
	left    time.Duration // when it led last
}

// Linger is how long a node that has handed over keeps the addresses until its successor has them: who finds nobody there tries again after
// a second.
const Linger = 200 * time.Millisecond

// Stay is what becomes of the addresses.
type Stay uint8

// What becomes of them.
const (
	Leave   Stay = iota // they are not to be here
	Hand                // the same, and the successor has them: who is connected can go there
	Lingers             // they stay where they are here, and are not prolonged
	Here                // they are added, prolonged and announced
)

// Look returns what becomes of the addresses, and for Here and Lingers when to look again at the latest. leads is what State.Leads returned, s a state that
// is not older, and taken says that another node has the addresses.
func (t *Tenure) Look(now, leads time.Duration, s *State, taken bool) (stay Stay, again time.Duration) {
	if leads > 0 {
		t.leading = true
		return Here, leads + time.Millisecond
	}
	if t.leading {
		t.leading, t.left = false, now
	}
	if !s.View.Planned || s.Role != Follower {
		return Leave, 0
	}
	if wait := t.left + Linger - now; wait > 0 && !taken {
		return Lingers, wait
	}
	return Hand, 0
}
