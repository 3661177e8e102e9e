package iscsi

import (
	"slices"
	"sync"
	"sync/atomic"
)

// baton is the lock of the connections of one session, or of one connection that has none.
// Whoever holds it drives them all: it feeds them, resumes what has become ready in stores, and
// sends. A store that completes elsewhere takes the baton if it is free. Otherwise it leaves its
// tasks for the holder, who looks for them before letting go. So completions need no goroutine of
// their own, and wake no sleeping one.
type baton struct {
	mu    sync.Mutex // taken before Node.mu; not held over blocking calls
	conns []*Conn    // guarded by mu
	// work says that a connection has a flag set for the holder, or that there are posts. It is set
	// after these.
	work atomic.Bool

	postMu sync.Mutex // taken after mu; leaf
	posts  []func()   // guarded by postMu: to be run with mu held
}

// settle resumes tasks, runs posts, and sends, until nothing is left to do.
func (b *baton) settle() {
	for {
		if b.work.Load() {
			b.work.Store(false) // before looking, so that what comes later sets it again
			for _, c := range b.conns {
				c.resume()
			}
			b.runPosts()
		}
		for _, c := range b.conns {
			c.flush()
		}
		b.sweep()
		if !b.work.Load() {
			return
		}
	}
}

// sweep lets go of connections of which nothing is left.
func (b *baton) sweep() {
	for _, c := range b.conns {
		if c.state == stateFree {
			b.conns = slices.DeleteFunc(slices.Clone(b.conns), func(c *Conn) bool { return c.state == stateFree && !c.pending.Load() })
			return
		}
	}
}

// unlock does what was left for the holder, and lets go.
func (b *baton) unlock() {
	for {
		b.settle()
		b.mu.Unlock()
		if !b.work.Load() || !b.mu.TryLock() {
			return
		}
	}
}

// nudge drives the connections if nobody does.
func (b *baton) nudge() {
	if b.mu.TryLock() {
		b.unlock()
	}
}

// post has f run with the baton held, soon.
func (b *baton) post(f func()) {
	b.postMu.Lock()
	b.posts = append(b.posts, f)
	b.postMu.Unlock()
	b.work.Store(true)
	b.nudge()
}

func (b *baton) runPosts() {
	b.postMu.Lock()
	posts := b.posts
	b.posts = nil
	b.postMu.Unlock()
	for _, f := range posts {
		f()
	}
}

// Lock makes the caller the driver of the connection, and of the others of its session.
func (c *Conn) Lock() {
	for {
		b := c.baton.Load()
		b.mu.Lock()
		if c.baton.Load() == b {
			break
		}
		b.mu.Unlock() // c has joined a session in the meantime
	}
	c.timed = false
}

// Unlock does what was left for the driver, starts sending what is queued, and lets go.
func (c *Conn) Unlock() { c.baton.Load().unlock() }

// join puts c under the baton b of a session, in place of its own. The caller holds both, and
// from then on b only. Nobody who holds a session's baton waits for a connection's own, so there is
// no deadlock.
func (c *Conn) join(b *baton) {
	own := c.baton.Load()
	own.postMu.Lock()
	c.baton.Store(b)
	posts := own.posts
	own.posts, own.conns = nil, nil
	own.postMu.Unlock()
	own.mu.Unlock()
	b.conns = append(slices.Clone(b.conns), c)
	b.postMu.Lock()
	b.posts = append(b.posts, posts...)
	b.postMu.Unlock()
	b.work.Store(true)
}

// post has f run with the connection's lock held, soon.
func (c *Conn) post(f func()) {
	for {
		b := c.baton.Load()
		b.postMu.Lock()
		if c.baton.Load() != b {
			b.postMu.Unlock()
			continue // c has joined a session in the meantime
		}
		b.posts = append(b.posts, f)
		b.postMu.Unlock()
		b.work.Store(true)
		b.nudge()
		return
	}
}

// awaken has the driver look at c, whose flags the caller has set; now says whether to drive
// it here if nobody does. A connection that joins a session is looked at once it has.
func (c *Conn) awaken(now bool) {
	b := c.baton.Load()
	b.work.Store(true)
	if now {
		b.nudge()
	}
}
