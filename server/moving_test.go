package server

import (
	"net/netip"
	"testing"
	"time"

	"oneshot/config"
	"oneshot/ha/front"
	"oneshot/ha/replica"
)

// TestKeepsNothingOfOthers: a node that led a moment ago, and does not when it is about to add an address, or to announce one that it has
// added, does neither.
func TestKeepsNothingOfOthers(t *testing.T) {
	text, on := mirrorOn(t)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	m := s.mirrors()[0]
	m.Retire()
	if err := m.Await(t.Context(), func(replica.State) bool { return m.Leads() == 0 }); err != nil {
		t.Fatal(err)
	}
	// No machine has the interface, so each attempt fails, and leaves nothing but what is noted.
	p := config.Portal{Mirror: "d", Interface: "no such", Listen: netip.MustParseAddrPort("192.0.2.10:3260")}
	s.member.moving.Store(&[]config.Portal{p})
	own := newMoving(m)
	now := front.Now()
	if next := own.keep(now); next != 0 {
		t.Errorf("an address was added, and will be again in %v", next)
	}
	h := &holding{term: m.Term(), since: now - front.Lifetime, renewed: now}
	own.held[addressOf(&p)] = h
	if next := own.keep(now); next != 0 || h.told != 0 {
		t.Errorf("an address was announced %d times, and will be looked at again in %v", h.told, next)
	}
}

// announcer counts announcements of addresses that the machine always has.
type announcer struct {
	alone
	n int
}

func (a *announcer) hold(front.Address, time.Duration) (bool, error) { return false, nil }

func (a *announcer) announce(front.Address) error {
	a.n++
	return nil
}

// TestAnnouncesInEachTerm: a node that is primary again, and was never seen not to be, announces the addresses again: another node has, in between.
func TestAnnouncesInEachTerm(t *testing.T) {
	text, on := mirrorOn(t)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	m := primary(t, s)
	p := config.Portal{Mirror: "d", Interface: "no such", Listen: netip.MustParseAddrPort("192.0.2.10:3260")}
	s.member.moving.Store(&[]config.Portal{p})
	own, by := newMoving(m), new(announcer)
	own.by = by
	now := front.Now()
	for want := 1; want <= 2; want++ {
		for range 2 {
			if own.keep(now); by.n != want {
				t.Errorf("%d announcements, want %d", by.n, want)
			}
		}
		own.held[addressOf(&p)].term--
	}
}
