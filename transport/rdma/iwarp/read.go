package iwarp

import (
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"oneshot/ddp"
	"oneshot/internal/iov"
	"oneshot/internal/stream"
	"oneshot/stag"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

const (
	// inLen is the input buffer: the longest FPDU that is wanted in one piece, and more.
	inLen = 80 << 10
	// readMin and readMax bound how many octets are read into the buffer at once: few while
	// FPDUs are large, because these octets are copied, many while FPDUs are small.
	readMin = 8 << 10
	readMax = 64 << 10
	// behind is how many octets may be read after a payload that goes straight to its place:
	// its trailer and the next header, or a few small messages.
	behind = 2 << 10
	// directMin is how many octets of an FPDU must be missing for it to be placed in parts.
	directMin = 4 << 10
	// maxSegs is how many pieces of memory one readv fills.
	maxSegs = 15
	// restMax is the largest part of an unfinished FPDU that is kept outside of an input buffer while
	// nothing comes, and restKept how much memory for it an idle connection keeps.
	restMax  = 16 << 10
	restKept = 512
	// parkMax is the longest part of a message that is kept elsewhere, so that others can use its receive meanwhile.
	parkMax = 64 << 10
)

// inBuffer is what a connection needs only while something comes.
type inBuffer struct {
	b [inLen]byte
	// done are completions of receives that nobody has been told of yet: the first n.
	done [32]rdma.Completion
	n    int
}

var inBuffers = sync.Pool{New: func() any { return new(inBuffer) }}

// rx is the receiving side: a buffer with unread octets in[r:w], the FPDU that is being
// placed in parts, if any, and the messages under way.
type rx struct {
	in   *inBuffer // nil while the connection is idle
	r, w int
	rest []byte // what in held when it was given back in the middle of an FPDU
	room int    // octets to read into the buffer at once

	// What the owner and the counters have not been told of: see tell.
	messages, bytes uint64
	answered        int // the first of sq.reads, which have their Responses

	// The FPDU under way.
	partial bool
	seg     ddp.Segment
	cur     iov.Cursor // where its payload goes
	left    int        // octets of payload to come
	crc     uint32
	fail    error // what is wrong with the FPDU; reported if its CRC is good
	ref     stag.Ref
	to      rdma.Exposed // where its payload goes instead of cur; the FPDU is whole
	toOff   int64
	header  [ddp.PrefixMax]byte
	pieces  [][]byte // memory for cur

	// The untagged message under way.
	sending bool
	taken   bool // recv is that of the message, and pinned
	recv    soft.Receive
	msg     ddp.Message
	control ddp.Control
	stag    stag.STag
	got     int
	parked  []byte // the part that has come, while others use its receive; nil: the message has its receive
	pending bool   // it is complete, and waits for memory to be released
	asked   bool   // the release was asked for

	// The tagged message under way.
	tagged   bool
	taggedIs ddp.Message
	tagSTag  stag.STag
	tagTO    uint64
	readGot  int // octets of the Read Response

	msn     uint32 // of the next Send
	readMSN uint32 // of the next Read Request

	open    bool // an FPDU has come
	greeted bool // the ready-to-receive message has come, or none is due
	drain   bool // received octets are thrown away
	short   bool // the last read has found less than there was room for

	freed atomic.Bool // what pending waits for has happened

	iov [maxSegs + 1]unix.Iovec
}

func (x *rx) init() { x.msn, x.readMSN, x.room = 1, 1, readMin }

// errStall says that the reader has to wait for a receive, or for memory to be released. It is no
// error of anybody.
var errStall = errors.New("iwarp: waits")

// run is the goroutine that owns the socket.
func (q *queuePair) run() {
	err, over := q.sock.Read(q.onReadable)
	if over != nil { // LingerTime is over, or Abort was called
		err = over
	}
	q.finish(err)
}

// onReadable handles one batch of input. Its error is the reason why the connection ends.
func (q *queuePair) onReadable() (stream.Round, error) {
	switch drained, err := q.batch(); {
	case errors.Is(err, errStall):
		return stream.Pause, nil
	case drained:
		return stream.Drained, err
	case q.rx.short:
		return stream.Some, err
	default:
		return stream.More, err
	}
}

// batch reads once, handles what has come, calls the events of completion queues, and sends what
// these have posted with one write.
func (q *queuePair) batch() (drained bool, err error) {
	x := &q.rx
	stalled := x.pending || x.w > x.r && !x.partial
	if !q.begin(&stalled) {
		return true, q.cause()
	}
	if err = q.unpark(); err == nil && stalled { // the octets in the buffer may be handled now
		x.takeIn()
		err = q.parse()
	}
	if err == nil {
		if drained, err = q.receive(); err == nil && !drained {
			err = q.parse()
		}
	}
	if err != nil && !errors.Is(err, errStall) {
		err = q.offence(err)
	}
	q.fire()
	q.mu.Lock()
	q.batching = false
	q.send()
	q.unlock()
	if drained {
		q.fire()
		q.park()
		x.dropIn()
	}
	return drained, err
}

// park is called when nothing more comes. It keeps no more memory than the octets that have come, so
// that others can use the receive of the unfinished message.
func (q *queuePair) park() {
	x := &q.rx
	if !x.sending || !x.taken || !q.shared || !q.recv.Scarce() {
		return
	}
	n := x.placing()
	if n > parkMax {
		return
	}
	x.parked = make([]byte, n)
	for b, cur := x.parked, iov.At(x.recv.Segs, 0); len(b) > 0; {
		b = b[copy(b, cur.Next(len(b))):]
	}
	x.taken = false
	soft.UnpinAll(x.recv.Regions)
	q.recv.putBack(&x.recv)
}

// placing returns how much of the untagged message under way is in its place.
func (x *rx) placing() int {
	n := x.got
	if x.partial && x.fail == nil && x.seg.Message.IsSend() {
		n += x.seg.PayloadLen() - x.left
	}
	return n
}

// unpark gives a parked message a receive again. errStall: there is none.
func (q *queuePair) unpark() error {
	x := &q.rx
	if x.parked == nil {
		return nil
	}
	if !q.recv.Take(&x.recv, &q.waiter) {
		return errStall
	}
	b := x.parked
	x.parked = nil
	if err := q.pinReceive(); err != nil {
		return err
	}
	if len(b) > x.recv.N {
		q.closeReceive(rdma.StatusLocalLength, errTooLong)
		return errTooLong
	}
	for cur := iov.At(x.recv.Segs, 0); len(b) > 0; {
		b = b[copy(cur.Next(len(b)), b):]
	}
	if x.partial && x.fail == nil && x.seg.Message.IsSend() {
		n := x.placing()
		if x.left > x.recv.N-n {
			q.closeReceive(rdma.StatusLocalLength, errTooLong)
			return errTooLong
		}
		x.cur = iov.At(x.recv.Segs, n)
	}
	return nil
}

// begin begins a batch. False: the connection is dead.
func (q *queuePair) begin(stalled *bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.is().lives {
		return false
	}
	x := &q.rx
	if q.is().drains && !x.drain {
		q.startDrain()
		*stalled = false
	}
	q.batching = true
	return true
}

// cause returns why the connection is dead.
func (q *queuePair) cause() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return q.err
	}
	return errAborted
}

// dropIn gives the buffer back. If it holds only a few octets, they are kept elsewhere, so that a peer
// that sends a few octets does not keep a buffer.
func (x *rx) dropIn() {
	n := x.w - x.r
	if x.in == nil || n > restMax {
		return
	}
	x.rest = append(x.rest[:0], x.in.b[x.r:x.w]...)
	inBuffers.Put(x.in)
	x.in, x.r, x.w = nil, 0, n
}

// takeIn makes sure that there is a buffer, with the octets that dropIn has kept.
func (x *rx) takeIn() {
	if x.in != nil {
		return
	}
	x.in = inBuffers.Get().(*inBuffer)
	x.r, x.w = 0, copy(x.in.b[:], x.rest)
	if x.rest = x.rest[:0]; cap(x.rest) > restKept {
		x.rest = nil
	}
}

// receive reads once. drained is true if the socket had nothing. A short read does not mean that the socket
// is empty: the end of the stream may follow, and the edge-triggered poller may have reported it already.
func (q *queuePair) receive() (drained bool, err error) {
	x := &q.rx
	x.takeIn()
	if x.r == x.w {
		x.r, x.w = 0, 0
	} else if x.r > 0 && inLen-x.w < x.room {
		x.w = copy(x.in.b[:], x.in.b[x.r:x.w])
		x.r = 0
	}
	n, err := q.readv()
	return n == 0, err
}

// readv fills first the place of the payload under way, then the buffer.
func (q *queuePair) readv() (n int, err error) {
	x := &q.rx
	k, direct, room := 0, 0, x.room
	if x.partial && x.left > 0 && x.r == x.w && x.fail == nil {
		k, direct = x.cur.Fill(x.iov[:maxSegs], x.left)
		if room = behind; direct < x.left {
			room = 0 // the next octets belong to memory that is not in the vector
		}
	}
	room = min(room, inLen-x.w)
	if room > 0 {
		x.iov[k] = iov.Of(x.in.b[x.w : x.w+room])
		k++
	}
	n, err = readv(q.sock.FD, x.iov[:k])
	clear(x.iov[:k])
	x.short = n < direct+room
	if err != nil || n == 0 {
		return 0, err
	}
	got := min(n, direct)
	x.consume(got, q.crc)
	x.w += n - got
	if direct == 0 && n == room {
		x.room = min(2*x.room, readMax)
	}
	return n, nil
}

// consume notes that n octets were read directly to their place.
func (x *rx) consume(n int, crc bool) {
	x.left -= n
	for n > 0 {
		b := x.cur.Next(n)
		n -= len(b)
		if crc {
			x.crc = ddp.CRC(x.crc, b)
		}
	}
}

// readv is iov.Readv.
func readv(fd int, v []unix.Iovec) (int, error) {
	n, err := iov.Readv(fd, v)
	if n > 0 {
		afterRead()
	}
	return n, err
}

// parse handles the octets in the buffer until more are needed.
func (q *queuePair) parse() error {
	x := &q.rx
	defer q.tell()
	for {
		var more bool
		var err error
		switch {
		case x.drain:
			x.r = x.w
		case x.pending:
			more, err = true, q.deliver()
		case x.partial:
			more, err = q.part()
		default:
			more, err = q.fpdu()
		}
		if err != nil || !more {
			return err
		}
	}
}

// tell adds what has come to the counters, and then pushes the completions: once for many messages, because both
// take locked operations. Read Responses that it has not told of yet have come before the Sends that it has not.
func (q *queuePair) tell() {
	x := &q.rx
	if x.bytes > 0 {
		q.n.BytesIn.Add(x.bytes)
		x.bytes = 0
	}
	if x.messages > 0 {
		q.n.MessagesIn.Add(x.messages)
		x.messages = 0
	}
	if x.answered > 0 {
		q.readsDone()
	}
	if in := x.in; in.n > 0 {
		q.recvCQ.PushAll(in.done[:in.n])
		clear(in.done[:in.n])
		in.n = 0
	}
}

// received adds a completion of a receive to those that tell is to push.
func (q *queuePair) received() *rdma.Completion {
	in := q.rx.in
	if in.n == len(in.done) {
		q.tell()
	}
	in.n++
	return &in.done[in.n-1]
}

// fpdu handles the next FPDU: all of it, or, if it is large, its header. False: more octets are needed.
func (q *queuePair) fpdu() (bool, error) {
	x := &q.rx
	b := x.in.b[x.r:x.w]
	if len(b) < ddp.PrefixMin {
		return false, nil
	}
	n := int(b[0])<<8 | int(b[1])
	total := ddp.FPDULen(n)
	if len(b) < total {
		if total-len(b) < directMin {
			return false, nil
		}
		return q.beginPart(b)
	}
	x.room = readSize(x.room, total)
	if q.crc {
		if err := ddp.CheckTrailer(b[ddp.LengthLen+n:total], n, ddp.CRC(0, b[:ddp.LengthLen+n])); err != nil {
			x.seg = ddp.Segment{}
			return false, err
		}
	}
	var err error
	x.seg, err = q.format.Parse(b[:total])
	if err == nil {
		err = q.place(b)
	}
	if err != nil {
		return false, err
	}
	if x.to != nil {
		if err := q.hand(b[x.seg.PayloadOffset() : ddp.LengthLen+n]); err != nil {
			return false, err
		}
	}
	for p := b[x.seg.PayloadOffset() : ddp.LengthLen+n]; x.left > 0; {
		to := x.cur.Next(x.left)
		p = p[copy(to, p):]
		x.left -= len(to)
	}
	x.r += total
	q.placed()
	return true, nil
}

// readSize adapts how many octets are read at once to the size of the FPDUs.
func readSize(now, fpdu int) int {
	if fpdu >= readMin {
		return readMin
	}
	return now
}

// beginPart begins an FPDU of which a large part is still missing.
func (q *queuePair) beginPart(b []byte) (bool, error) {
	x := &q.rx
	need, err := q.format.Prefix(b)
	if err != nil {
		x.seg = ddp.Segment{}
		return false, err
	}
	if len(b) < need {
		return false, nil
	}
	head := x.header[:copy(x.header[:need], b)]
	seg, err := q.format.Parse(head)
	if err == nil && seg.Message == ddp.Terminate {
		return false, nil // its payload is wanted in one piece, and fits into the buffer
	}
	x.seg = seg
	if err == nil {
		switch err = q.place(head); {
		case err == errGather: // never wrapped
			x.room = readMax
			return false, nil
		case errors.Is(err, errStall):
			return false, err
		}
	}
	// An offence is reported after the CRC was checked, because the network may have damaged the FPDU.
	if len(seg.Header) == 0 {
		return false, err
	}
	x.room = readMin
	x.partial, x.fail = true, err
	x.left = seg.PayloadLen()
	x.crc = 0
	x.r += seg.PayloadOffset()
	if q.crc {
		x.crc = ddp.CRC(0, head[:seg.PayloadOffset()])
	}
	return true, nil
}

// part handles the octets that have come of an FPDU that is placed in parts. False: more have to come.
func (q *queuePair) part() (bool, error) {
	x := &q.rx
	if n := min(x.left, x.w-x.r); n > 0 {
		b := x.in.b[x.r : x.r+n]
		if q.crc {
			x.crc = ddp.CRC(x.crc, b)
		}
		if x.fail == nil {
			for p := b; len(p) > 0; {
				p = p[copy(x.cur.Next(len(p)), p):]
			}
		}
		x.left -= n
		x.r += n
	}
	n := x.seg.ULPDU
	trailer := x.in.b[x.r:x.w]
	if x.left > 0 || len(trailer) < ddp.TrailerLen(n) {
		return false, nil
	}
	x.r += ddp.TrailerLen(n)
	x.partial = false
	if q.crc {
		if err := ddp.CheckTrailer(trailer, n, x.crc); err != nil {
			x.seg = ddp.Segment{}
			return false, err
		}
	}
	if x.fail != nil {
		return false, x.fail
	}
	q.placed()
	return true, nil
}

// startDrain begins to throw away received octets. Nothing is placed any more, so that who takes memory back does not wait
// for the end of the connection. The lock is held.
func (q *queuePair) startDrain() {
	x := &q.rx
	x.drain, x.partial, x.pending, x.parked = true, false, false, nil
	x.r = x.w
	q.dropRx()
}

// closeReceive completes the receive of a message with a status other than OK.
func (q *queuePair) closeReceive(s rdma.Status, err error) {
	x := &q.rx
	x.sending, x.taken = false, false
	soft.UnpinAll(x.recv.Regions)
	q.receiveFailed(s, err)
}

// receiveFailed completes the receive that was taken, behind those that have ended well.
func (q *queuePair) receiveFailed(s rdma.Status, err error) {
	x := &q.rx
	if x.in != nil {
		q.tell()
	}
	q.recvCQ.Push(&rdma.Completion{ID: x.recv.ID, Op: rdma.OpReceive, Status: s, QueuePair: q, Err: err})
}
