package fdio

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"oneshot/mem"
)

// bounceSize is how many bytes of unaligned memory go to the file at once.
const bounceSize = 1 << 20

// ErrNoDirect says that a file cannot be opened with O_DIRECT.
var ErrNoDirect = errors.New("the file system does not take direct I/O (O_DIRECT): set direct to false, or move the file to one that does, such as ext4 or xfs")

// Alignment is what direct I/O asks of an operation; bytes, powers of two.
type Alignment struct {
	Memory int // of addresses
	Offset int // of offsets in the file and of the length of each segment
}

// AlignmentOf returns what the file fd, opened with O_DIRECT, asks for.
func AlignmentOf(fd int) (*Alignment, error) {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st)
	if err != nil || st.Mask&unix.STATX_DIOALIGN == 0 {
		// A kernel before 6.1, or a file system that does not say: what all of them take.
		return &Alignment{Memory: mem.PageSize, Offset: mem.PageSize}, nil
	}
	if st.Dio_mem_align == 0 || st.Dio_offset_align == 0 {
		return nil, ErrNoDirect
	}
	return &Alignment{Memory: int(st.Dio_mem_align), Offset: int(st.Dio_offset_align)}, nil
}

// fits says whether direct I/O takes the segments as they are.
func (a *Alignment) fits(segs [][]byte) bool {
	for _, seg := range segs {
		if uintptr(unsafe.Pointer(unsafe.SliceData(seg)))&uintptr(a.Memory-1) != 0 || len(seg)&(a.Offset-1) != 0 {
			return false
		}
	}
	return true
}

// probe reads the first block, for some file systems say no only then.
func (a *Alignment) probe(fd, block int) error {
	buf, err := unix.Mmap(-1, 0, block, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(buf) }()
	if _, err = transfer(preadv2, fd, [][]byte{buf}, 0, 0, false); err == unix.EINVAL {
		return ErrNoDirect
	} else if err != nil {
		return fmt.Errorf("read the first block: %w", err)
	}
	return nil
}

// bounceBuffer returns the worker's aligned memory, which it keeps until it ends.
func (w *worker) bounceBuffer(s *Store) []byte {
	if w.lease == nil {
		w.lease = s.bounce.Lease(bounceSize) // never nil: the pool has one for each worker
	}
	return w.lease.Bytes()
}

// workerEnded takes over what a worker has had, and gives the memory of bounce buffers back that nobody uses.
func (s *Store) workerEnded(w *worker) {
	s.syncs.put(w.fd)
	if s.bounce != nil {
		s.bounce.Trim()
	}
}
