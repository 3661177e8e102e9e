package server

import (
	"fmt"
	"slices"
	"sync"

	"oneshot/config"
	objects "oneshot/ha/heap/service"
	"oneshot/transport/rdma"
)

// objectFront opens portals for objects.
type objectFront struct {
	serviceFront
	heaps *heaps

	mu    sync.Mutex // a leaf
	now   *config.Limits
	using []*objects.Service
}

// mostObjectConnections bounds the connections of a portal, for each has memory for two messages.
const mostObjectConnections = 128

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

func (f *objectFront) open(p *config.Portal, replaces []portal) (portal, error) {
	host := f.heaps.find(p.Store)
	if host == nil {
		return nil, fmt.Errorf("the store %q is open for something else, and this process cannot keep objects in it: change nothing else, and restart", p.Store)
	}
	return f.openWith(p, replaces, func(device rdma.Device) (peerService, func(), error) {
		c := objects.Config{Device: device, Nodes: host.nodes, Logger: f.log, Counters: &host.counters}
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
			return nil, nil, err
		}
		f.using = append(f.using, s)
		host.add(s)
		return s, func() { f.forget(s, host) }, nil
	})
}

// forget notes that a service ends.
func (f *objectFront) forget(s *objects.Service, host *heapHost) {
	f.mu.Lock()
	f.using = slices.DeleteFunc(f.using, func(other *objects.Service) bool { return other == s })
	f.mu.Unlock()
	host.remove(s)
}
