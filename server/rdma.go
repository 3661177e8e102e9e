package server

import (
	"errors"
	"net"

	"oneshot/config"
	"oneshot/iser"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
)

// rdmaPortals is what the portals of RDMA in user space share: the device.
type rdmaPortals struct {
	device  rdma.Device
	targets map[config.OneShot]*iser.Target // portals that offer the same share one
}

// iwarpPortal is a portal of iSER over RDMA in user space.
type iwarpPortal struct {
	l      rdma.Listener
	target *iser.Target
}

func (p *iwarpPortal) Addr() net.Addr { return p.l.Addr() }
func (p *iwarpPortal) Close() error   { return p.l.Close() }
func (p *iwarpPortal) serve() error   { return p.target.Serve(p.l) }

func (s *Server) openIWARP(p *config.Portal) (portal, error) {
	if s.rdma == nil {
		device, err := iwarp.Open(iwarp.Config{Logger: s.log})
		if err != nil {
			return nil, err
		}
		s.rdma = &rdmaPortals{device, make(map[config.OneShot]*iser.Target)}
	}
	target := s.rdma.targets[*p.OneShot]
	if target == nil {
		var err error
		target, err = iser.NewTarget(iser.Config{
			Node: s.node, Device: s.rdma.device, Transport: string(config.TransportIWARP), Pool: s.pool, Commands: s.first.Limits.Commands,
			OneShot: oneShot(p.OneShot), Logger: s.log,
		})
		if err != nil {
			return nil, err
		}
		s.rdma.targets[*p.OneShot] = target
	}
	listen := s.rdma.device.Listen
	if p.NoCRC {
		listen = s.rdma.device.(*iwarp.Device).ListenNoCRC
	}
	l, err := listen(p.Address())
	if err != nil {
		return nil, err
	}
	return &iwarpPortal{l, target}, nil
}

// oneShot is what a portal agrees to; nil: nothing.
func oneShot(c *config.OneShot) *rdma.OneShotOffer {
	if !c.Flags && !c.Opcodes {
		return nil
	}
	return &rdma.OneShotOffer{
		Flags: c.Flags, Opcodes: c.Opcodes, Validated: c.Validated,
		Advertise: true, Close: true, CheckReference: true, Window: uint32(c.Window),
	}
}

// close ends what is left, after the connections have been ended.
func (r *rdmaPortals) close() error {
	if r == nil {
		return nil
	}
	var errs []error
	for _, t := range r.targets {
		errs = append(errs, t.Close())
	}
	return errors.Join(append(errs, r.device.Close())...)
}
