package volume

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"unsafe"

	"oneshot/backend"
	"oneshot/mem"
	"oneshot/volume/access"
)

// Handle is a view of a volume for those who have operations of their own, with memory: an RDMA endpoint,
// say. What they submit keeps to the volume's rules: operations stay out of each other's way as those of
// logical units do (ranges.go), a reservation that denies writes denies theirs, SANITIZE waits for them,
// and atomic operations are atomic against COMPARE AND WRITE. A handle itself holds no reservation.
//
// Its methods may be called from any goroutine, except that nothing is outstanding or submitted when Close
// is called.
type Handle struct {
	v       *Volume
	changed func() // nil: nobody wants to know

	denied atomic.Uint32 // access.Denial
	under  atomic.Int64  // operations submitted and not completed
	drains atomic.Bool   // somebody waits until there are none

	mu       sync.Mutex // taken before the mutex of rangeLock
	drained  []func()   // guarded by mu
	mappings []*mapping // guarded by mu
	writes   *handleOp  // those that the store writes for, or that wait for their ranges to write, unless the store lends its memory; guarded by mu
	givenUp  bool       // guarded by mu
}

var (
	_ View              = (*Handle)(nil)
	_ access.Subscriber = (*Handle)(nil)
)

// Open returns a handle of the volume, which cannot be closed before the handle is. changed, if it is set,
// is called when the volume's size has changed, with locks of the volume held: it must not block, nor call
// the volume or the handle, except for Info.
func (v *Volume) Open(changed func()) *Handle {
	v.numbering.Do(v.number)
	h := &Handle{v: v, changed: changed}
	v.Attach(h)
	v.access.Subscribe(h)
	return h
}

// Close ends the use of the volume.
func (h *Handle) Close() {
	h.v.access.Unsubscribe(h)
	h.v.Detach(h)
}

// Info describes the volume, with the size of the moment.
func (h *Handle) Info() backend.Info {
	info := h.v.info
	info.Size = h.v.Size()
	return info
}

// Sequence numbers what is written through the handles of the volume. Who submits through them calls it.
func (h *Handle) Sequence() *backend.Sequence { return &h.v.sequence }

// Kick starts the operations that were submitted with backend.More.
func (h *Handle) Kick() {
	if h.v.batcher != nil {
		h.v.batcher.Kick()
	}
}

// Await waits for completions where the store can do so, as backend.Awaiter does.
func (h *Handle) Await() bool { return h.v.awaiter != nil && h.v.awaiter.Await() }

// Submit starts op like backend.Store.Submit, with the same ownership. Flags are those of backend.Op, of
// which fences and barriers are the whole store's. What may not be done now fails with a
// *backend.DeniedError.
func (h *Handle) Submit(op *backend.Op) bool {
	k := kindTransfer
	if op.Kind == backend.Flush {
		k = kindFlush
	}
	return h.begin(op, k, 0, 0)
}

// CompareSwap replaces the 8 octets at op.Off, a multiple of 8, by swap if they are compare, and puts what
// was there into op.Segs, one piece of 8 octets. Numbers are in the byte order of the host. op.Kind is
// without meaning; with backend.FUA in op.Flags the new value is durable at completion.
func (h *Handle) CompareSwap(op *backend.Op, compare, swap uint64) bool {
	return h.begin(op, kindCompareSwap, compare, swap)
}

// FetchAdd is CompareSwap that adds, modulo 2⁶⁴, whatever is there.
func (h *Handle) FetchAdd(op *backend.Op, add uint64) bool {
	return h.begin(op, kindFetchAdd, 0, add)
}

// handleKind is what an operation of a handle does.
type handleKind uint8

const (
	kindTransfer handleKind = iota
	kindFlush
	kindCompareSwap
	kindFetchAdd
)

// handleOp is an operation of a handle on its way. The range that it holds, or waits for, is its request's,
// of which it uses nothing else.
type handleOp struct {
	request Request
	h       *Handle
	op      *backend.Op
	done    backend.Completer // the owner's
	kind    handleKind
	compare uint64
	operand uint64
	block   backend.Op // of an atomic operation on a store that does not lend
	buf     []byte     // its memory; kept for the next
	segs    [1][]byte  // of block
	lent    [][]byte
	writing bool // block writes

	next, prev *handleOp // in Handle.writes, guarded by Handle.mu
	listed     bool      // there
	waits      bool      // there, for its range

	// Guarded by Handle.mu while it is listed.
	ticks uint8         // seconds since its owner has it, at most OverdueTicks
	guard backend.Guard // from then on, if it did not have its range; nil: nothing was kept in mind
	own   bool          // guard is not the owner's
}

var (
	_ Client         = (*handleOp)(nil)
	_ backend.Corker = (*handleOp)(nil)

	handleOps = sync.Pool{New: func() any { return new(handleOp) }}
)

// begin reports whether op has completed already.
func (h *Handle) begin(op *backend.Op, kind handleKind, compare, operand uint64) bool {
	h.under.Add(1) // before the look at what is denied: who denies looks at it afterwards
	if op.Err = h.refuses(op, kind); op.Err != nil {
		h.leave()
		return true
	}
	o := handleOps.Get().(*handleOp)
	o.h, o.op, o.done, o.kind = h, op, op.Done, kind
	o.compare, o.operand, o.writing = compare, operand, false
	o.ticks, o.guard = backend.Age(o.done)
	op.Done = o
	if !o.enter() {
		return false
	}
	return o.start()
}

// refuses returns why op may not be done.
func (h *Handle) refuses(op *backend.Op, kind handleKind) error {
	atomicOp := kind >= kindCompareSwap
	if atomicOp && op.Off%8 != 0 {
		return &backend.RangeError{Kind: op.Kind, Off: op.Off, Len: op.Len, Max: h.v.Size()}
	}
	if err := op.Check(h.v.Size()); err != nil && kind != kindFlush {
		return err
	}
	d := access.Denial(h.denied.Load())
	if d == 0 {
		return nil
	}
	switch d &^= access.Most; {
	case d&(access.Sanitizing|access.SanitizeFailed) != 0:
		return &backend.DeniedError{Kind: op.Kind, Why: "the volume is being sanitized, or that has failed"}
	case d&access.OfGroups != 0:
		return &backend.DeniedError{Kind: op.Kind, Why: "the volume is not available"}
	case d&access.Reads != 0 && kind != kindFlush,
		d&access.Writes != 0 && kind != kindFlush && (atomicOp || op.Kind != backend.Read && op.Kind != backend.Status):
		return &backend.DeniedError{Kind: op.Kind, Why: "an initiator has reserved the volume"}
	}
	return nil
}

// writes reports whether the operation changes bytes.
func (o *handleOp) writes() bool {
	return o.kind >= kindCompareSwap || o.kind == kindTransfer && o.op.Kind != backend.Read && o.op.Kind != backend.Status
}

// enter takes the range, and reports false if that has to be waited for: then Signal follows.
func (o *handleOp) enter() bool {
	v, op, r := o.h.v, o.op, &o.request
	if o.writes() {
		v.touch(op.Off, op.Len, false, o.h)
	}
	r.v, r.client, r.hold, r.queueKind = v, o, holdNone, holdNone
	r.holdOff, r.holdLen = op.Off, op.Len
	switch {
	case o.kind == kindFlush:
		return true
	case v.lender != nil && o.guard != nil && o.writes(): // nobody comes between the look at the guard and the change
		v.ranges.enterExclusiveSpin(op.Off, op.Len)
		r.hold = holdExclusive
		return true
	case v.lender != nil:
		// An atomic operation on lent memory is one instruction, and nobody's who has the range shared.
		if o.writes() || v.ranges.sticky(op.Off, op.Len) {
			v.ranges.enterSharedSpin(op.Off, op.Len)
			r.hold = holdShared
		}
		return true
	}
	kind := holdShared
	if o.kind >= kindCompareSwap {
		kind = holdExclusive
		r.holdOff, r.holdLen = o.blockOf()
	}
	if kind == holdShared && v.ranges.tryShared(op.Off, op.Len) {
		r.hold = kind
		return true
	}
	if o.writes() {
		o.h.await(o)
	}
	if v.ranges.enqueue(r, kind) {
		r.hold, r.queueKind = kind, holdNone
		return true
	}
	return false
}

// blockOf is the block with the octets of an atomic operation.
func (o *handleOp) blockOf() (off, n int64) {
	n = int64(o.h.v.info.BlockSize)
	return o.op.Off &^ (n - 1), n
}

// Signal is for the lock of ranges: the operation has its range.
func (o *handleOp) Signal(*atomic.Bool) {
	r, op := &o.request, o.op
	op.Flags &^= backend.More // who has submitted it may have called Kick already
	r.hold, r.queueKind = r.queueKind, holdNone
	if o.start() {
		op.Done.OpDone(op)
	}
}

// start does the operation, which has its range, and reports whether it has completed.
func (o *handleOp) start() bool {
	op, v := o.op, o.h.v
	if o.kind != kindFlush {
		if op.Err = v.refuses(op.Off, op.Len, o.writes()); op.Err != nil {
			return o.finish()
		}
	}
	if o.writes() {
		if why := o.h.isLate(o); why != "" {
			op.Err = &backend.DeniedError{Kind: op.Kind, Why: why, Late: true}
			return o.finish()
		}
	}
	switch {
	case o.kind < kindCompareSwap:
		if !v.store.Submit(op) {
			return false
		}
		return o.finish()
	case v.lender != nil:
		return o.inPlace()
	}
	off, n := o.blockOf()
	if int64(len(o.buf)) < n {
		o.buf = alignedBytes(int(max(n, mem.PageSize)))
	}
	o.segs[0] = o.buf[:n]
	o.block = backend.Op{Kind: backend.Read, Off: off, Len: n, Segs: o.segs[:], Done: o}
	if !v.store.Submit(&o.block) {
		return false
	}
	return o.goOn()
}

// goOn goes on after an operation on the block, and reports whether all is done.
func (o *handleOp) goOn() bool {
	for {
		op := o.op
		if op.Err = o.block.Err; op.Err != nil || o.writing {
			op.Durable = o.block.Durable
			return o.finish()
		}
		at := o.buf[op.Off-o.block.Off:][:8]
		old := binary.NativeEndian.Uint64(at)
		binary.NativeEndian.PutUint64(op.Segs[0], old)
		v, change := o.value(old)
		if !change {
			op.Durable = true // there is nothing to lose
			return o.finish()
		}
		binary.NativeEndian.PutUint64(at, v)
		o.writing = true
		o.block.Kind, o.block.Flags = backend.Write, op.Flags&backend.FUA
		if !o.h.v.store.Submit(&o.block) {
			return false
		}
	}
}

// value is what replaces old; change is false if nothing does.
func (o *handleOp) value(old uint64) (v uint64, change bool) {
	if o.kind == kindFetchAdd {
		return old + o.operand, true
	}
	return o.operand, old == o.compare
}

// inPlace does an atomic operation in the store's own memory. It is atomic against single stores there, too.
func (o *handleOp) inPlace() bool {
	op, l := o.op, o.h.v.lender
	off, n := o.blockOf()
	o.lent = l.Lend(o.lent[:0], off, n, true)
	at := op.Off - off
	for len(o.lent[0]) <= int(at) {
		at -= int64(len(o.lent[0]))
		o.lent = append(o.lent[:0], o.lent[1:]...)
	}
	p := (*uint64)(unsafe.Pointer(unsafe.SliceData(o.lent[0][at : at+8])))
	var old uint64
	for {
		old = atomic.LoadUint64(p)
		v, change := o.value(old)
		if !change || atomic.CompareAndSwapUint64(p, old, v) {
			break
		}
	}
	l.Commit(off, n)
	clear(o.lent)
	binary.NativeEndian.PutUint64(op.Segs[0], old)
	if op.Flags&backend.FUA == 0 || !o.h.v.info.VolatileCache {
		return o.finish()
	}
	o.writing = true
	o.block = backend.Op{Kind: backend.Flush, Done: o}
	if !o.h.v.store.Submit(&o.block) {
		return false
	}
	return o.goOn()
}

// finish lets go of everything, and gives the operation back to its owner, whose Completer it has again.
func (o *handleOp) finish() bool {
	h := o.h
	if o.writes() {
		h.v.touched(o.op.Off, o.op.Len) // a token may have been made since it began
	}
	o.op.Done = o.done
	if o.listed {
		h.delist(o)
	}
	if o.own {
		o.guard.Revoke()
	}
	o.guard, o.own = nil, false
	o.request.leaveRange()
	o.h, o.op, o.done = nil, nil, nil
	o.segs[0] = nil
	handleOps.Put(o)
	h.leave()
	return true
}

// OpDone is for the store.
func (o *handleOp) OpDone(*backend.Op) {
	op := o.op
	if o.kind < kindCompareSwap {
		o.finish()
	} else if !o.goOn() {
		return
	}
	op.Done.OpDone(op)
}

// Cork is for the store.
func (o *handleOp) Cork() backend.Uncorker { return backend.Cork(o.done) }

// Lease and Begun are of requests that go through steps; these do not.
func (o *handleOp) Lease(int) *mem.Lease { return nil }

// Begun is not called.
func (o *handleOp) Begun() {}

// GiveUp says that nobody waits any more for what is under way: the user has gone, or may not do it any more. Others may be told that their
// writes to the same bytes are done, so what the store still writes is kept from them until it is done (barRange), and what has not
// come to the store fails. It may be called several times.
func (h *Handle) GiveUp() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.givenUp = true
	for o := h.writes; o != nil; o = o.next {
		o.barRange()
	}
}

// Tick is called about once a second while operations are under way. A user may have been given up without anybody having heard of that
// here. So what the store has been writing for OverdueTicks seconds, counted from when its owner had it (backend.Aged), is kept from others
// as if he were; and what still waits for its range then leaves alone what others change first, and fails.
func (h *Handle) Tick() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for o := h.writes; o != nil; o = o.next {
		if o.ticks < OverdueTicks {
			o.ticks++
		}
		if o.ticks < OverdueTicks {
			continue
		}
		if o.barRange(); o.waits && o.guard == nil {
			o.guard, o.own = h.Guard(o.op.Off, o.op.Len), true
		}
	}
}

// Guard returns what ends when somebody comes by another way than this handle to change any of the bytes [off, off+n). Its owner revokes it.
func (h *Handle) Guard(off, n int64) backend.Guard {
	return h.v.newToken(&Token{v: h.v, ranges: []Range{{off, n}}, guards: true, of: h})
}

// barRange keeps others from what the store writes for o. Handle.mu is held, and o is listed.
func (o *handleOp) barRange() {
	if !o.waits {
		o.request.barRange()
	}
}

// await notes that o is about to wait for its range.
func (h *Handle) await(o *handleOp) {
	if h.v.lender == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		o.waits = true
		h.enlist(o)
	}
}

// isLate is asked when o has its range, and notes that it goes to the store, unless it must not any more: then it says why.
func (h *Handle) isLate(o *handleOp) (why string) {
	if h.v.lender == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.givenUp {
			return "its user has been given up"
		}
		o.waits = false
		if !o.listed {
			h.enlist(o)
		}
		if o.request.writes = true; o.ticks >= OverdueTicks {
			o.barRange() // who changes any of these bytes from here on waits
		}
	}
	if o.guard != nil && o.guard.Ended() {
		return ErrOvertaken.Error()
	}
	return ""
}

// enlist puts o on the list. mu is held.
func (h *Handle) enlist(o *handleOp) {
	if o.next = h.writes; o.next != nil {
		o.next.prev = o
	}
	h.writes, o.listed = o, true
}

func (h *Handle) delist(o *handleOp) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if o.prev != nil {
		o.prev.next = o.next
	} else {
		h.writes = o.next
	}
	if o.next != nil {
		o.next.prev = o.prev
	}
	o.next, o.prev, o.listed, o.waits = nil, nil, false, false
}

// leave counts an operation out.
func (h *Handle) leave() {
	if h.under.Add(-1) == 0 && h.drains.Load() {
		h.tellDrained()
	}
}

func (h *Handle) tellDrained() {
	h.mu.Lock()
	var tell []func()
	if h.under.Load() == 0 {
		tell, h.drained = h.drained, nil
		h.drains.Store(false)
	}
	h.mu.Unlock()
	for _, f := range tell {
		f()
	}
}

// Drain implements View.
func (h *Handle) Drain(drained func()) {
	h.mu.Lock()
	h.drained = append(h.drained, drained)
	h.drains.Store(true)
	h.mu.Unlock()
	if h.under.Load() == 0 {
		h.tellDrained()
	}
}

// SizeChanged implements View.
func (h *Handle) SizeChanged() {
	if h.changed != nil {
		h.changed()
	}
}

// Holder implements access.Subscriber: an endpoint is registered by nobody.
func (h *Handle) Holder() access.Holder { return access.Holder{} }

// Session implements access.Subscriber.
func (h *Handle) Session() any { return h }

// Deny implements access.Subscriber.
func (h *Handle) Deny(mask, denied access.Denial) {
	for {
		old := h.denied.Load()
		if h.denied.CompareAndSwap(old, old&^uint32(mask)|uint32(denied&mask)) {
			break
		}
	}
	h.recall()
}

// Tell implements access.Subscriber: there is nobody to be told of unit attentions.
func (h *Handle) Tell(access.Event) {}

// Abort implements access.Subscriber: what is under way ends by itself.
func (h *Handle) Abort(done func()) { h.Drain(done) }
