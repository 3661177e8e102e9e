package nbd

import (
	"io"

	"golang.org/x/sys/unix"
)

// passage is a pipe that the data of a READ goes through, from the socket of the target to that of the kernel: this process does
// not copy it. The pages that it lends to the kernel are those that the network has received into, which nobody writes to again.
// A reply begins when all of its data is in the pipe: what the connection that it comes from does then does not matter.
//
//	Accept ─► Take, until all is there ─► Done ─► ready ─► send: the header and first, then the pipe
type passage struct {
	pipe [2]int // to read from, to write to; -1: there is none

	// Belongs to the goroutine of the session, until full is set; then guarded by Conn.mu:
	first int  // bytes of the data that had been read, and lie where the command has its memory
	rest  int  // bytes that go through the pipe
	in    int  // of them, have come into it
	spilt bool // they have not all found room, and lie in memory, too

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
	for tries := 0; s.in < s.rest; tries++ {
		n, err := s.move(fd, p.In)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN && (s.spilt || s.in == 0 || !readable(fd)):
			return false, nil
		case err == unix.EAGAIN && tries > 0: // twice, with something to read: the pipe is full
			if err := s.spill(p.In); err != nil {
				return false, err
			}
		case err == unix.EAGAIN:
			continue
		case err != nil:
			return false, err
		case n == 0:
			return false, io.EOF
		default:
			s.in += n
		}
		tries = -1
	}
	if !s.spilt {
		p.task.hand()
	}
	return true, nil
}

// move takes some of the data from fd, into the pipe or, if that was too short, to memory.
func (p *passage) move(fd int, memory []byte) (int, error) {
	if p.spilt {
		return unix.Read(fd, memory[p.first+p.in:])
	}
	n, err := unix.Splice(fd, nil, p.pipe[1], nil, p.rest-p.in, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
	return int(n), err
}

// readable reports whether fd has something to read.
func readable(fd int) bool {
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ) // FIONREAD
	return err == nil && n > 0
}

// spill moves what is in the pipe to memory.
func (p *passage) spill(memory []byte) error {
	p.spilt = true
	for b := memory[p.first:][:p.in]; len(b) > 0; {
		n, err := unix.Read(p.pipe[0], b)
		if err != nil && err != unix.EINTR {
			return err
		}
		b = b[max(n, 0):]
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
	n, err := unix.Splice(c.pass.pipe[0], nil, c.sock.FD, nil, c.pass.left, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
	if err == nil {
		c.pass.left -= int(n)
		c.pass.in -= int(n)
	}
	return err
}
