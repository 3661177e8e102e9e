package door

import (
	"container/list"
	"errors"
	"slices"
	"sync"
)

// Hall has the connections of one service, which shares its places with no other. When half of the places are those of
// connections that have proved nothing, one of these gives way to the next: the oldest of the host that has most. Its zero value is an
// empty one.
type Hall[C comparable] struct {
	mu       sync.Mutex // a leaf
	all      map[C]*seat
	starting list.List // of C, the oldest first
	shares   Shares    // of those that ProveAs has let in
	closed   bool
	left     *sync.Cond // nil until somebody waits
}

// seat is what a Hall knows of a connection.
type seat struct {
	host     string
	starting *list.Element // its place in Hall.starting, or the one that it had
	who      []string      // of ProveAs
	parting  bool
	left     chan struct{} // closed by Leave
}

// Why Enter refuses.
var (
	ErrFull   = errors.New("there are too many connections")
	ErrClosed = errors.New("the service is closing")
)

// Enter enters a connection from a host that has proved nothing, if there are fewer than most. giveWay has another one end that
// has to for it; it is called without locks of this package.
func (h *Hall[C]) Enter(c C, host string, most int, giveWay func(C)) error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return ErrClosed
	}
	full := h.starting.Len() >= max(most/2, 1)
	var old C
	switch {
	case full:
		old = h.oldest(host)
		h.prove(old)
	case len(h.all) >= most:
		h.mu.Unlock()
		return ErrFull
	}
	if h.all == nil {
		h.all = make(map[C]*seat)
	}
	h.all[c] = &seat{host: host, starting: h.starting.PushBack(c), left: make(chan struct{})}
	h.mu.Unlock()
	if full {
		giveWay(old)
	}
	return nil
}

// oldest returns the connection that gives way to one from host: so who opens connections without end turns out his own. mu is held.
func (h *Hall[C]) oldest(host string) (old C) {
	n, most := map[string]int{host: 1}, 0
	for e := h.starting.Front(); e != nil; e = e.Next() {
		n[h.all[e.Value.(C)].host]++
	}
	for e := h.starting.Front(); e != nil; e = e.Next() {
		if c := e.Value.(C); n[h.all[c].host] > most {
			old, most = c, n[h.all[c].host]
		}
	}
	return old
}

// prove takes c out of the line. mu is held.
func (h *Hall[C]) prove(c C) {
	if s := h.all[c]; s != nil {
		h.starting.Remove(s.starting) // which does nothing the second time
	}
}

// Prove says that a connection does not give way any more.
func (h *Hall[C]) Prove(c C) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.prove(c)
}

// ProveAs is Prove for a connection of somebody who may have his share of most places (Shares). After an error, a *ShareError, it goes on
// as one that has proved nothing. The caller leaves who alone.
func (h *Hall[C]) ProveAs(c C, most int, who []string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.all[c]
	if s.who != nil {
		return nil
	}
	if err := h.shares.Take(most, who); err != nil {
		return err
	}
	s.who = who
	h.prove(c)
	return nil
}

// Part says that a connection is on its way out: Leave follows.
func (h *Hall[C]) Part(c C) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.all[c]; s != nil {
		s.parting = true
	}
}

// Parting returns what is closed when a connection has left that has a place of the share of who and is on its way out, or nil if there
// is none. Who comes back while his former connection still has its place waits for that: he asks before ProveAs, for afterwards it may
// have left.
func (h *Hall[C]) Parting(who string) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.all {
		if s.parting && slices.Contains(s.who, who) {
			return s.left
		}
	}
	return nil
}

// Leave says that nothing is left of a connection.
func (h *Hall[C]) Leave(c C) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.prove(c)
	if s := h.all[c]; s != nil {
		h.shares.Free(s.who)
		delete(h.all, c)
		close(s.left)
	}
	if h.left != nil {
		h.left.Broadcast()
	}
}

// Has reports whether a connection has come and not left.
func (h *Hall[C]) Has(c C) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.all[c]
	return ok
}

// List returns the connections, in no order.
func (h *Hall[C]) List() []C {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]C, 0, len(h.all))
	for c := range h.all {
		all = append(all, c)
	}
	return all
}

// Len is how many connections there are.
func (h *Hall[C]) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.all)
}

// Close has Enter refuse everybody from now on.
func (h *Hall[C]) Close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
}

// Wait returns when no connection is left. Close was called before.
func (h *Hall[C]) Wait() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.left == nil {
		h.left = sync.NewCond(&h.mu)
	}
	for len(h.all) > 0 {
		h.left.Wait()
	}
}
