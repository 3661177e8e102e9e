package fdio

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// syncRange makes the n bytes at off durable that have been written since fd was opened, which is the worker's own. fdatasync would write
// out all that waits in the page cache; Linux has one call that is as honest as fdatasync and takes a range:
// msync(2) with MS_SYNC on a mapping of the descriptor, which is vfs_fsync_range. It reports a failed
// write-back of any byte of the file, once, to this descriptor, as fdatasync does; so it is a call
// that may have met a failure, and enters the door. The mapping is of no access: nobody can touch it.
//
// With one descriptor for all, another durable write beside this one could be told that these bytes are lost, and this one, which
// does not wait for it as a flush does, would end well before the other one has said so.
func (s *Store) syncRange(fd int, off, n int64) error {
	if n == 0 {
		return s.door.Failure()
	}
	if fd >= 0 && !s.noRangeSync.Load() {
		start := off &^ int64(unix.Getpagesize()-1)
		m, err := unix.MmapPtr(fd, start, nil, uintptr(off+n-start), unix.PROT_NONE, unix.MAP_SHARED)
		if err == nil {
			return s.msync(m, uintptr(off+n-start), Call{Name: "msync", Off: off, Len: n, FD: fd})
		}
		if err == unix.ENODEV { // this file system has no mappings
			s.noRangeSync.Store(true)
		}
	}
	return s.door.Sync()
}

// descriptors are those of the file that workers have which sync ranges, each its own. Workers come and go, the descriptors stay: whenever
// one that could be written through is closed, udev looks at what has become of the device.
type descriptors struct {
	mu    sync.Mutex
	spare []int // no worker has them; guarded by mu
	left  int64 // how many more there may be, of mayOpen; guarded by mu
}

// mayOpen is how many descriptors the workers of all open stores may open yet.
var mayOpen atomic.Int64

// MayOpen returns how many descriptors the open stores may take besides those that they have.
func MayOpen() int { return int(mayOpen.Load()) }

// open notes that there may be n.
func (d *descriptors) open(n int64) {
	d.left = n
	mayOpen.Add(n)
}

// opened notes that there is one more.
func (d *descriptors) opened() {
	d.mu.Lock()
	d.left--
	d.mu.Unlock()
	mayOpen.Add(-1)
}

// descriptor returns the worker's own descriptor of the file, which it keeps until it ends; -1: it has none. It is open for writing,
// because Linux takes a mapping of one that is not for a private one, of which msync has nothing to do.
func (w *worker) descriptor(s *Store) int {
	if w.fd >= 0 || s.noRangeSync.Load() {
		return w.fd
	}
	s.syncs.mu.Lock()
	if n := len(s.syncs.spare); n > 0 {
		w.fd, s.syncs.spare = s.syncs.spare[n-1], s.syncs.spare[:n-1]
	}
	s.syncs.mu.Unlock()
	if w.fd < 0 {
		if fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", s.fd), unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
			w.fd = fd
			s.syncs.opened()
		}
	}
	return w.fd
}

// put takes the descriptor of a worker that has ended; -1: it has none.
func (d *descriptors) put(fd int) {
	if fd >= 0 {
		d.mu.Lock()
		d.spare = append(d.spare, fd)
		d.mu.Unlock()
	}
}

// close closes the descriptors. There is no worker any more. What they have not told of losses, that of the store tells.
func (d *descriptors) close() {
	for _, fd := range d.spare {
		_ = unix.Close(fd)
	}
	mayOpen.Add(-d.left)
	d.spare, d.left = nil, 0
}

// errnoOf returns the error of a system call. It stands apart because errors.As would move err to the heap.
func errnoOf(err error) unix.Errno {
	if e, ok := errors.AsType[unix.Errno](err); ok {
		return e
	}
	return unix.EIO
}

// msync makes the mapping durable, and ends it. c is what the faults are told.
func (s *Store) msync(m unsafe.Pointer, length uintptr, c Call) error {
	token := s.door.Enter()
	defer s.door.Leave(token)
	err := unix.EINTR
	for err == unix.EINTR {
		err = 0
		if e := s.before(c); e != nil {
			err = errnoOf(e)
		} else if _, _, e := unix.Syscall(unix.SYS_MSYNC, uintptr(m), length, unix.MS_SYNC); e != 0 {
			err = e
		}
	}
	_ = unix.MunmapPtr(m, length)
	if err != 0 {
		return s.door.Fail(err)
	}
	return s.door.Failure()
}
