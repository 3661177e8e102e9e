package queuepair

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"oneshot/mem"
	"oneshot/transport/rdma"
)

// domain is a protection domain and the I/O memory that is registered in it. No peer has access to that memory: what
// is read and written on a peer's behalf is said by our own work requests.
//
// On most devices one domain serves all connections, and arenas are registered before anything
// is leased from them. There are devices on which a peer could do harm with that:
//
//   - Where the sink of an RDMA Read has to allow remote writes (Limits.ReadSinkWrite), the Read Request tells the
//     peer an STag with which it can write to the whole region. There each Read has a registration
//     of its own, of no more than its sink (Link.openSinks), which ends before anybody looks at the data. If the device
//     fails to end it, the connection ends, and the memory is nobody else's before the queue pair is gone (Link.EndFetch).
//   - Where a peer may read any region of the domain whose STag it knows (Limits.UnguardedRead), the Read Request would
//     tell it that of all I/O memory. There the sink of each Read is registered likewise, and empty.
//   - Where a peer may invalidate any region of the domain whose STag it knows (Limits.UnguardedInvalidate), it could
//     end the I/O of all others.
//
// On all of them each connection has a domain of its own (Target.isolated), so that STags which it has learned or
// guessed are of no use to another. Arenas are registered there when they are first used, for
// local use only, and stay registered until the connection ends, or nobody has used them for some time.
type domain struct {
	target *Target
	pd     rdma.Domain

	mu      sync.Mutex                    // held while regions changes
	regions atomic.Pointer[[]rdma.Region] // by mem.Arena.Index; nil: not registered
	closed  bool                          // guarded by mu
}

func (t *Target) newDomain() (*domain, error) {
	d := &domain{target: t}
	d.regions.Store(new([]rdma.Region))
	var err error
	if d.pd, err = t.cfg.Device.NewDomain(); err != nil {
		return nil, t.wrap(err)
	}
	t.domainMu.Lock()
	t.domains[d] = struct{}{}
	t.domainMu.Unlock()
	return d, nil
}

// register makes an arena known to the device.
func (d *domain) register(a *mem.Arena) (rdma.Region, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := *d.regions.Load()
	switch {
	case d.closed:
		return nil, rdma.ErrDisconnected
	case a.Index() < len(old) && old[a.Index()] != nil:
		return old[a.Index()], nil
	}
	r, err := d.pd.Register(a.Bytes(), rdma.AccessLocalWrite)
	if err != nil {
		return nil, d.target.refused(a.Bytes(), err)
	}
	list := make([]rdma.Region, max(len(old), a.Index()+1))
	copy(list, old)
	list[a.Index()] = r
	d.regions.Store(&list)
	return r, nil
}

// deregister takes an arena, of which nothing is leased, away from the device.
func (d *domain) deregister(a *mem.Arena) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := *d.regions.Load()
	if a.Index() >= len(old) || old[a.Index()] == nil {
		return nil
	}
	list := slices.Clone(old)
	list[a.Index()] = nil
	d.regions.Store(&list)
	return old[a.Index()].Deregister()
}

// of returns the region of an arena, or nil: the device has refused it.
func (d *domain) of(a *mem.Arena) rdma.Region {
	if list := *d.regions.Load(); a.Index() < len(list) && list[a.Index()] != nil {
		return list[a.Index()]
	}
	if !d.target.isolated {
		return nil
	}
	r, _ := d.register(a)
	return r
}

// sge names I/O memory. An error says that the device has refused it.
func (d *domain) sge(b []byte) (rdma.SGE, error) {
	r := d.region(b)
	if r == nil {
		return rdma.SGE{}, d.target.unregistered()
	}
	return rdma.SGE{Bytes: b, Region: r}, nil
}

// region finds the registration that b lies in, or nil: b lies in the Go heap.
func (d *domain) region(b []byte) rdma.Region {
	if a := d.target.arena(b); a != nil {
		return d.of(a)
	}
	return nil
}

// arena finds the arena that b lies in, or nil: b lies in the Go heap.
func (t *Target) arena(b []byte) *mem.Arena {
	for _, a := range *t.arenas.Load() {
		if within(b, a.Bytes()) {
			return a
		}
	}
	return nil
}

// close gives the device back what the domain has.
func (d *domain) close() error {
	errs := d.deregisterAll()
	d.target.domainMu.Lock()
	delete(d.target.domains, d)
	d.target.domainMu.Unlock()
	return errors.Join(append(errs, d.pd.Close())...)
}

// deregisterAll takes all arenas away from the device, for good.
func (d *domain) deregisterAll() (errs []error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, r := range *d.regions.Load() {
		if r != nil {
			errs = append(errs, r.Deregister())
		}
	}
	d.regions.Store(new([]rdma.Region))
	return errs
}

// refused notes why the device does not take memory.
func (t *Target) refused(b []byte, err error) error {
	err = fmt.Errorf("%s: the device %s does not take %d bytes of I/O memory: %w", t.cfg.Name, t.limits.Name, len(b), err)
	t.regErr.Store(&err)
	return err
}

// unregistered says why there is memory that the device does not know.
func (t *Target) unregistered() error {
	if e := t.regErr.Load(); e != nil {
		return *e
	}
	return fmt.Errorf("%s: memory that the device %s does not know", t.cfg.Name, t.limits.Name)
}

// within reports whether b lies in r.
func within(b, r []byte) bool {
	if len(b) == 0 || len(r) == 0 {
		return false
	}
	at, from := uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(unsafe.SliceData(r)))
	return at >= from && at-from <= uintptr(len(r)-len(b)) && len(b) <= len(r)
}
