// Package server builds a running target from a configuration, and shuts it down.
package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"oneshot/backend"
	"oneshot/config"
	"oneshot/iscsi"
	"oneshot/iscsi/login"
	"oneshot/mem"
	"oneshot/scsi"
	"oneshot/transport/tcp"
)

// Server is a target that serves. Its methods may be called from any goroutine.
type Server struct {
	cfg  *config.Config
	log  *slog.Logger
	pool *mem.Pool
	node *iscsi.Node

	units   units
	portals []portal
	rdma    *rdmaPortals // nil: there is none

	mu      sync.Mutex // Serve and Shutdown may meet
	closing bool       // guarded by mu: no goroutine is started any more

	wg    sync.WaitGroup
	stop  context.CancelFunc
	ended chan struct{} // closed when Shutdown is over
	fatal chan error    // the first failure of a listener
	once  sync.Once
	shut  error // result of Shutdown
}

// New opens the stores and listens on the portals of cfg. On failure it has let go of
// everything; its error is one line that says what to change.
func New(cfg *config.Config, log *slog.Logger) (*Server, error) {
	s := &Server{
		cfg: cfg, log: log, pool: mem.NewPool(cfg.Limits.Memory),
		ended: make(chan struct{}), fatal: make(chan error, 1),
	}
	s.units = units{cfg: cfg, log: log, made: make(map[unitKey]*scsi.LogicalUnit), stores: make(map[string]backend.Store)}
	s.node = iscsi.NewNode(nodeConfig(cfg, s.pool, log))
	err := s.openTargets()
	if err == nil {
		err = s.listen()
	}
	if err != nil {
		return nil, errors.Join(err, s.release(), s.rdma.close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	s.wg.Go(func() { s.node.Run(ctx) })
	return s, nil
}

func nodeConfig(cfg *config.Config, pool *mem.Pool, log *slog.Logger) iscsi.Config {
	l := cfg.Limits
	return iscsi.Config{
		Login:       login.DefaultConfig(),
		Discovery:   iscsi.Auth{CHAP: credentials(cfg.Discovery.Auth.CHAP), Mutual: credentials(cfg.Discovery.Auth.Mutual)},
		Connections: l.Connections, Sessions: l.Sessions, Commands: l.Commands,
		MemoryPerConnection: int(l.MemoryPerConnection),
		LoginTimeout:        seconds(l.LoginTimeout), NOPInterval: seconds(l.NopInterval), NOPTimeout: seconds(l.NopTimeout),
		Pool: pool, Logger: log, Rand: rand.Reader,
	}
}

// seconds rounds up, so that a short time does not become none.
func seconds(d time.Duration) uint32 { return uint32((d + time.Second - 1) / time.Second) }

func credentials(c *config.Credentials) *login.Credentials {
	if c == nil {
		return nil
	}
	return &login.Credentials{Name: c.User, Secret: c.Secret.Bytes()}
}

// portalGroup is the tag of the one portal group that all portals are in.
const portalGroup = 1

// openTargets opens every store that a LUN names, and makes the targets.
func (s *Server) openTargets() error {
	for i := range s.cfg.Targets {
		t := &s.cfg.Targets[i]
		st := scsi.NewTarget(scsi.TargetConfig{Name: t.Name, RelativePort: 1, PortGroup: portalGroup})
		for _, l := range t.LUNs {
			lu, err := s.units.get(t, l)
			if err != nil {
				return err
			}
			st.SetLU(l.Number, lu)
		}
		s.node.AddTarget(&iscsi.Target{
			Name: t.Name, Alias: t.Alias, TPGT: portalGroup, SCSI: st, Admit: t.Admits,
			Auth: iscsi.Auth{CHAP: credentials(t.Auth.CHAP), Mutual: credentials(t.Auth.Mutual)},
		})
	}
	return nil
}

// identity is what names a logical unit for good: a serial number that depends only on the
// names in the configuration, so that it is the same after every restart.
func identity(target, store string) string {
	sum := sha256.Sum256([]byte(target + "\x00" + store))
	return hex.EncodeToString(sum[:10])
}

func (s *Server) listen() error {
	for i := range s.cfg.Portals {
		p := &s.cfg.Portals[i]
		open := s.openTCP
		if p.Transport == config.TransportIWARP {
			open = s.openIWARP
		}
		l, err := open(p)
		if _, network := errors.AsType[*net.OpError](err); network {
			return fmt.Errorf("%s: cannot listen on portal %s: %w; end what uses the port, or choose another in \"portals\"", p.Pos, p.Address(), err)
		}
		if err != nil {
			return fmt.Errorf("%s: cannot open portal %s: %w", p.Pos, p.Address(), err)
		}
		s.portals = append(s.portals, l)
	}
	return nil
}

// portal takes connections at one address.
type portal interface {
	Addr() net.Addr
	Close() error
	// serve takes connections until Close. Its error is that of the listener.
	serve() error
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

// Addrs returns the addresses of the portals, in the order of the configuration.
func (s *Server) Addrs() []net.Addr {
	addrs := make([]net.Addr, len(s.portals))
	for i, l := range s.portals {
		addrs[i] = l.Addr()
	}
	return addrs
}

// Serve takes connections until Shutdown is over, or a portal fails.
func (s *Server) Serve() error {
	s.mu.Lock()
	for i, p := range s.portals {
		if s.closing {
			break
		}
		s.log.Info("portal open", "transport", string(s.cfg.Portals[i].Transport), "address", p.Addr().String())
		s.wg.Go(func() {
			if err := p.serve(); err != nil {
				select {
				case s.fatal <- fmt.Errorf("portal %s failed: %w", p.Addr(), err):
				default:
				}
			}
		})
	}
	s.mu.Unlock()
	select {
	case <-s.ended:
		return nil
	case err := <-s.fatal:
		return err
	}
}

func (p *tcpPortal) serve() error {
	s := p.s
	for {
		c, err := p.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case isTemporary(err):
			// Out of descriptors or memory: connections that end make room.
			s.log.Error("a connection could not be accepted", "portal", p.Addr().String(), "err", err)
			time.Sleep(100 * time.Millisecond)
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

// Shutdown closes the portals, asks initiators to log out, lets what is in flight finish,
// and makes the stores durable. When ctx ends first, it cuts the connections that are left.
func (s *Server) Shutdown(ctx context.Context) error {
	s.once.Do(func() {
		s.mu.Lock()
		s.closing = true
		s.mu.Unlock()
		for _, p := range s.portals {
			_ = p.Close()
		}
		err := s.node.Shutdown(ctx)
		s.stop()
		if err == nil {
			s.wg.Wait()
			err = s.rdma.close()
		}
		s.shut = errors.Join(err, s.release())
		close(s.ended)
	})
	return s.shut
}

// release closes what New opened.
func (s *Server) release() error {
	for _, p := range s.portals {
		_ = p.Close()
	}
	return errors.Join(s.units.close()...)
}
