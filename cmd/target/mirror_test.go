//go:build !race

// Leases of mirrors run out by the clock, which a machine that is short of time does not slow down: the race detector would
// make the nodes of these tests lose each other.

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"oneshot/initiator"
	"oneshot/mgmt"
)

const mirrorText = `
stores:
  disk: {type: mirror, size: 16MiB, copies: {a: {type: file, path: disk.img}, b: {type: file, path: disk.img}}}
targets:
  - {iqn: "iqn.2026-11.example.oneshot:lab", luns: {0: disk}}
portals:
  - {node: a, listen: "AT3", group: 1}
  - {node: b, listen: "AT4", group: 2}
`

const mirrorSize = 16 << 20

// newMirror makes a cluster with a mirror, and starts its nodes.
func newMirror(t *testing.T) *site {
	s := newSiteOf(t, mirrorText)
	s.startAll()
	return s
}

// multipath is a host that reaches a disk through several nodes. It sends what was not answered again, to the next node.
type multipath struct {
	t    *testing.T
	ctx  context.Context
	urls []initiator.URL
	// strict: the host hears of no access state, for its only path goes with the disk.
	strict bool
	// patience is how long a node may take for a command before the host looks for another one. It is not how long it takes.
	patience time.Duration

	mu    sync.Mutex
	at    int // the path in use; guarded by mu, as the rest
	paths []*path
	moves int
}

type path struct {
	session *initiator.Session
	lu      *initiator.LU
}

func newMultipath(ctx context.Context, s *site) *multipath {
	return newMultipathAt(ctx, s, s.at[3], s.at[4])
}

// newMultipathAt is newMultipath for portals at these addresses, which are of iSCSI, unless they begin with the scheme of a URL.
func newMultipathAt(ctx context.Context, s *site, addresses ...string) *multipath {
	m := &multipath{t: s.t, ctx: ctx, patience: pathTime, paths: make([]*path, len(addresses))}
	for _, at := range addresses {
		if !strings.Contains(at, "://") {
			at = "iscsi://" + at
		}
		u, err := initiator.ParseURL(at + "/iqn.2026-11.example.oneshot:lab/0")
		if err != nil {
			s.t.Fatal(err)
		}
		m.urls = append(m.urls, u)
	}
	s.t.Cleanup(func() {
		for i := range m.paths {
			m.drop(m.paths[i])
		}
	})
	return m
}

// path returns the path in use, and logs in if that has to be.
func (m *multipath) path() (int, *path, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.paths[m.at] != nil {
		return m.at, m.paths[m.at], nil
	}
	ctx, cancel := context.WithTimeout(m.ctx, m.patience)
	defer cancel()
	session, err := initiator.Dial(ctx, m.urls[m.at], initiator.Options{})
	if err != nil {
		return m.at, nil, err
	}
	lu, err := session.LU(ctx, 0)
	if err != nil {
		_ = session.Close()
		return m.at, nil, err
	}
	m.paths[m.at] = &path{session, lu}
	return m.at, m.paths[m.at], nil
}

// pathTime is the patience of most hosts.
const pathTime = 3 * time.Second

// leave goes to the next path, unless somebody was faster.
func (m *multipath) leave(at int, p *path, err error) {
	m.mu.Lock()
	if m.at == at {
		m.at = (at + 1) % len(m.paths)
		m.moves++
	}
	ended := p != nil && m.paths[at] == p && !isStatus(err)
	if ended {
		m.paths[at] = nil
	}
	m.mu.Unlock()
	if ended {
		m.drop(p)
	}
}

// tries waits until the host has gone to the next path n more times.
func (m *multipath) tries(n int) {
	m.t.Helper()
	moves := func() int {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.moves
	}
	for until := moves() + n; moves() < until; pauseFor(m.ctx, 10*time.Millisecond) {
		if m.ctx.Err() != nil {
			m.t.Fatal("the host has no cause to change its path")
		}
	}
}

func (m *multipath) drop(p *path) {
	if p != nil {
		_ = p.session.Close()
	}
}

func isStatus(err error) bool {
	_, ok := errors.AsType[*initiator.StatusError](err)
	return ok
}

func isAttention(err error) bool {
	s, ok := errors.AsType[*initiator.StatusError](err)
	return ok && s.Key == 6
}

// allowed says whether a node that does not serve the disk may answer so: with the access state, or with nothing at all.
func allowed(err error) bool {
	s, ok := errors.AsType[*initiator.StatusError](err)
	return !ok || s.Status == initiator.StatusCheckCondition && s.Key == 2 && s.ASC == 4 && (s.ASCQ == 0x0a || s.ASCQ == 0x0b) ||
		s.Key == 6 // a unit attention more than the initiator takes
}

// do runs a command until a node has done it. It reports false if the test ends before.
func (m *multipath) do(prepare func(*initiator.LU) (*initiator.Command, error)) bool {
	for m.ctx.Err() == nil {
		at, p, err := m.path()
		if err == nil {
			var c *initiator.Command
			if c, err = prepare(p.lu); err != nil {
				m.t.Error(err)
				return false
			}
			ctx, cancel := context.WithTimeout(m.ctx, m.patience)
			err = p.session.Do(ctx, c)
			cancel()
			if err == nil {
				return true
			}
		}
		if !allowed(err) || m.strict && isStatus(err) && !isAttention(err) {
			m.t.Errorf("node %d: %v", at, err)
			return false
		}
		m.leave(at, p, err)
		select {
		case <-time.After(10 * time.Millisecond): // as a host does between attempts
		case <-m.ctx.Done():
		}
	}
	return false
}

const block = 4096

func (m *multipath) write(no int, b []byte) bool {
	return m.do(func(lu *initiator.LU) (*initiator.Command, error) {
		c := &initiator.Command{Out: b}
		return c, lu.Prepare(c, int64(no)*block)
	})
}

func (m *multipath) read(no int, b []byte) bool {
	return m.do(func(lu *initiator.LU) (*initiator.Command, error) {
		c := &initiator.Command{In: b}
		return c, lu.Prepare(c, int64(no)*block)
	})
}

func (m *multipath) flush() bool {
	return m.do(func(lu *initiator.LU) (*initiator.Command, error) {
		c := &initiator.Command{}
		lu.PrepareFlush(c)
		return c, nil
	})
}

// load writes and reads blocks from several places at once, and knows what each block may hold: what was acknowledged
// last, or what was sent since. Each block is one worker's.
type load struct {
	t       *testing.T
	m       *multipath
	wg      sync.WaitGroup
	stop    atomic.Bool
	writes  atomic.Int64 // acknowledged
	slowest atomic.Int64 // nanoseconds of a write, since a test has set it to 0
	newest  atomic.Int64 // block of which a write was acknowledged
	pause   atomic.Int64 // nanoseconds that a worker waits after each request
	blocks  [mirrorSize / block]struct {
		acked, sent uint64
		floor       atomic.Uint64 // acknowledged; for others than the worker
		durable     uint64        // acknowledged before a flush that has succeeded; of who flushes
	}
	news  chan struct{} // has room for one: something was acknowledged
	first atomic.Int64  // block of those that are written and read meanwhile
	most  int           // how many these are
}

const workers = 8

// pace is what a worker waits after each request, if a test says no other. A host that never waits takes all processors from the nodes
// that a test waits for, and finds no more: all of them do a thousand requests in a second.
const pace = 8 * time.Millisecond

func newLoad(t *testing.T, m *multipath) *load { return newLoadAfter(t, m, nil) }

// newLoadAfter is newLoad on a disk that has what another load has left; nil: nothing.
func newLoadAfter(t *testing.T, m *multipath, before *load) *load {
	return newLoadWithin(t, m, before, mirrorSize/block)
}

// newLoadWithin is newLoadAfter that goes on with so many blocks only, beginning with l.first, a multiple of workers.
func newLoadWithin(t *testing.T, m *multipath, before *load, most int) *load {
	l := &load{t: t, m: m, most: most, news: make(chan struct{}, 1)}
	l.pause.Store(int64(pace))
	if before != nil {
		for i := range l.blocks {
			l.blocks[i].acked, l.blocks[i].sent, l.blocks[i].durable = before.blocks[i].acked, before.blocks[i].sent, before.blocks[i].durable
			l.blocks[i].floor.Store(l.blocks[i].acked)
		}
		l.readAll()
	}
	for w := range workers {
		l.wg.Go(func() { l.work(w, rand.New(rand.NewPCG(uint64(w), 1))) })
	}
	return l
}

// fill makes the bytes of a block: its number and a counter, all over it.
func fill(b []byte, no int, count uint64) {
	for i := 0; i < len(b); i += 16 {
		binary.BigEndian.PutUint64(b[i:], uint64(no))
		binary.BigEndian.PutUint64(b[i+8:], count)
	}
}

// check sees that a block has whole bytes of a write that it may have, and returns the counter.
func (l *load) check(no int, b []byte) {
	state := &l.blocks[no]
	count := binary.BigEndian.Uint64(b[8:])
	if count == 0 && state.acked == 0 && string(b) == string(make([]byte, block)) {
		return
	}
	want := make([]byte, block)
	fill(want, no, count)
	if string(b) != string(want) || count < state.acked || count > state.sent {
		l.t.Errorf("block %d has number %d and count %d, whole: %t; %d was acknowledged and %d sent", no, binary.BigEndian.Uint64(b), count, string(b) == string(want), state.acked, state.sent)
		return
	}
	state.acked = count // what was read stays
}

func (l *load) work(w int, r *rand.Rand) {
	b := make([]byte, block)
	for ; !l.stop.Load() && l.m.ctx.Err() == nil; pauseFor(l.m.ctx, time.Duration(l.pause.Load())) {
		no := int(l.first.Load()) + r.IntN(l.most/workers)*workers + w
		if r.IntN(4) == 0 {
			if l.m.read(no, b) {
				l.check(no, b)
			}
			continue
		}
		state := &l.blocks[no]
		state.sent++
		fill(b, no, state.sent)
		began := time.Now()
		if l.m.write(no, b) {
			for took := int64(time.Since(began)); ; {
				if old := l.slowest.Load(); took <= old || l.slowest.CompareAndSwap(old, took) {
					break
				}
			}
			state.acked = state.sent
			state.floor.Store(state.sent)
			l.newest.Store(int64(no))
			l.writes.Add(1)
			select {
			case l.news <- struct{}{}:
			default:
			}
		}
	}
}

// more waits until n further writes were acknowledged.
func (l *load) more(n int64) {
	l.t.Helper()
	for until := l.writes.Load() + n; l.writes.Load() < until; {
		select {
		case <-l.news:
		case <-l.m.ctx.Done():
			l.t.Fatalf("%d of %d writes came through", n-(until-l.writes.Load()), n)
		}
	}
}

// end stops, and reads everything.
func (l *load) end() {
	l.t.Helper()
	l.stop.Store(true)
	l.wg.Wait()
	l.readAll()
}

// readAll reads everything. Nobody else may work.
func (l *load) readAll() {
	l.t.Helper()
	const piece = 64 // blocks
	for w := range workers {
		l.wg.Go(func() {
			b := make([]byte, piece*block)
			for first := w * piece; first < len(l.blocks); first += workers * piece {
				if !l.m.read(first, b) {
					l.t.Errorf("block %d cannot be read", first)
					return
				}
				for i := range piece {
					l.check(first+i, b[i*block:(i+1)*block])
				}
			}
		})
	}
	l.wg.Wait()
}

// isLevel says whether all copies of a mirror are in sync, and nothing is missing, as who has told knows it.
func isLevel(m *mgmt.Mirror) bool {
	return !slices.ContainsFunc(m.Copies, func(c mgmt.Copy) bool { return c.State != mgmt.CopyInSync || c.Lacks+c.Missing > 0 })
}

// level waits until all copies are in sync, as a node and the primary know it, and returns the primary.
func (s *site) level(name string) (primary string) {
	s.t.Helper()
	s.untilCluster(name, "all copies are in sync", func(c *mgmt.Cluster) bool {
		primary = ""
		if len(c.Mirrors) == 1 && isLevel(&c.Mirrors[0]) {
			primary = c.Mirrors[0].Primary
		}
		return primary != "" && s.isLevelAt(primary)
	})
	return primary
}

// isLevelAt says whether a node is the primary, and says that all copies are in sync. It knows first: who asks another node may be
// told how it was before what he has just seen.
func (s *site) isLevelAt(name string) bool {
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
	defer cancel()
	client := mgmt.NewClient(s.path(name, "s.sock"))
	defer client.Close()
	c, err := askCluster(client, ctx)
	return err == nil && len(c.Mirrors) == 1 && c.Mirrors[0].Role == "primary" && isLevel(&c.Mirrors[0])
}

// servedBy has a node serve the mirror. On a busy machine its copy may be late and leave just then, which refuses the switch.
func (s *site) servedBy(name string) {
	s.t.Helper()
	for s.level(name) != name {
		_, _ = s.run(s.asked(name, "ha", "switch", "disk", name)...)
	}
}

// other returns the other node with a copy.
func other(name string) string { return map[string]string{"a": "b", "b": "a"}[name] }

// takesOver waits until a node is the primary. It reports false if its copy was not in sync when the other one was lost: on a
// busy machine that happens, and then nobody may serve the disk.
func (s *site) takesOver(name string) (is bool) {
	s.t.Helper()
	s.untilCluster(name, "it takes over, or may not", func(c *mgmt.Cluster) bool {
		m := &c.Mirrors[0]
		is = m.Role == "primary"
		return is || m.Primary != name && strings.Contains(copiesText(m), name+" not in sync")
	})
	return is
}

// loses takes the primary away with lose, until the other one has taken over, and returns the one that was lost. back brings it
// back.
func (s *site) loses(lose, back func(name string)) string {
	s.t.Helper()
	for range 10 {
		primary := s.level("a")
		lose(primary)
		if s.takesOver(other(primary)) {
			return primary
		}
		back(primary)
	}
	s.t.Fatal("the other copy was never in sync when the primary was lost")
	return ""
}

// settle has everything on all disks, durably. A copy in sync may have it in memory only, which ends with the process.
func (s *site) settle(m *multipath) {
	s.t.Helper()
	for done := false; !done; {
		primary := s.level("a")
		if !m.flush() {
			s.t.Fatal("the disk cannot be flushed")
		}
		s.untilCluster(primary, "all disks have everything", func(c *mgmt.Cluster) bool {
			m := &c.Mirrors[0]
			done = isLevel(m) && m.Role == "primary" && m.Records == 0 && m.Unapplied == 0 && m.Unflushed == 0
			return done || m.Role != "primary"
		})
	}
}

// stopAll ends all in good order, the primary behind the other node: it finds out with the witness that it is alone.
func (s *site) stopAll() {
	s.t.Helper()
	primary := s.level("a")
	s.stop(other(primary))
	s.stop(primary)
	s.stop("w")
}

// TestMirror: a disk on two nodes. The primary is killed under load, the host goes on at the other node with all that was
// acknowledged; the former one returns, gets what it lacks, and takes over when the other one is killed. Then the other copy is killed: the primary
// goes on alone, and the copy gets what it lacks, and serves it.
func TestMirror(t *testing.T) {
	s := newMirror(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	if first := s.level("a"); first != "a" {
		t.Errorf("the mirror begins with the copy of %s", first)
	}
	m := newMultipath(ctx, s)
	l := newLoad(t, m)
	l.more(200)
	start := func(name string) { s.start(name) }
	for range 2 {
		lost := s.loses(s.kill, start)
		l.more(200)
		s.start(lost)
	}
	primary := s.level("w")
	s.kill(other(primary))
	l.more(200)
	s.start(other(primary))
	s.servedBy(other(primary))
	l.end()
	if m.moves < 2 {
		t.Errorf("the host has changed its path %d times", m.moves)
	}
	s.settle(m)
	s.stopAll()
	s.equal()
}

// equal compares the copies of nodes that do not run.
func (s *site) equal() {
	s.t.Helper()
	disks, err := filepath.Glob(s.path("*", "disk.img"))
	if err != nil || len(disks) < 2 {
		s.t.Fatalf("%v: %v", disks, err)
	}
	var first []byte
	for i, disk := range disks {
		b, err := os.ReadFile(disk)
		if i == 0 {
			first = b
		}
		if err != nil || len(b) != mirrorSize || string(b) != string(first) {
			s.t.Errorf("%s and %s differ, or have another size: %v", disks[0], disk, err)
		}
	}
}

// TestMirrorZombie: the primary is stopped for longer than its lease, and goes on when another node has taken over. What it
// had on its way writes nothing, what it was asked meanwhile it does not answer from what it has, and it follows.
func TestMirrorZombie(t *testing.T) {
	s := newMirror(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	s.level("a")
	l := newLoad(t, newMultipath(ctx, s))
	p := newProbe(ctx, s, l)
	l.more(200)
	signal := func(sig syscall.Signal) func(string) {
		return func(name string) {
			if err := s.daemons[name].Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
		}
	}
	var wait func() time.Duration
	lost := s.loses(func(name string) { wait = p.after(func() { signal(syscall.SIGSTOP)(name) }) }, signal(syscall.SIGCONT))
	t.Logf("the first answer came %d ms after the primary had stopped", wait().Milliseconds())
	l.more(200)
	p.asks(lost, 5) // whose answers must not be of the past
	l.more(200)
	signal(syscall.SIGCONT)(lost)
	s.level(lost)
	l.more(200)
	l.end()
	s.settle(l.m)
	s.stopAll()
	s.equal()
}

// TestMirrorMistakes: a mirror whose size, nodes, name or cluster is another one than it was is told, and not begun anew.
func TestMirrorMistakes(t *testing.T) {
	s := newMirror(t)
	for s.loses(s.stop, func(name string) { s.start(name) }) != "a" { // it hands over
		s.start("b")
	}
	refuses := func(text string, pairs ...string) {
		t.Helper()
		s.write("a", strings.NewReplacer(pairs...).Replace(s.text))
		s.fails(text, s.on("a", "serve")...)
		s.write("a", s.text)
	}
	refuses("target ha grow makes a mirror larger", "16MiB", "32MiB")
	refuses("the copy belongs to the mirror disk", "disk: {", "other: {", "0: disk", "0: other")
	if err := os.RemoveAll(s.path("a", "consensus/mirrors")); err != nil {
		t.Fatal(err)
	}
	s.start("a")
	s.level("b")
	for _, name := range []string{"a", "b", "w"} {
		s.kill(name)
	}
	state := s.path("a", "consensus")
	if err := os.Rename(filepath.Join(state, "mirrors"), s.path("a", "mirrors")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(state); err != nil {
		t.Fatal(err)
	}
	s.must(s.on("a", "ha", "init")...)
	if err := os.Rename(s.path("a", "mirrors"), filepath.Join(state, "mirrors")); err != nil {
		t.Fatal(err)
	}
	s.start("a")
	s.untilCluster("a", "the cluster does not know the mirror", func(c *mgmt.Cluster) bool {
		return len(c.Mirrors) == 1 && strings.Contains(c.Mirrors[0].Trouble, "the cluster was made anew") && c.Mirrors[0].Role != "primary"
	})
	if table := s.must(s.asked("a", "ha", "status")...); !strings.Contains(table, "this node takes no part in the mirror disk: the copy is of a mirror") {
		t.Errorf("%s", table)
	}
	s.stop("a")
}
