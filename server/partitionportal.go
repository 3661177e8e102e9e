package server

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"oneshot/config"
	"oneshot/partition"
	"oneshot/partition/registry"
	osp "oneshot/partition/service"
	"oneshot/transport/rdma"
)

// partitionFront opens portals for partitions, over devices of the kernel, too.
type partitionFront struct {
	serviceFront
	registry *registry.Registry

	mu       sync.Mutex                // a leaf
	kernel   map[*rdmaDevices]struct{} // of portals over devices of the kernel, until nothing of them is left; guarded by mu
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

// startTimeout returns how long a client may take to have a partition, or a program of this machine to say hello.
func (f *partitionFront) startTimeout() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now.StartTimeout
}

// forget notes that a service ends.
func (f *partitionFront) forget(s *osp.Service) {
	f.mu.Lock()
	delete(f.services, s)
	f.mu.Unlock()
}

// service serves the partitions that opener opens for a portal on a device. identify says what the device knows of who asks; nil: nothing.
func (f *partitionFront) service(p *config.Portal, device rdma.Device, opener osp.Opener, identify func(rdma.Request) partition.Identity) (*osp.Service, error) {
	secrets := make(map[string][]byte, len(p.Clients))
	for i := range p.Clients {
		secrets[p.Clients[i].Name] = p.Clients[i].Secret.Bytes()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := osp.New(osp.Config{
		Device: device, Pool: f.pool, Opener: opener, Logger: f.log,
		Secret: func(name string) ([]byte, bool) {
			secret, ok := secrets[name]
			return secret, ok
		},
		Identify: identify,
		Memory:   f.limits.MemoryPerConnection, Connections: f.now.Connections, StartTimeout: f.now.StartTimeout, Patience: f.now.Patience,
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
		s, err := f.service(p, d, partitionOpener{f.registry}, nil)
		if err != nil {
			return nil, err
		}
		return partitionTarget{s, f}, nil
	}
	f.mu.Lock()
	if f.kernel == nil {
		f.kernel = make(map[*rdmaDevices]struct{})
	}
	f.kernel[devices] = struct{}{}
	f.mu.Unlock()
	v, err := (&verbsFront{devices: devices}).open(p, replaces)
	if err != nil {
		f.end(devices)
		return nil, err
	}
	v.(*verbsPortal).over = sync.OnceFunc(func() { f.end(devices) })
	return v, nil
}

// end ends the connections of a portal over devices of the kernel that takes none any more, without waiting for stores.
func (f *partitionFront) end(devices *rdmaDevices) {
	f.closing.Go(func() {
		if err := devices.close(); err != nil {
			f.log.Error("close a portal for partitions", "reason", err)
		}
		f.mu.Lock()
		delete(f.kernel, devices)
		f.mu.Unlock()
	})
}

// open opens a portal over RDMA in user space.
func (f *partitionFront) open(p *config.Portal, replaces []portal) (portal, error) {
	return f.openWith(p, replaces, func(device rdma.Device) (peerService, func(), error) {
		s, err := f.service(p, device, partitionOpener{f.registry}, nil)
		if err != nil {
			return nil, nil, err
		}
		return s, func() { f.forget(s) }, nil
	})
}

// close waits for the connections of portals that are closed.
func (f *partitionFront) close() error {
	f.mu.Lock()
	left := slices.Collect(maps.Keys(f.kernel))
	f.mu.Unlock()
	for _, d := range left {
		f.end(d)
	}
	return f.serviceFront.close()
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
