// Package uring is a thin io_uring(7): one ring over one file, which takes operations and gives
// completions in batches. It knows bytes and offsets only.
//
//	Next … Next ──► Submit ──► kernel ──► Reap
//	                             ├──► Serve: the runtime's poller says that there is something
//	                             └──► Wait: somebody waits himself, and Serve hears of nothing
//
// Waiting in Serve takes no thread: the runtime's own poller polls an event descriptor, to which the kernel writes.
package uring

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ring is an io_uring. Next, Submit and Withdraw are for one goroutine at a time, Reap is for
// one goroutine at a time; the two sides may run at once.
type Ring struct {
	fd    uintptr
	event *os.File  // the kernel writes to it when there are completions; nobody reads it
	maps  [2][]byte // rings, entries

	stopped atomic.Bool

	sqHead, sqTail *uint32 // the kernel writes head
	sqes           []SQE
	next           uint32 // where Next continues; tail, once submitted

	cqHead, cqTail *uint32 // the kernel writes tail
	cqFlags        *uint32
	cqes           []CQE

	patience unix.Timespec // of Wait
	wait     extArg
}

// New returns a ring for operations on the file fd, which stays the caller's, and outlives
// the ring. At most entries, a power of two, may be under way: from Next to Reap.
//
// The error is an *UnavailableError when this kernel will not have it.
func New(fd, entries int) (*Ring, error) {
	p := params{flags: setupCQSize | setupSubmitAll, cqEntries: uint32(entries)}
	ring, err := setup(entries, &p)
	if err == unix.EINVAL { // before Linux 5.18
		p = params{flags: setupCQSize, cqEntries: uint32(entries)}
		ring, err = setup(entries, &p)
	}
	if err != nil {
		return nil, unavailable(err)
	}
	if p.features&featNeeded != featNeeded {
		_ = unix.Close(ring)
		return nil, &UnavailableError{Reason: "the kernel's io_uring is older than that of Linux 5.12"}
	}
	r, err := open(ring, fd, &p)
	if err != nil {
		_ = unix.Close(ring)
		return nil, fmt.Errorf("io_uring: %w", err)
	}
	return r, nil
}

func setup(entries int, p *params) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// UnavailableError says why there is no io_uring here.
type UnavailableError struct {
	Reason string
	Err    error // what the system call said, or nil
}

func (e *UnavailableError) Error() string {
	if e.Err == nil {
		return "io_uring is not available: " + e.Reason
	}
	return fmt.Sprintf("io_uring is not available: %s: %v", e.Reason, e.Err)
}
func (e *UnavailableError) Unwrap() error { return e.Err }

func unavailable(err error) error {
	switch err {
	case unix.ENOSYS:
		return &UnavailableError{"the kernel has none, or a seccomp filter hides it", err}
	case unix.EPERM, unix.EACCES:
		return &UnavailableError{"forbidden by the sysctl kernel.io_uring_disabled, by a seccomp filter or by a security module", err}
	}
	return &UnavailableError{"a ring could not be made", err}
}

// open maps the ring and registers fd.
func open(ring, fd int, p *params) (*Ring, error) {
	file := int32(fd)
	if _, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(ring), registerFiles, uintptr(unsafe.Pointer(&file)), 1, 0, 0); errno != 0 {
		return nil, fmt.Errorf("register the file: %w", errno)
	}
	size := max(p.sq.array+p.sqEntries*4, p.cq.cqes+p.cqEntries*uint32(unsafe.Sizeof(CQE{})))
	rings, err := mapRing(ring, offRings, int(size))
	if err != nil {
		return nil, err
	}
	sqes, err := mapRing(ring, offSQEs, int(p.sqEntries)*int(unsafe.Sizeof(SQE{})))
	if err != nil {
		_ = unix.Munmap(rings)
		return nil, err
	}
	at := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&rings[off])) }
	for i, order := 0, unsafe.Slice(at(p.sq.array), p.sqEntries); i < len(order); i++ {
		order[i] = uint32(i) // entries go in the order in which they lie
	}
	event, err := openEvent(ring)
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(rings), unix.Munmap(sqes))
	}
	return &Ring{
		fd: uintptr(ring), event: event, maps: [2][]byte{rings, sqes},
		sqHead: at(p.sq.head), sqTail: at(p.sq.tail), next: *at(p.sq.tail),
		sqes:   unsafe.Slice((*SQE)(unsafe.Pointer(&sqes[0])), p.sqEntries),
		cqHead: at(p.cq.head), cqTail: at(p.cq.tail), cqFlags: at(p.cq.flags),
		cqes: unsafe.Slice((*CQE)(unsafe.Pointer(&rings[p.cq.cqes])), p.cqEntries),
	}, nil
}

// openEvent registers an event descriptor with the ring.
func openEvent(ring int) (*os.File, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK) // blocking, os.NewFile would not poll it
	if err != nil {
		return nil, err
	}
	n := int32(fd)
	if _, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(ring), registerEventFD, uintptr(unsafe.Pointer(&n)), 1, 0, 0); errno != 0 {
		return nil, errors.Join(fmt.Errorf("register an event descriptor: %w", errno), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "io_uring"), nil
}

func mapRing(ring, off, n int) ([]byte, error) {
	b, err := unix.Mmap(ring, int64(off), n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map the ring: %w", err)
	}
	return b, nil
}

// Next returns the next entry of the submission queue, blank except the file, to be filled
// in before Submit; nil if the queue is full. Memory that it names has to stay where it is,
// and reachable for the garbage collector, until its completion.
func (r *Ring) Next() *SQE {
	if r.next-atomic.LoadUint32(r.sqHead) == uint32(len(r.sqes)) {
		return nil
	}
	e := &r.sqes[r.next&uint32(len(r.sqes)-1)]
	*e = SQE{flags: flagFixedFile}
	r.next++
	return e
}

// Submit hands the entries to the kernel, which starts them, or to a thread of its own what
// would block. On an error some are left, for Withdraw or another Submit.
func (r *Ring) Submit() error {
	atomic.StoreUint32(r.sqTail, r.next)
	for {
		left := r.next - atomic.LoadUint32(r.sqHead)
		if left == 0 {
			return nil
		}
		n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, r.fd, uintptr(left), 0, 0, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return errno
		case n == 0:
			return unix.EAGAIN
		}
	}
}

// Withdraw takes back the entries that the kernel has not taken, and calls f with the
// UserData of each.
func (r *Ring) Withdraw(f func(userData uint64)) {
	head := atomic.LoadUint32(r.sqHead)
	for i := head; i != r.next; i++ {
		f(r.sqes[i&uint32(len(r.sqes)-1)].UserData)
	}
	r.next = head
	atomic.StoreUint32(r.sqTail, head)
}

// Reap moves completions to out, and returns how many, and whether there are more.
func (r *Ring) Reap(out []CQE) (n int, more bool) {
	head, tail := atomic.LoadUint32(r.cqHead), atomic.LoadUint32(r.cqTail)
	for n < len(out) && head != tail {
		out[n] = r.cqes[head&uint32(len(r.cqes)-1)]
		head++
		n++
	}
	if n > 0 {
		atomic.StoreUint32(r.cqHead, head)
	}
	return n, head != tail
}

// Wait returns when there are completions, or after some time, which is the same in all calls. It is for one
// goroutine at a time. The kernel completes operations in the thread that has submitted them: if it is the one that
// waits here, no other has to be woken. Meanwhile nothing calls ready of Serve, so the caller reaps afterwards.
func (r *Ring) Wait(patience time.Duration) {
	// What completes after the flag has gone, the poller hears of; all else stands in the queue by then. Both sides have a
	// full barrier between writing and reading: here it is that of the atomic store.
	atomic.StoreUint32(r.cqFlags, cqEventFDDisabled)
	defer atomic.StoreUint32(r.cqFlags, 0)
	r.patience = unix.NsecToTimespec(int64(patience))
	r.wait.timeout = uint64(uintptr(unsafe.Pointer(&r.patience)))
	// What it returns does not matter: whoever waits looks again.
	_, _, _ = unix.Syscall6(unix.SYS_IO_URING_ENTER, r.fd, 0, 1, enterGetEvents|enterExtArg, uintptr(unsafe.Pointer(&r.wait)), unsafe.Sizeof(r.wait))
}

// Serve calls ready when completions have arrived since ready was last called, and returns
// after Close. It may call it without need.
func (r *Ring) Serve(ready func()) error {
	c, err := r.event.SyscallConn()
	if err != nil {
		return err
	}
	err = c.Read(func(uintptr) bool { ready(); return false })
	if r.stopped.Load() {
		return nil
	}
	return err
}

// Close releases the ring. Nothing is under way any more, and nobody calls Next, Submit or
// Reap: a goroutine in Serve has to be waited for in between, with Stop.
func (r *Ring) Close() error {
	return errors.Join(unix.Munmap(r.maps[0]), unix.Munmap(r.maps[1]), unix.Close(int(r.fd)))
}

// Stop makes Serve return, when it has called ready for the last time. Close follows.
func (r *Ring) Stop() error {
	r.stopped.Store(true)
	// The kernel takes a ring apart at leisure, and until then the file would count as open.
	err := r.unregister()
	return errors.Join(err, r.event.Close())
}

// unregister waits until the kernel has let go of the file.
func (r *Ring) unregister() error {
	for {
		_, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, r.fd, unregisterFiles, 0, 0, 0, 0)
		switch errno {
		case 0:
			return nil
		case unix.EINTR: // the wait can be interrupted, at the latest in Linux 6.1
		default:
			return fmt.Errorf("io_uring: give the file free: %w", errno)
		}
	}
}
