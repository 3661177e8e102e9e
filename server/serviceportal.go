package server

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"oneshot/config"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
)

// peerService serves the connections of portals that are not for sessions.
type peerService interface {
	Serve(l rdma.Listener) error
	Close() error
}

// serviceFront opens portals over RDMA in user space, each with a service and a device of its own: its connections end with it,
// and its peers reach nothing of other portals.
type serviceFront struct {
	surroundings
	what    string         // is served
	closing sync.WaitGroup // of services whose portals are closed
}

// servicePortal is a portal with a service.
type servicePortal struct {
	rdma.Listener
	front   *serviceFront
	device  rdma.Device
	service peerService
	leave   func() // is called once, after service has ended
	tcp     *net.TCPListener

	begun    atomic.Bool // serve is called, or will be
	released sync.Once
}

// openWith opens a portal whose service start makes. leave, which start returns, is called when nothing of that service is left: until then
// it may use what it was given, as the memory of a heap.
func (f *serviceFront) openWith(p *config.Portal, replaces []portal, start func(rdma.Device) (s peerService, leave func(), err error)) (portal, error) {
	device, err := iwarp.Open(iwarp.Config{Logger: f.log})
	if err != nil {
		return nil, err
	}
	l, err := listenTCP(p.Network(), p.Address(), listeners(replaces)...)
	if err != nil {
		return nil, errors.Join(err, device.Close())
	}
	s, leave, err := start(device)
	if err != nil {
		return nil, errors.Join(err, l.Close(), device.Close())
	}
	return &servicePortal{
		Listener: device.(*iwarp.Device).ListenOn(l, p.NoCRC), front: f, device: device, service: s, leave: leave, tcp: l,
	}, nil
}

// close waits for the connections of portals that are closed.
func (f *serviceFront) close() error {
	over := make(chan struct{})
	go func() {
		f.closing.Wait()
		close(over)
	}()
	select {
	case <-over:
		return nil
	case <-time.After(endPatience):
		return fmt.Errorf("%s are still in use: a store hangs", f.what)
	}
}

// Close implements portal.
func (p *servicePortal) Close() error {
	err := p.Listener.Close()
	if !p.begun.Load() {
		p.release()
	}
	return err
}

// release ends the connections, without waiting for stores.
func (p *servicePortal) release() {
	p.released.Do(func() {
		p.front.closing.Go(func() {
			if err := errors.Join(p.service.Close(), p.device.Close()); err != nil {
				p.front.log.Error("close a portal for "+p.front.what, "portal", p.Addr().String(), "reason", err)
			}
			p.leave()
		})
	})
}

func (p *servicePortal) listener() *net.TCPListener { return p.tcp }

// begin has serve release the service, instead of Close.
func (p *servicePortal) begin() bool {
	p.begun.Store(true)
	return true
}

func (p *servicePortal) serve() error {
	defer p.release()
	return p.service.Serve(p.Listener)
}
