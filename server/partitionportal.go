package server

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"oneshot/config"
	"oneshot/partition/registry"
	osp "oneshot/partition/service"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
)

// partitionFront opens portals for partitions. Each has devices of its own: its connections end with it.
type partitionFront struct {
	surroundings
	registry *registry.Registry
	kernel   []*rdmaDevices // of portals over devices of the kernel
	closing  sync.WaitGroup // of services whose portals are closed

	mu       sync.Mutex                // a leaf
	now      osp.Limits                // guarded by mu
	services map[*osp.Service]struct{} // those in use; guarded by mu
}

// setLimits changes the limits of all services.
func (f *partitionFront) setLimits(l *config.Limits) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = osp.Limits{Connections: l.Connections, StartTimeout: l.LoginTimeout, Patience: l.ReadTimeout}
	for s := range f.services {
		s.SetLimits(f.now)
	}
}

// forget notes that a service ends.
func (f *partitionFront) forget(s *osp.Service) {
	f.mu.Lock()
	delete(f.services, s)
	f.mu.Unlock()
}

// partitionPortal is a portal for partitions.
type partitionPortal struct {
	rdma.Listener
	front   *partitionFront
	device  rdma.Device
	service *osp.Service
	tcp     *net.TCPListener

	begun    atomic.Bool // serve is called, or will be
	released sync.Once
}

// service serves the partitions of a portal on a device.
func (f *partitionFront) service(p *config.Portal, device rdma.Device) (*osp.Service, error) {
	secrets := make(map[string][]byte, len(p.Clients))
	for i := range p.Clients {
		secrets[p.Clients[i].Name] = p.Clients[i].Secret.Bytes()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := osp.New(osp.Config{
		Device: device, Pool: f.pool, Opener: partitionOpener{f.registry}, Logger: f.log,
		Secret: func(name string) ([]byte, bool) {
			secret, ok := secrets[name]
			return secret, ok
		},
		Memory: f.limits.MemoryPerConnection, Connections: f.now.Connections, StartTimeout: f.now.StartTimeout, Patience: f.now.Patience,
	})
	if err != nil {
		return nil, err
	}
	f.services[s] = struct{}{}
	return s, nil
}

// partitionTarget is a service on a device of the kernel.
type partitionTarget struct {
	*osp.Service
	front *partitionFront
}

// Close implements rdmaTarget.
func (t partitionTarget) Close() error {
	t.front.forget(t.Service)
	return t.Service.Close()
}

// Serve implements rdmaTarget.
func (t partitionTarget) Serve(l rdma.Listener, _ *config.Portal) error {
	return t.Service.Serve(l)
}

// Busy implements rdmaTarget: connections end with their portal.
func (partitionTarget) Busy() bool { return false }

// openKernel opens a portal over devices of the kernel.
func (f *partitionFront) openKernel(p *config.Portal, replaces []portal) (portal, error) {
	devices := &rdmaDevices{surroundings: f.surroundings}
	devices.serves = func(_ deviceKey, d rdma.Device, _ func()) (rdmaTarget, error) {
		s, err := f.service(p, d)
		if err != nil {
			return nil, err
		}
		return partitionTarget{s, f}, nil
	}
	f.kernel = append(f.kernel, devices)
	return (&verbsFront{devices: devices}).open(p, replaces)
}

// open opens a portal over RDMA in user space.
func (f *partitionFront) open(p *config.Portal, replaces []portal) (portal, error) {
	device, err := iwarp.Open(iwarp.Config{Logger: f.log})
	if err != nil {
		return nil, err
	}
	l, err := listenTCP(p.Network(), p.Address(), listeners(replaces)...)
	if err != nil {
		return nil, errors.Join(err, device.Close())
	}
	svc, err := f.service(p, device)
	if err != nil {
		return nil, errors.Join(err, l.Close(), device.Close())
	}
	return &partitionPortal{
		Listener: device.(*iwarp.Device).ListenOn(l, p.NoCRC), front: f, device: device, service: svc, tcp: l,
	}, nil
}

// close waits for the connections of portals that are closed.
func (f *partitionFront) close() error {
	for _, d := range f.kernel {
		f.closing.Go(func() {
			if err := d.close(); err != nil {
				f.log.Error("close a portal for partitions", "reason", err)
			}
		})
	}
	over := make(chan struct{})
	go func() {
		f.closing.Wait()
		close(over)
	}()
	select {
	case <-over:
		return nil
	case <-time.After(endPatience):
		return errors.New("partitions are still in use: a store hangs")
	}
}

// Close implements portal.
func (p *partitionPortal) Close() error {
	err := p.Listener.Close()
	if !p.begun.Load() {
		p.release()
	}
	return err
}

// release ends the connections, without waiting for stores.
func (p *partitionPortal) release() {
	p.released.Do(func() {
		p.front.forget(p.service)
		p.front.closing.Go(func() {
			if err := errors.Join(p.service.Close(), p.device.Close()); err != nil {
				p.front.log.Error("close a portal for partitions", "portal", p.Addr().String(), "reason", err)
			}
		})
	})
}

func (p *partitionPortal) listener() *net.TCPListener { return p.tcp }

// begin has serve release the service, instead of Close.
func (p *partitionPortal) begin() bool {
	p.begun.Store(true)
	return true
}

func (p *partitionPortal) serve() error {
	defer p.release()
	return p.service.Serve(p.Listener)
}

// partitionOpener opens partitions for a service.
type partitionOpener struct{ *registry.Registry }

// Open implements osp.Opener.
func (o partitionOpener) Open(ctx context.Context, q osp.Request) (osp.Endpoint, error) {
	e, err := o.Registry.Open(ctx, registry.Request(q))
	if err != nil {
		return nil, err
	}
	return e, nil
}
