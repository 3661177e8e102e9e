package fdio

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// syncRange makes the n bytes at off durable that have been written. fdatasync would write out all
// that waits in the page cache; Linux has one call that is as honest as fdatasync and takes a range:
// msync(2) with MS_SYNC on a mapping of the descriptor, which is vfs_fsync_range. It reports a failed
// write-back of any byte of the file, once, to this descriptor, as fdatasync does; so it is a call
// that may have met a failure, and enters the door. The mapping is of no access: nobody can touch it.
func (s *Store) syncRange(off, n int64) error {
	if n == 0 {
		return s.door.Failure()
	}
	if !s.noRangeSync.Load() {
		start := off &^ int64(unix.Getpagesize()-1)
		m, err := unix.MmapPtr(s.fd, start, nil, uintptr(off+n-start), unix.PROT_NONE, unix.MAP_SHARED)
		if err == nil {
			return s.msync(m, uintptr(off+n-start), off, n)
		}
		if err == unix.ENODEV { // this file system has no mappings
			s.noRangeSync.Store(true)
		}
	}
	return s.door.Sync()
}

// errnoOf returns the error of a system call. It stands apart because errors.As would move err to the heap.
func errnoOf(err error) unix.Errno {
	if e, ok := errors.AsType[unix.Errno](err); ok {
		return e
	}
	return unix.EIO
}

// msync makes the mapping durable, of which the n bytes at off are asked about, and ends it.
func (s *Store) msync(m unsafe.Pointer, length uintptr, off, n int64) error {
	token := s.door.Enter()
	defer s.door.Leave(token)
	err := unix.EINTR
	for err == unix.EINTR {
		err = 0
		if e := s.before(Call{Name: "msync", Off: off, Len: n}); e != nil {
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
