package bytestream

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"oneshot/internal/crc32c"
	"oneshot/internal/invariant"
	"oneshot/internal/iov"
	"oneshot/mem"
	"oneshot/volume"
)

const (
	// SmallLen is the length of the buffers that are not leased.
	SmallLen = 16 << 10
	// maxSegs is how many pieces of a command's memory one readv fills.
	maxSegs = 15
	// longLen is how many bytes make data long, and ahead how many are read behind such data, besides those that go straight to
	// their place: headers, and short data. Of long data that come along so many are copied.
	longLen = 32 << 10
	ahead   = 16 << 10
	// maxPad is the most padding behind data.
	maxPad = 3
)

// Sizes are those of a leased buffer.
type Sizes struct {
	Len  int // of the buffer
	Read int // how much is read at once, besides data that go straight to their place
	Room int // how much room is made for a read when something is unread
}

// In is the receiving side: a buffer with unread bytes, and the data of a PDU that are being received, if any.
type In[T any] struct {
	// Task takes the data under way, of which a part goes to its sink, or is about to: until Data, or Forget; nil: nobody.
	Task *T

	sizes   Sizes
	lease   *mem.Lease // the memory of buf,
	small   *small     // or this; neither: buf has what is unread and no room for more
	buf     []byte     // nil while the connection is idle
	r, w    int        // buf[r:w] is unread
	long    bool       // long data came last, and more such are expected: little is read ahead
	stalled bool       // what is unread may be whole PDUs, which were not to be taken: see isFull
	held    bool       // Link.Hold was called

	// The data under way.
	busy    bool
	lead    int // bytes of padding before them
	sink    *Sink
	place   int // bytes that go to sink
	skip    int // bytes after those that nobody wants
	pad     int // bytes of padding that the digest covers
	tail    int // bytes of padding and digest still to come
	tailLen int
	tailBuf [maxPad + crc32c.Len]byte
	digest  crc32c.Digest
	check   bool // there is one

	iov    [maxSegs + 1]unix.Iovec
	unread int32 // what the socket has told
}

// small is a buffer that is not leased.
type small [SmallLen]byte

var smalls = sync.Pool{New: func() any { return new(small) }}

// lendIn makes sure that there is a buffer with room. It is leased, except for who has no claim to I/O memory, and when all of
// that is in use: then a smaller one does, for commands and data need no more to go on, and so what others hold comes back
// one day. False: what is being received needs a larger one.
func (l *Link[T]) lendIn() bool {
	x := &l.In
	if x.lease != nil {
		return true
	}
	if !l.Small {
		if m := l.conn.LeaseInput(x.sizes.Len); m != nil {
			x.move(m, nil, m.Bytes())
			return true
		}
	}
	if x.small == nil && x.w-x.r < SmallLen {
		b := smalls.Get().(*small)
		x.move(nil, b, b[:])
	}
	return x.small != nil && x.w-x.r < SmallLen
}

// move moves what is unread to another buffer.
func (x *In[T]) move(lease *mem.Lease, b *small, buf []byte) {
	n := copy(buf, x.buf[x.r:x.w])
	x.giveBack()
	x.lease, x.small, x.buf, x.r, x.w = lease, b, buf, 0, n
}

// drop gives the buffer back, now that the socket is empty. What is unread is a part of a PDU, and its rest may be long in
// coming: it is kept in as much memory as it has bytes, unless these are many.
func (x *In[T]) drop() {
	switch {
	case x.r == x.w:
		x.move(nil, nil, nil)
	case x.w-x.r < SmallLen && (x.lease != nil || x.small != nil):
		x.move(nil, nil, make([]byte, x.w-x.r))
	}
}

// giveBack gives back the buffer, which nothing refers to any more.
func (x *In[T]) giveBack() {
	if x.lease != nil {
		x.lease.Release()
	}
	if x.small != nil {
		smalls.Put(x.small)
	}
}

// release gives the buffer back for good.
func (x *In[T]) release() {
	x.giveBack()
	*x = In[T]{}
}

// receive reads once and handles all that came. drained says that there was nothing: a read that was merely short does not
// tell, for the end of the stream may be behind it, of which the poller, edge-triggered, has spoken already. TCP_INQ would tell
// of the end, but not of a reset: only a later write that succeeds excludes that one has come before. The read that finds nothing
// costs some 0.8 µs of the 60 that a command of 4 KiB alone costs each end.
func (l *Link[T]) receive() (drained bool, err error) {
	x := &l.In
	if x.stalled {
		x.stalled = false
		if err := l.mover.Parse(); err != nil || x.stalled {
			return false, err
		}
	}
	if x.r == x.w {
		x.r, x.w = 0, 0
	} else if x.r > 0 && len(x.buf)-x.w < x.sizes.Room {
		x.w = copy(x.buf, x.buf[x.r:x.w])
		x.r = 0
	}
	n, err := l.readv()
	if err != nil || n == 0 {
		return true, err
	}
	l.conn.Heard()
	return false, l.mover.Parse()
}

// aim is where the next bytes of the data under way go: the first entries of In.iov.
type aim struct {
	entries int
	part    int  // bytes that go to Sink.part
	direct  int  // bytes behind these that go to the command's memory, or the store's
	cut     bool // what follows goes there too, but has no entries
	placing volume.Placing
}

// readv fills first the memory that the data under way are for, then the buffer. n == 0: nothing there.
func (l *Link[T]) readv() (n int, err error) {
	x := &l.In
	var a aim
	placing := x.busy && x.lead == 0 && x.place > 0 && x.r == x.w
	if placing {
		l.aim(&a)
	}
	k := a.entries
	room := 0
	if !a.cut {
		room = min(len(x.buf)-x.w, x.sizes.Read)
		if x.long {
			room = min(room, ahead)
		}
		x.iov[k] = iov.Of(x.buf[x.w : x.w+room])
		k++
	}
	n, err = iov.Readv(l.sock.FD, x.iov[:k])
	got := min(n, a.part+a.direct)
	a.placing.End()
	clear(x.iov[:k])
	l.Reads++
	l.BytesIn += uint64(n)
	if err != nil || n == 0 {
		return 0, err
	}
	if placing {
		x.place -= got
		if x.check {
			x.digest = x.sink.digest(x.digest, got)
		}
		x.sink.placed(&a, got)
	}
	x.w += n - got
	if room > 0 && n-got == room { // who sends so much besides sends other things, or Begin will say that it is long data again
		x.long = false
	}
	return n, nil
}

// aim says where the next bytes of the data go. In memory of the store only whole blocks are placed, of which all bytes have
// come: they are read into it while no other writer gets at them. What is a part of a block comes by way of the buffer.
func (l *Link[T]) aim(a *aim) {
	x := &l.In
	s := x.sink
	if s.store == nil {
		a.entries, a.direct = s.dst.Fill(x.iov[:maxSegs], x.place)
		invariant.Check(a.entries > 0, "a command takes data and has no memory for them")
		a.cut = a.direct < x.place
		return
	}
	if s.partN > 0 {
		a.part = min(s.unit-s.partN, x.place)
		x.iov[0] = iov.Of(s.part[s.partN:][:a.part])
		a.entries = 1
	}
	n := (min(x.place, l.unread()) - a.part) / s.unit * s.unit
	if n <= 0 {
		return
	}
	a.placing = s.store.BeginPlace(s.Got+a.part, n)
	for _, seg := range a.placing.Segs[:min(len(a.placing.Segs), maxSegs-1)] {
		x.iov[a.entries] = iov.Of(seg)
		a.entries++
		a.direct += len(seg)
	}
}

// unread returns how many bytes have come and were not read; 0 if the socket does not tell.
func (l *Link[T]) unread() int {
	x := &l.In
	x.unread = 0
	if _, _, e := unix.RawSyscall(unix.SYS_IOCTL, uintptr(l.sock.FD), unix.SIOCINQ, uintptr(unsafe.Pointer(&x.unread))); e != 0 {
		return 0
	}
	return int(x.unread)
}

// Step is what is to be done with the bytes in the buffer.
type Step uint8

const (
	Wait   Step = iota // more are needed, or none are to be taken
	Header             // a header is next: In.Bytes has what has come
	Data               // the data under way are in: In.Done
)

// Step takes what it can of the data under way, and says what is next.
func (l *Link[T]) Step() Step {
	x := &l.In
	switch {
	case l.closing:
		x.Drop() // what comes after the end of the session is nobody's
		return Wait
	case l.isFull():
		x.stalled = true
		return Wait
	case !x.busy:
		return Header
	case !x.segment():
		return Wait
	}
	return Data
}

// Bytes are those that are unread. They alias the buffer, and are valid until Parse and Blame have returned.
func (x *In[T]) Bytes() []byte { return x.buf[x.r:x.w] }

// Skip skips n of them.
func (x *In[T]) Skip(n int) { x.r += n }

// Drop forgets what is under way, and what is unread.
func (x *In[T]) Drop() {
	x.busy, x.held, x.Task, x.sink, x.place, x.skip, x.lead, x.tail = false, false, nil, nil, 0, 0, 0, 0
	x.r = x.w
}

// Segment is the data of a PDU.
type Segment struct {
	Head   int  // bytes before them that are in the buffer: the header
	Lead   int  // bytes of padding between these and the data
	Len    int  // bytes of data
	Pad    int  // bytes of padding behind them
	Digest bool // a digest follows, of data and padding
}

// Begin begins the data of a PDU. Of its bytes the first place go to the sink s of the task t, the rest nowhere. If nobody is to
// have data that there are not, nothing is under way.
func (x *In[T]) Begin(g Segment, t *T, s *Sink, place int) {
	x.r += g.Head
	if x.Task = t; t == nil && g.Len == 0 {
		return
	}
	x.busy, x.sink, x.place, x.skip = true, s, place, g.Len-place
	x.long = x.long || place >= longLen
	x.lead, x.pad, x.tail, x.tailLen, x.digest = g.Lead, g.Pad, g.Pad, 0, 0
	if x.check = g.Digest && g.Len > 0; x.check {
		x.tail += crc32c.Len
	}
}

// Forget has what is still to come of the data under way thrown away if it is for t. A command may end at any time before its
// data are in.
func (x *In[T]) Forget(t *T) {
	if x.Task != t {
		return
	}
	x.Limit(0)
	x.Task, x.sink = nil, nil
}

// Limit has no more than n further bytes of the data under way placed.
func (x *In[T]) Limit(n int) {
	if x.place > n {
		x.skip += x.place - n
		x.place = n
	}
}

// Done ends the data under way, and returns who took them, or nil, and whether their digest matched.
func (x *In[T]) Done() (t *T, good bool) {
	good = !x.check || x.digest.Update(x.tailBuf[:x.pad]).Matches(x.tailBuf[x.pad:x.tailLen])
	t = x.Task
	x.busy, x.Task, x.sink = false, nil, nil
	return t, good
}

// segment takes what has come of the data. False: more are to come.
func (x *In[T]) segment() bool {
	if n := min(x.lead, x.w-x.r); n > 0 {
		x.lead -= n
		x.r += n
	}
	if n := min(x.place, x.w-x.r); n > 0 && x.lead == 0 {
		x.sink.Put(x.buf[x.r : x.r+n])
		x.place -= n
		x.pass(n)
	}
	if x.lead > 0 || x.place > 0 {
		return false
	}
	if n := min(x.skip, x.w-x.r); n > 0 {
		x.skip -= n
		x.pass(n)
	}
	if x.skip > 0 {
		return false
	}
	if n := min(x.tail, x.w-x.r); n > 0 {
		x.tailLen += copy(x.tailBuf[x.tailLen:], x.buf[x.r:x.r+n])
		x.tail -= n
		x.r += n
	}
	return x.tail == 0
}

// pass goes behind n bytes of data.
func (x *In[T]) pass(n int) {
	if x.check {
		x.digest = x.digest.Update(x.buf[x.r : x.r+n])
	}
	x.r += n
}
