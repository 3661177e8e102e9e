package local

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"oneshot/backend"
	"oneshot/stag"
	"oneshot/transport/rdma"
)

// Medium is what an endpoint stands for: a handle of a volume (volume.Handle), for all that its views have
// in common is kept there. Its methods may be called from any goroutine.
type Medium interface {
	// Info describes it. Its size may grow; a queue pair keeps the one that it was connected with.
	Info() backend.Info
	// Submit starts op and reports whether it has completed already, as backend.Store.Submit does.
	Submit(op *backend.Op) bool
	// Kick starts what was submitted with backend.More.
	Kick()
	// CompareSwap and FetchAdd change the 8 octets at op.Off atomically, as O13 says, and put what was there
	// into op.Segs, one piece. With backend.FUA the change is durable at completion.
	CompareSwap(op *backend.Op, compare, swap uint64) bool
	FetchAdd(op *backend.Op, add uint64) bool
	// Sequence numbers the writes of all who use the partition.
	Sequence() *backend.Sequence
}

// awaiter is what a Medium may be, too: its completions can be waited for as backend.Awaiter says.
type awaiter interface{ Await() bool }

// quitter is what a Medium may be, too: GiveUp says that others may be told that they have changed what works of the queue pair still change.
// So what is under way must not come on top of that, and what comes later, or waits, fails.
type quitter interface{ GiveUp() }

// ager is what a Medium may be, too: it keeps what comes late from octets that others have changed since. The owner of a queue pair may have
// been given up, and nobody has heard of that: a cable is cut.
type ager interface {
	// Tick is called about once a second while works are under way. What was submitted ages by it, from the age on that its Completer
	// has told (backend.Aged).
	Tick()
	// Guard returns what ends when others come to change any of the octets [off, off+n).
	Guard(off, n int64) backend.Guard
}

// Opened is an endpoint that somebody has opened for a queue pair.
type Opened struct {
	Medium Medium
	// Info has name, UUID, rights, durability and aging time; the device fills in the rest.
	Info rdma.Endpoint
	// Memory says that the store keeps its bytes in memory, so that each Read and Write costs a copy.
	Memory bool
	// Age, if set, is asked of each work that is posted, by its ID: for how many ticks of a second its owner has had it, and, if that are
	// backend.OverdueTicks or more, the guard of its range, which the device takes over. Nil if Medium has no Guard.
	Age func(id uint64) (ticks uint8, g backend.Guard)
	// Again, if set, opens the endpoint for who goes on where the user of this one was (rdma.ConnParams.Former), or fails with rdma.ErrReplaced.
	Again Opener
	// Close is called once, when the queue pair has ended, or after gone, and nothing is outstanding any more.
	Close func()
}

// Opener opens the endpoint called name, and grants some of the rights that are wanted; 0: all that the opener can
// grant. The device calls Close of what it returns. If there is no such endpoint, the error wraps rdma.ErrNoEndpoint.
//
// The opener calls gone, from any goroutine, when rights are revoked, or the partition is deleted, renamed or made
// smaller. Then the STag of the queue pair is invalid: works under way end, the next one fails with
// rdma.StatusRemoteAccess, and the queue pair ends. gone does not block.
type Opener func(ctx context.Context, name string, want rdma.Rights, gone func(error)) (Opened, error)

// endpoint is the far end of a queue pair that is a store.
//
// Whoever holds mu drives it: Post, or the store when it has completed something. Completions come by way of
// ready, because the store may complete while somebody holds mu, even within Submit. The store never waits
// for mu: if mu is taken, its holder looks at ready before it lets go.
type endpoint struct {
	q      *queuePair
	m      Medium
	await  awaiter // m, or nil
	quit   func()  // GiveUp of m, or nothing
	ager   ager    // m, or nil
	age    func(id uint64) (uint8, backend.Guard)
	again  Opener // Opened.Again
	seq    *backend.Sequence
	info   rdma.Endpoint
	order  rdma.Order
	copies bool // a transfer is one copy
	cached bool // what is written needs a flush, if nothing else makes it durable
	maxOps int  // operations of the store outstanding

	ready  atomic.Pointer[work] // completed by the store, newest first, linked by below
	corked atomic.Int32         // batches that the store is about to complete
	poked  atomic.Bool          // there is something else to look at
	gone   atomic.Pointer[error]

	release     func() // calls Opened.Close, once
	mu          sync.Mutex
	first, last *work // posted and not retired, in order
	free        *work // for the next
	spare       *piece
	n           int // in the list
	waiting     int // of these, not started
	running     int // started and not complete
	ops         int // operations of the store outstanding
	chain       uint32
	broken      []bool // by chain: a work of it has failed
	kick        bool   // something was submitted with backend.More
	leaving     bool   // the owner has called Disconnect
	over        bool   // nothing is started any more
	ended       bool
	told        bool                     // tell was called
	mapped      map[*rdma.Mapping]func() // memory that the owner has, and what asks for it
	err         error                    // why it is over
	clock       *time.Timer              // calls tick
	ticking     bool                     // it will
	tally       tally                    // not in q.n yet
	out         []rdma.Completion        // to be pushed
}

// openEndpoint connects q with the endpoint called name; former is that of the parameters, or nil.
func (d *Device) openEndpoint(ctx context.Context, q *queuePair, name string, want rdma.Rights, former *queuePair) error {
	open := d.cfg.Open
	if open == nil {
		return fmt.Errorf("%w: %s", rdma.ErrNoEndpoint, name)
	}
	if former != nil {
		if err := former.replaced(); err != nil {
			return err
		}
		if e := former.endpoint.Load(); e != nil && e.again != nil {
			open = e.again
		}
	}
	e := &endpoint{q: q, order: q.cfg.Order, maxOps: 4 * max(q.maxWork, 1), mapped: make(map[*rdma.Mapping]func())}
	o, err := open(ctx, name, want, e.revoke)
	if err != nil {
		return err
	}
	e.mu.Lock() // gone may be called at any time
	defer e.unlock()
	e.release = sync.OnceFunc(o.Close)
	e.m, e.seq, e.info, e.copies = o.Medium, o.Medium.Sequence(), o.Info, o.Memory
	e.await, _ = o.Medium.(awaiter)
	e.again = o.Again
	e.quit = func() {}
	if q, ok := o.Medium.(quitter); ok {
		e.quit = q.GiveUp
	}
	if e.ager, _ = o.Medium.(ager); e.ager != nil {
		e.age = o.Age
		e.clock = time.AfterFunc(time.Hour, e.tick)
		e.clock.Stop()
	}
	i := e.m.Info()
	e.cached = i.VolatileCache
	e.info.Unit, e.info.Size, e.info.Base, e.info.Direct = i.BlockSize, i.Size, 0, false
	chains := 2
	for chains < q.maxWork+2 {
		chains *= 2
	}
	e.broken = make([]bool, chains)
	s, err := d.memory.Table.Register(q.domain.Tag, q.stream, stag.Region{Length: uint64(i.Size), Access: e.access()})
	if err != nil {
		e.release()
		return err
	}
	e.info.STag = rdma.STag(s)
	if !q.connect(func() { q.endpoint.Store(e) }) {
		_ = d.memory.Table.Deregister(s)
		e.release()
		return rdma.ErrDisconnected
	}
	if e.gone.Load() != nil { // before there was an STag
		e.poked.Store(true)
	}
	return nil
}

// access is what the STag of the endpoint allows. What is not there, works say for themselves (allowed).
func (e *endpoint) access() (a stag.Access) {
	if e.info.Rights&rdma.RightRead != 0 {
		a |= stag.AccessRemoteRead
	}
	if e.info.Rights&(rdma.RightWrite|rdma.RightAtomics|rdma.RightDiscard) != 0 {
		a |= stag.AccessRemoteWrite
	}
	return a
}

// revoke is Opener's gone.
func (e *endpoint) revoke(err error) {
	if err == nil {
		err = rdma.ErrNoEndpoint
	}
	if e.gone.CompareAndSwap(nil, &err) {
		e.poke()
	}
}

// invalidate takes the STag back after gone was called. The lock is held.
func (e *endpoint) invalidate() {
	_, _ = e.q.dev.memory.Table.Invalidate(stag.STag(e.info.STag)) // again, perhaps, to no effect
	e.quit()
	e.recall()
	if e.idle() {
		e.q.dev.work.Go(e.release) // locks of whoever has called gone are held
	}
}

// replaced returns the error with which the endpoint of q has gone, if another one of the same user has taken its place.
func (q *queuePair) replaced() error {
	if e := q.endpoint.Load(); e != nil {
		if err := e.gone.Load(); err != nil && errors.Is(*err, rdma.ErrReplaced) {
			return *err
		}
	}
	return nil
}

// poke has somebody look at the endpoint, without waiting.
func (e *endpoint) poke() {
	e.poked.Store(true)
	if e.mu.TryLock() {
		e.unlock()
	}
}

// unlock does what has come up and releases mu.
func (e *endpoint) unlock() {
	for {
		e.settle()
		e.q.sendCQ.Deliver(e.out...)
		clear(e.out)
		e.out = e.out[:0]
		if e.ended && !e.told { // whoever hears of the end finds all completions
			e.told = true
			e.recall()
			release := e.idle() // otherwise the last Unmap does
			e.q.dev.work.Go(func() { e.tell(release) })
		}
		kick := e.kick
		e.kick = false
		e.mu.Unlock()
		if kick {
			e.m.Kick()
		}
		if e.ready.Load() == nil && !e.poked.Load() || !e.mu.TryLock() {
			return
		}
	}
}

// settle goes on with what the store has completed, starts what may start, and ends what is to end. The lock
// is held.
func (e *endpoint) settle() {
	for {
		if e.poked.Load() && e.poked.Swap(false) && e.q.endpoint.Load() == e {
			e.invalidate()
		}
		e.takeReady()
		if !e.startOne() && e.ready.Load() == nil && !e.poked.Load() {
			break
		}
	}
	if (e.over || e.leaving) && e.n == 0 && !e.ended {
		e.end()
	}
}

// takeReady goes on with works whose operations have completed, in the order in which they did.
func (e *endpoint) takeReady() {
	if e.ready.Load() == nil {
		return
	}
	var oldest *work
	for w := e.ready.Swap(nil); w != nil; {
		w.below, oldest, w = oldest, w, w.below
	}
	for w := oldest; w != nil; {
		next := w.below
		w.below = nil
		e.step(w)
		w = next
	}
	if e.gone.Load() != nil && e.idle() {
		e.invalidate()
	}
}

// post posts work requests.
func (e *endpoint) post(ws []rdma.Work) (n int, err error) {
	e.mu.Lock()
	for ; n < len(ws); n++ {
		if e.n >= e.q.maxWork {
			e.takeReady()
		}
		if err = e.postOne(ws, n); err != nil {
			break
		}
	}
	e.tally.posts++
	e.tally.works += uint64(n)
	if n > 0 {
		e.tally.doorbells++
	}
	e.unlock()
	return n, err
}

// tally counts under the lock, which costs a tenth of counting without one.
type tally struct{ posts, works, doorbells, reads, bytesIn, bytesOut, copies, bytesCopied uint64 }

// settleCounts adds the tally to the counters of the queue pair.
func (e *endpoint) settleCounts() {
	e.mu.Lock()
	n, t := &e.q.n, e.tally
	e.tally = tally{}
	n.Posts.Add(t.posts)
	n.Works.Add(t.works)
	n.Doorbells.Add(t.doorbells)
	n.Reads.Add(t.reads)
	n.BytesIn.Add(t.bytesIn)
	n.BytesOut.Add(t.bytesOut)
	n.Copies.Add(t.copies)
	n.BytesCopied.Add(t.bytesCopied)
	e.unlock()
}

func (e *endpoint) postOne(ws []rdma.Work, i int) error {
	switch {
	case e.over || e.leaving:
		return rdma.ErrDisconnected
	case e.n >= e.q.maxWork:
		return rdma.ErrFull
	}
	w := e.newWork()
	if what := e.prepare(w, &ws[i]); what != "" {
		e.recycle(w)
		return &rdma.WorkError{Index: i, Op: ws[i].Op, What: what}
	}
	e.enlist(w)
	if e.mayStart(w) {
		e.start(w)
	}
	return nil
}

// tick is called a second after works are under way, and again while there are some.
func (e *endpoint) tick() {
	e.mu.Lock()
	defer e.unlock()
	if e.ticking = e.n > 0; !e.ticking {
		return
	}
	for w := e.first; w != nil; w = w.next {
		if w.ticks < backend.OverdueTicks {
			w.ticks++
		}
		if w.ticks == backend.OverdueTicks && w.writes && w.guard == nil && w.n > 0 && (w.state == waiting || w.state == running && w.stage == stageBefore) {
			w.guard = e.ager.Guard(w.off, w.n)
		}
	}
	e.ager.Tick()
	e.clock.Reset(time.Second)
}

// disconnect ends the endpoint in good order when all that was posted is done.
func (e *endpoint) disconnect() {
	e.mu.Lock()
	e.leaving = true
	e.unlock()
}

// abort ends it at once: what has not started is flushed.
func (e *endpoint) abort(err error) {
	e.mu.Lock()
	e.stop(err)
	e.unlock()
}

// stop sees to it that nothing starts any more. The lock is held.
func (e *endpoint) stop(err error) {
	if !e.over && !e.ended {
		e.over, e.err = true, err
		e.quit()
	}
}

// end is the end of the queue pair's connection. The lock is held, and nothing is in the list.
func (e *endpoint) end() {
	e.ended, e.over = true, true
	e.q.stream.End()
	_ = e.q.stream.Free() // works held the references
	e.q.flushReceives(e.err)
}

// tell has the owner know of the end.
func (e *endpoint) tell(release bool) {
	if release {
		e.release()
	}
	if e.q.cfg.Disconnected != nil {
		e.q.cfg.Disconnected(e.err)
	}
	close(e.q.done)
}
