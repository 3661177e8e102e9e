package service

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"oneshot/mem"
	"oneshot/transport/rdma"
)

// memory is the I/O memory as one device knows it. Peers have no access to it: only our own work requests move
// their data. Its methods may be called from any goroutine.
type memory struct {
	dom     rdma.Domain
	lazy    bool                          // arenas are registered when something of them is first used
	alone   bool                          // a peer can read the regions whose names it knows: sinks of Reads have their own
	kept    []rdma.Region                 // sinks that the device has not let go; guarded by conn.mu
	mu      sync.Mutex                    // held while regions changes
	regions atomic.Pointer[[]rdma.Region] // by mem.Arena.Index; nil: not registered
}

// register makes an arena known.
func (m *memory) register(a *mem.Arena) error {
	if list := m.all(); a.Index() < len(list) && list[a.Index()] != nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	list := slices.Clone(m.all())
	for len(list) <= a.Index() {
		list = append(list, nil)
	}
	if list[a.Index()] != nil {
		return nil
	}
	r, err := m.dom.Register(a.Bytes(), rdma.AccessLocalWrite)
	if err != nil {
		return err
	}
	list[a.Index()] = r
	m.regions.Store(&list)
	return nil
}

// deregister removes an arena of which nothing is leased.
func (m *memory) deregister(a *mem.Arena) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := slices.Clone(m.all())
	if a.Index() >= len(list) || list[a.Index()] == nil {
		return nil
	}
	r := list[a.Index()]
	list[a.Index()] = nil
	m.regions.Store(&list)
	return r.Deregister()
}

func (m *memory) all() []rdma.Region {
	if p := m.regions.Load(); p != nil {
		return *p
	}
	return nil
}

// sge names [off, off+n) of a lease. Where the device has refused the arena, the region is nil, which Post
// refuses.
func (m *memory) sge(l *mem.Lease, off, n int) rdma.SGE {
	a, _ := l.Arena()
	e := rdma.SGE{Bytes: l.Bytes()[off : off+n : off+n]}
	if m.lazy {
		_ = m.register(a)
	}
	if list := m.all(); a.Index() < len(list) {
		e.Region = list[a.Index()]
	}
	return e
}

// sink returns a region for a Read into b alone, whose name the Read tells the peer; nil: b can be part of a larger one.
func (m *memory) sink(b []byte) (rdma.Region, error) {
	if !m.alone {
		return nil, nil
	}
	clear(b) // of what another connection has left there
	return m.dom.Register(b, rdma.AccessLocalWrite)
}

func (m *memory) close() error {
	var errs []error
	for _, r := range slices.Concat(m.all(), m.kept) {
		if r != nil {
			errs = append(errs, r.Deregister())
		}
	}
	m.regions.Store(nil)
	return errors.Join(append(errs, m.dom.Close())...)
}
