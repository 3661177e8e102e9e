package server

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"oneshot/config"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
)

// iwarpFront opens portals of iSER over RDMA in user space, which share one device, and those for partitions and objects.
type iwarpFront struct {
	devices    *rdmaDevices
	partitions *partitionFront
	objects    *objectFront
}

// iwarpPortal is a portal of iSER over RDMA in user space.
type iwarpPortal struct {
	rdma.Listener
	front  *iwarpFront
	device *rdmaDevice
	target rdmaTarget
	tcp    *net.TCPListener
	config config.Portal

	begun    atomic.Bool // serve is called, or will be
	released sync.Once
}

func (f *iwarpFront) open(p *config.Portal, replaces []portal) (portal, error) {
	if p.Serve == config.ServePartitions {
		return f.partitions.open(p, replaces)
	}
	if p.Serve == config.ServeObjects {
		return f.objects.open(p, replaces)
	}
	d, target, err := f.devices.use(deviceKey{config.TransportIWARP, "iwarp"}, p.Serve, func(func(error)) (rdma.Device, error) {
		return iwarp.Open(iwarp.Config{Logger: f.devices.log})
	})
	if err != nil {
		return nil, err
	}
	l, err := f.devices.member.listen(p, replaces)
	if err != nil {
		f.devices.release(d)
		return nil, err
	}
	return &iwarpPortal{
		Listener: d.Device.(*iwarp.Device).ListenOn(l, p.NoCRC), front: f, device: d, target: target, tcp: l, config: *p,
	}, nil
}

// oneShot returns what a portal agrees to; nil: it does not speak one-shot RDMA.
func oneShot(c *config.OneShot) *rdma.OneShotOffer {
	if c == nil || !c.Flags && !c.Opcodes {
		return nil
	}
	return &rdma.OneShotOffer{
		Flags: c.Flags, Opcodes: c.Opcodes, Validated: c.Validated,
		Advertise: true, Close: true, Window: uint32(c.Window),
	}
}

func (f *iwarpFront) close() error {
	return errors.Join(f.partitions.close(), f.objects.close(), f.devices.close())
}

// Close implements portal.
func (p *iwarpPortal) Close() error {
	err := p.Listener.Close()
	if !p.begun.Load() {
		p.release()
	}
	return err
}

func (p *iwarpPortal) release() { p.released.Do(func() { p.front.devices.release(p.device) }) }

func (p *iwarpPortal) listener() *net.TCPListener { return p.tcp }

// begin has serve release the device, instead of Close.
func (p *iwarpPortal) begin() bool {
	p.begun.Store(true)
	return true
}

func (p *iwarpPortal) serve() error {
	defer p.release()
	return p.target.Serve(p.Listener, &p.config)
}
