package server

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"oneshot/config"
	"oneshot/internal/version"
	"oneshot/mgmt"
	"oneshot/nvme"
	"oneshot/nvme/auth"
	"oneshot/nvmf"
	"oneshot/transport/nvmerdma"
	"oneshot/transport/nvmetcp"
)

// spaceKey holds everything in which two namespaces that share a view of a store have to agree.
type spaceKey struct {
	store *openStore
	nqn   string // hosts refuse one name of bytes in two subsystems
	ns    config.Namespace
}

func keyOfSpace(s *config.Subsystem, n *config.Namespace, store *openStore) spaceKey {
	key := spaceKey{store, s.NQN, *n}
	key.ns.UUID, _ = namesOf(s.NQN, n)
	key.ns.NSID, key.ns.Pos, key.ns.Store = 0, config.Position{}, ""
	return key
}

// mediumOfSpace is the medium of the store that a namespace shows.
func mediumOfSpace(c *config.Config, n *config.Namespace) string { return medium(c.Store(n.Store)) }

// space returns the view for namespace n of subsystem s, which shows the open store.
func (u *units) space(s *config.Subsystem, n *config.Namespace, store *openStore) (*nvmf.Namespace, error) {
	key := keyOfSpace(s, n, store)
	if ns := u.spaces[key]; ns != nil {
		return ns, nil
	}
	uuid, nguid := namesOf(s.NQN, n)
	ns, err := nvmf.NewNamespace(nvmf.NamespaceConfig{
		Volume: store.volume, BlockSize: n.BlockSize, ReadOnly: n.ReadOnly, UUID: uuid, NGUID: nguid,
		Logger: u.log.With("subsystem", s.NQN, "namespace", n.NSID, "store", n.Store),
	})
	if err != nil {
		return nil, fmt.Errorf("%s: namespace %d cannot show store %q: %w", n.Pos, n.NSID, n.Store, err)
	}
	u.spaces[key] = ns
	store.views.Add(1)
	return ns, nil
}

// namesOf returns the names of a namespace. They depend only on the names in the configuration, so that they are the same after
// every restart.
func namesOf(nqn string, n *config.Namespace) (uuid, nguid [16]byte) {
	sum := sha256.Sum256([]byte("namespace\x00" + nqn + "\x00" + n.Store))
	if uuid = n.UUID; uuid == [16]byte{} {
		copy(uuid[:], sum[:])
		uuid[6] = uuid[6]&0x0f | 0x80 // RFC 9562: version 8, a scheme of our own
		uuid[8] = uuid[8]&0x3f | 0x80
	}
	sum = sha256.Sum256(uuid[:])
	copy(nguid[:], sum[:])
	nguid[8] = nguid[8]&^1 | 2 // of the company identifier: locally administered
	return uuid, nguid
}

// serialOf is the serial number of a subsystem.
func serialOf(s *config.Subsystem) string {
	if s.Serial != "" {
		return s.Serial
	}
	sum := sha256.Sum256([]byte("subsystem\x00" + s.NQN))
	return hex.EncodeToString(sum[:10])
}

// rulesOf returns what says what the hosts of a subsystem have to prove. The configuration has been checked; if it has not, nobody has a
// secret that would do.
func rulesOf(s *config.Subsystem) func(hostNQN string) *auth.Rules {
	all := make(map[*config.HostAuth]*auth.Rules)
	add := func(a *config.HostAuth) {
		if a == nil {
			return
		}
		r, err := a.Rules()
		if err != nil {
			secret := auth.NewSecret(0)
			r = &auth.Rules{Host: &secret}
		}
		all[a] = r
	}
	add(s.Auth)
	for i := range s.Hosts {
		add(s.Hosts[i].Auth)
	}
	return func(hostNQN string) *auth.Rules { return all[s.AuthOf(hostNQN)] }
}

// nvmeConfig is of a node whose connections come through the door of those of iSCSI: limits.connections counts both.
func nvmeConfig(cfg *config.Config, around *surroundings) nvmf.Config {
	return nvmf.Config{
		Pool: around.pool, Door: around.node.Door(), Logger: around.log, MemoryPerConnection: int(cfg.Limits.MemoryPerConnection),
		Depth: max(2, min(cfg.Limits.Commands, maxQueueDepth)), Firmware: firmware(), Limits: nvmeLimits(cfg),
	}
}

// referralsOf lists the discovery services elsewhere.
func referralsOf(cfg *config.Config) []nvmf.Referral {
	var list []nvmf.Referral
	for _, at := range cfg.Discovery.Referrals {
		list = append(list, nvmf.Referral{Transport: nvme.TransportTCP, Address: at})
	}
	return list
}

// maxQueueDepth bounds the entries of an I/O queue: a command of each may have a place of its own in the memory of its connection.
const maxQueueDepth = 1024

func firmware() string {
	v := version.String()
	return v[:min(len(v), 8)]
}

func nvmeLimits(cfg *config.Config) nvmf.Limits {
	return nvmf.Limits{Controllers: cfg.Limits.Sessions, ConnectTimeout: cfg.Limits.LoginTimeout, ReadTimeout: cfg.Limits.ReadTimeout}
}

// spaceChange is a change of one namespace of a subsystem that stays.
type spaceChange struct {
	sub      *config.Subsystem // of the new configuration
	nsid     uint32
	from, to *config.Namespace // nil: there is none
}

func (c spaceChange) String() string {
	var from, to string
	if c.from != nil {
		from = c.from.Store
	}
	if c.to != nil {
		to = c.to.Store
	}
	return fmt.Sprintf("namespace %d of %s %s", c.nsid, c.sub.NQN, verb(from, to, equal(c.from, c.to)))
}

func findSubsystem(c *config.Config, nqn string) *config.Subsystem {
	i := slices.IndexFunc(c.Subsystems, func(s config.Subsystem) bool { return s.NQN == nqn })
	if i < 0 {
		return nil
	}
	return &c.Subsystems[i]
}

// compareSubsystems finds subsystems that come and go, and what changes in the others. One with another serial number, or
// other identifiers of controllers, is another one.
func (c *comparison) compareSubsystems() {
	stays := func(other *config.Config, s *config.Subsystem) *config.Subsystem {
		if o := findSubsystem(other, s.NQN); o != nil && serialOf(o) == serialOf(s) && o.CNTLIDs == s.CNTLIDs {
			return o
		}
		return nil
	}
	for i := range c.old.Subsystems {
		if was := &c.old.Subsystems[i]; stays(c.new, was) == nil {
			c.removeSubs = append(c.removeSubs, was)
		}
	}
	for i := range c.new.Subsystems {
		s := &c.new.Subsystems[i]
		was := stays(c.old, s)
		if was == nil {
			c.addSubs = append(c.addSubs, s)
			continue
		}
		if !equal(was.Hosts, s.Hosts) || !equal(was.Auth, s.Auth) {
			c.hosts = append(c.hosts, s)
		}
		c.compareSpaces(was, s)
	}
}

// compareSpaces walks two sorted lists.
func (c *comparison) compareSpaces(was, now *config.Subsystem) {
	a, b := was.Namespaces, now.Namespaces
	for len(a) > 0 || len(b) > 0 {
		change := spaceChange{sub: now}
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].NSID < b[0].NSID:
			change.nsid, change.from, a = a[0].NSID, &a[0], a[1:]
		case len(a) == 0 || b[0].NSID < a[0].NSID:
			change.nsid, change.to, b = b[0].NSID, &b[0], b[1:]
		default:
			change.nsid, change.from, change.to = a[0].NSID, &a[0], &b[0]
			a, b = a[1:], b[1:]
			if equal(change.from, change.to) && mediumOfSpace(c.old, change.from) == mediumOfSpace(c.new, change.to) {
				continue
			}
		}
		c.spaces = append(c.spaces, change)
	}
}

// prepareSubsystems makes the namespaces that are new.
func (c *change) prepareSubsystems() error {
	for i := range c.next.Subsystems {
		s := &c.next.Subsystems[i]
		for j := range s.Namespaces {
			n := &s.Namespaces[j]
			store := c.units.stores[mediumOfSpace(c.next, n)]
			key := keyOfSpace(s, n, store)
			if ns := c.s.units.spaces[key]; ns != nil {
				c.units.spaces[key] = ns
				continue
			}
			if _, err := c.units.space(s, n, store); err != nil {
				return err
			}
		}
	}
	return nil
}

// spaceOf returns the view of a namespace, which prepareSubsystems has taken over or made.
func (c *change) spaceOf(s *config.Subsystem, n *config.Namespace) *nvmf.Namespace {
	return c.units.spaces[keyOfSpace(s, n, c.units.stores[mediumOfSpace(c.next, n)])]
}

func (c *change) commitSubsystems() {
	s := c.s
	for _, sub := range c.plan.removeSubs {
		if findSubsystem(c.next, sub.NQN) == nil {
			c.removeSubsystem(sub, s.subsystems[sub.NQN])
			delete(s.subsystems, sub.NQN)
		}
	}
	for _, sub := range c.plan.hosts { // in two steps, around the change of namespaces, as commitTargets
		was := findSubsystem(s.cfg, sub.NQN)
		s.subsystems[sub.NQN].SetAccess(func(host string) bool { return was.Admits(host) && sub.Admits(host) }, rulesOf(sub))
		c.did("subsystem %s has other rules of access", sub.NQN)
	}
	changes := make(map[string][]nvmf.Shown)
	for _, x := range c.plan.spaces {
		put := nvmf.Shown{NSID: x.nsid}
		if x.to != nil {
			put.Namespace = c.spaceOf(x.sub, x.to)
		}
		changes[x.sub.NQN] = append(changes[x.sub.NQN], put)
		c.did("%s", x)
	}
	for nqn, list := range changes {
		s.subsystems[nqn].SetNamespaces(list)
	}
	for _, sub := range c.plan.hosts {
		s.subsystems[sub.NQN].SetAccess(sub.Admits, rulesOf(sub))
	}
	for _, sub := range c.plan.addSubs {
		cfg := nvmf.SubsystemConfig{NQN: sub.NQN, Serial: serialOf(sub), CNTLIDs: sub.CNTLIDs, Admit: sub.Admits, Auth: rulesOf(sub)}
		for i := range sub.Namespaces {
			n := &sub.Namespaces[i]
			cfg.Namespaces = append(cfg.Namespaces, nvmf.Shown{NSID: n.NSID, Namespace: c.spaceOf(sub, n)})
		}
		gone := s.subsystems[sub.NQN]
		s.subsystems[sub.NQN] = s.nvme.AddSubsystem(cfg)
		if gone != nil { // it is made anew: hosts that connect find the one or the other
			c.removeSubsystem(findSubsystem(s.cfg, sub.NQN), gone)
		}
		c.did("subsystem %s added", sub.NQN)
	}
}

func (c *change) removeSubsystem(sub *config.Subsystem, gone *nvmf.Subsystem) {
	c.s.nvme.RemoveSubsystem(gone)
	var all []nvmf.Shown
	for _, n := range sub.Namespaces {
		all = append(all, nvmf.Shown{NSID: n.NSID})
	}
	gone.SetNamespaces(all) // controllers that have not ended yet reach no namespace any more
	c.did("subsystem %s removed", sub.NQN)
}

// nvmeStatus is what is served over NVMe; nil: nothing is.
func (s *Server) nvmeStatus(cfg *config.Config, subsystems map[string]*nvmf.Subsystem) *mgmt.NVMe {
	serves := slices.ContainsFunc(cfg.Portals, func(p config.Portal) bool { return p.Serve == config.ServeNamespaces })
	if !serves && len(cfg.Subsystems) == 0 {
		return nil
	}
	c := s.nvme.Counters()
	n := &mgmt.NVMe{
		Counters: mgmt.NVMeCounters{
			Connections: c.Connections.Load(), Refused: c.Refused.Load(), Connects: c.Connects.Load(), ConnectFailures: c.ConnectFailures.Load(), AuthFailures: c.AuthFailures.Load(),
			ProtocolErrors: c.ProtocolErrors.Load(), DigestErrors: c.DigestErrors.Load(),
		},
		Connected: s.nvme.ControllerCount(), Subsystems: []mgmt.Subsystem{},
	}
	for i := range cfg.Subsystems {
		sub := &cfg.Subsystems[i]
		if at := subsystems[sub.NQN]; at != nil { // else a change is under way
			n.Subsystems = append(n.Subsystems, mgmt.Subsystem{
				NQN: sub.NQN, Serial: serialOf(sub), Controllers: at.ControllerCount(), Namespaces: namespacesOf(cfg, sub, at),
			})
		}
	}
	return n
}

// namespacesOf combines what the configuration says of the namespaces of a subsystem with their counters.
func namespacesOf(cfg *config.Config, sub *config.Subsystem, at *nvmf.Subsystem) []mgmt.Namespace {
	stats := at.Stats()
	list := make([]mgmt.Namespace, 0, len(stats))
	for i := range sub.Namespaces {
		n := &sub.Namespaces[i]
		k := slices.IndexFunc(stats, func(x nvmf.NamespaceStats) bool { return x.NSID == n.NSID })
		if k < 0 {
			continue // a change is under way
		}
		blocks, blockSize := stats[k].Namespace.Capacity()
		uuid := stats[k].Namespace.UUID()
		list = append(list, mgmt.Namespace{
			NSID: n.NSID, Store: n.Store, StoreType: string(cfg.Store(n.Store).Type), UUID: uuidText(uuid),
			Bytes: int64(blocks) * int64(blockSize), BlockSize: blockSize, ReadOnly: n.ReadOnly, IO: ioOf(&stats[k].Stats),
		})
	}
	return list
}

// uuidText is the usual form of a UUID.
func uuidText(u [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// Controllers implements mgmt.Target.
func (s *Server) Controllers() []mgmt.Controller {
	var list []mgmt.Controller
	for _, c := range s.nvme.Controllers() {
		queues := make([]mgmt.Queue, len(c.Queues))
		for i, q := range c.Queues {
			queues[i] = mgmt.Queue{
				QID: q.QID, Entries: q.Entries, Peer: q.Peer, Local: q.Local, Transport: q.Transport,
				HeaderDigest: q.HeaderDigest, DataDigest: q.DataDigest,
			}
		}
		subsystem := c.Subsystem
		if subsystem == nvme.DiscoveryNQN {
			subsystem = ""
		}
		list = append(list, mgmt.Controller{
			ID: c.Number, CNTLID: c.CNTLID, Host: c.HostNQN, HostID: uuidText(c.HostID), Subsystem: subsystem, Since: c.Since,
			KeepAliveMS: c.KeepAlive.Milliseconds(), Authentication: c.Proved.String(), Buffers: c.Buffers, Queues: queues, IO: ioOf(&c.Stats),
		})
	}
	return list
}

// DropController implements mgmt.Target.
func (s *Server) DropController(id uint64) bool {
	return s.nvme.DropController(id, "the administrator asks for it")
}

// nvmeTransports are those of NVMe over Fabrics.
var nvmeTransports = map[config.Transport]*nvmf.Transport{
	config.TransportNVMeTCP:  nvmetcp.Transport,
	config.TransportNVMeRDMA: nvmerdma.Transport,
}

// announceNVMe tells the NVMe node the addresses of its portals. mu is held.
func (s *Server) announceNVMe() {
	var ps []nvmf.Portal
	for i, p := range s.portals {
		if p.config.Serve != config.ServeNamespaces {
			continue
		}
		at := p.bound()
		ps = append(ps, nvmf.Portal{ID: uint16(i), Transport: nvmeTransports[p.config.Transport], Reached: func(local netip.AddrPort) (netip.AddrPort, bool) {
			address := at.Advertise
			if address == "" {
				address, _ = reached(at.Listen, local.String())
			}
			told, err := netip.ParseAddrPort(address)
			return told, err == nil
		}})
	}
	s.nvme.SetPortals(append(ps, s.hostsElsewhere(len(s.portals))...))
}

// hostsElsewhere returns the portals of other nodes through which subsystems of this one are reached, numbered from first on. One
// discovery finds all paths by them; entries do what referrals would, but nodes that refer to each other could send a host round
// in circles. Of a portal that listens at all addresses of its machine the address is not known here. mu is held.
func (s *Server) hostsElsewhere(first int) (ps []nvmf.Portal) {
	for i, p := range s.cfg.Cluster.Hosts {
		told := p.Listen
		if at, err := netip.ParseAddrPort(p.Advertise); err == nil {
			told = at
		}
		if !told.IsValid() || told.Addr().IsUnspecified() {
			continue
		}
		there := nvmf.Portal{
			ID: uint16(first + i), Transport: nvmeTransports[p.Transport], Elsewhere: true,
			Reached: func(netip.AddrPort) (netip.AddrPort, bool) { return told, true },
		}
		for j := range s.cfg.Subsystems {
			if sub := &s.cfg.Subsystems[j]; s.isShownAt(sub, p.Node) {
				there.Subsystems = append(there.Subsystems, sub.NQN)
			}
		}
		ps = append(ps, there)
	}
	return ps
}

// isShownAt reports whether another node shows a subsystem, too: all of its namespaces are mirrors then, on the same nodes.
func (s *Server) isShownAt(sub *config.Subsystem, node string) bool {
	return slices.ContainsFunc(sub.Namespaces, func(n config.Namespace) bool {
		m := s.cfg.Store(n.Store).Mirror
		return m != nil && m.Copy(node) != nil
	})
}

// nvmeFront opens portals of NVMe over TCP.
type nvmeFront struct {
	surroundings
	hosts *nvmf.Node
}

func (f *nvmeFront) open(p *config.Portal, replaces []portal) (portal, error) {
	l, err := listenTCP(p.Network(), p.Address(), listeners(replaces)...)
	if err != nil {
		return nil, err
	}
	return &nvmePortal{l, f, p.Group}, nil
}

func (f *nvmeFront) close() error { return nil }

// nvmePortal is a portal of NVMe over TCP.
type nvmePortal struct {
	*net.TCPListener
	*nvmeFront
	group uint16
}

func (p *nvmePortal) listener() *net.TCPListener { return p.TCPListener }
func (p *nvmePortal) begin() bool                { return true }

func (p *nvmePortal) serve() error {
	return acceptAll(p.TCPListener, p.log, func(c *net.TCPConn) {
		if !p.hosts.Admit() {
			p.log.Warn("connection refused: the limit is reached (limits.connections), or the target is stopping", "host_address", c.RemoteAddr().String())
			_ = c.Close()
			return
		}
		p.work.Go(func() { _ = nvmetcp.Serve(p.hosts, p.group, c) })
	})
}

// shutdown ends all sessions and controllers, as Node.Shutdown does.
func joinShutdowns(first, second func() error) error {
	errs := make(chan error)
	go func() { errs <- second() }()
	return errors.Join(first(), <-errs)
}
