package server

import (
	"net/netip"
	"testing"

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
	h := &holding{since: now - front.Lifetime, renewed: now}
	own.held[addressOf(&p)] = h
	if next := own.keep(now); next != 0 || h.told != 0 {
		t.Errorf("an address was announced %d times, and will be looked at again in %v", h.told, next)
	}
}
