package mirror

import (
	"time"

	"oneshot/ha/replica"
)

// Takeover is how this node became the primary, and how long each step took.
type Takeover struct {
	At       time.Time
	Term     uint64
	Planned  bool          // the primary before handed over
	Silence  time.Duration // since the last sign of the primary before, until this node stood
	Promises time.Duration // until others had promised, and all had the same log
	Agreed   time.Duration // until consensus had agreed
}

// Took is the sum of all steps.
func (t *Takeover) Took() time.Duration { return t.Silence + t.Promises + t.Agreed }

// Leads is replica.State.Leads, now.
func (m *Mirror) Leads() time.Duration {
	s := m.State()
	return s.Leads(&m.cfg, m.hour())
}

// hour is the exact time, for goroutines that do not own the core.
func (m *Mirror) hour() time.Duration {
	if m.opts.Clock != nil {
		return m.opts.Clock()
	}
	return bootTime()
}

// LedUntil returns when this node, a primary that Leads no more, was the primary for sure. The zero time: that was never.
func (m *Mirror) LedUntil() time.Time {
	s := m.State()
	if s.Role != replica.Primary || s.Confirmed <= 0 || s.Confirmed == replica.Undisputed {
		return time.Time{}
	}
	return time.Now().Add(s.Confirmed - m.hour())
}

// office is what the goroutine of the core notes of its roles.
type office struct {
	role      replica.Role
	silence   time.Duration
	stood     time.Duration // when this node became a candidate
	proposed  time.Duration // when it asked consensus for the office, or, as the primary, to give it to another one; 0: not yet
	gathered  time.Duration // of a primary that hands over: until the other one had all. Nothing new was begun meanwhile
	takeovers uint64
	last      Takeover

	given   uint64 // the term in which another node has the office, because this one has handed over, and was not heard yet; 0: none
	givenAt time.Duration
	missed  bool                // that has lasted for too long
	waiting []chan<- replica.ID // for who serves since then
}

// heardWithin is how long after a handover the successor may be silent. Most often it beats within milliseconds.
const heardWithin = time.Second

// heardOf notes that the primary of a term lives.
func (o *office) heardOf(primary replica.ID, term uint64) {
	if o.given == 0 || term < o.given {
		return
	}
	o.given = 0
	for _, says := range o.waiting {
		says <- primary
	}
	o.waiting = nil
}

// tellOfSuccessor says which node serves since this one has handed over, when that one was heard: now, if this one waits for nobody.
func (o *office) tellOfSuccessor(says chan<- replica.ID, primary replica.ID) {
	if o.given == 0 {
		says <- primary
		return
	}
	o.waiting = append(o.waiting, says)
}

// lookAtSuccessor has this node take over though it is drained, if the one to which it has handed over was never heard: that one may have been lost, or have
// become stuck, just then, and nobody would serve. Who was heard is lost like any other primary.
func (m *Mirror) lookAtSuccessor() {
	o := &m.office
	missed := o.given != 0 && m.core != nil && m.core.State().View.Term == o.given && m.now-o.givenAt > heardWithin
	if missed != o.missed {
		o.missed = missed
		m.step(replica.Drained{Nodes: m.excused()})
	}
}

// excused are the nodes that are to serve nothing, as the core is told.
func (m *Mirror) excused() replica.Nodes {
	switch {
	case m.leaving:
		return replica.NodesOf(m.cfg.Self)
	case m.office.missed:
		return m.drained.Without(m.cfg.Self)
	}
	return m.drained
}

// noteRole looks at the role after a step.
func (m *Mirror) noteRole() {
	role, o := m.core.Role(), &m.office
	if role == o.role {
		return
	}
	before := o.role
	o.role = role
	now := m.now
	switch {
	case role == replica.Candidate:
		o.silence, o.stood, o.proposed = m.core.Silence(), now, 0
	case role == replica.Primary:
		v := m.core.State().View
		t := Takeover{At: time.Now(), Term: v.Term, Planned: v.Planned}
		if before == replica.Candidate {
			t.Silence, t.Promises, t.Agreed = o.silence, o.proposed-o.stood, now-o.proposed
		}
		o.takeovers++
		o.last = t
		o.proposed = 0
		o.heardOf(m.cfg.Self, t.Term)
		if t.Planned {
			m.opts.Log.Info("this node is the primary: the one before has handed over", "term", t.Term)
		} else {
			m.opts.Log.Info("this node has taken over", "term", t.Term, "silence", t.Silence, "promises", t.Promises, "consensus", t.Agreed, "together", t.Took())
		}
	case before == replica.Primary:
		v := m.core.State().View
		if v.Life == 0 { // that one has not proposed itself
			o.given, o.givenAt = v.Term, now
		}
		if v.Planned && o.proposed != 0 {
			m.opts.Log.Info("this node has handed over", "term", v.Term, "copy", v.Primary, "gathered", o.gathered, "consensus", now-o.proposed)
		} else {
			m.opts.Log.Info("this node is not the primary any more", "term", v.Term, "copy", v.Primary)
		}
	}
}

// noteProposal looks at what is asked of consensus.
func (m *Mirror) noteProposal(v *replica.View) {
	switch o := &m.office; {
	case o.role == replica.Candidate && o.proposed == 0:
		o.proposed = m.now
	case o.role == replica.Primary && v.Planned:
		o.proposed, o.gathered = m.now, m.now-m.core.SealedAt()
	}
}
