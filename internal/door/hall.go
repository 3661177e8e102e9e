package door

import (
	"container/list"
	"errors"
	"sync"
)

// Hall has the connections of one service, which shares its places with no other. When half of the places are those of
// connections that have proved nothing, the oldest of these gives way to the next. Its zero value is an empty one.
type Hall[C comparable] struct {
	mu       sync.Mutex          // a leaf
	all      map[C]*list.Element // with its place in starting, or the one that it had
	starting list.List           // of C, the oldest first
	closed   bool
	left     *sync.Cond // nil until somebody waits
}

// Why Enter refuses.
var (
	ErrFull   = errors.New("there are too many connections")
	ErrClosed = errors.New("the service is closing")
)

// Enter enters a connection that has proved nothing, if there are fewer than most. giveWay has another one end that has to
// for it; it is called without locks of this package.
func (h *Hall[C]) Enter(c C, most int, giveWay func(C)) error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return ErrClosed
	}
	var old *list.Element
	switch {
	case h.starting.Len() >= max(most/2, 1):
		old = h.starting.Front()
		h.prove(old.Value.(C))
	case len(h.all) >= most:
		h.mu.Unlock()
		return ErrFull
	}
	if h.all == nil {
		h.all = make(map[C]*list.Element)
	}
	h.all[c] = h.starting.PushBack(c)
	h.mu.Unlock()
	if old != nil {
		giveWay(old.Value.(C))
	}
	return nil
}

// prove takes c out of the line. mu is held.
func (h *Hall[C]) prove(c C) {
	if place := h.all[c]; place != nil {
		h.starting.Remove(place) // which does nothing the second time
	}
}

// Prove says that a connection does not give way any more.
func (h *Hall[C]) Prove(c C) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.prove(c)
}

// Leave says that nothing is left of a connection.
func (h *Hall[C]) Leave(c C) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.prove(c)
	delete(h.all, c)
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
