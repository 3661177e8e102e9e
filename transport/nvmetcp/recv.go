package nvmetcp

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"oneshot/internal/invariant"
	"oneshot/internal/iov"
	"oneshot/mem"
	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
	"oneshot/nvmf"
)

const (
	// inLen is the length of the buffer, and so how much is read at once besides data that go straight to their place.
	inLen = 128 << 10
	// smallLen is the length of the buffers that are not leased: any header fits, and data take what there is.
	smallLen = 16 << 10
	// minRead is how much room is made for a read.
	minRead = 4 << 10
	// maxSegs is how many pieces of a command's memory one readv fills.
	maxSegs = 15
	// maxH2CData is the most data in one H2CData PDU, MAXH2CDATA: that of any command.
	maxH2CData = mem.MaxLease
)

// rx is the receiving side: a buffer with unread bytes in[r:w], and the data of a PDU that are being received, if any.
type rx struct {
	lease   *mem.Lease // the memory of in,
	small   *small     // or this; neither: in has what is unread and no room for more
	in      []byte     // nil while the connection is idle
	r, w    int
	stalled bool // what is unread may be whole PDUs: the output had no room for more answers

	// The data under way.
	busy    bool
	lead    int   // bytes of padding before them
	t       *task // takes the bytes that are left of place, or nil
	place   int   // bytes that go to t
	skip    int   // bytes after those that nobody wants
	tail    int   // bytes of the digest still to come
	tailLen int
	tailBuf [pdu.DigestLen]byte
	digest  pdu.Digest

	hdr    [pdu.MaxTermData]byte // of the PDU under way, for a termination request
	hdrLen int

	iov    [maxSegs + 1]unix.Iovec
	unread int32 // what the socket has told
}

// small is a buffer that is not leased.
type small [smallLen]byte

var smalls = sync.Pool{New: func() any { return new(small) }}

// offender is the header of the PDU under way.
func (x *rx) offender() []byte { return x.hdr[:x.hdrLen] }

// drop forgets what is under way, and what is unread.
func (x *rx) drop() {
	x.busy, x.t, x.place, x.skip, x.lead, x.tail = false, nil, 0, 0, 0, 0
	x.r = x.w
}

// lendIn makes sure that there is a buffer with room. It is leased, except for who has no claim to I/O memory, and when
// all of that is in use: then a smaller one does, for commands and data need no more to go on.
func (m *Mover) lendIn() bool {
	x := &m.rx
	if x.lease != nil {
		return true
	}
	if !m.isSmall() {
		if l := m.queue.LeaseInput(inLen); l != nil {
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

// dropIn gives the buffer back, now that the socket is empty. What is unread is a part of a PDU, and its rest may be long
// in coming: it is kept in as much memory as it has bytes, unless these are many.
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

// receive reads once and handles all that came. drained says that there was nothing: a read that was merely short does
// not tell, for the end of the stream may be behind it, of which the poller, edge-triggered, has spoken already.
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
	} else if x.r > 0 && len(x.in)-x.w < minRead {
		x.w = copy(x.in, x.in[x.r:x.w])
		x.r = 0
	}
	n, err := m.readv()
	if err != nil || n == 0 {
		return true, err
	}
	m.queue.Heard()
	return false, m.parse()
}

// aim is where the next bytes of the data under way go: the first entries of rx.iov.
type aim struct {
	entries int
	part    int  // bytes that go to data.part
	direct  int  // bytes behind these that go to the command's memory, or the store's
	cut     bool // what follows goes there too, but has no entries
	placing nvmf.Placing
}

// readv fills first the memory that the data under way are for, then the buffer. n == 0: nothing there.
func (m *Mover) readv() (n int, err error) {
	x := &m.rx
	var a aim
	placing := x.busy && x.lead == 0 && x.place > 0 && x.r == x.w
	if placing {
		m.aim(&a)
	}
	k := a.entries
	if !a.cut {
		x.iov[k] = iov.Of(x.in[x.w:])
		k++
	}
	n, err = iov.Readv(m.sock.FD, x.iov[:k])
	got := min(n, a.part+a.direct)
	a.placing.End()
	clear(x.iov[:k])
	if err != nil || n == 0 {
		return 0, err
	}
	if placing {
		m.placed(&a, got)
	}
	x.w += n - got
	return n, nil
}

// aim says where the next bytes of the data go. In memory of the store only whole blocks are placed, of which all bytes
// have come: they are read into it while no other writer gets at them. What is a part of a block comes by way of the
// buffer.
func (m *Mover) aim(a *aim) {
	x := &m.rx
	d := &x.t.in
	if d.unit == 0 {
		a.entries, a.direct = d.dst.Fill(x.iov[:maxSegs], x.place)
		invariant.Check(a.entries > 0, "a command takes data and has no memory for it")
		a.cut = a.direct < x.place
		return
	}
	if d.partN > 0 {
		a.part = min(d.unit-d.partN, x.place)
		x.iov[0] = iov.Of(d.part[d.partN:][:a.part])
		a.entries = 1
	}
	n := (min(x.place, m.unread()) - a.part) / d.unit * d.unit
	if n <= 0 {
		return
	}
	a.placing = x.t.BeginPlace(d.got+a.part, n)
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
	x.drop() // what comes after the end of the connection is nobody's
	return nil
}

// header takes the next PDU's header. False: it has not come as a whole.
func (m *Mover) header() (bool, error) {
	x := &m.rx
	b := x.in[x.r:x.w]
	if len(b) < pdu.CommonLen {
		return false, nil
	}
	h := pdu.Header(b)
	x.hdrLen = copy(x.hdr[:], b)
	switch first := h.Type() == pdu.ICReq; {
	case first && m.initialized:
		return false, &pdu.Error{Fatal: pdu.SequenceError, What: "a second ICReq"}
	case !first && !m.initialized && pdu.HeaderLen(h.Type()) != 0 && h.Type() != pdu.H2CTermReq:
		return false, &pdu.Error{Fatal: pdu.SequenceError, What: fmt.Sprintf("a PDU of type %#02x before ICReq", b[0])}
	}
	s, wrong := h.Check(m.headerDigest, m.dataDigest, m.most(h.Type()))
	if wrong != nil {
		return false, wrong
	}
	if len(b) < s.Head {
		return false, nil
	}
	n := h.HLen()
	if s.Head > n && !pdu.Digest(0).Update(b[:n]).Matches(b[n:]) {
		got := uint32(b[n]) | uint32(b[n+1])<<8 | uint32(b[n+2])<<16 | uint32(b[n+3])<<24
		return false, &pdu.Error{Fatal: pdu.HeaderDigestError, Info: got, What: "the digest of a header does not match"}
	}
	x.hdrLen = copy(x.hdr[:], b[:n])
	switch h.Type() {
	case pdu.ICReq:
		return true, m.initialize(pdu.ParseIC(b), s)
	case pdu.CapsuleCmd:
		return true, m.command(nvme.SQE(b[pdu.CommonLen:n]), s)
	case pdu.H2CData:
		return true, m.dataOut(pdu.ParseData(b), s)
	}
	f, info := pdu.ParseTerm(b)
	return false, &terminated{f, info}
}

// terminated is a termination request of the host, which gets no answer.
type terminated struct {
	fatal pdu.Fatal
	info  uint32
}

func (e *terminated) Error() string {
	return fmt.Sprintf("the host has ended the connection: %v (%#x)", e.fatal, e.info)
}

// most is how many bytes of data a PDU of that type may have.
func (m *Mover) most(t pdu.Type) int {
	switch t {
	case pdu.CapsuleCmd:
		return m.params.CapsuleData
	case pdu.H2CData:
		return maxH2CData
	}
	return pdu.MaxTermData
}

// initialize answers ICReq (NVMe/TCP 1.0 §3.6.2.2). What it asks for is granted.
func (m *Mover) initialize(c pdu.IC, s pdu.Shape) error {
	switch {
	case c.Format != 0:
		return &pdu.Error{Fatal: pdu.UnsupportedParameter, Info: pdu.OffFormat, What: fmt.Sprintf("version %d of the PDU format", c.Format)}
	case c.Align > pdu.MaxAlign:
		return &pdu.Error{Fatal: pdu.InvalidHeaderField, Info: pdu.OffAlign, What: fmt.Sprintf("an alignment of %d", c.Align)}
	}
	m.rx.r += s.End
	m.initialized, m.align = true, c.Align
	m.headerDigest, m.dataDigest = c.HeaderDigest, c.DataDigest
	if c.HeaderDigest {
		m.flags = pdu.FlagHeaderDigest
	}
	answer := pdu.IC{HeaderDigest: c.HeaderDigest, DataDigest: c.DataDigest, Max: maxH2CData}
	control := m.tx.control()
	control.buf = answer.AppendTo(control.buf, pdu.ICResp)
	m.enqueue(control)
	return nil
}

// begin begins the data of a PDU, whose header is in the buffer. Of its bytes the first place go to t, the rest nowhere.
func (m *Mover) begin(s pdu.Shape, t *task, place int) {
	x := &m.rx
	x.r += s.Head
	if s.Len == 0 {
		return
	}
	x.busy, x.t, x.place, x.skip = true, t, place, s.Len-place
	x.lead, x.tail, x.tailLen, x.digest = s.Data-s.Head, s.End-s.Data-s.Len, 0, 0
}

// segment takes what has come of the data. False: more are to come.
func (m *Mover) segment() bool {
	x := &m.rx
	if n := min(x.lead, x.w-x.r); n > 0 {
		x.lead -= n
		x.r += n
	}
	if n := min(x.place, x.w-x.r); x.lead == 0 && n > 0 {
		x.t.in.put(x.t, x.in[x.r:x.r+n])
		if m.dataDigest {
			x.digest = x.digest.Update(x.in[x.r : x.r+n])
		}
		x.place -= n
		x.r += n
	}
	if x.lead > 0 || x.place > 0 {
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
	x.busy = false
	good := x.tailLen == 0 || x.digest.Matches(x.tailBuf[:])
	if t := x.t; t != nil {
		x.t = nil
		m.arrived(t, good)
	}
	return true
}

// placed notes that n bytes of the data were read to where they go, before the cursor of the command's memory moves on.
func (m *Mover) placed(a *aim, n int) {
	x := &m.rx
	d := &x.t.in
	x.place -= n
	if d.unit != 0 {
		part := min(n, a.part)
		d.gathered(x.t, part)
		n -= part
		rest := n % d.unit // none: the socket had as much as it had said
		d.got += n - rest
		if rest > 0 {
			c := iov.At(a.placing.Segs, n-rest)
			d.gather(c.Next(rest)) // in one segment
		}
		return
	}
	if m.dataDigest {
		x.digest = d.digest(x.digest, n)
	}
	d.got += n
	d.dst.Advance(n)
}
