package nbd

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/initiator"
	"oneshot/internal/iov"
	"oneshot/internal/stream"
)

// Unit is a disk, whose commands it prepares; initiator.LU is one.
type Unit interface {
	Size() int64 // bytes
	BlockSize() int
	MaxTransfer() int
	Prepare(c *initiator.Command, off int64) error
	PrepareFlush(c *initiator.Command)
	PrepareUnmap(c *initiator.Command, list []byte, off, n int64) error
}

// Disk is what a Conn has requests done by.
type Disk struct {
	Unit  func() Unit // as it is now
	Unmap initiator.Unmapping
	// Start begins commands; initiator.Lasting.Start is one.
	Start func(cs ...*initiator.Command)
	// Alloc returns memory for commands. The Memory may be nil.
	Alloc func(n int) (*initiator.Memory, []byte, error)
	// Patience is how long a command is tried again that the unit does not execute now: it is busy, say.
	Patience time.Duration
	Log      *slog.Logger
}

// Conn is one socket of the kernel's. Its methods may be called from any goroutine, except Serve.
type Conn struct {
	disk Disk
	conn *net.UnixConn
	sock *stream.Socket

	// Belongs to the reader:
	in    *chunk
	r, w  int           // in.b[r:w] is to be looked at
	need  int           // bytes of the next request, its data included, as far as that is known
	large int           // bytes of the last WRITE, its header included, if it did not fit into an ordinary chunk: the next may be like it
	room  [1]unix.Iovec // what look reads into
	batch []*initiator.Command
	// others are the other sockets of the device, for poll.
	others []unix.PollFd

	// Calls of the system, bytes of requests that were copied, and replies that have passed, for tests.
	reads, writes, moved, passes atomic.Uint64

	mu      sync.Mutex // guards what follows; taken before Session.mu; not held while Start is called
	memory  pool
	chunks  []*chunk // unused structures
	tasks   []*task  // unused structures
	active  int      // tasks in use
	idle    sync.Cond
	over    bool    // nothing is answered any more
	ready   []*task // that have ended
	sent    []*task // that out is about
	head    []byte  // headers of replies
	out     iov.Batch
	blocked bool // the socket is full; AwaitRoom goes on
	pass    passage
}

// NewConn returns the side of a socket that serves the kernel. c belongs to it from now on.
func NewConn(c *net.UnixConn, d Disk) (*Conn, error) {
	s, err := stream.Open(c)
	if err != nil {
		return nil, err
	}
	n := &Conn{disk: d, conn: c, sock: s, memory: pool{alloc: d.Alloc}, need: RequestLen}
	n.idle.L = &n.mu
	if n.in, err = n.newChunk(chunkLen); err != nil {
		return nil, err
	}
	s.OnRoom(n.onRoom, n.noRoom)
	n.pass.open()
	return n, nil
}

// Watch has Serve end when the kernel has shut one of the other sockets of the device: what went through that it may send again through this one,
// and of what is sent again nothing may begin while it is not known how it has ended. It is called before Serve.
func (c *Conn) Watch(all []*Conn) {
	for _, o := range all {
		if o != c {
			c.others = append(c.others, unix.PollFd{Fd: int32(o.sock.FD), Events: unix.POLLRDHUP})
		}
	}
}

// isLeft reports whether the kernel has shut one of the other sockets.
func (c *Conn) isLeft() bool {
	if len(c.others) == 0 {
		return false
	}
	n, err := unix.Poll(c.others, 0)
	for err == unix.EINTR {
		n, err = unix.Poll(c.others, 0)
	}
	return n != 0
}

var (
	// errDisconnect is the kernel's orderly end.
	errDisconnect = errors.New("the kernel disconnects")
	// ErrShut is a socket that the kernel has shut without saying so.
	ErrShut = errors.New("the kernel has shut the socket")
)

// Serve does what the kernel asks for until it disconnects, which is no error, or the socket is shut.
// Requests may still be under way then.
func (c *Conn) Serve() error {
	own, outer := c.sock.Read(c.look)
	switch {
	case errors.Is(own, errDisconnect):
		return nil
	case own != nil:
		return own
	case errors.Is(outer, net.ErrClosed):
		return ErrShut
	}
	return outer
}

// mute sees to it that the kernel is not answered any more.
func (c *Conn) mute() {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
}

// Shut ends Serve. The kernel is not answered any more.
func (c *Conn) Shut() {
	c.mute()
	_ = c.conn.Close() // again, perhaps, which is an error and does nothing
}

// Close waits until no request is under way, and frees everything. It is called after Shut, when Serve has
// returned.
func (c *Conn) Close() {
	c.sock.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.send()
	for c.active > 0 {
		c.idle.Wait()
	}
	c.release(c.in)
	c.memory.close()
	c.pass.close()
}
