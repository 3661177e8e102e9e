package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"oneshot/config"
	"oneshot/ha/fabric"
	"oneshot/ha/keeper"
	"oneshot/ha/quorum"
	"oneshot/internal/version"
	"oneshot/iscsi"
	"oneshot/mgmt"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
	"oneshot/transport/rdma/verbs"
)

// member is the node of the cluster that this process is.
type member struct {
	node    *quorum.Node
	fabric  *fabric.Fabric // for mirrors; nil: the transport of the cluster needs none
	dir     *quorum.Dir
	log     *slog.Logger
	name    string
	state   string                          // path of the directory
	portals atomic.Pointer[[]config.Portal] // of other nodes
	moving  atomic.Pointer[[]config.Portal] // whose addresses go with mirrors
	own     atomic.Pointer[[]config.Portal] // for hosts of mirrors, whose addresses are this machine's
	nexuses func() []iscsi.SessionInfo      // sessions of this node; set with leave
	leave   func(address string)            // ends connections with an address that has gone; set before mirrors are open
	books   guestbooks
	trouble troubles                            // of other nodes' copies
	keeper  *keeper.Client                      // nil: there is none
	holder  holder                              // of addresses that go with mirrors: the keeper, or this process
	fences  atomic.Pointer[map[string][]string] // commands that take the power from nodes, by name
	objects atomic.Pointer[[]config.Portal]     // for objects, of other nodes
	at      atomic.Pointer[map[string]string]   // addresses of the nodes, by name
	said    chan struct{}                       // has room for one: what the node says of itself has changed
	info    atomic.Pointer[quorum.NodeInfo]
	drained atomic.Pointer[quorum.Drained] // nil: not known yet
	stuck   atomic.Pointer[[]string]       // nodes that take no part in consensus, this one if it has not for stuckFor; nil: not known yet
	peers   *service                       // what other nodes ask for; nil: not yet
	wg      sync.WaitGroup

	ctx     context.Context
	end     func()     // of ctx
	mu      sync.Mutex // not held over anything that waits
	open    map[*mirrored]bool
	fenced  map[string]bool // nodes that were fenced a moment ago, or are; guarded by mu
	retired bool            // guarded by mu
}

// openMember begins a life of the node; nil: the configuration has no cluster.
func openMember(cfg *config.Config, log *slog.Logger) (*member, error) {
	c := &cfg.Cluster
	if c.Name == "" {
		return nil, nil
	}
	fail := func(err error) (*member, error) { return nil, fmt.Errorf("%s: %w", c.Pos, err) }
	dir, err := quorum.OpenDir(c.State)
	if err != nil {
		return fail(err)
	}
	l, err := net.Listen("tcp", c.Node(c.Self).Address)
	if err != nil {
		return fail(errors.Join(fmt.Errorf("cannot listen for the other nodes: %w%s", err, listenAdvice(err, "nodes")), dir.Close()))
	}
	m := &member{dir: dir, log: log.With("cluster", c.Name), name: c.Self, state: c.State, said: make(chan struct{}, 1), open: map[*mirrored]bool{}, fenced: map[string]bool{}, holder: alone{}}
	if c.Keeper.Socket != "" && !c.Node(c.Self).Witness {
		m.keeper = keeper.NewClient(c.Keeper.Socket, m.log)
		m.holder = kept{m.keeper}
	}
	m.configure(c)
	m.node, err = quorum.Open(quorum.Options{Cluster: c.Name, Name: c.Self, FS: dir, Listener: l, Dial: quorum.DialTCP(m.address), Log: m.log})
	if err != nil {
		return fail(errors.Join(err, l.Close(), dir.Close()))
	}
	if m.fabric, err = openFabric(c, m.log); err != nil {
		return fail(errors.Join(err, m.node.Close(), dir.Close()))
	}
	m.node.Watch(m.learn)
	m.ctx, m.end = context.WithCancel(context.Background())
	m.wg.Go(func() { m.retire(m.ctx) })
	m.wg.Go(func() { m.lookWhoIsStuck(m.ctx) })
	if m.keeper != nil {
		_ = m.keeper.Keep(m.sockets()) // what it has of a former configuration may be in the way of a portal; its status says how that ended
		m.wg.Go(func() { m.keeper.Run(m.ctx, m.sockets) })
	}
	return m, nil
}

// dataLinger is how long the end of a connection for data may take that a peer has broken: who takes back memory waits for no more.
const dataLinger = 250 * time.Millisecond

// openFabric listens for the data of mirrors, if the transport is one that does; a witness has none.
func openFabric(c *config.Cluster, log *slog.Logger) (*fabric.Fabric, error) {
	at := c.Node(c.Self).Data
	if at == "" {
		return nil, nil
	}
	open := func() (rdma.Device, rdma.Listener, error) { return listenInUserSpace(at, log) }
	if name := c.Device; c.Transport == config.ClusterVerbs {
		open = func() (rdma.Device, rdma.Listener, error) { return listenOnDevice(name, at, log) }
	}
	device, l, err := open()
	if err != nil {
		return nil, err
	}
	f, err := fabric.New(fabric.Config{Device: device, Listener: l, Again: open, Address: at, Logger: log})
	if err != nil {
		return nil, errors.Join(err, l.Close(), device.Close())
	}
	return f, nil
}

func listenInUserSpace(at string, log *slog.Logger) (rdma.Device, rdma.Listener, error) {
	device, err := iwarp.Open(iwarp.Config{Logger: log, Name: "iwarp", StartupTimeout: dataPatience, AcceptTimeout: dataPatience, LingerTime: dataLinger})
	if err != nil {
		return nil, nil, err
	}
	l, err := device.Listen(at)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("cannot listen for the data of mirrors: %w%s", err, listenAdvice(err, "nodes")), device.Close())
	}
	return device, l, nil
}

// listenOnDevice opens the device of the kernel that has an address; name is that device, or config.AnyDevice.
func listenOnDevice(name, at string, log *slog.Logger) (rdma.Device, rdma.Listener, error) {
	names := []string{name}
	if name == config.AnyDevice {
		var err error
		if names, err = usableDevices(); err != nil {
			return nil, nil, fmt.Errorf("cannot listen for the data of mirrors: %w", err)
		}
	}
	var problems error
	for _, name := range names {
		device, err := verbs.Open(verbs.Config{Name: name, Logger: log, ConnectTimeout: dataPatience, AcceptTimeout: dataPatience, LingerTime: dataLinger})
		if err != nil {
			problems = errors.Join(problems, err)
			continue
		}
		l, err := device.Listen(at)
		if err == nil {
			return device, l, nil
		}
		problems = errors.Join(problems, err, device.Close())
	}
	return nil, nil, fmt.Errorf("cannot listen for the data of mirrors at %s: %w", at, problems)
}

// dataPatience is how long the start of a connection for data may take.
const dataPatience = 5 * time.Second

// retire ends the part of this node in its mirrors when the others take it no more, whatever the reason: the cluster was forced to go on without
// it, it was replaced or removed, or there is another life of it. It hears of no view any more, so a primary that has the only copy in sync, and
// asks nobody whether it still is one, would serve on while another node does.
func (m *member) retire(ctx context.Context) {
	select {
	case <-m.node.Outdated():
	case <-ctx.Done():
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.retired = true
	for s := range m.open {
		s.Retire()
	}
}

// address returns where a node is.
func (m *member) address(name string) (string, error) {
	if at := (*m.at.Load())[name]; at != "" {
		return at, nil
	}
	return "", fmt.Errorf("node %s is a member, and `cluster.nodes` has no address of it: add it, or run target ha remove %s", name, name)
}

// configure takes the addresses of the nodes, and what others are to know of the configuration.
func (m *member) configure(c *config.Cluster) {
	at := make(map[string]string)
	for _, n := range c.Nodes {
		at[n.Name] = n.Address
	}
	m.at.Store(&at)
	m.portals.Store(&c.Others)
	m.moving.Store(&c.Moving)
	m.own.Store(&c.Own)
	fences := fencesOf(c)
	m.fences.Store(&fences)
	m.mu.Lock()
	mirrors := slices.Collect(maps.Keys(m.open))
	m.mu.Unlock()
	for _, s := range mirrors {
		s.front.look()
		s.tell()
	}
	m.objects.Store(&c.Objects)
	info := &quorum.NodeInfo{Version: version.String()}
	for _, p := range c.Parts {
		info.Parts = append(info.Parts, quorum.Part(p))
	}
	m.info.Store(info)
	select {
	case m.said <- struct{}{}:
	default:
	}
}

// sockets lists those of portals whose addresses move, if there is a keeper.
func (m *member) sockets() (list []keeper.Portal) {
	if m == nil || m.keeper == nil {
		return nil
	}
	for _, p := range *m.moving.Load() {
		list = append(list, socketOf(&p))
	}
	return list
}

// others lists the portals through which other nodes are reached.
func (m *member) others() []config.Portal { return *m.portals.Load() }

// announce tells the others what this node says of itself, whenever that changes, until ctx ends.
func (m *member) announce(ctx context.Context) { m.announceBy(ctx, m.node.Update) }

func (m *member) announceBy(ctx context.Context, update func(context.Context, quorum.Key, func([]byte) ([]byte, error)) error) {
	told := "" // why they do not learn it
	var again <-chan time.Time
	for {
		select {
		case <-m.said:
		case <-again:
		case <-ctx.Done():
			return
		}
		again = nil
		err := update(ctx, quorum.Key{Kind: quorum.KindNode, Name: m.name}, func([]byte) ([]byte, error) { return m.info.Load().Encode(), nil })
		switch {
		case err == nil:
			told = ""
		case ctx.Err() == nil:
			if again = time.After(askAgain); err.Error() != told {
				told = err.Error()
				m.log.Warn("the other nodes do not learn yet which configuration this node has", "reason", err)
			}
		}
	}
}

// askAgain is the time between two attempts to ask consensus for something that has to be. It refuses, for example, while too many wait for it.
const askAgain = time.Second

// ask returns a record as a majority knows it, however often it takes to ask. An error says that ctx or the node has ended.
func ask(ctx context.Context, get func(context.Context, quorum.Key) (*quorum.Record, error), k quorum.Key) (*quorum.Record, error) {
	for {
		r, err := get(ctx, k)
		if err == nil || ctx.Err() != nil || errors.Is(err, context.Canceled) {
			return r, err
		}
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (m *member) close() error {
	if m == nil {
		return nil
	}
	m.end()
	m.peers.close()
	m.wg.Wait()
	err := m.node.Close()
	if m.fabric != nil {
		err = errors.Join(err, m.fabric.Close())
	}
	if m.keeper != nil {
		err = errors.Join(err, m.keeper.Close())
	}
	return errors.Join(err, m.dir.Close())
}

// status returns what the node knows; nil: there is no cluster.
func (m *member) status() *mgmt.Cluster {
	if m == nil {
		return nil
	}
	s := m.node.Status()
	c := &mgmt.Cluster{Name: s.Cluster, Node: m.name, Term: s.Term}
	if m.fabric != nil {
		c.Device = m.fabric.Device()
	}
	if s.Trouble != nil {
		c.Trouble = s.Trouble.Error()
	}
	if m.keeper != nil {
		k := m.keeper.Status()
		c.Keeper = &mgmt.Keeper{Socket: k.Socket, Watchdog: k.Watchdog}
		if k.Trouble != nil {
			c.Keeper.Trouble = k.Trouble.Error()
		}
	}
	own, drained := m.info.Load(), m.drainedNodes()
	for _, n := range s.Members {
		row := mgmt.Member{
			Name: n.Name, Number: n.Number, Address: (*m.at.Load())[n.Name], Witness: n.Witness,
			Votes: slices.Contains(s.Former, n.Number) || slices.Contains(s.Voters, n.Number) && (!s.Settling || n.Number == s.Leader),
			Leads: n.Number == s.Leader, Up: slices.Contains(s.Heard, n.Number), Stuck: slices.Contains(s.Stuck, n.Number), Leaving: n.Leaving != quorum.Stays,
			Drained: slices.Contains(drained, n.Name),
		}
		row.Reason, row.ClockFaster = s.Broken[n.Number], 100*s.Clocks[n.Number]
		if info := s.Infos[n.Name]; info != nil {
			row.Version = info.Version
			row.Differs = config.Differences(partsOf(own), partsOf(info))
		}
		c.Members = append(c.Members, row)
	}
	for name, at := range *m.at.Load() {
		if !slices.ContainsFunc(c.Members, func(row mgmt.Member) bool { return row.Name == name }) {
			c.Members = append(c.Members, mgmt.Member{Name: name, Address: at, Reason: "it has not joined: run target ha join on it"})
		}
	}
	slices.SortStableFunc(c.Members, func(a, b mgmt.Member) int { return cmp.Compare(a.Name, b.Name) })
	return c
}

func partsOf(info *quorum.NodeInfo) []config.Part {
	parts := make([]config.Part, len(info.Parts))
	for i, p := range info.Parts {
		parts[i] = config.Part(p)
	}
	return parts
}

// consensusTime is how long a request of the administrator waits for a majority.
const consensusTime = 4 * time.Second

var errNoCluster = &mgmt.NotFoundError{What: "this daemon belongs to no cluster: its configuration has no section cluster"}

// memberNode returns the node, or an error if there is none.
func (s *Server) memberNode() (*quorum.Node, error) {
	if s.member == nil {
		return nil, errNoCluster
	}
	return s.member.node, nil
}

// NewToken implements mgmt.Target.
func (s *Server) NewToken(ctx context.Context) (string, error) {
	n, err := s.memberNode()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, consensusTime)
	defer cancel()
	t, err := n.NewToken(ctx)
	if err != nil {
		return "", noMajority(err)
	}
	return t.String(), nil
}

// RemoveNode implements mgmt.Target.
func (s *Server) RemoveNode(ctx context.Context, name string, how mgmt.Removal) error {
	n, err := s.memberNode()
	if err != nil {
		return err
	}
	leaving := quorum.Removed
	if how.Replace {
		leaving = quorum.Replaced
	}
	if how.Replace && !how.Up {
		if err := s.member.isGone(ctx, name); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, consensusTime)
	defer cancel()
	if err := s.member.spares(ctx, name, how.Lose); err != nil {
		return err
	}
	err = n.Leave(ctx, name, leaving)
	if none, ok := errors.AsType[*quorum.NoMemberError](err); ok {
		return &mgmt.NotFoundError{What: none.Error()}
	}
	return noMajority(err)
}

// goneTime is how long a node that was ended a moment ago may still be heard.
const goneTime = 2 * time.Second

// isGone refuses a node that is up: it is replaced when its machine, or what it has agreed to, is lost, and a name that was mistyped would cost a vote, and
// copies that count.
func (m *member) isGone(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, goneTime)
	defer cancel()
	s, err := m.node.Await(ctx, func(s *quorum.Status) bool { return !isUp(s, name) })
	if err == nil || !isUp(&s, name) {
		return nil // or the node here ends, and finds that out by itself
	}
	has := ""
	for _, k := range m.knownMirrors() {
		if id := idIn(k.Store, name); id != 0 && k.view.InSync.Has(id) {
			has += fmt.Sprintf(", and its copy of %s is in sync", k.name)
		}
	}
	return fmt.Errorf("nothing was changed: node %s is up%s; in its place there would be nothing until another machine has joined and is level. Look whether that is the node that was meant (target ha status). "+
		"If it is to be replaced, end its daemon first; or, to have the others refuse it while it runs, add --up", name, has)
}

// isUp says whether a member that stays is heard.
func isUp(s *quorum.Status, name string) bool {
	return slices.ContainsFunc(s.Members, func(o quorum.Member) bool {
		return o.Name == name && o.Leaving == quorum.Stays && slices.Contains(s.Heard, o.Number)
	})
}

// spares refuses to send a node away that has the only copy in sync of a mirror: it serves nothing from then on, and what that copy alone has no
// other one may ever have. lose names the mirrors of which that is meant. It keeps people from mistakes: between it and the change the other copies
// may be lost, and then nobody serves the mirror.
func (m *member) spares(ctx context.Context, name string, lose []string) error {
	if _, err := m.node.Get(ctx, formerKey); err != nil { // what was agreed on before is known here then
		return noMajority(quorum.ErrUnknown)
	}
	members := m.node.Status().Members
	isMember := func(name string, stays bool) bool {
		return slices.ContainsFunc(members, func(o quorum.Member) bool { return o.Name == name && (o.Leaving == quorum.Stays || !stays) })
	}
	var only []string
	for _, k := range m.knownMirrors() {
		id := idIn(k.Store, name)
		if id == 0 || !isMember(name, false) || !k.view.InSync.Has(id) || slices.Contains(lose, k.name) {
			continue
		}
		has := false // another one that stays
		for other := range k.view.InSync.Without(id).All() {
			has = has || isMember(k.node(other), true)
		}
		if !has {
			only = append(only, k.name)
		}
	}
	if len(only) == 0 {
		return nil
	}
	which := strings.Join(only, ", ")
	return fmt.Errorf("nothing was changed: node %s has the only copy in sync of %s, and would serve nothing any more: what hosts have written since another copy was in sync no other node has. Bring another copy level first (target ha status); "+
		"if node %s is lost for good, have another one go on with what it has (target ha force MIRROR); to send it away all the same, add --lose %s", name, which, name, strings.Join(only, " --lose "))
}

// noMajority says what it means that consensus has not answered, if err does not say it.
func noMajority(err error) error {
	if err == quorum.ErrUnknown {
		return fmt.Errorf("%w: no majority of the voters has answered within %v; target ha status shows who is missing", err, consensusTime)
	}
	return err
}
