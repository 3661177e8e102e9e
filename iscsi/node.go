package iscsi

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"oneshot/internal/door"
	"oneshot/iscsi/login"
	"oneshot/iscsi/pdu"
	"oneshot/mem"
	"oneshot/scsi"
)

// Config is what the sessions of a node have in common.
type Config struct {
	Login     login.Config // what is offered in the login
	Discovery Auth         // of discovery sessions

	Connections         int    // most connections, in login or after
	Sessions            int    // most sessions
	Commands            int    // most outstanding commands of a session: the command window
	MemoryPerConnection int    // most bytes of I/O memory that the commands of one connection hold
	LoginTimeout        uint32 // seconds
	NOPInterval         uint32 // seconds of silence before a ping; 0: no pings
	NOPTimeout          uint32 // seconds without an answer before the connection is dropped
	ReadTimeout         uint32 // seconds in which no data come that the initiator was asked for before the connection is dropped

	Pool   *mem.Pool
	Logger *slog.Logger
	// CPUTime, if set, tells the processor time of this process, for initiators that ask.
	CPUTime func() time.Duration
	Rand    io.Reader // source of challenges: crypto/rand.Reader, except in tests
}

// Target is an iSCSI target node: a name, who may use it, and the SCSI target behind it.
type Target struct {
	Name  string // in lower case
	Alias string
	SCSI  *scsi.Target
	Admit func(initiator string) bool // nil: everybody
	// Changing says that other LUNs are about to be shown. Nobody logs in until the target is replaced again: initiators are told that the
	// service is unavailable, and try again.
	Changing bool

	Auth Auth
	// Rule, if set, says what is different for an initiator; nil: nothing.
	Rule func(initiator string) *Rule
	// Groups are the tags of the portal groups in which the target is reached; nil: all.
	Groups []uint16
	// Moved, if set, is where initiators are sent that log in: host:port. With Permanently they
	// are told to remember it.
	Moved       string
	Permanently bool
}

// Rule is what holds for one initiator rather than for all.
type Rule struct {
	Auth *Auth // nil: as for all
	// LUNs, if set, are the logical units that the initiator sees: theirs by its own numbers.
	LUNs map[uint16]uint16
}

// Portal is an address at which the node is reached.
type Portal struct {
	Group     uint16 // target portal group tag (RFC 7143 §13.9)
	Transport string // of the movers of its connections: Datamover.Transport
	RDMA      bool
	// Reached returns the address of the portal, host:port, for somebody who has reached local,
	// which may be another portal's: one that listens at all addresses of the machine has the host
	// of local, and is not exact. Empty: it is not reached there.
	Reached func(local string) (address string, exact bool)
	// Advertised is the address that initiators are told instead, host:port, where an address is translated
	// between them and us; empty: the one at which the portal is reached.
	Advertised string

	// Moves: the address goes with what its targets show. A command that this machine cannot do because another one serves its
	// logical unit is not answered: the address is on its way there, and the initiator sends the command again when it
	// has logged in. LeaveAddress ends its connections.
	Moves bool
	// Returns, if set, says whether an initiator port had a session at this address on another machine, and so has lost its nexus:
	// it hears that instead of a reset. local is the address of the connection. Arrived is called after each login.
	Returns func(local, initiator string, isid pdu.ISID) bool
	Arrived func()

	// Elsewhere is the address, host:port, of a portal of another machine, which shows some targets of the node as well: Targets. No
	// connection comes through it. Empty: it is a portal of the node.
	Elsewhere string
	Targets   []string
}

// told returns the address of the portal for an initiator whose connection has reached local. Empty: none.
func (p *Portal) told(local string) string {
	if p.Elsewhere != "" {
		return p.Elsewhere
	}
	at, _ := p.Reached(local)
	if at == "" || p.Advertised == "" {
		return at
	}
	return p.Advertised
}

// defaultGroup is the tag of connections that came through no portal that is known.
const defaultGroup = 1

// Auth is who has to prove what in a login; nil: nothing.
type Auth struct {
	CHAP   *login.Credentials // what the initiator has to know
	Mutual *login.Credentials // what we prove to it in turn
}

// Counters count what a node's connections went through since it started.
type Counters struct {
	Connections     atomic.Uint64 // accepted
	Refused         atomic.Uint64 // connections over the limit
	Logins          atomic.Uint64 // completed
	LoginFailures   atomic.Uint64
	Redirects       atomic.Uint64 // logins that were sent elsewhere
	ProtocolErrors  atomic.Uint64 // connections dropped for them
	Rejects         atomic.Uint64 // Reject PDUs sent
	IgnoredCommands atomic.Uint64 // outside the command window
	DigestErrors    atomic.Uint64
}

// Node is an iSCSI node: its targets, and the sessions that initiators have with them. Its
// methods may be called from any goroutine.
type Node struct {
	cfg      Config
	log      *slog.Logger
	pool     *mem.Pool
	most     int           // bytes of the largest lease that a command can have
	clock    atomic.Uint32 // seconds since the start
	limits   atomic.Pointer[Limits]
	counters Counters

	guests      *door.Guests[*Conn]
	discoveries door.Line // of the discovery sessions

	mu       sync.Mutex          // taken after the lock of a Conn; leaf
	targets  []*Target           // in the order in which they are listed; elements never change, so that others may keep a part
	portals  []Portal            // likewise
	sessions map[uint16]*Session // by TSIH
	nextTSIH uint16
}

// NewNode returns a node without targets.
func NewNode(cfg Config) *Node {
	n := &Node{
		cfg: cfg, log: cfg.Logger, pool: cfg.Pool,
		guests: door.NewGuests[*Conn](door.NewDoor(cfg.Connections)), sessions: make(map[uint16]*Session),
	}
	n.most = mostLease(cfg.Pool.Stats().Limit, cfg.MemoryPerConnection)
	n.SetLimits(Limits{
		Discovery: cfg.Discovery, Connections: cfg.Connections, Sessions: cfg.Sessions,
		LoginTimeout: cfg.LoginTimeout, NOPInterval: cfg.NOPInterval, NOPTimeout: cfg.NOPTimeout,
		ReadTimeout: cfg.ReadTimeout,
	})
	return n
}

// AddTarget makes t known to initiators.
func (n *Node) AddTarget(t *Target) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.targets = append(n.targets, t)
}

// SetPortals tells where the node is reached, in the order in which that is listed.
func (n *Node) SetPortals(ps []Portal) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.portals = slices.Clone(ps)
}

// Counters returns the node's counters.
func (n *Node) Counters() *Counters { return &n.counters }

// Run drives timeouts until ctx ends.
func (n *Node) Run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			n.Tick()
		}
	}
}

// Tick lets one second pass.
func (n *Node) Tick() {
	now := n.clock.Add(1)
	n.guests.Each(func(c *Conn) { c.tick(now) })
	n.pool.Trim()
}

// Admit reports whether one more connection may come, and counts it. NewConn, NewRDMAConn or
// Dismiss follows. Those that have yet to log in to a target have a share of the places: when it is
// used up, or all places are, the oldest of them gives way.
func (n *Node) Admit() bool {
	admitted, full := n.guests.Admit()
	if full {
		n.counters.Refused.Add(1)
	}
	if admitted {
		n.counters.Connections.Add(1)
	}
	return admitted
}

// Door is the one through which the connections come, to be shared with other nodes.
func (n *Node) Door() *door.Door { return n.guests.Door() }

// discoveryShare is how many of these may be discovery sessions, each of which may hold the list
// of all targets.
func discoveryShare(connections int) int { return min(max(connections/8, 8), 256) }

// giveWay ends a connection for which there is no room, if it has yet to log in to a target still.
func (c *Conn) giveWay() {
	if !c.place.Evicted() {
		return
	}
	c.log.Info("connection ended: there are more than limits.connections, and of those that have not logged in it is the oldest")
	c.terminate(AtOnce)
}

// discovers says that the connection is one of a discovery session. When there are too many the
// oldest one gives way.
func (n *Node) discovers(c *Conn) {
	c.place.Join(&n.discoveries, discoveryShare(n.Door().Limit()))
}

// Dismiss takes back what Admit counted, of a connection that came to nothing.
func (n *Node) Dismiss() { n.guests.Dismiss() }

// forget drops a connection of which nothing is left, and with the last one the session.
func (n *Node) forget(c *Conn) {
	var heirs []*Conn
	n.mu.Lock()
	if s := c.sess; s != nil && s.over {
		delete(n.sessions, s.TSIH)
		heirs, s.heirs = s.heirs, nil
	}
	n.mu.Unlock()
	n.guests.Forget(c)
	for _, h := range heirs {
		h.post(h.goOn)
	}
}

// inherit has the login of c go on when nothing of the session is left. False: that is so already.
func (n *Node) inherit(old *Session, c *Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sessions[old.TSIH] != old {
		return false
	}
	old.heirs = append(old.heirs, c)
	return true
}

// attach gives s a TSIH and a place among the sessions. If the same initiator port has a
// session with the same target already, that is returned instead: it has to end first (RFC
// 7143 §6.3.5).
func (n *Node) attach(s *Session) (old *Session, status pdu.LoginStatus) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.guests.Closed() {
		return nil, pdu.LoginServiceUnavailable
	}
	normal := 0
	for _, o := range n.sessions {
		if o.Target.same(s.Target) && o.Group == s.Group && o.ISID == s.ISID && o.Initiator == s.Initiator && !s.Discovery {
			return o, pdu.LoginSuccess
		}
		if !o.Discovery {
			normal++
		}
	}
	// Discovery sessions are bounded by their share of the connections.
	if !s.Discovery && normal >= n.limits.Load().Sessions || len(n.sessions) >= maxTSIH {
		return nil, pdu.LoginOutOfResources
	}
	for {
		n.nextTSIH++
		if _, used := n.sessions[n.nextTSIH]; !used && n.nextTSIH != 0 {
			break
		}
	}
	s.TSIH = n.nextTSIH
	n.sessions[s.TSIH] = s
	return nil, pdu.LoginSuccess
}

// maxTSIH is the largest TSIH: 0 is none.
const maxTSIH = 1<<16 - 1

// session returns the session with this TSIH, or nil.
func (n *Node) session(tsih uint16) *Session {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sessions[tsih]
}

// dropTarget ends all connections to t.
func (n *Node) dropTarget(t *Target, why string) {
	for _, c := range n.guests.List() {
		c.post(func() {
			if c.sess != nil && c.sess.Target.same(t) {
				c.fail("%s", why)
			}
		})
	}
}

// Shutdown asks the initiators to log out, waits until they have, and ends the connections
// of those that have not when ctx ends. No connection is taken any more. It returns when
// nothing is outstanding in the stores, or some time after ctx has ended with its error.
func (n *Node) Shutdown(ctx context.Context) error {
	grace := uint16(1)
	if d, ok := ctx.Deadline(); ok {
		grace = uint16(max(1, min(3600, int(time.Until(d).Seconds()))))
	}
	return n.guests.Shutdown(ctx, func(c *Conn) { c.leaveSoon(grace) }, func(c *Conn) { c.terminate(AtOnce) })
}

// leaveSoon ends a connection that has no session, and asks the initiator of one that has.
func (c *Conn) leaveSoon(seconds uint16) {
	if c.state == stateFullFeature && !c.sess.Discovery {
		c.askLogout(seconds)
		return
	}
	how := AtOnce
	if c.state == stateFullFeature {
		how = WhenSent
	}
	c.terminate(how)
}

// rule returns what is different for an initiator, or nil.
func (t *Target) rule(initiator string) *Rule {
	if t.Rule == nil {
		return nil
	}
	return t.Rule(initiator)
}

// in reports whether the target is reached in a portal group.
func (t *Target) in(group uint16) bool { return t.Groups == nil || slices.Contains(t.Groups, group) }

func (t *Target) admits(initiator string) bool { return t.Admit == nil || t.Admit(initiator) }

// target returns the target of this name, or nil.
func (n *Node) target(name string) *Target {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range n.targets {
		if t.Name == name {
			return t
		}
	}
	return nil
}
