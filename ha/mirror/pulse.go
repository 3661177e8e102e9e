package mirror

import (
	"time"

	"oneshot/ha/replica"
)

// Beats and their answers have a connection of their own beside the one for data, and do not wait behind what fills that: over 8 Mbit/s a write of
// a MiB takes a second, and who is not heard for a quarter of one leaves S. Who has dialed for data dials for beats; the one ends with the other. Until it is
// there, and with a node of a version that does not have it, beats go over the connection for data.

// beatHeadMax bounds the head of a frame of a beat, or of an answer: a number, a view and a flag.
const beatHeadMax = 64

// pulse returns the connection for beats to a node, or nil.
func (m *Mirror) pulse(to replica.ID) *conn {
	if m.conns[to] != nil && m.pulses[to] != nil {
		return m.pulses[to]
	}
	return m.conns[to]
}

// pulsed: a node has a connection for beats, perhaps in the place of one whose end was not noticed.
func (m *Mirror) pulsed(c *conn) {
	if old := m.pulses[c.peer]; old != nil {
		old.close()
	}
	m.pulses[c.peer] = c
	close(c.begun)
}

// quieter is a connection whose machine knows when the other one was there: see quorum.Stream.
type quieter interface {
	Quiet() (acked, came time.Duration, ok bool)
}

// lookFor tells the core of machines that are there, though their nodes are silent. A primary only wants to know that a member may still answer. Who
// would take over looks for what the primary itself has sent, so that it does not wait for a process that has stopped.
func (m *Mirror) lookFor() {
	if m.core == nil || m.closing {
		return
	}
	for id := range m.core.Doubted().All() {
		for _, c := range [...]*conn{m.conns[id], m.pulses[id]} {
			if c == nil {
				continue
			}
			q, _ := c.c.(quieter)
			if q == nil {
				continue
			}
			acked, came, ok := q.Quiet()
			if m.core.Role() != replica.Primary {
				acked = came
			}
			if ok {
				m.step(replica.There{Peer: id, Ago: acked})
			}
		}
	}
}
