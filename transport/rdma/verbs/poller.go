//go:build verbs && cgo && linux

package verbs

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// poller has a goroutine wait for a descriptor of the libraries in Go's poller. It works on a
// duplicate, which is its own to close.
type poller struct {
	file *os.File
	raw  syscall.RawConn
}

// newPoller wants fd, which is not its own, to be non-blocking.
func newPoller(fd int, name string) (*poller, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &poller{file: os.NewFile(uintptr(dup), name)}
	if p.raw, err = p.file.SyscallConn(); err == nil {
		err = p.file.SetReadDeadline(time.Time{}) // fails if the descriptor is not in the poller
	}
	if err != nil {
		return nil, errors.Join(err, p.file.Close())
	}
	return p, nil
}

// wait calls try, and again whenever the descriptor has become readable, until it returns true or
// somebody calls wake. False: the poller is closed.
func (p *poller) wait(try func(uintptr) bool) bool {
	err := p.raw.Read(try)
	return err == nil || errors.Is(err, os.ErrDeadlineExceeded)
}

// past is before all deadlines.
var past = time.Unix(1, 0)

// wake ends wait, and the next one unless rest comes before it.
func (p *poller) wake() { _ = p.file.SetReadDeadline(past) }

// rest takes wake back.
func (p *poller) rest() { _ = p.file.SetReadDeadline(time.Time{}) }

func (p *poller) close() error { return p.file.Close() }
