package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"oneshot/config"
	"oneshot/internal/loglimit"
	"oneshot/transport/tcp"
)

// openPortal is a portal and the configuration that it was opened for.
type openPortal struct {
	config config.Portal
	portal
}

// bound returns the configuration of p, with the port that the kernel has chosen in the place of port 0.
func (p openPortal) bound() config.Portal {
	c := p.config
	if a, err := netip.ParseAddrPort(p.Addr().String()); err == nil {
		c.Listen = netip.AddrPortFrom(c.Listen.Addr(), a.Port())
	}
	return c
}

// listen opens a portal. The portals in replaces will be closed for it.
func (s *Server) listen(p *config.Portal, replaces []portal) (openPortal, error) {
	l, err := s.fronts[p.Transport].open(p, replaces)
	if _, network := errors.AsType[*net.OpError](err); network {
		return openPortal{}, fmt.Errorf("%s: cannot listen on portal %s: %w%s", p.Pos, p.Shown(), err, listenAdvice(err, "portals"))
	}
	if err != nil {
		return openPortal{}, fmt.Errorf("%s: cannot open portal %s: %w", p.Pos, p.Shown(), err)
	}
	return openPortal{*p, l}, nil
}

// start has a portal accept connections, unless the server is closing. mu is held.
func (s *Server) start(p openPortal) {
	if s.closing {
		return
	}
	if p.begin() {
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

// tcpFront opens portals of iSCSI over TCP.
type tcpFront struct {
	surroundings
	counters *tcp.Counters
}

func (f *tcpFront) open(p *config.Portal, replaces []portal) (portal, error) {
	l, err := f.member.listen(p, replaces)
	if err != nil {
		return nil, err
	}
	return &tcpPortal{l, f, tcp.Config{Node: f.node, Pool: f.pool, NoModeration: p.NoModeration, Counters: f.counters}, f.member.guests(p)}, nil
}

func (f *tcpFront) close() error { return nil }

// tcpPortal is a portal of iSCSI over TCP.
type tcpPortal struct {
	*net.TCPListener
	*tcpFront
	connections tcp.Config
	guests      *guestbook // nil: the address does not move
}

func (p *tcpPortal) listener() *net.TCPListener { return p.TCPListener }
func (p *tcpPortal) begin() bool                { return true }

// If accept fails, for lack of a descriptor or of memory, it is tried again after acceptRetry. The log
// has at most one line about it in each acceptQuiet.
const (
	acceptRetry = 100 * time.Millisecond
	acceptQuiet = time.Minute
)

func (p *tcpPortal) serve() error {
	return acceptAll(p.TCPListener, p.log, func(c *net.TCPConn) {
		if !p.node.Admit() {
			p.log.Warn("connection refused: the limit is reached (limits.connections), or the target is stopping", "initiator_address", c.RemoteAddr().String())
			_ = c.Close()
			return
		}
		p.work.Go(func() {
			leave := p.guests.enter(c)
			_ = p.connections.Serve(c)
			leave()
		})
	})
}

// acceptAll calls take with each connection that comes, until the listener is closed. Its error is that of the listener.
func acceptAll(l *net.TCPListener, log *slog.Logger, take func(*net.TCPConn)) error {
	var gate loglimit.Gate
	for {
		c, err := l.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case isTemporary(err):
			if _, ok := gate.Pass(acceptQuiet); ok {
				log.Error("cannot accept connections now: they wait until others end; sessions go on (LimitNOFILE= of the unit, or ulimit -n, limits descriptors)",
					"portal", l.Addr().String(), "reason", err)
			}
			time.Sleep(acceptRetry)
			continue
		case err != nil:
			return err
		}
		take(c)
	}
}

func isTemporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}
