package server

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"

	"oneshot/config"
	"oneshot/iser"
	"oneshot/mgmt"
	"oneshot/transport/nvmerdma"
	"oneshot/transport/rdma"
)

// rdmaDevices holds the open RDMA devices, in user space and of the kernel. Portals share them.
type rdmaDevices struct {
	surroundings
	// serves makes what serves connections of a device; nil: iSER and NVMe. It calls idle when the last of them has ended.
	serves func(key deviceKey, d rdma.Device, idle func()) (rdmaTarget, error)

	mu   sync.Mutex
	by   map[deviceKey]*rdmaDevice // guarded by mu; lost devices are not in it
	work sync.WaitGroup            // devices that are being closed, because they are lost or unused
}

// deviceKey identifies a device. Two transports may use one name for two devices.
type deviceKey struct {
	transport config.Transport
	name      string
}

// rdmaTarget serves connections of a device: the target's side of iSER, that of NVMe, or partitions.
type rdmaTarget interface {
	// Serve accepts connections from l, which is of portal p, until it is closed.
	Serve(l rdma.Listener, p *config.Portal) error
	// Busy reports whether the device has to stay open for connections, though nobody listens.
	Busy() bool
	Close() error
}

// rdmaDevice is an open device with what serves its connections.
type rdmaDevice struct {
	rdma.Device
	key     deviceKey
	targets map[config.Served]rdmaTarget // of portals that there are, or were; guarded by rdmaDevices.mu
	users   int                          // portals; guarded by rdmaDevices.mu
	lost    bool                         // guarded by rdmaDevices.mu
	once    sync.Once
}

// use returns the device of key for one more portal, and what serves the connections of that portal. It opens the device
// unless it is open. The provider calls lost when the device has disappeared.
func (v *rdmaDevices) use(key deviceKey, serve config.Served, open func(lost func(error)) (rdma.Device, error)) (*rdmaDevice, rdmaTarget, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	d := v.by[key]
	if d == nil {
		d = &rdmaDevice{key: key, targets: make(map[config.Served]rdmaTarget)}
		var err error
		if d.Device, err = open(func(error) { v.drop(d) }); err != nil {
			return nil, nil, err
		}
	}
	t := d.targets[serve]
	if t == nil {
		var err error
		if t, err = v.target(d, serve); err != nil {
			if v.by[key] != d {
				opened := d.Device
				d.Device = nil
				err = errors.Join(err, opened.Close())
			}
			return nil, nil, err
		}
		d.targets[serve] = t
	}
	if v.by == nil {
		v.by = make(map[deviceKey]*rdmaDevice)
	}
	v.by[key] = d
	d.users++
	return d, t, nil
}

// target makes what serves connections of portals of d that serve that.
func (v *rdmaDevices) target(d *rdmaDevice, serve config.Served) (rdmaTarget, error) {
	idle := func() { v.closeUnused(d) }
	switch {
	case v.serves != nil:
		return v.serves(d.key, d.Device, idle)
	case serve == config.ServeNamespaces:
		t, err := nvmerdma.NewTarget(nvmerdma.Config{Node: v.nvme, Device: d.Device, Pool: v.pool, Logger: v.log, Idle: idle})
		return nvmeTarget{t}, err
	}
	t, err := iser.NewTarget(iser.Config{
		Node: v.node, Device: d.Device, Transport: string(d.key.transport), Pool: v.pool, Commands: v.commands, Logger: v.log, Idle: idle,
	})
	return iserTarget{t, v.member}, err
}

// iserTarget is the target's side of iSER on a device.
type iserTarget struct {
	*iser.Target
	member *member // nil: there is no cluster
}

// Serve implements rdmaTarget.
func (t iserTarget) Serve(l rdma.Listener, p *config.Portal) error {
	var enter func(rdma.Request) (leave func())
	if book := t.member.guests(p); book != nil {
		enter = func(r rdma.Request) (leave func()) { return book.enter(r) }
	}
	return t.Target.Serve(l, oneShot(p.OneShot), enter)
}

// nvmeTarget is that of NVMe over RDMA.
type nvmeTarget struct{ *nvmerdma.Target }

// Serve implements rdmaTarget.
func (t nvmeTarget) Serve(l rdma.Listener, p *config.Portal) error { return t.Target.Serve(l, p.Group) }

// busy reports whether the device has to stay open for connections, though nobody listens. rdmaDevices.mu is held.
func (d *rdmaDevice) busy() bool {
	for _, t := range d.targets {
		if t.Busy() {
			return true
		}
	}
	return false
}

// counters returns the counters of the open devices, sorted by name.
func (v *rdmaDevices) counters() []mgmt.Device {
	v.mu.Lock()
	defer v.mu.Unlock()
	list := make([]mgmt.Device, 0, len(v.by))
	for key, d := range v.by {
		list = append(list, mgmt.Device{Transport: string(key.transport), Name: key.name, Counters: maps.Collect(d.Counters().All())})
	}
	slices.SortFunc(list, func(a, b mgmt.Device) int { return cmp.Compare(a.Transport+a.Name, b.Transport+b.Name) })
	return list
}

// drop forgets a device that is lost, so that use opens it anew when it comes back. If no portal uses the device,
// drop closes it.
func (v *rdmaDevices) drop(d *rdmaDevice) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if d.Device == nil {
		return // no portal has ever used it
	}
	d.lost = true
	if v.by[d.key] == d {
		delete(v.by, d.key)
	}
	if d.users == 0 {
		v.work.Go(func() { _ = d.close() })
	}
}

// release ends one portal's use of a device. The portal makes no more connections then. The last user closes a device
// that is lost. Any other device may have connections left, and is closed when these have ended.
func (v *rdmaDevices) release(d *rdmaDevice) {
	v.mu.Lock()
	d.users--
	last := d.users == 0 && d.lost
	v.mu.Unlock()
	if last {
		_ = d.close()
		return
	}
	v.closeUnused(d)
}

// closeUnused closes a device if it has neither portals nor connections. That frees its memory for messages.
func (v *rdmaDevices) closeUnused(d *rdmaDevice) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.by[d.key] != d || d.users > 0 || d.busy() {
		return
	}
	delete(v.by, d.key)
	v.work.Go(func() {
		if err := d.close(); err != nil {
			v.log.Error("close an RDMA device that nobody uses", "device", d.key.name, "reason", err)
		}
	})
}

func (d *rdmaDevice) close() (err error) {
	d.once.Do(func() {
		for _, t := range d.targets { // nobody adds one any more
			err = errors.Join(err, t.Close())
		}
		err = errors.Join(err, d.Device.Close())
	})
	return err
}

// close closes the devices, after the connections have ended. It may be called more than once.
func (v *rdmaDevices) close() error {
	v.mu.Lock()
	list := slices.Collect(maps.Values(v.by))
	v.by = nil
	v.mu.Unlock()
	var errs []error
	for _, d := range list {
		errs = append(errs, d.close())
	}
	v.work.Wait()
	return errors.Join(errs...)
}
