package mirror

import (
	"slices"

	"oneshot/backend"
)

// A read of what the copy has in memory is done where the host asks for it, if the core says that this is what the host is to get, and if nobody owns the core.
// It is no task, the core is told nothing, and no other goroutine hears of it: it is over before anything else happens to the core. All other
// reads go the way of writes.

// readNow does a read, and reports whether it did.
func (m *Mirror) readNow(op *backend.Op) bool {
	if m.prompt == nil || m.cfg.Confirm || op.Key != 0 || op.Flags&^backend.More != 0 {
		return false
	}
	m.mu.Lock()
	if m.owned || m.over {
		m.mu.Unlock()
		return false
	}
	m.owned = true
	waiting := len(m.inbox) // they wait for Kick, or for whom was woken
	m.mu.Unlock()

	done := m.mayReadNow(op) && m.prompt.ReadNow(op)

	m.mu.Lock()
	m.owned = false
	left := len(m.inbox) > waiting // whoever brought it has left it to the owner
	m.mu.Unlock()
	if left {
		signal(m.wake)
	}
	return done
}

// mayReadNow says whether what the copy has is what the host is to get. What the core was not told of yet changes nothing: as long as
// others keep the lease that they have given, nobody else is the primary.
func (m *Mirror) mayReadNow(op *backend.Op) bool {
	if m.core == nil || m.closing || op.Term != 0 && m.isOver(op.Term) {
		return false
	}
	if slices.ContainsFunc(m.kept, func(s span) bool { return s.overlaps(op.Off, op.Len) }) {
		return false
	}
	return m.core.MayRead(m.clock.atMost(), op.Off, op.Len)
}
