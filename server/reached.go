package server

import (
	"net"
	"net/netip"
	"os"

	"oneshot/config"
	"oneshot/iscsi"
	"oneshot/isns"
)

// reached returns the address of a portal for an initiator that is connected to the address local of
// this machine: if listen stands for all addresses, its host is replaced by that of local. exact is
// true if listen names one address.
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

// announce tells the node the addresses of its portals. mu is held.
func (s *Server) announce() {
	ps := make([]iscsi.Portal, 0, len(s.portals))
	for _, p := range s.portals {
		if p.config.Serve != config.ServeLUNs {
			continue
		}
		at := p.bound()
		told := iscsi.Portal{
			Group: at.Group, Transport: string(at.Transport), RDMA: at.Transport != config.TransportTCP,
			Advertised: at.Advertise, Moves: at.Mirror != "",
			Reached: func(local string) (string, bool) { return reached(at.Listen, local) },
		}
		if at.Mirror != "" {
			book := s.member.books.of(at.Mirror)
			told.Returns, told.Arrived = book.returns, book.arrived
		}
		ps = append(ps, told)
	}
	s.node.SetPortals(append(ps, s.elsewhere()...))
	s.announceNVMe()
	if s.isns != nil {
		s.isns.Set(s.registration())
	}
}

// elsewhere returns the portals of other nodes through which targets of this one are reached, so that one discovery finds all
// paths. Of one that listens at all addresses of its machine the address is not known here. mu is held.
func (s *Server) elsewhere() (ps []iscsi.Portal) {
	for _, p := range s.cfg.Cluster.Others {
		told := p.Advertise
		if a := p.Listen.Addr(); told == "" && a.IsValid() && !a.IsUnspecified() {
			told = p.Listen.String()
		}
		targets := []string{}
		for i := range s.cfg.Targets {
			if t := &s.cfg.Targets[i]; s.isReachedAt(t, &p) {
				targets = append(targets, t.Name)
			}
		}
		if told != "" {
			ps = append(ps, iscsi.Portal{Group: p.Group, Transport: string(p.Transport), RDMA: p.Transport != config.TransportTCP, Elsewhere: told, Targets: targets})
		}
	}
	return ps
}

// registration returns what the iSNS server is told: the targets, and their portals of transport tcp.
func (s *Server) registration() isns.Registration {
	r := isns.Registration{Entity: s.first.ISNS.Entity}
	if r.Entity == "" {
		r.Entity, _ = os.Hostname()
	}
	for _, t := range s.cfg.Targets {
		r.Targets = append(r.Targets, isns.Target{Name: t.Name, Alias: t.Alias, Groups: t.Groups})
	}
	for _, p := range s.portals {
		if p.config.Transport != config.TransportTCP {
			continue // an initiator that finds it would try TCP
		}
		at := p.bound()
		if told, err := netip.ParseAddrPort(at.Advertise); err == nil { // a name cannot be registered
			r.Portals = append(r.Portals, isns.Portal{Address: told, Group: at.Group})
			continue
		}
		for _, a := range addresses(at.Listen.Addr()) {
			r.Portals = append(r.Portals, isns.Portal{Address: netip.AddrPortFrom(a, at.Listen.Port()), Group: at.Group})
		}
	}
	return r
}

// addresses returns a, or, if a stands for all addresses, the addresses of this machine that other
// machines may reach.
func addresses(a netip.Addr) []netip.Addr {
	if a.IsValid() && !a.IsUnspecified() {
		return []netip.Addr{a}
	}
	nets, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var all []netip.Addr
	for _, n := range nets {
		p, err := netip.ParsePrefix(n.String())
		if err != nil {
			continue
		}
		own := p.Addr().Unmap()
		if !own.IsLoopback() && !own.IsLinkLocalUnicast() && (!a.IsValid() || a.Is4() == own.Is4()) {
			all = append(all, own)
		}
	}
	return all
}
