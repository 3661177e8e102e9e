package card

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// polling is what a program's loop does before it sleeps: it looks whether there is something new, which saves the program a
// system call, and both sides a wake-up.
type polling struct {
	found, vain, sleeps atomic.Uint64
	yielded             time.Time // to the runtime
}

// slice is how long polling keeps other goroutines of a processor waiting. After 10 ms the runtime would preempt it.
const slice = 5 * time.Millisecond

// hasNew reports whether there are hints, or the program has gone.
func (c *client) hasNew() bool { return c.gone.Load() || c.ctl.HintTail.Load() != c.hintHead }

// poll looks for hints for Config.Poll. False: there are none. At most half of the processors poll, for the sockets need the
// others: on a single one nobody does. Each turn yields to the kernel, for other programs that want this processor. It
// seldom yields to the runtime, which would wake a thread for every idle processor.
func (c *client) poll() bool {
	s := c.srv
	if s.cfg.Poll <= 0 {
		return false
	}
	defer s.pollers.Add(-1)
	if int(s.pollers.Add(1)) > runtime.GOMAXPROCS(0)/2 {
		return false
	}
	p := &c.polling
	for began := time.Now(); ; {
		if c.hasNew() {
			p.found.Add(1)
			return true
		}
		now := time.Now()
		if now.Sub(began) >= s.cfg.Poll {
			p.vain.Add(1)
			return false
		}
		if now.Sub(p.yielded) > slice {
			p.yielded = now
			runtime.Gosched()
		}
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}
