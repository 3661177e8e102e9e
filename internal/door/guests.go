package door

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Guest is a connection of a node. Whoever holds its lock drives it.
type Guest interface {
	comparable
	sync.Locker
}

// Guests are the connections of a node, which have come through a door that other nodes may share.
type Guests[C Guest] struct {
	door *Door

	mu     sync.Mutex // taken after the lock of a connection; before Door.mu
	all    map[C]struct{}
	coming int // connections that were admitted and are not in all yet
	closed bool
	idle   chan struct{} // closed when closed is set and no connection is left
}

// NewGuests returns the connections of a node, of which there are none.
func NewGuests[C Guest](d *Door) *Guests[C] {
	return &Guests[C]{door: d, all: make(map[C]struct{}), idle: make(chan struct{})}
}

// Door is the one through which they have come.
func (g *Guests[C]) Door() *Door { return g.door }

// Admit reports whether one more connection may come, and counts it: Add or Dismiss follows; and whether there was no room, so that
// either it may not, or another one was told to give way.
func (g *Guests[C]) Admit() (admitted, full bool) {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return false, false
	}
	var old *Place
	if admitted, full, old = g.door.admit(); admitted {
		g.coming++
	}
	g.mu.Unlock()
	if old != nil {
		old.giveWay()
	}
	return admitted, full
}

// Dismiss takes back what Admit counted, of a connection that came to nothing.
func (g *Guests[C]) Dismiss() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.coming--
	g.door.dismiss()
	g.checkIdle()
}

// Add counts a connection in. p is its place; giveWay has it end, if it has proved nothing until then; whoever
// calls it may hold the lock of another connection.
func (g *Guests[C]) Add(c C, p *Place, giveWay func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all[c] = struct{}{}
	g.coming--
	g.door.enter(p, giveWay)
}

// Forget drops a connection of which nothing is left. It has proved itself, or is over.
func (g *Guests[C]) Forget(c C) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.all, c)
	g.door.leave()
	g.checkIdle()
}

// checkIdle tells Shutdown when no connection is left, nor one on its way. mu is held.
func (g *Guests[C]) checkIdle() {
	if g.closed && g.coming == 0 && len(g.all) == 0 {
		close(g.idle) // nobody is admitted any more, so this is the only time
	}
}

// List returns the connections, in no order.
func (g *Guests[C]) List() []C {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Collect(maps.Keys(g.all))
}

// Count is how many connections there are, those included that are coming.
func (g *Guests[C]) Count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.all) + g.coming
}

// Closed reports whether Shutdown was called.
func (g *Guests[C]) Closed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

// Each calls f for each connection there is, with its lock held.
func (g *Guests[C]) Each(f func(C)) {
	for _, c := range g.List() {
		c.Lock()
		f(c)
		c.Unlock()
	}
}

// abortTime is how long connections that were cut off may take to come back from their stores.
const abortTime = 2 * time.Second

// Shutdown admits nobody any more, asks each connection to leave, waits, and cuts off those that are there when ctx ends. It returns
// when no connection is left, or some time after ctx has ended, with its error: what is left then hangs in a store. Both
// functions are called with the lock of the connection held.
func (g *Guests[C]) Shutdown(ctx context.Context, ask, cut func(C)) error {
	g.mu.Lock()
	g.closed = true
	g.checkIdle()
	g.mu.Unlock()
	g.Each(ask)
	select {
	case <-g.idle:
		return nil
	case <-ctx.Done():
	}
	g.Each(cut)
	select {
	case <-g.idle:
		return nil
	case <-time.After(abortTime):
		return ctx.Err()
	}
}
