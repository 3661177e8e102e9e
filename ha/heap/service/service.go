// Package service serves a heap of objects to other machines: messages of ha/heap/wire, one request at a time on a connection,
// and RDMA Reads of the heap's memory. It works on devices that let it choose STags (rdma.Placer).
//
// A connection can do nothing before its client has proved its name, nor does it reach memory (rdma.Barrer). Its domain has the heap's
// memory, for reading, and memory for its own messages, without rights: of the target's other memory nothing is known to the device.
package service

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"oneshot/ha/heap"
	"oneshot/ha/heap/wire"
	"oneshot/internal/door"
	"oneshot/transport/rdma"
)

// Config says what a Service needs. Zero values of numbers stand for the defaults.
type Config struct {
	Device rdma.Device // of the queue pairs
	// Secret returns the secret of a client; false: there is no such client. nil: clients have no names, and everybody may use
	// the heap.
	Secret func(name string) ([]byte, bool)
	// Nodes returns the addresses of the other nodes, the primary first if it is known. It does not block.
	Nodes  func() []string
	Logger *slog.Logger // nil: silence
	// Counters are those of the service; nil: nobody wants to know.
	Counters *Counters

	Limits
	Penalty time.Duration // what a wrong proof costs; 1 s
}

// Limits are what can change while a Service runs. Zero values stand for the defaults.
type Limits struct {
	Connections  int           // 128; half of them may be without proof, and half of one client. Each has memory for two messages of 256 KiB
	StartTimeout time.Duration // for a client to prove its name; 10 s
	Patience     time.Duration // for a client to take an answer; 30 s
}

func (l *Limits) fill() {
	if l.Connections <= 0 {
		l.Connections = 128
	}
	if l.StartTimeout <= 0 {
		l.StartTimeout = 10 * time.Second
	}
	if l.Patience <= 0 {
		l.Patience = 30 * time.Second
	}
}

// Service serves one heap on one device. Its methods may be called from any goroutine.
type Service struct {
	cfg    Config
	log    *slog.Logger
	placer rdma.Placer
	dom    rdma.Domain
	limits atomic.Pointer[Limits]

	changing sync.Mutex // taken before mu: one SetHeap or Close at a time
	region   rdma.Region

	conns door.Hall[*conn] // proof: of their names

	mu   sync.Mutex
	heap *heap.Heap // nil: this node does not serve it
}

// New makes a service that has no heap yet. The caller has to call Close.
func New(cfg Config) (*Service, error) {
	if cfg.Penalty <= 0 {
		cfg.Penalty = time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Counters == nil {
		cfg.Counters = new(Counters)
	}
	name := cfg.Device.Limits().Name
	if cfg.Device.Limits().ReadSinkWrite {
		return nil, fmt.Errorf("objects cannot be served over the device %s: peers could write to memory of its connections", name)
	}
	dom, err := cfg.Device.NewDomain()
	if err != nil {
		return nil, err
	}
	placer, ok := dom.(rdma.Placer)
	if !ok {
		return nil, errors.Join(fmt.Errorf("objects cannot be served over the device %s: it chooses steering tags itself", name), dom.Close())
	}
	s := &Service{cfg: cfg, log: cfg.Logger, placer: placer, dom: dom}
	s.SetLimits(cfg.Limits)
	return s, nil
}

// SetLimits changes the limits. Connections that there are stay.
func (s *Service) SetLimits(l Limits) {
	l.fill()
	s.limits.Store(&l)
}

// SetHeap has the service serve h from now on, or nothing if h is nil. Connections end when that changes, because their clients have
// to look for the primary; when it returns nothing uses the former heap any more. The owner calls it with nil before he
// closes a heap; he may have to make the heap fail first, so that what it is asked for ends.
func (s *Service) SetHeap(h *heap.Heap) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	return s.setHeap(h)
}

func (s *Service) setHeap(h *heap.Heap) error {
	s.mu.Lock()
	s.heap = nil
	s.mu.Unlock()
	s.endAll(errChanged)
	if s.region != nil {
		err := s.region.Deregister()
		s.region = nil
		if err != nil {
			return err
		}
	}
	if h == nil {
		return nil
	}
	var err error
	if s.region, err = s.placer.RegisterAt(h.Memory(), rdma.AccessRemoteRead, rdma.STag(h.Key()), h.Base()); err != nil {
		s.region = nil
		return err
	}
	s.mu.Lock()
	s.heap = h
	s.mu.Unlock()
	s.endAll(errChanged) // of those that have come in the meantime
	return nil
}

// endAll ends the connections that there are, and waits for them.
func (s *Service) endAll(err error) {
	all := s.conns.List()
	for _, c := range all {
		c.end(err)
	}
	for _, c := range all {
		<-c.over
	}
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
		if err := s.accept(req); err != nil {
			s.log.Warn("connection for objects refused", slog.String("client", req.RemoteAddr().String()), slog.Any("reason", err))
		}
	}
}

var (
	errNotOurs = errors.New("it is not one for objects: its private data does not begin with " + wire.Private)
	errChanged = errors.New("another node serves the heap now, or this one does again")
	errOldest  = errors.New("too many connections have no proof, and it is the oldest of them")
)

func (s *Service) accept(req rdma.Request) error {
	if d := req.PeerData(); len(d) < len(wire.Private) || string(d[:len(wire.Private)]) != wire.Private {
		return errors.Join(errNotOurs, req.Reject(nil))
	}
	c := newConn(s, req.RemoteAddr().String(), door.Host(req.RemoteAddr()))
	if err := s.conns.Enter(c, c.host, s.limits.Load().Connections, func(old *conn) { old.end(errOldest) }); err != nil {
		return errors.Join(err, req.Reject(nil))
	}
	if err := c.open(req); err != nil {
		return err
	}
	go c.run() // endAll waits for it
	return nil
}

// current returns the heap that is served, or nil.
func (s *Service) current() *heap.Heap {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heap
}

// Connections returns how many connections there are.
func (s *Service) Connections() int { return s.conns.Len() }

// Close ends all connections and frees what the service has of the device. The owner closes the listeners first, and
// makes the heap fail, if it may hang.
func (s *Service) Close() error {
	s.changing.Lock()
	defer s.changing.Unlock()
	s.conns.Close()
	return errors.Join(s.setHeap(nil), s.dom.Close())
}
