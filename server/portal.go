package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"oneshot/config"
	"oneshot/transport/tcp"
)

// portal takes connections at one address.
type portal interface {
	Addr() net.Addr
	Close() error
	// serve takes connections until Close. Its error is that of the listener.
	serve() error
}

// openPortal is a portal with what it was opened for.
type openPortal struct {
	config config.Portal
	portal
}

// bound is what p was opened for, with the port that it has.
func (p openPortal) bound() config.Portal {
	c := p.config
	if a, err := netip.ParseAddrPort(p.Addr().String()); err == nil {
		c.Listen = netip.AddrPortFrom(c.Listen.Addr(), a.Port())
	}
	return c
}

// listen opens a portal.
func (s *Server) listen(p *config.Portal) (openPortal, error) {
	open := s.openTCP
	switch p.Transport {
	case config.TransportIWARP:
		open = s.openIWARP
	case config.TransportVerbs:
		open = s.openVerbs
	}
	l, err := open(p)
	if _, network := errors.AsType[*net.OpError](err); network {
		return openPortal{}, fmt.Errorf("%s: cannot listen on portal %s: %w; end what uses the port, or choose another in \"portals\"", p.Pos, p.Address(), err)
	}
	if err != nil {
		return openPortal{}, fmt.Errorf("%s: cannot open portal %s: %w", p.Pos, p.Address(), err)
	}
	return openPortal{*p, l}, nil
}

// start has a portal take connections, unless the server is closing. mu is held.
func (s *Server) start(p openPortal) {
	if s.closing {
		return
	}
	v, kernel := p.portal.(*verbsPortal)
	if !kernel || v.begin() { // one without a device has said so
		s.log.Info("portal open", "transport", string(p.config.Transport), "address", p.Addr().String())
	}
	s.wg.Go(func() {
		if err := p.serve(); err != nil {
			select {
			case s.fatal <- fmt.Errorf("portal %s failed: %w", p.Addr(), err):
			default:
			}
		}
	})
}

// tcpPortal is a portal of iSCSI over TCP.
type tcpPortal struct {
	*net.TCPListener
	s *Server
}

func (s *Server) openTCP(p *config.Portal) (portal, error) {
	l, err := net.Listen(p.Network(), p.Address())
	if err != nil {
		return nil, err
	}
	return &tcpPortal{l.(*net.TCPListener), s}, nil
}

// The kernel is asked again after acceptRetry whether there is a descriptor, or memory, for a
// connection. When there was for acceptQuiet, and then there is not, that is news.
const (
	acceptRetry = 100 * time.Millisecond
	acceptQuiet = time.Minute
)

func (p *tcpPortal) serve() error {
	s := p.s
	var failed time.Time // the last time
	for {
		c, err := p.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case isTemporary(err):
			if time.Since(failed) > acceptQuiet {
				s.log.Error("connections cannot be accepted for now: they wait until others end; sessions go on (LimitNOFILE= of the unit, ulimit -n, bounds descriptors)",
					"portal", p.Addr().String(), "err", err)
			}
			failed = time.Now()
			time.Sleep(acceptRetry)
			continue
		case err != nil:
			return err
		}
		if !s.node.Admit() {
			s.log.Warn("connection refused: the limit is reached (limits.connections), or the target is stopping", "initiator_address", c.RemoteAddr().String())
			_ = c.Close()
			continue
		}
		s.wg.Go(func() { _ = tcp.Serve(s.node, c, s.pool) })
	}
}

func isTemporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}
