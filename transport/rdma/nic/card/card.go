// Package card is the half of an RDMA device in another process that runs the queue pairs: those of a device in this process, iwarp
// or local, for the programs that connect to a socket (package nic). What it shares with them is in package shm.
//
//	card.go      Server: the socket, and who comes
//	client.go    a program: its rings, what it holds, and its end
//	request.go   what it asks for over the socket
//	command.go   what it asks for over its ring of commands: registrations, windows
//	work.go      descriptors ─► work requests of the device
//	complete.go  completions of the device ─► its ring of completions
//	peer.go      who a program is
//	poll.go      looking for work before sleep
//
// Nothing of what a program writes is believed. A position that lies, or a message that no driver sends, ends that
// program's connection with the card; a descriptor that makes no sense ends its queue pair. What a program holds is bounded,
// and goes with it: when the socket ends, its queue pairs are aborted and its memory is unmapped.
package card

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
)

// Config configures a Server. The zero value is valid.
type Config struct {
	Logger *slog.Logger // nil: silence
	// Open makes the device of a program, which the Server closes. Its regions are those of package soft, and its queue pairs
	// have the methods of queuePair. nil: each program has one of iwarp.
	Open func(Peer) (rdma.Device, error)
	// Memory bounds the memory that one program shares, rings and arenas; octets. 0: 1 GiB.
	Memory int64
	// Together bounds what all programs share; octets. 0: there is no such bound.
	Together int64
	// TogetherOfUser bounds what all programs of one user share; octets. 0: Together.
	TogetherOfUser int64
	// Programs bounds how many programs are served at a time. 0: 64.
	Programs int
	// ProgramsOfUser bounds how many of them belong to one user. 0: Programs.
	ProgramsOfUser int
	// HelloTimeout returns how long a program may take from connecting to its hello; it is asked for each program. nil: 10 s.
	HelloTimeout func() time.Duration
	// Poll is how long the card looks for what a program posts before it sleeps. It takes a processor for that time; no more
	// than half of the processors poll. 0: the card sleeps at once.
	Poll time.Duration
}

const (
	defaultMemory   = 1 << 30
	defaultPrograms = 64

	defaultHelloTimeout = 10 * time.Second
)

// Server serves programs.
type Server struct {
	cfg Config
	log *slog.Logger
	wg  sync.WaitGroup
	// Counters are of all programs since New.
	Counters Counters
	// pollers is how many programs are polled for now.
	pollers atomic.Int32

	mu      sync.Mutex
	clients map[*client]struct{}

	sharing sync.Mutex       // a leaf
	shared  int64            // octets that programs share; guarded by sharing
	ofUser  map[uint32]int64 // of these, by user; guarded by sharing
}

// New makes a server.
func New(c Config) *Server {
	if c.Memory <= 0 {
		c.Memory = defaultMemory
	}
	if c.Programs <= 0 {
		c.Programs = defaultPrograms
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.ProgramsOfUser <= 0 {
		c.ProgramsOfUser = c.Programs
	}
	if c.Open == nil {
		c.Open = func(Peer) (rdma.Device, error) { return iwarp.Open(iwarp.Config{Logger: c.Logger}) }
	}
	if c.HelloTimeout == nil {
		c.HelloTimeout = func() time.Duration { return defaultHelloTimeout }
	}
	if c.TogetherOfUser <= 0 {
		c.TogetherOfUser = c.Together
	}
	return &Server{cfg: c, log: c.Logger, clients: make(map[*client]struct{}), ofUser: make(map[uint32]int64)}
}

// Counters count what programs are refused.
type Counters struct {
	Refused       atomic.Uint64 // programs that found no place
	Silent        atomic.Uint64 // those that have said no hello in time
	MemoryRefused atomic.Uint64 // requests to share more memory than may be
}

// Program is a program that is served.
type Program struct {
	Peer
	QueuePairs int
	Shared     int64 // octets of its rings and arenas
}

// Programs returns those that there are, in no order.
func (s *Server) Programs() []Program {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.clients))
	s.mu.Unlock()
	list := make([]Program, len(all))
	for i, c := range all {
		c.mu.Lock()
		list[i] = Program{c.peer, len(c.pairs()), c.bytes}
		c.mu.Unlock()
	}
	return list
}

// Listener is a socket of type "unixpacket" that listens.
type Listener interface {
	AcceptUnix() (*net.UnixConn, error)
	Close() error
}

// Serve serves those who connect to l until ctx ends. Then it ends all connections and returns nil. An error means that
// nobody can connect any more. l is closed in any case.
func (s *Server) Serve(ctx context.Context, l Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	err := s.accept(ctx, l)
	stop()
	_ = l.Close()
	s.mu.Lock()
	for c := range s.clients {
		c.end(errStopped)
	}
	s.mu.Unlock()
	s.wg.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

var errStopped = errors.New("the card stops")

func (s *Server) accept(ctx context.Context, l Listener) error {
	for {
		u, err := l.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed) || ctx.Err() != nil:
			return err
		case err != nil: // out of descriptors
			s.log.Warn("nic: cannot accept a program", "reason", err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		s.serve(u)
	}
}

// serve begins to serve a program, if there are not too many.
func (s *Server) serve(u *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	peer, err := peerOf(u)
	switch {
	case err != nil:
	case len(s.clients) >= s.cfg.Programs:
		s.Counters.Refused.Add(1)
		s.log.Warn("nic: too many programs; one more is turned away", "programs", len(s.clients), "pid", peer.PID)
		_ = u.Close()
		return
	case s.programsOf(peer.UID) >= s.cfg.ProgramsOfUser:
		s.Counters.Refused.Add(1)
		s.log.Warn("nic: too many programs of one user; one more is turned away", "uid", peer.UID, "programs", s.cfg.ProgramsOfUser, "pid", peer.PID)
		_ = u.Close()
		return
	}
	var c *client
	if err == nil {
		c, err = newClient(s, u, peer)
	}
	if err != nil {
		s.log.Error("nic: cannot serve a program", "reason", err)
		_ = u.Close() // if newClient has not done so
		return
	}
	s.clients[c] = struct{}{}
	s.wg.Go(func() {
		c.run()
		s.mu.Lock()
		delete(s.clients, c)
		s.mu.Unlock()
	})
}

// programsOf returns how many programs of a user are served. The lock is held.
func (s *Server) programsOf(uid uint32) (n int) {
	for c := range s.clients {
		if c.peer.UID == uid {
			n++
		}
	}
	return n
}

// share counts n octets more that programs of a user share, or less.
func (s *Server) share(uid uint32, n int64) error {
	s.sharing.Lock()
	defer s.sharing.Unlock()
	all, his := s.shared+n, s.ofUser[uid]+n
	switch most, part := s.cfg.Together, s.cfg.TogetherOfUser; {
	case n <= 0:
	case most > 0 && all > most:
		return fmt.Errorf("the card maps no more than %d bytes of all programs together", most)
	case part > 0 && his > part:
		return fmt.Errorf("the card maps no more than %d bytes of all programs of a user together", part)
	}
	if s.shared, s.ofUser[uid] = all, his; his == 0 {
		delete(s.ofUser, uid)
	}
	return nil
}

// queuePair is what the card needs of a queue pair of Config.Open.
type queuePair interface {
	rdma.QueuePair
	// Unfinished returns how many requests are posted and not done, signalled or not. Those that are done have left their
	// completions in the completion queue.
	Unfinished() int
}

// chooser is a queue pair whose program chooses STags, as it has to for windows and one-shot (iwarp.QueuePair). A device without such
// queue pairs has neither in its Limits.
type chooser interface {
	SetAside(n int) ([]rdma.STag, error)
}

// asker is a queue pair that does not wait for receives (iwarp.QueuePair): it asks for those that the card has not taken yet.
type asker interface{ OnEmpty(f func()) }
