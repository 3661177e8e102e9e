package file

import (
	"golang.org/x/sys/unix"

	"oneshot/backend/fdio"
)

// medium is a file, seen as a medium with ranges.
type medium struct {
	fd    int
	block int // bytes
}

var _ fdio.Medium = (*medium)(nil)

// Discard gives the space of a range back. The kernel overwrites the parts of blocks.
func (m *medium) Discard(off, n int64) error {
	return fallocate(m.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

// WriteZeroes makes a range read as zeroes and keeps its space.
func (m *medium) WriteZeroes(off, n int64) error {
	err := fallocate(m.fd, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	if err != unix.EOPNOTSUPP {
		return err
	}
	return fdio.Zero(m.fd, off, n)
}

func fallocate(fd int, mode uint32, off, n int64) error {
	for {
		if err := unix.Fallocate(fd, mode, off, n); err != unix.EINTR {
			return err
		}
	}
}

// Status asks the file for holes. It is not called for a preallocated file, which counts as
// mapped throughout: its space is its own, whether or not something was written there.
func (m *medium) Status(off, n int64) (mapped bool, extent int64, err error) {
	block := int64(m.block)
	hole, err := unix.Seek(m.fd, off, unix.SEEK_HOLE)
	if hole > off {
		return true, min((hole-off+block-1)/block*block, n), nil
	}
	var data int64
	if err == nil {
		data, err = unix.Seek(m.fd, off, unix.SEEK_DATA)
	}
	switch {
	case err == unix.ENXIO: // nothing but a hole up to the end
		return false, n, nil
	case err != nil:
		return false, 0, err
	}
	// A block that is a hole only in part is mapped, and so is one that has got data since.
	if hole := (min(data, off+n) - off) / block * block; hole > 0 {
		return false, hole, nil
	}
	return true, block, nil
}
