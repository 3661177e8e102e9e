package isns

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"
)

// Registration is what a server is told.
type Registration struct {
	Entity  string // names this network entity, such as its host name
	Targets []Target
	Portals []Portal
}

// Target is an iSCSI target node.
type Target struct {
	Name, Alias string
	Groups      []uint16 // tags of the portal groups in which it is reached; nil: all
}

// Portal is where targets are reached over TCP.
type Portal struct {
	Address netip.AddrPort // not an unspecified one
	Group   uint16
}

// Client keeps a registration alive. Its methods may be called from any goroutine.
type Client struct {
	server string
	log    *slog.Logger

	mu      sync.Mutex
	wanted  Registration // guarded by mu
	changed chan struct{}
}

// NewClient returns a client of the server at host:port. It does nothing until Run.
func NewClient(server string, log *slog.Logger) *Client {
	return &Client{server: server, log: log, changed: make(chan struct{}, 1)}
}

// Set says what to register. The caller must not change r afterwards.
func (c *Client) Set(r Registration) {
	c.mu.Lock()
	same := reflect.DeepEqual(r, c.wanted)
	c.wanted = r
	c.mu.Unlock()
	if same {
		return
	}
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *Client) registration() Registration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wanted
}

// Times.
const (
	wantedPeriod = 15 * time.Minute // after which the server forgets us
	retryFirst   = 2 * time.Second
	retryMost    = 2 * time.Minute
	answerTime   = 10 * time.Second
	partingTime  = 2 * time.Second
)

// Run registers, and keeps the registration alive until ctx ends; then it deregisters. Failures
// are logged once until the next success.
func (c *Client) Run(ctx context.Context) {
	var told Registration
	retry, failed := retryFirst, false
	for {
		r := c.registration()
		wait, err := c.tell(ctx, r, told)
		if _, ok := errors.AsType[*unansweredError](err); ok && !r.empty() {
			told = r // the server may know it
		}
		switch {
		case err == nil:
			if failed || !reflect.DeepEqual(r, told) {
				c.log.Info("the iSNS server knows", "server", c.server, "targets", len(r.Targets), "portals", len(r.Portals))
			}
			told, retry, failed = r, retryFirst, false
		case ctx.Err() == nil:
			if !failed {
				c.log.Warn("cannot register with the iSNS server; trying again", "server", c.server, "reason", err)
			}
			wait, failed = retry, true
			retry = min(2*retry, retryMost)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			c.part(told)
			return
		case <-c.changed:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// part deregisters, at the end, what the server has been told.
func (c *Client) part(told Registration) {
	ctx, cancel := context.WithTimeout(context.Background(), partingTime)
	defer cancel()
	if err := c.deregister(ctx, told); err != nil {
		c.log.Warn("cannot deregister from the iSNS server", "server", c.server, "reason", err)
	}
}

// deregister takes back what the server has been told, if that was anything (§5.6.5.4).
func (c *Client) deregister(ctx context.Context, told Registration) error {
	if told.empty() {
		return nil
	}
	_, err := c.exchange(ctx, functionDereg, 0, func(m *message) {
		m.text(tagName, source(told))
		m.delimiter()
		m.text(tagEntity, told.Entity)
	})
	return err
}

// empty reports whether r has no target or no portal. The server is not told of such a registration.
func (r *Registration) empty() bool { return len(r.Targets) == 0 || len(r.Portals) == 0 }

// source returns the name of the node that speaks for the entity (RFC 4171 §5.6.1).
func source(r Registration) string { return r.Targets[0].Name }

// tell sends the whole registration, which replaces what the server has been told before (§5.6.5.1).
// It returns the time after which the registration has to be renewed.
func (c *Client) tell(ctx context.Context, r, told Registration) (renew time.Duration, err error) {
	if r.empty() {
		return wantedPeriod, c.deregister(ctx, told)
	}
	answer, err := c.exchange(ctx, functionReg, flagReplace, func(m *message) { describe(m, r) })
	if err != nil {
		return 0, err
	}
	p := time.Duration(period(answer)) * time.Second
	if p <= 0 || p > wantedPeriod {
		p = wantedPeriod
	}
	return max(p/3, time.Second), nil
}

// describe writes the attributes of a registration: the entity, its portals, and its nodes, each
// with the groups of portals in which it is reached.
func describe(m *message, r Registration) {
	m.text(tagName, source(r))
	m.text(tagEntity, r.Entity)
	m.delimiter()
	m.text(tagEntity, r.Entity)
	m.number(tagProtocol, protocolISCSI)
	m.number(tagPeriod, uint32(wantedPeriod/time.Second))
	for _, p := range r.Portals {
		m.address(tagPortalIP, p.Address.Addr())
		m.number(tagPortalPort, uint32(p.Address.Port()))
	}
	for _, t := range r.Targets {
		m.text(tagName, t.Name)
		m.number(tagNodeType, nodeTarget)
		if t.Alias != "" {
			m.text(tagAlias, t.Alias)
		}
		describeGroups(m, t, r.Portals)
	}
}

// describeGroups writes where a node is reached: each portal group tag, followed by its portals. The
// portals of groups that the node is not in follow an empty tag: a server puts every node into group 1
// of each portal that the message does not mention (§3.4).
func describeGroups(m *message, t Target, ps []Portal) {
	var tags []uint16
	for _, p := range ps {
		if !slices.Contains(tags, p.Group) {
			tags = append(tags, p.Group)
		}
	}
	for _, tag := range tags {
		if t.Groups == nil || slices.Contains(t.Groups, tag) {
			m.number(tagGroupTag, uint32(tag))
		} else {
			m.attribute(tagGroupTag, nil)
		}
		for _, p := range ps {
			if p.Group == tag {
				m.address(tagGroupIP, p.Address.Addr())
				m.number(tagGroupPort, uint32(p.Address.Port()))
			}
		}
	}
}

// exchange sends one message on a connection of its own and returns the attributes of the answer.
func (c *Client) exchange(ctx context.Context, function, flags uint16, fill func(*message)) ([]byte, error) {
	const transaction = 1
	m := newMessage(function, flags, transaction)
	fill(m)
	b, err := m.bytes()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", c.server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := conn.Write(b); err != nil {
		return nil, errors.Join(ctx.Err(), err)
	}
	answer, err := readResponse(conn, function, transaction)
	if _, refused := errors.AsType[*StatusError](err); err != nil && !refused {
		return nil, &unansweredError{errors.Join(ctx.Err(), err)}
	}
	return answer, err
}

// unansweredError says that the server may have done what it was sent.
type unansweredError struct{ error }

func (e *unansweredError) Unwrap() error { return e.error }
