package tcp

import (
	"golang.org/x/sys/unix"

	"oneshot/internal/iov"
	"oneshot/internal/serial"
	"oneshot/iscsi"
	"oneshot/iscsi/pdu"
)

const (
	// maxQueued and maxHeavy bound what may wait for the socket before no more input is taken:
	// answers and control PDUs, and the bytes of the latter. With them, what an initiator can
	// make the connection hold is bounded. One who has proved nothing may have maxLight.
	maxQueued = 512
	maxHeavy  = 256 << 10
	maxLight  = 16 << 10
	// maxHeaders is how many Data-In PDUs of one answer are made at a time. How many an answer
	// has, the initiator decides: 4 MiB in segments of 512 bytes are 8192.
	maxHeaders = 64
)

// tx is the sending side: the answers and PDUs that are to leave, in order, and the pieces of
// memory that those at the front consist of. An answer is cut into PDUs when its turn comes, so
// that only what is about to leave has headers.
//
//	items   first ──── in out as a whole ──── made ──── waiting, or partly in out
type tx struct {
	out     iov.Batch
	items   []item // items[first:] are outstanding
	first   int
	made    int
	weight  int  // bytes of the control PDUs among them
	blocked bool // the socket is full; the writer waits for room
	free    []*control
}

// item is what to give back once out.Written has reached end, which is known when all of it is in
// out.
type item struct {
	end uint64
	t   *task
	c   *control
}

// pdus is how many PDUs are between those that are counted and end.
func (it *item) pdus() uint64 {
	if it.t != nil {
		return it.t.ans.pdus
	}
	return 1
}

// control is the memory of a PDU that belongs to no task.
type control struct{ buf []byte }

// maxFreeControls is how many of them are kept for use again.
const maxFreeControls = 16

func (x *tx) control() *control {
	if n := len(x.free); n > 0 {
		c := x.free[n-1]
		x.free = x.free[:n-1]
		return c
	}
	return &control{buf: make([]byte, 0, 128)}
}

func (x *tx) outstanding() int { return len(x.items) - x.first }

// isFull reports whether no more input is to be taken before some of the output has left.
func (m *Mover) isFull() bool {
	return m.tx.outstanding() >= maxQueued || m.tx.weight >= m.heavy()
}

// isShort reports whether the output is short enough for input to be taken again.
func (m *Mover) isShort() bool {
	return m.tx.outstanding() < maxQueued/2 && m.tx.weight < m.heavy()/2
}

// heavy is how many bytes of control PDUs may wait.
func (m *Mover) heavy() int {
	if m.isSmall() {
		return maxLight
	}
	return maxHeavy
}

// answer is how far a task's answer has been cut into PDUs, and the memory for their headers.
type answer struct {
	statSN serial.SN  // of the PDU that bears the status
	src    iov.Cursor // the data-in that is still to be cut
	left   int        // bytes of it
	off    int        // bytes before
	dataSN serial.SN  // of the next Data-In PDU
	pdus   uint64     // that have been cut, and are not counted yet: they are when they have left

	buf   []byte
	small [2 * (pdu.BHSLen + 2*digestLen + 4)]byte
}

var zeroes [4]byte

// SendControl implements iscsi.Datamover.
func (m *Mover) SendControl(bhs, data []byte, _ iscsi.Ending) {
	c := m.tx.control()
	c.buf = append(c.buf, bhs...)
	if m.headerDigest {
		c.buf = pdu.Digest(0).Update(bhs).AppendTo(c.buf)
	}
	c.buf = m.appendSegment(c.buf, data)
	m.queue(c)
}

// appendSegment appends a data segment with its padding and digest.
func (m *Mover) appendSegment(b, data []byte) []byte {
	if len(data) == 0 {
		return b
	}
	start := len(b)
	b = append(b, data...)
	b = append(b, zeroes[:pdu.PaddedLen(len(data))-len(data)]...)
	if m.dataDigest {
		b = pdu.Digest(0).Update(b[start:]).AppendTo(b)
	}
	return b
}

// queueHeader queues a control PDU that is a header only, without digest yet.
func (m *Mover) queueHeader(c *control) {
	if m.headerDigest {
		c.buf = pdu.Digest(0).Update(c.buf).AppendTo(c.buf)
	}
	m.queue(c)
}

func (m *Mover) queue(c *control) {
	m.tx.weight += len(c.buf)
	m.tx.items = append(m.tx.items, item{c: c})
	m.fill()
}

// Answer implements iscsi.Datamover.
func (m *Mover) Answer(it *iscsi.Task) {
	t := of(it)
	m.detach(t)
	n := 0
	for _, s := range it.In {
		n += len(s)
	}
	// PDUs with status leave in the order of their numbers, and so do items.
	t.ans.statSN = m.conn.Status().StatSN
	t.ans.src, t.ans.left, t.ans.off, t.ans.dataSN, t.ans.pdus = iov.At(it.In, 0), n, 0, 0, 0
	m.tx.items = append(m.tx.items, item{t: t})
	m.fill()
}

// fill cuts what waits into PDUs, as far as one writev takes it.
func (m *Mover) fill() {
	x := &m.tx
	for x.made < len(x.items) && len(x.out.Pending()) < iov.Max {
		it := &x.items[x.made]
		if it.c != nil {
			x.out.Add(it.c.buf)
		} else if !m.cut(it.t) {
			return
		}
		it.end = x.out.Queued
		x.made++
	}
}

// cut queues the next PDUs of t's answer. False: the rest has to wait until these have left,
// for its headers take their place.
func (m *Mover) cut(t *task) bool {
	a := &t.ans
	if a.off > 0 && !m.tx.out.Empty() {
		return false
	}
	m.count.pdusOut += a.pdus
	a.pdus = 0
	pdus := maxHeaders
	if a.off == 0 {
		pdus = min(m.dataIns(a.left), maxHeaders)
	}
	m.makeRoom(t, pdus, len(t.Sense))
	collapse := a.left > 0 && t.Collapsible()
	for ; pdus > 0 && a.left > 0; pdus-- {
		m.dataIn(t, collapse)
	}
	switch {
	case a.left > 0:
		return false
	case !collapse:
		m.response(t)
	}
	return true
}

// dataIns returns how many Data-In PDUs carry n bytes: sequences end at multiples of
// MaxBurstLength, and PDUs do not cross them.
func (m *Mover) dataIns(n int) int {
	seg, burst := int(m.p.MaxRecvDataSegmentLength), int(m.p.MaxBurstLength)
	if n <= seg && n <= burst {
		return min(n, 1)
	}
	perBurst := (burst + seg - 1) / seg
	full, rest := n/burst, n%burst
	return full*perBurst + (rest+seg-1)/seg
}

// makeRoom sees that the headers of the next PDUs of the answer fit into the task's memory, so
// that it does not move while pieces of it are queued.
func (m *Mover) makeRoom(t *task, pdus, sense int) {
	const perPDU = pdu.BHSLen + digestLen + 3 + digestLen
	need := pdus*perPDU + perPDU + 2 + sense
	if t.ans.buf == nil {
		t.ans.buf = t.ans.small[:0]
	}
	if cap(t.ans.buf) < need {
		t.ans.buf = make([]byte, 0, need)
	}
	t.ans.buf = t.ans.buf[:0]
}

// queueTaskHeader adds the digest to the header at buf[start:], and queues both.
func (m *Mover) queueTaskHeader(t *task, start int) {
	if m.headerDigest {
		t.ans.buf = pdu.Digest(0).Update(t.ans.buf[start:]).AppendTo(t.ans.buf)
	}
	t.ans.pdus++
	m.tx.out.Add(t.ans.buf[start:])
}

// dataIn queues the next Data-In PDU of t's answer (RFC 7143 §11.7), the last with the status if
// collapse is set.
func (m *Mover) dataIn(t *task, collapse bool) {
	a := &t.ans
	seg, burst := int(m.p.MaxRecvDataSegmentLength), int(m.p.MaxBurstLength)
	k := min(a.left, seg, burst-a.off%burst)
	f := pdu.DataInFields{
		ITT: t.ITT, TTT: pdu.ReservedTag, DataSN: a.dataSN, BufferOffset: uint32(a.off), DataSegmentLength: k,
		Sequence: m.conn.Sequence(),
	}
	a.off += k
	a.left -= k
	a.dataSN++
	f.Final = a.left == 0 || a.off%burst == 0
	if a.left == 0 && collapse {
		res := t.Residual()
		f.HasStatus, f.Status = true, uint8(t.Status)
		f.Overflow, f.Underflow, f.ResidualCount = res.Overflow, res.Underflow, res.Count
		f.StatSN = a.statSN
	}
	start := len(a.buf)
	a.buf = f.AppendTo(a.buf)
	m.queueTaskHeader(t, start)
	m.segmentOut(t, &a.src, k)
}

// segmentOut queues the next n bytes of src as a data segment.
func (m *Mover) segmentOut(t *task, src *iov.Cursor, n int) {
	pad := pdu.PaddedLen(n) - n
	var d pdu.Digest
	for n > 0 {
		b := src.Next(n)
		n -= len(b)
		m.tx.out.Add(b)
		if m.dataDigest {
			d = d.Update(b)
		}
	}
	start := len(t.ans.buf)
	t.ans.buf = append(t.ans.buf, zeroes[:pad]...)
	if m.dataDigest {
		t.ans.buf = d.Update(zeroes[:pad]).AppendTo(t.ans.buf)
	}
	if len(t.ans.buf) > start {
		m.tx.out.Add(t.ans.buf[start:])
	}
}

// response queues a SCSI Response PDU (RFC 7143 §11.4), sense data included.
func (m *Mover) response(t *task) {
	res := t.Residual()
	f := pdu.SCSIResponseFields{
		Response: pdu.ResponseCommandCompleted, Status: uint8(t.Status), ITT: t.ITT,
		Overflow: res.Overflow, Underflow: res.Underflow, ResidualCount: res.Count,
		Sequence: m.conn.Sequence(), ExpDataSN: t.ans.dataSN + t.out.r2tSN,
	}
	f.StatSN = t.ans.statSN
	if n := len(t.Sense); n > 0 {
		f.DataSegmentLength = 2 + n
	}
	start := len(t.ans.buf)
	t.ans.buf = f.AppendTo(t.ans.buf)
	m.queueTaskHeader(t, start)
	if n := len(t.Sense); n > 0 {
		start = len(t.ans.buf)
		// RFC 7143 §11.4.7: the sense data follows its length.
		t.ans.buf = append(t.ans.buf, byte(n>>8), byte(n))
		t.ans.buf = append(t.ans.buf, t.Sense...)
		t.ans.buf = append(t.ans.buf, zeroes[:pdu.PaddedLen(2+n)-2-n]...)
		if m.dataDigest {
			t.ans.buf = pdu.Digest(0).Update(t.ans.buf[start:]).AppendTo(t.ans.buf)
		}
		m.tx.out.Add(t.ans.buf[start:])
	}
}

// Flush implements iscsi.Datamover.
func (m *Mover) Flush() {
	switch {
	case m.dead:
		m.abandon()
	case m.withhold:
		return
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

// written is called by the goroutine that waits for room when onWritable has sent everything, or
// with an error when there will be no room any more.
func (m *Mover) written(err error) {
	if err != nil {
		m.conn.Lock()
		m.broken()
		m.conn.Unlock()
	}
}

// onWritable sends. False: wait until there is more room.
func (m *Mover) onWritable() bool {
	m.conn.Lock()
	defer m.conn.Unlock()
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

// writeMade is write for what has been cut into PDUs.
func (m *Mover) writeMade() bool {
	x := &m.tx
	for !x.out.Empty() {
		n, e := iov.Writev(m.sock.FD, x.out.Next())
		m.count.writes++
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
		m.count.pdusOut += it.pdus()
		if it.t != nil {
			m.conn.Sent(&it.t.Task)
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
			m.conn.AnswerLost(&it.t.Task)
		} else {
			m.giveBack(it.c)
		}
	}
	x.items, x.first, x.made = x.items[:0], 0, 0
	x.out.Abandon()
}
