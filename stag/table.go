package stag

import (
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// MaxIndexes is the number of indexes of 24 bits; index 0 is not used.
const MaxIndexes = 1 << 24

// Kept is how many of them, the highest, are never given out: owners register memory under STags with such indexes, which they
// choose (RegisterAs).
const Kept = 4096

const chunkSlots = 256

type chunk [chunkSlots]slot

// Table is the STag table of a device. All methods of it, its domains and its streams may be
// called from any goroutine, unless they say otherwise.
type Table struct {
	chunks []atomic.Pointer[chunk] // made when first needed, never given back
	kept   [Kept / chunkSlots]atomic.Pointer[chunk]

	mu   sync.Mutex // taken after Stream.mu
	free []uint32   // indexes; guarded by mu
	made int        // chunks; guarded by mu
}

// Domain is a protection domain: its streams share the regions that do not belong to one stream
// alone (RFC 5041 §8.2).
type Domain struct{ _ byte } // not empty, so that every Domain has its own address

// Region describes the memory of an STag.
type Region struct {
	// Segments is the memory, in the order of the tagged offsets. The table borrows the list and
	// the memory until the STag allows no more access and no Ref is held.
	Segments [][]byte
	Base     uint64 // tagged offset (TO) of the first octet: 0, or the virtual address
	Access   Access
	// Length is the number of octets of a region without Segments, which is not memory but, for example, a block
	// store. References to it are checked and counted like others, but have no memory to Append.
	Length uint64
	// Keeper is what keeps the octets of a region without Segments: Ref.Keeper returns it.
	Keeper any
	// Owner is what Stream.Owner returns for the STag, if it is of one stream alone.
	Owner any
}

// check returns an error if the tagged offsets of the region wrap.
func (r *Region) check() error {
	n := r.Length
	if len(r.Segments) > 0 {
		n = 0
	}
	for _, seg := range r.Segments {
		n += uint64(len(seg))
	}
	if n > 0 && r.Base > math.MaxUint64-(n-1) {
		return ErrRegion
	}
	return nil
}

// NewTable returns a table for up to maxSTags STags at a time, at most [MaxIndexes]-[Kept]-1, and those that owners choose.
// Memory is allocated as they come into use.
func NewTable(maxSTags int) *Table {
	n := min(max(maxSTags, 1), MaxIndexes-Kept-1) + 1
	return &Table{chunks: make([]atomic.Pointer[chunk], (n+chunkSlots-1)/chunkSlots)}
}

// NewDomain returns a new protection domain.
func (t *Table) NewDomain() *Domain { return new(Domain) }

// slot returns the slot of an index, nil if there is none.
func (t *Table) slot(index uint32) *slot {
	c := index / chunkSlots
	if c >= uint32(len(t.chunks)) {
		return t.keptSlot(index)
	}
	if p := t.chunks[c].Load(); p != nil {
		return &p[index%chunkSlots]
	}
	return nil
}

// keptSlot returns the slot of an index of those that are kept.
func (t *Table) keptSlot(index uint32) *slot {
	if !isKept(index) {
		return nil
	}
	if p := t.kept[(index-(MaxIndexes-Kept))/chunkSlots].Load(); p != nil {
		return &p[index%chunkSlots]
	}
	return nil
}

func isKept(index uint32) bool { return index >= MaxIndexes-Kept && index < MaxIndexes }

// take moves up to len(into) free indexes to into and returns how many.
func (t *Table) take(into []uint32) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.free) == 0 {
		t.grow()
	}
	n := min(len(t.free), len(into))
	copy(into, t.free[len(t.free)-n:])
	t.free = t.free[:len(t.free)-n]
	return n
}

// grow makes another chunk, if there may be one. The lock is held.
func (t *Table) grow() {
	if t.made == len(t.chunks) {
		return
	}
	c := new(chunk)
	first := uint32(t.made * chunkSlots)
	for i := range c {
		c[i].index = first + uint32(i)
		// The first key is random, so that STags of an earlier run are not valid.
		c[i].word.Store(uint64(word(rand.Uint32()) << useShift))
		if c[i].index != 0 {
			t.free = append(t.free, c[i].index)
		}
	}
	t.chunks[t.made].Store(c)
	t.made++
}

func (t *Table) give(indexes ...uint32) {
	t.mu.Lock()
	t.free = append(t.free, indexes...)
	t.mu.Unlock()
}

// State returns the state of an STag, Free if it is not in use.
func (t *Table) State(s STag) State {
	sl := t.slot(s.index())
	if sl == nil {
		return Free
	}
	if w := sl.load(); sl.matches(w, s) {
		return w.state()
	}
	return Free
}

// Register makes a conventional region valid: for all streams of the domain, or, if st is not nil,
// for st alone, which must be a stream of that domain.
func (t *Table) Register(d *Domain, st *Stream, r Region) (STag, error) {
	if err := r.check(); err != nil {
		return 0, err
	}
	if st != nil {
		return st.register(&r)
	}
	var index [1]uint32
	if t.take(index[:]) == 0 {
		return 0, ErrTableFull
	}
	sl := t.slot(index[0])
	return sl.publish(d, nil, &r), nil
}

// RegisterAs is Register for all streams of the domain under an STag that the caller has chosen, with an index of those that
// are kept and any key. So memory can have one name on several machines. Of one index there is one STag at a time: ErrState says that
// it is in use, or is not one that is kept. Deregister frees it.
func (t *Table) RegisterAs(d *Domain, s STag, r Region) error {
	if err := r.check(); err != nil {
		return err
	}
	if !isKept(s.index()) {
		return ErrState
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	first := s.index() / chunkSlots * chunkSlots
	if p := &t.kept[(first-(MaxIndexes-Kept))/chunkSlots]; p.Load() == nil {
		c := new(chunk)
		for i := range c {
			c[i].index = first + uint32(i)
		}
		p.Store(c)
	}
	sl := t.keptSlot(s.index())
	w := sl.load()
	if w.state() != Free {
		return ErrState
	}
	sl.publishAs(w.useOf(s.key()), d, nil, &r)
	return nil
}

// publish begins a use of a free slot with a valid region.
func (s *slot) publish(d *Domain, st *Stream, r *Region) STag {
	return s.publishAs(s.load().nextUse(Valid), d, st, r)
}

// publishAs makes w the word of a slot, with a valid region.
func (s *slot) publishAs(w word, d *Domain, st *Stream, r *Region) STag {
	w = w.withAccess(r.Access)
	s.setRegion(r)
	s.domain.Store(d)
	s.stream.Store(st)
	s.word.Store(uint64(w))
	return s.tag(w)
}

// find returns the slot of an STag in use.
func (t *Table) find(s STag) (*slot, word, error) {
	if sl := t.slot(s.index()); sl != nil {
		if w := sl.load(); sl.matches(w, s) {
			return sl, w, nil
		}
	}
	return nil, 0, ErrState
}

// Invalidate ends the access to a conventional region, whose STag stays until Deregister. quiet reports that
// no reference is held; otherwise the last Release reports it. An Invalid region stays Invalid.
func (t *Table) Invalidate(s STag) (quiet bool, err error) {
	for {
		sl, w, err := t.find(s)
		if err != nil {
			return false, err
		}
		switch w.state() {
		case Invalid:
			return w.refs() == 0, nil
		case Valid:
			if sl.swap(w, w.withState(Invalid)) {
				return w.refs() == 0, nil
			}
		default:
			return false, ErrState
		}
	}
}

// Deregister ends the access to a conventional region, and frees the STag. It blocks until no
// reference is held, so the caller must hold none.
func (t *Table) Deregister(s STag) error {
	for {
		sl, w, err := t.find(s)
		switch {
		case err != nil:
			return err
		case w.state() != Valid && w.state() != Invalid:
			return ErrState
		}
		if w.refs() == 0 {
			if sl.swap(w, w.withState(deregistering)) {
				t.discard(sl)
				return nil
			}
			continue
		}
		if idle := t.drain(sl, w); idle != nil {
			<-idle
			t.discard(sl)
			return nil
		}
	}
}

// drain makes a region with references deregistering, and returns a channel that is closed when they
// are released. It returns nil if the word has changed.
func (t *Table) drain(sl *slot, w word) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if sl.load() != w { // another Deregister may have come first: leave its channel alone
		return nil
	}
	sl.idle = make(chan struct{})
	if !sl.swap(w, w.withState(deregistering)) {
		return nil
	}
	return sl.idle
}

// discard frees the slot of a deregistering region without references.
func (t *Table) discard(sl *slot) {
	sl.idle = nil
	st := sl.stream.Load()
	if st == nil {
		sl.free()
		if !isKept(sl.index) {
			t.give(sl.index)
		}
		return
	}
	st.mu.Lock()
	st.unlink(sl)
	sl.free()
	st.push(sl)
	st.mu.Unlock()
}

// free ends the use of a deregistering slot. Nobody else changes its word.
func (s *slot) free() {
	s.clearRegion()
	s.word.Store(uint64(s.load().withState(Free)))
}
