package quorum

import (
	"errors"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"oneshot/internal/iov"
)

// gathered is a connection below TLS, which writes each record of 16 KiB by itself. A Stream gathers the records of a
// write, and writes them at once.
//
// A socket is read and written without telling Go's scheduler, as those of initiators are: each call neither waits nor takes
// longer than some 10 µs, and telling wakes the runtime's monitor thread if the process was idle, which costs more than the call.
type gathered struct {
	net.Conn
	raw syscall.RawConn // nil: it is no socket

	// Of who reads; TLS lets one at a time.
	readOn func(fd uintptr) bool // made once: nothing is allocated for a read
	in     []byte                // where the bytes go
	got    int
	inErr  error

	mu      sync.Mutex // held over writes: records keep their order
	on      bool
	b       []byte                // gathered, or left by tryEnd
	writeOn func(fd uintptr) bool // made once, too
	tryOn   func(fd uintptr)
	out     []byte // what writeOn has not written yet
	outErr  error
}

// maxRaw is how many bytes a call moves without telling the scheduler: some 10 µs.
const maxRaw = 68 << 10

func newGathered(c net.Conn) *gathered {
	g := &gathered{Conn: c}
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			g.raw = raw
		}
	}
	g.readOn, g.writeOn = g.readSome, g.writeSome
	g.tryOn = func(fd uintptr) { g.writeSome(fd) }
	return g
}

// Read implements net.Conn.
func (g *gathered) Read(b []byte) (int, error) {
	if g.raw == nil || len(b) == 0 {
		return g.Conn.Read(b)
	}
	g.in, g.got, g.inErr = b[:min(len(b), maxRaw)], 0, nil
	err := g.raw.Read(g.readOn)
	g.in = nil
	if err == nil {
		err = g.inErr
	}
	return g.got, err
}

// readSome reports whether something came.
func (g *gathered) readSome(fd uintptr) bool {
	v := [1]unix.Iovec{iov.Of(g.in)}
	g.got, g.inErr = iov.Readv(int(fd), v[:])
	return g.got > 0 || g.inErr != nil
}

// Write implements net.Conn.
func (g *gathered) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.b = append(g.b, b...)
	if g.on {
		return len(b), nil
	}
	return len(b), g.writeAll()
}

func (g *gathered) begin() {
	g.mu.Lock()
	g.on = true
	g.mu.Unlock()
}

// end writes what was gathered.
func (g *gathered) end() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.on = false
	return g.writeAll()
}

// tryEnd writes what the socket takes without waiting, and reports whether that was all. The rest is written before what comes next.
func (g *gathered) tryEnd() (all bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.on = false
	g.out, g.outErr = g.b, nil
	if err = g.raw.Control(g.tryOn); err == nil {
		err = g.outErr
	}
	g.b = g.b[:copy(g.b, g.out)]
	g.out = nil
	return len(g.b) == 0, err
}

// writeAll is called with mu held.
func (g *gathered) writeAll() (err error) {
	if len(g.b) == 0 {
		return nil
	}
	if g.raw == nil {
		_, err = g.Conn.Write(g.b)
	} else {
		g.out, g.outErr = g.b, nil
		if err = g.raw.Write(g.writeOn); err == nil {
			err = g.outErr
		}
		g.out = nil
	}
	g.b = g.b[:0]
	return err
}

// writeSome reports whether all of out is written, or cannot be. If not, the socket takes no more now.
func (g *gathered) writeSome(fd uintptr) bool {
	for len(g.out) > 0 {
		v := [1]unix.Iovec{iov.Of(g.out[:min(len(g.out), maxRaw)])}
		switch n, e := iov.Writev(int(fd), v[:]); e {
		case 0:
			g.out = g.out[n:]
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			g.outErr = e
			return true
		}
	}
	return true
}

// Write implements net.Conn.
func (s *Stream) Write(b []byte) (n int, err error) {
	s.writes.Lock()
	defer s.writes.Unlock()
	for first := true; err == nil && (first || len(b) > 0); first = false {
		part := b[:min(len(b), gathersUpTo)]
		b = b[len(part):]
		s.g.begin()
		var k int
		k, err = s.Conn.Write(part)
		n += k
		if e := s.g.end(); err == nil {
			err = e
		}
	}
	return n, err
}

// gathersUpTo is how many bytes of a stream's user are gathered: 256 KiB and what goes with them, in four calls (maxRaw).
const gathersUpTo = 260 << 10

// TryWrite takes all of b, and writes without waiting what the connection takes now. It reports whether that was all; the rest is
// written by Flush, or before what is written next. An error ends the stream. It waits for a Write that another goroutine is in.
func (s *Stream) TryWrite(b []byte) (all bool, err error) {
	s.writes.Lock()
	defer s.writes.Unlock()
	s.g.begin()
	if _, err = s.Conn.Write(b); s.g.raw == nil || err != nil {
		return true, errors.Join(err, s.g.end())
	}
	return s.g.tryEnd()
}

// CanTry says whether TryWrite does not wait: the connection is a socket.
func (s *Stream) CanTry() bool { return s.g.raw != nil }

// Flush writes what TryWrite has left, and waits for that.
func (s *Stream) Flush() error {
	s.writes.Lock()
	defer s.writes.Unlock()
	return s.g.end()
}
