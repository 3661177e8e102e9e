package nbd

import (
	"errors"
	"fmt"
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
	r, w  int // in.b[r:w] is to be looked at
	need  int // bytes of the next request, its data included, as far as that is known
	batch []*initiator.Command

	// Calls of the system, for tests.
	reads, writes atomic.Uint64

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
}

// chunk is memory that is read into. Data of WRITEs is used where it lies.
type chunk struct {
	piece
	refs int // requests, and the reader; guarded by Conn.mu
}

const (
	// chunkLen is how much is read at once, in bytes.
	chunkLen = 256 << 10
	// minRoom is how much room there is for reading, in bytes.
	minRoom = 32 << 10
	// maxLength is the most data of a request, in bytes: that of Linux's driver.
	maxLength = 32 << 20
	// maxTasks is how many requests the kernel may have outstanding. It has 128 for each socket, and may send
	// those of another again.
	maxTasks = 1024
)

// task is a request under way.
type task struct {
	conn   *Conn
	req    Request
	chunk  *chunk // of the data of a WRITE
	data   piece  // of a READ
	parts  []*part
	left   int  // parts under way; guarded by Conn.mu
	failed bool // guarded by Conn.mu
}

// part is a command of a task. A request has several if it is longer than the unit takes at once.
type part struct {
	initiator.Command
	task  *task
	list  [initiator.UnmapListLen]byte
	since time.Time // when the unit first could not execute it; zero: that has not happened
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
	return n, nil
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

// Shut ends Serve. The kernel is not answered any more.
func (c *Conn) Shut() {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
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
}

// look reads once and begins what has come.
func (c *Conn) look() (stream.Round, error) {
	if err := c.makeRoom(); err != nil {
		return 0, err
	}
	room := c.in.b[c.w:]
	if end := c.r + c.need; c.need > minRoom && len(c.in.b)-end < c.need {
		room = c.in.b[c.w:end] // another such request would have to move
	}
	n, err := unix.Read(c.sock.FD, room)
	switch {
	case err == unix.EINTR:
		return stream.More, nil
	case err == unix.EAGAIN:
		return stream.Drained, nil
	case err != nil:
		return 0, err
	case n == 0:
		return 0, ErrShut
	}
	c.reads.Add(1)
	c.w += n
	err = c.take()
	if len(c.batch) > 0 {
		c.disk.Start(c.batch...)
	}
	c.Flush()               // what has ended at once
	return stream.More, err // also after a short read: the end may follow it, which the poller has reported already
}

// makeRoom makes sure that there is room for the rest of the next request.
func (c *Conn) makeRoom() (err error) {
	have := c.w - c.r
	c.mu.Lock()
	defer c.mu.Unlock()
	if have == 0 && c.in.refs == 1 {
		c.r, c.w = 0, 0
	}
	room := len(c.in.b) - c.r
	if room >= c.need && (have > RequestLen || room-have >= minRoom) {
		return nil
	}
	next, err := c.newChunk(max(c.need, chunkLen))
	if err != nil {
		return err
	}
	copy(next.b, c.in.b[c.r:c.w])
	c.release(c.in)
	c.in, c.r, c.w = next, 0, have
	return nil
}

// newChunk returns a chunk that the reader refers to. mu is held.
func (c *Conn) newChunk(n int) (*chunk, error) {
	p, err := c.memory.get(n)
	if err != nil {
		return nil, err
	}
	var x *chunk
	if k := len(c.chunks); k > 0 {
		x, c.chunks = c.chunks[k-1], c.chunks[:k-1]
	} else {
		x = new(chunk)
	}
	x.piece, x.refs = p, 1
	return x, nil
}

// release drops one reference. mu is held.
func (c *Conn) release(x *chunk) {
	if x == nil {
		return
	}
	if x.refs--; x.refs == 0 {
		c.memory.put(x.piece)
		x.piece = piece{}
		c.chunks = append(c.chunks, x)
	}
}

// take looks at what was read, and fills batch with the commands of all requests that are there.
func (c *Conn) take() error {
	c.batch = c.batch[:0]
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		b := c.in.b[c.r:c.w]
		if c.need = RequestLen; len(b) < RequestLen {
			return nil
		}
		q, err := ParseRequest(b)
		if err != nil {
			return err
		}
		switch {
		case q.Type == Disconnect:
			return errDisconnect
		case q.Type <= Write && q.Length > maxLength:
			return fmt.Errorf("a %v of %d bytes: %d is the most", q.Type, q.Length, maxLength)
		case c.active == maxTasks:
			return fmt.Errorf("more than %d requests at a time", maxTasks)
		case q.Type == Write:
			c.need += int(q.Length)
		}
		if len(b) < c.need {
			return nil
		}
		c.begin(q, b[RequestLen:c.need])
		c.r += c.need
	}
}

// begin begins a request. mu is held.
func (c *Conn) begin(q Request, data []byte) {
	var t *task
	if k := len(c.tasks); k > 0 {
		t, c.tasks = c.tasks[k-1], c.tasks[:k-1]
	} else {
		t = new(task)
	}
	c.active++
	t.conn, t.req, t.left, t.failed = c, q, 0, false
	from := len(c.batch)
	err := c.commands(t, data)
	if err != nil {
		c.disk.Log.Error("a request cannot be executed", "request", q.Type, "offset", q.Offset, "bytes", q.Length, "reason", err)
		clear(c.batch[from:])
		c.batch = c.batch[:from]
		t.failed = true
		t.left = 0
	}
	if t.left == 0 {
		c.ended(t)
	}
}

// commands appends the commands of t to batch. mu is held.
func (c *Conn) commands(t *task, data []byte) (err error) {
	u := c.disk.Unit()
	off, n := int64(t.req.Offset), int64(t.req.Length)
	switch t.req.Type {
	case Read:
		if n == 0 {
			return nil
		}
		if t.data, err = c.memory.get(int(n)); err != nil {
			return err
		}
		return c.transfers(t, u, t.data.b[:n], t.data.m)
	case Write:
		c.in.refs++
		t.chunk = c.in
		return c.transfers(t, u, data, c.in.m)
	case Flush:
		p := t.next()
		p.In, p.Out, p.Memory = nil, nil, nil
		u.PrepareFlush(&p.Command)
		c.batch = append(c.batch, &p.Command)
		return nil
	case Trim:
		return c.unmaps(t, u, off, n)
	case Disconnect:
	}
	return errors.New("the driver sends no such request")
}

// transfers divides a READ or WRITE.
func (c *Conn) transfers(t *task, u Unit, data []byte, m *initiator.Memory) error {
	for off := int64(t.req.Offset); len(data) > 0; {
		n := min(len(data), u.MaxTransfer())
		p := t.next()
		p.In, p.Out, p.Memory = nil, nil, m
		if t.req.Type == Write {
			p.Out = data[:n]
		} else {
			p.In = data[:n]
		}
		if err := u.Prepare(&p.Command, off); err != nil {
			return err
		}
		if t.req.Type == Write && t.req.Flags&FlagFUA != 0 {
			p.CDB[1] |= 0x08 // FUA (SBC-3 §5.38)
		}
		c.batch = append(c.batch, &p.Command)
		data, off = data[n:], off+int64(n)
	}
	return nil
}

// unmaps divides a TRIM into whole granules: the rest of the range stays as it is, which TRIM allows.
func (c *Conn) unmaps(t *task, u Unit, off, n int64) error {
	g := c.disk.Unmap
	if off < 0 || n > u.Size() || off > u.Size()-n {
		return fmt.Errorf("beyond the end of a disk of %d bytes", u.Size())
	}
	if g.Most == 0 {
		return errors.New("the unit does not unmap")
	}
	round := func(at int64) int64 {
		return (at-g.Alignment+g.Granularity-1)/g.Granularity*g.Granularity + g.Alignment
	}
	end := off + n
	if end != u.Size() {
		if up := round(end); up != end {
			end = up - g.Granularity
		}
	}
	most := max(g.Most/g.Granularity, 1) * g.Granularity
	for off = round(off); off < end; {
		k := min(end-off, most)
		p := t.next()
		if err := u.PrepareUnmap(&p.Command, p.list[:], off, k); err != nil {
			return err
		}
		c.batch = append(c.batch, &p.Command)
		off += k
	}
	return nil
}

// next returns the next part of t. Conn.mu is held.
func (t *task) next() *part {
	if t.left == len(t.parts) {
		p := &part{task: t}
		p.Done = p.done
		t.parts = append(t.parts, p)
	}
	p := t.parts[t.left]
	p.since = time.Time{}
	t.left++
	return p
}

// done notes the end of a command.
func (p *part) done(*initiator.Command) {
	t := p.task
	c := t.conn
	err := p.Failure()
	if err != nil {
		if c.again(p, err) {
			return
		}
		c.disk.Log.Error("a request has failed", "request", t.req.Type, "offset", t.req.Offset, "bytes", t.req.Length,
			"lba", t.req.Offset/uint64(c.disk.Unit().BlockSize()), "reason", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t.failed = t.failed || err != nil
	if t.left--; t.left == 0 {
		c.ended(t)
	}
}

// pause is the time between two attempts to have a command executed.
const pause = 100 * time.Millisecond

// again begins p once more, later, if the unit has not executed it for a reason that passes. It
// reports whether it does.
func (c *Conn) again(p *part, err error) bool {
	e, ok := errors.AsType[*initiator.StatusError](err)
	if !ok || !passes(e) {
		return false
	}
	now := time.Now()
	if p.since.IsZero() {
		p.since = now
		c.disk.Log.Warn("a request is tried again", "request", p.task.req.Type, "offset", p.task.req.Offset, "reason", err)
	} else if now.Sub(p.since) > c.disk.Patience {
		return false
	}
	time.AfterFunc(pause, func() {
		c.disk.Start(&p.Command)
		c.Flush()
	})
	return true
}

// passes reports whether the unit may execute later what it does not execute now (SAM-5 §5.3.1, SPC-4 §4.5).
func passes(e *initiator.StatusError) bool {
	const notReady, unitAttention, abortedCommand = 2, 6, 0xb
	switch e.Status {
	case initiator.StatusBusy, initiator.StatusTaskSetFull, initiator.StatusTaskAborted:
		return true
	case initiator.StatusCheckCondition:
		becoming := e.ASC == 4 && (e.ASCQ == 0 || e.ASCQ == 1 || e.ASCQ == 0xa)
		return e.Key == unitAttention || e.Key == abortedCommand || e.Key == notReady && becoming
	}
	return false
}

// ended has t answered with the next Flush. mu is held.
func (c *Conn) ended(t *task) {
	c.release(t.chunk)
	t.chunk = nil
	if t.failed {
		c.memory.put(t.data)
		t.data = piece{}
	}
	c.ready = append(c.ready, t)
}

// Flush answers the requests that have ended. It does not block.
func (c *Conn) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.blocked && len(c.ready) > 0 && !c.send() {
		c.blocked = true
		c.sock.AwaitRoom()
	}
}

// onRoom goes on when the socket was full.
func (c *Conn) onRoom() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.send() {
		return false
	}
	c.blocked = false
	return true
}

// noRoom: waiting for room is over; with an error there will never be any.
func (c *Conn) noRoom(err error) {
	if err == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over, c.blocked = true, false
	c.send()
}

// send writes as much as the socket takes. False: not all. mu is held.
func (c *Conn) send() bool {
	for {
		if c.over {
			c.out.Abandon()
		}
		if c.out.Empty() {
			for _, t := range c.sent {
				c.forget(t)
			}
			c.sent, c.ready = c.ready, c.sent[:0]
			if len(c.sent) == 0 {
				return true
			}
			c.gather()
			continue
		}
		n, errno := iov.Writev(c.sock.FD, c.out.Next())
		c.writes.Add(1)
		switch errno {
		case 0:
			c.out.Advance(n)
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default: // the kernel has gone; closing the connection would wait for a caller of ours
			c.over = true
			_ = unix.Shutdown(c.sock.FD, unix.SHUT_RDWR)
		}
	}
}

// gather makes out of what sent is about. mu is held.
func (c *Conn) gather() {
	if need := len(c.sent) * ReplyLen; cap(c.head) < need {
		c.head = make([]byte, 0, max(need, 256*ReplyLen)) // it must not move
	}
	c.head = c.head[:0]
	joined := false // the last piece ends where head does
	for _, t := range c.sent {
		r := Reply{Cookie: t.req.Cookie, Errno: errnoNone}
		if t.failed {
			r.Errno = errnoIO
		}
		from := len(c.head)
		c.head = r.AppendTo(c.head)
		if joined {
			c.out.Extend(ReplyLen)
		} else {
			c.out.Add(c.head[from:])
		}
		if joined = t.data.b == nil; !joined {
			c.out.Add(t.data.b[:t.req.Length])
		}
	}
}

// forget puts a task away that is answered. mu is held.
func (c *Conn) forget(t *task) {
	c.memory.put(t.data)
	t.data = piece{}
	c.tasks = append(c.tasks, t)
	if c.active--; c.active == 0 {
		c.idle.Broadcast()
	}
}
