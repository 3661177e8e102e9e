package iscsi

import (
	"slices"

	"oneshot/internal/baton"
)

// circle is the connections of one session, or one connection that has none, and the baton that they share. Whoever holds it
// drives them all: it feeds them, resumes what has become ready in stores, and sends.
type circle struct {
	baton.Baton           // taken before Node.mu; not held over blocking calls
	conns       []*Conn   // guarded by Baton, as is logouts
	logouts     []*logout // that wait
}

// Resume implements baton.Driven.
func (r *circle) Resume() {
	for _, c := range r.conns {
		c.resume()
	}
}

// Flush implements baton.Driven. It lets go of connections of which nothing is left.
func (r *circle) Flush() {
	r.endLogouts()
	for _, c := range r.conns {
		c.flush()
	}
	for _, c := range r.conns {
		if c.state == stateFree {
			r.conns = slices.DeleteFunc(slices.Clone(r.conns), func(c *Conn) bool { return c.state == stateFree && !c.ready.Pending() })
			return
		}
	}
}

// Lock makes the caller the driver of the connection, and of the others of its session.
func (c *Conn) Lock() {
	for {
		r := c.circle.Load()
		r.Lock()
		if c.circle.Load() == r {
			break
		}
		r.Unlock() // c has joined a session in the meantime
	}
	c.times.Drive()
}

// Unlock does what was left for the driver, starts sending what is queued, and lets go.
func (c *Conn) Unlock() { c.circle.Load().Unlock() }

// join puts c into the circle r of a session, in place of its own. The caller holds both batons, and from then on that of r
// only. Nobody who holds a session's baton waits for a connection's own, so there is no deadlock.
func (c *Conn) join(r *circle) {
	own := c.circle.Load()
	own.conns = nil
	r.conns = append(slices.Clone(r.conns), c)
	c.circle.Store(r)
	own.Give(&r.Baton)
}

// post has f run with the connection's lock held, soon.
func (c *Conn) post(f func()) {
	for !c.circle.Load().Post(f) { // c has joined a session in the meantime
	}
}

// awaken has the driver look at c, whose flags the caller has set; now says whether to drive
// it here if nobody does. A connection that joins a session is looked at once it has.
func (c *Conn) awaken(now bool) { c.circle.Load().Awaken(now) }
