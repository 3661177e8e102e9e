package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/config"
	"oneshot/ha/mirror"
	"oneshot/ha/quorum"
	"oneshot/ha/replica"
	"oneshot/mgmt"
	"oneshot/volume/access"
)

// clusterOn returns the configuration of node a in a cluster of a and b, and its text. a has been made by init.
func clusterOn(t *testing.T) (text string, on func(text string) *config.Config) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	own := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "test.yaml")
	on = func(text string) *config.Config {
		t.Helper()
		c, err := config.Parse(file, []byte(text))
		if err == nil && c.Cluster.Name != "" {
			c, err = c.On("a")
		}
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	text = fmt.Sprintf(`
cluster: {name: lab, state: consensus, nodes: {a: {address: %q}, b: {address: "127.0.0.1:9"}}}
stores: {d: {type: memory, size: 16MiB}}
targets: [{node: a, iqn: "iqn.2026-11.example.oneshot:t", luns: {0: d}}]
portals: [{node: a, transport: tcp, listen: "127.0.0.1:0"}]
`, own)
	dir, err := quorum.OpenDir(on(text).Cluster.State)
	if err != nil {
		t.Fatal(err)
	}
	_, err = quorum.Init(dir, "lab", "a", false, 1)
	if err := errors.Join(err, dir.Close()); err != nil {
		t.Fatal(err)
	}
	return text, on
}

func newServer(t *testing.T, c *config.Config) *Server {
	t.Helper()
	s, err := New(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func shutdown(t *testing.T, s *Server) {
	t.Helper()
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}

// TestMember: a server is a node of the cluster while it lives. When it has ended, and when it could not begin, the
// address and the directory are free again.
func TestMember(t *testing.T) {
	text, on := clusterOn(t)
	busy, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	if _, err := New(on(strings.Replace(text, "127.0.0.1:0", busy.Addr().String(), 1)), slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("two listen at one address")
	}
	for range 3 {
		s := newServer(t, on(text))
		if c := s.Status().Cluster; c == nil || c.Name != "lab" || c.Node != "a" || len(c.Members) != 2 || !c.Members[0].Up || c.Members[1].Number != 0 {
			t.Errorf("%+v", c)
		}
		shutdown(t, s)
	}
	for _, c := range []struct{ old, new, says string }{
		{"consensus", "elsewhere", "target ha join"},
		{"name: lab", "name: other", "cluster lab"},
	} {
		if _, err := New(on(strings.Replace(text, c.old, c.new, 1)), slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "test.yaml:2:17") {
			t.Errorf("%s: %v", c.new, err)
		}
	}
}

// TestApplyCluster: the addresses of other nodes change at once; the node itself is what it was at the start.
func TestApplyCluster(t *testing.T) {
	text, on := clusterOn(t)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	for _, c := range []struct {
		old, new string
		want     mgmt.Reload
	}{
		{"", "", mgmt.Reload{}},
		{`"127.0.0.1:9"`, "127.0.0.2", mgmt.Reload{Done: []string{"node b of the cluster is at 127.0.0.2:7260"}}},
		{"b: {", "c: {", mgmt.Reload{Done: []string{"node c of the cluster is at 127.0.0.1:9", "node b of the cluster has no address"}}},
		{"a: {address: \"127", "a: {address: \"128", mgmt.Reload{Pending: []string{"cluster.nodes.a will change at the next start only"}}},
		{"name: lab", "name: other", mgmt.Reload{Pending: []string{"cluster will change at the next start only"}}},
		{"state: consensus", "state: x", mgmt.Reload{Pending: []string{"cluster will change at the next start only"}}},
		{"9\"}}", "9\", witness: true}}", mgmt.Reload{Done: []string{"node b of the cluster is at 127.0.0.1:9, a witness"}}},
	} {
		done, err := s.Apply(on(strings.Replace(text, c.old, c.new, 1)))
		if err != nil || fmt.Sprint(done) != fmt.Sprint(c.want) {
			t.Errorf("%s for %s: %+v %v", c.new, c.old, done, err)
		}
		at := map[string]string{"127.0.0.2": "127.0.0.2:7260", "c: {": "", "name: other": "127.0.0.1:9", "state: x": "127.0.0.1:9"}
		if want, ok := at[c.new]; ok {
			if got, _ := s.member.address("b"); got != want {
				t.Errorf("%s: b is at %q, and should be at %q", c.new, got, want)
			}
		}
		back, err := s.Apply(on(text))
		if err != nil || len(back.Done) != len(c.want.Done) || back.Pending != nil {
			t.Errorf("back from %s: %+v %v", c.new, back, err)
		}
	}
	for _, without := range []string{"cluster:", "node: a,"} {
		text = strings.Replace(text, without, map[string]string{"cluster:": "#"}[without], -1)
	}
	if done, err := s.Apply(on(text)); err != nil || fmt.Sprint(done.Pending) != "[cluster will change at the next start only]" {
		t.Errorf("without a cluster: %+v %v", done, err)
	}
	if at, err := s.member.address("b"); at == "" {
		t.Error(err)
	}
}

// TestAnnounce: what a node says of its configuration is in the records, and follows a reload.
func TestAnnounce(t *testing.T) {
	text, on := clusterOn(t)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	limits := func(want []config.Part) {
		t.Helper()
		_, err := s.member.node.Await(t.Context(), func(st *quorum.Status) bool {
			info := st.Infos["a"]
			return info != nil && config.Differences(want, partsOf(info)) == nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	limits(on(text).Cluster.Parts)
	next := on(text + "limits: {commands: 7}\n")
	if _, err := s.Apply(next); err != nil {
		t.Fatal(err)
	}
	limits(next.Cluster.Parts)
}

// TestAskedAgain: what consensus refuses for a while, because too many wait for it, is asked for again.
func TestAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy, refusals := errors.New("1024 reads wait for consensus, and no more may"), 3
		ctx, cancel := context.WithCancel(t.Context())
		m := &member{name: "a", log: slog.New(slog.DiscardHandler), said: make(chan struct{}, 1)}
		m.info.Store(&quorum.NodeInfo{Version: "one"})
		m.said <- struct{}{}
		m.announceBy(ctx, func(_ context.Context, k quorum.Key, change func([]byte) ([]byte, error)) error {
			if refusals--; refusals > 0 {
				return busy
			}
			if b, err := change(nil); err != nil || k.Name != "a" || string(b) != string(m.info.Load().Encode()) {
				t.Errorf("%q of %s: %v", b, k.Name, err)
			}
			cancel()
			return nil
		})
		if refusals != 0 {
			t.Errorf("the others are not told: %d", refusals)
		}
		want, refusals := &quorum.Record{Version: 7}, 3
		if r, err := ask(t.Context(), func(context.Context, quorum.Key) (*quorum.Record, error) {
			if refusals--; refusals > 0 {
				return nil, busy
			}
			return want, nil
		}, formerKey); r != want || err != nil {
			t.Errorf("%v %v", r, err)
		}
		if _, err := ask(ctx, func(context.Context, quorum.Key) (*quorum.Record, error) { return nil, busy }, formerKey); err == nil {
			t.Error("it asks for ever")
		}
		if _, err := ask(t.Context(), func(context.Context, quorum.Key) (*quorum.Record, error) { return nil, context.Canceled }, formerKey); err == nil {
			t.Error("it asks a node that has ended")
		}
	})
}

// TestNoCluster: without a cluster the requests about it say so.
func TestNoCluster(t *testing.T) {
	s := newServer(t, parse(t, one))
	defer shutdown(t, s)
	_, err := s.NewToken(t.Context())
	for _, err := range []error{err, s.RemoveNode(t.Context(), "b", mgmt.Removal{Replace: true})} {
		if _, ok := errors.AsType[*mgmt.NotFoundError](err); !ok {
			t.Error(err)
		}
	}
	if c := s.Status().Cluster; c != nil {
		t.Errorf("%+v", c)
	}
}

// TestRemoveNobody: a node that is no member, perhaps because it was removed already, is not found, which is another answer than that it has to stay.
func TestRemoveNobody(t *testing.T) {
	text, on := clusterOn(t)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	for _, how := range []mgmt.Removal{{}, {Replace: true}} {
		err := s.RemoveNode(t.Context(), "c", how)
		if _, ok := errors.AsType[*mgmt.NotFoundError](err); !ok {
			t.Errorf("%+v: %v", how, err)
		}
	}
	err := s.RemoveNode(t.Context(), "a", mgmt.Removal{})
	if _, ok := errors.AsType[*mgmt.NotFoundError](err); ok || err == nil {
		t.Errorf("the only member: %v", err)
	}
}

// TestPortalsOfOthersComeAndGo: initiators learn in which states the groups of other nodes are, also of those that a reload has brought.
func TestPortalsOfOthersComeAndGo(t *testing.T) {
	text, on := clusterOn(t)
	text = strings.NewReplacer(
		"stores: {d: {type: memory, size: 16MiB}}", "stores: {d: {type: mirror, size: 16MiB, copies: {a: {type: file, path: a.img}, b: {type: file, path: b.img}}}}",
		"{node: a, iqn:", "{iqn:",
		`listen: "127.0.0.1:0"}`, `listen: "127.0.0.1:0", group: 1}, {node: b, listen: "192.0.2.2:3260", group: 2}`,
	).Replace(text)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	m := primary(t, s)
	state := func(group uint16) access.GroupState {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.unitOf(&s.cfg.Targets[0], &s.cfg.Targets[0].LUNs[0]).AccessState(group).State
	}
	for state(1) != access.ActiveOptimized || state(2) != access.Standby { // it is told by a goroutine
		runtime.Gosched()
	}
	// That another node has taken the addresses, said late, does not hold for the next time.
	if err := (here{s}).AddressesTaken(m.name); err != nil {
		t.Fatal(err)
	}
	for m.front.taken.Load() && t.Context().Err() == nil {
		runtime.Gosched()
	}
	if _, err := s.Apply(on(strings.Replace(text, `group: 2}`, `group: 2}, {node: b, listen: "192.0.2.3:3260", group: 3}`, 1))); err != nil {
		t.Fatal(err)
	}
	for group, want := range map[uint16]access.GroupState{1: access.ActiveOptimized, 2: access.Standby, 3: access.Standby} {
		if got := state(group); got != want {
			t.Errorf("group %d is %v, want %v", group, got, want)
		}
	}
}

// TestGroupOfAnotherNode: a portal of iSCSI on another node may be in the group of a portal of NVMe on this one, if the mirror is no LUN. It says nothing of the
// namespace, which is reached through this node.
func TestGroupOfAnotherNode(t *testing.T) {
	text, on := mirrorOn(t)
	text = strings.NewReplacer(
		`targets: [{iqn: "iqn.2026-11.example.oneshot:t", luns: {0: d}}]`, `subsystems: [{nqn: "nqn.2026-11.example.oneshot:n", namespaces: {1: d}}]`,
		"transport: tcp,", "transport: nvme-tcp,",
		`"127.0.0.1:0"}`, `"127.0.0.1:0"}, {node: b, listen: "192.0.2.2:3260"}`,
	).Replace(text)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	primary(t, s).tell()
	if list := s.Access(); len(list) != 1 || list[0].State != "active/optimized" {
		t.Errorf("%+v", list)
	}
}

// fullDir is a directory that takes nothing while full is set.
type fullDir struct {
	*quorum.Dir
	full atomic.Bool
}

type fullFile struct {
	quorum.File
	d *fullDir
}

func (d *fullDir) Create(name string) (quorum.File, error) {
	f, err := d.Dir.Create(name)
	return &fullFile{f, d}, err
}

func (f *fullFile) WriteAt(b []byte, off int64) (int, error) {
	if f.d.full.Load() {
		return 0, syscall.ENOSPC
	}
	return f.File.WriteAt(b, off)
}

// TestStuckNodeIsUnfit: no mirror is handed over to a node that takes no part in consensus, because it would not learn of that.
func TestStuckNodeIsUnfit(t *testing.T) {
	text, on := mirrorOn(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	text = strings.Replace(text, "127.0.0.1:9", l.Addr().String(), 1)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	m, p := s.member, primary(t, s)
	own := on(text).Cluster.Node("a").Address
	secret, err := s.NewToken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	token, err := quorum.ParseToken(secret)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", own)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := quorum.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d := &fullDir{Dir: dir}
	if err := quorum.Join(t.Context(), d, conn, token, "b", false); err != nil {
		t.Fatal(err)
	}
	b, err := quorum.Open(quorum.Options{FS: d, Listener: l, Dial: quorum.DialTCP(func(string) (string, error) { return own, nil }), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(b.Close(), dir.Close()); err != nil {
			t.Error(err)
		}
	}()
	if _, err := m.node.Await(t.Context(), func(st *quorum.Status) bool { return len(st.Heard) == 2 }); err != nil {
		t.Fatal(err)
	}
	st, ok := p.Status()
	if !ok {
		t.Fatal("the mirror is being closed")
	}
	st.View.InSync, st.Connected = replica.NodesOf(1, 2), replica.NodesOf(2) // as if b had its copy
	for i, full := range []bool{false, true, false} {
		d.full.Store(full)
		if err := m.node.Update(t.Context(), quorum.Key{Kind: quorum.KindCluster, Name: "x"}, func([]byte) ([]byte, error) { return []byte{byte(i)}, nil }); err != nil {
			t.Fatal(err)
		}
		until(t, fmt.Sprintf("b is stuck: %t", full), func() bool { return slices.Contains(m.unfit(), "b") == full })
		if can := p.ready(&st, m) != 0; can == full {
			t.Errorf("b is stuck: %t, and can take over: %t", full, can)
		}
		if err := p.whyNot(&st, 2, "b", m); strings.Contains(err.Error(), "it is stuck") != full {
			t.Errorf("b is stuck: %t, and cannot take over: %v", full, err)
		}
	}
}

// pipes is a listener to which the test connects.
type pipes struct {
	net.Listener
	conns chan net.Conn
	ended chan struct{}
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error {
	close(l.ended)
	return nil
}

// TestStuckHandsOver: a node whose own log takes nothing is unfit when that lasts, and not before, for a log may be slow for a moment. When it takes part
// again it may serve. It is not unfit if the others could not agree on a successor without it: that would end what it still can do.
func TestStuckHandsOver(t *testing.T) {
	for _, isNeeded := range []bool{false, true} {
		t.Run(fmt.Sprintf("needed: %t", isNeeded), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testStuckHandsOver(t, isNeeded) })
		})
	}
}

func testStuckHandsOver(t *testing.T, isNeeded bool) {
	dir, err := quorum.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d := &fullDir{Dir: dir}
	tokens, err := quorum.Init(d, "lab", "a", false, 1)
	if err != nil {
		t.Fatal(err)
	}
	l := &pipes{conns: make(chan net.Conn), ended: make(chan struct{})}
	dial := func(context.Context, string) (net.Conn, error) { return nil, errors.New("nobody is there") }
	n, err := quorum.Open(quorum.Options{FS: d, Listener: l, Dial: dial, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if isNeeded { // it is the only voter of two members
		here, there := net.Pipe()
		l.conns <- there
		b, err := quorum.OpenDir(t.TempDir())
		if err == nil {
			err = errors.Join(quorum.Join(t.Context(), b, here, tokens[0], "b", false), b.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	m := &member{node: n, name: "a", log: slog.New(slog.DiscardHandler), open: map[*mirrored]bool{}}
	ctx, cancel := context.WithCancel(t.Context())
	m.wg.Go(func() { m.lookWhoIsStuck(ctx) })
	for _, c := range []struct {
		full, lasts bool
		time        time.Duration
	}{{time: stuckFor}, {full: true, time: stuckFor / 2}, {time: 2 * stuckFor}, {full: true, time: stuckFor / 2}, {full: true, lasts: true, time: 2 * stuckFor}, {time: stuckFor / 2}} {
		d.full.Store(c.full)
		soon, cancel := context.WithTimeout(ctx, stuckFor/4)
		_ = n.Update(soon, quorum.Key{Kind: quorum.KindCluster, Name: "x"}, func([]byte) ([]byte, error) { return []byte(fmt.Sprint(c)), nil })
		cancel()
		time.Sleep(c.time)
		if unfit := slices.Contains(m.unfit(), "a"); unfit != (c.lasts && !isNeeded) || (n.Status().Trouble != nil) != c.full {
			t.Errorf("%+v: unfit: %t, and %v", c, unfit, n.Status().Trouble)
		}
	}
	cancel()
	m.wg.Wait()
	if err := errors.Join(n.Close(), dir.Close()); err != nil {
		t.Error(err)
	}
}

// joined makes node b a member of a server's cluster, which never runs, and returns its directory.
func joined(t *testing.T, s *Server, address string) *quorum.Dir {
	t.Helper()
	secret, err := s.NewToken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	token, err := quorum.ParseToken(secret)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := quorum.OpenDir(t.TempDir())
	if err == nil {
		err = quorum.Join(t.Context(), dir, conn, token, "b", false)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestNoSwitchWithoutMajority: nothing is handed over while nobody could agree on that: the primary, which serves on without a majority, would wait for one.
func TestNoSwitchWithoutMajority(t *testing.T) {
	text, on := mirrorOn(t)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	p := primary(t, s)
	dir := joined(t, s, on(text).Cluster.Node("a").Address)
	dial := func(context.Context, string) (net.Conn, error) { return nil, errors.New("nobody is there") }
	l := &pipes{conns: make(chan net.Conn), ended: make(chan struct{})}
	n, err := quorum.Open(quorum.Options{FS: dir, Listener: l, Dial: dial, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(n.Close(), dir.Close()); err != nil {
			t.Error(err)
		}
	}()
	apart := &member{node: n, name: "b", log: slog.New(slog.DiscardHandler)}
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.switchTo(soon, "b", apart, false); err == nil || !strings.Contains(err.Error(), "no majority of the voters has answered") {
		t.Errorf("without a majority: %v", err)
	}
	if _, err := p.switchTo(t.Context(), "b", s.member, false); err == nil || !strings.Contains(err.Error(), "node b cannot serve d: its copy is") {
		t.Errorf("with one: %v", err)
	}
}

// TestNoSwitchToAnotherConfiguration: no order gives a mirror to a node that would show hosts something else. What it does not show them, and what other versions say,
// does not matter.
func TestNoSwitchToAnotherConfiguration(t *testing.T) {
	text, on := mirrorOn(t)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	p := primary(t, s)
	if err := joined(t, s, on(text).Cluster.Node("a").Address).Close(); err != nil {
		t.Fatal(err)
	}
	own, node := s.member.info.Load(), s.member.node
	part := func(name string) quorum.Part { return quorum.Part{Name: name} }
	for _, c := range []struct {
		what, version string
		parts         []quorum.Part
		want          []string
	}{
		{what: "the same"},
		{what: "what hosts do not see", parts: []quorum.Part{part("limits"), part("cluster"), part("stores.other")}},
		{what: "the pace of the mirror", parts: []quorum.Part{part("stores.d")}},
		{what: "another version", version: "other", parts: []quorum.Part{part("portals")}},
		{what: "portals", parts: []quorum.Part{part("portals")}, want: []string{"portals"}},
		{what: "a target and a subsystem", parts: []quorum.Part{part("targets.t"), part("subsystems.n"), part("limits")}, want: []string{"targets.t", "subsystems.n"}},
	} {
		info := &quorum.NodeInfo{Version: cmp.Or(c.version, own.Version), Parts: slices.Clone(own.Parts)}
		for _, x := range c.parts {
			info.Parts = append(slices.DeleteFunc(info.Parts, func(y quorum.Part) bool { return x.Name == y.Name }), x)
		}
		value := info.Encode()
		err := node.Update(t.Context(), quorum.Key{Kind: quorum.KindNode, Name: "b"}, func([]byte) ([]byte, error) { return value, nil })
		if err == nil {
			_, err = node.Await(t.Context(), func(s *quorum.Status) bool {
				return s.Infos["b"] != nil && string(s.Infos["b"].Encode()) == string(value)
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		if shows := s.member.shows("b"); !slices.Equal(shows, c.want) {
			t.Errorf("%s: %q", c.what, shows)
		}
		words := "node b cannot serve d: its copy is"
		if c.want != nil {
			words = "node b is not to serve d, for its configuration is another one, and hosts would see that (" + strings.Join(c.want, ", ")
		}
		if _, err := p.switchTo(t.Context(), "b", s.member, false); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", c.what, err)
		}
		if _, err := p.switchTo(t.Context(), "b", s.member, true); err == nil || !strings.Contains(err.Error(), "node b cannot serve d: its copy is") {
			t.Errorf("%s, anyway: %v", c.what, err)
		}
	}
}

// TestWhoServes: an order to switch ends well only if the node that was asked for serves, or any other one if none was.
func TestWhoServes(t *testing.T) {
	s := &mirrored{name: "d", self: 1, record: &quorum.Store{Copies: []string{"a", "b", "c"}}}
	for _, c := range []struct {
		serves replica.ID
		isAny  bool
		err    error
		want   string
	}{
		{serves: 2},
		{serves: 2, isAny: true},
		{serves: 3, isAny: true},
		{serves: 3, want: "has not said that it does, so c serves it now"},
		{serves: 1, want: "has not said that it does, so a serves it again"},
		{serves: 1, isAny: true, want: "has not said that it does, so a serves it again"},
		{isAny: true, err: mirror.ErrSilent, want: "node b was to serve d, and nobody has said within 3s that he does"},
	} {
		err := s.whoServes("b", c.serves, c.isAny, c.err)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
