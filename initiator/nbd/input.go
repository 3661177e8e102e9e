package nbd

import (
	"fmt"
	"io"

	"oneshot/internal/iov"
	"oneshot/internal/stream"
)

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

// look reads once and begins what has come.
func (c *Conn) look() (stream.Round, error) {
	if err := c.makeRoom(); err != nil {
		return 0, err
	}
	room := c.in.b[c.w:]
	if end := c.r + c.need; c.need > minRoom && len(c.in.b)-end < c.need {
		room = c.in.b[c.w:end] // another such request would have to move
	}
	c.room[0] = iov.Of(room)
	n, err := iov.Readv(c.sock.FD, c.room[:])
	clear(c.room[:])
	switch {
	case err == io.EOF:
		return 0, ErrShut
	case err != nil:
		return 0, err
	case n == 0:
		return stream.Drained, nil
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
	next, err := c.newChunk(max(c.need, c.large, chunkLen))
	if err != nil {
		return err
	}
	c.moved.Add(uint64(copy(next.b, c.in.b[c.r:c.w])))
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
	for looked := false; ; {
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
		case !looked && c.isLeft():
			return ErrShut
		case q.Type <= Write && q.Length > maxLength:
			return fmt.Errorf("a %v of %d bytes: %d is the most", q.Type, q.Length, maxLength)
		case c.active == maxTasks:
			return fmt.Errorf("more than %d requests at a time", maxTasks)
		case q.Type == Write:
			c.need += int(q.Length)
			if c.large = c.need; c.large <= chunkLen {
				c.large = 0
			}
		}
		if looked = true; len(b) < c.need {
			return nil
		}
		c.begin(q, b[RequestLen:c.need])
		c.r += c.need
	}
}
