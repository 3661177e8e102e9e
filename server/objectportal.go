package server

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"oneshot/config"
	objects "oneshot/ha/heap/service"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
)

// objectFront opens portals for objects. Each has a device of its own: its connections end with it, and its peers reach the memory of
// one heap.
type objectFront struct {
	surroundings
	heaps   *heaps
	closing sync.WaitGroup // of services whose portals are closed

	mu    sync.Mutex // a leaf
	now   *config.Limits
	using []*objects.Service
}

// mostObjectConnections bounds the connections of a portal, for each has memory for two messages.
const mostObjectConnections = 64

func objectLimits(l *config.Limits) objects.Limits {
	return objects.Limits{Connections: min(l.Connections, mostObjectConnections), StartTimeout: l.LoginTimeout, Patience: l.ReadTimeout}
}

// setLimits changes the limits of all services.
func (f *objectFront) setLimits(l *config.Limits) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = l
	for _, s := range f.using {
		s.SetLimits(objectLimits(l))
	}
}

// objectPortal is a portal for objects.
type objectPortal struct {
	rdma.Listener
	front   *objectFront
	device  rdma.Device
	service *objects.Service
	heap    *heapHost
	tcp     *net.TCPListener

	begun    atomic.Bool // serve is called, or will be
	released sync.Once
}

func (f *objectFront) open(p *config.Portal, replaces []portal) (portal, error) {
	host := f.heaps.find(p.Store)
	if host == nil {
		return nil, fmt.Errorf("the store %q is open for something else, and this process cannot keep objects in it: change nothing else, and restart", p.Store)
	}
	device, err := iwarp.Open(iwarp.Config{Logger: f.log})
	if err != nil {
		return nil, err
	}
	l, err := listenTCP(p.Network(), p.Address(), listeners(replaces)...)
	if err != nil {
		return nil, errors.Join(err, device.Close())
	}
	c := objects.Config{Device: device, Nodes: host.nodes, Logger: f.log}
	if len(p.Clients) > 0 {
		c.Secret = func(name string) ([]byte, bool) {
			i := slices.IndexFunc(p.Clients, func(c config.Client) bool { return c.Name == name })
			if i < 0 {
				return nil, false
			}
			return p.Clients[i].Secret.Bytes(), true
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now == nil {
		f.now = &f.limits
	}
	c.Limits = objectLimits(f.now)
	s, err := objects.New(c)
	if err != nil {
		return nil, errors.Join(err, l.Close(), device.Close())
	}
	f.using = append(f.using, s)
	host.add(s)
	return &objectPortal{
		Listener: device.(*iwarp.Device).ListenOn(l, p.NoCRC), front: f, device: device, service: s, heap: host, tcp: l,
	}, nil
}

// close waits for the connections of portals that are closed.
func (f *objectFront) close() error {
	over := make(chan struct{})
	go func() {
		f.closing.Wait()
		close(over)
	}()
	select {
	case <-over:
		return nil
	case <-time.After(endPatience):
		return errors.New("objects are still in use: a store hangs")
	}
}

// Close implements portal.
func (p *objectPortal) Close() error {
	err := p.Listener.Close()
	if !p.begun.Load() {
		p.release()
	}
	return err
}

// release ends the connections, without waiting for stores.
func (p *objectPortal) release() {
	p.released.Do(func() {
		f := p.front
		f.mu.Lock()
		f.using = slices.DeleteFunc(f.using, func(s *objects.Service) bool { return s == p.service })
		f.mu.Unlock()
		f.closing.Go(func() {
			p.heap.remove(p.service)
			if err := errors.Join(p.service.Close(), p.device.Close()); err != nil {
				f.log.Error("close a portal for objects", "portal", p.Addr().String(), "reason", err)
			}
		})
	})
}

func (p *objectPortal) listener() *net.TCPListener { return p.tcp }

// begin has serve release the service, instead of Close.
func (p *objectPortal) begin() bool {
	p.begun.Store(true)
	return true
}

func (p *objectPortal) serve() error {
	defer p.release()
	return p.service.Serve(p.Listener)
}
