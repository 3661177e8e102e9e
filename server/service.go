package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"oneshot/config"
	"oneshot/mgmt"
)

// service is HTTP for the administrator: metrics, or the management API.
type service struct {
	name    string
	l       net.Listener
	http    *http.Server
	handler atomic.Pointer[http.Handler]
}

// Bounds of what one who asks can hold.
const (
	headerTime = 5 * time.Second
	idleTime   = time.Minute
	readTime   = time.Minute      // for a request
	writeTime  = 10 * time.Minute // for an answer; some of Go's profiles take as long as they are asked to
	headerSize = 16 << 10
	closeTime  = 2 * time.Second // for answers under way
)

func newService(name string, l net.Listener, h http.Handler, log *slog.Logger) *service {
	s := &service{name: name, l: newLimitedListener(l)}
	s.handler.Store(&h)
	s.http = &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*s.handler.Load()).ServeHTTP(w, r) }),
		ReadHeaderTimeout: headerTime, ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime, MaxHeaderBytes: headerSize,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	return s
}

// run serves until close.
func (s *service) run() error {
	if err := s.http.Serve(s.l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// close lets answers under way finish, for some time.
func (s *service) close() {
	if s == nil {
		return
	}
	_ = s.l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close()
	}
}

// services are those that a configuration asks for; nil: not.
type services struct{ metrics, management *service }

func (s *Server) openMetrics(m config.Metrics) (*service, error) {
	if !m.Given {
		return nil, nil
	}
	l, err := net.Listen(m.Network(), m.Address())
	if err != nil {
		return nil, fmt.Errorf("%s: cannot serve metrics: %w; end what uses the port, or choose another in \"metrics\"", m.Pos, err)
	}
	return newService("metrics", l, mgmt.NewMetrics(s, m.Pprof), s.log), nil
}

func (s *Server) openManagement(m config.Management) (*service, error) {
	if m.Socket == "" {
		return nil, nil
	}
	l, err := mgmt.Listen(m.Socket)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.Pos, err)
	}
	return newService("management", l, mgmt.NewAPI(s), s.log), nil
}

// startService has a service answer, unless the server is closing. mu is held.
func (s *Server) startService(v *service) {
	if v == nil || s.closing {
		return
	}
	s.log.Info("service open", "service", v.name, "address", v.l.Addr().String())
	s.wg.Go(func() {
		if err := v.run(); err != nil {
			s.log.Error("the service has ended; targets are served all the same", "service", v.name, "err", err)
		}
	})
}

// prepareServices opens what is new. The services that stay, with another handler perhaps, are
// taken over.
func (c *change) prepareServices() error {
	was, now := c.cfg, c.next
	c.services = c.Server.services
	if !equal(was.Management, now.Management) {
		v, err := c.openManagement(now.Management)
		if err != nil {
			return err
		}
		c.services.management = v
	}
	switch {
	case equal(was.Metrics, now.Metrics):
	case was.Metrics.Given && now.Metrics.Given && was.Metrics.Listen == now.Metrics.Listen:
		c.handler = mgmt.NewMetrics(c.Server, now.Metrics.Pprof)
	default:
		if was.Metrics.Given && now.Metrics.Given && was.Metrics.Listen.Port() == now.Metrics.Listen.Port() {
			c.metricsClosed = true // the new address may include the old one
			c.Server.services.metrics.close()
		}
		v, err := c.openMetrics(now.Metrics)
		if err != nil {
			return err
		}
		c.services.metrics = v
	}
	return nil
}

// abandonServices closes what prepareServices opened, and opens again what it closed. mu is
// held.
func (c *change) abandonServices() error {
	was := c.Server.services
	if c.services.management != was.management {
		c.services.management.close()
	}
	if c.services.metrics != was.metrics {
		c.services.metrics.close()
	}
	if !c.metricsClosed || c.closing {
		return nil
	}
	v, err := c.openMetrics(c.cfg.Metrics)
	c.Server.services.metrics = v
	if c.serving {
		c.startService(v)
	}
	return err
}

// commitServices starts what is new, and ends what is not asked for any more. mu is held.
func (c *change) commitServices() {
	was, now := c.Server.services, c.services
	c.Server.services = now
	if c.handler != nil {
		now.metrics.handler.Store(&c.handler)
	}
	for _, v := range [][2]*service{{was.metrics, now.metrics}, {was.management, now.management}} {
		if v[0] == v[1] {
			continue
		}
		if v[0] != nil {
			c.did("%s at %s closed", v[0].name, v[0].l.Addr())
			c.wg.Go(v[0].close) // one of its answers may be that to this change
		}
		if v[1] != nil {
			c.did("%s at %s opened", v[1].name, v[1].l.Addr())
		}
		if c.serving {
			c.startService(v[1])
		}
	}
}
