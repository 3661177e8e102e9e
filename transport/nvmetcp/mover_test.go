package nvmetcp_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"oneshot/initiator/host"
	"oneshot/mem"
	"oneshot/nvme"
	"oneshot/nvmf"
	"oneshot/nvmf/movertest"
	"oneshot/transport/nvmetcp"
)

// TestMover runs the suite of all movers, with and without digests.
func TestMover(t *testing.T) {
	for name, digests := range map[string]bool{"plain": false, "digests": true} {
		t.Run(name, func(t *testing.T) {
			movertest.Run(t, func(t testing.TB, node *nvmf.Node, _ *mem.Pool) movertest.Service {
				l, err := net.Listen("tcp4", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				s := &service{URL: host.URL{Address: l.Addr().String(), Subsystem: movertest.NQN, HeaderDigest: digests, DataDigest: digests}}
				var wg sync.WaitGroup
				wg.Go(func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						if !node.Admit() {
							_ = c.Close()
							continue
						}
						s.add(c.(*net.TCPConn))
						wg.Go(func() { _ = nvmetcp.Serve(node, 1, c.(*net.TCPConn)) })
					}
				})
				return movertest.Service{Dial: s.dial, Stop: func() { _ = l.Close(); wg.Wait() }}
			})
		})
	}
}

// service is a portal, and the connections that came to it.
type service struct {
	host.URL

	mu    sync.Mutex
	conns []*net.TCPConn // guarded by mu
}

func (s *service) add(c *net.TCPConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = append(s.conns, c)
}

// since returns the connections behind the first n.
func (s *service) since(n int) []*net.TCPConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns[n:]
}

// moverHost is the project's own host.
type moverHost struct {
	*host.Controller
	t     testing.TB
	conns []*net.TCPConn

	mu    sync.Mutex
	under map[*movertest.Command]*host.Command // guarded by mu
}

func (s *service) dial(t testing.TB) movertest.Host {
	t.Helper()
	before := len(s.since(0))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := host.Dial(ctx, s.URL, host.Options{Depth: movertest.Depth - 1})
	if err != nil {
		t.Fatal(err)
	}
	h := &moverHost{Controller: c, t: t, conns: s.since(before), under: make(map[*movertest.Command]*host.Command)}
	t.Cleanup(func() { _ = c.Close() })
	return h
}

// Start implements movertest.Host.
func (h *moverHost) Start(cs ...*movertest.Command) {
	list := make([]*host.Command, 0, len(cs))
	h.mu.Lock()
	for _, c := range cs {
		x := &host.Command{Opcode: c.Opcode, Fuse: c.Fuse, NSID: c.NSID, DWords: c.DWords, Out: c.Out, In: c.In}
		x.Done = func(*host.Command) {
			h.mu.Lock()
			delete(h.under, c)
			h.mu.Unlock()
			c.Err, c.CQE = x.Err, x.CQE
			c.Done(c)
		}
		h.under[c] = x
		list = append(list, x)
	}
	h.mu.Unlock()
	h.Controller.Start(0, list...)
}

// Abort implements movertest.Host.
func (h *moverHost) Abort(c *movertest.Command) bool {
	h.mu.Lock()
	x := h.under[c]
	h.mu.Unlock()
	if x == nil {
		return false
	}
	over, err := h.Controller.Abort(h.t.Context(), 0, x)
	if err != nil {
		h.t.Error(err)
	}
	return over
}

// Reset implements movertest.Host.
func (h *moverHost) Reset() {
	off := &host.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.PropertySet), DWords: [6]uint32{0, uint32(nvme.PropCC), nvme.CCEntrySizes}}
	if err := h.Admin(h.t.Context(), off); err != nil {
		h.t.Error(err)
	}
}

// Cut implements movertest.Host.
func (h *moverHost) Cut() {
	for _, c := range h.conns { // what has ended already says so
		_ = c.CloseRead()
		_ = c.CloseWrite()
	}
}
