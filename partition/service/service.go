// Package service serves partitions to other machines, and to other programs of this one: the far end of package
// transport/rdma/remote. It speaks the messages of partition/wire on queue pairs of any device.
//
//	 client's queue pair              conn                        handle ── a queue pair of transport/rdma/local
//	  request ─────────► greeting, then command ─► memory ─► pull ─► order ─► Post ─► partition
//	  response ◄─────── answer, pushed data ◄────────────────────────────── completion
//
//	service.go  Service: connections and their bounds
//	memory.go   I/O memory as devices know it
//	conn.go     the life of a connection, its receives and sends
//	greet.go    HELLO to ATTACHED: who it is, and what he may use
//	session.go  what is remembered of a client that may come back
//	handle.go   a partition in use: which command may be posted next
//	command.go  one request, from its message to its response
//
// What an operation at a partition is, in which order operations start, and which number and watermark they have,
// the provider local knows: each handle has an endpoint of it. This package brings the data to it and the
// answers back.
package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"oneshot/internal/door"
	"oneshot/mem"
	"oneshot/partition"
	"oneshot/partition/wire"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/local"
)

// Request says who wants to use which partition.
type Request struct {
	Name     string             // STORE/PARTITION or uuid:UUID
	Identity partition.Identity // proved
	Want     rdma.Rights        // 0: all that the identity has
	Order    rdma.Order         // that of the client's queue pair
	Via      string             // device and address, for people
	// Follows is the Lineage of an endpoint whose works he will repeat, or 0. Open fails with rdma.ErrReplaced if he has been granted
	// rdma.RightSole elsewhere since.
	Follows uint64
	// Forgotten says that he will repeat works, and that the service does not know of which lineage. Open fails with rdma.ErrReplaced if
	// he has ever been granted rdma.RightSole.
	Forgotten bool
	// Gone is for the Opener to call, once and from any goroutine, when rights are revoked, or the partition is
	// deleted, renamed or made smaller. It does not block.
	Gone func(error)
}

// Endpoint is a partition in use.
type Endpoint interface {
	local.Medium
	// Describe returns name, UUID, rights granted, durability and aging time.
	Describe() rdma.Endpoint
	// Lends says that the bytes are in memory, and that a transfer is a copy.
	Lends() bool
	// Lineage is Request.Follows of who goes on with the session; 0: nobody is granted rdma.RightSole.
	Lineage() uint64
	// Close is called once, when nothing is outstanding. It may block.
	Close()
}

// Opener opens partitions. Its methods may be called from any goroutine.
type Opener interface {
	// Open returns the partition with some of the rights that are wanted. The Endpoint belongs to the caller, who
	// closes it. An error that wraps rdma.ErrNoEndpoint says only that this identity cannot open such a partition,
	// not whether it exists.
	Open(ctx context.Context, q Request) (Endpoint, error)
	// List returns what an identity may reach, sorted by name.
	List(id partition.Identity) []rdma.Endpoint
}

// Config says what a Service needs. Zero values of numbers stand for the defaults.
type Config struct {
	Device rdma.Device // of the queue pairs
	Pool   *mem.Pool
	Opener Opener
	// Secret returns the secret of a client; false: there is no such client. nil: only clients without a name.
	Secret func(name string) ([]byte, bool)
	// Identify returns who asks for a connection, as far as the device knows. What a client proves is added. nil: it knows nothing.
	Identify func(rdma.Request) partition.Identity
	Logger   *slog.Logger // nil: silence

	Credits int   // requests of a connection without a response; 64, at most 64
	Memory  int64 // bytes of Pool for the data of a connection's requests; 8 MiB
	// Connections is how many there may be; 256. Half of them may be without a handle. Of those with one a client has half, or fewer: as
	// many as half of the memory that Pool keeps has receives for (partition.Identity.Shares).
	Connections int

	StartTimeout time.Duration // for a connection to get its first handle; 10 s
	Penalty      time.Duration // what a wrong proof costs; 1 s
	// Patience is the time between two looks at a connection. One that waits for its client, and of which nothing
	// has completed since the last look, is ended; 30 s.
	Patience time.Duration
}

// Limits are what can change while a Service runs. Zero values stand for the defaults of Config.
type Limits struct {
	Connections  int
	StartTimeout time.Duration
	Patience     time.Duration
}

func (l *Limits) fill() {
	or := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	or(&l.StartTimeout, 10*time.Second)
	or(&l.Patience, 30*time.Second)
	if l.Connections <= 0 {
		l.Connections = 256
	}
}

// SetLimits changes the limits. Connections that there are stay, though there may be more than the new limit; of
// those, each keeps the time that it was given to start.
func (s *Service) SetLimits(l Limits) {
	l.fill()
	s.limits.Store(&l)
	select {
	case s.limited <- struct{}{}:
	default:
	}
}

const (
	maxCredits = 64
	// maxLength bounds the data of one request.
	maxLength = 1 << 20
	// chunk bounds one RDMA operation, so that the connection's other work gets its turn.
	chunk = 256 << 10
	// maxHandles bounds the partitions of a connection.
	maxHandles = 16
	// maxUnsent bounds the responses that wait to be sent. While there are as many, nothing more is read.
	maxUnsent = 512
)

// Service serves partitions on one device. Its methods may be called from any goroutine.
type Service struct {
	cfg    Config
	log    *slog.Logger
	far    memory        // I/O memory as registered with Config.Device, unless isolated
	near   memory        // as registered with ends
	ends   *local.Device // has the endpoints
	forget func()        // ends the registration of arenas
	// isolated: a peer of the device may end or read any registration of its domain (Limits.UnguardedInvalidate,
	// Limits.UnguardedRead). So each connection has a domain of its own, and harms nobody but itself.
	isolated bool
	stop     chan struct{} // ends watch
	limits   atomic.Pointer[Limits]
	limited  chan struct{} // holds one element if limits have changed since watch looked
	work     sync.WaitGroup

	conns   door.Hall[*conn] // proof: a handle
	refused atomic.Uint64    // connections

	mu       sync.Mutex         // taken after conn.mu
	sessions map[uint64]*handle // which clients may continue on another connection
	past     []*past            // sessions that have no connection now, the oldest first
}

// New makes a service, or says why partitions cannot be served over the device. The caller has to call Close.
func New(cfg Config) (*Service, error) {
	if cfg.Penalty <= 0 {
		cfg.Penalty = time.Second
	}
	if cfg.Credits <= 0 || cfg.Credits > maxCredits {
		cfg.Credits = maxCredits
	}
	if cfg.Memory <= 0 {
		cfg.Memory = 8 << 20
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	switch l := cfg.Device.Limits(); {
	case l.ReadSinkWrite:
		return nil, fmt.Errorf("partitions cannot be served over the device %s: its peers could reach the I/O memory of others", l.Name)
	case l.MaxInline < wire.ResponseLen:
		return nil, fmt.Errorf("partitions cannot be served over the device %s: it has no inline Sends of %d bytes", l.Name, wire.ResponseLen)
	}
	s := &Service{
		cfg: cfg, log: cfg.Logger, stop: make(chan struct{}), limited: make(chan struct{}, 1),
		sessions: make(map[uint64]*handle),
		isolated: cfg.Device.Limits().UnguardedInvalidate || cfg.Device.Limits().UnguardedRead,
	}
	s.SetLimits(Limits{cfg.Connections, cfg.StartTimeout, cfg.Patience})
	s.ends = local.Open(local.Config{Name: "partitions", Logger: cfg.Logger, Open: openEndpoint})
	var err error
	if s.far.dom, err = cfg.Device.NewDomain(); err == nil {
		s.near.dom, err = s.ends.NewDomain()
	}
	if err != nil {
		return nil, err
	}
	s.forget = cfg.Pool.Arenas(func(a *mem.Arena) {
		err := s.near.register(a)
		if !s.isolated {
			err = errors.Join(err, s.far.register(a))
		}
		if err != nil {
			s.log.Error("I/O memory cannot be used for partitions", slog.Any("reason", err))
		}
	}, func(a *mem.Arena) {
		err := errors.Join(s.far.deregister(a), s.near.deregister(a))
		for _, c := range s.conns.List() {
			if c.far != &s.far {
				err = errors.Join(err, c.far.deregister(a))
			}
		}
		if err != nil {
			s.log.Error("idle I/O memory stays with the device of partitions", slog.Any("reason", err))
		}
	})
	s.work.Go(s.watch)
	return s, nil
}

// places returns how many connections with a handle there may be: of as many clients.
func (s *Service) places() int {
	leases := (s.cfg.Credits + slotsPer) / slotsPer
	return min(s.limits.Load().Connections, int(s.cfg.Pool.MostKept()/int64(leases*mem.RoundUp(slotLease))))
}

// limit returns the most bytes of a READ or WRITE.
func (s *Service) limit() int {
	n := int64(maxLength)
	for n > s.cfg.Memory && n > mem.PageSize {
		n /= 2
	}
	return int(n)
}

// Serve accepts connections from l until it is closed.
func (s *Service) Serve(l rdma.Listener) error {
	for {
		req, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Accept(req); err != nil {
			s.log.Warn("connection for partitions refused", slog.String("client", req.RemoteAddr().String()), slog.Any("reason", err))
		}
	}
}

// Wants reports whether a connection request is one for partitions.
func Wants(req rdma.Request) bool {
	d := req.PeerData()
	return len(d) >= len(wire.Private) && string(d[:len(wire.Private)]) == wire.Private
}

var (
	errNotOurs = errors.New("it is not one for partitions: its private data does not begin with OSP1")
	errOldest  = errors.New("too many connections have no partition, and it is the oldest of them")
)

// Accept serves the connection that req asks for, or rejects it and says why.
func (s *Service) Accept(req rdma.Request) error {
	if !Wants(req) {
		return errors.Join(errNotOurs, req.Reject(nil))
	}
	c := &conn{s: s, far: &s.far, peer: req.RemoteAddr().String(), done: make(chan struct{}), handles: make(map[uint32]*handle)}
	c.id.Host = door.Host(req.RemoteAddr())
	if s.cfg.Identify != nil {
		c.id = s.cfg.Identify(req)
	}
	if s.isolated {
		dom, err := s.cfg.Device.NewDomain()
		if err != nil {
			return errors.Join(err, req.Reject(nil))
		}
		c.far = &memory{dom: dom, lazy: true, alone: s.cfg.Device.Limits().UnguardedRead}
	}
	if err := s.conns.Enter(c, cmp.Or(c.id.Host, c.id.String()), s.limits.Load().Connections, func(old *conn) { old.end(errOldest) }); err != nil {
		s.refused.Add(1)
		c.letGo()
		return errors.Join(err, req.Reject(nil))
	}
	if err := c.open(); err != nil {
		s.refused.Add(1)
		c.release()
		return errors.Join(err, req.Reject(nil))
	}
	err := req.Accept(c.qp, rdma.ConnParams{
		PrivateData: []byte(wire.Private),
		OneShot: &rdma.OneShotOffer{
			Flags: true, Opcodes: true, Validated: true, Advertise: true, Close: true, Window: uint32(2 * s.cfg.Credits),
		},
	})
	if err != nil {
		c.teardown()
		return err
	}
	c.mu.Lock()
	if c.dead { // it gave way in the meantime
		c.qp.Abort(c.err)
	}
	c.mu.Unlock()
	return nil
}

// watch looks at all connections until the service is closed.
func (s *Service) watch() {
	t := time.NewTicker(s.limits.Load().Patience)
	defer t.Stop()
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for {
		select {
		case <-second.C:
			s.tick()
		case <-s.stop:
			return
		case <-s.limited:
			t.Reset(s.limits.Load().Patience)
		case <-t.C:
			s.look()
		}
	}
}

func (s *Service) tick() {
	for _, c := range s.conns.List() {
		c.tick()
	}
}

// look ends the connections whose work at the client has made no progress since the last look.
func (s *Service) look() {
	for _, c := range s.conns.List() {
		c.mu.Lock()
		if c.posted > 0 && c.seen == c.progress {
			c.broken(errors.New("it takes no responses, or does not answer RDMA Reads"))
		}
		c.seen = c.progress
		c.unlock()
	}
}

// Refused returns how many connections have found no place so far, or no memory, or were more than the share of their client. One that
// asks for a partition twice counts twice.
func (s *Service) Refused() uint64 { return s.refused.Load() }

// Connections returns how many connections there are.
func (s *Service) Connections() int { return s.conns.Len() }

// Close ends all connections, waits until stores have ended their operations, and frees what the service has of
// the device. The owner closes the listeners first.
func (s *Service) Close() error {
	s.conns.Close()
	close(s.stop)
	s.work.Wait()
	for _, c := range s.conns.List() {
		c.end(door.ErrClosed)
	}
	s.conns.Wait()
	s.forget()
	return errors.Join(s.far.close(), s.near.close(), s.ends.Close())
}
