// Package baton is a lock whose holder does what others leave for it. Who drives connections holds it: who has fed them a
// batch of input, or a store that has completed an operation and finds the lock free. If it is not free, the store leaves
// word for the holder, who looks before letting go. So completions need no goroutine of their own, and wake no sleeping one.
package baton

import (
	"sync"
	"sync/atomic"
)

// Driven is what the holder drives. Both methods are called with the baton held.
type Driven interface {
	// Resume goes on with what has become ready elsewhere.
	Resume()
	// Flush starts what the steps that were made have led to: operations of stores, and output.
	Flush()
}

// Baton is the lock. Its zero value needs Drive before it is used.
type Baton struct {
	driven Driven
	mu     sync.Mutex
	// work says that something is left for the holder. It is set after that.
	work atomic.Bool

	postMu sync.Mutex // taken after mu; a leaf
	posts  []func()   // guarded by postMu: to be run with mu held
	given  bool       // guarded by postMu: Give was called
}

// Drive says what the holder of b drives. It is called once, before all else.
func (b *Baton) Drive(d Driven) { b.driven = d }

// Lock makes the caller the holder.
func (b *Baton) Lock() { b.mu.Lock() }

// Unlock does what was left for the holder, flushes, and lets go.
func (b *Baton) Unlock() {
	for {
		b.settle()
		b.mu.Unlock()
		if !b.work.Load() || !b.mu.TryLock() {
			return
		}
	}
}

// settle resumes, runs posts, and flushes, until nothing is left to do.
func (b *Baton) settle() {
	for {
		if b.work.Load() {
			b.work.Store(false) // before looking, so that what comes later sets it again
			b.driven.Resume()
			b.runPosts()
		}
		b.driven.Flush()
		if !b.work.Load() {
			return
		}
	}
}

// Awaken has the holder look at what the caller has left for Resume; now says whether to drive here if there is no holder.
func (b *Baton) Awaken(now bool) {
	b.work.Store(true)
	if now && b.mu.TryLock() {
		b.Unlock()
	}
}

// Post has f run with the baton held, soon. False: b was given to another baton, which takes f.
func (b *Baton) Post(f func()) bool {
	b.postMu.Lock()
	if b.given {
		b.postMu.Unlock()
		return false
	}
	b.posts = append(b.posts, f)
	b.postMu.Unlock()
	b.Awaken(true)
	return true
}

func (b *Baton) runPosts() {
	b.postMu.Lock()
	posts := b.posts
	b.posts = nil
	b.postMu.Unlock()
	for _, f := range posts {
		f()
	}
}

// Give has the holder of to do what was posted to b, and lets b go for good. The caller holds both, and has seen to it that
// whoever looks for the baton finds to.
func (b *Baton) Give(to *Baton) {
	b.postMu.Lock()
	posts := b.posts
	b.posts, b.given = nil, true
	b.postMu.Unlock()
	b.mu.Unlock()
	to.postMu.Lock()
	to.posts = append(to.posts, posts...)
	to.postMu.Unlock()
	to.work.Store(true)
}
