// Package throttle is a block store that limits how many operations and bytes a second reach the store
// below it, so that one disk does not take what others need.
//
//	Submit ──► within the rates ──────────────────► the store below
//	             │                                     ▲
//	             └─► queue, first in, first out ─ timer ┘
//
// The store sees every operation, so it lends no memory, whatever the store below does.
package throttle

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"oneshot/backend"
)

// burst is how much earlier than its time an operation may start. So what was not used is not lost at
// once, and the timer need not fire for each operation.
const burst = 20 * time.Millisecond

// Limits are rates; 0: none.
type Limits struct {
	Operations int64 // reads, writes, discards and the like a second
	Bytes      int64 // that are read and written a second
}

// Store is a store with limits.
type Store struct {
	backend.Store
	operations, bytes rate

	mu    sync.Mutex    // not held over calls to the store below and to Completers
	queue backend.Queue // waits for its time
	timer *time.Timer
	armed bool // the timer will look at the queue, or is doing so: everybody joins it, lest he overtakes who has just left it
}

var _ backend.Wrapper = (*Store)(nil)

// New returns inner with limits, and owns it.
func New(inner backend.Store, l Limits) (*Store, error) {
	if l.Operations < 0 || l.Bytes < 0 {
		return nil, fmt.Errorf("limits of %d operations and %d bytes a second: they have to be positive", l.Operations, l.Bytes)
	}
	if l.Operations == 0 && l.Bytes == 0 {
		return nil, errors.New("no limit is set: give operations, bytes, or both")
	}
	s := &Store{Store: inner, operations: rate{per: l.Operations}, bytes: rate{per: l.Bytes}}
	s.timer = time.AfterFunc(time.Hour, s.release)
	s.timer.Stop()
	return s, nil
}

// rate is a number of things a second.
type rate struct {
	per  int64     // 0: any
	next time.Time // when the next one is due
}

// in returns how long it takes until more may come.
func (r *rate) in(now time.Time) time.Duration {
	if r.per == 0 || !r.next.After(now) {
		return 0
	}
	return max(0, r.next.Sub(now)-burst)
}

// take counts n things.
func (r *rate) take(now time.Time, n int64) {
	if r.per == 0 {
		return
	}
	if r.next.Before(now) {
		r.next = now
	}
	// In two parts, for n seconds may be more than fit.
	r.next = r.next.Add(time.Duration(n/r.per)*time.Second + time.Duration(float64(n%r.per)/float64(r.per)*float64(time.Second)))
}

// Submit starts op when it is within the rates.
func (s *Store) Submit(op *backend.Op) bool {
	if op.Err = op.Check(s.Info().Size); op.Err != nil {
		return true // counts for nothing, however long it was to be
	}
	s.mu.Lock()
	if s.armed || !s.admit(op, time.Now()) {
		s.queue.Push(op)
		s.arm(time.Now())
		s.mu.Unlock()
		return false
	}
	s.mu.Unlock()
	return s.Store.Submit(op)
}

// admit counts op and reports true, if its time has come. What moves and changes nothing is free.
// Called with mu held.
func (s *Store) admit(op *backend.Op, now time.Time) bool {
	var bytes int64
	switch op.Kind {
	case backend.Flush, backend.Status:
		return true
	case backend.Read, backend.Write:
		bytes = op.Len
	}
	if s.operations.in(now) > 0 || s.bytes.in(now) > 0 {
		return false
	}
	s.operations.take(now, 1)
	s.bytes.take(now, bytes)
	return true
}

// arm sets the timer to when the first in the queue may go. Called with mu held.
func (s *Store) arm(now time.Time) {
	if !s.armed {
		s.armed = true
		s.timer.Reset(max(s.operations.in(now), s.bytes.in(now)))
	}
}

// release starts what may go now. The timer calls it, one at a time.
func (s *Store) release() {
	for {
		s.mu.Lock()
		now := time.Now()
		op := s.queue.Pop()
		if op == nil {
			s.armed = false
			s.mu.Unlock()
			return
		}
		if !s.admit(op, now) {
			s.queue.Unpop(op)
			s.armed = false
			s.arm(now)
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		op.Flags &^= backend.More // its batch is long gone
		if s.Store.Submit(op) {
			op.Done.OpDone(op)
		}
	}
}

// Pass lets through what moves no bytes: batches are kicked in the store below.
func (s *Store) Pass(a backend.Ability) backend.Store {
	switch a {
	case backend.Batching, backend.Resizing, backend.Metering, backend.Identifying, backend.Aging:
		return s.Store
	}
	return nil
}

// Close closes the store below.
func (s *Store) Close() error {
	s.timer.Stop()
	return s.Store.Close()
}
