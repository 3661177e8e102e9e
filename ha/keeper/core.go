// Package keeper holds the addresses that go with a mirror's primary in a process of its own, and the sockets that listen there. So
// the daemon needs no capabilities, and when it dies or hangs, the addresses are gone soon after it, and nobody is refused
// before another node has them.
//
//	daemon ── Client ───────── unix socket, one message, one answer ──────── Keeper ── kernel, watchdog
//	           each Renewal: hold these addresses, as of this time            Core decides, by the clock
//
// A socket that listens is open in both processes: the one that is left keeps it, and gives it to the one that begins anew.
package keeper

import (
	"fmt"
	"time"

	"oneshot/ha/front"
)

const (
	// Patience is how long the keeper holds an address after the time as of which it was asked for it last.
	Patience = 300 * time.Millisecond
	// Renewal is the time between two such requests. A node that has handed over says nothing for the 0.2 s until its successor has the
	// addresses, and holds them meanwhile.
	Renewal = 50 * time.Millisecond
	// settling is how long those wait at most who have connected while nobody served: another node has the address by then, in most cases,
	// though it was not heard to announce it. They are reset, and come to that one.
	settling = 500 * time.Millisecond
	// again is the time between two attempts to remove an address.
	again = 100 * time.Millisecond
	// petting is the time between two signs of life for the watchdog, which waits for [WatchdogTimeout].
	petting = time.Second
)

// Core decides which addresses the machine has. Times are those of [front.Now]. It is a step function: its methods are called by one
// goroutine at a time.
//
//	          Hold: Add                       no Hold for Patience: Remove
//	not here ───────────► here, added again ───────────────────────────────► not here; Heard, or after settling: Reset
//	   ▲                    │  each second                                      │
//	   └────── Drop ────────┘                                Hold, Listen ──────┘ of a daemon that is back
type Core struct {
	held   map[front.Address]*holding
	orphan map[front.Address]time.Duration // removed because nobody asked for it: when those who wait there are reset
	petted time.Duration                   // when the watchdog gets its next sign of life
}

// holding is an address that the machine has.
type holding struct {
	until time.Duration // it is held no longer
	added time.Duration // to the interface, for front.Lifetime
	heard bool          // another machine has announced it since it was asked for last
}

// Action is what Core wants done, in this order.
type Action struct {
	Kind    ActionKind
	Address front.Address // of Add, Remove and Reset
}

// ActionKind says what.
type ActionKind uint8

// The actions.
const (
	Add    ActionKind = iota + 1 // or prolong. If it fails, Drop says so to the core
	Remove                       // Drop tells that it was done; until then it comes again
	Reset                        // those who have connected there, and whom nobody has accepted
	Pet                          // the watchdog
)

// NewCore returns a core that holds nothing.
func NewCore() *Core {
	return &Core{held: make(map[front.Address]*holding), orphan: make(map[front.Address]time.Duration)}
}

// Hold has the machine have an address, as of a time at which its node was the primary. It reports whether the address
// is new here, and has to be added. An error says that the request comes too late: it has waited since, with one of the two processes.
func (c *Core) Hold(now time.Duration, a front.Address, asOf time.Duration) (isNew bool, err error) {
	until := min(asOf, now) + Patience
	if until <= now {
		return false, fmt.Errorf("%v was asked for as of %v ago: it is held for %v", a, now-asOf, Patience)
	}
	delete(c.orphan, a)
	if h := c.held[a]; h != nil && now < h.until {
		h.until, h.heard = max(h.until, until), false
		return false, nil
	}
	c.held[a] = &holding{until: until, added: now}
	return true, nil
}

// Holds reports whether an address is held.
func (c *Core) Holds(now time.Duration, a front.Address) bool {
	h := c.held[a]
	return h != nil && now < h.until
}

// Drop says that an address is not here any more.
func (c *Core) Drop(a front.Address) { delete(c.held, a) }

// Heard says that another machine has announced an address: who has connected here while nobody served finds it there. It reports whether that is
// news here.
func (c *Core) Heard(now time.Duration, a front.Address) (isNews bool) {
	h := c.held[a]
	if h != nil {
		isNews, h.heard = !h.heard, true
	}
	if at, waits := c.orphan[a]; waits && at > now {
		c.orphan[a], isNews = now, true
	}
	return isNews
}

// Listen says that the socket of an address is about to be given to a daemon. Those who have connected while nobody served
// are not the new one's guests, unless it has the address.
func (c *Core) Listen(a front.Address, out []Action) []Action {
	if _, waits := c.orphan[a]; waits {
		delete(c.orphan, a)
		out = append(out, Action{Reset, a})
	}
	return out
}

// Tick says what is due.
func (c *Core) Tick(now time.Duration, out []Action) []Action {
	backed := true
	for a, h := range c.held {
		switch {
		case now >= h.until && now >= h.added+front.Lifetime: // the kernel has dropped it
			c.orphaned(now, a, h)
			c.Drop(a)
		case now >= h.until:
			backed = false
			c.orphaned(now, a, h)
			out = append(out, Action{Remove, a})
		case now >= h.added+front.Lifetime/2:
			h.added = now
			out = append(out, Action{Add, a})
		}
	}
	for a, at := range c.orphan {
		if now >= at && c.held[a] == nil {
			delete(c.orphan, a)
			out = append(out, Action{Reset, a})
		}
	}
	if backed && now >= c.petted {
		c.petted = now + petting
		out = append(out, Action{Kind: Pet})
	}
	return out
}

func (c *Core) orphaned(now time.Duration, a front.Address, h *holding) {
	if _, is := c.orphan[a]; is {
		return
	}
	if c.orphan[a] = now + settling; h.heard {
		c.orphan[a] = now
	}
}

// Next returns when Tick is due.
func (c *Core) Next(now time.Duration) time.Duration {
	next := max(c.petted, now+again)
	for _, h := range c.held {
		if at := min(h.until, h.added+front.Lifetime/2); at > now {
			next = min(next, at)
		} else {
			next = min(next, now+again)
		}
	}
	for a, at := range c.orphan {
		if c.held[a] == nil {
			next = min(next, at)
		}
	}
	return next
}
