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

// service is an HTTP server for the administrator: the metrics, or the management API.
type service struct {
	name    string
	l       net.Listener
	http    *http.Server
	handler atomic.Pointer[http.Handler]
}

// Limits of what one client can hold.
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

// close waits up to closeTime for answers that are under way, and ends.
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

// services holds the services of a configuration; nil: the configuration does not ask for it.
type services struct{ metrics, management *service }

// openMetrics listens for metrics. old is the service that will be closed for the new one, or nil.
func (s *Server) openMetrics(m config.Metrics, old *service) (*service, error) {
	if !m.Given {
		return nil, nil
	}
	var inTheWay []*net.TCPListener
	if old != nil {
		inTheWay = append(inTheWay, old.l.(*limitedListener).Listener.(*net.TCPListener))
	}
	l, err := listenTCP(m.Network(), m.Address(), inTheWay...)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot serve metrics: %w%s", m.Pos, err, listenAdvice(err, "metrics"))
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

// startService starts the goroutine of a service, unless the server is closing. mu is held.
func (s *Server) startService(v *service) {
	if v == nil || s.closing {
		return
	}
	s.log.Info("service open", "service", v.name, "address", v.l.Addr().String())
	s.wg.Go(func() {
		if err := v.run(); err != nil {
			s.log.Error("a service has failed; targets are still served", "service", v.name, "reason", err)
		}
	})
}

// prepareServices opens new services, and keeps those that stay, perhaps with another handler.
func (c *change) prepareServices() error {
	was, now := c.s.cfg, c.next
	c.services = c.s.services
	if !equal(was.Management, now.Management) {
		c.services.management = nil // unless it is opened
		v, err := c.s.openManagement(now.Management)
		if err != nil {
			return err
		}
		c.services.management = v
	}
	switch {
	case equal(was.Metrics, now.Metrics):
	case was.Metrics.Given && now.Metrics.Given && was.Metrics.Listen == now.Metrics.Listen:
		c.handler = mgmt.NewMetrics(c.s, now.Metrics.Pprof)
	default:
		c.services.metrics = nil
		var inTheWay *service // the new address may include the old one
		if old := c.s.metrics; old != nil && old.l.Addr().(*net.TCPAddr).Port == int(now.Metrics.Listen.Port()) {
			inTheWay = old
		}
		v, err := c.s.openMetrics(now.Metrics, inTheWay)
		if err != nil {
			return err
		}
		c.services.metrics = v
	}
	return nil
}

// abandonServices closes what prepareServices has opened.
func (c *change) abandonServices() {
	if v := c.services.management; v != c.s.management {
		v.close()
	}
	if v := c.services.metrics; v != c.s.metrics {
		v.close()
	}
}

// commitServices starts new services and closes those that the configuration no longer has. mu is held.
func (c *change) commitServices() {
	was, now := c.s.services, c.services
	c.s.services = now
	if c.handler != nil {
		now.metrics.handler.Store(&c.handler)
	}
	for _, v := range [][2]*service{{was.metrics, now.metrics}, {was.management, now.management}} {
		if v[0] == v[1] {
			continue
		}
		if v[0] != nil {
			c.did("%s at %s closed", v[0].name, v[0].l.Addr())
			_ = v[0].l.Close()
			c.s.wg.Go(v[0].close) // one of its answers may be that to this change
		}
		if v[1] != nil {
			c.did("%s at %s opened", v[1].name, v[1].l.Addr())
		}
		if c.s.serving {
			c.s.startService(v[1])
		}
	}
}
