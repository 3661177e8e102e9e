package server

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"oneshot/config"
	"oneshot/iser"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/verbs"
)

// verbsRetry is how long a portal without its device waits before it looks for it again.
const verbsRetry = 10 * time.Second

// verbsPortal is a portal of iSER over RDMA devices of the kernel. Devices come and go, and there
// may be none when the target starts: then the portal is open without taking connections, says
// so once in the log, and tries again.
type verbsPortal struct {
	s      *Server
	config config.Portal
	closed chan struct{}
	once   sync.Once

	mu     sync.Mutex
	open   []verbsListener // guarded by mu
	begun  bool            // guarded by mu; serve is called, or will be
	broken string          // guarded by mu; what was said last in the log
}

// verbsListener is the part of a portal on one device.
type verbsListener struct {
	rdma.Listener
	device *verbsDevice
}

// verbsDevice is an open device, with the target's side of iSER on it.
type verbsDevice struct {
	rdma.Device
	target *iser.Target
	users  int // portals; guarded by verbsDevices.mu
}

// verbsDevices are those that are open, by name. Portals share them.
type verbsDevices struct {
	mu sync.Mutex
	by map[string]*verbsDevice // guarded by mu
}

func (s *Server) openVerbs(p *config.Portal) (portal, error) {
	v := &verbsPortal{s: s, config: *p, closed: make(chan struct{})}
	v.listen()
	return v, nil
}

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
	open, err := v.s.listenVerbs(&v.config)
	v.mu.Lock()
	defer v.mu.Unlock()
	if err == nil {
		v.open, v.broken = open, ""
		return true
	}
	if text := err.Error(); text != v.broken {
		v.broken = text
		v.s.log.Error("portal takes no connections for now; it is tried again, and the other portals serve",
			"transport", string(v.config.Transport), "address", v.config.Address(), "device", v.config.Device, "reason", text)
	}
	return false
}

// Close implements portal.
func (v *verbsPortal) Close() error {
	v.once.Do(func() { close(v.closed) })
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, l := range v.open {
		_ = l.Close()
	}
	if !v.begun {
		v.s.verbs.release(v.open)
		v.open = nil
	}
	return nil
}

// begin has serve give back what is open, and reports whether anything is.
func (v *verbsPortal) begin() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.begun = true
	return len(v.open) > 0
}

// serve implements portal.
func (v *verbsPortal) serve() error {
	retry := time.NewTicker(verbsRetry)
	defer retry.Stop()
	for {
		v.mu.Lock()
		open := v.open
		v.mu.Unlock()
		v.serveAll(open)
		select {
		case <-v.closed:
			return nil
		case <-retry.C:
		}
		if v.listen() {
			v.s.log.Info("portal takes connections again", "transport", string(v.config.Transport), "address", v.Addr().String())
		}
		select {
		case <-v.closed: // perhaps before it was open again
			_ = v.Close()
		default:
		}
	}
}

// serveAll takes connections until all listeners have ended.
func (v *verbsPortal) serveAll(open []verbsListener) {
	var wg sync.WaitGroup
	for _, l := range open {
		wg.Go(func() {
			if err := l.device.target.Serve(l); err != nil {
				v.s.log.Error("portal has lost its device", "address", l.Addr().String(), "device", l.device.Limits().Name, "reason", err)
				v.s.verbs.drop(l.device)
			}
			_ = l.Close()
		})
	}
	wg.Wait()
	v.mu.Lock()
	v.open = nil
	v.mu.Unlock()
	v.s.verbs.release(open)
}

// listenVerbs listens for a portal on its device, or on all there are. The error says what to do.
func (s *Server) listenVerbs(p *config.Portal) ([]verbsListener, error) {
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
		d, err := s.useDevice(name)
		if err != nil {
			s.verbs.release(open)
			return nil, err
		}
		open, devices = append(open, verbsListener{device: d}), append(devices, d.Device)
	}
	listeners, err := verbs.ListenAll(devices, p.Address())
	if err != nil {
		s.verbs.release(open)
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
	return nil, errors.New("there is no RDMA device: scripts/soft-roce.sh up makes one of a network interface")
}

// useDevice opens a device, unless it is open.
func (s *Server) useDevice(name string) (*verbsDevice, error) {
	v := &s.verbs
	v.mu.Lock()
	defer v.mu.Unlock()
	if d := v.by[name]; d != nil {
		d.users++
		return d, nil
	}
	device, err := verbs.Open(verbs.Config{Name: name, Logger: s.log})
	if err != nil {
		return nil, err
	}
	target, err := iser.NewTarget(iser.Config{
		Node: s.node, Device: device, Transport: string(config.TransportVerbs), Pool: s.pool, Commands: s.first.Limits.Commands, Logger: s.log,
	})
	if err != nil {
		return nil, errors.Join(err, device.Close())
	}
	if v.by == nil {
		v.by = make(map[string]*verbsDevice)
	}
	d := &verbsDevice{device, target, 1}
	v.by[name] = d
	return d, nil
}

// drop forgets a device that is lost, so that it is opened anew.
func (v *verbsDevices) drop(d *verbsDevice) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if name := d.Limits().Name; v.by[name] == d {
		delete(v.by, name)
	}
}

// release is the end of the use of devices. Those that are lost are closed by the last user; the
// others may have connections, and stay.
func (v *verbsDevices) release(open []verbsListener) {
	for _, l := range open {
		v.mu.Lock()
		l.device.users--
		last := l.device.users == 0 && v.by[l.device.Limits().Name] != l.device
		v.mu.Unlock()
		if last {
			_ = l.device.close()
		}
	}
}

func (d *verbsDevice) close() error { return errors.Join(d.target.Close(), d.Device.Close()) }

// close closes the devices, after the connections have been ended.
func (v *verbsDevices) close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	var errs []error
	for _, d := range v.by {
		errs = append(errs, d.target.Close())
	}
	for _, d := range v.by { // some listen for others
		errs = append(errs, d.Device.Close())
	}
	return errors.Join(errs...)
}
