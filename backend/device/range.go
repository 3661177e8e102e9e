package device

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"oneshot/backend/fdio"
)

// medium is the descriptor of a device, seen as a medium with ranges.
type medium int

var _ fdio.Medium = medium(0)

// Discard gives the space of a range back, and has it read as zeroes. BLKDISCARD alone leaves
// open what is read; fallocate asks for both, and the device is told to unmap while it
// clears. A device of which some ranges cannot be unmapped clears them.
func (m medium) Discard(off, n int64) error {
	for {
		err := unix.Fallocate(int(m), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		switch err {
		case unix.EINTR:
		case unix.EOPNOTSUPP, unix.EREMOTEIO: // it said otherwise when it was asked to
			return m.discardAndClear(off, n)
		default:
			return err
		}
	}
}

// discardAndClear is Discard for a device that does not do both at once. Whether it discards
// is its own affair; that the range is cleared is not.
func (m medium) discardAndClear(off, n int64) error {
	_ = m.over(unix.BLKDISCARD, off, n)
	return m.WriteZeroes(off, n)
}

// WriteZeroes clears a range and keeps its space. The kernel writes zeroes itself where the
// device has no command for that.
func (m medium) WriteZeroes(off, n int64) error { return m.over(unix.BLKZEROOUT, off, n) }

// Status says that everything is mapped: there is no way to ask.
func (m medium) Status(_, n int64) (mapped bool, extent int64, err error) { return true, n, nil }

// over is an ioctl over a range.
func (m medium) over(req uint, off, n int64) error {
	r := [2]uint64{uint64(off), uint64(n)}
	return ioctl(int(m), req, unsafe.Pointer(&r))
}

func ioctl(fd int, req uint, arg unsafe.Pointer) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(arg))
		if errno == 0 {
			return nil
		}
		if errno != unix.EINTR {
			return errno
		}
	}
}
