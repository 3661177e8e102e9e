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
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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

	Log *slog.Logger
}

// Patience is how long a change waits for others. Initiators wait for 30 s at least.
const Patience = 5 * time.Second

// ErrAlone says that nobody agrees.
var ErrAlone = errors.New("no majority of the voters, or no primary, has agreed within 5 s")

// Reservations joins a volume's table with consensus.
type Reservations struct {
	o      Options
	table  *access.Table
	self   life
	kick   chan struct{} // has room for one: there may be something to say
	ctx    context.Context
	cancel context.CancelFunc
	stop   func()
	wg     sync.WaitGroup

	mu      sync.Mutex // taken before the table's
	view    quorum.Set // the newest that this node has learned of; guarded by mu, as the rest
	newest  record
	current bool  // a majority has confirmed, in this life, that nothing newer was there
	broken  error // the record cannot be read
	kept    kept
	ending  map[uint64]bool // changes whose aborts are not over
	doubt   uint64          // the ticket of the newest change of this node that was not answered; 0: none
	changed chan struct{}   // closed when one of these has changed
}

var _ access.Agreement = (*Reservations)(nil)

// record is the value of quorum.KindUnit, by the name of the set.
type record struct {
	Format int // 1
	access.Common

	// Of the last change: the view that its node knew, and a random number. Tickets are the numbers of each node's last one.
	Lineage, Term, Ticket uint64
	Tickets               map[string]uint64 `json:",omitempty"`

	// Warm processes have known the state without a gap since it began, or was kept over a loss of power. Cold ones have
	// begun since, and become warm when a warm one says so.
	Warm, Cold []life `json:",omitempty"`
}

// life is a process.
type life struct {
	Node  string
	Nonce uint64
}

// kept is the value of quorum.KindUnit, by the name of the set and keptSuffix: what the primary keeps to.
type kept struct {
	Format  int // 1
	Changes uint64
}

const keptSuffix = " kept"

func (r *Reservations) recordKey() quorum.Key {
	return quorum.Key{Kind: quorum.KindUnit, Name: r.o.Set}
}

func (r *Reservations) keptKey() quorum.Key {
	return quorum.Key{Kind: quorum.KindUnit, Name: r.o.Set + keptSuffix}
}

// Begin has the table's reservations agreed on with other nodes. The table has no subscribers yet.
func Begin(t *access.Table, o Options) *Reservations {
	r := &Reservations{
		o: o, table: t, self: life{o.Node, number()}, kick: make(chan struct{}, 1), ending: map[uint64]bool{}, changed: make(chan struct{}),
		newest: record{Format: 1, Common: access.Common{State: access.Nothing()}},
	}
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
	if x.Deleted {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch x.Key {
	case quorum.Key{Kind: quorum.KindSet, Name: r.o.Set}:
		if s, err := quorum.DecodeSet(x.Value); err == nil {
			r.view = s
		}
	case r.keptKey():
		var k kept
		if err := json.Unmarshal(x.Value, &k); err == nil && k.Format == 1 {
			r.kept = k
		}
	case r.recordKey():
		r.adopt(x.Value)
	default:
		return
	}
	close(r.changed)
	r.changed = make(chan struct{})
	r.Served()
}

// adopt takes a state. mu is held.
func (r *Reservations) adopt(value []byte) {
	n, err := decode(value)
	if r.broken = err; err != nil {
		r.o.Log.Error("reservations of a mirror are not kept to here, and cannot change", "reason", err)
		return
	}
	r.newest = n
	// Who serves has learned in this life that nothing newer was there, too, and may have commands that the change aborts.
	abort := r.table.Adopt(&n.Common, r.current || r.o.Term() != 0)
	if abort == nil {
		return
	}
	r.ending[n.Changes] = true
	r.wg.Go(func() {
		abort(func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			delete(r.ending, n.Changes)
			r.Served()
		})
	})
}

func decode(value []byte) (record, error) {
	n := record{Format: 1, Common: access.Common{State: access.Nothing()}}
	if value == nil {
		return n, nil
	}
	if err := json.Unmarshal(value, &n); err != nil {
		return n, fmt.Errorf("the record of reservations cannot be read: %w", err)
	}
	if n.Format != 1 {
		return n, fmt.Errorf("the record of reservations has format %d, which this version does not know: bring all nodes to the same version", n.Format)
	}
	return n, n.State.Check()
}

func (n *record) encode() ([]byte, error) {
	b, err := json.Marshal(n)
	if err == nil && len(b) > quorum.MaxValue {
		err = access.ErrNoRoom
	}
	return b, err
}

// run says what there is to say, whenever that may have changed. Without a majority it waits.
//
// Before, it learns what happened before this life, which is told to nobody: it would abort commands of those who were fenced
// long ago.
func (r *Reservations) run() {
	begin := func() error {
		_, err := r.o.Consensus.Get(r.ctx, r.recordKey())
		return err
	}
	if !r.until(begin) {
		return
	}
	r.mu.Lock()
	r.current = true
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

// enter notes that this process has begun, and as a warm one takes others in. What is to end with a loss of power ends when all nodes have
// begun anew since it was noted that one of them knew it.
func (r *Reservations) enter() error {
	r.mu.Lock()
	warm, cold := slices.Contains(r.newest.Warm, r.self), slices.Contains(r.newest.Cold, r.self)
	idle := r.broken != nil || warm && len(r.newest.Cold) == 0 || cold
	r.mu.Unlock()
	if idle {
		return nil
	}
	return r.o.Consensus.Update(r.ctx, r.recordKey(), func(old []byte) ([]byte, error) {
		n, err := decode(old)
		if err != nil {
			return nil, err
		}
		switch {
		case slices.Contains(n.Warm, r.self):
			if len(n.Cold) == 0 {
				return old, nil
			}
			n.Warm, n.Cold = append(n.Warm, n.Cold...), nil
		case slices.Contains(n.Cold, r.self):
			return old, nil
		default:
			former := func(l life) bool { return l.Node == r.self.Node }
			n.Warm, n.Cold = slices.DeleteFunc(n.Warm, former), slices.DeleteFunc(n.Cold, former)
			n.Cold = append(n.Cold, r.self)
			if len(n.Warm) == 0 {
				n.Warm, n.Cold = n.Cold, nil
				var event access.Event
				s := n.State
				if s.Modes != 0 { // none is saved
					s.Modes, event = 0, access.ModesChanged
				}
				if !s.Persist {
					s, event = access.Nothing(), event|access.RegistrationsPreempted|access.ReservationsReleased
				}
				if event != 0 {
					n.Common = access.Common{Changes: n.Changes + 1, State: s, Event: event}
				}
			}
		}
		return n.encode()
	})
}

// keep says what this node keeps to, if it is the primary and nobody has said so.
func (r *Reservations) keep() error {
	r.mu.Lock()
	term, k := r.view.View.Term, kept{1, r.newest.Changes}
	for n := range r.ending {
		k.Changes = min(k.Changes, n-1)
	}
	said := r.kept.Changes >= k.Changes
	r.mu.Unlock()
	if said || term == 0 || r.o.Term() != term {
		return nil
	}
	return r.o.Consensus.Update(r.ctx, r.keptKey(), func(old []byte) ([]byte, error) {
		var was kept
		if old != nil && json.Unmarshal(old, &was) == nil && was.Changes >= k.Changes {
			return old, nil
		}
		return json.Marshal(k)
	})
}

// await waits until the primary keeps to so many changes.
func (r *Reservations) await(ctx context.Context, changes uint64) error {
	for {
		r.mu.Lock()
		holds := r.kept.Changes >= changes
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
	ticket := number()
	var changes uint64
	var isNew, again bool
	err := r.o.Consensus.Update(ctx, r.recordKey(), func(old []byte) ([]byte, error) {
		n, err := decode(old)
		if err != nil {
			return nil, err
		}
		changes = n.Changes
		if n.Tickets[r.o.Node] == ticket { // it has taken place, and the answer was lost
			return old, nil
		}
		r.mu.Lock()
		view, doubt := r.view, r.doubt
		r.mu.Unlock()
		repeated := n.Ticket != 0 && (n.Ticket == doubt || n.Term != view.View.Term || n.Lineage != view.Lineage)
		if isNew, again = change(&n.Common, repeated); !isNew {
			if old == nil {
				return n.encode()
			}
			return old, nil
		}
		changes = n.Changes
		if n.Tickets == nil {
			n.Tickets = map[string]uint64{}
		}
		if !slices.Contains(n.Warm, r.self) { // what it has changed must not end with those who are not there
			n.Warm, n.Cold = append(n.Warm, r.self), slices.DeleteFunc(n.Cold, func(l life) bool { return l == r.self })
		}
		n.Tickets[r.o.Node], n.Ticket, n.Lineage, n.Term = ticket, ticket, view.Lineage, view.View.Term
		return n.encode()
	})
	if err == nil {
		err = r.await(ctx, changes)
	}
	r.mu.Lock()
	switch { // else it is nothing new, and the change before has not been answered for that
	case err != nil && isNew:
		r.doubt = ticket
	case err == nil && again:
		r.doubt = 0
	}
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
		s, broken := r.newest.State, r.broken
		r.mu.Unlock()
		if broken == nil && r.o.Prove(term) == nil {
			return s, nil
		}
	}
	ctx, cancel := context.WithTimeout(r.ctx, Patience)
	defer cancel()
	if _, err := r.o.Consensus.Get(ctx, r.recordKey()); err != nil {
		return access.State{}, cause(err)
	}
	r.mu.Lock()
	n, broken := r.newest, r.broken
	r.mu.Unlock()
	if broken != nil {
		return access.State{}, broken
	}
	return n.State, r.await(ctx, n.Changes)
}
