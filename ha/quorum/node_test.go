package quorum

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"oneshot/ha/replica"
)

// network connects nodes of one test in memory.
type network struct {
	mu        sync.Mutex
	listeners map[string]*listener
	wrap      func(net.Conn) net.Conn
	corrupted int
	away      string                 // the machine whose cable is pulled; empty: none
	conns     map[net.Conn][2]string // between which machines
}

type listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }

func (w *network) listen(name string) *listener {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := &listener{conns: make(chan net.Conn), closed: make(chan struct{})}
	w.listeners[name] = l
	return l
}

// pull pulls the cable of a machine, and of no other one.
func (w *network) pull(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.away = name
	for c, ends := range w.conns {
		if slices.Contains(ends[:], name) {
			_ = c.Close()
			delete(w.conns, c)
		}
	}
}

// dialFrom is the way from one machine to others.
func (w *network) dialFrom(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, name string) (net.Conn, error) {
		w.mu.Lock()
		away := w.away
		w.mu.Unlock()
		if away != "" && (from == away || name == away) {
			return nil, errors.New("no route to host")
		}
		c, err := w.dial(ctx, name)
		if err == nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.conns[c] = [2]string{from, name}
		}
		return c, err
	}
}

func (w *network) dial(ctx context.Context, name string) (net.Conn, error) {
	w.mu.Lock()
	l, wrap := w.listeners[name], w.wrap
	w.mu.Unlock()
	if l == nil {
		return nil, errors.New("nobody listens")
	}
	a, b := net.Pipe()
	select {
	case l.conns <- b:
	case <-l.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if wrap != nil {
		return wrap(a), nil
	}
	return a, nil
}

// lab is a cluster in a test.
type lab struct {
	t     *testing.T
	net   *network
	disks map[string]*disk
	nodes map[string]*Node
}

func newLab(t *testing.T) *lab {
	l := &lab{t, &network{listeners: map[string]*listener{}, conns: map[net.Conn][2]string{}}, map[string]*disk{}, map[string]*Node{}}
	l.disks["a"] = newDisk()
	if _, err := Init(l.disks["a"], "lab", "a", false, 0); err != nil {
		t.Fatal(err)
	}
	l.open("a")
	return l
}

func (l *lab) open(name string) *Node {
	l.t.Helper()
	n, err := l.openAt(name, l.disks[name])
	if err != nil {
		l.t.Fatal(err)
	}
	l.nodes[name] = n
	return n
}

func (l *lab) openAt(name string, d *disk) (*Node, error) {
	logger := slog.New(slog.DiscardHandler)
	if os.Getenv("ONESHOT_SIM_LOG") != "" {
		logger = slog.New(slog.NewTextHandler(l.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", name)
	}
	return Open(Options{FS: d, Listener: l.net.listen(name), Dial: l.net.dialFrom(name), Log: logger})
}

// join makes a member of a new machine, through node a.
func (l *lab) join(name, through string) *Node {
	l.t.Helper()
	l.disks[name] = newDisk()
	if err := Join(l.ctx(), l.disks[name], l.dial(through), l.token(through), name, name == "w"); err != nil {
		l.t.Fatal(err)
	}
	return l.open(name)
}

func (l *lab) token(through string) Token {
	l.t.Helper()
	t, err := l.nodes[through].NewToken(l.ctx())
	if err != nil {
		l.t.Fatal(err)
	}
	if t, err = ParseToken(t.String()); err != nil {
		l.t.Fatal(err)
	}
	return t
}

func (l *lab) dial(name string) net.Conn {
	l.t.Helper()
	conn, err := l.net.dial(l.ctx(), name)
	if err != nil {
		l.t.Fatal(err)
	}
	return conn
}

// ctx ends after a minute, which is long: time is that of the bubble.
func (l *lab) ctx() context.Context {
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	l.t.Cleanup(cancel)
	return ctx
}

// short is ctx for a second.
func (l *lab) short() context.Context {
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Second)
	l.t.Cleanup(cancel)
	return ctx
}

func (l *lab) close() {
	for _, n := range l.nodes {
		if err := n.Close(); err != nil {
			l.t.Error(err)
		}
	}
}

// until waits until something holds of a node.
func (l *lab) until(name, what string, holds func(*Status) bool) {
	l.t.Helper()
	if s, err := l.nodes[name].Await(l.ctx(), holds); err != nil {
		l.t.Fatalf("%s: not yet: %s: %+v", name, what, s)
	}
}

// inTrouble waits until a node takes no part, because of something that text is in.
func (l *lab) inTrouble(name, text string) {
	l.t.Helper()
	l.until(name, "in trouble: "+text, func(s *Status) bool { return s.Trouble != nil && strings.Contains(s.Trouble.Error(), text) })
}

func (l *lab) voters(name string, want int) {
	l.t.Helper()
	l.until(name, fmt.Sprintf("%d vote", want), func(s *Status) bool { return len(s.Voters) == want && len(s.Former) == 0 })
}

// three makes a cluster of a, b and w, of which each can be lost: who has not heard that the change of the voters is over
// still needs the majority of the former ones, which is a.
func (l *lab) three() {
	l.join("b", "a")
	l.join("w", "a")
	for _, name := range []string{"a", "b", "w"} {
		l.voters(name, 3)
	}
}

func (l *lab) put(name, key string, version uint64, value string) {
	l.t.Helper()
	if r, err := l.nodes[name].Put(l.ctx(), Key{KindUnit, key}, version, []byte(value)); err != nil || r.Version != version+1 {
		l.t.Fatalf("%s, version %d of %s: %v", name, version+1, key, err)
	}
}

func (l *lab) get(name, key, want string) {
	l.t.Helper()
	r, err := l.nodes[name].Get(l.ctx(), Key{KindUnit, key})
	if err != nil || r == nil || string(r.Value) != want {
		l.t.Fatalf("%s has %v of %s: %v", name, r, key, err)
	}
}

// TestNodes: a cluster is made, two machines join, records are changed and read on any of them, watchers see all
// changes in order, and one after the other is lost and comes back.
func TestNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.put("a", "first", 0, "alone")
		l.three()
		var seen []string
		l.nodes["w"].Watch(func(r *Record) { seen = append(seen, fmt.Sprintf("%s %d", r.Name, r.Version)) })
		l.put("b", "unit", 0, "one")
		l.get("w", "unit", "one")
		l.put("w", "unit", 1, "two")
		l.get("a", "unit", "two")
		if r, err := l.nodes["a"].Put(l.ctx(), Key{KindUnit, "unit"}, 1, []byte("late")); err != ErrConflict || string(r.Value) != "two" {
			t.Errorf("a conflict: %v %v", r, err)
		}
		if err := l.nodes["a"].Delete(l.ctx(), Key{KindUnit, "first"}, 1); err != nil {
			t.Error(err)
		}
		l.until("w", "all is seen", func(*Status) bool { return strings.Join(seen, ", ") == "first 1, unit 1, unit 2, first 2" })
		for i, name := range []string{"a", "b", "w"} {
			if err := l.nodes[name].Close(); err != nil {
				t.Fatal(err)
			}
			other := []string{"b", "w", "a"}[i]
			l.put(other, "unit", uint64(i+2), "without "+name)
			l.open(name)
			l.get(name, "unit", "without "+name)
		}
		s := l.nodes["b"].Status()
		if s.Cluster != "lab" || s.Leader == 0 || s.Trouble != nil || len(s.Members) != 3 || !s.Members[2].Witness {
			t.Errorf("%+v", s)
		}
	})
}

// TestNoMajority: without a majority nothing changes and nothing is read; what was asked for ends when the asker does.
func TestNoMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		for _, name := range []string{"b", "w"} {
			if err := l.nodes[name].Close(); err != nil {
				t.Fatal(err)
			}
			delete(l.nodes, name)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if _, err := l.nodes["a"].Put(ctx, Key{KindUnit, "x"}, 0, nil); err != ErrUnknown {
			t.Errorf("Put: %v", err)
		}
		if _, err := l.nodes["a"].Get(ctx, Key{KindUnit, "x"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Get: %v", err)
		}
		if leader := l.nodes["a"].Status().Leader; leader != 0 {
			t.Errorf("the leader is %d", leader)
		}
		l.open("b")
		l.put("a", "y", 0, "again")
	})
}

// TestReplace: a machine is lost for good, another one takes its name and its vote, and the former one is refused.
func TestReplace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		old := l.disks["b"]
		if err := l.nodes["b"].Close(); err != nil {
			t.Fatal(err)
		}
		conn, err := l.net.dial(l.ctx(), "a")
		if err != nil {
			t.Fatal(err)
		}
		token, err := l.nodes["a"].NewToken(l.ctx())
		if err != nil {
			t.Fatal(err)
		}
		if err := Join(l.ctx(), newDisk(), conn, token, "b", false); err == nil || !strings.Contains(err.Error(), "target ha replace b") {
			t.Errorf("the name of a member: %v", err)
		}
		for range 2 { // the end of the first one may not be known
			if err := l.nodes["w"].Leave(l.ctx(), "b", Replaced); err != nil {
				t.Fatal(err)
			}
		}
		l.join("b", "w")
		l.until("a", "the new one votes", func(s *Status) bool { return len(s.Members) == 3 && fmt.Sprint(s.Voters) == "[1 3 4]" })
		l.put("b", "x", 0, "one")
		former, err := l.openAt("former", old)
		if err != nil {
			t.Fatal(err)
		}
		l.nodes["former"] = former
		l.inTrouble("former", "was replaced or removed")
		l.put("a", "x", 1, "two")
	})
}

// TestImpostors: a clone of a node is refused while that one runs, and a node is refused that was set back; both are
// told what to do. A state directory that is lost is no member.
func TestImpostors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		l.put("a", "x", 0, "one")
		var copied *disk
		l.nodes["b"].do(func() { copied = l.disks["b"].cut(nil, 1) })
		l.put("a", "x", 1, "two")
		clone, err := l.openAt("elsewhere", copied.cut(nil, 1))
		if err != nil {
			t.Fatal(err)
		}
		l.nodes["clone"] = clone
		l.inTrouble("clone", "target ha replace b")
		l.put("b", "x", 2, "three")
		if err := l.nodes["b"].Close(); err != nil {
			t.Fatal(err)
		}
		l.disks["b"] = copied
		l.open("b")
		l.inTrouble("b", "set back")
		l.put("a", "x", 3, "four")
		if _, err := l.openAt("lost", newDisk()); !errors.Is(err, ErrNoLog) || !strings.Contains(err.Error(), "target ha replace") {
			t.Errorf("a lost directory: %v", err)
		}
	})
}

// TestCloneOfUnheard: a clone of a node begins at another address while the node is cut off from the others, who could not tell it from the node in a new life.
// They do not take it, so the node is one of them when its cable is back. At the node's address it is the node.
func TestCloneOfUnheard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		l.put("a", "x", 0, "one")
		l.get("b", "x", "one")
		time.Sleep(time.Minute) // all have heard how far the log of b has come
		l.net.pull("b")
		l.until("a", "b is not heard", func(s *Status) bool { return len(s.Heard) == 2 })
		l.until("w", "b is not heard", func(s *Status) bool { return len(s.Heard) == 2 })
		var copied *disk
		l.nodes["b"].do(func() { copied = l.disks["b"].cut(nil, 1) })
		clone, err := l.openAt("elsewhere", copied)
		if err != nil {
			t.Fatal(err)
		}
		l.nodes["clone"] = clone
		l.until("clone", "it is told why it is not taken", func(s *Status) bool {
			return slices.ContainsFunc(slices.Collect(maps.Values(s.Broken)), func(why string) bool { return strings.Contains(why, "if this machine is a clone") })
		})
		time.Sleep(time.Minute)
		if s := l.nodes["a"].Status(); len(s.Heard) != 2 || clone.Status().Leader != 0 {
			t.Errorf("%v are heard, and for the clone %d leads", s.Heard, clone.Status().Leader)
		}
		l.net.pull("")
		l.until("a", "b is back", func(s *Status) bool { return len(s.Heard) == 3 })
		l.put("b", "x", 1, "two")
		if s := l.nodes["b"].Status(); s.Trouble != nil {
			t.Errorf("b is refused, because of its clone: %v", s.Trouble)
		}
	})
}

// TestFullWitness: a witness whose disk is full says so, and takes no part; the others go on, and so does it when
// there is room.
func TestFullWitness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		w := l.nodes["w"]
		w.do(func() { l.disks["w"].full = true })
		l.put("a", "x", 0, "one")
		l.inTrouble("w", "no space left")
		l.put("b", "x", 1, "two")
		w.do(func() { l.disks["w"].full = false })
		l.until("w", "back", func(s *Status) bool { return s.Trouble == nil })
		if err := l.nodes["a"].Close(); err != nil { // now it is needed
			t.Fatal(err)
		}
		delete(l.nodes, "a")
		l.put("w", "x", 2, "three")
		l.get("b", "x", "three")
	})
}

// TestFullDiskHandsOn: a node whose disk is full cannot know whether its change has taken place. But it does, so the node can give up what it has to.
func TestFullDiskHandsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		b := l.nodes["b"]
		b.do(func() { l.disks["b"].full = true })
		l.put("a", "x", 0, "one")
		l.inTrouble("b", "no space left")
		ended := make(chan error, 1)
		go func() {
			_, err := b.Put(l.ctx(), Key{KindUnit, "x"}, 1, []byte("two"))
			ended <- err
		}()
		for text := ""; text != "two"; time.Sleep(time.Second) {
			r, err := l.nodes["a"].Get(l.ctx(), Key{KindUnit, "x"})
			if err != nil {
				t.Fatal(err)
			}
			text = string(r.Value)
		}
		b.do(func() { l.disks["b"].full = false })
		if err := <-ended; err != nil {
			t.Error(err)
		}
		l.get("b", "x", "two")
	})
}

// TestDiskHangs: the disk of a node's log answers nothing any more. The node says so, whoever asks it for a change is told in time, and when the
// disk answers again the node takes part.
func TestDiskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		b, hang := l.nodes["b"], make(chan struct{})
		b.do(func() { l.disks["b"].hang = hang })
		l.put("a", "x", 0, "one") // b has to save it
		soon := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			t.Cleanup(cancel)
			return ctx
		}
		const says = "the disk of the consensus log has not answered for"
		_, _ = b.NewToken(soon()) // it may have begun before
		if _, err := b.NewToken(soon()); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("a token: %v", err)
		}
		if _, err := b.Get(soon(), DrainedKey); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("a read: %v", err)
		}
		if s, err := b.Await(soon(), func(*Status) bool { return false }); !errors.Is(err, context.DeadlineExceeded) || len(s.Members) != 3 {
			t.Errorf("%+v %v", s, err)
		}
		if s := b.Status(); s.Trouble == nil || !strings.Contains(s.Trouble.Error(), says) || len(s.Members) != 3 {
			t.Errorf("%+v", s)
		}
		if all := b.Records(KindNode); len(all) != 0 {
			t.Errorf("%+v", all)
		}
		l.until("a", "it knows that b is stuck", func(s *Status) bool { return slices.Equal(s.Stuck, []uint64{b.Status().Number}) })
		l.until("b", "it hears the others", func(s *Status) bool { return len(s.Heard) == 3 })
		text := ""
		for n := 0; text != "one of many" && n < 100; n++ { // as a mirror that wants to get rid of its office asks again and again
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			_, _ = b.Put(ctx, Key{KindUnit, "x"}, 1, []byte("one of many"))
			cancel()
			r, err := l.nodes["a"].Get(l.ctx(), Key{KindUnit, "x"})
			if err != nil {
				t.Fatal(err)
			}
			text = string(r.Value)
		}
		if text != "one of many" {
			t.Errorf("of 100 changes that b has tried for 100 ms each none was made: %q", text)
		}
		close(hang)
		l.until("b", "back", func(s *Status) bool { return s.Trouble == nil && len(s.Heard) == 3 })
		if !t.Failed() {
			l.put("b", "x", 2, "two")
		}
	})
}

// TestBeatsNeedNoDisk: heartbeats, which change nothing, are not handed to the goroutine that waits for the disk.
func TestBeatsNeedNoDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		l.put("a", "x", 0, "one")
		l.get("b", "x", "one")
		time.Sleep(10 * time.Second) // all are known to each other
		b, handed := l.nodes["b"], 0
		b.do(func() {
			hand := b.core.onDisk
			b.core.onDisk = func(f func() error) (bool, error) {
				handed++
				return hand(f)
			}
		})
		time.Sleep(10 * time.Second) // each second has 16 heartbeats
		b.do(func() {
			if handed > 0 {
				t.Errorf("the disk was needed %d times, and there was nothing to save", handed)
			}
		})
		l.put("a", "x", 1, "two")
		l.get("b", "x", "two")
		b.do(func() {
			if handed == 0 {
				t.Error("a change was saved without the goroutine that waits for the disk")
			}
		})
	})
}

// TestChangeWaitsForTheDisk: what was asked for while the disk hung, by who waits no more, does not happen afterwards.
func TestChangeWaitsForTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		a, hang := l.nodes["a"], make(chan struct{})
		l.put("a", "x", 0, "one") // it leads
		a.do(func() { l.disks["a"].hang = hang })
		soon := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), hangsAfter/4)
			t.Cleanup(cancel)
			return ctx
		}
		if _, err := a.Put(soon(), Key{KindCluster, "first"}, 0, nil); !errors.Is(err, ErrUnknown) { // it waits for the disk
			t.Error(err)
		}
		if _, err := a.Put(soon(), Key{KindCluster, "second"}, 0, nil); err == nil || errors.Is(err, ErrUnknown) {
			t.Error(err)
		}
		close(hang)
		if r, err := a.Get(l.ctx(), Key{KindCluster, "second"}); r != nil || err != nil {
			t.Errorf("%+v %v", r, err)
		}
	})
}

// bad is a connection that changes a byte now and then.
type bad struct {
	net.Conn
	w    *network
	sent int
}

func (b *bad) Write(p []byte) (int, error) {
	b.sent += len(p)
	b.w.mu.Lock()
	if b.sent > 8000 && b.w.corrupted < 12 {
		b.sent = 0
		b.w.corrupted++
		p = append([]byte(nil), p...)
		p[len(p)/2] ^= 0x10
	}
	b.w.mu.Unlock()
	return b.Conn.Write(p)
}

// TestCorruptBytes: bytes that change on their way end the connection, and nothing else.
func TestCorruptBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.net.wrap = func(c net.Conn) net.Conn { return &bad{Conn: c, w: l.net} }
		l.three()
		for i := range uint64(20) {
			l.put([]string{"a", "b", "w"}[i%3], "x", i, strings.Repeat(fmt.Sprint(i), 900))
		}
		l.net.mu.Lock()
		defer l.net.mu.Unlock()
		if l.net.corrupted < 12 {
			t.Errorf("%d bytes have changed", l.net.corrupted)
		}
	})
}

// TestStrangers: who has no certificate of the cluster gets nothing, whatever it sends.
func TestStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		other := newDisk()
		if _, err := Init(other, "lab", "a", false, 0); err != nil { // the same names, another authority
			t.Fatal(err)
		}
		stranger, err := OpenLog(other, random)
		if err != nil {
			t.Fatal(err)
		}
		with, err := stranger.id.tlsConfig()
		if err != nil {
			t.Fatal(err)
		}
		with.VerifyConnection = nil
		without := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocolName}}
		old := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocolName}, MaxVersion: tls.VersionTLS12}
		var own Hello // to which a member would get an answer
		l.nodes["a"].do(func() { own = l.nodes["a"].core.Hello() })
		hello := frame(frameHello, own.encode())
		join := joinRequest{make([]byte, 16), "b", false, nil}
		for _, c := range []struct {
			name   string
			config *tls.Config
			send   []byte
			lives  time.Duration
		}{
			{"garbage", nil, []byte(strings.Repeat("GET / HTTP/1.1\r\n", 100)), 0},
			{"silence", nil, nil, handshakeIn},
			{"TLS 1.2", old, hello, 0},
			{"a certificate of others", with, hello, 0},
			{"a hello without a certificate", without, frame(frameHello, new(Hello).encode()), 0},
			{"a message without a hello", without, frame(frameMessage, make([]byte, 100)), 0},
			{"half a frame", without, hello[:7], handshakeIn},
			{"silence in TLS", without, nil, handshakeIn},
			{"a frame that is too long", without, []byte{0, 1, 0, 0, frameJoin}, 0},
			{"a join without a key", without, frame(frameJoin, join.appendTo(nil)), 0},
		} {
			conn, err := l.net.dial(l.ctx(), "a")
			if err != nil {
				t.Fatal(err)
			}
			if c.config != nil {
				conn = tls.Client(conn, c.config)
			}
			began := time.Now()
			go func() { _, _ = conn.Write(c.send) }()
			b, _ := io.ReadAll(conn) // nil: the raw bytes, which may be an alert
			if c.config == nil && len(b) == 7 && b[0] == 21 {
				b = nil
			}
			if len(b) > 0 {
				t.Errorf("%s: got % x", c.name, b)
			}
			if d := time.Since(began); d != c.lives {
				t.Errorf("%s: the connection lived for %v, and should for %v", c.name, d, c.lives)
			}
			if c, ok := conn.(*tls.Conn); ok && c.ConnectionState().HandshakeComplete && c.ConnectionState().Version != tls.VersionTLS13 {
				t.Error("it speaks TLS 1.2")
			}
			_ = conn.Close()
		}
		if s := l.nodes["a"].Status(); len(s.Members) != 1 || s.Trouble != nil {
			t.Errorf("%+v", s)
		}
	})
}

// TestLateHello: what a member has said over one connection overtakes the hello that it sent before over another one, and
// it is no worse for that. The same hello over a connection that begins afterwards is that of a log that was set back.
func TestLateHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		a, b := l.nodes["a"], l.nodes["b"]
		config, err := b.core.log.id.tlsConfig()
		if err != nil {
			t.Fatal(err)
		}
		connect := func() *tls.Conn {
			conn := tls.Client(l.dial("a"), config)
			if err := conn.Handshake(); err != nil {
				t.Fatal(err)
			}
			return conn
		}
		answer := func(conn *tls.Conn, h Hello) uint8 {
			defer conn.Close()
			if _, err := conn.Write(frame(frameHello, h.encode())); err != nil {
				t.Fatal(err)
			}
			kind, _, err := readFrame(bufio.NewReader(conn), maxGreeting)
			if err != nil {
				t.Fatal(err)
			}
			return kind
		}
		slow := connect()
		var h Hello
		b.do(func() { h = b.core.Hello() })
		l.put("a", "x", 0, "1")
		synctest.Wait()
		var seen Seen
		a.do(func() { seen = a.core.Seen()[h.Number] })
		if seen.Batch <= h.Batch {
			t.Fatalf("a has heard of batch %d of b, and not of one after %d", seen.Batch, h.Batch)
		}
		if kind := answer(slow, h); kind != frameHello {
			t.Errorf("a frame of type %d answers a hello that is late", kind)
		}
		if kind := answer(connect(), h); kind != frameRefusal {
			t.Errorf("a frame of type %d answers a hello of an older log", kind)
		}
	})
}

// TestTokens: a token is good once, for its cluster.
func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		good, err := l.nodes["a"].NewToken(l.ctx())
		if err != nil {
			t.Fatal(err)
		}
		join := func(token Token, name string) error {
			conn, err := l.net.dial(l.ctx(), "a")
			if err != nil {
				t.Fatal(err)
			}
			return Join(l.ctx(), newDisk(), conn, token, name, false)
		}
		wrong, other := good, good
		wrong.secret[3]++
		other.authority[3]++
		for _, c := range []struct {
			token Token
			name  string
			text  string
		}{
			{wrong, "b", "target ha token"},
			{other, "b", "another cluster"},
			{good, "b\n", "letters, digits"},
			{good, "b", ""},
			{good, "c", "was used"},
		} {
			err := join(c.token, c.name)
			if (err == nil) != (c.text == "") || err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("%q: %v, and should say %q", c.name, err, c.text)
			}
		}
		for _, text := range []string{"", "abc", good.String() + "aa", strings.Repeat("1", 52)} {
			if _, err := ParseToken(text); err == nil {
				t.Errorf("%q is a token", text)
			}
		}
	})
}

// TestStrangersChangeNothing: who asks to join without a token has nothing written to any disk, however often. Who has one that was made elsewhere is taken in.
func TestStrangersChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		wrong := l.token("a")
		wrong.secret[3]++
		last := func() (n uint64) {
			a := l.nodes["a"]
			a.do(func() { n, _ = a.core.log.store.LastIndex() })
			return n
		}
		before := last()
		for range 10 {
			if err := Join(l.ctx(), newDisk(), l.dial("b"), wrong, "c", false); err == nil || !strings.Contains(err.Error(), "target ha token") {
				t.Errorf("%v", err)
			}
		}
		if after := last(); after != before {
			t.Errorf("the log had %d entries, and has %d", before, after)
		}
		if err := Join(l.ctx(), newDisk(), l.dial("b"), l.token("a"), "c", false); err != nil {
			t.Error(err)
		}
	})
}

// TestConnectionsAreBounded: strangers who say nothing take up to so many places, and for a while.
func TestConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		var conns []net.Conn
		for range maxConns + 10 {
			c, err := l.net.dial(l.ctx(), "a")
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
		}
		synctest.Wait()
		a := l.nodes["a"].tls
		a.mu.Lock()
		n := len(a.conns)
		a.mu.Unlock()
		if n != maxConns {
			t.Errorf("%d connections", n)
		}
		l.three() // members find room all the same
		for range maxConns {
			c, err := l.net.dial(l.ctx(), "a")
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
		}
		synctest.Wait()
		l.nodes["a"].do(func() { n = len(l.nodes["a"].incoming) })
		if n != 2 {
			t.Errorf("strangers have left %d members", n)
		}
		l.put("b", "x", 0, "one")
		for _, c := range conns {
			_ = c.Close()
		}
	})
}

// TestFrames: memory for a frame comes with its bytes, and a queue has a bound.
func TestFrames(t *testing.T) {
	r := bufio.NewReader(io.MultiReader(strings.NewReader("\x01\x7f\xff\xff\x03"), strings.NewReader("short")))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, _, err := readFrame(r, maxFrame); err != io.ErrUnexpectedEOF {
		t.Error(err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("%d bytes for a frame of which 6 came", n)
	}
	p := &peer{wake: make(chan struct{}, 1), linked: true}
	sent := 0
	for p.send(raftpb.MsgApp, make([]byte, longFrame)) {
		sent++
	}
	if sent != maxQueue/longFrame {
		t.Errorf("%d frames wait", sent)
	}
	p.take()
	for _, c := range []struct {
		kind   raftpb.MessageType
		octets int
		want   bool
	}{
		{raftpb.MsgApp, 1 << 20, true},
		{raftpb.MsgApp, 1 << 20, false},
		{raftpb.MsgProp, 1 << 20, false},
		{raftpb.MsgApp, 100, false}, // it would come before the other entries
		{raftpb.MsgHeartbeat, 100, true},
		{raftpb.MsgSnap, 100, true},
		{raftpb.MsgApp, 100, false},
	} {
		if got := p.send(c.kind, make([]byte, c.octets)); got != c.want {
			t.Errorf("%v of %d octets is taken: %v", c.kind, c.octets, got)
		}
	}
	if !p.link(false) {
		t.Error("nobody hears that a snapshot is lost")
	}
	if p.send(raftpb.MsgHeartbeat, nil) || p.bytes != 0 {
		t.Error("what nobody takes is kept")
	}
}

// TestJoinAgain: a machine that loses its power at any step of a join, or loses the answer, can repeat it: it becomes
// one member, with a token that it has used before or with a new one.
func TestJoinAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for i, done := 0, false; !done; i++ { // each step, with all of what was not durable or nothing of it, and both tokens
			step := i / 4
			l := newLab(t)
			first, second := l.token("a"), l.token("a")
			join := func(d *disk, token Token) (err error, crashed bool) {
				defer func() {
					if r := recover(); r == (powerCut{}) {
						crashed = true
					} else if r != nil {
						panic(r)
					}
				}()
				return Join(l.ctx(), d, l.dial("a"), token, "b", false), false
			}
			d := newDisk()
			d.steps = step
			err, crashed := join(d, first)
			if !crashed {
				if err != nil {
					t.Fatalf("step %d: %v", step, err)
				}
				done = i%4 == 3
			}
			d = d.cut(nil, float64(i%2))
			if _, err := OpenLog(d, random); errors.Is(err, ErrNoLog) {
				if err, _ := join(d, []Token{first, second}[i/2%2]); err != nil {
					t.Fatalf("again, after step %d: %v", step, err)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			if err, _ := join(d, second); err != ErrMember {
				t.Fatalf("a member joins: %v", err)
			}
			l.disks["b"] = d
			l.open("b")
			l.until("a", "b is level", func(s *Status) bool { return len(s.Heard) == 2 })
			if s := l.nodes["a"].Status(); len(s.Members) != 2 {
				t.Fatalf("after step %d: %+v", step, s.Members)
			}
			l.close()
			if done && step < 10 {
				t.Errorf("only %d steps", step)
			}
		}
	})
}

// TestEnroll: a machine that is a member of a cluster has another one take it in. It is the member that it was until it begins to be the other one, and after a
// power cut at any step it can ask again, with another token, and is one member.
func TestEnroll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for i, done := 0, false; !done; i++ { // each step, with all of what was not durable or nothing of it
			l := newLab(t)
			tokens := []Token{l.token("a"), l.token("a")}
			enroll := func(d *disk, token Token) (crashed bool) {
				defer func() {
					if r := recover(); r == (powerCut{}) {
						crashed = true
					} else if r != nil {
						panic(r)
					}
				}()
				e, err := Enroll(l.ctx(), d, l.dial("a"), token, "b", false)
				if err == nil {
					err = e.Begin()
				}
				if err != nil {
					t.Fatalf("step %d: %v", i/2, err)
				}
				return false
			}
			other := newLab(t)
			other.join("b", "a")
			other.close()
			d := other.disks["b"]
			former, err := Examine(d)
			if err != nil {
				t.Fatal(err)
			}
			d.steps = i / 2
			done = !enroll(d, tokens[0]) && i%2 == 1
			d = d.cut(nil, float64(i%2))
			switch e, err := Examine(d); {
			case errors.Is(err, ErrNoLog):
				if err := Join(l.ctx(), d, l.dial("a"), tokens[1], "b", false); err != nil {
					t.Fatalf("again, after step %d: %v", i/2, err)
				}
			case err != nil:
				t.Fatal(err)
			case e.Identity().Cluster == former.Identity().Cluster:
				enroll(d, tokens[1])
			}
			l.disks["b"] = d
			l.open("b")
			l.until("a", "b is level", func(s *Status) bool { return len(s.Heard) == 2 })
			if s := l.nodes["a"].Status(); len(s.Members) != 2 {
				t.Fatalf("after step %d: %+v", i/2, s.Members)
			}
			l.close()
		}
	})
}

// TestEnrollRefused: who is a member still, and asks to be taken in anew, is refused, and stays that. When it was replaced it is taken in, though a power cut has
// left the key with which it became the former one.
func TestEnrollRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		if err := l.join("b", "a").Close(); err != nil {
			t.Fatal(err)
		}
		delete(l.nodes, "b")
		if _, err := Enroll(l.ctx(), l.disks["b"], l.dial("a"), l.token("a"), "b", false); err == nil || !strings.Contains(err.Error(), "is a member already") {
			t.Errorf("%v", err)
		}
		n := l.open("b")
		l.until("a", "b is level", func(s *Status) bool { return len(s.Heard) == 2 })
		was := n.Status().Number
		if err := errors.Join(n.Close(), l.nodes["a"].Leave(l.ctx(), "b", Replaced)); err != nil {
			t.Fatal(err)
		}
		d := l.disks["b"]
		former, err := Examine(d)
		if err != nil {
			t.Fatal(err)
		}
		key := former.Identity().Key
		f, err := d.Create(joiningName)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(binary.BigEndian.AppendUint32(appendBytes(nil, key), crc32.Checksum(key, castagnoli)), 0); err != nil {
			t.Fatal(err)
		}
		e, err := Enroll(l.ctx(), d, l.dial("a"), l.token("a"), "b", false)
		if err == nil {
			err = e.Begin()
		}
		if err != nil {
			t.Fatal(err)
		}
		if now := l.open("b").Status().Number; now == was {
			t.Errorf("it is number %d again", now)
		}
	})
}

// TestJoinWithoutAnAnswer: the connection ends before the answer comes; the same machine asks again, under another name too.
func TestJoinWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		token, d := l.token("a"), newDisk()
		ctx, cancel := context.WithCancel(l.ctx())
		joined := make(chan error)
		conn, there := net.Pipe()
		l.net.listeners["a"].conns <- &mute{Conn: there, writes: 1} // the handshake's
		go func() { joined <- Join(ctx, d, conn, token, "b", false) }()
		l.until("a", "b is a member", func(s *Status) bool { return len(s.Members) == 2 })
		cancel()
		if err := <-joined; err == nil || !strings.Contains(err.Error(), "try again") {
			t.Fatalf("%v", err)
		}
		if err := Join(l.ctx(), d, l.dial("a"), token, "c", false); err == nil || !strings.Contains(err.Error(), "has joined as b") {
			t.Errorf("another name: %v", err)
		}
		if err := Discard(d); err != nil { // target ha rejoin, once more
			t.Fatal(err)
		}
		if err := Join(l.ctx(), d, l.dial("a"), token, "b", false); err != nil {
			t.Fatal(err)
		}
		if s := l.nodes["a"].Status(); len(s.Members) != 2 {
			t.Errorf("%+v", s.Members)
		}
	})
}

// mute sends nothing more after so many writes.
type mute struct {
	net.Conn
	writes int
}

func (m *mute) Write(b []byte) (int, error) {
	if m.writes--; m.writes < 0 {
		return len(b), nil
	}
	return m.Conn.Write(b)
}

// TestFollow: views go in and come out, oldest first and none twice; whoever follows later begins with the newest; a
// node in a new life tells nothing that it has not had confirmed.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		var mu sync.Mutex
		versions := map[string]string{}
		heard := func(name, more string) string {
			mu.Lock()
			defer mu.Unlock()
			versions[name] += more
			return versions[name]
		}
		follow := func(name string) *Follower {
			f, err := l.nodes[name].Follow("main", 0, func(v replica.View) { heard(name, fmt.Sprint(v.Version, " ")) })
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
		hears := func(name, want string) {
			t.Helper()
			l.until(name, "hears "+want, func(*Status) bool { return heard(name, "") == want })
		}
		a, b := follow("a"), follow("b")
		view := replica.View{Version: 1, Term: 1, Primary: 1, InSync: replica.NodesOf(1, 2)}
		propose := func(f *Follower, version uint64) {
			t.Helper()
			view.Version = version
			if err := f.Propose(view); err != nil {
				t.Fatal(err)
			}
		}
		propose(a, 1)
		hears("b", "1 ")
		propose(b, 2)
		hears("a", "1 2 ")
		propose(a, 2) // too late
		propose(b, 3)
		hears("a", "1 2 3 ")
		follow("w")
		hears("w", "3 ")
		hears("b", "1 2 3 ")
		b.Close()
		propose(a, 4)
		hears("w", "3 4 ")
		hears("a", "1 2 3 4 ")                                                     // it has that on its disk, whoever leads
		if _, err := l.nodes["b"].Get(l.ctx(), Key{KindSet, "main"}); err != nil { // b has it, too
			t.Fatal(err)
		}
		for _, name := range []string{"b", "w"} {
			if err := l.nodes[name].Close(); err != nil {
				t.Fatal(err)
			}
			delete(l.nodes, name)
		}
		if err := l.nodes["a"].Close(); err != nil {
			t.Fatal(err)
		}
		if err := a.Propose(view); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a closed node takes a view: %v", err)
		}
		if b := heard("b", ""); b != "1 2 3 " {
			t.Errorf("after Close b has heard %s", b)
		}
		before := heard("a", "")
		l.open("a")
		follow("a")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := l.nodes["a"].Await(ctx, func(*Status) bool { return heard("a", "") != before }); err == nil {
			t.Errorf("alone it tells %s", heard("a", ""))
		}
		l.open("b")
		hears("a", before+"4 ")
	})
}

// TestUpdate: three nodes add to one record at the same time, and nothing is lost; the end of a context ends it.
func TestUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		var wg sync.WaitGroup
		for name, n := range l.nodes {
			wg.Go(func() {
				for range 10 {
					if err := n.Update(l.ctx(), Key{KindUnit, "x"}, func(old []byte) ([]byte, error) { return append(slices.Clone(old), name...), nil }); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		r, err := l.nodes["a"].Get(l.ctx(), Key{KindUnit, "x"})
		if err != nil || len(r.Value) != 30 || r.Version != 30 {
			t.Fatalf("%s %v", r.Value, err)
		}
		same := func(old []byte) ([]byte, error) { return old, nil }
		if err := l.nodes["a"].Update(l.ctx(), r.Key, same); err != nil {
			t.Error(err)
		}
		if err := l.nodes["a"].Delete(l.ctx(), r.Key, 30); err != nil { // Update has written nothing
			t.Error(err)
		}
		l.nodes["b"].Update(l.ctx(), r.Key, func(old []byte) ([]byte, error) {
			if old != nil {
				t.Errorf("a deleted record has %q", old)
			}
			return []byte("new"), nil
		})
		l.get("w", "x", "new")
		ctx, cancel := context.WithCancel(l.ctx())
		cancel()
		if err := l.nodes["a"].Update(ctx, r.Key, func([]byte) ([]byte, error) { return []byte("late"), nil }); err == nil {
			t.Error("it does not end")
		}
	})
}

// TestRemove: a voter leaves, whoever leads, and is told; so do one that has just taken the place of another, and one
// that is to be replaced and has no successor. The others go on with one vote.
func TestRemove(t *testing.T) {
	for _, how := range []string{"", "successor", "replaced"} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t)
			defer l.close()
			l.three()
			if err := l.nodes["a"].Close(); err != nil { // so that another one leads
				t.Fatal(err)
			}
			l.put("b", "x", 0, "one")
			l.open("a")
			l.until("a", "all are here", func(s *Status) bool { return len(s.Heard) == 3 && s.Leader != 0 })
			if how != "" {
				if err := l.nodes["w"].Leave(l.ctx(), "b", Replaced); err != nil {
					t.Fatal(err)
				}
			}
			if how == "successor" {
				if err := l.nodes["b"].Close(); err != nil {
					t.Fatal(err)
				}
				l.join("b", "a")
				l.until("b", "b knows the others", func(s *Status) bool { return len(s.Members) > 0 })
			}
			if err := l.nodes["a"].Leave(l.ctx(), "b", Removed); err != nil {
				t.Fatal(err)
			}
			gone := func(s *Status) bool { return len(s.Members) == 2 && len(s.Voters) == 1 && len(s.Former) == 0 }
			l.until("a", "b is gone", gone)
			l.until("w", "b is gone", gone)
			l.inTrouble("b", "was replaced or removed")
			l.put("w", "x", 1, "two")
			if err := l.nodes["a"].Leave(l.ctx(), "b", Removed); err == nil || !strings.Contains(err.Error(), "there is no member b") {
				t.Errorf("twice: %v", err)
			}
		})
	}
}

// TestLeaveNeedsMajority: a member without which no majority of the voters is up is not sent away, for the others refuse it at once, and could
// agree on nothing any more: neither the only voter, nor one of two that are up. The cluster goes on as before.
func TestLeaveNeedsMajority(t *testing.T) {
	stays := func(l *lab, through, name string) {
		l.t.Helper()
		for _, how := range []Leaving{Replaced, Removed} {
			err := l.nodes[through].Leave(l.short(), name, how)
			if _, ok := errors.AsType[*RefusedError](err); !ok || !strings.Contains(err.Error(), "no majority of the voters") {
				l.t.Fatalf("%s, by %s: %v", name, through, err)
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		if err := l.nodes["a"].Leave(l.ctx(), "w", Removed); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b"} {
			l.until(name, "w is gone", func(s *Status) bool { return len(s.Members) == 2 && len(s.Voters) == 1 && len(s.Former) == 0 })
		}
		s := l.nodes["a"].Status()
		voter, other := s.Member(s.Voters[0]).Name, "a"
		if voter == "a" {
			other = "b"
		}
		stays(l, other, voter)
		stays(l, voter, voter)
		l.put(other, "x", 0, "one")
		l.put(voter, "x", 1, "two")
		if err := l.nodes[voter].Leave(l.ctx(), other, Removed); err != nil {
			t.Fatal(err)
		}
		l.until(voter, "it is alone", func(s *Status) bool { return len(s.Members) == 1 })
		if err := l.nodes[voter].Leave(l.ctx(), voter, Removed); err == nil || !strings.Contains(err.Error(), "is the only member") {
			t.Errorf("the only member: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		if err := l.nodes["w"].Close(); err != nil {
			t.Fatal(err)
		}
		l.until("a", "w is away", func(s *Status) bool { return len(s.Heard) == 2 && s.Leader != 0 })
		stays(l, "a", "b")
		l.put("b", "x", 0, "one")
		if err := l.nodes["a"].Leave(l.ctx(), "w", Replaced); err != nil { // who is lost can go
			t.Fatal(err)
		}
		stays(l, "a", "b") // w has its vote still
		l.join("w", "b")
		l.until("a", "the new one votes", func(s *Status) bool { return len(s.Members) == 3 && len(s.Heard) == 3 && len(s.Former) == 0 })
		if err := l.nodes["a"].Leave(l.ctx(), "b", Removed); err != nil {
			t.Fatal(err)
		}
		l.put("a", "x", 1, "two")
	})
}

// TestLeaveWithStuckVoter: a voter whose disk takes nothing is heard, and takes part in nothing. It makes no majority, so another one is not sent away
// meanwhile; it can go itself.
func TestLeaveWithStuckVoter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		l.put("a", "x", 0, "one")
		b := l.nodes["b"]
		b.do(func() { l.disks["b"].full = true })
		l.put("a", "x", 1, "two")
		l.inTrouble("b", "no space left")
		l.until("a", "it knows that b is stuck", func(s *Status) bool { return slices.Equal(s.Stuck, []uint64{b.Status().Number}) && len(s.Heard) == 3 })
		for _, through := range []string{"a", "b"} {
			err := l.nodes[through].Leave(l.short(), "w", Replaced)
			if _, ok := errors.AsType[*RefusedError](err); !ok || !strings.Contains(err.Error(), "no majority of the voters") {
				t.Fatalf("w, by %s: %v", through, err)
			}
		}
		l.put("a", "x", 2, "three")
		if err := l.nodes["a"].Leave(l.ctx(), "b", Replaced); err != nil {
			t.Fatal(err)
		}
		l.put("w", "x", 3, "four")
		b.do(func() { l.disks["b"].full = false })
	})
}

// TestStuckTurned: who asks hears that a member has become stuck, that it is so no more, and that another machine may have its name.
func TestStuckTurned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		a, b := l.nodes["a"], l.nodes["b"]
		number := b.Status().Number
		news := func(what string, holds func(*Status) bool) {
			t.Helper()
			for ctx := l.ctx(); ; {
				select {
				case <-a.StuckTurned():
					if s := a.Status(); holds(&s) {
						return
					}
				case <-ctx.Done():
					t.Fatalf("nobody says that %s: %+v", what, a.Status())
				}
			}
		}
		isStuck := func(s *Status) bool { return slices.Equal(s.Stuck, []uint64{number}) }
		for i, full := range []bool{true, false, true} {
			b.do(func() { l.disks["b"].full = full })
			l.put("a", "x", uint64(i), "x")
			news(fmt.Sprintf("b is stuck: %t", full), func(s *Status) bool { return isStuck(s) == full })
		}
		if err := a.Leave(l.ctx(), "b", Removed); err != nil {
			t.Fatal(err)
		}
		news("b is gone", func(s *Status) bool { return s.Member(number) == nil && !isStuck(s) })
	})
}
