// Package iov is for memory that lies in pieces: walking over it, describing it to the kernel, and
// sending it with as few system calls as there can be. Nothing in it allocates but a [Batch] that
// grows, or has a lock.
package iov

import (
	"io"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Max is how many pieces one system call takes (IOV_MAX of Linux).
const Max = 1024

// Of describes b to the kernel.
func Of(b []byte) (v unix.Iovec) {
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
	return
}

// Cursor is a place in memory that lies in pieces. It aliases the list of pieces, which must stay
// as it is. The zero value is at the end of nothing.
type Cursor struct {
	segs [][]byte
	off  int // into segs[0], at most its length
}

// At returns a cursor n bytes behind the beginning of segs, which have that many.
func At(segs [][]byte, n int) Cursor {
	c := Cursor{segs: segs}
	c.Advance(n)
	return c
}

// Next returns the next bytes that lie together, n at most, and moves behind them. There are
// bytes left; n is 1 or more.
func (c *Cursor) Next(n int) []byte {
	for c.off == len(c.segs[0]) {
		c.segs, c.off = c.segs[1:], 0
	}
	b := c.segs[0][c.off:]
	b = b[:min(n, len(b))]
	c.off += len(b)
	return b
}

// Advance moves n bytes on; there are that many left.
func (c *Cursor) Advance(n int) {
	for n > 0 {
		rest := len(c.segs[0]) - c.off
		if n < rest {
			c.off += n
			return
		}
		n -= rest
		c.segs, c.off = c.segs[1:], 0
	}
}

// Fit returns how many bytes, n at most, lie in the next pieces.
func (c *Cursor) Fit(n, pieces int) int {
	got := -c.off
	for i := 0; i < len(c.segs) && i < pieces; i++ {
		if got += len(c.segs[i]); got >= n {
			return n
		}
	}
	return max(got, 0)
}

// Fill describes the next n bytes to the kernel, as many of them as v has room for and as there
// are, and returns the elements used and the bytes in them. It does not move.
func (c *Cursor) Fill(v []unix.Iovec, n int) (k, bytes int) {
	off := c.off
	for _, b := range c.segs {
		if b = b[off:]; len(b) > n-bytes {
			b = b[:n-bytes]
		}
		off = 0
		if len(b) == 0 {
			continue
		}
		if k == len(v) {
			break
		}
		v[k] = Of(b)
		k++
		bytes += len(b)
	}
	return k, bytes
}

// CopyIn copies b to where c is and moves behind it, until either has no room or bytes left. It
// returns how many bytes it has copied.
func (c *Cursor) CopyIn(b []byte) (n int) {
	for len(b) > n && len(c.segs) > 0 {
		k := copy(c.segs[0][c.off:], b[n:])
		n += k
		c.Advance(k)
		c.skipEnd()
	}
	return n
}

// CopyOut is CopyIn in the other direction.
func (c *Cursor) CopyOut(b []byte) (n int) {
	for len(b) > n && len(c.segs) > 0 {
		k := copy(b[n:], c.segs[0][c.off:])
		n += k
		c.Advance(k)
		c.skipEnd()
	}
	return n
}

// skipEnd leaves a piece of which nothing is left.
func (c *Cursor) skipEnd() {
	for len(c.segs) > 0 && c.off == len(c.segs[0]) {
		c.segs, c.off = c.segs[1:], 0
	}
}

// Batch is memory that is to be written, in order, and how much of it has been. The memory must
// stay as it is until it is written. The zero value is empty.
type Batch struct {
	v     []unix.Iovec // v[first:] is to be written
	first int

	// Queued counts all bytes that were ever added, Written those of them that were written.
	Queued, Written uint64
}

// Use has b use v for its list as long as that suffices, after it has become empty.
func (b *Batch) Use(v []unix.Iovec) { b.v, b.first = v[:0], 0 }

// Add adds p, which is not empty, as a piece of its own.
func (b *Batch) Add(p []byte) {
	b.v = append(b.v, Of(p))
	b.Queued += uint64(len(p))
}

// Extend adds the n bytes behind the piece that was added last, to that piece.
func (b *Batch) Extend(n int) {
	b.v[len(b.v)-1].Len += uint64(n)
	b.Queued += uint64(n)
}

// Continues reports whether p lies behind the piece that was added last, which is still to be
// written.
func (b *Batch) Continues(p []byte) bool {
	if b.Empty() {
		return false
	}
	last := &b.v[len(b.v)-1]
	return uintptr(unsafe.Pointer(last.Base))+uintptr(last.Len) == uintptr(unsafe.Pointer(unsafe.SliceData(p)))
}

// Empty reports whether everything is written.
func (b *Batch) Empty() bool { return b.first == len(b.v) }

// Pieces is how many elements the list has, those that are written included.
func (b *Batch) Pieces() int { return len(b.v) }

// Pending is what is to be written. It belongs to b.
func (b *Batch) Pending() []unix.Iovec { return b.v[b.first:] }

// Next is what the next call of [Writev] is to write.
func (b *Batch) Next() []unix.Iovec { return b.v[b.first:min(len(b.v), b.first+Max)] }

// Advance notes that n bytes more have been written. What is written is no longer referred to,
// and when that is everything the list begins anew.
func (b *Batch) Advance(n int) {
	b.Written += uint64(n)
	for left := uint64(n); left > 0; {
		v := &b.v[b.first]
		if left < v.Len {
			v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.Base), left))
			v.Len -= left
			return
		}
		left -= v.Len
		*v = unix.Iovec{}
		b.first++
	}
	if b.first == len(b.v) {
		b.v, b.first = b.v[:0], 0
	}
}

// Compact moves what is to be written to the beginning of the list, which otherwise grows for as
// long as it never becomes empty.
func (b *Batch) Compact() {
	n := copy(b.v, b.v[b.first:])
	clear(b.v[n:])
	b.v, b.first = b.v[:n], 0
}

// Abandon drops what is to be written: it never will be.
func (b *Batch) Abandon() {
	clear(b.v)
	b.v, b.first, b.Queued = b.v[:0], 0, b.Written
}

// Writev writes without blocking what v describes, which is not empty. Errors are returned as they
// are, EINTR and EAGAIN among them.
func Writev(fd int, v []unix.Iovec) (n int, e unix.Errno) {
	r, _, e := unix.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&v[0])), uintptr(len(v)))
	runtime.KeepAlive(v)
	if e != 0 {
		return 0, e
	}
	return int(r), 0
}

// Readv reads without blocking to where v describes, which is not empty. 0 and no error: nothing
// is there. The end is io.EOF, other errors are unix.Errno.
func Readv(fd int, v []unix.Iovec) (int, error) {
	for {
		n, _, e := unix.RawSyscall(unix.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(&v[0])), uintptr(len(v)))
		switch {
		case e == unix.EINTR:
			continue
		case e == unix.EAGAIN:
			return 0, nil
		case e != 0:
			return 0, e
		case n == 0:
			return 0, io.EOF
		}
		runtime.KeepAlive(v)
		return int(n), nil
	}
}

// Splice moves n bytes at most from one descriptor to another, one of which is a pipe, without blocking, and without a copy
// where the kernel needs none. 0 and no error: nothing is there, or there is no room. The end is io.EOF, other errors are
// unix.Errno.
func Splice(from, to, n int) (int, error) {
	for {
		r, _, e := unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(n), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		switch {
		case e == unix.EINTR:
			continue
		case e == unix.EAGAIN:
			return 0, nil
		case e != 0:
			return 0, e
		case r == 0:
			return 0, io.EOF
		}
		return int(r), nil
	}
}
