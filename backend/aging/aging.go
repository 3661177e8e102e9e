// Package aging wraps a store whose cache a power cut loses, and flushes it by itself, so that each write is
// durable within a configured time.
//
// A write completes as the store below says. The first one after a flush starts a timer of half the window; when
// it fires the store is flushed once. So a write that completed at t is durable at t + window, as long as a flush
// takes less than half the window, and otherwise at t + window/2 + 2 × the longest flush. A power cut takes at
// most what completed in that time.
//
// Flushes of users count, too: while users flush often enough, the timer has nothing to do. After a flush has
// failed, of whomever, nothing is promised any more until the store is opened again: flushes and durable
// writes fail with a *durable.LostError.
//
// A part of a store, such as a partition, has a policy of its own (Part, Policy), which may change at any time. Its
// flushes are those of the whole store.
package aging

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"oneshot/backend"
	"oneshot/backend/durable"
)

// Config says how a store ages.
type Config struct {
	// Window is how long a completed write may stay in the cache alone. 0: for ever.
	Window time.Duration
	Name   string       // of the store, for people
	Logger *slog.Logger // nil: slog.Default()
}

// Policy says what happens to writes that nobody flushes.
type Policy struct {
	// Window is how long a completed write may stay in the cache alone. 0: for ever, as far as this policy goes.
	Window time.Duration
	// Through makes each write durable before it completes.
	Through bool
}

// Store is a store that ages. Its methods may be called from any goroutine, except Close, which comes last.
type Store struct {
	backend.Store
	cfg    Config
	log    *slog.Logger
	clock  clock
	below  backend.Ager  // what ages below, or nil
	mode   atomic.Uint32 // modeOff …
	window atomic.Int64  // of the policy, as far as it is shorter than that of below
	dirty  atomic.Bool   // the core's, so that most writes need no lock
	used   atomic.Bool   // something was written while no policy was in force
	lost   atomic.Pointer[durable.LostError]

	mu      sync.Mutex // not held over calls to the store below, to Completers and observers
	core    core
	stop    func() // the timer; nil: none is set
	alarm   time.Duration
	warned  time.Duration // the longest flush of which the log has told
	closed  bool
	ended   sync.Cond // a flush of our own has
	flushes uint64

	own   backend.Op // the flush of our own; one at a time
	began time.Duration

	observing sync.Mutex // held over calls of observers; taken before mu
	observers []*observer
}

// observer is told of the flushes of our own.
type observer struct {
	backend.FlushObserver
	told bool // that a flush has begun
}

var (
	_ backend.Wrapper = (*Store)(nil)
	_ backend.Ager    = (*Store)(nil)
)

// clock tells the time, and calls functions later, in goroutines of their own.
type clock interface {
	now() time.Duration
	call(at time.Duration, f func()) (stop func())
}

// realClock tells the time since start.
type realClock struct{ start time.Time }

func (c realClock) now() time.Duration { return time.Since(c.start) }

func (c realClock) call(at time.Duration, f func()) (stop func()) {
	t := time.AfterFunc(at-c.now(), f)
	return func() { t.Stop() }
}

// New wraps inner, which belongs to the wrapper from now on. If there is nothing to do, because the window is 0 or
// no completed write can be lost, it returns inner itself.
func New(inner backend.Store, c Config) backend.Store {
	return newStore(inner, c, realClock{time.Now()})
}

func newStore(inner backend.Store, c Config, k clock) backend.Store {
	if c.Window <= 0 || !inner.Info().VolatileCache {
		return inner
	}
	s := newPart(inner, c, k)
	s.Set(Policy{Window: c.Window})
	return s
}

// Part wraps inner, which belongs to the wrapper from now on, for a policy that can be changed; at first there is none.
// Config.Window is without meaning. If no completed write can be lost, it returns inner itself, and nil.
func Part(inner backend.Store, c Config) (backend.Store, *Store) {
	if !inner.Info().VolatileCache {
		return inner, nil
	}
	s := newPart(inner, c, realClock{time.Now()})
	return s, s
}

func newPart(inner backend.Store, c Config, k clock) *Store {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	s := &Store{Store: inner, cfg: c, log: c.Logger, clock: k}
	s.below, _ = backend.As[backend.Ager](inner)
	s.ended.L = &s.mu
	return s
}

// The modes of a store.
const (
	modeOff uint32 = iota
	modeAging
	modeThrough
)

// Set changes the policy, for writes that are submitted from now on. What is in the cache already is flushed at once,
// whatever was promised of it. A window that is no shorter than that of a store below adds nothing to it.
func (s *Store) Set(p Policy) {
	if s.below != nil && p.Window >= s.below.Window() {
		p.Window = 0
	}
	mode, half := modeOff, time.Duration(0)
	switch {
	case p.Through:
		mode, half, p.Window = modeThrough, 1, 0 // what gets into the cache nevertheless is flushed at once
	case p.Window > 0:
		mode, half = modeAging, max(p.Window/2, 1)
	}
	s.mu.Lock()
	now := s.clock.now()
	if s.mode.Load() == modeOff && mode != modeOff { // nobody has looked whether something is in the cache
		s.core.dirty, s.core.since = s.core.dirty || s.used.Load(), now
	}
	s.mode.Store(mode)
	s.window.Store(int64(p.Window))
	a := s.core.reset(half, now)
	s.dirty.Store(s.core.dirty)
	s.do(a)
}

// Pass lets the abilities through that write nothing. This store would not see writes to lent memory.
func (s *Store) Pass(a backend.Ability) backend.Store {
	switch a {
	case backend.Batching, backend.Resizing, backend.Metering, backend.Identifying:
		return s.Store
	}
	return nil
}

// Window implements backend.Ager. 0: nothing bounds it, or every write is durable at once (Through).
func (s *Store) Window() time.Duration {
	w := time.Duration(s.window.Load())
	if w == 0 && s.below != nil && !s.Through() {
		w = s.below.Window()
	}
	return w
}

// Through reports whether each write is durable before it completes.
func (s *Store) Through() bool { return s.mode.Load() == modeThrough }

// AgeStats implements backend.Ager. What ages below is part of them.
func (s *Store) AgeStats() (n backend.AgeStats) {
	if s.below != nil {
		n = s.below.AgeStats()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return backend.AgeStats{Flushes: n.Flushes + s.flushes, Longest: max(n.Longest, s.core.longest), Lost: n.Lost || s.core.lost}
}

// Observe implements backend.Ager.
func (s *Store) Observe(o func() backend.FlushObserver) (stop func()) {
	x := &observer{FlushObserver: o()}
	s.observing.Lock()
	s.observers = append(s.observers, x)
	s.observing.Unlock()
	stopBelow := func() {}
	if s.below != nil {
		stopBelow = s.below.Observe(o)
	}
	return func() {
		s.observing.Lock()
		s.observers = slices.DeleteFunc(s.observers, func(y *observer) bool { return x == y })
		s.observing.Unlock()
		stopBelow()
	}
}

// request is an operation of the store below, for one of ours.
type request struct {
	op     backend.Op
	caller *backend.Op
	s      *Store
	began  time.Duration // of a flush
	was    dirt          // that it is to make durable
	window int64         // of the policy when it was submitted
	kind   kind
}

// kind is what an operation means to the cache.
type kind uint8

const (
	nothing kind = iota
	writes       // something is in the cache afterwards
	flushes      // what was in the cache before is durable afterwards
	flagged      // a write that a flag makes durable
	durably      // a flush is to follow
	trailed      // that flush is under way
)

func kindOf(op *backend.Op) kind {
	switch {
	case op.Kind == backend.Flush || op.Flags&backend.Barrier != 0:
		return flushes
	case op.Kind == backend.Read || op.Kind == backend.Status || op.Flags&backend.FUA != 0:
		return nothing
	}
	return writes
}

// promises reports whether op says at completion that something is durable.
func promises(op *backend.Op) bool {
	return op.Kind == backend.Flush || op.Flags&backend.Barrier != 0 || op.Flags&backend.FUA != 0 && op.Kind != backend.Read && op.Kind != backend.Status
}

var requests = sync.Pool{New: func() any { return new(request) }}

// Submit has the store below do op.
func (s *Store) Submit(op *backend.Op) bool {
	if err := s.lost.Load(); err != nil && promises(op) {
		if op.Err = op.Check(s.Store.Info().Size); op.Err == nil {
			op.Err = err
		}
		return true
	}
	k, mode := kindOf(op), s.mode.Load()
	switch {
	case k == nothing:
		return s.Store.Submit(op)
	case mode == modeOff:
		if k == writes && !s.used.Load() {
			s.used.Store(true)
		}
		return s.Store.Submit(op)
	case mode == modeThrough && k == writes:
		if err := s.lost.Load(); err != nil { // nothing would make it durable
			op.Err = err
			return true
		}
		if k = durably; op.Kind == backend.Write {
			k = flagged
		}
	}
	r := requests.Get().(*request)
	r.op, r.caller, r.s, r.kind, r.window = *op, op, s, k, s.window.Load()
	r.op.Done = r
	if k == flagged {
		r.op.Flags |= backend.FUA
	}
	if k == flushes {
		s.mu.Lock()
		r.began, r.was = s.clock.now(), s.core.begins()
		s.dirty.Store(false)
		s.mu.Unlock()
	}
	if !s.Store.Submit(&r.op) || !r.behind() {
		return false
	}
	r.answer()
	return true
}

// behind flushes what could not be asked to be durable by itself. It reports false if an answer follows.
func (r *request) behind() bool {
	if r.kind != durably || r.op.Err != nil {
		return true
	}
	s := r.s
	r.kind, r.op = trailed, backend.Op{Kind: backend.Flush, Done: r}
	s.mu.Lock()
	r.began = s.clock.now()
	s.core.begins()
	s.dirty.Store(false)
	s.mu.Unlock()
	return s.Store.Submit(&r.op)
}

// OpDone is told by the store below.
func (r *request) OpDone(*backend.Op) {
	if !r.behind() {
		return
	}
	op := r.caller
	r.answer()
	op.Done.OpDone(op)
}

// Cork is for the store below.
func (r *request) Cork() backend.Uncorker { return backend.Cork(r.caller.Done) }

// answer gives the results to the caller's operation, and r back.
func (r *request) answer() {
	s, op := r.s, r.caller
	op.Err, op.Mapped, op.Extent, op.Did = r.op.Err, r.op.Mapped, r.op.Extent, r.op.Did
	switch r.kind {
	case flushes:
		op.Err = s.flushed(r.began, false, op)
	case trailed:
		op.Err = s.flushed(r.began, false, &r.op)
	}
	op.Durable = r.op.Durable || r.kind == flagged || r.kind == trailed
	// A write that fails may have been made in part; so may the operation of a barrier.
	if r.kind == writes || op.Kind != backend.Flush && op.Err != nil {
		s.written(r.window, r.was)
	}
	*r = request{}
	requests.Put(r)
}

// written notes that something is in the cache, which was submitted under a policy with that window. was is what was there before, and no
// flush has made durable.
func (s *Store) written(window int64, was dirt) {
	other := window != s.window.Load()
	if !other && !was.dirty && s.dirty.Load() {
		return // whoever flushes from now on makes ours durable, too
	}
	s.mu.Lock()
	s.core.fails(was)
	a := s.core.written(s.clock.now(), other || s.core.half == 0)
	s.dirty.Store(s.core.dirty)
	s.do(a)
}

// flushed notes that a flush, or an operation with a barrier, has ended, and returns its error.
func (s *Store) flushed(began time.Duration, own bool, op *backend.Op) error {
	err := op.Err
	_, outside := err.(*backend.RangeError) //nolint:errorlint // what a LostError wraps does not count
	failed := err != nil && !outside
	if failed && op.Kind != backend.Flush {
		// The error does not say whether the flush before the operation or the operation itself has failed.
		switch err.(type) { //nolint:errorlint // what a LostError wraps does not count
		case *backend.MediumError, *backend.SpaceError:
			failed = false
		}
	}
	if failed {
		lost, ok := errors.AsType[*durable.LostError](err)
		if !ok {
			lost = &durable.LostError{Err: err}
		}
		if s.lost.CompareAndSwap(nil, lost) {
			s.log.Error("a flush has failed: what was written within the aging window may be lost, and nothing is promised until the store is opened again", "store", s.cfg.Name, "reason", err)
		}
	} else if lost := s.lost.Load(); lost != nil && err == nil {
		err = lost // another one has met the failure meanwhile
	}
	s.mu.Lock()
	now, took := s.clock.now(), time.Duration(0)
	if op.Kind == backend.Flush { // an operation with a barrier has also waited for those before it
		took = now - began
	}
	if own {
		s.flushes++
	}
	s.warn(took)
	s.do(s.core.ended(now, took, own, failed))
	return err
}

// warn tells the log of flushes that take so long that the window is not kept. The lock is held.
func (s *Store) warn(took time.Duration) {
	if s.window.Load() == 0 || took <= s.core.half || took < 2*s.warned {
		return
	}
	s.warned = took
	s.log.Warn("a flush takes longer than half the aging window: writes are durable later than configured", "store", s.cfg.Name,
		"window", time.Duration(s.window.Load()), "flush", took, "durable_after", s.core.half+2*took)
}

// do does what the core says. It is called with the lock held, and releases it.
func (s *Store) do(a action) {
	switch {
	case a.flush && !s.closed:
		s.dirty.Store(false)
		s.mu.Unlock()
		s.flush()
		return
	case a.flush:
		s.core.flushing = false
	case a.at != 0 && !s.closed && (s.stop == nil || a.at < s.alarm):
		if s.stop != nil {
			s.stop()
		}
		s.alarm, s.stop = a.at, s.clock.call(a.at, s.fired)
	}
	s.mu.Unlock()
}

// fired is called by the timer.
func (s *Store) fired() {
	s.mu.Lock()
	now := s.clock.now()
	if s.stop != nil && s.alarm <= now {
		s.stop = nil
	}
	s.do(s.core.timer(now))
}

// flush makes a flush of our own.
func (s *Store) flush() {
	s.observing.Lock()
	for _, o := range s.observers {
		o.told = true
		o.FlushBegins()
	}
	s.observing.Unlock()
	s.began = s.clock.now()
	s.own = backend.Op{Kind: backend.Flush, Done: (*ownFlush)(s)}
	if s.Store.Submit(&s.own) {
		(*ownFlush)(s).OpDone(&s.own)
	}
}

// ownFlush is the completer of our own flush.
type ownFlush Store

// OpDone is told by the store below.
func (f *ownFlush) OpDone(op *backend.Op) {
	s := (*Store)(f)
	err := op.Err
	if lost := s.lost.Load(); lost != nil && err == nil {
		err = lost // another flush has met the failure
	}
	s.observing.Lock()
	for _, o := range s.observers {
		if o.told {
			o.told = false
			o.FlushEnded(err)
		}
	}
	s.observing.Unlock()
	_ = s.flushed(s.began, true, op) // what it returns is kept in lost
	s.mu.Lock()
	s.ended.Broadcast()
	s.mu.Unlock()
}

// Close waits for a flush of our own, and closes the store below, which makes durable what was written.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	if s.stop != nil {
		s.stop()
	}
	for s.core.flushing {
		s.ended.Wait()
	}
	s.mu.Unlock()
	err := s.Store.Close()
	if lost := s.lost.Load(); lost != nil && err == nil {
		return lost
	}
	return err
}
