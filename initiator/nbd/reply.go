package nbd

import (
	"golang.org/x/sys/unix"

	"oneshot/internal/iov"
)

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
			c.pass.left = 0
		}
		if c.out.Empty() && c.pass.left == 0 {
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
		err := c.write()
		c.writes.Add(1)
		switch err {
		case nil, unix.EINTR:
		case unix.EAGAIN:
			return false
		default: // the kernel has gone; closing the connection would wait for a caller of ours
			c.over = true
			_ = unix.Shutdown(c.sock.FD, unix.SHUT_RDWR)
		}
	}
}

// write writes some of the next piece. mu is held.
func (c *Conn) write() error {
	if c.out.Empty() {
		return c.push()
	}
	n, errno := iov.Writev(c.sock.FD, c.out.Next())
	if errno != 0 {
		return errno
	}
	c.out.Advance(n)
	return nil
}

// gather makes out of what sent is about, and last of what passes. mu is held.
func (c *Conn) gather() {
	if need := len(c.sent) * ReplyLen; cap(c.head) < need {
		c.head = make([]byte, 0, max(need, 256*ReplyLen)) // it must not move
	}
	c.head = c.head[:0]
	for i, t := range c.sent {
		if last := len(c.sent) - 1; t.passes {
			c.sent[i], c.sent[last] = c.sent[last], t
			if !t.failed { // otherwise the next Accept gets rid of the data
				c.pass.left = c.pass.rest
			}
			break // there is one pipe
		}
	}
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
		n := int(t.req.Length)
		if t.passes {
			n = c.pass.first
		}
		if joined = t.data.b == nil || n == 0; !joined {
			c.out.Add(t.data.b[:n])
		}
	}
}

// forget puts a task away that is answered. mu is held.
func (c *Conn) forget(t *task) {
	if t.passes {
		t.passes, c.pass.full = false, false
		c.passes.Add(1)
	}
	c.memory.put(t.data)
	t.data = piece{}
	c.tasks = append(c.tasks, t)
	if c.active--; c.active == 0 {
		c.idle.Broadcast()
	}
}
