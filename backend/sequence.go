package backend

import "sync/atomic"

// Sequence numbers the writes of a store, or of a part of one, and knows up to which number they are
// durable: its watermark. Its methods may be called from any goroutine. The zero value has no writes yet.
//
//	n := s.Written()          after a write has completed
//
//	upTo := s.Count()         before a flush is submitted
//	s.Flushed(upTo)           after it has ended well
//	s.Lose()                  after it has failed
type Sequence struct {
	count   atomic.Uint64
	durable atomic.Uint64
	lost    atomic.Bool
}

// Written gives the write that has just become visible its number; the first is 1.
func (s *Sequence) Written() uint64 { return s.count.Add(1) }

// Count returns how many writes have become visible.
func (s *Sequence) Count() uint64 { return s.count.Load() }

// Durable returns the watermark: all writes up to that number are durable. It never goes back.
func (s *Sequence) Durable() uint64 { return s.durable.Load() }

// Flushed says that a flush has ended well which was submitted after Count had returned upTo. After Lose
// it changes nothing: the flush may be one that no longer knew of the loss.
func (s *Sequence) Flushed(upTo uint64) {
	for !s.lost.Load() {
		d := s.durable.Load()
		if upTo <= d || s.durable.CompareAndSwap(d, upTo) {
			return
		}
	}
}

// Lose says that a flush has failed: the watermark stays where it is for good.
func (s *Sequence) Lose() { s.lost.Store(true) }

// Lost reports whether that has been said.
func (s *Sequence) Lost() bool { return s.lost.Load() }
