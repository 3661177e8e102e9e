package reservations

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"oneshot/ha/quorum"
	"oneshot/ha/replica"
	"oneshot/volume/access"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const set = "disk 00"

// lab is a cluster in virtual time: one log of records, which each node learns in order, some time later.
type lab struct {
	t     *testing.T
	r     *rand.Rand
	nodes map[string]*node
	ids   map[replica.ID]*node

	mu      sync.Mutex // guards all of the lab and its nodes
	changed chan struct{}
	log     []*quorum.Record
	newest  map[quorum.Key]*quorum.Record
	view    replica.View
	lossy   bool // answers get lost
}

// node is a process with a table and sessions.
type node struct {
	l       *lab
	name    string
	id      replica.ID
	cut     bool // it hears nothing, and nobody hears it
	unheard bool // what it asks is not answered
	refused int  // so many of its calls fail: too many wait
	applied int
	born    uint64 // term of the newest view when its process began, which serves in none of before
	asked   int    // what was in the log when its mirror asked, in this life, for the newest view; -1: it has not yet
	learned replica.View
	view    replica.View // that the mirror was told of
	watch   func(*quorum.Record)
	table   *access.Table
	res     *Reservations
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
}

func newLab(t *testing.T, seed uint64, names ...string) *lab {
	l := &lab{t: t, r: rand.New(rand.NewPCG(seed, 1)), nodes: map[string]*node{}, ids: map[replica.ID]*node{}, changed: make(chan struct{}), newest: map[quorum.Key]*quorum.Record{}}
	for i, name := range names {
		n := &node{l: l, name: name, id: replica.ID(i + 1)}
		l.nodes[name], l.ids[n.id] = n, n
	}
	for _, name := range names {
		l.nodes[name].begin()
	}
	l.elect(names[0])
	return l
}

// begin starts a process, which knows nothing but the log.
func (n *node) begin() {
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.applied, n.asked, n.learned, n.view, n.watch = 0, -1, replica.View{}, replica.View{}, nil
	n.l.locked(func() { n.born = n.l.view.Term })
	n.table = access.NewTable(access.Nothing(), nil)
	n.res = Begin(n.table, Options{Consensus: n, Set: set, Node: n.name, Term: n.term, Prove: n.prove, Log: slog.New(slog.DiscardHandler)})
	n.wg.Go(n.apply)
}

// end is kill -9.
func (n *node) end() {
	n.l.locked(func() { n.watch = nil })
	n.cancel()
	n.res.Close()
	n.wg.Wait()
}

func (l *lab) end() {
	for _, n := range l.nodes {
		n.end()
	}
}

func (l *lab) locked(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
}

// until waits for a state of the lab. false: ctx has ended before.
func (l *lab) until(ctx context.Context, holds func() bool) bool {
	for {
		l.mu.Lock()
		ok, changed := holds(), l.changed
		l.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

func (l *lab) delay() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(l.r.IntN(20)) * time.Millisecond
}

// apply learns what is in the log.
func (n *node) apply() {
	for n.l.until(n.ctx, func() bool { return !n.cut && n.applied < len(n.l.log) }) {
		time.Sleep(n.l.delay())
		var x *quorum.Record
		var watch func(*quorum.Record)
		n.l.mu.Lock()
		if !n.cut {
			x, watch = n.l.log[n.applied], n.watch
		}
		n.l.mu.Unlock()
		if x == nil {
			continue
		}
		if watch != nil {
			watch(x)
		}
		n.l.locked(func() { // the mirror learns of a view behind it, and of none that may have been outlived (quorum.Views)
			if n.asked < 0 {
				n.asked = len(n.l.log)
			}
			n.applied++
			if s, err := quorum.DecodeSet(x.Value); x.Kind == quorum.KindSet && err == nil {
				n.learned = s.View
			}
			if n.applied >= n.asked {
				n.view = n.learned
			}
		})
		n.res.Served()
	}
}

// put is the compare-and-swap of a record. mu is held.
func (l *lab) put(k quorum.Key, version uint64, value []byte) bool {
	if old := l.newest[k]; old == nil && version != 0 || old != nil && old.Version != version {
		return false
	}
	r := &quorum.Record{Key: k, Version: version + 1, Value: value}
	l.newest[k] = r
	l.log = append(l.log, r)
	return true
}

// elect makes a node the primary.
func (l *lab) elect(name string) {
	l.locked(func() {
		k := quorum.Key{Kind: quorum.KindSet, Name: set}
		l.view = replica.View{Version: l.view.Version + 1, Term: l.view.Term + 1, Primary: l.nodes[name].id, InSync: replica.NodesOf(1, 2)}
		s := quorum.Set{Lineage: 1, View: l.view}
		l.put(k, l.view.Version-1, s.Encode())
	})
}

// term is what a mirror says: a node that was cut off does not know better.
func (n *node) term() uint64 {
	n.l.mu.Lock()
	defer n.l.mu.Unlock()
	if n.view.Primary == n.id && n.view.Term > n.born {
		return n.view.Term
	}
	return 0
}

func (n *node) prove(term uint64) error {
	time.Sleep(n.l.delay())
	n.l.mu.Lock()
	defer n.l.mu.Unlock()
	if n.l.view.Term != term {
		return errors.New("moved")
	}
	return nil
}

func (n *node) Watch(f func(*quorum.Record)) func() {
	n.l.mu.Lock()
	defer n.l.mu.Unlock()
	n.watch = f
	return func() { n.l.locked(func() { n.watch = nil }) }
}

func (n *node) Get(ctx context.Context, k quorum.Key) (*quorum.Record, error) {
	tooMany := false
	n.l.locked(func() {
		if tooMany = n.refused > 0; tooMany {
			n.refused--
		}
	})
	if tooMany {
		return nil, errors.New("1024 reads wait for consensus, and no more may")
	}
	if !n.l.until(ctx, func() bool { return !n.cut && !n.unheard }) {
		return nil, ctx.Err()
	}
	var all int
	n.l.locked(func() { all = len(n.l.log) })
	if !n.l.until(ctx, func() bool { return n.applied >= all }) {
		return nil, ctx.Err()
	}
	n.l.mu.Lock()
	defer n.l.mu.Unlock()
	return n.l.newest[k], nil
}

func (n *node) Update(ctx context.Context, k quorum.Key, change func([]byte) ([]byte, error)) error {
	for {
		r, err := n.Get(ctx, k)
		if err != nil {
			return err
		}
		var version uint64
		var old []byte
		if r != nil {
			version, old = r.Version, r.Value
		}
		value, err := change(old)
		if err != nil || old != nil && bytes.Equal(old, value) {
			return err
		}
		done, lost, all := false, false, 0
		n.l.locked(func() {
			if !n.cut {
				done, all = n.l.put(k, version, value), len(n.l.log)
				lost = n.l.lossy && n.l.r.IntN(4) == 0
			}
		})
		if done && !lost && n.l.until(ctx, func() bool { return n.applied >= all }) {
			return nil
		}
		if ctx.Err() != nil {
			return quorum.ErrUnknown
		}
	}
}

// session is a nexus with the table of a node.
type session struct {
	n      *node
	holder access.Holder
	mu     sync.Mutex // guards what follows
	denied access.Denial
	told   access.Event
	abort  func(done func())
}

func (s *session) Holder() access.Holder { return s.holder }
func (s *session) Session() any          { return s }
func (s *session) Deny(mask, denied access.Denial) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denied = s.denied&^mask | denied
}

func (s *session) Tell(e access.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told |= e
}

func (s *session) Abort(done func()) {
	if s.abort == nil {
		done()
		return
	}
	s.abort(done)
}

func (s *session) has() (access.Denial, access.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := s.told
	s.told = 0
	return s.denied, told
}

// login makes a nexus of an initiator with a node.
func (n *node) login(name string) *session {
	s := &session{n: n, holder: access.Holder{Initiator: access.Initiator{Protocol: access.ISCSI, Name: name, Port: "400000000001"}, Port: access.Port{Target: "iqn.t", Group: uint16(n.id)}}}
	n.table.Subscribe(s)
	return s
}

// do does a change, and waits for it.
func (s *session) do(c *access.Change) access.Result {
	c.By, c.Whole = s, true
	c.Ports = []access.PortOf{{Port: s.holder.Port, Relative: s.holder.Port.Group}}
	over := make(chan struct{})
	if !s.n.table.Do(c, func() { close(over) }) {
		<-over
	}
	return c.Result
}

func (s *session) register(key uint64, persist bool) access.Result {
	return s.do(&access.Change{Op: access.RegisterAndIgnore, NewKey: key, Persist: persist})
}

func (l *lab) want(what string, got, want access.Result) {
	l.t.Helper()
	if got != want {
		l.t.Fatalf("%s: result %d, want %d", what, got, want)
	}
}

// in runs a test in virtual time.
func in(t *testing.T, seed uint64, f func(l *lab, a, b *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, seed, "a", "b")
		defer l.end()
		f(l, l.nodes["a"], l.nodes["b"])
	})
}
