package shm

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PageSize is the unit of segments; octets.
const PageSize = 4096

// Segment is memory of a memfd, mapped.
type Segment struct{ b []byte }

// Create makes a segment of n octets, all zero, that nobody can cut off. The caller owns fd, which another process maps
// with Map; the segment does not need it.
func Create(name string, n int) (s *Segment, fd int, err error) {
	fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, fmt.Errorf("make shared memory: %w", err)
	}
	if err = unix.Fchmod(fd, 0o600); err == nil { // a memfd is open to all who find it
		err = unix.Ftruncate(fd, int64(n))
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	}
	if err == nil {
		s, err = mapped(fd, n)
	}
	if err != nil {
		return nil, -1, errors.Join(fmt.Errorf("make %d bytes of shared memory: %w", n, err), unix.Close(fd))
	}
	return s, fd, nil
}

// tmpfsMagic is the type of the file system of memfds without huge pages (statfs(2)).
const tmpfsMagic = 0x01021994

// Map maps n octets of fd, which stays the caller's. It refuses files that whoever made them could cut off, or that may
// have no page when one is wanted: touching such memory would end the process.
func Map(fd, n int) (*Segment, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, errors.New("shared memory that is not a memfd sealed against shrinking")
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != tmpfsMagic {
		return nil, errors.New("shared memory with huge pages of its own")
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || n <= 0 || st.Size < int64(n) {
		return nil, fmt.Errorf("shared memory of %d bytes, of which %d are to be mapped", st.Size, n)
	}
	return mapped(fd, n)
}

func mapped(fd, n int) (*Segment, error) {
	b, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	_ = unix.Madvise(b, unix.MADV_DONTFORK)
	return &Segment{b}, nil
}

// Bytes returns the memory.
func (s *Segment) Bytes() []byte { return s.b }

// Close unmaps the memory, which nobody may use any more.
func (s *Segment) Close() error { return unix.Munmap(s.b) }

// Word is a position or state that one side writes and the other reads.
type Word = atomic.Uint32

func word(b []byte, off int) *Word { return (*Word)(unsafe.Pointer(&b[off])) }
