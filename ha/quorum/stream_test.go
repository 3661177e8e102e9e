package quorum

import (
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// accept takes streams of one name at a node.
func (l *lab) accept(name, stream string) <-chan net.Conn {
	l.t.Helper()
	s, err := l.nodes[name].Listen(stream)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = s.Close() })
	conns := make(chan net.Conn, 10)
	go func() {
		for {
			c, err := s.Accept()
			if err != nil {
				close(conns)
				return
			}
			conns <- c
		}
	}()
	return conns
}

// refuses wants a stream to be refused with a text.
func (l *lab) refuses(from, to, stream, text string) {
	l.t.Helper()
	c, err := l.nodes[from].Dial(l.ctx(), to, stream)
	if err == nil {
		_ = c.Close()
	}
	if err == nil || !strings.Contains(err.Error(), text) {
		l.t.Errorf("a stream from %s to %s: %v, and it should say %q", from, to, err, text)
	}
}

// TestStreams: members have connections of their own beside consensus, in both directions, for those who listen.
func TestStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.three()
		conns := l.accept("b", "mirror x")
		if _, err := l.nodes["b"].Listen("mirror x"); err == nil {
			t.Error("two take the same streams")
		}
		l.refuses("a", "b", "mirror y", "no mirror y")
		a, err := l.nodes["a"].Dial(l.ctx(), "b", "mirror x")
		if err != nil {
			t.Fatal(err)
		}
		b := <-conns
		for _, c := range [][2]net.Conn{{a, b}, {b, a}} {
			got := make([]byte, 1<<20)
			go func() { _, _ = c[0].Write(make([]byte, len(got))) }()
			if _, err := io.ReadFull(c[1], got); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if _, err := b.Read(make([]byte, 1)); err == nil {
			t.Error("the other end goes on")
		}
		l.put("a", "x", 0, "consensus goes on")
		l.close()
	})
}

// TestStreamEndsWhileTheDiskIsBusy: who closes a stream does not wait until the log is on the disk. The goroutine that closes it may be the one that serves hosts.
func TestStreamEndsWhileTheDiskIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		l.accept("b", "mirror x")
		c, err := l.nodes["a"].Dial(l.ctx(), "b", "mirror x")
		if err != nil {
			t.Fatal(err)
		}
		a, hang := l.nodes["a"], make(chan struct{})
		a.do(func() { l.disks["a"].hang = hang })
		ended := make(chan error, 1)
		go func() {
			_, err := a.Put(l.ctx(), Key{KindUnit, "x"}, 0, nil)
			ended <- err
		}()
		if synctest.Wait(); a.saving.Load() == nil {
			t.Fatal("nothing waits for the disk")
		}
		began := time.Now()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("it has taken %v", took)
		}
		close(hang)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestStreamsOfFormerMembers: who was replaced has no stream any more, and gets none; nor does a clone.
func TestStreamsOfFormerMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		conns := l.accept("a", "mirror x")
		var copied *disk
		l.nodes["b"].do(func() { copied = l.disks["b"].cut(nil, 1) })
		l.put("a", "x", 0, "b has another batch than its clone")
		c, err := l.nodes["b"].Dial(l.ctx(), "a", "mirror x")
		if err != nil {
			t.Fatal(err)
		}
		at := <-conns
		clone, err := l.openAt("elsewhere", copied)
		if err != nil {
			t.Fatal(err)
		}
		l.nodes["clone"] = clone
		l.refuses("clone", "a", "mirror x", "another life")
		if err := l.nodes["w"].Leave(l.ctx(), "b", Replaced); err != nil {
			t.Fatal(err)
		}
		for _, end := range []net.Conn{c, at} {
			if _, err := end.Read(make([]byte, 1)); err == nil {
				t.Error("the stream of a former member goes on")
			}
		}
		l.refuses("b", "a", "mirror x", "replaced or removed")
	})
}
