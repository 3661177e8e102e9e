package server

import (
	"net/netip"

	"oneshot/config"
	"oneshot/iscsi"
)

// reached returns the address of a portal as somebody reaches it who has reached local: a
// host that stands for all addresses becomes that of local. exact: it needed not.
func reached(listen netip.AddrPort, local string) (address string, exact bool) {
	if a := listen.Addr(); a.IsValid() && !a.IsUnspecified() {
		return listen.String(), true
	}
	l, err := netip.ParseAddrPort(local)
	if err != nil {
		return "", false
	}
	host := l.Addr().Unmap()
	if a := listen.Addr(); a.IsValid() && a.Is4() != host.Is4() {
		return "", false
	}
	return netip.AddrPortFrom(host, listen.Port()).String(), false
}

// announce tells the node where it is reached. mu is held.
func (s *Server) announce() {
	ps := make([]iscsi.Portal, len(s.portals))
	for i, p := range s.portals {
		at := p.bound()
		ps[i] = iscsi.Portal{
			Group: at.Group, RDMA: at.Transport != config.TransportTCP,
			Reached: func(local string) (string, bool) { return reached(at.Listen, local) },
		}
	}
	s.node.SetPortals(ps)
}
