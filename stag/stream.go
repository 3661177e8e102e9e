package stag

import (
	"sync"
	"sync/atomic"

	"oneshot/internal/invariant"
)

// A stream keeps free indexes of its own and uses them in turn, so that an STag comes again as late
// as possible: with stockMax indexes after 256 × stockMax commands.
const (
	stockMax   = 64
	stockBatch = stockMax / 2 // to and from the table at a time
)

// Stream is one RDMAP stream: one connection, one queue pair. The one-shot STags that are reserved
// through it belong to it. Acquire, Invalidate and Close do what the peer asks for, in the order of
// its messages; they take no lock.
type Stream struct {
	table  *Table
	domain *Domain

	outstanding atomic.Int32 // one-shot STags reserved and neither closed nor revoked
	barred      atomic.Bool  // the peer reaches only what is of this stream alone

	mu     sync.Mutex // taken before Table.mu; not shared with other streams
	window int        // guarded by mu, like all below
	ended  bool
	slots  *slot // list of the slots of this stream alone
	stock  [stockMax]uint32
	first  int // index into stock
	count  int
	aside  []uint32 // indexes whose uses the owner names
}

// NewStream returns a stream of the domain that may have window one-shot STags outstanding.
func (t *Table) NewStream(d *Domain, window int) *Stream {
	return &Stream{table: t, domain: d, window: window}
}

// Domain returns the protection domain of the stream.
func (st *Stream) Domain() *Domain { return st.domain }

// Bar keeps the peer from all STags but those of the stream alone, until Admit.
func (st *Stream) Bar() { st.barred.Store(true) }

// Admit is the end of Bar.
func (st *Stream) Admit() { st.barred.Store(false) }

// SetWindow sets how many one-shot STags may be outstanding, after the peer has said so.
func (st *Stream) SetWindow(window int) {
	st.mu.Lock()
	st.window = window
	st.mu.Unlock()
}

// Outstanding returns how many one-shot STags are reserved and neither closed nor revoked.
func (st *Stream) Outstanding() int { return int(st.outstanding.Load()) }

// pop takes a free slot from the stock. The lock is held.
func (st *Stream) pop() *slot {
	if st.count == 0 {
		st.first, st.count = 0, st.table.take(st.stock[:stockBatch])
		if st.count == 0 {
			return nil
		}
	}
	sl := st.table.slot(st.stock[st.first])
	st.first, st.count = (st.first+1)%stockMax, st.count-1
	return sl
}

// push returns a free slot to the stock. The lock is held.
func (st *Stream) push(sl *slot) {
	switch {
	case st.ended:
		sl.aside.Store(nil)
		st.table.give(sl.index)
		return
	case sl.aside.Load() == st:
		return
	}
	if st.count == stockMax {
		st.spill(stockBatch)
	}
	st.stock[(st.first+st.count)%stockMax] = sl.index
	st.count++
}

// spill gives n indexes back to the table. The lock is held.
func (st *Stream) spill(n int) {
	for ; n > 0; n-- {
		st.table.give(st.stock[st.first])
		st.first, st.count = (st.first+1)%stockMax, st.count-1
	}
}

// link puts a slot on the list of the stream, unlink takes it off. The lock is held.
func (st *Stream) link(sl *slot) {
	sl.prev, sl.next = nil, st.slots
	if st.slots != nil {
		st.slots.prev = sl
	}
	st.slots = sl
}

func (st *Stream) unlink(sl *slot) {
	if sl.prev != nil {
		sl.prev.next = sl.next
	} else {
		st.slots = sl.next
	}
	if sl.next != nil {
		sl.next.prev = sl.prev
	}
	sl.prev, sl.next = nil, nil
}

func (st *Stream) register(r *Region) (STag, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.ended {
		return 0, ErrEnded
	}
	sl := st.pop()
	if sl == nil {
		return 0, ErrTableFull
	}
	st.link(sl)
	return sl.publish(st.domain, st, r), nil
}

// SetAside takes n indexes from the table, for the owner of the stream to choose STags from, and returns the
// STag that the next use of each index has. The use after that has the next key, which is one more, modulo 256.
// RegisterAs and GrantAs use them, and they are the stream's until it ends. If the table has fewer, none is taken.
func (st *Stream) SetAside(n int) ([]STag, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.ended {
		return nil, ErrEnded
	}
	tags := make([]STag, 0, n)
	for len(tags) < n {
		sl := st.pop()
		if sl == nil {
			for _, i := range st.aside[len(st.aside)-len(tags):] {
				sl := st.table.slot(i)
				sl.aside.Store(nil)
				st.push(sl)
			}
			st.aside = st.aside[:len(st.aside)-len(tags)]
			return nil, ErrTableFull
		}
		sl.aside.Store(st)
		st.aside = append(st.aside, sl.index)
		tags = append(tags, sl.tag(sl.load().nextUse(Valid)))
	}
	return tags, nil
}

// chosen returns the free slot of an STag that the owner has chosen. ErrState: it is not the next use of an index
// that was set aside. The lock is held.
func (st *Stream) chosen(s STag) (*slot, error) {
	sl := st.table.slot(s.index())
	if sl == nil || sl.aside.Load() != st {
		return nil, ErrState
	}
	// While the slot is Free nobody but the holder of the lock changes it.
	if w := sl.load(); w.state() != Free || w.nextUse(Valid).key() != s.key() {
		return nil, ErrState
	}
	return sl, nil
}

// RegisterAs is Table.Register for this stream alone, under the STag that the owner has chosen out of those of SetAside.
func (st *Stream) RegisterAs(s STag, r Region) error {
	if err := r.check(); err != nil {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.ended {
		return ErrEnded
	}
	sl, err := st.chosen(s)
	if err != nil {
		return err
	}
	st.link(sl)
	sl.publish(st.domain, st, &r)
	return nil
}

// Owner returns the Region.Owner of an STag of this stream alone, or nil if s is no such STag or Disown was
// called. The callers of Owner, Disown and TakeOwners need a lock of their own, which they also hold
// whenever they make and free STags of the stream.
func (st *Stream) Owner(s STag) any {
	if sl, _, err := st.own(s); err == nil {
		return sl.owner
	}
	return nil
}

// Disown is Owner, and forgets the owner.
func (st *Stream) Disown(s STag) (owner any) {
	if sl, _, err := st.own(s); err == nil {
		owner, sl.owner = sl.owner, nil
	}
	return owner
}

// TakeOwners calls f with the owner of each STag of this stream alone, and forgets the owners. f must not
// use the stream.
func (st *Stream) TakeOwners(f func(s STag, owner any)) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for sl := st.slots; sl != nil; sl = sl.next {
		if o := sl.owner; o != nil {
			sl.owner = nil
			f(sl.tag(sl.load()), o)
		}
	}
}

// Reserve allocates a one-shot STag. It allows no access yet.
func (st *Stream) Reserve() (STag, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	sl, err := st.reserve()
	if err != nil {
		return 0, err
	}
	w := sl.load().nextUse(Reserved)
	sl.word.Store(uint64(w))
	return sl.tag(w), nil
}

// Grant is Reserve and Bind in one.
func (st *Stream) Grant(r Region) (STag, error) {
	if err := r.check(); err != nil {
		return 0, err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	sl, err := st.reserve()
	if err != nil {
		return 0, err
	}
	return st.grant(sl, &r), nil
}

// GrantAs is Grant of the STag that the owner has chosen out of those of SetAside.
func (st *Stream) GrantAs(s STag, r Region) error {
	if err := r.check(); err != nil {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if err := st.mayReserve(); err != nil {
		return err
	}
	sl, err := st.chosen(s)
	if err != nil {
		return err
	}
	st.adopt(sl)
	st.grant(sl, &r)
	return nil
}

// grant binds a slot that reserve has taken.
func (st *Stream) grant(sl *slot, r *Region) STag {
	invariant.Check(sl.load().refs() == 0, "stag: a free slot is referenced")
	sl.setRegion(r)
	w := sl.load().nextUse(Bound).withAccess(r.Access)
	sl.word.Store(uint64(w))
	return sl.tag(w)
}

// mayReserve returns why no further one-shot STag may be had, or nil.
func (st *Stream) mayReserve() error {
	switch {
	case st.ended:
		return ErrEnded
	case int(st.outstanding.Load()) >= st.window:
		return ErrWindow
	}
	return nil
}

// reserve takes a slot for a one-shot STag. The word of the slot is Free until the caller changes it. The
// lock is held.
func (st *Stream) reserve() (*slot, error) {
	if err := st.mayReserve(); err != nil {
		return nil, err
	}
	sl := st.pop()
	if sl == nil {
		return nil, ErrTableFull
	}
	st.adopt(sl)
	return sl, nil
}

// adopt makes a free slot that of a one-shot STag of the stream.
func (st *Stream) adopt(sl *slot) {
	st.outstanding.Add(1)
	st.link(sl)
	sl.domain.Store(st.domain)
	sl.stream.Store(st)
}

// Bind sets the memory and rights of a Reserved STag. From now on the peer has access; no
// octet of the message that advertises it may leave earlier.
func (st *Stream) Bind(s STag, r Region) error {
	if err := r.check(); err != nil {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	sl, w, err := st.own(s)
	if err != nil {
		return err
	}
	if w.state() != Reserved {
		return ErrState
	}
	// Reserved is left only under the lock, and there are no references.
	invariant.Check(w.refs() == 0, "stag: a reserved STag is referenced")
	sl.setRegion(&r)
	sl.word.Store(uint64(w.withState(Bound).withAccess(r.Access)))
	return nil
}

// own finds an STag of this stream alone.
func (st *Stream) own(s STag) (*slot, word, error) {
	sl, w, err := st.table.find(s)
	if err == nil && sl.stream.Load() != st {
		err = ErrState
	}
	return sl, w, err
}

// Advertised notes that TCP has taken the last octet of the message that carries the Bound STag.
// ErrState means that the STag was revoked in the meantime.
func (st *Stream) Advertised(s STag) error {
	for {
		sl, w, err := st.own(s)
		switch {
		case err != nil:
			return err
		case w.state() != Bound:
			return ErrState
		case sl.swap(w, w.withState(Advertised)):
			return nil
		}
	}
}

// Acquire checks access of the peer to n octets at tagged offset to, in the order of RFC 5041
// §8: STag valid, associated with the stream, rights, bounds; and holds the memory until the
// Ref is released. Op is RemoteWrite, ReadResponse or RemoteRead. Nothing is checked if n is
// 0 (RFC 5040 §5.2, §5.1): the Ref is then the zero one. Errors are of type *Error.
func (st *Stream) Acquire(op Op, s STag, to, n uint64) (Ref, error) {
	if n == 0 {
		return Ref{}, nil
	}
	sl := st.table.slot(s.index())
	if sl == nil {
		return Ref{}, &Error{op, InvalidSTag, s}
	}
	for {
		w := sl.load()
		if fault, ok := sl.allows(w, st, op, s, to, n); !ok {
			if sl.load()&^refsMask != w&^refsMask {
				continue // the fields that were read may belong to two uses
			}
			return Ref{}, &Error{op, fault, s}
		}
		off := to - sl.base.Load()
		if w.refs() == uint32(refsMask) {
			panic("stag: too many references")
		}
		if sl.swap(w, w+1) {
			return Ref{slot: sl, tag: s, off: off, n: n}, nil
		}
	}
}

func (s *slot) allows(w word, st *Stream, op Op, tag STag, to, n uint64) (Fault, bool) {
	switch {
	case w.key() != tag.key() || !w.state().accessible():
		return InvalidSTag, false
	case !s.belongs(st):
		return WrongStream, false
	case w.access()&accessOf[op] == 0:
		return AccessRights, false
	}
	return s.inside(to, n)
}

// Close handles the delivery of a one-shot close. All segments of the message are placed and all
// earlier messages are delivered. New access ends at once. If released is true, no reference is held
// and the message may be delivered. Otherwise this message and those after it have to wait until a
// Release reports that it was the last. Errors are of type *Error.
func (st *Stream) Close(s STag) (released bool, err error) {
	return st.end(Close, s)
}

// Invalidate handles the delivery of a Send with Invalidate (RFC 5040 §5.3). The access to a
// conventional region ends at once, and the last Release frees memory that references hold; a
// region that is already Invalid stays so. A one-shot STag is closed, as in streams with advertise
// but without close. quiet reports that no reference is held. Errors are of type *Error.
func (st *Stream) Invalidate(s STag) (quiet bool, err error) {
	return st.end(Invalidate, s)
}

func (st *Stream) end(op Op, s STag) (bool, error) {
	sl := st.table.slot(s.index())
	if sl == nil {
		return false, &Error{op, InvalidSTag, s}
	}
	for {
		w := sl.load()
		next, fault, ok := sl.ending(w, st, op, s)
		if !ok {
			if sl.load()&^refsMask != w&^refsMask {
				continue
			}
			return false, &Error{op, fault, s}
		}
		if sl.swap(w, next) {
			if w.state() == Advertised {
				st.outstanding.Add(-1)
			}
			return w.refs() == 0, nil
		}
	}
}

// ending returns the word after a close or invalidation by the peer, or the fault if that is not allowed.
func (s *slot) ending(w word, st *Stream, op Op, tag STag) (next word, fault Fault, ok bool) {
	state := w.state()
	switch {
	case w.key() != tag.key(), state == Free, state >= Closing, state == deregistering:
		return w, InvalidSTag, false
	case state == Invalid && op == Close:
		return w, InvalidSTag, false
	case !s.belongs(st):
		return w, WrongStream, false
	case state == Advertised && w.refs() == 0:
		return w.withState(Released), 0, true
	case state == Advertised:
		return w.withState(Closing), 0, true
	case op == Close || state >= Reserved:
		return w, NotCloseable, false
	case w.access()&AccessRemoteInvalidate == 0:
		return w, NotInvalidatable, false
	}
	return w.withState(Invalid), 0, true
}

// Revoke takes back a one-shot STag that the peer is not going to close, for example after the
// answer to a task management function. quiet reports that no reference is held; otherwise the last
// Release reports it. Then the memory may be used again. ErrState: the peer has already closed the
// STag, and the completion of the close comes or has come.
func (st *Stream) Revoke(s STag) (quiet bool, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for {
		sl, w, err := st.own(s)
		if err != nil {
			return false, err
		}
		switch w.state() {
		case Revoked:
			return w.refs() == 0, nil
		case Reserved, Bound, Advertised:
			if sl.swap(w, w.withState(Revoked)) {
				st.outstanding.Add(-1)
				return w.refs() == 0, nil
			}
		default:
			return false, ErrState
		}
	}
}

// Consume frees a Released or Revoked one-shot STag, after the driver has taken its completion.
// ErrBusy means that references are still held.
func (st *Stream) Consume(s STag) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	sl, w, err := st.own(s)
	switch {
	case err != nil:
		return err
	case w.state() != Released && w.state() != Revoked:
		return ErrState
	case w.refs() != 0:
		return ErrBusy
	}
	if !st.recycle(sl, w) {
		return ErrState
	}
	return nil
}

// recycle frees a slot of this stream that allows no access and has no references, unless its
// word is no longer w. The lock is held.
func (st *Stream) recycle(sl *slot, w word) bool {
	if !sl.swap(w, w.withState(Free)) {
		return false
	}
	// The slot is Free and in no stock of free slots, so no other goroutine uses it.
	st.unlink(sl)
	sl.clearRegion()
	st.push(sl)
	return true
}

// End ends the stream: its own STags allow no more access, and no new ones can be made. One-shot
// STags become Revoked, except Released ones, whose completions remain; regions become Invalid.
// quiet reports that no reference to any of them is held.
func (st *Stream) End() (quiet bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.ended = true
	st.spill(st.count)
	for _, i := range st.aside {
		if sl := st.table.slot(i); sl.load().state() == Free && sl.aside.Load() == st { // others follow when they are freed
			sl.aside.Store(nil)
			st.table.give(i)
		}
	}
	st.aside = nil
	quiet = true
	for sl := st.slots; sl != nil; sl = sl.next {
		if sl.endStream(st).refs() != 0 {
			quiet = false
		}
	}
	return quiet
}

// endStream takes all access from a slot and returns its word.
func (s *slot) endStream(st *Stream) word {
	for {
		w := s.load()
		next := w
		switch w.state() {
		case Valid:
			next = w.withState(Invalid)
		case Reserved, Bound, Advertised, Closing:
			next = w.withState(Revoked)
		}
		if !s.swap(w, next) {
			continue
		}
		if state := w.state(); state == Reserved || state == Bound || state == Advertised {
			st.outstanding.Add(-1)
		}
		return next
	}
}

// Free frees everything that belongs to an ended stream alone and was not consumed or
// deregistered. If something is left, it returns ErrBusy, because of references, or ErrState,
// because the stream has not ended or a Deregister is under way: call it again later.
func (st *Stream) Free() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.ended {
		return ErrState
	}
	var err error
	for sl := st.slots; sl != nil; {
		next := sl.next
		switch w := sl.load(); {
		case w.state() == deregistering:
			err = ErrState
		case w.refs() != 0:
			err = ErrBusy
		case !st.recycle(sl, w):
			err = ErrState
		}
		sl = next
	}
	return err
}
