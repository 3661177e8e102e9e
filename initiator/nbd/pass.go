package nbd

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"oneshot/internal/iov"
)

// passage is a pipe that the data of a READ goes through, from the socket of the target to that of the kernel: this process does
// not copy it. The pages that it lends to the kernel are those that the network has received into, which nobody writes to again.
// A reply begins when all of its data is in the pipe: what the connection that it comes from does then does not matter.
//
//	Accept ─► Take, until all is there ─► Done ─► ready ─► send: the header and first, then the pipe
type passage struct {
	pipe [2]int // to read from, to write to; -1: there is none

	// Belongs to the goroutine of the session, until full is set; then guarded by Conn.mu:
	first int           // bytes of the data that had been read, and lie where the command has its memory
	rest  int           // bytes that go through the pipe
	in    int           // of them, have come into it
	spilt bool          // they have not all found room, and lie in memory, too
	into  [1]unix.Iovec // what read reads into

	// Guarded by Conn.mu:
	full bool // the pipe has the data of a task
	left int  // bytes of it to write, once its header is in Conn.out
}

// pipeLen is how much a pipe holds, in bytes, if all of its pages are full.
const pipeLen = 1 << 20

// open makes the pipe. Without one nothing passes.
func (p *passage) open() {
	if unix.Pipe2(p.pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK) != nil {
		p.pipe = [2]int{-1, -1}
		return
	}
	_, _ = unix.FcntlInt(uintptr(p.pipe[1]), unix.F_SETPIPE_SZ, pipeLen) // a shorter one does, too
}

func (p *passage) close() {
	if p.pipe[0] >= 0 {
		_ = unix.Close(p.pipe[0])
		_ = unix.Close(p.pipe[1])
	}
}

// Accept implements initiator.Sink: the pipe is there, and no reply has it.
func (p *part) Accept(first []byte) bool {
	c := p.task.conn
	s := &c.pass
	c.mu.Lock()
	can := !s.full && s.pipe[0] >= 0
	c.mu.Unlock()
	if !can {
		return false
	}
	if s.in > 0 { // of a connection that has ended
		s.close()
		s.open()
	}
	s.first, s.rest, s.in, s.spilt = copy(p.In, first), len(p.In)-len(first), 0, false
	return true
}

// Take implements initiator.Sink.
func (p *part) Take(fd int) (all bool, err error) {
	s := &p.task.conn.pass
	for full := false; s.in < s.rest; {
		n, err := s.move(fd, p.In)
		switch {
		case err != nil:
			return false, err
		case n > 0:
			s.in += n
			full = false
		case s.spilt || s.in == 0 || !readable(fd):
			return false, nil
		case full: // twice, with something to read
			if err := s.spill(p.In); err != nil {
				return false, err
			}
		default:
			full = true
		}
	}
	if !s.spilt {
		p.task.hand()
	}
	return true, nil
}

// move takes some of the data from fd, into the pipe or, if that was too short, to memory. 0: fd has nothing, or the pipe is full.
func (p *passage) move(fd int, memory []byte) (int, error) {
	if p.spilt {
		return p.read(fd, memory[p.first+p.in:])
	}
	return iov.Splice(fd, p.pipe[1], p.rest-p.in)
}

func (p *passage) read(fd int, b []byte) (int, error) {
	p.into[0] = iov.Of(b)
	defer clear(p.into[:])
	return iov.Readv(fd, p.into[:])
}

// readable reports whether fd has something to read.
func readable(fd int) bool {
	var n int32
	_, _, e := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCINQ, uintptr(unsafe.Pointer(&n))) // FIONREAD
	return e == 0 && n > 0
}

// spill moves what is in the pipe to memory.
func (p *passage) spill(memory []byte) error {
	p.spilt = true
	for b := memory[p.first:][:p.in]; len(b) > 0; {
		n, err := p.read(p.pipe[0], b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// hand gives the pipe to the reply to t.
func (t *task) hand() {
	t.conn.mu.Lock()
	t.conn.pass.full, t.passes = true, true
	t.conn.mu.Unlock()
}

// push writes some of the pipe to the kernel's socket, without blocking. mu is held.
func (c *Conn) push() error {
	n, err := iov.Splice(c.pass.pipe[0], c.sock.FD, c.pass.left)
	if n == 0 && err == nil {
		return unix.EAGAIN
	}
	c.pass.left -= n
	c.pass.in -= n
	return err
}
