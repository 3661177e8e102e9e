package volume

import (
	"errors"
	"reflect"
	"slices"
	"sync/atomic"

	"oneshot/backend"
	"oneshot/internal/invariant"
	"oneshot/mem"
)

// Next is what the driver of a request has to do with it.
type Next uint8

// What a step asks for.
const (
	// Done: the results are final, and what is lent or leased stays valid until Release.
	Done Next = iota
	// Pull: the driver fills Out, in order, and calls Pulled.
	Pull
	// Wait: nothing to do until the client is told that the request is ready.
	Wait
	// Aborted: the request has let go of everything. There are no results.
	Aborted
)

// Client is the command that a request works for. Its methods are called from any goroutine.
type Client interface {
	// Signal sets flag and then has Resume called. Once flag is set the request may be gone, and in use
	// for something else: what Signal needs of the client it looks at before. It must not block.
	Signal(flag *atomic.Bool)
	// Lease returns n bytes of I/O memory that the request then owns, or nil when there is none now.
	// Then Resume is called once there may be. Called only from within a step.
	Lease(n int) *mem.Lease
	// Begun says that an operation of the request waits for Volume.Kick. Only of those with batches.
	Begun()
	// Cork is that of backend.Corker.
	Cork() backend.Uncorker
}

// Step is what a request goes on with. Steps are static functions, so that a transfer allocates nothing.
type Step func(*Request) Next

// Request is a transfer on its way through a volume: it waits for its range, leases memory, has
// data pulled, asks the store, and settles. It is driven as a step function by one goroutine at a
// time:
//
//	  Read, Write …            Pull: fill Out, then Pulled
//	─────────────────►  Next   Wait: Signal comes, then Resume
//	                           Done: look at Err, In, Mismatch; later Release
//
// The methods that begin something take the step that follows its end, which they call themselves:
// what that returns is what they return. The zero value is ready for Begin.
//
// The driver owns everything but the atomics and what is marked. Two things reach a request from
// elsewhere: the store's completion (opDone), and a grant of what it waits for (granted).
type Request struct {
	transfer
	work
	used bool     // work is not zero
	segs [][]byte // backs In and Out; kept over Release
}

// transfer is all of a request that touches nothing but lent memory: most requests to a store that
// has some. It is small because every command clears it.
type transfer struct {
	client Client
	home   *Volume
	v      *Volume // home, but while a piece of a copy is elsewhere
	block  int     // bytes of which writes are atomic with respect to each other
	most   int     // bytes of the largest lease
	batch  bool    // operations may wait for Kick
	noLend bool    // no memory of the store to be sent or received into
	fua    bool
	writes bool // the transfer changes bytes
	begun  bool // it changes [off, off+n), and may have done so in part
	late   bool // who has sent it may have given it up (Overdue)
	phase  phase

	then  Step // after the current wait
	after Step // at the end of the transfer

	off, n             int64 // the bytes of the store that the transfer is about
	placeOff, placeLen int64 // of these, what is being placed between BeginPlace and End

	// Err is how the transfer ended, valid in the step that follows it.
	Err error
	// Mismatch is the first byte that was not what it was compared with; -1: none.
	Mismatch int64
	// In is what was read. It has at most as many bytes as there was room for.
	In [][]byte
	// Out is where data go, valid after Pull, OutLen bytes in all.
	Out    [][]byte
	OutLen int
	// PlaceUnit, unless it is 0, says that the data go to the store's own memory, and Out is empty: they
	// are placed with BeginPlace, in whole blocks of so many bytes. OutLen is a multiple of it.
	PlaceUnit int
}

// work is what a request needs that leases memory, has operations of the store, or waits. What begins
// one of these calls use (TestReleased).
type work struct {
	room    int64 // of the bytes that the transfer is about, those that are wanted
	op      backend.Op
	one     [1][]byte // backs op.Segs where it is a part of a lease
	lease   *mem.Lease
	scratch []byte // memory to look at the store's bytes in
	want    [2]int // sizes of data and scratch in the lease that is being waited for

	// Of transfers that go through a range in pieces.
	done    int64 // bytes of the current range dealt with
	compare bool
	by      string // who compares and writes
	fresh   bool   // the medium is asked, not a cache
	kind    backend.Kind
	unit    int64   // bytes of what is repeated
	ranges  []Range // after the current one
	erasing bool    // it goes on with further pieces, and with ranges
	rest    *Token  // of a late transfer: what it has not begun to change, and nobody else since it is late; nil: nothing, or not known

	hold    holdKind // what it holds of v.ranges
	holdOff int64
	holdLen int64
	locked  Step // when it has the range

	opDone   atomic.Bool
	granted  atomic.Bool
	yielded  atomic.Bool         // set for nobody: a yield needs no reason to go on
	withdraw func(*Request) bool // gives up the wait; nil: who grants it is to be waited for

	queuePrev *Request // among those that bar their ranges, guarded by the mutex of rangeLock
	queueNext *Request // in the queue of rangeLock or among those that bar their ranges, guarded by its mutex; or in Granted
	queueKind holdKind // what it waits for there
}

// use notes that work is no longer zero.
func (r *Request) use() { r.used = true }

var _ backend.Corker = (*Request)(nil)

// Range is a range of bytes.
type Range struct{ Off, N int64 }

// phase is what a request waits for.
type phase uint8

const (
	phaseIdle   phase = iota
	phaseMemory       // I/O memory
	phasePull         // data
	phaseOp           // the store
	phaseParked       // a grant: its turn on a range, or what the client waits for
	phaseYield        // others to have been served
)

// Begin makes r a request of client to v, in blocks of so many bytes, none of which is ever of two
// writers. most is how many bytes the largest lease has that it can get. With batch operations may
// wait for Volume.Kick. With noLend no memory of the store is sent or received into.
func (r *Request) Begin(client Client, v *Volume, block, most int, batch, noLend bool) {
	r.client, r.home, r.v = client, v, v
	r.block, r.most, r.batch, r.noLend, r.Mismatch = block, most, batch, noLend, -1
	r.beginTerm()
}

// beginTerm has the operations of the request take place in the term in which it begins, or not at all. What the client may
// do is checked behind it; in a later term it may have been forbidden, and nobody would have looked for the request here to
// abort it.
func (r *Request) beginTerm() {
	if r.v != nil && r.v.termed != nil {
		r.inTerm(r.v.Term())
	}
}

// inTerm has the operations of the request take place in a term of its volume.
func (r *Request) inTerm(term uint64) {
	r.use()
	r.op.Term = term
}

// Term is that of the volume in which the request began; 0: the volume has none, or is not served here. It is valid until a copy
// looks at another volume.
func (r *Request) Term() uint64 { return r.op.Term }

// isServed reports whether this process serves the bytes, as far as the request knows.
func (r *Request) isServed() bool { return r.v.termed == nil || r.op.Term != 0 }

// Pulled says that Out has been filled. Due is false if nobody has asked for that.
func (r *Request) Pulled() (next Next, due bool) {
	if r.phase != phasePull {
		return Wait, false
	}
	return r.then(r), true
}

// Pulling reports whether Out is being filled.
func (r *Request) Pulling() bool { return r.phase == phasePull }

// Parked reports whether the request waits for a grant.
func (r *Request) Parked() bool { return r.phase == phaseParked }

// Resume goes on after a Signal, or after memory may be had. It may be called too often, and on a
// request that has been released: without a reason to go on, due is false. An aborted request goes
// on as soon as nothing uses it any more, with Aborted.
func (r *Request) Resume(aborted bool) (next Next, due bool) {
	ended := r.phase == phaseOp // an operation has
	switch r.phase {
	case phaseOp:
		if !r.opDone.Load() {
			if aborted {
				r.barRange()
			}
			return Wait, false
		}
		r.opDone.Store(false)
	case phaseParked:
		if !r.granted.Load() && !(aborted && r.withdraw != nil && r.withdraw(r)) {
			return Wait, false
		}
		if r.granted.Swap(false) && r.queueKind != holdNone {
			r.hold = r.queueKind
		}
		r.queueKind = holdNone
	case phaseMemory:
		if !aborted {
			return r.getMemory(), true
		}
	case phaseYield:
	case phasePull:
		if !aborted {
			return Wait, false
		}
	default:
		return Wait, false
	}
	if aborted {
		if ended && r.writes {
			r.v.touched(r.op.Off, r.op.Len) // the step that would do so is not taken
		}
		return Aborted, true
	}
	return r.then(r), true
}

// OverdueTicks is for how many seconds a command may be under way before Overdue is called for it.
const OverdueTicks = backend.OverdueTicks

// Overdue says that the request has been under way for long: whoever has sent it may have given it up, without anybody having heard of that here.
// Bytes that it changes from now on are barred, as if it were aborted. What it has not begun to change yet, and somebody else changes before, it leaves
// alone, and ends with ErrOvertaken. Data that come later are then placed nowhere.
func (r *Request) Overdue() {
	if r.phase == phaseIdle {
		return // it has ended
	}
	if r.writes && !r.late {
		r.late = true
		switch {
		case r.erasing && r.phase == phaseOp:
			r.guard(r.done + r.op.Len)
		case r.erasing:
			r.guard(r.done)
		case r.phase == phaseParked && r.queueKind == holdExclusive: // others wait behind it
		case r.begun && r.phase != phaseOp:
			r.guard(0)
		}
	}
	if r.phase == phaseOp {
		r.barRange()
	}
}

// OverdueBefore is Overdue for a request that waits for what its client waits for, and is to change [off, off+n) then.
func (r *Request) OverdueBefore(off, n int64) {
	if !r.late {
		r.use()
		r.late, r.rest = true, r.v.newToken(&Token{v: r.v, ranges: []Range{{off, n}}, guards: true, of: r})
	}
}

// ErrOvertaken is the error of a request that has come too late.
var ErrOvertaken = errors.New("others have changed bytes that a command was to change which has been under way for long")

// guard has the request hear of others who change what it is to change, but for the first done bytes of the current range.
func (r *Request) guard(done int64) {
	r.use()
	r.rest = nil
	ranges := slices.DeleteFunc(append([]Range{{r.off + done, r.n - done}}, r.ranges...), func(x Range) bool { return x.N == 0 })
	if len(ranges) != 0 {
		r.rest = r.v.Guard(ranges)
	}
}

// Guard returns a token that ends when somebody comes to change any of the bytes, and that is no good for anything else than Guarded.
func (v *Volume) Guard(ranges []Range) *Token {
	return v.newToken(&Token{v: v, ranges: ranges, guards: true})
}

// Guarded has the next piece of a late copy not be written if t has ended, which stands for it. It takes t over.
func (r *Request) Guarded(t *Token) {
	r.use()
	r.late, r.rest = true, t
}

// unguard undoes it.
func (r *Request) unguard() {
	if r.rest != nil {
		r.rest.Revoke()
		r.rest = nil
	}
}

// isOvertaken is asked by a late request that has its range, before it changes the bytes.
func (r *Request) isOvertaken() bool {
	r.barRange() // who changes any of these bytes from here on waits
	rest := r.rest
	if rest == nil {
		return false
	}
	if r.rest = nil; r.erasing {
		_, n := r.erasePiece()
		r.guard(r.done + n) // what follows, before the answer about all is asked for
	}
	overtaken := rest.revoked.Load()
	rest.Revoke()
	return overtaken
}

// Settle is the end of the request, except its memory: it gives back its range, and waits for
// nothing any more.
func (r *Request) Settle() {
	if r.begun {
		r.v.touched(r.off, r.n) // a token may have been made since the transfer began
	}
	if r.used {
		r.unguard()
		r.leaveRange()
	}
	r.phase = phaseIdle
}

// Release gives back what the request holds, and clears it for the next Begin.
func (r *Request) Release() {
	if r.used {
		r.unguard()
		r.leaveRange()
		r.DropMemory()
		r.work, r.used = work{}, false
	}
	r.transfer = transfer{}
	if segs := r.segs[:cap(r.segs)]; len(segs) == 1 { // a call of clear costs as much as the rest
		segs[0] = nil
	} else {
		clear(segs)
	}
	r.segs = r.segs[:0]
	if invariant.Enabled {
		r.checkReleased()
	}
}

// checkReleased sees that nothing is left which the next request could take for its own.
func (r *Request) checkReleased() {
	segs := r.segs
	r.segs = nil
	invariant.Check(reflect.ValueOf(r).Elem().IsZero(), "volume: a released request is the zero value")
	r.segs = segs
}

// DropMemory gives the lease back.
func (r *Request) DropMemory() {
	if r.lease != nil {
		r.lease.Release()
		r.lease = nil
	}
}

// Park waits until somebody calls Grant. An aborted request gives the wait up with withdraw, which
// reports false if the grant is on its way; nil: the grant is waited for in any case.
func (r *Request) Park(withdraw func(*Request) bool, then Step) Next {
	r.use()
	r.withdraw, r.then, r.phase = withdraw, then, phaseParked
	return Wait
}

// Grant has a request go on that was parked. No lock is held that its client may want.
func (r *Request) Grant() { r.client.Signal(&r.granted) }

// Client returns what Begin was given.
func (r *Request) Client() Client { return r.client }

// Data is the memory that the request has leased: after Take, the data that were pulled.
func (r *Request) Data() []byte { return r.lease.Bytes() }

// Leased is how many bytes Data has; 0: the request has no memory.
func (r *Request) Leased() int {
	if r.lease == nil {
		return 0
	}
	return len(r.lease.Bytes())
}

// Failed says which operation Err belongs to.
func (r *Request) Failed() (off, n int64) { return r.op.Off, r.op.Len }

// Memory gets n bytes, at the start of Data, and extra ones in scratch (0: none), then goes on. A
// request that waits for memory holds none, lest two wait for each other's.
func (r *Request) Memory(n, extra int, then Step) Next {
	invariant.Check(r.lease == nil, "volume: a request takes a second lease")
	r.use()
	r.want = [2]int{n, extra}
	r.then = then
	return r.getMemory()
}

func (r *Request) getMemory() Next {
	n, extra := r.want[0], r.want[1]
	// Where direct I/O goes to the scratch memory, it has to be aligned.
	at := (n + mem.PageSize - 1) &^ (mem.PageSize - 1)
	total := n
	if extra != 0 && at+extra <= r.most {
		total = at + extra
	}
	invariant.Check(total <= r.most, "volume: a request waits for memory that it can never have")
	if r.lease = r.client.Lease(total); r.lease == nil {
		r.phase = phaseMemory
		return Wait
	}
	switch {
	case extra == 0:
	case total > n:
		r.scratch = r.lease.Bytes()[at:]
	default:
		// The data has all of the largest lease there is. scratchBytes more on the heap keep
		// the memory of a connection bounded: there is one for each such lease.
		r.scratch = make([]byte, extra)
	}
	return r.then(r)
}

// Take gets memory for n bytes and has them pulled.
func (r *Request) Take(n int64, then Step) Next {
	r.n, r.after = n, then
	return r.Memory(int(n), 0, (*Request).takePull)
}

func (r *Request) takePull() Next { return r.pull(int(r.n), r.after) }

// pull asks for the first n bytes of data in the lease.
func (r *Request) pull(n int, then Step) Next {
	r.segs = append(r.segs[:0], r.lease.Bytes()[:n])
	r.Out, r.OutLen = r.segs, n
	r.then = then
	r.phase = phasePull
	return Pull
}

// pullLent asks for n bytes of data in the store's own memory.
func (r *Request) pullLent(n int, then Step) Next {
	r.Out, r.OutLen, r.PlaceUnit = nil, n, r.block
	r.then = then
	r.phase = phasePull
	return Pull
}

// submit gives an operation on [off, off+n) to the store, with the first n bytes of buf if it
// moves any, and goes on when it has completed, with its error in r.op.Err.
func (r *Request) submit(kind backend.Kind, off, n int64, buf []byte, then Step) Next {
	r.use()
	r.op.Kind, r.op.Off, r.op.Len, r.op.Segs = kind, off, n, nil
	if buf != nil {
		r.one[0] = buf[:n]
		r.op.Segs = r.one[:]
	}
	r.op.Done, r.op.Err = r, nil
	r.then = then
	if !r.isServed() {
		r.op.Err = &backend.MovedError{Name: "the bytes of the volume"}
		return then(r)
	}
	r.phase = phaseOp
	if r.submitOp() {
		return then(r)
	}
	return Wait
}

// submitOp submits r.op, and has Kick start it if that may be. It reports whether the operation has
// completed. Those of a copy on other volumes than the one that was asked may not wait: who kicks
// does not know these.
func (r *Request) submitOp() bool {
	if !r.batch || r.v != r.home || r.v.batcher == nil {
		r.op.Flags &^= backend.More // of an earlier operation
		return r.v.store.Submit(&r.op)
	}
	r.op.Flags |= backend.More
	client := r.client // the operation may complete, and the client have another, before Submit returns
	if r.v.store.Submit(&r.op) {
		return true
	}
	client.Begun()
	return false
}

// OpDone is for the store.
func (r *Request) OpDone(*backend.Op) {
	// Where ranges are waited for by spinning, a hold ends with the operation. Were it
	// kept until the driver comes round, a driver that spins would wait for itself. Elsewhere the hold
	// is the driver's alone, who may bar the range meanwhile.
	if r.v.lender != nil {
		r.leaveRange()
	}
	r.client.Signal(&r.opDone)
}

// Leave is for the store; see backend.Leaver. A read ends its transfer when it fails, and no step after that looks at the memory: neither at the
// bytes of the store nor at data that were pulled.
func (r *Request) Leave() (free func(), ok bool) {
	l := r.lease
	if r.op.Kind != backend.Read || l == nil {
		return nil, false
	}
	r.lease, r.scratch = nil, nil
	return l.Release, true
}

// Cork is for the store; see backend.Corker.
func (r *Request) Cork() backend.Uncorker { return r.client.Cork() }

// Yield lets the driver do something else before it goes on with the request.
func (r *Request) Yield(then Step) Next {
	r.use()
	r.then = then
	r.phase = phaseYield
	r.client.Signal(&r.yielded)
	return Wait
}

// end ends the transfer with err.
func (r *Request) end(err error) Next {
	r.Err = err
	return r.after(r)
}

// opEnd ends the transfer as its operation has ended.
func (r *Request) opEnd() Next { return r.end(r.op.Err) }

// writeFlag is what is asked of the store's writes.
func (r *Request) writeFlag() backend.Flags {
	if r.fua {
		return backend.FUA
	}
	return 0
}

// BeginPlace lends the memory for the n bytes of data from at on, both multiples of PlaceUnit,
// to the transport, which calls End when it has filled it. In between lie a few microseconds of
// copying, no other call to this package, and no waiting: the pair keeps others who write away from
// these blocks, and requests that must be atomic, such as CompareAndWrite. Of a request that does
// not wait for its data, or has no PlaceUnit, or has been overtaken, there is no such memory: the data go nowhere.
func (r *Request) BeginPlace(at, n int) Placing {
	if r.phase != phasePull || r.PlaceUnit == 0 || n == 0 {
		return Placing{}
	}
	invariant.Check(at%r.PlaceUnit == 0 && n%r.PlaceUnit == 0 && at+n <= r.OutLen, "whole blocks of the data are placed")
	invariant.Check(r.placeLen == 0, "a request places twice at a time")
	r.placeOff, r.placeLen = r.off+int64(at), int64(n)
	if !r.late {
		r.v.ranges.enterSharedSpin(r.placeOff, r.placeLen)
	} else if !r.enterLate() {
		return Placing{}
	}
	r.segs = r.v.lender.Lend(r.segs[:0], r.placeOff, r.placeLen, true)
	return Placing{Segs: r.segs, r: r}
}

// enterLate takes the range that is to be placed for the request alone, so that nobody comes to change these bytes between the look at who has and
// the placing. False: somebody has come before.
func (r *Request) enterLate() bool {
	r.v.ranges.enterExclusiveSpin(r.placeOff, r.placeLen)
	if !r.rest.Ended() {
		return true
	}
	r.Err = ErrOvertaken
	r.v.ranges.leaveExclusive(r.placeOff, r.placeLen)
	r.placeLen = 0
	return false
}

// Place copies b to where the data from at on belong, with or without PlaceUnit.
func (r *Request) Place(at int, b []byte) {
	for _, seg := range r.Out {
		if at >= len(seg) {
			at -= len(seg)
			continue
		}
		b = b[copy(seg[at:], b):]
		at = 0
	}
	p := r.BeginPlace(at, len(b))
	for _, seg := range p.Segs {
		b = b[copy(seg, b):]
	}
	p.End()
}

// Placing is what BeginPlace has lent, and all that End gives back. The zero value is nothing. It is no
// larger than what Go keeps in registers: to copy it by way of memory costs as much as the lock.
type Placing struct {
	Segs [][]byte // to be filled
	r    *Request
}

// End ends what BeginPlace began. It is called once.
func (p Placing) End() {
	if p.r != nil {
		p.r.endPlace()
	}
}

func (r *Request) endPlace() {
	invariant.Check(r.placeLen != 0, "what BeginPlace has lent is given back once, by the request that has it")
	off, n := r.placeOff, r.placeLen
	r.placeLen = 0
	r.v.lender.Commit(off, n)
	if r.late {
		r.v.ranges.leaveExclusive(off, n)
	} else {
		r.v.ranges.leaveShared(off, n)
	}
}
