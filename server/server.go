// Package server builds a running target from a configuration, changes it while it runs, and
// shuts it down.
package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"oneshot/config"
	"oneshot/iscsi"
	"oneshot/iscsi/login"
	"oneshot/isns"
	"oneshot/mem"
	"oneshot/mgmt"
	"oneshot/nvmf"
	"oneshot/partition/registry"
	"oneshot/scsi"
	"oneshot/state"
	"oneshot/transport/tcp"
)

// Server is a target that serves. Its methods may be called from any goroutine.
type Server struct {
	log        *slog.Logger
	pool       *mem.Pool
	node       *iscsi.Node
	nvme       *nvmf.Node
	copies     *scsi.CopyManager
	fronts     map[config.Transport]frontEnd
	rdma       *rdmaDevices       // of fronts
	moderation tcp.Counters       // of connections over TCP
	partitions *registry.Registry // who uses which
	heaps      *heaps             // of objects
	first      *config.Config     // the configuration at the start, some keys of which hold until the process ends
	started    time.Time

	applying chan struct{} // holds one element while a change is under way; taken before mu

	mu         sync.Mutex
	cfg        *config.Config             // what is served; guarded by mu, as all of these
	loaded     time.Time                  // when cfg came into force
	units      units                      //
	targets    map[string]*scsi.Target    // by name
	subsystems map[string]*nvmf.Subsystem // by name
	portals    []openPortal               // in the order of the configuration
	isns       *isns.Client               // nil: the configuration has no iSNS server
	member     *member                    // nil: the configuration has no cluster; constant since New
	services                              // of the administrator
	serving    bool                       // portals take connections
	closing    bool                       // Shutdown has begun: no new goroutines, no more changes
	scarce     bool                       // descriptors are scarce, and the log says so

	retirements retirements

	wg    sync.WaitGroup
	ctx   context.Context // ends when all connections have ended, or Shutdown stops waiting for them
	stop  context.CancelFunc
	ended chan struct{} // closed when Shutdown is over
	fatal chan error    // the first failure of a listener
	once  sync.Once
	shut  error // result of Shutdown

	reload func(context.Context) (mgmt.Reload, error) // constant since Serve
}

// newPool returns the I/O memory. Other processes can map it if the system has memfd_create(2).
func newPool(limit int64, log *slog.Logger) *mem.Pool {
	p, err := mem.NewShared(limit)
	if err != nil {
		log.Info("I/O memory is private to this process", "reason", err)
		return mem.NewPool(limit)
	}
	return p
}

// closePool frees the I/O memory, unless a store that hangs still uses some of it.
func (s *Server) closePool() {
	if s.pool.Stats().Leases == 0 {
		s.pool.Close()
	}
}

// New opens the stores and listens on the portals of cfg. If it fails, it has released
// everything, and its error is one line that says what to change.
func New(cfg *config.Config, log *slog.Logger) (*Server, error) {
	s := &Server{
		log: log, first: cfg, started: time.Now(),
		cfg: &config.Config{}, targets: make(map[string]*scsi.Target), subsystems: make(map[string]*nvmf.Subsystem), copies: scsi.NewCopyManager(),
		applying: make(chan struct{}, 1), ended: make(chan struct{}), fatal: make(chan error, 1),
	}
	dir, err := openState(cfg)
	if err != nil {
		return nil, err
	}
	if s.member, err = openMember(cfg, log); err != nil {
		return nil, errors.Join(err, closeState(dir))
	}
	s.pool = newPool(cfg.Limits.Memory, log)
	s.partitions, s.heaps = registry.New(), newHeaps(s.member)
	base := units{log: log, state: dir, belows: newBelows(s.member, dir), partitions: s.partitions, heaps: s.heaps}
	s.units = base.fresh()
	if cfg.ISNS.Server != "" {
		s.isns = isns.NewClient(cfg.ISNS.Server, log)
	}
	s.node = iscsi.NewNode(nodeConfig(cfg, s.pool, log))
	if s.member != nil {
		s.member.leave, s.member.nexuses = s.node.LeaveAddress, s.node.Sessions
	}
	around := surroundings{node: s.node, member: s.member, pool: s.pool, commands: cfg.Limits.Commands, limits: cfg.Limits, log: log, work: &s.wg}
	s.nvme = nvmf.NewNode(nvmeConfig(cfg, &around))
	around.nvme = s.nvme
	s.rdma = &rdmaDevices{surroundings: around}
	s.fronts = newFrontEnds(around, s.rdma, s.partitions, s.heaps, &s.moderation)
	s.ctx, s.stop = context.WithCancel(context.Background())
	if _, err := s.Apply(cfg); err != nil {
		s.stop()
		defer s.closePool()
		return nil, errors.Join(err, s.closeFronts(), s.member.close(), closeState(dir))
	}
	if s.member != nil {
		if err := s.member.listenPeers(s); err != nil {
			return nil, errors.Join(err, s.Shutdown(context.Background()))
		}
	}
	s.wg.Go(func() { s.node.Run(s.ctx) })
	s.wg.Go(func() { s.nvme.Run(s.ctx) })
	if s.member != nil {
		s.wg.Go(func() { s.member.announce(s.ctx) })
	}
	return s, nil
}

func (s *Server) closeFronts() error {
	var errs []error
	for _, f := range s.fronts {
		errs = append(errs, f.close())
	}
	return errors.Join(errs...)
}

// openState opens the directory of states; nil: the configuration has none.
func openState(cfg *config.Config) (*state.Dir, error) {
	if cfg.State.Dir == "" {
		return nil, nil
	}
	dir, err := state.Open(cfg.State.Dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.State.Pos, err)
	}
	return dir, nil
}

func closeState(dir *state.Dir) error {
	if dir == nil {
		return nil
	}
	return dir.Close()
}

func nodeConfig(cfg *config.Config, pool *mem.Pool, log *slog.Logger) iscsi.Config {
	l, changing := cfg.Limits, nodeLimits(cfg)
	offer := login.DefaultConfig()
	offer.Offer.MaxConnections = uint32(l.ConnectionsPerSession)
	return iscsi.Config{
		Login:     offer,
		Discovery: changing.Discovery, Connections: changing.Connections, Sessions: changing.Sessions,
		LoginTimeout: changing.LoginTimeout, NOPInterval: changing.NOPInterval, NOPTimeout: changing.NOPTimeout,
		ReadTimeout: changing.ReadTimeout,
		Commands:    l.Commands, MemoryPerConnection: int(l.MemoryPerConnection),
		Pool: pool, Logger: log, CPUTime: cpuTime, Rand: rand.Reader,
	}
}

// nodeLimits returns the limits that can change while the node works.
func nodeLimits(cfg *config.Config) iscsi.Limits {
	l := cfg.Limits
	return iscsi.Limits{
		Discovery:   authOf(cfg.Discovery.Auth),
		Connections: l.Connections, Sessions: l.Sessions,
		LoginTimeout: seconds(l.LoginTimeout), NOPInterval: seconds(l.NopInterval), NOPTimeout: seconds(l.NopTimeout),
		ReadTimeout: seconds(l.ReadTimeout),
	}
}

// seconds rounds up, so that a short time does not become 0.
func seconds(d time.Duration) uint32 { return uint32((d + time.Second - 1) / time.Second) }

func authOf(a config.Auth) iscsi.Auth {
	return iscsi.Auth{CHAP: credentials(a.CHAP), Mutual: credentials(a.Mutual)}
}

func credentials(c *config.Credentials) *login.Credentials {
	if c == nil {
		return nil
	}
	return &login.Credentials{Name: c.User, Secret: c.Secret.Bytes()}
}

// newTarget makes the SCSI target of t, without logical units.
func (s *Server) newTarget(t *config.Target) *scsi.Target {
	return scsi.NewTarget(scsi.TargetConfig{Name: t.Name, RelativePort: 1, PortGroup: 1, Copies: s.copies})
}

// nodeTarget makes the iSCSI target of t in front of a SCSI target.
func nodeTarget(t *config.Target, st *scsi.Target) *iscsi.Target {
	n := &iscsi.Target{
		Name: t.Name, Alias: t.Alias, SCSI: st, Admit: t.Admits, Auth: authOf(t.Auth), Groups: t.Groups,
		Rule: func(initiator string) *iscsi.Rule { return ruleOf(t.Rule(initiator)) },
	}
	if r := t.Redirect; r != nil {
		n.Moved, n.Permanently = r.Address, r.Permanent
	}
	return n
}

// ruleOf translates a rule for an initiator; nil: the target admits nobody by it.
func ruleOf(r *config.Initiator) *iscsi.Rule {
	if r == nil {
		return nil
	}
	rule := new(iscsi.Rule)
	if r.Auth != nil {
		a := authOf(*r.Auth)
		rule.Auth = &a
	}
	if r.LUNs != nil {
		rule.LUNs = make(map[uint16]uint16, len(r.LUNs))
		for _, l := range r.LUNs {
			rule.LUNs[l.Number] = l.LUN
		}
	}
	return rule
}

// Addrs returns the addresses of the portals, in the order of the configuration.
func (s *Server) Addrs() []net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	addrs := make([]net.Addr, len(s.portals))
	for i, p := range s.portals {
		addrs[i] = p.Addr()
	}
	return addrs
}

// Serve takes connections until Shutdown is over, or a portal fails.
func (s *Server) Serve() error {
	s.mu.Lock()
	s.serving = true
	s.announce()
	for _, p := range s.portals {
		s.start(p)
	}
	s.startService(s.metrics)
	s.startService(s.management)
	if s.isns != nil && !s.closing {
		s.wg.Go(func() { s.isns.Run(s.ctx) })
	}
	s.mu.Unlock()
	select {
	case <-s.ended:
		return nil
	case err := <-s.fatal:
		return err
	}
}

// Shutdown closes the portals, asks initiators to log out, waits for the commands in flight,
// and flushes the stores. If ctx ends first, it closes the connections that are left.
func (s *Server) Shutdown(ctx context.Context) error {
	s.once.Do(func() {
		s.mu.Lock()
		s.closing = true
		s.mu.Unlock()
		select {
		case s.applying <- struct{}{}: // it is never given back, so that no change can follow
		case <-ctx.Done(): // a change hangs in a store
		}
		handOver(s.mirrors()) // while portals listen, so that nobody is refused before another node serves
		for _, p := range s.portals {
			_ = p.Close()
		}
		err := joinShutdowns(func() error { return s.node.Shutdown(ctx) }, func() error { return s.nvme.Shutdown(ctx) })
		s.metrics.close()
		s.management.close()
		s.stop()
		if err == nil {
			s.wg.Wait()
			err = s.closeFronts()
		}
		s.shut = errors.Join(append([]error{err}, s.units.close(ctx)...)...)
		s.shut = errors.Join(s.shut, s.member.close(), closeState(s.units.state))
		s.closePool()
		close(s.ended)
	})
	return s.shut
}
