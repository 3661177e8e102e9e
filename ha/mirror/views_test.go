package mirror

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/backend"
	"oneshot/ha/quorum"
	"oneshot/ha/replica"
)

// members are a cluster whose connections are in memory, or are sockets.
type members struct {
	t     testing.TB
	real  bool
	disks map[string]*files
	nodes map[string]*quorum.Node

	mu        sync.Mutex
	listeners map[string]*pipes
	addrs     map[string]string
}

func (c *members) dial(ctx context.Context, name string) (net.Conn, error) {
	c.mu.Lock()
	l, addr := c.listeners[name], c.addrs[name]
	c.mu.Unlock()
	if c.real {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
	if l == nil {
		return nil, errors.New("nobody listens")
	}
	a, b := net.Pipe()
	select {
	case l.conns <- b:
		return a, nil
	case <-l.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *members) open(name string) {
	c.t.Helper()
	var listener net.Listener
	c.mu.Lock()
	if c.real {
		var err error
		if listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			c.t.Fatal(err)
		}
		c.addrs[name] = listener.Addr().String()
	} else {
		l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		c.listeners[name], listener = l, l
	}
	c.mu.Unlock()
	n, err := quorum.Open(quorum.Options{FS: c.disks[name], Listener: listener, Dial: c.dial, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		c.t.Fatal(err)
	}
	c.nodes[name] = n
}

// memberNames are those of a cluster, the witness last.
var memberNames = []string{"a", "b", "w"}

// newMembers founds a cluster of a, b and the witness w.
func newMembers(t testing.TB, real bool) *members {
	c := &members{t: t, real: real, listeners: map[string]*pipes{}, addrs: map[string]string{}, disks: map[string]*files{}, nodes: map[string]*quorum.Node{}}
	for _, name := range memberNames {
		c.disks[name] = newFiles()
	}
	if _, err := quorum.Init(c.disks["a"], "lab", "a", false, 0); err != nil {
		t.Fatal(err)
	}
	c.open("a")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, name := range memberNames[1:] {
		token, err := c.nodes["a"].NewToken(ctx)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := c.dial(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := quorum.Join(ctx, c.disks[name], conn, token, name, name == "w"); err != nil {
			t.Fatal(err)
		}
		c.open(name)
	}
	if _, err := c.nodes["a"].Await(ctx, func(s *quorum.Status) bool { return len(s.Voters) == 3 }); err != nil {
		t.Fatal(err)
	}
	return c
}

// close ends the cluster.
func (c *members) close() {
	for _, n := range c.nodes {
		if err := n.Close(); err != nil {
			c.t.Error(err)
		}
	}
}

// labOfMembers begins two copies, whose views members agree on. c is to be closed.
func labOfMembers(t *testing.T) (c *members, l *lab) {
	c, l = newMembers(t, false), newLab(t, 2)
	l.members = c
	l.views = func(n *node) Views { return ConsensusOn(c.nodes[memberNames[n.id]], "main", 0) }
	l.begin()
	return c, l
}

// TestConsensus: with the records of a real cluster of two copies and a witness the mirror survives its primary, and
// without a majority nobody takes over.
func TestConsensus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newMembers(t, false)
		l := newLab(t, 2)
		l.views = func(n *node) Views { return ConsensusOn(c.nodes[memberNames[n.id]], "main", 0) }
		l.begin()
		a, b := l.nodes[0], l.nodes[1]
		want := bytesOf(128<<10, 3)
		l.write(a, 0, want)
		a.kill()
		if err := c.nodes["a"].Close(); err != nil {
			t.Fatal(err)
		}
		l.await(b, "primary", func(s replica.State) bool { return s.Role == replica.Primary })
		l.expect(b, 0, want)
		want = bytesOf(128<<10, 4)
		l.write(b, 0, want)

		c.open("a")
		a.start()
		l.level(b)
		if err := c.nodes["w"].Close(); err != nil {
			t.Fatal(err)
		}
		b.kill()
		if err := c.nodes["b"].Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if s := a.mirror.State(); s.Role == replica.Primary {
			t.Errorf("a node without a majority is primary: %+v", s)
		}
		c.open("b")
		l.await(a, "primary", func(s replica.State) bool { return s.Role == replica.Primary })
		l.expect(a, 0, want)
		b.start()
		l.level(a)
		l.end()
		for _, name := range []string{"a", "b"} {
			if err := c.nodes[name].Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestStateDiskHangs: the disk of the primary's state, with the log of consensus and the metadata of its copy, answers nothing any more, and all else of the node is
// well. The other node serves within seconds, and the former primary refuses what it is asked for. When that disk answers again the copy is brought level.
func TestStateDiskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l := labOfMembers(t)
		defer c.close()
		a, b := l.nodes[0], l.nodes[1]
		want := bytesOf(128<<10, 3)
		l.write(a, 0, want)

		began := time.Now()
		log, copied := c.disks["a"].stall(), a.files.stall()
		l.serves(b)
		if took := time.Since(began); took > 12*time.Second {
			t.Errorf("the other node serves after %v", took)
		}
		l.expect(b, 0, want)
		l.await(a, "it knows that another one serves", func(s replica.State) bool { return s.Role == replica.Follower })
		if err := l.do(a, backend.Op{Kind: backend.Read, Len: 512, Segs: [][]byte{make([]byte, 512)}}); !isMoved(err) {
			t.Errorf("a read at the former primary: %v", err)
		}
		l.alone(b) // it waits for that disk no longer
		want = bytesOf(128<<10, 4)
		l.write(b, 0, want)
		l.flush(b)

		log()
		copied()
		l.level(b)
		l.expect(b, 0, want)
		l.end()
	})
}

// TestStuckIsNoSuccessor: the log of one node's member takes nothing, and all else of it is well. A primary that is drained, and knows, goes on: the other
// one would not learn that it has the office. When it takes part again it gets it.
func TestStuckIsNoSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l := labOfMembers(t)
		defer c.close()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		goOn := c.disks["b"].stall()
		defer goOn()
		if _, err := c.nodes["a"].Put(t.Context(), quorum.Key{Kind: quorum.KindCluster, Name: "x"}, 0, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := c.nodes["a"].Await(t.Context(), func(s *quorum.Status) bool { return len(s.Stuck) == 1 }); err != nil {
			t.Fatal(err)
		}
		drain := func(nodes replica.Nodes) {
			for _, n := range l.nodes {
				n.mirror.Drain(nodes)
			}
		}
		drain(replica.NodesOf(a.id, b.id))
		for range 20 {
			l.write(a, 0, bytesOf(4096, 1))
			time.Sleep(time.Second)
		}
		goOn()
		drain(replica.NodesOf(a.id))
		l.serves(b)
		l.level(b)
	})
}

// TestStuckPrimaryLetsGo: the log of the primary's member takes nothing, and all else of it is well. It serves on, and hands over by order, or when its
// owner says that it is unfit, as the owner of a stuck member does.
func TestStuckPrimaryLetsGo(t *testing.T) {
	for what, letGo := range map[string]func(ctx context.Context, a, b *node) error{
		"by order": func(ctx context.Context, a, b *node) error { return a.mirror.SwitchTo(ctx, b.id) },
		"unfit":    func(_ context.Context, a, _ *node) error { a.mirror.Drain(replica.NodesOf(a.id)); return nil },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, l := labOfMembers(t)
				defer c.close()
				defer l.end()
				a, b := l.nodes[0], l.nodes[1]
				goOn := c.disks["a"].stall()
				defer goOn()
				for range 20 {
					l.write(a, 0, bytesOf(4096, 1))
					time.Sleep(time.Second)
				}
				if c.nodes["a"].Status().Trouble == nil {
					t.Fatal("its member takes part")
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if err := letGo(ctx, a, b); err != nil {
					t.Fatal(err)
				}
				l.level(b)
			})
		})
	}
}

// TestSuccessorIsStuck: a primary is drained, and hands over to a node whose log has hung a moment before, which nobody knows yet. That one never learns
// that it has the office, so the first one serves again.
func TestSuccessorIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l := labOfMembers(t)
		defer c.close()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		goOn := c.disks["b"].stall()
		defer goOn()
		for _, n := range l.nodes {
			n.mirror.Drain(replica.NodesOf(a.id))
		}
		l.await(a, "it has handed over", func(s replica.State) bool { return s.View.Primary == b.id && s.Role == replica.Follower })
		l.alone(a)
		l.write(a, 0, bytesOf(4096, 1))
		goOn()
		l.level(b) // which has it after all
	})
}
