package backend

import "sync/atomic"

// Sequence numbers the writes of a store, or of a part of one, and knows up to which number they are
// durable: its watermark. Its methods may be called from any goroutine. The zero value has no writes yet.
//
//	n := s.Written()          after a write has completed
//	n := s.WrittenDurably()   after a write has completed that is durable
//
//	upTo := s.Count()         before a flush is submitted
//	s.Flushed(upTo)           after it has ended well
//	s.Lose()                  after it has failed
type Sequence struct {
	count   atomic.Uint64
	durable atomic.Uint64
	cached  atomic.Uint64 // no write above it needs a flush; stored before count has the number
	lost    atomic.Bool
}

// generationShift: the upper 16 bits of numbers are the generation.
const generationShift = 48

// Begin has numbers begin with a generation, in their upper 16 bits. It is called before anything else. Numbers
// of different generations never meet, unless there are 2⁴⁸ writes; who compares them compares generations
// first.
func (s *Sequence) Begin(generation uint16) {
	s.count.Store(uint64(generation) << generationShift)
	s.durable.Store(uint64(generation) << generationShift)
}

// Written gives the write that has just become visible its number; the first is 1, after Begin.
func (s *Sequence) Written() uint64 {
	for {
		n := s.count.Load() + 1
		raise(&s.cached, n) // if another write gets n, the watermark waits for a flush longer than it needs to
		if s.count.CompareAndSwap(n-1, n) {
			return n
		}
	}
}

// WrittenDurably is Written for a write that needs no flush. If those before it do not either, they are durable up to its number.
func (s *Sequence) WrittenDurably() uint64 {
	n := s.count.Add(1)
	s.settle(n)
	return n
}

// settle raises the watermark to n, a number that count has had, if no write up to it needs a flush.
func (s *Sequence) settle(n uint64) {
	if d := s.durable.Load(); d < n && s.cached.Load() <= d && !s.lost.Load() {
		raise(&s.durable, n)
	}
}

// raise has v be n, unless it is more.
func raise(v *atomic.Uint64, n uint64) {
	for {
		if o := v.Load(); n <= o || v.CompareAndSwap(o, n) {
			return
		}
	}
}

// Count returns the number of the last write that has become visible.
func (s *Sequence) Count() uint64 { return s.count.Load() }

// Durable returns the watermark: all writes up to that number are durable. It never goes back.
func (s *Sequence) Durable() uint64 { return s.durable.Load() }

// Flushed says that a flush has ended well which was submitted after Count had returned upTo. After Lose
// it changes nothing: the flush may be one that no longer knew of the loss.
func (s *Sequence) Flushed(upTo uint64) {
	if !s.lost.Load() {
		raise(&s.durable, upTo)
		s.settle(s.count.Load())
	}
}

// Lose says that a flush has failed: the watermark stays where it is for good.
func (s *Sequence) Lose() { s.lost.Store(true) }

// Lost reports whether that has been said.
func (s *Sequence) Lost() bool { return s.lost.Load() }
