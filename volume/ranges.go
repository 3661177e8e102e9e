package volume

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"oneshot/internal/invariant"
)

// rangeLock keeps requests that must be atomic with respect to all others (compare and write, or,
// atomic writes) apart from those that touch the same bytes. All other requests take it shared, with
// one uncontended atomic addition per mebibyte.
//
// The store's bytes are dealt out to stripes, one mebibyte each, round robin. A stripe's word:
//
//	 63        34        33          32      31                0
//	┌────────────┬────────┬───────────┬───────────────────────┐
//	│     0      │ sticky │ contended │ shared users          │
//	└────────────┴────────┴───────────┴───────────────────────┘
//
// contended is set while an exclusive user holds the stripe, somebody bars bytes of it, or anybody
// waits for it; then users come and go under mu. sticky says that the stripe has had an exclusive user: reads
// there copy under a shared hold instead of lending, so that none sees half of a compare and
// write. (A read that was lent memory before the first one, and is being sent still, may.)
//
// A request that is aborted while the store writes for it, or for which the store takes long, bars its range: whoever touches any of these
// bytes from then on waits until the store has returned the operation. Its command is over, or may be, for
// who has sent it, and so he writes there again, and is answered.
//
// Where the store completes later, waiting is a place in a queue, first come, first served.
// Where it lends its memory, all sections are short and synchronous, and waiting is spinning.
// A volume uses one of the two ways only.
type rangeLock struct {
	stripes [stripeCount]stripe
	touched atomic.Bool // some stripe is sticky, or about to be; for good

	mu        sync.Mutex             // a leaf
	held      stripeSet              // by exclusive users; guarded by mu
	contended stripeSet              // stripes with the contended bit; guarded by mu
	first     *Request               // the queue; guarded by mu
	end       **Request              // where the next one is put; nil: the queue has been empty always
	queued    waiting                // those in the queue
	queues    [2][stripeCount]uint32 // how many of them want the stripe, and how many exclusively

	barring *Request            // those that bar their ranges, linked by queueNext and queuePrev; guarded by mu
	bars    [stripeCount]uint32 // how many of these have bytes of the stripe; guarded by mu
	barred  stripeSet           // where there are any; guarded by mu
}

type stripe struct {
	word atomic.Uint64
	_    [56]byte // a cache line each
}

const (
	stripeShift = 20
	stripeCount = 256

	sharedMask      = 1<<32 - 1
	stripeContended = 1 << 32
	stripeSticky    = 1 << 33
)

// stripeSet is a set of stripes.
type stripeSet [stripeCount / 64]uint64

func (s *stripeSet) add(i int)      { s[i/64] |= 1 << (i % 64) }
func (s *stripeSet) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }

func (s *stripeSet) union(o *stripeSet) {
	for i := range s {
		s[i] |= o[i]
	}
}

func (s *stripeSet) remove(o *stripeSet) {
	for i := range s {
		s[i] &^= o[i]
	}
}

func (s *stripeSet) meets(o *stripeSet) bool {
	var both uint64
	for i := range s {
		both |= s[i] & o[i]
	}
	return both != 0
}

// holds reports whether all of o is in s.
func (s *stripeSet) holds(o *stripeSet) bool {
	var missing uint64
	for i := range s {
		missing |= o[i] &^ s[i]
	}
	return missing == 0
}

func (s *stripeSet) empty() bool { return *s == stripeSet{} }

// stripesOf is the first stripe of [off, off+n), not yet wrapped, and their number.
func stripesOf(off, n int64) (first, count int) {
	if n == 0 {
		return 0, 0
	}
	f, l := uint64(off)>>stripeShift, uint64(off+n-1)>>stripeShift
	return int(f % stripeCount), int(min(l-f+1, stripeCount))
}

func setOf(off, n int64) (s stripeSet) {
	first, count := stripesOf(off, n)
	for i := first; i < first+count; i++ {
		s.add(i % stripeCount)
	}
	return s
}

// holdKind is how a request holds a range.
type holdKind uint8

const (
	holdNone holdKind = iota
	holdShared
	holdExclusive
	holdBarring // shared, and keeps the same bytes from others who come
)

// sticky reports whether any stripe of the range has had an exclusive user.
func (r *rangeLock) sticky(off, n int64) bool { return r.touched.Load() && r.stickyIn(off, n) }

func (r *rangeLock) stickyIn(off, n int64) bool {
	first, count := stripesOf(off, n)
	for i := first; i < first+count; i++ {
		if r.stripes[i%stripeCount].word.Load()&stripeSticky != 0 {
			return true
		}
	}
	return false
}

// tryShared enters all stripes of the range, or none if one of them is contended.
func (r *rangeLock) tryShared(off, n int64) bool {
	first, count := stripesOf(off, n)
	if count == 1 { // nearly always
		return r.stripes[first].tryShared()
	}
	for i := first; i < first+count; i++ {
		if !r.stripes[i%stripeCount].tryShared() {
			r.leaveStripes(first, i-first)
			return false
		}
	}
	return true
}

func (s *stripe) tryShared() bool {
	for {
		w := s.word.Load()
		if w&stripeContended != 0 {
			return false
		}
		if s.word.CompareAndSwap(w, w+1) {
			return true
		}
	}
}

// enterSharedSpin enters the range, for stores that lend.
func (r *rangeLock) enterSharedSpin(off, n int64) {
	for tries := 1; !r.tryShared(off, n); tries++ {
		pause(tries)
	}
}

// pause waits between two tries of a request that spins. The holder of the range needs a few
// microseconds, unless the operating system has taken the processor away from it: then spinning
// would keep the processor from the holder.
func pause(tries int) {
	if tries < spins {
		runtime.Gosched()
	} else {
		time.Sleep(20 * time.Microsecond)
	}
}

const spins = 64

// leaveShared undoes entering the range.
func (r *rangeLock) leaveShared(off, n int64) {
	first, count := stripesOf(off, n)
	r.leaveStripes(first, count)
}

func (r *rangeLock) leaveStripes(first, count int) {
	if count == 1 {
		if r.stripes[first].leaveShared() {
			r.wake()
		}
		return
	}
	wake := false
	for i := first; i < first+count; i++ {
		wake = r.stripes[i%stripeCount].leaveShared() || wake
	}
	if wake {
		r.wake()
	}
}

// leaveShared reports whether somebody waits who may go on now.
func (s *stripe) leaveShared() (wake bool) {
	w := s.word.Add(^uint64(0))
	invariant.Check(w&sharedMask != sharedMask, "volume: a range is left that was not entered")
	return w&stripeContended != 0 && w&sharedMask == 0
}

// wake grants ranges to those in the queue that can have them.
func (r *rangeLock) wake() {
	r.mu.Lock()
	granted := r.serve()
	r.mu.Unlock()
	granted.Tell()
}

// enterExclusiveSpin takes the range for one short section, for stores that lend. While it
// waits it holds new users back, but now and then lets them pass: one of them might be what
// another stripe's user is waiting for.
func (r *rangeLock) enterExclusiveSpin(off, n int64) {
	set := setOf(off, n)
	for tries := 1; !r.tryExclusive(&set); tries++ {
		if tries%spins == 0 {
			r.wake()
		}
		pause(tries % (2 * spins))
	}
}

func (r *rangeLock) tryExclusive(set *stripeSet) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.contend(set)
	return r.grantExclusive(set)
}

func (r *rangeLock) leaveExclusive(off, n int64) {
	set := setOf(off, n)
	r.mu.Lock()
	invariant.Check(r.held.holds(&set), "volume: a range is left that was not held exclusively")
	r.held.remove(&set)
	r.mu.Unlock()
	r.wake()
}

// lockRange takes the range for r, now or later, and goes on with then, or ends the transfer if the
// bytes are not to be had.
func (r *Request) lockRange(kind holdKind, off, n int64, then Step) Next {
	invariant.Check(r.hold == holdNone, "volume: a request takes a second range")
	r.use()
	r.holdOff, r.holdLen = off, n
	v := r.v
	if v.lender != nil && r.rest != nil {
		kind = holdExclusive // so that nobody comes between the look at who has come before (isOvertaken) and the change
	}
	switch {
	case v.lender != nil && kind == holdShared:
		v.ranges.enterSharedSpin(off, n)
	case v.lender != nil:
		v.ranges.enterExclusiveSpin(off, n)
	case kind == holdShared && v.ranges.tryShared(off, n):
	case !v.ranges.enqueue(r, kind):
		r.locked = then
		if kind == holdExclusive && r.rest != nil && !r.rest.revoked.Load() {
			r.unguard() // whoever comes from here on waits behind it
		}
		return r.Park((*Request).withdrawRange, (*Request).haveRange) // Resume notes the hold
	}
	r.hold, r.queueKind = kind, holdNone
	r.locked = then
	return r.haveRange()
}

// haveRange goes on with a range that r has got, unless its bytes are not to be had.
func (r *Request) haveRange() Next {
	if err := r.v.refuses(r.holdOff, r.holdLen, r.writes); err != nil {
		return r.end(err)
	}
	if r.late && r.isOvertaken() {
		return r.end(ErrOvertaken)
	}
	return r.locked(r)
}

// leaveRange gives back what lockRange took. Without such it does nothing.
func (r *Request) leaveRange() {
	if r.hold != holdNone {
		r.giveRangeBack()
	}
}

func (r *Request) giveRangeBack() {
	kind := r.hold
	r.hold = holdNone
	switch kind {
	case holdShared:
		r.v.ranges.leaveShared(r.holdOff, r.holdLen)
	case holdBarring:
		r.v.ranges.unbar(r)
	default:
		r.v.ranges.leaveExclusive(r.holdOff, r.holdLen)
	}
}

// barRange keeps others from the bytes that the store writes for r, which was aborted or is overdue, until r gives its range back. Where the store
// lends its memory there is nothing to do: its operations complete within Submit.
func (r *Request) barRange() {
	if r.v.lender == nil && r.writes && r.hold == holdShared {
		r.hold = holdBarring
		r.v.ranges.bar(r)
	}
}

// bar makes t, which shares its range, one that bars it. Those that share it already are not held back.
func (r *rangeLock) bar(t *Request) {
	set := setOf(t.holdOff, t.holdLen)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.contend(&set)
	if t.queueNext = r.barring; t.queueNext != nil {
		t.queueNext.queuePrev = t
	}
	r.barring = t
	for i := range r.bars {
		if set.has(i) {
			r.bars[i]++
		}
	}
	r.barred.union(&set)
}

// unbar undoes bar, and gives the range back.
func (r *rangeLock) unbar(t *Request) {
	set := setOf(t.holdOff, t.holdLen)
	r.mu.Lock()
	if t.queuePrev != nil {
		t.queuePrev.queueNext = t.queueNext
	} else {
		r.barring = t.queueNext
	}
	if t.queueNext != nil {
		t.queueNext.queuePrev = t.queuePrev
	}
	t.queueNext, t.queuePrev = nil, nil
	var free stripeSet
	for i := range r.bars {
		if set.has(i) {
			if r.bars[i]--; r.bars[i] == 0 {
				free.add(i)
			}
		}
	}
	r.barred.remove(&free)
	r.mu.Unlock()
	r.leaveShared(t.holdOff, t.holdLen)
	r.wake()
}

// isBarred reports whether somebody bars any of the bytes that t wants, in these stripes. mu is held.
func (r *rangeLock) isBarred(t *Request, set *stripeSet) bool {
	if !set.meets(&r.barred) {
		return false
	}
	for b := r.barring; b != nil; b = b.queueNext {
		if t.holdOff < b.holdOff+b.holdLen && b.holdOff < t.holdOff+t.holdLen {
			return true
		}
	}
	return false
}

func (r *Request) withdrawRange() bool { return r.v.ranges.withdraw(r) }

// enqueue gives t its range and reports true, or puts it into the queue.
func (r *rangeLock) enqueue(t *Request, kind holdKind) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.queueKind, t.queueNext = kind, nil
	set := setOf(t.holdOff, t.holdLen)
	r.contend(&set)
	if !r.queued.keeps(kind, &set) && r.grant(t, &set) {
		r.settleContended()
		return true
	}
	if r.end == nil {
		r.end = &r.first
	}
	*r.end = t
	r.end = &t.queueNext
	r.queued.add(t)
	r.count(t, 1)
	return false
}

// dequeue takes *p out of the queue. mu is held.
func (r *rangeLock) dequeue(p **Request) {
	t := *p
	if *p = t.queueNext; r.end == &t.queueNext {
		r.end = p
	}
	r.count(t, ^uint32(0))
}

// count adds by to the stripes that t wants, and forgets those that nobody in the queue wants any more. mu is held.
func (r *rangeLock) count(t *Request, by uint32) {
	first, n := stripesOf(t.holdOff, t.holdLen)
	for k, set := range []*stripeSet{&r.queued.all, &r.queued.exclusive} {
		if k == 1 && t.queueKind != holdExclusive {
			break
		}
		for i := first; i < first+n; i++ {
			at := i % stripeCount
			if r.queues[k][at] += by; r.queues[k][at] == 0 {
				set[at/64] &^= 1 << (at % 64)
			}
		}
	}
}

// waiting are the stripes of requests that wait: those who come later and want any of these wait behind them. But sharers do not wait
// for each other, so that those who wait for a barred range keep nobody from the rest of its stripe.
type waiting struct{ all, exclusive stripeSet }

func (w *waiting) add(t *Request) {
	set := setOf(t.holdOff, t.holdLen)
	w.all.union(&set)
	if t.queueKind == holdExclusive {
		w.exclusive.union(&set)
	}
}

// keeps reports whether a request of that kind has to wait behind those.
func (w *waiting) keeps(kind holdKind, set *stripeSet) bool {
	if kind == holdExclusive {
		return set.meets(&w.all)
	}
	return set.meets(&w.exclusive)
}

// withdraw takes t out of the queue, and reports false if it is not there any more.
func (r *rangeLock) withdraw(t *Request) bool {
	r.mu.Lock()
	p := &r.first
	for *p != nil && *p != t {
		p = &(*p).queueNext
	}
	found := *p == t
	if found {
		r.dequeue(p)
	}
	r.mu.Unlock()
	r.wake()
	return found
}

// Granted are requests that have got what they waited for and have not been told yet. Until then
// nothing changes them, not even an abort. The zero value is empty.
type Granted struct{ first, last *Request }

// Add appends r, which is parked. The caller holds the lock of what r has waited for.
func (g *Granted) Add(r *Request) {
	r.queueNext = nil
	if g.first == nil {
		g.first = r
	} else {
		g.last.queueNext = r
	}
	g.last = r
}

// Tell grants them all. The caller holds no lock, because a Signal may do anything.
func (g Granted) Tell() {
	for r := g.first; r != nil; {
		next := r.queueNext // granted, the request may be gone
		r.Grant()
		r = next
	}
}

// serve takes from the queue, in order, the requests that can have their ranges. mu is held.
func (r *rangeLock) serve() (granted Granted) {
	var before waiting
	for p := &r.first; *p != nil; {
		t := *p
		set := setOf(t.holdOff, t.holdLen)
		if before.keeps(t.queueKind, &set) || !r.grant(t, &set) {
			before.add(t)
			p = &t.queueNext
			continue
		}
		r.dequeue(p)
		granted.Add(t)
	}
	r.settleContended()
	return granted
}

// contend makes users of the stripes come to mu. mu is held.
func (r *rangeLock) contend(set *stripeSet) {
	for i := range r.stripes {
		if set.has(i) && !r.contended.has(i) {
			r.stripes[i].word.Or(stripeContended)
		}
	}
	r.contended.union(set)
}

// settleContended lets go of the stripes that nobody holds exclusively, bars or waits for. mu is
// held.
func (r *rangeLock) settleContended() {
	if r.contended.empty() {
		return
	}
	needed := r.held
	needed.union(&r.barred)
	needed.union(&r.queued.all)
	for i := range r.stripes {
		if r.contended.has(i) && !needed.has(i) {
			r.stripes[i].word.And(^uint64(stripeContended))
		}
	}
	for i := range r.contended {
		r.contended[i] &= needed[i]
	}
}

// grant gives t, which is about to wait or does, contended stripes if it can. mu is held.
func (r *rangeLock) grant(t *Request, set *stripeSet) bool {
	if t.queueKind == holdExclusive {
		return r.grantExclusive(set) // who bars them shares them, too
	}
	if set.meets(&r.held) || r.isBarred(t, set) {
		return false
	}
	for i := range r.stripes {
		if set.has(i) {
			r.stripes[i].word.Add(1)
		}
	}
	return true
}

func (r *rangeLock) grantExclusive(set *stripeSet) bool {
	if set.meets(&r.held) {
		return false
	}
	for i := range r.stripes {
		if set.has(i) && r.stripes[i].word.Load()&sharedMask != 0 {
			return false
		}
	}
	r.touched.Store(true)
	for i := range r.stripes {
		if set.has(i) {
			r.stripes[i].word.Or(stripeSticky)
		}
	}
	r.held.union(set)
	return true
}
