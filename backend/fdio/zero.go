package fdio

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Zero writes zeroes over [off, off+n) of fd: what is left where the kernel has no quicker
// way.
func Zero(fd int, off, n int64) error {
	zeroes := zeroBytes()
	for n > 0 {
		piece := [1][]byte{zeroes[:min(n, int64(len(zeroes)))]}
		k, err := transfer(pwritev2, fd, piece[:], off, 0, false)
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
