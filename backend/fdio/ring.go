package fdio

import (
	"errors"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/backend/durable"
	"oneshot/backend/uring"
)

const (
	// ringDepth bounds the operations of one store that the kernel has at once, a power of
	// two: the command window of a session.
	ringDepth = 128
	// ringIOV is how many segments of an operation go through the ring; operations with more
	// go to the workers.
	ringIOV = 8
	// maxReap is how many completions are taken at once. When there are more than that,
	// another goroutine helps: completing may mean to answer an initiator. Who is in Await needs no help: he waits for them.
	maxReap = 16
	// maxReapers bounds the goroutines that complete operations of one store.
	maxReapers = 4
	// maxYields bounds how often Await lets others run while somebody delivers completions. That takes microseconds, and
	// to be woken by him takes more.
	maxYields = 32
	// awaitTime bounds Await: what completes by another way, in a worker say, is noticed after it.
	awaitTime = time.Millisecond
)

// ring does the reads and writes that go as usual: aligned, in one piece, without error.
// Workers do all others, from the beginning, for they know every answer. They also do the flushes,
// which they share, and the changes of ranges: the kernel would hand those to a thread of its own.
//
// An operation is in a slot from its start to its completion. Without a free slot it is held.
type ring struct {
	s *Store
	u *uring.Ring
	// readsOnly: workers do the writes. After a short write io_uring goes on by itself, and on FUSE
	// (Linux 6.18) does so at the wrong place of the file.
	readsOnly bool

	mu    sync.Mutex // also of the submitting side of u; held over io_uring_enter, which does not wait
	slots []*slot    // grows to ringDepth; slots stay where they are: the kernel knows their iov
	free  []int32    // slots without operation
	held  backend.Queue
	begun bool // there are entries that Submit has not seen

	reapMu  sync.Mutex // of the completing side of u; taken before mu
	reapers int        // guarded by reapMu; the one in Serve is not counted
	inside  int        // guarded by reapMu: who has taken completions and not delivered them all
	awaited bool       // guarded by reapMu: somebody is in Await, and takes what comes
	closing bool       // guarded by reapMu
	help    func()     // a method value, so that starting a goroutine allocates nothing
	wg      sync.WaitGroup
}

type slot struct {
	request
	iov [ringIOV]unix.Iovec
}

// request is an operation that the kernel has.
type request struct {
	op    *backend.Op   // keeps the memory reachable that the kernel writes to
	token durable.Token // of a write that is durable when it completes
}

func newRing(s *Store) (*ring, error) {
	u, err := uring.New(s.fd, ringDepth)
	if err != nil {
		return nil, err
	}
	r := &ring{s: s, u: u, readsOnly: onFUSE(s.fd)}
	r.help = r.reapAndLeave
	return r, nil
}

// onFUSE reports whether a file lies on a file system in user space.
func onFUSE(fd int) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) == nil && fs.Type == unix.FUSE_SUPER_MAGIC
}

// serve starts the goroutine that completions wake.
func (r *ring) serve() {
	r.wg.Go(func() {
		if err := r.u.Serve(func() { r.reap(true) }); err != nil {
			panic("fdio: the runtime cannot poll an io_uring: " + err.Error()) // it polls what epoll does
		}
	})
}

// close ends the ring, through which nothing goes any more.
func (r *ring) close() error {
	r.reapMu.Lock()
	r.closing = true
	r.reapMu.Unlock()
	err := r.u.Stop()
	r.wg.Wait()
	return errors.Join(err, r.u.Close())
}

// takes says whether op is one for the ring.
func (r *ring) takes(op *backend.Op) bool {
	switch {
	case op.Len == 0 || op.Len > 1<<30 || len(op.Segs) > ringIOV || op.Flags&backend.Barrier != 0:
		return false
	case op.Kind == backend.Read:
		if op.Flags&backend.FUA != 0 && !r.s.through {
			return false // a flush comes first
		}
	case op.Kind != backend.Write || r.readsOnly:
		return false
	case r.s.durable(op) && (r.s.direct == nil || r.s.door.Failure() != nil):
		return false
	}
	return r.s.direct == nil || r.s.direct.fits(op.Segs)
}

// start starts op, which takes has been asked about.
func (r *ring) start(op *backend.Op) {
	r.mu.Lock()
	r.enter(op)
	if op.Flags&backend.More == 0 {
		r.submit()
	}
	r.mu.Unlock()
}

// kick submits what was entered.
func (r *ring) kick() {
	r.mu.Lock()
	r.submit()
	r.mu.Unlock()
}

// enter puts op into the submission queue, or holds it. Called with mu held.
func (r *ring) enter(op *backend.Op) {
	n, ok := r.slot()
	if !ok {
		r.held.Push(op)
		return
	}
	e := r.u.Next() // never nil: the queue has room for every slot
	e.UserData = uint64(n)
	slot := r.slots[n]
	if op.Kind == backend.Write && r.s.durable(op) {
		slot.token = r.s.door.Enter()
		e.RWFlags = unix.RWF_DSYNC
	}
	slot.fill(e, op)
	r.begun = true
}

// slot returns a free slot. Called with mu held.
func (r *ring) slot() (n int32, ok bool) {
	switch {
	case len(r.free) > 0:
		n = r.free[len(r.free)-1]
		r.free = r.free[:len(r.free)-1]
	case len(r.slots) < ringDepth:
		n = int32(len(r.slots))
		r.slots = append(r.slots, &slot{})
		if cap(r.free) < cap(r.slots) { // such that giving slots back never allocates
			r.free = make([]int32, 0, cap(r.slots))
		}
	default:
		return 0, false
	}
	return n, true
}

// fill describes op to the kernel.
func (s *slot) fill(e *uring.SQE, op *backend.Op) {
	s.op = op
	write := op.Kind == backend.Write
	e.Off = uint64(op.Off)
	if len(op.Segs) == 1 {
		e.Op, e.Addr, e.Len = uring.OpRead, addr(unsafe.SliceData(op.Segs[0])), uint32(op.Len)
		if write {
			e.Op = uring.OpWrite
		}
		return
	}
	for i, seg := range op.Segs {
		s.iov[i].Base = unsafe.SliceData(seg)
		s.iov[i].SetLen(len(seg))
	}
	e.Op, e.Addr, e.Len = uring.OpReadv, addr(&s.iov[0]), uint32(len(op.Segs))
	if write {
		e.Op = uring.OpWritev
	}
}

func addr[T any](p *T) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// submit has the kernel start what was entered. What it does not take, for want of memory,
// goes to the workers. Called with mu held.
func (r *ring) submit() {
	if !r.begun {
		return
	}
	r.begun = false
	if r.u.Submit() != nil {
		r.withdraw()
	}
}

// withdraw gives what the kernel has not taken to the workers, and what is held for a slot: if the kernel has nothing, no completion lets
// that in. Called with mu held.
func (r *ring) withdraw() {
	r.u.Withdraw(func(n uint64) {
		q := r.release(int32(n))
		r.s.door.Leave(q.token)
		r.s.workers.put(q.op)
	})
	for op := r.held.Pop(); op != nil; op = r.held.Pop() {
		r.s.workers.put(op)
	}
}

// release takes the operation out of a slot. Called with mu held.
func (r *ring) release(n int32) request {
	slot := r.slots[n]
	q := slot.request
	slot.request = request{}
	r.free = append(r.free, n)
	return q
}

// reap completes operations as long as there are completions. It may call for help.
func (r *ring) reap(help bool) {
	var cqes [maxReap]uring.CQE
	var done [maxReap]request
	for {
		n := r.take(cqes[:], help)
		if n == 0 {
			return
		}
		r.vacate(cqes[:n], done[:n])
		r.deliver(cqes[:n], done[:n])
		r.reapMu.Lock()
		r.inside--
		r.reapMu.Unlock()
	}
}

// await waits in the kernel for completions, which nobody else takes meanwhile, and delivers them.
func (r *ring) await() bool {
	r.reapMu.Lock()
	if r.inside > 0 && !r.closing {
		delivered := r.yield()
		r.reapMu.Unlock()
		return delivered // perhaps what the caller waits for
	}
	if r.awaited || r.closing || !r.busy() {
		r.reapMu.Unlock()
		return false
	}
	r.awaited = true
	r.wg.Add(1)
	defer r.wg.Done()
	r.reapMu.Unlock()
	r.u.Wait(awaitTime)
	r.reapMu.Lock()
	r.awaited = false // Serve may have been told of what has come by now, and does not look again
	r.reapMu.Unlock()
	r.reap(false)
	return true
}

// yield lets others run until nobody delivers any more, and reports whether that is so. Called with reapMu held, which it
// gives up in the meantime.
func (r *ring) yield() bool {
	for range maxYields {
		r.reapMu.Unlock()
		runtime.Gosched()
		r.reapMu.Lock()
		if r.inside == 0 {
			return true
		}
	}
	return false
}

// busy reports whether the kernel has operations.
func (r *ring) busy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.free) < len(r.slots)
}

// deliver completes operations. A Completer of several hears of them together.
func (r *ring) deliver(cqes []uring.CQE, done []request) {
	var corked [maxReap]backend.Uncorker
	n := 0
	for _, q := range done[:len(done)-1] { // the last one needs no cork
		if u := backend.Cork(q.op.Done); u != nil {
			corked[n] = u
			n++
		}
	}
	for i, q := range done {
		r.settle(q, cqes[i].Res)
	}
	for _, u := range corked[:n] {
		u.Uncork()
	}
}

// take takes completions, and may call for help if it leaves some.
func (r *ring) take(cqes []uring.CQE, help bool) int {
	r.reapMu.Lock()
	defer r.reapMu.Unlock()
	if r.awaited {
		return 0
	}
	n, more := r.u.Reap(cqes)
	if n > 0 {
		r.inside++
	}
	if help && more && r.reapers+1 < min(maxReapers, runtime.GOMAXPROCS(0)) {
		r.reapers++
		r.wg.Add(1)
		go r.help()
	}
	return n
}

// reapAndLeave is reap for a helper.
func (r *ring) reapAndLeave() {
	defer r.wg.Done()
	r.reap(true)
	r.reapMu.Lock()
	r.reapers--
	r.reapMu.Unlock()
}

// vacate takes the operations of completions out of their slots, and lets those in that
// were held.
func (r *ring) vacate(cqes []uring.CQE, done []request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range cqes {
		done[i] = r.release(int32(cqes[i].UserData))
	}
	if r.held.Len() == 0 {
		return
	}
	for len(r.free) > 0 && r.held.Len() > 0 {
		r.enter(r.held.Pop())
	}
	r.submit()
}

// settle completes an operation, or has a worker do it again: all of what was not done as asked.
func (r *ring) settle(q request, res int32) {
	s, op := r.s, q.op
	if s.faults != nil {
		res = r.after(op, q.token.Valid(), res)
	}
	whole := int64(res) == op.Len
	if q.token.Valid() {
		if err := unix.Errno(max(0, -res)); err != 0 && !notBegun(err) {
			r.lost(q, err)
			return
		}
		s.door.Leave(q.token)
		if whole && s.doubts.Load() != 0 {
			r.wg.Go(func() { // it waits
				if err := s.door.Sync(); err != nil {
					op.Err = s.failed(op, op.Off, err)
				}
				s.complete(op)
			})
			return
		}
		if err := s.door.Failure(); whole && err != nil {
			op.Err = s.failed(op, op.Off, err)
			s.complete(op)
			return
		}
	}
	if whole {
		s.complete(op)
		return
	}
	s.workers.put(op)
}

// lost completes a durable write that has failed. What the kernel has told us, it tells nobody
// else: so this is known before anything else is promised, and it waits for no worker, all of
// whom may be waiting for it.
func (r *ring) lost(q request, err error) {
	r.s.doubts.Add(1)
	finish := func() {
		n, err := r.s.judge(q.op, 0, err, nil)
		q.op.Err = r.s.failed(q.op, q.op.Off+n, err)
		r.s.door.Leave(q.token)
		r.s.complete(q.op)
	}
	if doubtful(err) {
		r.wg.Go(finish) // it writes
		return
	}
	finish()
}

// after asks the faults.
func (r *ring) after(op *backend.Op, durable bool, res int32) int32 {
	c := Call{Name: preadv2.String(), Off: op.Off, Len: op.Len}
	if op.Kind == backend.Write {
		c.Name = pwritev2.String()
	}
	if durable {
		c.Flags = unix.RWF_DSYNC
	}
	if errno, ok := errors.AsType[unix.Errno](r.s.faults.After(c)); ok {
		return -int32(errno)
	}
	return res
}
