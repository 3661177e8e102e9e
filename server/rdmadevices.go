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
	"oneshot/transport/rdma"
)

// rdmaDevices holds the open RDMA devices, in user space and of the kernel. Portals share them.
type rdmaDevices struct {
	surroundings
	// serves makes what serves connections of a device; nil: iSER. It calls idle when the last of them has ended.
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

// rdmaTarget serves the connections of a device: the target's side of iSER, or partitions.
type rdmaTarget interface {
	// Serve accepts connections from l until it is closed.
	Serve(l rdma.Listener, offer *rdma.OneShotOffer) error
	// Busy reports whether the device has to stay open for connections, though nobody listens.
	Busy() bool
	Close() error
}

// rdmaDevice is an open device with what serves its connections.
type rdmaDevice struct {
	rdma.Device
	key    deviceKey
	target rdmaTarget
	users  int  // portals; guarded by rdmaDevices.mu
	lost   bool // guarded by rdmaDevices.mu
	once   sync.Once
}

// use returns the device of key for one more portal; it opens the device unless it is open. The provider calls lost
// when the device has disappeared.
func (v *rdmaDevices) use(key deviceKey, open func(lost func(error)) (rdma.Device, error)) (*rdmaDevice, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if d := v.by[key]; d != nil {
		d.users++
		return d, nil
	}
	d := &rdmaDevice{key: key, users: 1}
	opened, err := open(func(error) { v.drop(d) })
	if err != nil {
		return nil, err
	}
	serves := v.serves
	if serves == nil {
		serves = v.iser
	}
	target, err := serves(key, opened, func() { v.closeUnused(d) })
	if err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	d.Device, d.target = opened, target
	if v.by == nil {
		v.by = make(map[deviceKey]*rdmaDevice)
	}
	v.by[key] = d
	return d, nil
}

// iser makes the target's side of iSER.
func (v *rdmaDevices) iser(key deviceKey, d rdma.Device, idle func()) (rdmaTarget, error) {
	return iser.NewTarget(iser.Config{
		Node: v.node, Device: d, Transport: string(key.transport), Pool: v.pool, Commands: v.commands, Logger: v.log, Idle: idle,
	})
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
	if v.by[d.key] != d || d.users > 0 || d.target.Busy() {
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
	d.once.Do(func() { err = errors.Join(d.target.Close(), d.Device.Close()) })
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
