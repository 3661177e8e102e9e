package tcp

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"oneshot/internal/invariant"
	"oneshot/internal/iov"
	"oneshot/iscsi"
	"oneshot/iscsi/pdu"
	"oneshot/mem"
)

const (
	// readLen is how much is read at once besides data that goes straight to its place: a
	// burst of commands with their immediate data.
	readLen = 128 << 10
	// inLen is the length of the buffer: the largest data segment that is wanted in one
	// piece (a ping's or a text request's) with its header and digests, and a readLen. Of
	// the memory only what has been used counts.
	inLen = maxSegment + maxHeader + digestLen + readLen
	// maxSegment is the largest data segment, the MaxRecvDataSegmentLength we declare.
	maxSegment = 256 << 10
	maxHeader  = pdu.BHSLen + pdu.MaxAHSLen + digestLen
	// smallLen is the length of the buffers that are not leased: any PDU of a login fits.
	smallLen = 16 << 10
	// maxSegs is how many pieces of a task's memory one readv fills.
	maxSegs = 15
)

// rx is the receiving side: a buffer with unread bytes in[r:w], and the data segment that
// is being received, if any.
type rx struct {
	lease   *mem.Lease // the memory of in,
	small   *small     // or this; neither: in has what is unread and no room for more
	in      []byte     // nil while the connection is idle
	r, w    int
	stalled bool // what is unread may be whole PDUs: the output had no room for more answers

	// The data segment under way.
	busy    bool
	t       *task // takes the bytes that are left of place, or nil
	place   int   // bytes that go to t
	skip    int   // bytes after those that nobody wants
	tail    int   // bytes of padding and digest still to come
	tailLen int
	tailBuf [3 + digestLen]byte
	pad     int
	digest  pdu.Digest
	last    bool // the F bit of the PDU

	hdr [pdu.BHSLen]byte // of the PDU under way, for a Reject

	iov    [maxSegs + 1]unix.Iovec
	unread int32 // what the socket has told
}

// small is a buffer that is not leased.
type small [smallLen]byte

var smalls = sync.Pool{New: func() any { return new(small) }}

// lendIn makes sure that there is a buffer with room. It is leased, except for who has no claim to
// I/O memory, and when all of that is in use: then a smaller one does, for commands and data-out
// need no more to go on, and so what others hold comes back one day. False: what is being received
// needs a larger one.
func (m *Mover) lendIn() bool {
	x := &m.rx
	if x.lease != nil {
		return true
	}
	if !m.isSmall() {
		if l := m.conn.LeaseInput(inLen); l != nil {
			m.move(l, nil, l.Bytes())
			return true
		}
	}
	if x.small == nil && x.w-x.r < smallLen {
		b := smalls.Get().(*small)
		m.move(nil, b, b[:])
	}
	return x.small != nil && x.w-x.r < smallLen
}

// move moves what is unread to another buffer.
func (m *Mover) move(lease *mem.Lease, b *small, in []byte) {
	x := &m.rx
	n := copy(in, x.in[x.r:x.w])
	x.giveBack()
	x.lease, x.small, x.in, x.r, x.w = lease, b, in, 0, n
}

// dropIn gives the buffer back, now that the socket is empty. What is unread is a part of a PDU,
// and its rest may be long in coming: it is kept in as much memory as it has bytes, unless these
// are many.
func (m *Mover) dropIn() {
	x := &m.rx
	switch {
	case x.r == x.w:
		m.move(nil, nil, nil)
	case x.w-x.r <= smallLen && (x.lease != nil || x.small != nil):
		m.move(nil, nil, make([]byte, x.w-x.r))
	}
}

// giveBack gives back the buffer, which nothing refers to any more.
func (x *rx) giveBack() {
	if x.lease != nil {
		x.lease.Release()
	}
	if x.small != nil {
		smalls.Put(x.small)
	}
}

// release gives the buffer back for good.
func (x *rx) release() {
	x.giveBack()
	*x = rx{}
}

// receive reads once and handles all that came. drained says that there was nothing: a read
// that was merely short does not tell, for the end of the stream may be behind it, of which
// the poller, edge-triggered, has spoken already.
func (m *Mover) receive() (drained bool, err error) {
	x := &m.rx
	if x.stalled {
		x.stalled = false
		if err := m.parse(); err != nil || x.stalled {
			return false, err
		}
	}
	if x.r == x.w {
		x.r, x.w = 0, 0
	} else if x.r > 0 && len(x.in)-x.w < readLen {
		x.w = copy(x.in, x.in[x.r:x.w])
		x.r = 0
	}
	n, err := m.readv()
	if err != nil || n == 0 {
		return true, err
	}
	m.conn.Heard()
	return false, m.parse()
}

// aim is where the next bytes of the data segment under way go: the first entries of rx.iov.
type aim struct {
	entries int
	part    int  // bytes that go to dataOut.part
	direct  int  // bytes behind these that go to the task's memory, or the store's
	cut     bool // what follows goes there too, but has no entries
	placing iscsi.Placing
}

// readv fills first the memory that the data segment under way is for, then the buffer.
// n == 0: nothing there.
func (m *Mover) readv() (n int, err error) {
	x := &m.rx
	var a aim
	placing := x.busy && x.place > 0 && x.r == x.w
	if placing {
		m.aim(&a)
	}
	k := a.entries
	if !a.cut {
		x.iov[k] = iov.Of(x.in[x.w:min(len(x.in), x.w+readLen)])
		k++
	}
	n, err = iov.Readv(m.sock.FD, x.iov[:k])
	got := min(n, a.part+a.direct)
	a.placing.End()
	clear(x.iov[:k])
	m.count.reads++
	m.count.bytesIn += uint64(n)
	if err != nil || n == 0 {
		return 0, err
	}
	if placing {
		m.placed(&a, got)
	}
	x.w += n - got
	return n, nil
}

// aim says where the next bytes of the data segment go. In memory of the store only whole blocks
// are placed, of which all bytes have come: they are read into it while no other writer gets at
// them. What is a part of a block comes by way of the buffer.
func (m *Mover) aim(a *aim) {
	x := &m.rx
	o := &x.t.out
	if o.unit == 0 {
		a.entries, a.direct = o.dst.Fill(x.iov[:maxSegs], x.place)
		invariant.Check(a.entries > 0, "a task takes data and has no memory for it")
		a.cut = a.direct < x.place
		return
	}
	if o.partN > 0 {
		a.part = min(o.unit-o.partN, x.place)
		x.iov[0] = iov.Of(o.part[o.partN:][:a.part])
		a.entries = 1
	}
	n := (min(x.place, m.unread()) - a.part) / o.unit * o.unit
	if n <= 0 {
		return
	}
	a.placing = x.t.BeginPlace(o.got+a.part, n)
	for _, seg := range a.placing.Segs[:min(len(a.placing.Segs), maxSegs-1)] {
		x.iov[a.entries] = iov.Of(seg)
		a.entries++
		a.direct += len(seg)
	}
}

// unread returns how many bytes have come and were not read; 0 if the socket does not tell.
func (m *Mover) unread() int {
	x := &m.rx
	x.unread = 0
	if _, _, e := unix.RawSyscall(unix.SYS_IOCTL, uintptr(m.sock.FD), unix.SIOCINQ, uintptr(unsafe.Pointer(&x.unread))); e != 0 {
		return 0
	}
	return int(x.unread)
}

// parse handles the bytes in the buffer until more are needed.
func (m *Mover) parse() error {
	x := &m.rx
	for !m.closing {
		switch {
		case m.isFull():
			x.stalled = true
			return nil
		case x.busy:
			if !m.segment() {
				return nil
			}
		default:
			more, err := m.header()
			if err != nil || !more {
				return err
			}
		}
	}
	x.r = x.w // what comes after the end of the session is nobody's
	return nil
}

// header takes the next PDU's header. False: it has not come as a whole.
func (m *Mover) header() (bool, error) {
	x := &m.rx
	b := x.in[x.r:x.w]
	if len(b) < pdu.BHSLen {
		return false, nil
	}
	h := pdu.Header(b)
	n := pdu.BHSLen + h.TotalAHSLen()
	whole := n
	if m.headerDigest {
		whole += digestLen
	}
	if len(b) < whole {
		return false, nil
	}
	if m.headerDigest && !pdu.Digest(0).Update(b[:n]).Matches(b[n:]) {
		// RFC 7143 §7.8: the length of the data is not to be trusted, so the next header is
		// not to be found.
		return false, errHeaderDigest
	}
	if h.DataSegmentLen() > m.maxIn {
		return false, &segmentError{opcode: h.Opcode(), len: h.DataSegmentLen(), max: m.maxIn}
	}
	m.count.pdusIn++
	switch h.Opcode() {
	case pdu.OpSCSICommand:
		return true, m.command(b[:n], whole)
	case pdu.OpDataOut:
		return true, m.dataOut(b[:n], whole)
	}
	came, err := m.control(b, h, n, whole)
	if !came {
		m.count.pdusIn-- // it is looked at again
	}
	return came, err
}

// control takes a PDU that the session wants whole.
func (m *Mover) control(b []byte, h pdu.Header, n, whole int) (bool, error) {
	dsl := h.DataSegmentLen()
	end := whole + pdu.PaddedLen(dsl)
	digest := m.dataDigest && dsl > 0
	if digest {
		end += digestLen
	}
	if len(b) < end {
		return false, nil
	}
	m.rx.r += end
	if digest && !pdu.Digest(0).Update(b[whole:end-digestLen]).Matches(b[end-digestLen:]) {
		m.conn.BadDigest(h)
		return true, errDataDigest
	}
	m.conn.Receive(h[:n], b[whole:whole+dsl])
	return true, nil
}

// begin begins the data segment of a PDU, whose header is of whole bytes in the buffer. Of
// its bytes the first place go to t, the rest nowhere.
func (m *Mover) begin(h pdu.Header, whole int, t *task, place int) {
	x := &m.rx
	dsl := h.DataSegmentLen()
	x.last = h.Final()
	x.busy, x.t, x.place, x.skip = true, t, place, dsl-place
	x.pad = pdu.PaddedLen(dsl) - dsl
	x.tail, x.tailLen, x.digest = x.pad, 0, 0
	if m.dataDigest && dsl > 0 {
		x.tail += digestLen
		copy(x.hdr[:], h)
	}
	x.r += whole
}

// segment takes what has come of the data segment. False: more is to come.
func (m *Mover) segment() bool {
	x := &m.rx
	if n := min(x.place, x.w-x.r); n > 0 {
		x.t.put(x.in[x.r : x.r+n])
		m.placedFrom(x.in[x.r : x.r+n])
		x.r += n
	}
	if x.place > 0 {
		return false
	}
	if n := min(x.skip, x.w-x.r); n > 0 {
		if m.dataDigest {
			x.digest = x.digest.Update(x.in[x.r : x.r+n])
		}
		x.skip -= n
		x.r += n
	}
	if x.skip > 0 {
		return false
	}
	if n := min(x.tail, x.w-x.r); n > 0 {
		x.tailLen += copy(x.tailBuf[x.tailLen:], x.in[x.r:x.r+n])
		x.tail -= n
		x.r += n
	}
	if x.tail > 0 {
		return false
	}
	m.segmentDone()
	return true
}

// placed notes that n bytes of the segment were read to where they go, before the cursor of the
// task's memory moves on.
func (m *Mover) placed(a *aim, n int) {
	x := &m.rx
	o := &x.t.out
	x.place -= n
	if o.unit != 0 {
		part := min(n, a.part)
		x.t.gathered(part)
		n -= part
		rest := n % o.unit // none: the socket had as much as it had said
		o.got += n - rest
		if rest > 0 {
			c := iov.At(a.placing.Segs, n-rest)
			o.gather(c.Next(rest)) // in one segment
		}
		return
	}
	if m.dataDigest {
		x.digest = o.digest(x.digest, n)
	}
	o.advance(n)
}

// placedFrom notes that b was copied to the task's memory.
func (m *Mover) placedFrom(b []byte) {
	x := &m.rx
	if m.dataDigest {
		x.digest = x.digest.Update(b)
	}
	x.place -= len(b)
}

func (m *Mover) segmentDone() {
	x := &m.rx
	x.busy = false
	good := true
	if x.tailLen > x.pad {
		good = x.digest.Update(x.tailBuf[:x.pad]).Matches(x.tailBuf[x.pad:x.tailLen])
	}
	if !good {
		m.conn.BadDigest(x.hdr[:])
	}
	if t := x.t; t != nil {
		x.t = nil
		m.arrived(t, x.last, good)
	}
}
