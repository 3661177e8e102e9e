package door

import (
	"fmt"
	"net"
	"net/netip"
)

// Shares counts places by those who have them, so that nobody has all. Who somebody is is a path, such as everybody without a name,
// and then a host: all who have the first step of it in common have no more than half of the places, of these the next step no more
// than half, and so on. Equal steps of different paths are one. The zero value counts none. Its owner guards it.
type Shares struct{ taken map[string]int }

// ShareError says that somebody has his share of the places.
type ShareError struct {
	Who string
	Has int // places
}

func (e *ShareError) Error() string {
	return fmt.Sprintf("%s has %d places, which is the share of one", e.Who, e.Has)
}

// Take takes one of most places for who. A *ShareError says that it is not to be had.
func (s *Shares) Take(most int, who []string) error {
	for _, w := range who {
		if most = max(most/2, 1); s.taken[w] >= most {
			return &ShareError{w, s.taken[w]}
		}
	}
	if s.taken == nil {
		s.taken = make(map[string]int)
	}
	for _, w := range who {
		s.taken[w]++
	}
	return nil
}

// Free gives back what Take has taken.
func (s *Shares) Free(who []string) {
	for _, w := range who {
		if s.taken[w]--; s.taken[w] == 0 {
			delete(s.taken, w)
		}
	}
}

// Host returns the host of an address with a port. It is a network of 64 bits for IPv6, of which one host may have all addresses
// (RFC 4291 §2.5.1). An address of another kind is its own host.
func Host(a net.Addr) string {
	p, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return a.String()
	}
	h := p.Addr().Unmap().WithZone("")
	if h.Is4() {
		return h.String()
	}
	return netip.PrefixFrom(h, 64).Masked().String()
}
