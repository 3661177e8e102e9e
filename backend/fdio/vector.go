package fdio

import (
	"errors"
	"math"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/internal/invariant"
	"oneshot/internal/iov"
)

// errTruncated: a read met the end of the file before the end of the store.
var errTruncated = errors.New("the file ends here: something has truncated it while it was being served; stop what did, and restore it from a copy")

// vectorCall is a system call of the shape of preadv2 (preadv2(2)).
type vectorCall uintptr

const (
	preadv2  vectorCall = unix.SYS_PREADV2
	pwritev2 vectorCall = unix.SYS_PWRITEV2
)

// maxIOV is how many segments go into one system call. They lie on the stack.
const maxIOV = 64

// maxRaw is the most bytes that are copied from or to the page cache without telling Go's scheduler: some 10 µs.
const maxRaw = 64 << 10

// do calls the kernel once, for n bytes. instant says that the call does not wait.
//
// A short call that does not wait is hidden from Go's scheduler, as the calls of sockets are (package iov).
// Otherwise, with one command outstanding, the target is idle between commands, so the runtime's monitor thread (sysmon)
// sleeps, and each call wakes it: one more system call and two more switches of threads, if it is on the same processor.
func (c vectorCall) do(fd int, v []unix.Iovec, n int, off int64, flags int, instant bool) (int, error) {
	var r uintptr
	var errno unix.Errno
	// The offset goes in two halves, which a 64-bit kernel puts together again such that
	// the upper one does not matter.
	if instant && n <= maxRaw {
		r, _, errno = unix.RawSyscall6(uintptr(c), uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(v))),
			uintptr(len(v)), uintptr(off), uintptr(off>>63), uintptr(flags))
	} else {
		r, _, errno = unix.Syscall6(uintptr(c), uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(v))),
			uintptr(len(v)), uintptr(off), uintptr(off>>63), uintptr(flags))
	}
	runtime.KeepAlive(v)
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}

func (c vectorCall) String() string {
	if c == pwritev2 {
		return "pwritev2"
	}
	return "preadv2"
}

// maxRepeats is how often a write that the kernel has done in part is repeated as a whole before its
// count is believed. Linux cuts an O_DIRECT write to a file system in user space into requests. If
// one of them fails the write ends short, and Linux (6.1 to 6.18) may have put the bytes that follow
// the failed request in its place.
const maxRepeats = 2

// transfer is the function of this name, on the descriptor of the store.
func (s *Store) transfer(call vectorCall, segs [][]byte, off int64, flags int, instant bool) (int64, error) {
	if s.faults != nil {
		var n int64
		for _, seg := range segs {
			n += int64(len(seg))
		}
		if err := s.faults.Before(Call{Name: call.String(), Off: off, Len: n, Flags: flags}); err != nil {
			return 0, err
		}
	}
	return transfer(call, s.fd, segs, off, flags, instant)
}

// transfer moves bytes between segs and the file at off until all are moved, and returns
// how many were. instant says that the calls do not wait.
func transfer(call vectorCall, fd int, segs [][]byte, off int64, flags int, instant bool) (int64, error) {
	var v [maxIOV]unix.Iovec
	var done int64
	repeated := 0
	for c := iov.At(segs, 0); ; {
		k, want := c.Fill(v[:], math.MaxInt)
		if k == 0 {
			return done, nil
		}
		n, err := call.do(fd, v[:k], want, off+done, flags, instant)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return done, err
		case n == 0:
			return done, errTruncated
		case n < want && call == pwritev2 && flags&unix.RWF_NOWAIT == 0 && repeated < maxRepeats:
			repeated++ // from the start of this call: see maxRepeats
			continue
		}
		repeated = 0
		c.Advance(n)
		done += int64(n)
	}
}

// move is transfer for op, by way of a bounce buffer where the file asks for aligned
// memory and op has other.
func (s *Store) move(call vectorCall, op *backend.Op, flags int, w *worker) (int64, error) {
	if invariant.Enabled {
		var sum int64
		for _, seg := range op.Segs {
			sum += int64(len(seg))
		}
		invariant.Check(sum == op.Len, "Len is the sum of Segs")
	}
	if s.direct == nil || s.direct.fits(op.Segs) {
		return s.transfer(call, op.Segs, op.Off, flags, false)
	}
	return s.moveBounced(call, op, flags, w)
}

func (s *Store) moveBounced(call vectorCall, op *backend.Op, flags int, w *worker) (int64, error) {
	c := iov.At(op.Segs, 0)
	buf := w.bounceBuffer(s)
	for done := int64(0); done < op.Len; {
		piece := [1][]byte{buf[:min(int64(len(buf)), op.Len-done)]}
		if call == pwritev2 {
			c.CopyOut(piece[0])
		}
		n, err := s.transfer(call, piece[:], op.Off+done, flags, false)
		if call == preadv2 {
			c.CopyIn(piece[0][:n])
		}
		if done += n; err != nil {
			return done, err
		}
	}
	return op.Len, nil
}
