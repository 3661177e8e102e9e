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

	"oneshot/ha/quorum"
	"oneshot/ha/replica"
)

// members are a cluster whose connections are in memory.
type members struct {
	t     *testing.T
	disks map[string]*files
	nodes map[string]*quorum.Node

	mu        sync.Mutex
	listeners map[string]*pipes
}

func (c *members) dial(ctx context.Context, name string) (net.Conn, error) {
	c.mu.Lock()
	l := c.listeners[name]
	c.mu.Unlock()
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
	l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	c.mu.Lock()
	c.listeners[name] = l
	c.mu.Unlock()
	n, err := quorum.Open(quorum.Options{FS: c.disks[name], Listener: l, Dial: c.dial, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		c.t.Fatal(err)
	}
	c.nodes[name] = n
}

// newMembers founds a cluster of a, b and the witness w.
func newMembers(t *testing.T) *members {
	c := &members{t: t, listeners: map[string]*pipes{}, disks: map[string]*files{}, nodes: map[string]*quorum.Node{}}
	names := []string{"a", "b", "w"}
	for _, name := range names {
		c.disks[name] = newFiles()
	}
	if _, err := quorum.Init(c.disks["a"], "lab", "a", false, 0); err != nil {
		t.Fatal(err)
	}
	c.open("a")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, name := range names[1:] {
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

// TestConsensus: with the records of a real cluster of two copies and a witness the mirror survives its primary, and
// without a majority nobody takes over.
func TestConsensus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newMembers(t)
		l := newLab(t, 2)
		l.views = func(n *node) Views { return ConsensusOn(c.nodes[[]string{"a", "b"}[n.id]], "main") }
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
