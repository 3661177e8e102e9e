package stag

import (
	"math"
	"sort"
	"sync/atomic"

	"oneshot/internal/invariant"
)

// slot is an entry of the table. The fields after word describe the region. They change only while
// the word says Reserved, or Free with an owner, which is whoever made it Free.
type slot struct {
	word atomic.Uint64

	// Read before a reference is held, hence atomic.
	domain atomic.Pointer[Domain]
	stream atomic.Pointer[Stream] // nil: all streams of the domain
	base   atomic.Uint64          // TO of the first octet
	length atomic.Uint64          // octets

	aside atomic.Pointer[Stream] // whose owner names the uses of the slot; changed under that stream's lock

	owner    any      // if the slot belongs to one stream alone; guarded by the lock of that owner, see Stream.Owner
	segments [][]byte // read only while a reference is held
	keeper   any      // the same
	ends     []uint64 // the offset of the end of each segment, if there is more than one

	index      uint32
	idle       chan struct{} // closed when Deregister may go on; guarded by Table.mu
	prev, next *slot         // in the list of the stream; guarded by Stream.mu
}

func (s *slot) load() word                  { return word(s.word.Load()) }
func (s *slot) swap(old, new word) bool     { return s.word.CompareAndSwap(uint64(old), uint64(new)) }
func (s *slot) tag(w word) STag             { return STag(s.index<<keyBits | uint32(w.key())) }
func (s *slot) matches(w word, t STag) bool { return w.key() == t.key() && w.state() != Free }

// retainedEnds bounds the memory that a slot keeps for its next use: a list of at most that many
// segments costs no allocation.
const retainedEnds = 512

// setRegion describes the region. The caller owns the slot.
func (s *slot) setRegion(r *Region) {
	var n uint64
	s.ends = s.ends[:0]
	for _, seg := range r.Segments {
		n += uint64(len(seg))
		if len(r.Segments) > 1 {
			s.ends = append(s.ends, n)
		}
	}
	if len(r.Segments) == 0 {
		n = r.Length
	}
	s.segments, s.keeper = r.Segments, r.Keeper
	s.owner = r.Owner
	s.base.Store(r.Base)
	s.length.Store(n)
}

func (s *slot) clearRegion() {
	invariant.Check(s.load().refs() == 0, "stag: a region that is referenced goes")
	s.segments, s.keeper, s.owner = nil, nil, nil
	if cap(s.ends) > retainedEnds {
		s.ends = nil
	}
	s.domain.Store(nil)
	s.stream.Store(nil)
}

// belongs reports whether the stream may use the STag (RFC 5041 §8.2).
func (s *slot) belongs(st *Stream) bool {
	if only := s.stream.Load(); only != nil {
		return only == st
	}
	return s.domain.Load() == st.domain && !st.barred.Load()
}

// inside checks that n octets from TO on are in the region; n > 0. It only subtracts from numbers of
// this side, because sums with numbers of the peer may wrap.
func (s *slot) inside(to, n uint64) (Fault, bool) {
	if to > math.MaxUint64-(n-1) {
		return TOWrap, false
	}
	base, length := s.base.Load(), s.length.Load()
	if to < base || to-base > length || n > length-(to-base) {
		return Bounds, false
	}
	return 0, true
}

// appendMemory appends the pieces of memory that hold n octets of the region from offset off on.
func (s *slot) appendMemory(dst [][]byte, off, n uint64) [][]byte {
	i := 0
	if len(s.ends) > 0 {
		i = sort.Search(len(s.ends), func(i int) bool { return s.ends[i] > off })
		if i > 0 {
			off -= s.ends[i-1]
		}
	}
	for n > 0 {
		seg := s.segments[i][off:]
		if uint64(len(seg)) > n {
			seg = seg[:n:n]
		}
		if len(seg) > 0 {
			dst = append(dst, seg)
		}
		n -= uint64(len(seg))
		off, i = 0, i+1
	}
	return dst
}

// Ref is a reference to memory of a region, which was checked and is held until Release. One
// goroutine at a time may call its methods. Do not copy a Ref before it is released. The zero Ref
// refers to nothing.
type Ref struct {
	slot *slot
	tag  STag
	off  uint64 // in the region
	n    uint64
}

// STag returns the STag through which the reference was made.
func (r *Ref) STag() STag { return r.tag }

// Keeper returns that of the region, and where the reference begins in it. Nil: the region is memory.
func (r *Ref) Keeper() (k any, off uint64) {
	if r.slot == nil {
		return nil, 0
	}
	return r.slot.keeper, r.off
}

// Len returns how many octets the reference covers.
func (r *Ref) Len() uint64 { return r.n }

// Append appends to dst the pieces of memory that hold n octets from offset off of the
// reference on. They may be used until the reference is released.
func (r *Ref) Append(dst [][]byte, off, n uint64) [][]byte {
	if off > r.n || n > r.n-off {
		panic("stag: octets outside of the reference")
	}
	if n == 0 {
		return dst
	}
	if invariant.Enabled {
		w := r.slot.load()
		invariant.Check(w.refs() > 0 && r.slot.matches(w, r.tag), "stag: a reference is to memory of an STag that has gone")
		invariant.Check(r.off+r.n <= r.slot.length.Load(), "stag: a reference reaches beyond its region")
	}
	return r.slot.appendMemory(dst, r.off+off, n)
}

// Release gives up the reference. It reports whether this was the last reference to an STag that
// allows no new access. A Closing STag becomes Released then, and the closing message can be
// delivered; the memory of a Revoked or Invalid STag can be used again. Releasing the zero Ref does
// nothing, releasing twice panics.
func (r *Ref) Release() (last bool) {
	s := r.slot
	if s == nil {
		if r.n != 0 {
			panic("stag: reference released twice")
		}
		return false
	}
	r.slot = nil
	return s.release()
}

func (s *slot) release() (last bool) {
	for {
		w := s.load()
		if w.refs() == 0 {
			panic("stag: more references released than taken")
		}
		next, state := w-1, w.state()
		last = next.refs() == 0 && !state.accessible()
		if last && state == Closing {
			next = next.withState(Released)
		}
		if !s.swap(w, next) {
			continue
		}
		if last && state == deregistering {
			close(s.idle) // it was set before the state, and nobody changes it until it is closed
		}
		return last
	}
}
