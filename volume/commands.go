package volume

import (
	"sync"
	"sync/atomic"

	"oneshot/internal/invariant"
)

// Commands counts the commands that come to a view on one way: all from their start to their release, and of these the ones that run. Those
// that run are counted by turns: Await begins a turn, and waits for those of the turn before.
//
//	 63            43 42            22 21             0
//	┌────────────────┬────────────────┬────────────────┐
//	│ run, odd turns │ run, even ones │ all            │
//	└────────────────┴────────────────┴────────────────┘
//
// Its methods may be called from any goroutine, but it is best that one way has one driver.
type Commands struct {
	word    atomic.Uint64
	odd     atomic.Uint64 // what is added to evenTurn to have the present turn
	awaited atomic.Bool   // somebody waits

	mu   sync.Mutex // a leaf
	now  []func()   // wait for the end of the turn before; guarded by mu
	next []func()   // wait for that of the present one, which ends when nothing of the turn before runs; guarded by mu
}

// Turn is what a command that runs adds to the count of its turn.
type Turn uint64

const (
	evenTurn Turn = 1 << 22
	oddTurn  Turn = 1 << 43

	countMask = uint64(evenTurn) - 1
	evenMask  = uint64(oddTurn) - uint64(evenTurn)
	oddMask   = ^uint64(oddTurn - 1)
	tooMany   = 1<<63 | uint64(oddTurn)>>1 | uint64(evenTurn)>>1 // more than there are commands
)

// mask is where those of the turn are counted.
func (t Turn) mask() uint64 {
	if t == evenTurn {
		return evenMask
	}
	return oddMask
}

// Enter counts a command that starts and runs.
func (c *Commands) Enter() Turn {
	t := evenTurn + Turn(c.odd.Load())
	c.word.Add(uint64(t) + 1)
	return t
}

// Run counts a command that has started as one that runs.
func (c *Commands) Run() Turn {
	t := evenTurn + Turn(c.odd.Load())
	c.word.Add(uint64(t))
	return t
}

// End says that a command of the turn runs no more; released is 1 if that is its release, too, and else 0. Idle: none runs.
func (c *Commands) End(t Turn, released uint64) (idle bool) {
	left := c.word.Add(-uint64(t) - released)
	invariant.Check(left&tooMany == 0, "volume: more commands end than have begun")
	if left&t.mask() == 0 && c.awaited.Load() {
		c.Tell()
	}
	return left <= countMask
}

// Rest is End of a command that is to run again (Run), for a caller with locks: it calls nobody, and says whether the caller has to call Tell
// without them.
func (c *Commands) Rest(t Turn) (tell bool) {
	left := c.word.Add(-uint64(t))
	invariant.Check(left&tooMany == 0, "volume: more commands rest than run")
	return left&t.mask() == 0 && c.awaited.Load()
}

// Release counts a command off that runs no more.
func (c *Commands) Release() {
	left := c.word.Add(^uint64(0))
	invariant.Check(left&tooMany == 0, "volume: more commands are released than have started")
}

// Count is how many commands run, and how many there are between their start and their release.
func (c *Commands) Count() (running, all int64) {
	w := c.word.Load()
	return int64(w&evenMask/uint64(evenTurn) + w/uint64(oddTurn)), int64(w & countMask)
}

// Await calls done, perhaps before it returns, when the commands that run now have ended. Those that come later do not matter. A command that
// enters meanwhile, and may be counted as one of those that came before, sees what the caller has changed before Await.
func (c *Commands) Await(done func()) {
	c.mu.Lock()
	c.next = append(c.next, done)
	c.awaited.Store(true) // before the look at the counts: one of the two sees the other
	over := c.advance()
	c.mu.Unlock()
	for _, f := range over {
		f()
	}
}

// Tell calls those whose wait is over.
func (c *Commands) Tell() {
	c.mu.Lock()
	over := c.advance()
	c.mu.Unlock()
	for _, f := range over {
		f()
	}
}

// advance begins turns as far as it goes, and returns those whose wait is over. mu is held.
func (c *Commands) advance() (over []func()) {
	for {
		before := oddTurn - Turn(c.odd.Load())
		if c.word.Load()&before.mask() != 0 {
			return over
		}
		over = append(over, c.now...)
		if c.now = nil; len(c.next) == 0 {
			c.awaited.Store(false)
			return over
		}
		c.now, c.next = c.next, nil
		c.odd.Store(uint64(oddTurn-evenTurn) - c.odd.Load())
	}
}
