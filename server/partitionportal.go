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

// partitionFront opens portals for partitions over RDMA in user space. Each has a device of its own: its
// connections end with it.
type partitionFront struct {
	surroundings
	registry *registry.Registry
	closing  sync.WaitGroup // of services whose portals are closed
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

func (f *partitionFront) open(p *config.Portal, replaces []portal) (portal, error) {
	secrets := make(map[string][]byte, len(p.Clients))
	for i := range p.Clients {
		secrets[p.Clients[i].Name] = p.Clients[i].Secret.Bytes()
	}
	device, err := iwarp.Open(iwarp.Config{Logger: f.log})
	if err != nil {
		return nil, err
	}
	l, err := listenTCP(p.Network(), p.Address(), listeners(replaces)...)
	if err != nil {
		return nil, errors.Join(err, device.Close())
	}
	svc, err := osp.New(osp.Config{
		Device: device, Pool: f.pool, Opener: partitionOpener{f.registry}, Logger: f.log,
		Secret: func(name string) ([]byte, bool) {
			secret, ok := secrets[name]
			return secret, ok
		},
		Memory: f.limits.MemoryPerConnection, Connections: f.limits.Connections, Patience: f.limits.ReadTimeout,
	})
	if err != nil {
		return nil, errors.Join(err, l.Close(), device.Close())
	}
	return &partitionPortal{
		Listener: device.(*iwarp.Device).ListenOn(l, p.NoCRC), front: f, device: device, service: svc, tcp: l,
	}, nil
}

// close waits for the connections of portals that are closed.
func (f *partitionFront) close() error {
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
