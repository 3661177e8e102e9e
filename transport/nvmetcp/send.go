package nvmetcp

import (
	"golang.org/x/sys/unix"

	"oneshot/internal/iov"
	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
	"oneshot/nvmf"
)

const (
	// maxQueued and maxHeavy bound what may wait for the socket before no more input is taken: answers and control PDUs, and the
	// bytes of the latter.
	maxQueued = 512
	maxHeavy  = 64 << 10
)

// tx is the sending side: the answers and PDUs that are to leave, in order, and the pieces of memory that those at the
// front consist of. An answer is cut into pieces when its turn comes.
//
//	items   first ──── in out as a whole ──── made ──── waiting
type tx struct {
	out     iov.Batch
	items   []item // items[first:] are outstanding
	first   int
	made    int
	weight  int  // bytes of the control PDUs among them
	blocked bool // the socket is full; the writer waits for room
	free    []*control
}

// item is what to give back once out.Written has reached end, which is known when all of it is in out.
type item struct {
	end uint64
	t   *task
	c   *control
}

// control is the memory of a PDU that belongs to no command.
type control struct{ buf []byte }

// maxFreeControls is how many of them are kept for use again.
const maxFreeControls = 16

func (x *tx) control() *control {
	if n := len(x.free); n > 0 {
		c := x.free[n-1]
		x.free = x.free[:n-1]
		return c
	}
	return &control{buf: make([]byte, 0, pdu.ICLen)}
}

func (x *tx) outstanding() int { return len(x.items) - x.first }

// isFull reports whether no more input is to be taken before some of the output has left.
func (m *Mover) isFull() bool { return m.tx.outstanding() >= maxQueued || m.tx.weight >= maxHeavy }

// isShort reports whether the output is short enough for input to be taken again.
func (m *Mover) isShort() bool {
	return m.tx.outstanding() < maxQueued/2 && m.tx.weight < maxHeavy/2
}

func (m *Mover) enqueue(c *control) {
	m.tx.weight += len(c.buf)
	m.tx.items = append(m.tx.items, item{c: c})
	m.fill()
}

// enqueueHeader queues a control PDU that is a header only, without digest yet.
func (m *Mover) enqueueHeader(c *control) {
	if m.headerDigest {
		c.buf = pdu.Digest(0).Update(c.buf).AppendTo(c.buf)
	}
	m.enqueue(c)
}

// Answer implements nvmf.Mover.
func (m *Mover) Answer(nt *nvmf.Task) {
	t := of(nt)
	m.Forget(nt)
	if m.mute || m.half || m.dead {
		m.queue.AnswerLost(nt)
		return
	}
	m.tx.items = append(m.tx.items, item{t: t})
	m.fill()
}

// fill cuts what waits into pieces, as far as one writev takes it.
func (m *Mover) fill() {
	x := &m.tx
	for x.made < len(x.items) && len(x.out.Pending()) < iov.Max {
		it := &x.items[x.made]
		if it.c != nil {
			x.out.Add(it.c.buf)
		} else {
			m.cut(it.t)
		}
		it.end = x.out.Queued
		x.made++
	}
}

// cut queues the answer of t: its data in one PDU, and its completion, which a flag of the data stands for if nobody looks
// at what else it has.
func (m *Mover) cut(t *task) {
	n := 0
	for _, s := range t.In {
		n += len(s)
	}
	b := t.buf[:0]
	collapse := n > 0 && m.params.Collapse && t.CQE.Status == nvme.Success && t.CQE.DW0 == 0 && t.CQE.DW1 == 0
	if n > 0 {
		b = m.dataIn(t, b, n, collapse)
	}
	if !collapse {
		start := len(b)
		b = pdu.AppendResponse(b, m.flags, &t.CQE)
		if m.headerDigest {
			b = pdu.Digest(0).Update(b[start:]).AppendTo(b)
		}
		m.tx.out.Add(b[start:])
	}
}

// dataIn queues a C2HData PDU with the n bytes of t.In (NVMe/TCP 1.0 §3.6.2.7), with headers in b.
func (m *Mover) dataIn(t *task, b []byte, n int, collapse bool) []byte {
	flags := m.flags | pdu.FlagLast
	if m.dataDigest {
		flags |= pdu.FlagDataDigest
	}
	if collapse {
		flags |= pdu.FlagSuccess
	}
	at := pdu.DataStart(pdu.DataLen, m.headerDigest, m.align)
	d := pdu.Data{CID: t.CQE.CID, Len: uint32(n)}
	b = d.AppendTo(b, pdu.C2HData, flags, at)
	if m.headerDigest {
		b = pdu.Digest(0).Update(b).AppendTo(b)
	}
	for len(b) < at {
		b = append(b, 0)
	}
	m.tx.out.Add(b)
	var sum pdu.Digest
	for _, s := range t.In {
		if len(s) == 0 {
			continue
		}
		m.tx.out.Add(s)
		if m.dataDigest {
			sum = sum.Update(s)
		}
	}
	if m.dataDigest {
		b = sum.AppendTo(b)
		m.tx.out.Add(b[at:])
	}
	return b
}

// Flush implements nvmf.Mover.
func (m *Mover) Flush() {
	switch {
	case m.dead:
		m.abandon()
	case m.tx.blocked || m.tx.out.Empty():
	case !m.write():
		m.block()
	}
	if m.tx.outstanding() == 0 && m.closing {
		m.shutdownWrite()
	}
	if m.paused && m.isShort() {
		m.wakeReader()
	}
}

// wakeReader lets a paused reader go on.
func (m *Mover) wakeReader() {
	if m.paused {
		m.paused = false
		m.sock.Resume()
	}
}

// block has the writer send the rest when the socket has room again.
func (m *Mover) block() {
	if m.dead {
		m.abandon()
		return
	}
	m.tx.blocked = true
	m.sock.AwaitRoom()
}

// written is called by the goroutine that waits for room when onWritable has sent everything, or with an error when there
// will be no room any more.
func (m *Mover) written(err error) {
	if err != nil {
		m.queue.Lock()
		m.broken()
		m.queue.Unlock()
	}
}

// onWritable sends. False: wait until there is more room.
func (m *Mover) onWritable() bool {
	m.queue.Lock()
	defer m.queue.Unlock()
	if m.dead || m.write() || m.dead {
		m.tx.blocked = false
		return true
	}
	return false
}

// write sends what it can without blocking; true: all of it.
func (m *Mover) write() bool {
	x := &m.tx
	for {
		if !m.writeMade() {
			return false
		}
		if m.fill(); x.out.Empty() {
			return true
		}
	}
}

// writeMade is write for what has been cut into pieces.
func (m *Mover) writeMade() bool {
	x := &m.tx
	for !x.out.Empty() {
		n, e := iov.Writev(m.sock.FD, x.out.Next())
		switch e {
		case 0:
			x.out.Advance(n)
			m.release()
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			m.broken()
			return false
		}
	}
	return true
}

// release gives back what has left.
func (m *Mover) release() {
	x := &m.tx
	for x.first < x.made && x.items[x.first].end <= x.out.Written {
		it := x.items[x.first]
		x.items[x.first] = item{}
		x.first++
		if it.t != nil {
			m.queue.Sent(&it.t.Task)
		} else {
			m.giveBack(it.c)
		}
	}
	if x.first == len(x.items) {
		x.items, x.first, x.made = x.items[:0], 0, 0
	} else if x.first > maxQueued {
		n := copy(x.items, x.items[x.first:])
		clear(x.items[n:])
		x.items, x.first, x.made = x.items[:n], 0, x.made-x.first
		x.out.Compact()
	}
}

func (m *Mover) giveBack(c *control) {
	m.tx.weight -= len(c.buf)
	if len(m.tx.free) < maxFreeControls && cap(c.buf) <= 1024 {
		c.buf = c.buf[:0]
		m.tx.free = append(m.tx.free, c)
	}
}

// abandon gives back everything that will never leave.
func (m *Mover) abandon() {
	x := &m.tx
	for x.first < len(x.items) {
		it := x.items[x.first]
		x.items[x.first] = item{}
		x.first++
		x.made = max(x.made, x.first)
		if it.t != nil {
			m.queue.AnswerLost(&it.t.Task)
		} else {
			m.giveBack(it.c)
		}
	}
	x.items, x.first, x.made = x.items[:0], 0, 0
	x.out.Abandon()
}
