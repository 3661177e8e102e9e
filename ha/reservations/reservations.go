// Package reservations keeps registrations and reservations of a mirrored volume the same on all of its nodes.
//
//	PR OUT, on b ──► record n ──► tables of a, b, …      in the order of consensus, before any later view
//	                              a, the primary: "kept: n" ──► b answers
//
// A change replaces a record of consensus, and each node's access.Table adopts each record. Only the primary does I/O, so a
// change is in force when the primary has adopted it, and has ended what it aborts. The primary says so in a second record, and only
// then is the change answered. It says so as the primary of the newest view that it knows, so each later primary learns of the
// record before it learns of its own view. One that is cut off does not say anything, so nobody is told that others are kept
// from writing who are not.
package reservations

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"sync"
	"time"

	"oneshot/ha/quorum"
	"oneshot/volume/access"
)

// Consensus is what is needed of a *quorum.Node.
type Consensus interface {
	Get(ctx context.Context, k quorum.Key) (*quorum.Record, error)
	Update(ctx context.Context, k quorum.Key, change func(old []byte) ([]byte, error)) error
	Watch(f func(*quorum.Record)) (stop func())
}

// Options of the reservations of a volume on one node.
type Options struct {
	Consensus Consensus
	Set       string // of views, whose primary serves the volume
	Node      string // name of this one

	// Term is that in which this node serves the volume, 0: it does not. It never is one of which the node has not learned by
	// consensus, after a majority has confirmed in this life that nothing newer was there. It takes no lock. Prove returns nil if the
	// node has served it in that term at some time during the call.
	Term  func() uint64
	Prove func(term uint64) error

	// Unreadable is told why this node cannot read the newest state, and nil when it can again: one that serves meanwhile would keep to what is not in force.
	// It does not block. The view of this node's own term comes later. nil: nobody wants to know.
	Unreadable func(why error)

	Log *slog.Logger
}

// Patience is how long a change waits for others. Initiators wait for 30 s at least.
const Patience = 5 * time.Second

// ErrAlone says that nobody agrees.
var ErrAlone = errors.New("no majority of the voters, or no primary, has agreed within 5 s")

// Reservations joins a volume's table with consensus. It is the edge of a Core.
type Reservations struct {
	o      Options
	kick   chan struct{} // has room for one: there may be something to say
	ctx    context.Context
	cancel context.CancelFunc
	stop   func()
	wg     sync.WaitGroup

	mu      sync.Mutex    // taken before the table's
	core    *Core         // guarded by mu, but for its keys
	unread  bool          // Unreadable was told so; guarded by mu
	changed chan struct{} // closed when the core has learned something; guarded by mu
}

var _ access.Agreement = (*Reservations)(nil)

// Begin has the table's reservations agreed on with other nodes. The table has no subscribers yet.
func Begin(t *access.Table, o Options) *Reservations {
	r := &Reservations{o: o, kick: make(chan struct{}, 1), core: NewCore(t, o.Set, o.Node, number()), changed: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	t.Share(r)
	r.stop = o.Consensus.Watch(r.learn)
	r.wg.Go(r.run)
	r.Served()
	return r
}

// Close ends it. Changes that wait end.
func (r *Reservations) Close() {
	r.cancel()
	r.stop()
	r.wg.Wait()
}

// number draws a number that is not 0.
func number() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:]) | 1
}

// Served says that Term may return another one.
func (r *Reservations) Served() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// learn takes a record of consensus, in its order.
func (r *Reservations) learn(x *quorum.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	abort, isOurs := r.core.Learn(x, r.o.Term() != 0)
	if !isOurs {
		return
	}
	if _, _, err := r.core.Newest(); x.Key == r.core.RecordKey() && (err != nil || r.unread) {
		if err != nil {
			r.o.Log.Error("reservations of a mirror are not kept to here, and cannot change", "reason", err)
		}
		if r.unread = err != nil; r.o.Unreadable != nil {
			r.o.Unreadable(err)
		}
	}
	if abort != nil {
		r.wg.Go(func() {
			abort.Run(func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.core.Aborted(abort.Changes)
				r.Served()
			})
		})
	}
	close(r.changed)
	r.changed = make(chan struct{})
	r.Served()
}

// run says what there is to say, whenever that may have changed. Without a majority it waits.
//
// Before, it learns what happened before this life, which is told to nobody: it would abort commands of those who were fenced
// long ago.
func (r *Reservations) run() {
	begin := func() error {
		_, err := r.o.Consensus.Get(r.ctx, r.core.RecordKey())
		return err
	}
	if !r.until(begin) {
		return
	}
	r.mu.Lock()
	r.core.Confirmed()
	r.mu.Unlock()
	for {
		select {
		case <-r.kick:
		case <-r.ctx.Done():
			return
		}
		r.until(func() error { return errors.Join(r.enter(), r.keep()) })
	}
}

// until does something until it succeeds. It may fail for a moment, when too many others wait for consensus, and nothing else would have it
// done: changes would wait for ever for what this node does not say. False: this ends.
func (r *Reservations) until(do func() error) bool {
	for {
		err := do()
		if err == nil || r.ctx.Err() != nil {
			return err == nil
		}
		r.o.Log.Warn("consensus on the reservations of a mirror", "reason", err)
		select {
		case <-time.After(again):
		case <-r.ctx.Done():
			return false
		}
	}
}

// again is the pause after an error. Changes wait for longer.
const again = 500 * time.Millisecond

// enter does Core.Enter.
func (r *Reservations) enter() error {
	r.mu.Lock()
	change := r.core.Enter(r.o.Term())
	r.mu.Unlock()
	return r.update(r.core.RecordKey(), change)
}

// keep does Core.Keep.
func (r *Reservations) keep() error {
	r.mu.Lock()
	change := r.core.Keep(r.o.Term())
	r.mu.Unlock()
	return r.update(r.core.KeptKey(), change)
}

// update has consensus do a change that may be nil, and does not look at the core.
func (r *Reservations) update(k quorum.Key, change func(old []byte) ([]byte, error)) error {
	if change == nil {
		return nil
	}
	return r.o.Consensus.Update(r.ctx, k, change)
}

// await waits until the primary keeps to so many changes.
func (r *Reservations) await(ctx context.Context, changes uint64) error {
	for {
		r.mu.Lock()
		holds := r.core.Holds(changes)
		changed := r.changed
		r.mu.Unlock()
		if holds {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ErrAlone
		}
	}
}

// Change implements access.Agreement.
func (r *Reservations) Change(change func(n *access.Common, repeated bool) (changes, again bool)) error {
	ctx, cancel := context.WithTimeout(r.ctx, Patience)
	defer cancel()
	p := r.core.Begin(change, number())
	err := r.o.Consensus.Update(ctx, r.core.RecordKey(), func(old []byte) ([]byte, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return p.Make(old)
	})
	if err == nil {
		err = r.await(ctx, p.Changes())
	}
	r.mu.Lock()
	p.Ended(err)
	r.mu.Unlock()
	return cause(err)
}

// cause says ErrAlone of what has waited in vain.
func cause(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, quorum.ErrUnknown) {
		return ErrAlone
	}
	return err
}

// Look implements access.Agreement. The primary need not ask others, so it answers without a majority while it may serve.
func (r *Reservations) Look() (access.State, error) {
	if term := r.o.Term(); term != 0 {
		r.mu.Lock()
		s, _, broken := r.core.Newest()
		r.mu.Unlock()
		if broken == nil && r.o.Prove(term) == nil {
			return s, nil
		}
	}
	ctx, cancel := context.WithTimeout(r.ctx, Patience)
	defer cancel()
	if _, err := r.o.Consensus.Get(ctx, r.core.RecordKey()); err != nil {
		return access.State{}, cause(err)
	}
	r.mu.Lock()
	s, changes, broken := r.core.Newest()
	r.mu.Unlock()
	if broken != nil {
		return access.State{}, broken
	}
	return s, r.await(ctx, changes)
}
