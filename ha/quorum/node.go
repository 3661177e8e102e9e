package quorum

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"oneshot/ha/replica"
)

// Options of a member.
type Options struct {
	// Cluster and Name are those that the state has to be of; empty: whatever it is.
	Cluster, Name string

	FS       FS // the caller's again after Close
	Listener net.Listener
	// Dial connects with the member of that name. It ends with ctx. DialTCP returns one.
	Dial func(ctx context.Context, name string) (net.Conn, error)
	Log  *slog.Logger
}

// Node is a member: a Core with a clock, and TLS to the others. Its methods may be called from any goroutine, but not
// by functions that the Node calls.
//
// To change a record, Get it, and Put a value in place of its version; after ErrConflict the record that Put returns
// says what to begin with again, after ErrUnknown Get does. To hear of changes, Watch; what it tells first may be older
// than what Get would return. The views of a mirrored set are a case of their own: Follow.
type Node struct {
	opts   Options
	calls  chan func()            // for the goroutine that owns what follows
	looks  chan func()            // the same, also while it waits for the disk
	saving atomic.Pointer[saving] // what the disk is busy with; nil: with nothing
	ended  chan struct{}          // closed: it calls nothing more
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	tls    *acceptor

	core     *Core
	out      Output
	peers    map[uint64]*peer
	incoming map[uint64]*incoming
	ends     map[uint64]chan Result
	reads    map[uint64]chan struct{}
	watchers []*func(*Record)
	follows  []*Follower
	streams  map[*Stream]bool
	awaits   map[*await]bool
	clock    uint64    // of beats, at ...
	began    time.Time // ... this time
	trouble  error     // why it takes no part
}

// random draws nonces and salts.
func random() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])
}

// Init makes a new cluster, of which this node is the only member, and tokens for so many others.
func Init(fsys FS, cluster, name string, witness bool, tokens int) ([]Token, error) {
	if !isName(name) {
		return nil, errName
	}
	if tokens > maxTokens {
		return nil, fmt.Errorf("%d tokens are too many: up to %d are kept", tokens, maxTokens)
	}
	authority, signer, err := newAuthority(cluster)
	if err != nil {
		return nil, err
	}
	private, public, err := newKey()
	if err != nil {
		return nil, err
	}
	id := Identity{Cluster: random(), Number: 1, Name: name, Key: private, Authority: authority}
	if id.Cert, err = sign(authority, signer, id.Number, name, public); err != nil {
		return nil, err
	}
	made, hashes := make([]Token, tokens), make([][32]byte, tokens)
	for i := range made {
		made[i] = newToken(authority)
		hashes[i] = HashToken(made[i].secret[:])
	}
	l, err := CreateLog(fsys, id, initial(&id, cluster, witness, sha256.Sum256(public), signer, hashes...), random)
	if err != nil {
		return nil, err
	}
	return made, l.Close()
}

// Open begins a life of a member. Close ends it.
func Open(o Options) (*Node, error) {
	l, err := OpenLog(o.FS, random)
	if err != nil {
		return nil, err
	}
	core, err := Start(l, o.Log)
	if err == nil {
		err = cmp.Or(errOther("node", l.id.Name, o.Name), errOther("cluster", core.state.name, o.Cluster))
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	n := &Node{
		opts: o, calls: make(chan func(), 64), looks: make(chan func()), ended: make(chan struct{}), core: core, peers: map[uint64]*peer{}, incoming: map[uint64]*incoming{},
		ends: map[uint64]chan Result{}, reads: map[uint64]chan struct{}{}, awaits: map[*await]bool{}, streams: map[*Stream]bool{},
		clock: random() >> 1, began: time.Now(), // so that nobody takes a beat of another life for one of this
	}
	core.onDisk = n.onDisk
	if n.tls, err = newAcceptor(n, &l.id); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.meetMembers()
	n.wg.Go(n.run)
	n.wg.Go(n.tls.accept)
	return n, nil
}

// Close ends the life. Changes that wait end with ErrUnknown.
func (n *Node) Close() error {
	n.cancel()
	err := n.opts.Listener.Close()
	n.tls.closeAll()
	n.wg.Wait()
	return errors.Join(err, n.core.log.Close())
}

// run owns the core: what has arrived, the clock, then what follows.
func (n *Node) run() {
	tick := time.NewTicker(tickTime)
	defer tick.Stop()
	for {
		select {
		case <-n.ctx.Done():
			n.giveUp()
			return
		case <-tick.C:
			n.core.Tick()
		case f := <-n.looks:
			f()
			continue // nothing follows
		case f := <-n.calls:
			f()
			for range len(n.calls) { // one sync for all that is there
				(<-n.calls)()
			}
		}
		n.work()
	}
}

func (n *Node) giveUp() {
	for _, p := range n.peers {
		p.cancel()
	}
	for {
		select {
		case f := <-n.calls: // somebody waits for what it says
			f()
			continue
		default:
		}
		break
	}
	for s := range n.streams {
		_ = s.NetConn().Close()
	}
	for _, end := range n.ends {
		end <- Result{Err: ErrUnknown}
	}
	close(n.ended)
}

// hangsAfter is how long the owner waits for the disk, and nobody can change anything. A disk that takes longer hangs.
const hangsAfter = time.Second

// saving is something that the disk is busy with.
type saving struct {
	began  time.Time
	number uint64 // of the newest batch then
	done   chan error
}

// errHangs is what the log says of a disk that hangs. For how long it does hangs tells.
var errHangs = errors.New("its disk does not answer")

// onDisk has another goroutine do f, which waits for the disk and changes nothing but the log, and waits for it for up to hangsAfter. Meanwhile others may look
// at the node. While the disk hangs all goes on as while it is full: the node takes nothing in, but others take what it has to say to the leader.
func (n *Node) onDisk(f func() error) (ended bool, err error) {
	s := n.saving.Load()
	if s == nil {
		s = &saving{time.Now(), n.core.log.newest(), make(chan error, 1)}
		n.saving.Store(s)
		n.wg.Go(func() { s.done <- f() })
	}
	late := time.NewTimer(time.Until(s.began.Add(hangsAfter)))
	defer late.Stop()
	for {
		select {
		case err := <-s.done:
			n.saving.Store(nil)
			if n.core.log.newest() != s.number {
				n.core.Saved(time.Since(s.began))
			}
			return true, err
		case look := <-n.looks:
			look()
		case <-late.C:
			return false, errHangs
		}
	}
}

// hangs says for how long the disk has not saved what it got; nil: it was not long.
func (n *Node) hangs() error {
	s := n.saving.Load()
	if s == nil || time.Since(s.began) < hangsAfter {
		return nil
	}
	return fmt.Errorf("the disk of the consensus log has not answered for %v, so this node takes part in nothing until it does", time.Since(s.began).Truncate(time.Second))
}

// why says why the node takes no part; nil: it does. Owner only.
func (n *Node) why() error { return cmp.Or(n.core.Refused(), n.hangs(), n.trouble) }

// look lets the owner do f, also while it waits for the disk, and waits for it: f changes nothing of what the log holds. false: the node is
// closed, and f is not called.
func (n *Node) look(f func()) bool {
	done := make(chan struct{})
	select {
	case n.looks <- func() { f(); close(done) }:
		<-done
		return true
	case <-n.ended:
		return false
	}
}

// doFor is do for as long as ctx lasts. After an error f is not called.
func (n *Node) doFor(ctx context.Context, f func()) error {
	done := make(chan struct{})
	var taken atomic.Bool // by the owner, or by this goroutine, which waits no more
	select {
	case n.calls <- func() {
		if taken.CompareAndSwap(false, true) {
			f()
			close(done)
		}
	}:
	case <-ctx.Done():
		return cmp.Or(n.hangs(), ctx.Err())
	case <-n.ended:
		return net.ErrClosed
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	case <-n.ended:
	}
	if taken.CompareAndSwap(false, true) {
		return cmp.Or(n.hangs(), ctx.Err(), net.ErrClosed)
	}
	<-done
	return nil
}

// do lets the owner do f, and waits for it. false: the node is closed, and f is not called.
func (n *Node) do(f func()) bool {
	done := make(chan struct{})
	select {
	case n.calls <- func() { f(); close(done) }:
	case <-n.ended:
		return false
	}
	select {
	case <-done:
		return true
	case <-n.ended:
	}
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// work saves, applies and sends.
func (n *Node) work() {
	n.out = Output{Messages: n.out.Messages[:0]}
	err := n.core.Work(&n.out)
	if refused := n.core.Refused(); refused != nil {
		err = refused
	}
	if (err == nil) != (n.trouble == nil) || err != nil && err.Error() != n.trouble.Error() {
		if err != nil {
			n.opts.Log.Error("this node takes no part in consensus", "reason", err)
		} else {
			n.opts.Log.Info("this node takes part in consensus again")
		}
	}
	n.trouble = err
	if n.out.Members || n.core.Refused() != nil {
		n.endStreams()
	}
	for _, r := range n.out.Changed {
		for _, w := range n.watchers {
			(*w)(r)
		}
	}
	for _, f := range n.follows {
		for _, v := range f.views.Agreed(&n.out) {
			f.agreed(v)
		}
	}
	for i := range n.out.Messages {
		n.send(&n.out.Messages[i])
	}
	for _, e := range n.out.Ended {
		if end := n.ends[e.Count]; end != nil {
			delete(n.ends, e.Count)
			end <- e.Result
		}
	}
	for _, r := range n.out.Reads {
		if end := n.reads[r]; end != nil {
			delete(n.reads, r)
			close(end)
		}
	}
	if n.out.Members {
		n.meetMembers()
	}
	n.tell()
}

func (n *Node) send(m *Message) {
	to, kind := m.Raft.GetTo(), m.Raft.GetType()
	if p := n.peers[to]; p != nil && p.send(kind, m.encode()) { // the end of a snapshot is told when it has been written
		return
	}
	n.core.Unreachable(to)
	if kind == raftpb.MsgSnap {
		n.core.SnapshotSent(to, false)
	}
}

// meetMembers connects with members that are new, and ends connections with those that are not members any more.
func (n *Node) meetMembers() {
	for _, m := range n.core.state.members {
		if m.Leaving == Stays {
			n.meet(m.Number, m.Name)
		}
	}
	for number, p := range n.peers {
		if m := n.core.state.member(number); m == nil && number < n.core.state.next || m != nil && m.Leaving != Stays {
			p.cancel()
			delete(n.peers, number)
			if in := n.incoming[number]; in != nil {
				_ = in.conn.Close()
			}
		}
	}
}

func (n *Node) meet(number uint64, name string) {
	if number == n.core.log.id.Number || n.peers[number] != nil || n.ctx.Err() != nil {
		return
	}
	n.peers[number] = newPeer(n, number, name)
}

// change does a change, and waits for its end. With a context that has ended it begins nothing.
func (n *Node) change(ctx context.Context, begin func(c *Core) (uint64, error)) Result {
	if err := ctx.Err(); err != nil {
		return Result{Err: err}
	}
	end := make(chan Result, 1)
	var count uint64
	var err error
	late := n.doFor(ctx, func() {
		if count, err = begin(n.core); err == nil {
			n.ends[count] = end
		}
	})
	if late == net.ErrClosed {
		late = ErrUnknown
	}
	if err := cmp.Or(late, err); err != nil {
		return Result{Err: err}
	}
	select {
	case r := <-end:
		return r
	case <-ctx.Done():
	case <-n.ended:
	}
	err = ErrUnknown
	n.look(func() {
		n.core.Forget(count)
		delete(n.ends, count)
		if why := n.why(); why != nil {
			err = fmt.Errorf("%w: %w", ErrUnknown, why)
		}
	})
	return Result{Err: err}
}

// Put replaces the version of a record, 0 if there never was one. The record that it returns is the newest, also
// after ErrConflict.
func (n *Node) Put(ctx context.Context, k Key, version uint64, value []byte) (*Record, error) {
	value = slices.Clone(value)
	r := n.change(ctx, func(c *Core) (uint64, error) { return c.Put(k, version, value) })
	return r.Record, r.Err
}

// Delete removes a record.
func (n *Node) Delete(ctx context.Context, k Key, version uint64) error {
	return n.change(ctx, func(c *Core) (uint64, error) { return c.Delete(k, version) }).Err
}

// Get returns the newest version of a record, nil if there never was one. It asks a majority; the record may be a
// deleted one, whose version the next change names.
func (n *Node) Get(ctx context.Context, k Key) (*Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	end := make(chan struct{})
	var number uint64
	var err error
	late := n.doFor(ctx, func() {
		if number, err = n.core.Read(); err == nil {
			n.reads[number] = end
		}
	})
	if late == net.ErrClosed {
		late = context.Canceled
	}
	if err := cmp.Or(late, err); err != nil {
		return nil, err
	}
	var r *Record
	select {
	case <-end:
		if n.look(func() { r = n.core.state.Newest(k) }) {
			return r, nil
		}
		return nil, context.Canceled
	case <-ctx.Done():
		err = ctx.Err()
		n.look(func() {
			n.core.ForgetRead(number)
			delete(n.reads, number)
			err = cmp.Or(n.why(), err)
		})
		return nil, err
	case <-n.ended:
		return nil, context.Canceled
	}
}

// Watch calls f with each record as this node knows it, and then with each change, in order. f must not block, nor
// call the node. It is called until stop or Close has returned.
func (n *Node) Watch(f func(*Record)) (stop func()) {
	w := &f
	n.do(func() {
		for _, k := range n.core.state.keys() {
			f(n.core.state.records[k])
		}
		n.watchers = append(n.watchers, w)
	})
	return func() {
		n.do(func() { n.watchers = slices.DeleteFunc(n.watchers, func(o *func(*Record)) bool { return o == w }) })
	}
}

// NewToken makes a token with which one machine can join.
func (n *Node) NewToken(ctx context.Context) (Token, error) {
	var t Token
	r := n.change(ctx, func(c *Core) (uint64, error) {
		t = newToken(c.log.id.Authority)
		return c.AddToken(t.secret[:])
	})
	return t, r.Err
}

// Leave replaces or removes the member of that name. One that is replaced, and has no successor yet, can be removed. Done twice it is the same,
// until a successor has joined, or the member is gone. A member is refused by all others from then on, though it may have its vote still. So Leave
// refuses, with a *RefusedError, to send one away without which no majority of the voters is up: nothing could be agreed on any more, not even
// who votes in its place. It waits for voters until ctx ends. Without such a member it returns a *NoMemberError.
func (n *Node) Leave(ctx context.Context, name string, how Leaving) error {
	if s, err := n.Await(ctx, func(s *Status) bool { return s.canSpare(name) }); err == net.ErrClosed {
		return ErrUnknown
	} else if err != nil {
		return &RefusedError{fmt.Sprintf("nothing was changed: without node %s no majority of the voters (%s) would be up, and nothing could be agreed on any more. "+
			"Bring voters up, or join nodes, first; if the others are lost for good, have one node go on as a cluster of its own (target ha force)", name, strings.Join(s.voterNames(), ", "))}
	}
	return n.change(ctx, func(c *Core) (uint64, error) {
		var number uint64
		for _, m := range c.state.members { // the last one of the name is the one that stays, if there is one
			if m.Name == name && m.Leaving <= how {
				number = m.Number
			}
		}
		if number == 0 {
			return 0, &NoMemberError{name}
		}
		return c.Leave(number, how)
	}).Err
}

// NoMemberError says that no member has that name, or none that has not left yet.
type NoMemberError struct{ Name string }

func (e *NoMemberError) Error() string { return fmt.Sprintf("there is no member %s", e.Name) }

// canSpare reports whether a majority of the voters, and of the former ones while they change, is up without the member of that name. It is true
// where there is nothing to lose: the member is leaving already, there is none, or it is the only one, which consensus does not let go.
func (s *Status) canSpare(name string) bool {
	var number uint64
	others := 0
	for _, m := range s.Members {
		switch {
		case m.Leaving != Stays:
		case m.Name == name:
			number = m.Number
		default:
			others++
		}
	}
	if number == 0 || others == 0 {
		return true
	}
	for _, voters := range [][]uint64{s.Voters, s.Former} {
		up := 0
		for _, v := range voters {
			if m := s.Member(v); m != nil && v != number && m.Leaving == Stays && slices.Contains(s.Heard, v) {
				up++
			}
		}
		if len(voters) > 0 && up <= len(voters)/2 {
			return false
		}
	}
	return true
}

// voterNames returns the names of the voters.
func (s *Status) voterNames() (names []string) {
	for _, v := range s.Voters {
		if m := s.Member(v); m != nil {
			names = append(names, m.Name)
		}
	}
	return names
}

// Status is what this node knows.
type Status struct {
	Cluster string
	Number  uint64 // of this node
	Leader  uint64 // 0: none
	Term    uint64
	Members []Member
	Voters  []uint64
	Former  []uint64 // voters whose majority is needed as well, while a change of the voters is under way
	// Settling says that this node leads, and that new voters may not know yet that they vote: if the leader is lost now the others may have to wait for it.
	Settling bool
	Heard    []uint64 // members that are connected, and this node
	Stuck    []uint64 // members that say that their disk takes nothing, so that they take no part
	Trouble  error    // why this node takes no part

	// Infos are what nodes say of themselves, by name, as far as this one knows.
	Infos map[string]*NodeInfo
	// Broken says why this node cannot send to a member, by number, where it has tried and cannot.
	Broken map[uint64]string
	// Clocks says by how much the clock of a member is faster than that of this node, as a part of 1, by number, where that is much. Less than 0: it is slower.
	Clocks map[uint64]float64
}

// Member returns the member of that number, nil if there is none.
func (s *Status) Member(number uint64) *Member {
	for i := range s.Members {
		if s.Members[i].Number == number {
			return &s.Members[i]
		}
	}
	return nil
}

// Status returns what this node knows, without asking others.
func (n *Node) Status() (s Status) {
	n.look(func() { s = n.status() })
	return s
}

// status is called by the owner.
func (n *Node) status() Status {
	s := Status{Cluster: n.core.state.name, Number: n.core.log.id.Number, Members: n.core.state.Members(), Trouble: n.why()}
	s.Leader, s.Term = n.core.Leader()
	s.Voters, s.Former = n.core.Voters()
	s.Settling = n.core.Settling()
	s.Infos, s.Broken = map[string]*NodeInfo{}, map[uint64]string{}
	s.Clocks = map[uint64]float64{}
	for number, p := range n.peers {
		if faster := p.clock(); faster != 0 {
			s.Clocks[number] = faster
		}
		if why := p.reason(); why != "" {
			s.Broken[number] = why
		}
	}
	for _, m := range s.Members {
		if r := n.core.state.Get(Key{KindNode, m.Name}); r != nil {
			if info, err := DecodeNodeInfo(r.Value); err == nil { // else of a newer version
				s.Infos[m.Name] = info
			}
		}
		if r := n.core.hears(m.Number); r != nil && r.Stuck {
			s.Stuck = append(s.Stuck, m.Number)
		}
		if in := n.incoming[m.Number]; m.Number == s.Number || in != nil && n.isHeard(in) {
			s.Heard = append(s.Heard, m.Number)
		}
	}
	return s
}

// await is a call of Await.
type await struct {
	holds func(*Status) bool
	found chan Status // has room for one
}

// Await returns the status when holds returns true for it: at once, or after a change. holds is called by the
// goroutine that owns the node.
func (n *Node) Await(ctx context.Context, holds func(*Status) bool) (Status, error) {
	a := &await{holds, make(chan Status, 1)}
	if n.doFor(ctx, func() { n.awaits[a] = true }) == net.ErrClosed {
		return Status{}, net.ErrClosed
	}
	select {
	case s := <-a.found:
		return s, nil
	case <-ctx.Done():
		n.look(func() { delete(n.awaits, a) })
		return n.Status(), ctx.Err()
	case <-n.ended:
		return Status{}, net.ErrClosed
	}
}

// tell looks at what is awaited.
func (n *Node) tell() {
	if len(n.awaits) == 0 {
		return
	}
	s := n.status()
	for a := range n.awaits {
		if a.holds(&s) {
			delete(n.awaits, a)
			a.found <- s
		}
	}
}

// Follower joins a core of ha/replica with a Node.
type Follower struct {
	n      *Node
	views  *Views
	agreed func(replica.View)
}

// Follow calls agreed with the views of a set, oldest first: the first one that a majority has confirmed in this life
// of the node, and each later one. What it is called with goes to the core as replica.Agreed; agreed must not block,
// and runs in a goroutine of the node. Nothing is proposed for another lineage than that. An error says that the node is
// closed, or asks too much at once.
func (n *Node) Follow(set string, lineage uint64, agreed func(replica.View)) (*Follower, error) {
	f, err := &Follower{n: n, agreed: agreed}, net.ErrClosed
	n.do(func() {
		if f.views, err = ViewsOf(n.core, set, lineage); err == nil {
			n.follows = append(n.follows, f)
		}
	})
	return f, err
}

// Propose asks for a view: what the core says in replica.Propose. It returns before the end is known; if the view
// becomes the next one Follow tells. A core asks again while it hears of nothing.
func (f *Follower) Propose(v replica.View) error {
	err := net.ErrClosed
	f.n.do(func() { err = f.views.Propose(v) })
	return err
}

// Close ends the calls: none is made after it has returned.
func (f *Follower) Close() {
	f.n.do(func() { f.n.follows = slices.DeleteFunc(f.n.follows, func(o *Follower) bool { return o == f }) })
}
