package quorum

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"
)

// slow is a connection that takes 64 KiB in a second.
type slow struct{ net.Conn }

func (s slow) Write(b []byte) (int, error) {
	time.Sleep(time.Duration(len(b)) * time.Second / (64 << 10))
	return s.Conn.Write(b)
}

// TestSlowLink: over a link that takes 16 s for it a snapshot reaches a new member, and then a voter that was away. That one hears the leader meanwhile, so nobody
// is elected.
func TestSlowLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.put("a", "first", 0, strings.Repeat("x", MaxValue))
		l.net.wrap = func(c net.Conn) net.Conn { return slow{c} }
		for _, name := range []string{"b", "c"} { // no witness, which would lead whenever it is near
			l.join(name, "a")
		}
		for _, name := range []string{"a", "b", "c"} {
			l.voters(name, 3)
		}
		if err := l.nodes["b"].Close(); err != nil {
			t.Fatal(err)
		}
		for version := range uint64(5) {
			for _, n := range l.nodes {
				n.do(func() { n.core.log.keep, n.core.log.limit, n.core.log.retryAt = 1, 1, 0 }) // the next entry makes it forget the others
			}
			l.put("c", "third", version, "short")
		}
		was := l.nodes["a"].Status()
		leader := was.Leader
		l.open("b")
		l.until("b", "it hears the leader", func(s *Status) bool { return slices.Contains(s.Heard, leader) })
		began, has := time.Now(), false
		l.until("b", "the snapshot is there, or the leader is not", func(s *Status) bool {
			has = l.nodes["b"].core.state.Get(Key{KindUnit, "third"}) != nil
			return has || !slices.Contains(s.Heard, leader)
		})
		if took := time.Since(began); !has || took < 10*time.Second {
			t.Errorf("after %v b has the snapshot: %t; the link takes 16 s for it", took, has)
		}
		l.get("b", "third", "short")
		if s := l.nodes["a"].Status(); s.Leader != leader || s.Term != was.Term {
			t.Errorf("%d leads term %d, and %d did term %d", s.Leader, s.Term, leader, was.Term)
		}
	})
}

// TestSlowChange: over a link that takes 4 s for it a large change is made, from a voter that does not lead as well. All hear the leader meanwhile, so nobody is
// elected, and small changes follow.
func TestSlowChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.net.wrap = func(c net.Conn) net.Conn { return slow{c} }
		for _, name := range []string{"b", "c"} {
			l.join(name, "a")
		}
		for _, name := range []string{"a", "b", "c"} {
			l.voters(name, 3)
		}
		was := l.nodes["a"].Status()
		leader, follower := "a", "b"
		if was.Leader != was.Number {
			t.Fatalf("%d leads", was.Leader)
		}
		for i, from := range []string{leader, follower} {
			version, began := 2*uint64(i), time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			_, err := l.nodes[from].Put(ctx, Key{KindUnit, "x"}, version, make([]byte, 256<<10))
			cancel()
			if took := time.Since(began); err != nil || took < 3*time.Second {
				t.Errorf("a change from %s: %v after %v; the link takes 4 s for it", from, err, took)
			}
			l.put(from, "x", version+1, "short")
			for name, n := range l.nodes {
				if s := n.Status(); s.Leader != was.Leader || s.Term != was.Term {
					t.Errorf("%s: %d leads term %d, and %d did term %d", name, s.Leader, s.Term, was.Leader, was.Term)
				}
				l.get(name, "x", "short")
			}
		}
	})
}

// TestPatience: a long frame for a member of a former version, which takes no parts, comes over a slow link all the same.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		payload := make([]byte, 1<<20) // 16 s
		go func() {
			if err := write(slow{a}, frame(frameMessage, payload)); err != nil {
				t.Error(err)
			}
			_ = a.Close()
		}()
		kind, got, err := readFrame(bufio.NewReader(patient{b}), maxFrame)
		if err != nil || kind != frameMessage || len(got) != len(payload) {
			t.Errorf("a frame of type %d with %d octets: %v", kind, len(got), err)
		}
		_ = b.Close()
	})
}

// TestParts: a frame comes over in parts, also when another one takes its place in the middle.
func TestParts(t *testing.T) {
	payload := bytes.Repeat([]byte("0123456789"), 5000)
	first, second := &long{b: append([]byte{frameIdle}, payload...)}, &long{b: append([]byte{frameMessage}, payload...)}
	var p parts
	take := func(l *long) (kind uint8, b []byte) {
		t.Helper()
		part, n := l.next()
		l.sent += n
		kind, b, err := p.take(part[5:])
		if err != nil || part[4] != framePart || len(part) > partSize+6 {
			t.Fatalf("a part of %d octets, type %d: %v", len(part), part[4], err)
		}
		return kind, b
	}
	take(first)
	for {
		if kind, b := take(second); kind != 0 {
			if kind != frameMessage || !bytes.Equal(b, payload) {
				t.Errorf("a frame of type %d with %d octets came", kind, len(b))
			}
			break
		}
	}
	for _, b := range [][]byte{nil, {partFirst}, {0, 1}, {partLast, 1}} {
		if _, _, err := p.take(b); err == nil {
			t.Errorf("% x is taken", b)
		}
	}
	var err error
	for n := 0; err == nil; n += 1 << 20 {
		if n > maxFrame {
			t.Fatalf("%d octets are kept", n)
		}
		_, _, err = p.take(append([]byte{b2u(n == 0) * partFirst}, make([]byte, 1<<20)...))
	}
}

// TestSnapshotLostMeanwhile: the connection that a snapshot goes over is lost while the leader's disk takes nothing. When it does again, the
// member gets another one.
func TestSnapshotLostMeanwhile(t *testing.T) {
	cryptotest.SetGlobalRandom(t, 1)
	w := newWorld(1, nil)
	w.quiet = true
	a := w.host("a", 1, newDisk())
	a.create(true)
	w.connectAll()
	w.invite("b", func(*simNode) {})
	sends := func() (does bool) {
		a.core.raw.WithProgress(func(_ uint64, _ raft.ProgressType, p tracker.Progress) {
			does = does || p.State == tracker.StateSnapshot
		})
		return does
	}
	if !w.run(time.Minute, sends) {
		t.Fatalf("no snapshot is sent: %s", w.bad)
	}
	b := w.nodes[1]
	w.run(a.busy, nil) // then it leaves
	a.disk.full = true
	a.do(func() { _, _ = a.core.AddToken([]byte("a token")) })
	if !sends() || !a.core.isSilent() {
		t.Fatalf("it is sent: %v, while the disk is full: %v", sends(), a.core.isSilent())
	}
	b.kill()
	w.run(w.now+time.Second, nil)
	a.disk.full = false
	if !w.run(w.now+time.Minute, w.level) {
		t.Errorf("b is not level a minute later: %s", w.bad)
	}
}
