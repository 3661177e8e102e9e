package server

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"oneshot/config"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/verbs"
)

// lookTime is how often a portal looks whether devices have come or gone.
const lookTime = time.Second

// verbsRetry is how long a portal at most leaves a device alone that it cannot listen on.
const verbsRetry = 10 * time.Second

// verbsPortal is a portal of iSER or of NVMe over RDMA devices of the kernel. Devices come and go, and there
// may be none when the target starts: then the portal is open without taking connections, says
// so once in the log, and tries again: when another device appears, and at growing intervals. One
// that is for any device takes those in that come later.
type verbsPortal struct {
	front  *verbsFront
	config config.Portal
	closed chan struct{}
	once   sync.Once
	later  bool   // it listens when it serves
	over   func() // if not nil, is told that the portal uses no device any more, and opens none; perhaps several times

	mu     sync.Mutex
	open   []verbsListener // guarded by mu
	begun  bool            // guarded by mu; serve is called, or will be
	broken string          // guarded by mu; what was said last in the log
	names  []string        // guarded by mu; devices there were when it was tried last
}

// verbsListener is the part of a portal on one device.
type verbsListener struct {
	rdma.Listener
	device *rdmaDevice
	target rdmaTarget
}

// verbsFront opens portals over the kernel's RDMA devices: of iSER, of NVMe, and those for partitions.
type verbsFront struct {
	devices    *rdmaDevices
	partitions *partitionFront
}

// open implements frontEnd. A portal that replaces others listens only when it serves: the kernel's devices
// have no way for two to listen at one address.
func (f *verbsFront) open(p *config.Portal, replaces []portal) (portal, error) {
	if p.Serve == config.ServePartitions && f.partitions != nil {
		return f.partitions.openKernel(p, replaces)
	}
	v := &verbsPortal{front: f, config: *p, closed: make(chan struct{}), later: len(replaces) > 0}
	if !v.later {
		v.listen()
	}
	return v, nil
}

func (f *verbsFront) close() error { return f.devices.close() }

// Addr is where the portal listens, or where it would.
func (v *verbsPortal) Addr() net.Addr {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.open) > 0 {
		return v.open[0].Addr()
	}
	return net.TCPAddrFromAddrPort(v.config.Listen)
}

// listen opens what there is. False: nothing, and the log says why.
func (v *verbsPortal) listen() bool {
	names := verbs.Names()
	open, err := v.front.listen(&v.config)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.names = names
	if err == nil {
		v.open, v.broken = open, ""
		return true
	}
	if text := err.Error(); text != v.broken {
		v.broken = text
		v.front.devices.log.Error("portal cannot accept connections now and will try again; the other portals serve",
			"transport", string(v.config.Transport), "address", v.config.Address(), "device", v.config.Device, "reason", text)
	}
	return false
}

// changed reports whether there are other devices than when the portal was tried last.
func (v *verbsPortal) changed() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return !slices.Equal(v.names, verbs.Names())
}

// Close implements portal.
func (v *verbsPortal) Close() error {
	v.once.Do(func() { close(v.closed) })
	v.hangUp()
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.begun {
		v.front.release(v.open)
		v.open = nil
		v.end()
	}
	return nil
}

func (v *verbsPortal) end() {
	if v.over != nil {
		v.over()
	}
}

// hangUp closes the listeners. Connections stay.
func (v *verbsPortal) hangUp() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, l := range v.open {
		_ = l.Close()
	}
}

// begin makes serve, rather than Close, release the devices. It reports whether any is open.
func (v *verbsPortal) begin() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.begun = true
	return len(v.open) > 0
}

// serve implements portal.
func (v *verbsPortal) serve() error {
	defer v.end()
	if v.later && v.listen() {
		v.front.devices.log.Info("portal open", "transport", string(v.config.Transport), "address", v.Addr().String())
		select {
		case <-v.closed: // before it was open
			v.hangUp()
		default:
		}
	}
	look := time.NewTicker(lookTime)
	defer look.Stop()
	for {
		served := make(chan struct{})
		go func() {
			defer close(served)
			v.serveAll()
		}()
		v.watch(look.C, served)
		<-served
		if !v.reopen(look.C) {
			return nil
		}
	}
}

// watch waits until serveAll is over. For a portal of any device it ends serveAll when the set of devices changes:
// at once when one comes or goes, and at growing intervals for one that could not be used at first.
func (v *verbsPortal) watch(look <-chan time.Time, served <-chan struct{}) {
	if v.config.Device != config.AnyDevice {
		<-served // an idle portal of one device wakes nobody
		return
	}
	wait, tried := lookTime, time.Now()
	for {
		select {
		case <-served:
			return
		case <-look:
		}
		more := v.changed()
		if !more && time.Since(tried) >= wait {
			more = v.lacking()
			wait, tried = min(2*wait, verbsRetry), time.Now()
		}
		if more {
			v.hangUp()
		}
	}
}

// lacking reports whether there is a device that the portal could use and does not.
func (v *verbsPortal) lacking() bool {
	using := v.devices()
	v.mu.Lock()
	all := len(using) == len(v.names)
	v.mu.Unlock()
	if all {
		return false
	}
	usable, err := usableDevices()
	return err == nil && !slices.Equal(usable, using)
}

// devices names those that the portal listens on.
func (v *verbsPortal) devices() (names []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, l := range v.open {
		names = append(names, l.device.Limits().Name)
	}
	return names
}

// reopen listens again. False: the portal is closed.
func (v *verbsPortal) reopen(look <-chan time.Time) bool {
	wait, tried := lookTime, time.Now()
	for {
		if v.changed() || time.Since(tried) >= wait {
			if v.changed() {
				wait = lookTime
			}
			if v.listen() {
				break
			}
			wait, tried = min(2*wait, verbsRetry), time.Now()
		}
		select {
		case <-v.closed:
			return false
		case <-look:
		}
	}
	v.front.devices.log.Info("portal takes connections again", "transport", string(v.config.Transport), "address", v.Addr().String(), "devices", strings.Join(v.devices(), " "))
	select {
	case <-v.closed: // perhaps before it was open again
		_ = v.Close()
	default:
	}
	return true
}

// serveAll takes connections until all listeners have ended. A device that is lost is given up at once.
func (v *verbsPortal) serveAll() {
	v.mu.Lock()
	open := v.open
	v.mu.Unlock()
	var wg sync.WaitGroup
	for i, l := range open {
		wg.Go(func() {
			if err := l.target.Serve(l, &v.config); err != nil {
				v.front.devices.log.Error("portal has lost its device", "address", l.Addr().String(), "device", l.device.Limits().Name, "reason", err)
			}
			_ = l.Close()
			v.front.release(open[i : i+1])
		})
	}
	wg.Wait()
	v.mu.Lock()
	v.open = nil
	v.mu.Unlock()
}

// listen listens for a portal on its device, or on all there are. The error says what to do.
func (f *verbsFront) listen(p *config.Portal) ([]verbsListener, error) {
	names := []string{p.Device}
	if p.Device == config.AnyDevice {
		var err error
		if names, err = usableDevices(); err != nil {
			return nil, err
		}
	}
	open := make([]verbsListener, 0, len(names))
	devices := make([]rdma.Device, 0, len(names))
	for _, name := range names {
		d, target, err := f.use(name, p.Serve)
		if err != nil {
			f.release(open)
			return nil, err
		}
		verbs.SetPolling(d.Device, !p.NoPolling)
		open, devices = append(open, verbsListener{device: d, target: target}), append(devices, d.Device)
	}
	listeners, err := verbs.ListenAll(devices, p.Address())
	if err != nil {
		f.release(open)
		return nil, err
	}
	for i, l := range listeners {
		open[i].Listener = l
	}
	return open, nil
}

// usableDevices names the devices that nothing is known to stand in the way of.
func usableDevices() ([]string, error) {
	list, err := verbs.Devices()
	if err != nil {
		return nil, err
	}
	var names []string
	var problems error
	for _, i := range list {
		if len(i.Problems) == 0 {
			names = append(names, i.Name)
			continue
		}
		problems = errors.Join(problems, fmt.Errorf("%s: %s", i.Name, i.Problems[0]))
	}
	switch {
	case names != nil:
		return names, nil
	case problems != nil:
		return nil, fmt.Errorf("no RDMA device can be used: %w", problems)
	}
	return nil, errors.New("there is no RDMA device: \"rdma link add rxe0 type rxe netdev eth0\" makes one of the network interface eth0")
}

// use opens a device, unless it is open.
func (f *verbsFront) use(name string, serve config.Served) (*rdmaDevice, rdmaTarget, error) {
	return f.devices.use(deviceKey{config.TransportVerbs, name}, serve, func(lost func(error)) (rdma.Device, error) {
		return verbs.Open(verbs.Config{Name: name, Logger: f.devices.log, Lost: lost})
	})
}

// release ends the use of devices.
func (f *verbsFront) release(open []verbsListener) {
	for _, l := range open {
		f.devices.release(l.device)
	}
}
