package nbd

import (
	"errors"
	"fmt"
	"time"

	"oneshot/initiator"
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
	passes bool // the data is in Conn.pass; guarded by Conn.mu
}

// part is a command of a task. A request has several if it is longer than the unit takes at once.
type part struct {
	initiator.Command
	task  *task
	list  [initiator.UnmapListLen]byte
	since time.Time // when the unit first could not execute it; zero: that has not happened
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
		c.disk.Log.Error("a request that cannot be done", "request", q.Type, "offset", q.Offset, "bytes", q.Length, "reason", err)
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
		err = c.transfers(t, u, t.data.b[:n], t.data.m)
		if t.left == 1 {
			t.parts[0].Sink = t.parts[0]
		}
		return err
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
	return fmt.Errorf("there is no such request")
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

// maxUnmaps is how many commands a TRIM has at most. The kernel is asked for shorter ones (Attachment.tune).
const maxUnmaps = 256

// mostUnmapped is how much one command is to unmap, in whole granules.
func mostUnmapped(g initiator.Unmapping) int64 { return max(g.Most/g.Granularity, 1) * g.Granularity }

// unmaps divides a TRIM into whole granules: the rest of the range stays as it is, which TRIM allows. So does what would take more than
// maxUnmaps commands.
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
	most := mostUnmapped(g)
	for off = round(off); off < end && t.left < maxUnmaps; {
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
	p.since, p.Sink = time.Time{}, nil
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

// passes reports whether the unit may execute later what it does not execute now (SAM-5 §5.3.1, SPC-4 §4.5). What was meant for one
// medium is not for the next.
func passes(e *initiator.StatusError) bool {
	const notReady, unitAttention, abortedCommand = 2, 6, 0xb
	const mediumChanged = 0x28 // NOT READY TO READY CHANGE, MEDIUM MAY HAVE CHANGED
	switch e.Status {
	case initiator.StatusBusy, initiator.StatusTaskSetFull, initiator.StatusTaskAborted:
		return true
	case initiator.StatusCheckCondition:
		becoming := e.ASC == 4 && (e.ASCQ == 0 || e.ASCQ == 1 || e.ASCQ == 0xa)
		return e.Key == unitAttention && e.ASC != mediumChanged || e.Key == abortedCommand || e.Key == notReady && becoming
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
