package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/ha/front"
)

// Client is the daemon's side. Its methods may be called by any goroutine. A keeper that is not there, or does not answer, is asked anew with
// the next request.
type Client struct {
	path   string
	log    *slog.Logger
	status atomic.Pointer[Status]

	mu      sync.Mutex          // held while one request is under way, which is bounded
	conn    *net.UnixConn       // nil: none
	sockets map[Portal]*os.File // that listen; a keeper that begins anew gets them
	silent  time.Duration       // until then a keeper that did not answer is not asked
}

// Status is what is known of the keeper.
type Status struct {
	Socket   string
	Watchdog string // the device that it pets; empty: none
	Trouble  error  // why it cannot be asked
}

const (
	// patience is how long an answer is waited for: after that the kernel has dropped the addresses, if the keeper hangs.
	patience = front.Lifetime
	// rest is how long a keeper that did not answer is left alone.
	rest = time.Second
	// looking is the time between two looks whether the keeper is there.
	looking = time.Second
)

// NewClient asks at a socket.
func NewClient(path string, log *slog.Logger) *Client {
	c := &Client{path: path, log: log, sockets: make(map[Portal]*os.File)}
	c.status.Store(&Status{Socket: path})
	return c
}

// Status returns what is known.
func (c *Client) Status() Status { return *c.status.Load() }

// Run looks after the keeper until ctx ends, so that its end is noticed, and another one gets the sockets. Those of portals that are no more among
// portals are closed, here and at the keeper.
func (c *Client) Run(ctx context.Context, portals func() []Portal) {
	t := time.NewTicker(looking)
	defer t.Stop()
	var told []Portal
	for isTold := false; ; {
		if list := portals(); !isTold || !slices.Equal(list, told) {
			told, isTold = list, c.Keep(list) == nil
		} else {
			_, _, _ = c.ask(&request{Op: opHello}) // Status says how it ended
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// Close ends the connection. The keeper keeps the sockets.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hangUp()
	var errs []error
	for _, f := range c.sockets {
		errs = append(errs, f.Close())
	}
	clear(c.sockets)
	return errors.Join(errs...)
}

// Hold has the machine have an address, for Patience as of a time at which the node was the primary. It reports whether that is new.
func (c *Client) Hold(a front.Address, asOf time.Duration) (isNew bool, err error) {
	r, _, err := c.ask(&request{Op: opHold, Portal: Portal{Address: a}, AsOf: asOf})
	return r.New, err
}

// Remove removes an address.
func (c *Client) Remove(a front.Address) error {
	_, _, err := c.ask(&request{Op: opDrop, Portal: Portal{Address: a}})
	return err
}

// Announce tells the network of an address that is held.
func (c *Client) Announce(a front.Address) error {
	_, _, err := c.ask(&request{Op: opAnnounce, Portal: Portal{Address: a}})
	return err
}

// Tickle is [front.Tickle] with an address that is held.
func (c *Client) Tickle(p Portal, remote netip.AddrPort) error {
	_, _, err := c.ask(&request{Op: opTickle, Portal: p, Remote: remote})
	return err
}

// Listen returns the socket of a portal, which stays open after it is closed. If there is none yet, the one that open makes is given to the keeper: only
// the user whose process has made a socket can have another one listen at the same address for a while (SO_REUSEPORT, socket(7)), as a reload of the
// daemon has to. If open fails the keeper makes the socket, or says why nobody can.
func (c *Client) Listen(p Portal, open func() (*net.TCPListener, error)) (*net.TCPListener, error) {
	var made *os.File
	if !c.has(p) {
		if l, err := open(); err == nil {
			made, err = l.File()
			if err = errors.Join(err, l.Close()); err != nil {
				return nil, err
			}
			defer closeFile(made)
		}
	}
	_, f, err := c.askWith(&request{Op: opListen, Portal: p}, made)
	if err != nil {
		return nil, err
	}
	if f == nil {
		return nil, errors.New("the keeper has sent no socket")
	}
	l, err := listener(f, p)
	if err != nil {
		closeFile(f)
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	closeFile(c.sockets[p])
	c.sockets[p] = f
	return l, nil
}

// has reports whether the socket of a portal is here already, or at the keeper. Then no second one may listen beside it, not for a moment: whoever
// connects to that would be reset. A keeper of a former version does not say.
func (c *Client) has(p Portal) bool {
	c.mu.Lock()
	here := c.sockets[p] != nil
	c.mu.Unlock()
	if here {
		return true
	}
	a, _, err := c.ask(&request{Op: opHas, Portal: p})
	return err == nil && a.Has
}

// Keep closes the sockets of portals that are not in list, here and at the keeper, which reads its configuration again for that.
func (c *Client) Keep(list []Portal) error {
	c.closeOthers(list)
	_, _, err := c.ask(&request{Op: opLook})
	return err
}

// GiveUp closes the sockets of portals that are not in list, here and at the keeper, whose configuration may have them: of those that were opened for a change
// that is abandoned.
func (c *Client) GiveUp(list []Portal) (err error) {
	for _, p := range c.closeOthers(list) {
		_, _, e := c.ask(&request{Op: opClose, Portal: p})
		err = errors.Join(err, e)
	}
	return err
}

// closeOthers closes the sockets that are here of portals that are not in list, and returns these portals.
func (c *Client) closeOthers(list []Portal) (others []Portal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p, f := range c.sockets {
		if !slices.Contains(list, p) {
			delete(c.sockets, p)
			closeFile(f)
			others = append(others, p)
		}
	}
	return others
}

// ask asks, and returns the answer, and perhaps a socket.
func (c *Client) ask(r *request) (answer, *os.File, error) { return c.askWith(r, nil) }

// askWith is ask with a socket for the keeper, which stays the caller's; nil: none.
func (c *Client) askWith(r *request, socket *os.File) (answer, *os.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if front.Now() < c.silent {
		return answer{}, nil, c.Status().Trouble
	}
	a, f, err := c.connected(r, socket)
	if err != nil {
		c.hangUp()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = fmt.Errorf("the keeper has not answered within %v", patience)
			c.silent = front.Now() + rest
		} else {
			err = fmt.Errorf("the keeper cannot be asked: %w", err)
		}
		c.tell(Status{Socket: c.path, Trouble: err})
		return answer{}, nil, err
	}
	if a.Error != "" {
		closeFile(f)
		return answer{}, nil, fmt.Errorf("the keeper has not done it: %s", a.Error)
	}
	return a, f, nil
}

// connected is exchange with a keeper that may be a new one, over one connection. Mu is held, as for all below.
func (c *Client) connected(r *request, socket *os.File) (answer, *os.File, error) {
	if c.conn == nil {
		if err := c.connect(); err != nil {
			return answer{}, nil, err
		}
	}
	a, f, err := c.exchange(r, socket)
	if !errors.Is(err, io.EOF) && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		return a, f, err
	}
	c.hangUp() // the keeper that had this connection has gone, and another one may be there
	if err := c.connect(); err != nil {
		return answer{}, nil, err
	}
	return c.exchange(r, socket)
}

func (c *Client) connect() (err error) {
	if c.conn, err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: c.path, Net: "unixpacket"}); err != nil {
		c.conn = nil
		return err
	}
	a, f, err := c.exchange(&request{Op: opHello}, nil)
	closeFile(f)
	if err != nil {
		return err
	}
	s := Status{Socket: c.path, Watchdog: a.Watchdog}
	for p, socket := range c.sockets {
		a, f, err := c.exchange(&request{Op: opListen, Portal: p}, socket)
		closeFile(f)
		if err != nil {
			return err
		}
		if a.Error != "" {
			s.Trouble = fmt.Errorf("the keeper does not keep the socket of %v: %s", p.AddrPort(), a.Error)
		}
	}
	c.tell(s)
	return nil
}

func (c *Client) exchange(r *request, socket *os.File) (a answer, f *os.File, err error) {
	if err = c.conn.SetDeadline(time.Now().Add(patience)); err == nil {
		err = send(c.conn, r, socket)
	}
	if err == nil {
		f, err = receive(c.conn, &a)
	}
	return a, f, err
}

func (c *Client) hangUp() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// tell notes how the keeper is, and says it if that is news.
func (c *Client) tell(s Status) {
	switch before := c.status.Swap(&s).Trouble; {
	case s.Trouble != nil && before == nil:
		c.log.Error("the keeper does not hold the addresses that go with mirrors: the kernel removes them", "socket", c.path, "reason", s.Trouble)
	case s.Trouble == nil && before != nil:
		c.log.Info("the keeper is there again", "socket", c.path)
	}
}
