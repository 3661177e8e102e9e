package shm

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Bell is an eventfd. Its counter is never read: Go's poller is edge-triggered, so that each Ring wakes who waits.
type Bell struct {
	f   *os.File
	raw syscall.RawConn
	fd  int

	look     func() bool        // of Wait
	readable func(uintptr) bool // calls it; made once
}

// NewBell makes a bell.
func NewBell() (*Bell, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make an eventfd: %w", err)
	}
	return OpenBell(fd)
}

// OpenBell makes a bell of an eventfd, which it owns from then on.
func OpenBell(fd int) (*Bell, error) {
	f := os.NewFile(uintptr(fd), "bell")
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	b := &Bell{f: f, raw: raw, fd: fd}
	b.readable = func(uintptr) bool { return b.look() }
	return b, nil
}

// FD returns the descriptor, which stays the bell's.
func (b *Bell) FD() int { return b.fd }

var one = [8]byte{1} // in either byte order more than 0

// Ring wakes who waits.
func (b *Bell) Ring() { _, _ = unix.Write(b.fd, one[:]) }

// Wait calls look, and again after each Ring, until it returns true. An error means that Stop was called. One goroutine at a
// time may wait.
func (b *Bell) Wait(look func() bool) error {
	b.look = look
	return b.raw.Read(b.readable)
}

// Stop ends all waiting, now and later.
func (b *Bell) Stop() { _ = b.f.SetReadDeadline(time.Unix(1, 0)) }

// Release lets go whoever is held up in Ring: the other process may have filled the counter of its bell.
func (b *Bell) Release() {
	fds := []unix.PollFd{{Fd: int32(b.fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 0); err == nil && n > 0 {
		var counter [8]byte
		_, _ = unix.Read(b.fd, counter[:])
	}
}

// Close closes the descriptor. Nobody may ring or wait any more.
func (b *Bell) Close() { _ = b.f.Close() }
