package iwarp

import (
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"oneshot/ddp"
	"oneshot/internal/invariant"
	"oneshot/internal/iov"
	"oneshot/internal/ring"
	"oneshot/stag"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

const (
	// headLen is the memory for headers, trailers and small payloads of one writev.
	headLen = 16 << 10
	// headReserve is the most of headLen that one FPDU takes.
	headReserve = 2*ddp.MaxTerminate + copyMax + ddp.MaxTrailer
	// iovReserve is how many pieces must be free to begin an FPDU.
	iovReserve = maxSGE + 3
	// copyMax is the longest payload that is copied behind its header: that is cheaper than a
	// piece of its own.
	copyMax = 256
	// turn is the number of octets after which the sender calls writev, so that others can post meanwhile.
	turn = 256 << 10
	// maxTurns is how many turns a goroutine that posts makes before it leaves the rest to the writer.
	maxTurns = 8
	// maxAnswers is how many Read Responses in a row are sent before an element of the send queue has its turn.
	maxAnswers = 4
)

// txBuffer holds the memory that a connection needs only while it sends.
type txBuffer struct {
	head [headLen]byte
	iov  [iov.Max]unix.Iovec
}

var txBuffers = sync.Pool{New: func() any { return new(txBuffer) }}

// tx holds the FPDUs that have to leave.
type tx struct {
	buf   *txBuffer
	n     int       // octets of buf.head used
	out   iov.Batch // its list is buf.iov
	joint bool      // the last piece of out lies in buf.head

	copies *copies // octets that out refers to, if it refers to any of an Exposed
	copied int     // of these in use
}

// lend takes an empty buffer, unless there is one.
func (x *tx) lend() {
	if x.buf == nil {
		x.buf = txBuffers.Get().(*txBuffer)
	}
	x.out.Use(x.buf.iov[:])
	x.n, x.joint, x.copied = 0, false, 0
}

// giveBack gives the buffer back.
func (x *tx) giveBack() {
	if x.buf != nil {
		txBuffers.Put(x.buf)
		x.buf = nil
	}
	if x.copies != nil {
		copiesPool.Put(x.copies)
		x.copies, x.copied = nil, 0
	}
	x.out.Use(nil)
}

// full reports that there is no room for another FPDU.
func (x *tx) full(start uint64) bool {
	return headLen-x.n < headReserve || x.room() < iovReserve || x.out.Queued-start >= turn
}

// room returns how many pieces can be added.
func (x *tx) room() int { return iov.Max - x.out.Pieces() }

// head returns the memory for headers, to be appended to.
func (x *tx) head() []byte { return x.buf.head[:x.n] }

// commit queues what was appended to head.
func (x *tx) commit(b []byte) {
	n := len(b) - x.n
	if x.joint {
		x.out.Extend(n)
	} else {
		x.out.Add(b[x.n:])
		x.joint = true
	}
	x.n = len(b)
}

// add queues memory.
func (x *tx) add(b []byte) {
	x.out.Add(b)
	x.joint = false
}

// answer is a Read Response that has to be sent.
type answer struct {
	ref stag.Ref
	req ddp.RDMARead
	off int
	end uint64
}

// answers holds the Read Responses in the order of their Requests: [Head, cur) is framed and has to
// leave, [cur, Tail) is not framed yet. There are never more than the IRD.
type answers struct {
	ring.Ring[answer]
	cur    uint32
	row    int // Responses since the last element of the send queue
	pieces [][]byte
}

// send sends FPDUs until nothing is left or the socket is full, unless another goroutine does or
// will. The lock is held, but not over system calls.
func (q *queuePair) send() {
	if q.sending || q.batching || q.blocked || !q.is().lives {
		return
	}
	if q.write() == wroteAll {
		q.emptied()
	} else {
		q.block()
	}
}

type wrote uint8

const (
	wroteAll    wrote = iota
	wroteTurns        // maxTurns is reached
	wroteSocket       // the socket is full
)

func (q *queuePair) write() wrote {
	invariant.Check(!q.sending, "iwarp: two send at a time")
	q.sending = true
	defer func() {
		q.sending = false
		if q.tx.out.Empty() {
			q.tx.giveBack()
		}
		q.settled.Broadcast()
	}()
	x := &q.tx
	for turns := 0; ; turns++ {
		if x.out.Empty() {
			q.fill()
			q.account()
		}
		switch {
		case !q.is().lives || x.out.Empty():
			return wroteAll
		case turns == maxTurns:
			return wroteTurns
		}
		n, e := q.writev()
		switch e {
		case 0:
			x.out.Advance(n)
			q.account()
		case unix.EINTR:
		case unix.EAGAIN:
			return wroteSocket
		default:
			q.broken(e)
			return wroteAll
		}
	}
}

// writev makes the system call, without the lock.
func (q *queuePair) writev() (n int, e unix.Errno) {
	v := q.tx.out.Next()
	q.inWrite = true
	q.mu.Unlock()
	beforeWrite()
	n, e = iov.Writev(q.sock.FD, v)
	q.mu.Lock()
	q.inWrite = false
	q.settled.Broadcast()
	q.n.Doorbells.Add(1)
	return n, e
}

// block has the writer send the rest when the socket has room.
func (q *queuePair) block() {
	if !q.is().lives {
		return
	}
	q.blocked = true
	q.sock.AwaitRoom()
}

// written is called by the goroutine that waits for room: when onWritable has sent everything, or
// with an error when the socket has failed.
func (q *queuePair) written(err error) {
	if err != nil {
		q.mu.Lock()
		q.blocked = false
		q.broken(err)
		q.unlock()
	}
	q.fire()
}

// onWritable sends. False: wait until there is more room.
func (q *queuePair) onWritable() bool {
	q.mu.Lock()
	for q.sending {
		q.settled.Wait()
	}
	res := wroteAll
	for q.is().lives {
		if res = q.write(); res != wroteTurns {
			break
		}
		q.unlock()
		q.notify()
		runtime.Gosched()
		q.mu.Lock()
	}
	done := !q.is().lives || res == wroteAll
	if done {
		q.blocked = false
		q.emptied()
	}
	q.unlock()
	q.notify()
	return done
}

// emptied is called when nothing more is left to send.
func (q *queuePair) emptied() {
	if q.state != leaving && q.state != terminating || !q.tx.out.Empty() || len(q.term) > 0 {
		return
	}
	if q.state == terminating || q.sq.Head == q.sq.Tail && q.answers.Len() == 0 {
		q.closed()
		_ = unix.Shutdown(q.sock.FD, unix.SHUT_WR)
	}
}

// account notes what has left.
func (q *queuePair) account() {
	s, a, sent := &q.sq, &q.answers, q.tx.out.Written
	var n departed
	for s.sent != s.cur {
		w := s.At(s.sent)
		if w.end > sent {
			break
		}
		s.sent++
		if w.op != rdma.OpRead && w.op != rdma.OpLocalInvalidate {
			// Do that now instead of in retire: the peer may use the room in its window at once.
			q.unhold(w)
			w.done = true
		}
		if w.msg == ddp.SendAdvertise {
			q.advertised(w)
		}
		n.count(w)
	}
	n.addTo(&q.n) // before anybody hears of it
	q.retire()
	n = departed{}
	for a.Head != a.cur {
		x := a.At(a.Head)
		if x.end > sent {
			break
		}
		a.Head++
		n.messages++
		n.bytes += uint64(x.req.Size)
		tag := x.ref.STag()
		if x.ref.Release() {
			q.lastReference(tag)
		}
	}
	n.addTo(&q.n)
	if q.termEnd > 0 && q.termEnd <= sent {
		q.termEnd = 0
		q.n.Terminates.Add(1)
	}
}

// departed is what has left. It is added to the counters at once, because each addition is a locked operation.
type departed struct{ messages, bytes, reads, closes uint64 }

// count counts an element of the send queue that has left. Internal elements do not count.
func (n *departed) count(w *wqe) {
	if w.internal {
		return
	}
	switch w.op {
	case rdma.OpBind, rdma.OpLocalInvalidate:
		return // nothing leaves for it
	case rdma.OpRead:
		n.reads++
	default:
		n.bytes += uint64(w.n)
		if w.msg == ddp.SendClose {
			n.closes++
		}
	}
	n.messages++
}

func (n *departed) addTo(c *soft.Counters) {
	if n.messages == 0 {
		return
	}
	c.MessagesOut.Add(n.messages)
	c.BytesOut.Add(n.bytes)
	if n.reads > 0 {
		c.Reads.Add(n.reads)
	}
	if n.closes > 0 {
		c.Closes.Add(n.closes)
	}
}

// fill queues FPDUs for one writev.
func (q *queuePair) fill() {
	x := &q.tx
	if !q.opened || !q.is().speaks {
		return
	}
	if len(q.term) > 0 {
		x.lend()
		x.commit(append(x.head(), q.term...))
		q.term, q.termEnd = nil, x.out.Queued
		return
	}
	if !q.is().sends || !q.ready() {
		return
	}
	x.lend()
	for start := x.out.Queued; !x.full(start) && q.fillOne(); {
	}
}

// ready reports whether there is anything to send.
func (q *queuePair) ready() bool {
	return q.answers.cur != q.answers.Tail || q.sq.cur != q.sq.Tail && !q.sq.stalled
}

// fillOne queues one FPDU, or does a work request that needs none. False: nothing can be done now.
// Messages are not interleaved.
func (q *queuePair) fillOne() bool {
	a, s := &q.answers, &q.sq
	answer := a.cur != a.Tail
	work := s.cur != s.Tail && !s.stalled && q.mayStart(s.At(s.cur))
	switch {
	case answer && a.At(a.cur).off > 0:
	case work && s.At(s.cur).off > 0:
		answer = false
	case answer && work && a.row >= maxAnswers:
		answer = false
	}
	switch {
	case answer:
		a.row++
		return q.fillAnswer(a.At(a.cur))
	case work:
		a.row = 0
		return q.fillWork(s.At(s.cur))
	}
	return false
}

// mayStart reports whether the element at the front of the send queue may start: a Read needs a
// free place at the peer, and a fence waits for the Reads before it.
func (q *queuePair) mayStart(w *wqe) bool {
	reads := len(q.sq.reads)
	return w.off > 0 || (w.op != rdma.OpRead || reads < q.ord) && (w.flags&rdma.Fence == 0 || reads == 0)
}

// fillAnswer queues a segment of a Read Response.
func (q *queuePair) fillAnswer(x *answer) bool {
	size := int(x.req.Size)
	invariant.Check(uint64(size) == x.ref.Len(), "iwarp: a Read Response is of other memory than was checked")
	n := min(size-x.off, q.mulpdu-ddp.TaggedLen)
	var cur iov.Cursor
	if to, off := exposed(&x.ref); to != nil {
		b := q.fetch(x, to, off, n)
		if b == nil {
			return false
		}
		q.answers.pieces = append(q.answers.pieces[:0], b)
		cur = iov.At(q.answers.pieces, 0)
	} else if n > 0 {
		p := x.ref.Append(q.answers.pieces[:0], uint64(x.off), uint64(n))
		q.answers.pieces = p
		cur = iov.At(p, 0)
		n = cur.Fit(n, q.tx.room()-2)
	}
	last := x.off+n == size
	q.frameTagged(ddp.Tagged{
		Control: q.format.Control(ddp.ReadResponse, last),
		STag:    x.req.SinkSTag, TO: x.req.SinkTO + uint64(x.off), Payload: n,
	}, &cur)
	clear(q.answers.pieces)
	x.off += n
	if last {
		q.answers.cur++
		x.end = q.tx.out.Queued
	}
	return true
}

// fillWork queues a segment of the element at the front of the send queue, or does a work request
// that needs none. False: it has failed.
func (q *queuePair) fillWork(w *wqe) bool {
	if w.off == 0 {
		switch {
		case w.op == rdma.OpBind:
			q.framed(w)
			return true
		case w.op == rdma.OpLocalInvalidate:
			return q.localInvalidate(w)
		case !soft.PinAll(w.regions):
			q.localError(w, rdma.StatusLocalProtection, soft.ErrGone)
			return false
		}
		w.pinned = true
		w.cur = iov.At(w.segs, 0)
	}
	switch w.op {
	case rdma.OpWrite:
		q.fillWrite(w)
	case rdma.OpRead:
		q.fillRead(w)
	default:
		q.fillSend(w)
	}
	return true
}

// framed notes that all of the element at the front is framed.
func (q *queuePair) framed(w *wqe) {
	w.end = q.tx.out.Queued
	q.sq.cur++
}

func (q *queuePair) fillWrite(w *wqe) {
	n := w.cur.Fit(min(w.n-w.off, q.mulpdu-ddp.TaggedLen), q.tx.room()-2)
	last := w.off+n == w.n
	q.frameTagged(ddp.Tagged{
		Control: q.format.Control(ddp.Write, last),
		STag:    uint32(w.stag), TO: w.to + uint64(w.off), Payload: n,
	}, &w.cur)
	if w.off += n; last {
		q.framed(w)
	}
}

func (q *queuePair) fillSend(w *wqe) {
	s := &q.sq
	if w.off == 0 {
		s.msn++
		if invariant.Enabled && w.msg == ddp.SendAdvertise {
			invariant.Check(q.dev.memory.Table.State(w.stag) != stag.Reserved, "iwarp: an STag is advertised before it is bound")
		}
	}
	c := q.format.Control(w.msg, false)
	n := w.cur.Fit(min(w.n-w.off, q.mulpdu-q.format.HeaderLen(c)), q.tx.room()-2)
	last := w.off+n == w.n
	if last {
		c |= ddp.ControlLast
	}
	b := q.format.AppendUntagged(q.tx.head(), ddp.Untagged{
		Control: c, STag: uint32(w.stag), QN: ddp.QNSend, MSN: s.msn, MO: uint32(w.off), Payload: n,
	})
	q.frame(b, &w.cur, n)
	if w.off += n; last {
		q.framed(w)
	}
}

// fillRead queues a Read Request. The Response is checked against the work request. So the sink
// may be scattered, although the Request names only its first region.
func (q *queuePair) fillRead(w *wqe) {
	s := &q.sq
	s.readMSN++
	b := ddp.AppendReadRequest(q.tx.head(), s.readMSN, q.readRequest(w))
	q.frame(b, nil, 0)
	s.reads = append(s.reads, s.cur)
	q.framed(w)
}

func (q *queuePair) readRequest(w *wqe) ddp.RDMARead {
	r := ddp.RDMARead{Size: uint32(w.n), SrcSTag: uint32(w.stag), SrcTO: w.to}
	if w.n > 0 {
		r.SinkSTag = uint32(w.regions[0].STag())
		r.SinkTO, _ = w.regions[0].Offset(w.segs[0])
	}
	return r
}

func (q *queuePair) frameTagged(t ddp.Tagged, cur *iov.Cursor) {
	q.frame(ddp.AppendTagged(q.tx.head(), t), cur, t.Payload)
}

// frame queues an FPDU with n octets of payload. b is tx.head with the headers of the FPDU
// appended.
func (q *queuePair) frame(b []byte, cur *iov.Cursor, n int) {
	x := &q.tx
	start := x.n
	ulpdu := len(b) - start - ddp.LengthLen + n
	if n <= copyMax {
		for n > 0 {
			p := cur.Next(n)
			b = append(b, p...)
			n -= len(p)
		}
		if q.crc {
			b = ddp.AppendFPDUTrailer(b, start)
		} else {
			b = ddp.AppendTrailerNoCRC(b, ulpdu)
		}
		x.commit(b)
		return
	}
	crc := uint32(0)
	if q.crc {
		crc = ddp.CRC(0, b[start:])
	}
	x.commit(b)
	for n > 0 {
		p := cur.Next(n)
		n -= len(p)
		if q.crc {
			crc = ddp.CRC(crc, p)
		}
		x.add(p)
	}
	if q.crc {
		x.commit(ddp.AppendTrailer(x.head(), ulpdu, crc))
	} else {
		x.commit(ddp.AppendTrailerNoCRC(x.head(), ulpdu))
	}
}

// localInvalidate takes access away. The elements after it wait until no reference is left.
func (q *queuePair) localInvalidate(w *wqe) bool {
	quiet, err := q.invalidate(w.stag, q.onQuiet)
	if err != nil {
		q.localError(w, rdma.StatusLocalProtection, err)
		return false
	}
	q.framed(w)
	w.done, q.sq.stalled = quiet, !quiet
	return quiet
}

// goOn is called when the last reference to memory that a LocalInvalidate has invalidated is released.
func (q *queuePair) goOn() {
	q.mu.Lock()
	q.sq.stalled = false
	if q.state != ended {
		q.sq.At(q.sq.cur - 1).done = true
		q.retire()
		q.send()
	}
	q.unlock()
	q.notify()
}

// segmentSize returns the largest ULPDU for a socket.
func segmentSize(fd, most int) int {
	emss, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	if err != nil {
		emss = 536 // RFC 9293 §3.7.1
	}
	n := ddp.MULPDU(emss, false)
	if most > 0 {
		n = min(n, max(most, 128))
	}
	return n
}
