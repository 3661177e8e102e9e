//go:build verbs && cgo && linux

package verbs

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// poller lets a goroutine wait in Go's poller for a descriptor of the libraries. It uses a duplicate of
// the descriptor, which it closes itself.
type poller struct {
	file *os.File
	raw  syscall.RawConn
}

// newPoller returns a poller for fd. fd has to be non-blocking, and stays the caller's.
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

// wait calls try at once, and again whenever the descriptor has become readable, until try returns true
// or wake is called. False: the poller is closed.
func (p *poller) wait(try func(uintptr) bool) bool {
	err := p.raw.Read(try)
	return err == nil || errors.Is(err, os.ErrDeadlineExceeded)
}

// past is before all deadlines.
var past = time.Unix(1, 0)

// wake ends a call of wait. If none is under way, it ends the next one, unless rest is called before.
func (p *poller) wake() { _ = p.file.SetReadDeadline(past) }

// rest undoes wake.
func (p *poller) rest() { _ = p.file.SetReadDeadline(time.Time{}) }

func (p *poller) close() error { return p.file.Close() }
