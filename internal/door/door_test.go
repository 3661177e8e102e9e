package door

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// guest is a connection that goes when it is told to, or not.
type guest struct {
	sync.Mutex
	place Place
	told  int
}

// house is a node whose connections are guests.
type house struct {
	*Guests[*guest]
	t *testing.T
}

func newHouse(t *testing.T, d *Door) house { return house{NewGuests[*guest](d), t} }

// comes has a connection come for which there is room, perhaps because another one gives way.
func (h house) comes(wantFull bool) *guest {
	h.t.Helper()
	if admitted, full := h.Admit(); !admitted || full != wantFull {
		h.t.Fatalf("admitted: %v, full: %v", admitted, full)
	}
	c := new(guest)
	h.Add(c, &c.place, func() { c.told++ })
	return c
}

func (h house) goes(c *guest) {
	c.place.Prove()
	h.Forget(c)
}

// refuses wants that there is no room.
func (h house) refuses(wantFull bool) {
	h.t.Helper()
	if admitted, full := h.Admit(); admitted || full != wantFull {
		h.t.Fatalf("admitted: %v, full: %v", admitted, full)
	}
}

// The limit is that of all nodes together, and who gives way is the oldest that has proved nothing, whichever node it is of.
func TestShared(t *testing.T) {
	d := NewDoor(4)
	one, two := newHouse(t, d), newHouse(t, d)
	a, b, c := one.comes(false), two.comes(false), one.comes(false)
	a.place.Prove()
	e := two.comes(false)
	f := one.comes(true) // a has proved itself, so b goes
	if a.told+c.told+e.told+f.told != 0 || b.told != 1 || !b.place.Evicted() {
		t.Fatalf("told: %d %d %d %d %d", a.told, b.told, c.told, e.told, f.told)
	}
	two.goes(b)
	for _, x := range []*guest{c, e, f} {
		x.place.Prove()
	}
	one.refuses(true)
	two.refuses(true)
	one.goes(a)
	if two.Count() != 1 || one.Count() != 2 {
		t.Errorf("%d and %d connections", one.Count(), two.Count())
	}
	g := two.comes(false)
	d.SetLimit(3) // whoever is beyond it stays
	if g.told != 0 || d.Limit() != 3 {
		t.Error("a lower limit drives one out")
	}
	g.place.Prove()
	one.refuses(true)
}

// Those that have proved nothing have a share, and do not take the places of the others.
func TestShare(t *testing.T) {
	h := newHouse(t, NewDoor(100))
	var first *guest
	for range 50 {
		c := h.comes(false)
		if first == nil {
			first = c
		}
	}
	last := h.comes(true)
	if first.told != 1 || last.told != 0 {
		t.Errorf("the oldest was told %d times, the youngest %d", first.told, last.told)
	}
	for range maxLeaving - 1 {
		h.comes(true)
	}
	h.refuses(true) // so many are leaving that no more may come for them
}

// One that proves itself before it goes stays, unless it only tries to.
func TestTooLate(t *testing.T) {
	h := newHouse(t, NewDoor(2))
	a, b := h.comes(false), h.comes(false)
	c := h.comes(true)
	if a.place.TryProve() || !a.place.Evicted() || !b.place.TryProve() {
		t.Error("who has been told to go may stay, or who has not may not")
	}
	a.place.Prove()
	if a.place.Evicted() {
		t.Error("who has proved itself is to go")
	}
	c.place.Prove()
	h.refuses(true)
}

// A line of its own has its own bound.
func TestLine(t *testing.T) {
	h := newHouse(t, NewDoor(100))
	var l Line
	a, b, c := h.comes(false), h.comes(false), h.comes(false)
	a.place.Join(&l, 2)
	b.place.Join(&l, 2)
	if a.told != 0 {
		t.Fatal("one gives way where there is room")
	}
	c.place.Join(&l, 2)
	if a.told != 1 || b.told+c.told != 0 {
		t.Errorf("told: %d %d %d", a.told, b.told, c.told)
	}
}

// A connection that was admitted is waited for, whether it comes or not, and whatever the other nodes have; when the time is over
// those that stay are cut off.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDoor(10)
		h, other := newHouse(t, d), newHouse(t, d)
		other.comes(false)
		a := h.comes(false)
		if admitted, _ := h.Admit(); !admitted {
			t.Fatal("no room")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ended := make(chan error, 1)
		var cut []*guest
		ask := func(c *guest) { go h.goes(c) }
		go func() { ended <- h.Shutdown(ctx, ask, func(c *guest) { cut = append(cut, c) }) }()
		synctest.Wait()
		if h.refuses(false); !h.Closed() || h.Count() != 1 || len(ended) != 0 || a.told != 0 {
			t.Fatal("it does not wait for who comes")
		}
		c := new(guest)
		h.Add(c, &c.place, nil)
		synctest.Wait()
		if len(ended) != 0 {
			t.Fatal("it does not wait for who has come")
		}
		if err := <-ended; !errors.Is(err, context.DeadlineExceeded) || len(cut) != 1 || cut[0] != c {
			t.Errorf("%v, %d were cut off", err, len(cut))
		}
		h.goes(c)
		if other.Count() != 1 || other.Closed() {
			t.Error("the other node has ended, too")
		}
	})
}
