package mirror

import (
	"context"
	"slices"
	"time"

	"oneshot/backend"
	"oneshot/ha/replica"
	"oneshot/internal/invariant"
)

// The core has one owner at a time: whichever goroutine has something for it and finds that nobody owns it. It goes on
// until nothing is left, also of what others bring meanwhile. So what a host or a peer brings is done where it is, and
// nobody has to be woken for it. A goroutine of the mirror's own is woken for what comes from those who cannot wait, or do not end here.

// enqueue leaves something for the owner of the core. false: the mirror has ended.
func (m *Mirror) enqueue(i item) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return false
	}
	m.inbox = append(m.inbox, i)
	return true
}

// push is enqueue, and has somebody take it.
func (m *Mirror) push(i item) bool {
	ok := m.enqueue(i)
	signal(m.wake)
	return ok
}

// tickOn has the core told of the time, until the mirror has ended. Each tick that was taken sets the clock for the next one.
func (m *Mirror) tickOn() {
	m.ticker = time.AfterFunc(m.cfg.Heartbeat/3, func() { m.push(item{event: replica.Tick{}}) })
}

// setClock has the next tick come when the core wants it: after a tick, and sooner than it would come if something has begun meanwhile.
func (m *Mirror) setClock() {
	due := m.now + m.cfg.Heartbeat // nothing is under way yet, or any more
	if m.core != nil && !m.closing {
		due = m.core.Due()
	}
	if m.ticked || due < m.due {
		m.due = due
		m.ticker.Reset(max(due-m.now, time.Millisecond))
	}
}

// run owns the core when it is woken, until the mirror has ended.
func (m *Mirror) run() {
	defer close(m.looped)
	for !m.drive(nil, true) {
		<-m.wake
	}
}

// drive owns the core, unless somebody does: it takes what has come and does what follows from it, until nothing is left. tells:
// hosts are told here; otherwise the goroutine of run does that, for whoever drives may hold what hosts need. own is the operation
// of who drives. drive reports whether that one has ended, and is not told of; without one, whether the mirror has ended.
func (m *Mirror) drive(own *backend.Op, tells bool) (over bool) {
	m.mu.Lock()
	if m.owned {
		m.mu.Unlock()
		return false
	}
	m.owned = true
	for {
		items := m.inbox
		if len(items) == 0 && !m.isBusy(tells) {
			break
		}
		m.inbox = m.taken[:0]
		m.mu.Unlock()
		m.now = m.look(items)
		frames := 0
		for i := range items {
			if items[i].frame != nil {
				frames++
			}
			alone := items[i].isAlone()
			if alone {
				m.goOn()
			}
			m.take(&items[i]) // a frame is its connection's again
			if alone {
				m.goOn()
			}
			items[i] = item{}
		}
		m.goOn()
		m.taken, m.unflushed = items, false
		m.publish()
		for id, c := range m.conns {
			if p := m.pulses[id]; p != nil {
				p.flush(frames <= 1 && m.tasks.len() <= 1)
			}
			if c != nil {
				c.flush(frames <= 1 && m.tasks.len() <= 1)
			}
		}
		if own != nil && m.withdraw(own) {
			own, over = nil, true
		}
		if tells {
			m.tellHosts()
		}
		m.submit()
		m.mu.Lock()
	}
	m.over = m.closing && m.works == 0
	m.idle = m.core != nil && !m.closing && m.core.IsIdle()
	if own == nil && tells {
		over = m.over
	}
	left := m.over || len(m.ended) > 0
	m.owned = false
	m.mu.Unlock()
	if left && !tells {
		signal(m.wake)
	}
	return over
}

// isBusy says whether something follows from what was done.
func (m *Mirror) isBusy(tells bool) bool {
	return m.unflushed || len(m.begun) > 0 || tells && len(m.ended) > 0
}

// look returns the time for what was taken before it is called. A lease is relied upon for what came before the clock was read. Who
// answers a beat promises to wait from then on, by a clock that may be exact the next time.
func (m *Mirror) look(items []item) time.Duration {
	exact := !m.cfg.Confirm && m.asking > 0
	for i := range items {
		i := &items[i]
		_, isTick := i.event.(replica.Tick)
		isBeat := i.frame != nil && i.frame.kind == frameBeat
		exact = exact || isTick || isBeat || !m.cfg.Confirm && i.op != nil && asks(i.op)
	}
	if exact {
		return m.clock.exact()
	}
	return m.clock.about()
}

// withdraw takes an operation that has ended from those who are to be told of.
func (m *Mirror) withdraw(op *backend.Op) bool {
	i := slices.Index(m.ended, op)
	if i < 0 {
		return false
	}
	m.ended = slices.Delete(m.ended, i, i+1)
	return true
}

// goOn does what follows from what was taken.
func (m *Mirror) goOn() {
	for m.settle(); len(m.pending) > 0; m.settle() {
		m.pending, m.following = m.following[:0], m.pending
		for i := range m.following {
			switch p := &m.following[i]; {
			case p.event != nil:
				m.step(p.event)
			case p.fills:
				m.fill(p.task, p.id, p.addr)
			default:
				m.progress(p.task)
			}
			m.following[i] = next{}
		}
	}
}

// publish lets others see the state.
func (m *Mirror) publish() {
	invariant.Check(m.owned, "mirror: the core is looked at by who does not own it")
	var s replica.State
	if m.core != nil && !m.closing {
		s = m.core.State()
	}
	var term uint64
	if s.Role == replica.Primary {
		term = s.View.Term
	}
	m.term.Store(term)
	if len(m.losses.ranges) > 0 && (m.closing || m.now-m.losses.since >= gatherLosses) {
		m.nameLosses()
	}
	if s.Role != replica.Primary {
		m.show(m.reached)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	same := m.isSame(&m.state, &s)
	m.state.Confirmed = s.Confirmed // which goes on with every beat
	m.stale = m.stale || !same || m.state != s
	tells := m.ticked || !same
	if m.ticker != nil {
		m.setClock()
	}
	m.ticked, m.state = false, s
	if !tells || !m.stale {
		return
	}
	m.stale = false
	for _, w := range m.watchers {
		signal(w)
	}
}

// isSame says whether a node is the same to others in two states, the first of which was before the second: they differ in how far its
// log has come, and a primary is confirmed all the time.
func (m *Mirror) isSame(a, b *replica.State) bool {
	return a.Role == b.Role && a.View == b.View && (a.Confirmed > 0) == (b.Confirmed > 0) && a.Confirmed <= b.Confirmed && b.Confirmed-a.Confirmed <= m.cfg.Lease
}

// State is the newest of this node.
func (m *Mirror) State() replica.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// Await returns when a state holds, or with the error of ctx. A state that does not last may be missed. A change of role or view is
// looked at at once, and all else with the next tick: each operation of a host changes something.
func (m *Mirror) Await(ctx context.Context, holds func(replica.State) bool) error {
	changed := make(chan struct{}, 1)
	m.mu.Lock()
	m.watchers = append(m.watchers, changed)
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		i := slices.Index(m.watchers, changed)
		m.watchers = slices.Delete(m.watchers, i, i+1)
	}()
	for !holds(m.State()) {
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// tellHosts ends operations.
func (m *Mirror) tellHosts() {
	if len(m.ended) == 0 {
		return
	}
	corks := m.corks[:0]
	for _, op := range m.ended {
		if u := backend.Cork(op.Done); u != nil {
			corks = append(corks, u)
		}
	}
	for i, op := range m.ended {
		m.ended[i] = nil
		m.finish(op)
	}
	m.ended = m.ended[:0]
	for _, u := range corks {
		u.Uncork()
	}
	clear(corks)
	m.corks = corks
}

// isAlone says whether what follows from an item comes before the next one is taken: see replica.Core.Tell.
func (i *item) isAlone() bool {
	return i.op == nil && i.work == nil && (i.frame == nil || i.frame.kind != frameAck)
}

func (m *Mirror) take(i *item) {
	switch {
	case i.op != nil:
		m.start(i.op)
	case i.work != nil:
		m.workDone(i.work)
	case i.call != nil:
		i.call()
	case i.conn != nil && i.up:
		m.connected(i.conn)
	case i.conn != nil && i.down:
		m.disconnected(i.conn)
	case i.conn != nil:
		m.arrived(i.conn, i.frame)
		i.conn.release(i.frame)
	default:
		m.happened(i.event)
	}
}

// happened takes a tick or a view.
func (m *Mirror) happened(e replica.Event) {
	switch e := e.(type) {
	case replica.Tick:
		m.ticked = true
		m.foundOn()
		m.enterOn()
		m.letGo()
		m.lookAtSave()
		m.growOn()
		m.lookFor()
		m.lookAtSuccessor()
	case replica.Agreed:
		m.viewed = e.View
		if e.View.InSync.Has(m.cfg.Self) {
			m.failed = nil
			if m.doubt != nil && m.doubt.Taken {
				m.doubt = nil
			}
		}
		m.enter(e.View)
		m.step(e)
		m.lookAtVerified()
		return
	case replica.Drained:
		m.drained = e.Nodes
		m.step(replica.Drained{Nodes: m.excused()})
		return
	case replica.Pace:
		m.pace = e
	}
	m.step(e)
}

// step lets something happen to the core, and does what it asks for.
func (m *Mirror) step(e replica.Event) {
	m.settle()
	m.tell(e)
	m.settle()
}

// tell lets something happen to the core. What it asks for is done by settle, for many events at once: see replica.Core.Tell for which.
func (m *Mirror) tell(e replica.Event) {
	invariant.Check(m.owned, "mirror: the core is told something by who does not own it")
	if m.core != nil && !m.closing {
		m.core.Tell(m.now, e)
		m.told = true
	}
}

// settle does what the core asks for.
func (m *Mirror) settle() {
	if !m.told {
		return
	}
	m.told = false
	actions := m.core.Settle()
	m.noteRole()
	for _, a := range actions {
		m.do(a)
	}
}

// later steps when the actions of this step are done.
func (m *Mirror) later(e replica.Event) { m.pending = append(m.pending, next{event: e}) }
