package file

import (
	"sync"

	"golang.org/x/sys/unix"

	"oneshot/backend"
)

// discard gives the space of a range back. The kernel overwrites the parts of blocks.
func (s *Store) discard(off, n int64) error {
	if s.info.DiscardGranularity == 0 {
		return s.writeZeroes(off, n)
	}
	return fallocate(s.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

// writeZeroes makes a range read as zeroes and keeps its space.
func (s *Store) writeZeroes(off, n int64) error {
	err := fallocate(s.fd, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	if err != unix.EOPNOTSUPP {
		return err
	}
	zeroes := zeroBytes()
	for n > 0 {
		piece := [1][]byte{zeroes[:min(n, int64(len(zeroes)))]}
		k, err := transfer(pwritev2, s.fd, piece[:], off, 0)
		if err != nil {
			return err
		}
		off, n = off+k, n-k
	}
	return nil
}

// zeroBytes returns 1 MiB of zeroes, aligned to a page for O_DIRECT, that take no memory:
// the kernel has one page of them, which cannot be written to.
var zeroBytes = sync.OnceValue(func() []byte {
	b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return make([]byte, 1<<20)
	}
	return b
})

func fallocate(fd int, mode uint32, off, n int64) error {
	for {
		if err := unix.Fallocate(fd, mode, off, n); err != unix.EINTR {
			return err
		}
	}
}

// status asks the file for holes. A preallocated file counts as mapped throughout: its
// space is its own, whether or not something was written there.
func (s *Store) status(op *backend.Op) error {
	block := int64(s.info.BlockSize)
	end := min(op.Off+max(op.Len, block), s.size.Load())
	op.Mapped, op.Extent = true, end-op.Off
	if s.info.DiscardGranularity == 0 || op.Extent == 0 {
		return nil
	}
	data, err := unix.Seek(s.fd, op.Off, unix.SEEK_DATA)
	switch {
	case err == unix.ENXIO: // nothing but a hole up to the end
		op.Mapped = false
		return nil
	case err != nil:
		return s.failed(op, op.Off, err)
	case data > op.Off:
		// A block that is a hole only in part is mapped.
		if hole := (min(data, end) - op.Off) / block * block; hole > 0 {
			op.Mapped, op.Extent = false, hole
		} else {
			op.Extent = block
		}
		return nil
	}
	hole, err := unix.Seek(s.fd, op.Off, unix.SEEK_HOLE)
	if err != nil {
		return s.failed(op, op.Off, err)
	}
	op.Extent = min((hole-op.Off+block-1)/block*block, op.Extent)
	return nil
}
