// Package bytestream is what the movers of TCP connections have in common, whatever protocol they speak: a socket with a
// goroutine that owns it, a buffer of input, data that go from the socket to where they are to end, and output that is
// gathered into one writev. It knows no PDU: a mover parses headers, and cuts answers into pieces.
//
//	in.go    bytes in:  socket ─► buffer ─► header: the mover's, or data: a Sink
//	sink.go             where the data of one command go
//	out.go   bytes out: answers and control PDUs
//	link.go             the life of the socket
//
// What is called for each PDU is called by the mover, and directly; what a Link calls through an interface it calls once per
// batch of input or output.
package bytestream

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/internal/stream"
	"oneshot/mem"
)

// Conn is the protocol state of the connection, and its lock.
type Conn interface {
	sync.Locker
	// LeaseInput returns n bytes for input, or nil.
	LeaseInput(n int) *mem.Lease
	// Heard notes that the peer is alive.
	Heard()
	// Lost says that the connection is gone, and why; nil: the peer closed it.
	Lost(err error)
}

// Mover is who holds a Link. Its methods are called with the lock of the connection held.
type Mover interface {
	// Parse handles what is in the buffer, by the steps that Link.Step says, until that says Wait.
	Parse() error
	// Blame tells the connection that its peer broke the rules, if that is what err says. It returns the error that ends the
	// connection; nil: it ends by itself.
	Blame(err error) error
	// Fill cuts the answers that Out.Next returns into pieces, as long as it returns any.
	Fill()
	// Release gives back the answers that Out.Left returns: they have left.
	Release()
	// Abandon gives back the answers that Out.Drop returns: they will never leave.
	Abandon()
}

// lingerTime is how long the last PDUs may take to reach a peer that does not read, and the peer to close the connection in
// answer to them.
const lingerTime = 3 * time.Second

// Link is a TCP connection of a mover, whose answers are of type T. Its fields and methods are for use with the lock of the
// connection held, except those marked otherwise.
type Link[T any] struct {
	In  In[T]
	Out Out[T]

	// Small says that the peer sends nothing but small PDUs, and gets no I/O memory for input: it may not have proved
	// anything.
	Small bool
	// Heavy is how many bytes of control PDUs may wait for the socket before no more input is taken.
	Heavy int
	// Withhold has Flush send nothing.
	Withhold bool

	Reads, Writes uint64 // system calls
	BytesIn       uint64

	conn  Conn
	mover Mover
	tc    *net.TCPConn
	sock  *stream.Socket // its descriptor is for use with dead unset
	peer  string
	here  string

	closing bool // the socket is to be closed once Out is empty
	half    bool // our half of it is closed
	dead    bool // the socket can no longer be used
	paused  bool // the reader waits, or is about to, until Out is short again
	pausing bool // tells the reader so; its own
}

// Open makes a link of tc, which it owns from now on, unless there is an error. Attach follows.
func (l *Link[T]) Open(tc *net.TCPConn, m Mover, sizes Sizes) error {
	sock, err := stream.Open(tc) // End closes tc, after dead is set
	if err != nil {
		return err
	}
	l.mover, l.tc, l.sock, l.peer, l.here = m, tc, sock, tc.RemoteAddr().String(), tc.LocalAddr().String()
	l.In.sizes = sizes
	sock.OnRoom(l.onWritable, l.written)
	return nil
}

// Attach says whose link it is.
func (l *Link[T]) Attach(c Conn) { l.conn = c }

// Peer is the address of the other end. It needs no lock.
func (l *Link[T]) Peer() string { return l.peer }

// Local is our address. It needs no lock.
func (l *Link[T]) Local() string { return l.here }

// HungUp reports whether the peer has closed its half of the connection, or all of it.
func (l *Link[T]) HungUp() bool {
	if l.dead {
		return true
	}
	fds := []unix.PollFd{{Fd: int32(l.sock.FD), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// Arrived returns how many bytes the peer has sent so far, how many of these were read, and whether the connection is open still.
func (l *Link[T]) Arrived() (sent, read uint64, open bool) {
	if l.HungUp() {
		return l.BytesIn, l.BytesIn, false
	}
	return l.BytesIn + uint64(l.unread()), l.BytesIn, true
}

// Shut reports whether nothing is sent any more.
func (l *Link[T]) Shut() bool { return l.half || l.dead }

// Terminate ends the connection: at once, or when all that is queued has left, for which there is some time.
func (l *Link[T]) Terminate(atOnce bool) {
	if l.dead || l.closing && !atOnce {
		return
	}
	l.closing, l.In.held = true, false
	if atOnce {
		l.broken()
		return
	}
	_ = l.tc.SetDeadline(time.Now().Add(lingerTime))
}

// Reasons for the end of a connection that are not the peer's.
var (
	errEnded    = errors.New("ended by the target")
	errNoMemory = errors.New("no memory for input: the limit on buffer memory is reached (limits.memory)")
)

// Read is the life of the goroutine that owns the socket: it calls look, without the lock, whenever something may have come.
// It returns why the connection ended; nil: the peer closed it. End follows.
func (l *Link[T]) Read(look func() (stream.Round, error)) error {
	err, over := l.sock.Read(look)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case over != nil: // the time to linger
		return errEnded
	}
	return err
}

// End gives back all that the connection has, and closes it. It is called without the lock.
func (l *Link[T]) End(err error) {
	l.conn.Lock()
	l.dead = true
	l.Out.blocked = false
	l.In.release()
	l.mover.Abandon() // before the connection ends: what it counts later nobody sees
	l.conn.Lost(err)
	l.conn.Unlock()
	_ = l.tc.Close()
	l.sock.Close()
}

// Look handles one batch of input. It is called without the lock, by the goroutine that owns the socket.
func (l *Link[T]) Look() (stream.Round, error) {
	drained, err := l.batch()
	switch {
	case l.pausing:
		l.pausing = false
		return stream.Pause, err
	case drained:
		return stream.Drained, err
	}
	return stream.More, err
}

// batch reads once, and answers what can be answered at once with one write.
func (l *Link[T]) batch() (drained bool, err error) {
	l.conn.Lock()
	defer l.conn.Unlock()
	switch {
	case l.dead:
		return true, errEnded
	case l.isFull():
		l.In.drop()
		l.paused, l.pausing = true, true
		return true, nil
	case !l.lendIn():
		return true, errNoMemory
	}
	drained, err = l.receive()
	if drained {
		l.In.drop()
	}
	if err != nil {
		err = l.mover.Blame(err)
	}
	return drained, err
}

// Hold has no input taken before GoOn: what is next is for memory that there is not yet. What is unread stays in the buffer.
func (l *Link[T]) Hold() { l.In.held = true }

// Held reports whether what is next is for t, and there is a Hold.
func (l *Link[T]) Held(t *T) bool { return l.In.held && l.In.Task == t }

// GoOn ends a Hold; Flush follows.
func (l *Link[T]) GoOn() { l.In.held = false }

// isFull reports whether no more input is to be taken before some of the output has left, or before GoOn.
func (l *Link[T]) isFull() bool {
	return l.Out.Outstanding() >= MaxQueued || l.Out.weight >= l.Heavy || l.In.held
}

// isShort reports whether the output is short enough for input to be taken again, and there is no Hold.
func (l *Link[T]) isShort() bool {
	return l.Out.Outstanding() < MaxQueued/2 && l.Out.weight < l.Heavy/2 && !l.In.held
}

// Stuck reports whether no input is taken because the socket takes no output.
func (l *Link[T]) Stuck() bool { return l.paused && l.Out.blocked }

// Flush sends what is queued, as far as the socket takes it, and sees to what waits for that.
func (l *Link[T]) Flush() {
	switch {
	case l.dead:
		l.mover.Abandon()
	case l.Withhold:
		return
	case l.Out.blocked || l.Out.Empty():
	case !l.write():
		l.block()
	}
	if l.closing && l.Out.Outstanding() == 0 {
		l.shutdownWrite()
	}
	if l.paused && l.isShort() {
		l.wakeReader()
	}
}

// wakeReader lets a paused reader go on.
func (l *Link[T]) wakeReader() {
	if l.paused {
		l.paused = false
		l.sock.Resume()
	}
}

// block has the writer send the rest when the socket has room again.
func (l *Link[T]) block() {
	if l.dead {
		l.mover.Abandon()
		return
	}
	l.Out.blocked = true
	l.sock.AwaitRoom()
}

// written is called by the goroutine that waits for room when onWritable has sent everything, or with an error when there will
// be no room any more.
func (l *Link[T]) written(err error) {
	if err != nil {
		l.conn.Lock()
		l.broken()
		l.conn.Unlock()
	}
}

// onWritable sends. False: wait until there is more room.
func (l *Link[T]) onWritable() bool {
	l.conn.Lock()
	defer l.conn.Unlock()
	if l.dead || l.write() || l.dead {
		l.Out.blocked = false
		return true
	}
	return false
}

// broken ends the use of the socket. The reader notices.
func (l *Link[T]) broken() {
	if l.dead {
		return
	}
	l.dead = true
	_ = unix.Shutdown(l.sock.FD, unix.SHUT_RDWR)
	l.wakeReader()
}

// shutdownWrite closes our half of the connection: what has been written still arrives, and the peer closes its half in answer.
func (l *Link[T]) shutdownWrite() {
	if l.Shut() {
		return
	}
	l.half = true
	_ = unix.Shutdown(l.sock.FD, unix.SHUT_WR)
}
