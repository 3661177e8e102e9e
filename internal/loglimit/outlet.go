package loglimit

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Outlet writes lines to a file that somebody reads, a pipe or the socket of a journal. As long as it is read each line is written at once.
// When nobody reads it any more lines wait in memory, and what finds no room there is left out: whoever logs does not wait, for he may
// have a lock that others want. It is an io.Writer of whole lines; several goroutines may use it.
type Outlet struct {
	f *os.File

	mu      sync.Mutex      // not held over a write that may wait
	waiting []byte          // lines
	dropped int             // lines, since the last of these
	telling bool            // what says so finds room
	missing func(lines int) // logs that
	idle    chan struct{}   // closed when a goroutine has written all that waits; nil: there is none
}

// ForDaemon returns where a program that stays writes its log, in the place of its standard error, and what waits, at its end, until the last
// lines are read, or a second.
func ForDaemon(stderr io.Writer) (out io.Writer, flush func()) {
	f, ok := stderr.(*os.File)
	if !ok {
		return stderr, func() {}
	}
	o := NewOutlet(f)
	return o, func() { o.Flush(time.Second) }
}

// stayedError is the error with which a program that stays ends.
type stayedError struct{ error }

func (e *stayedError) Unwrap() error { return e.error }

// Stayed marks the error with which a program that stays ends; nil: nothing.
func Stayed(err error) error {
	if err == nil {
		return nil
	}
	return &stayedError{err}
}

// ForLastWords returns where the error with which a program ends is written, and what waits until it is read. For that of a program that stays it is
// as ForDaemon: nobody may read any more what such a program writes, and it ends all the same.
func ForLastWords(err error, stderr io.Writer) (out io.Writer, flush func()) {
	if _, ok := errors.AsType[*stayedError](err); ok {
		return ForDaemon(stderr)
	}
	return stderr, func() {}
}

// MaxWaiting is how many bytes wait; as many may be on their way.
const MaxWaiting = 256 << 10

// NewOutlet returns an outlet to f.
func NewOutlet(f *os.File) *Outlet { return &Outlet{f: f, missing: func(int) {}} }

// TellMissing has a log, which goes to what ForDaemon has returned, say how many lines were left out. Call it before something is logged.
func TellMissing(out io.Writer, log *slog.Logger) {
	if o, ok := out.(*Outlet); ok {
		o.missing = func(lines int) {
			log.Warn("nobody has read the log for some time: lines are missing before this one", "lines", lines)
		}
	}
}

// Write writes a line, or keeps it.
func (o *Outlet) Write(line []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.idle == nil && o.takes(len(line)):
		return o.f.Write(line)
	case len(o.waiting)+len(line) > MaxWaiting && !o.telling:
		o.dropped++
	default:
		o.waiting = append(o.waiting, line...)
	}
	if o.idle == nil {
		o.idle = make(chan struct{})
		go o.drain()
	}
	return len(line), nil
}

// takes reports whether the file takes n bytes without waiting. A pipe that is ready has room for as many as it writes in one piece.
func (o *Outlet) takes(n int) (ready bool) {
	const pipeBuf = 4096
	c, err := o.f.SyscallConn()
	if err != nil || n > pipeBuf {
		return false
	}
	err = c.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		k, err := unix.Poll(fds, 0)
		ready = k > 0 || err != nil && err != unix.EINTR // an error is the write's to tell
	})
	return ready || err != nil
}

// drain writes what waits.
func (o *Outlet) drain() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.waiting)+o.dropped > 0 {
		lines, dropped := o.waiting, o.dropped
		o.waiting, o.dropped, o.telling = nil, 0, dropped > 0
		o.mu.Unlock()
		if dropped > 0 {
			o.missing(dropped) // behind these lines
		}
		o.mu.Lock()
		o.telling = false
		o.mu.Unlock()
		_, _ = o.f.Write(lines) // an error is told with the next line that does not wait
		o.mu.Lock()
	}
	close(o.idle)
	o.idle = nil
}

// Flush waits until all is written, at most for that long.
func (o *Outlet) Flush(most time.Duration) {
	o.mu.Lock()
	idle := o.idle
	o.mu.Unlock()
	if idle != nil {
		select {
		case <-idle:
		case <-time.After(most):
		}
	}
}
