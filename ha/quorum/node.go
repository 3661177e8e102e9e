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
	awaits   map[*await]bool
	clock    uint64    // of beats, at ...
	began    time.Time // ... this time
	trouble  error     // why it takes no part
	outdated chan struct{}
	turned   chan struct{} // has room for one

	streaming sync.Mutex // a leaf: who closes a stream does not wait for the owner, and so for the disk
	streams   map[*Stream]bool
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
		opts: o, calls: make(chan func(), 64), looks: make(chan func()), ended: make(chan struct{}), outdated: make(chan struct{}), turned: make(chan struct{}, 1), core: core, peers: map[uint64]*peer{}, incoming: map[uint64]*incoming{},
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

// Outdated is closed when the others have refused this node for good: the Trouble of Status is an *OutdatedError then.
func (n *Node) Outdated() <-chan struct{} { return n.outdated }

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
	n.streaming.Lock()
	for s := range n.streams {
		_ = s.NetConn().Close()
	}
	n.streaming.Unlock()
	for _, end := range n.ends {
		end <- Result{Err: ErrUnknown}
	}
	close(n.ended)
}

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

// post lets the owner do f, behind what was posted before. false: the node is closed, and f is not called.
func (n *Node) post(f func()) bool {
	select {
	case n.calls <- f:
		return true
	case <-n.ended:
		return false
	}
}

// do is post, and waits for f. false: the node is closed, and f is not called.
func (n *Node) do(f func()) bool {
	done := make(chan struct{})
	if !n.post(func() { f(); close(done) }) {
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
		if n.trouble == nil || n.trouble.Error() != err.Error() { // once: it is for good
			close(n.outdated)
		}
	}
	turned := (err == nil) != (n.trouble == nil)
	if turned || err != nil && err.Error() != n.trouble.Error() {
		if err != nil {
			n.opts.Log.Error("this node takes no part in consensus", "reason", err)
		} else {
			n.opts.Log.Info("this node takes part in consensus again")
		}
	}
	n.trouble = err
	if turned {
		n.stuckTurned()
	}
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
		n.stuckTurned() // another one may have the name
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
	if s, err := n.Await(ctx, func(s *Status) bool { return s.CanSpare(name) }); err == net.ErrClosed {
		return ErrUnknown
	} else if err != nil {
		return &RefusedError{fmt.Sprintf("nothing was changed: without node %s no majority of the voters (%s) would be up and take part, and nothing could be agreed on any more. "+
			"Bring voters up, mend the disks of those that are stuck, or join nodes, first; if the others are lost for good, have one node go on as a cluster of its own (target ha force)", name, strings.Join(s.voterNames(), ", "))}
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
