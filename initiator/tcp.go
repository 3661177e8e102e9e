package initiator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/internal/iov"
	"oneshot/internal/stream"
	"oneshot/iscsi/pdu"
	"oneshot/iscsi/text"
	"oneshot/transport/rdma"
)

// tcp is the mover of a byte stream. Reading is in this file, sending in tcpsend.go.
//
//	goroutine read:  socket ─► in ─► Session.take, Data-In ─► Command.In
//	any goroutine:   PDUs ─► out ─► writev, as far as the socket takes it at once
//	goroutine of sock, once the socket was full: the rest
type tcp struct {
	s    *Session
	conn *net.TCPConn
	sock *stream.Socket

	// Belongs to the reader:
	raw     syscall.RawConn
	in      []byte // in[r:w] has been received
	r, w    int
	reading bool          // full feature phase
	head    pdu.Header    // direct's
	large   bool          // the last PDU was read by direct: more such are expected, and little is read ahead
	into    [2]unix.Iovec // what receive reads to
	intoN   int           // of into, how many
	got     int           // bytes that it has read
	gotErr  error
	once    func(uintptr) bool // readOnce
	sink    Sink               // what passOnce asks
	passes  func(uintptr) bool // passOnce

	// The rest is guarded by Session.mu:
	headerDigest, dataDigest bool
	out                      sender
	closed                   bool
	enabled                  bool
	count                    tcpCounters
	reads                    atomic.Uint64
}

type tcpCounters struct{ writes, pdusOut, pdusIn, bytesOut, bytesIn, bytesMoved uint64 }

// inSize is the room for what is received; PDUs with more data than directMin are read where
// their data is to end. Behind such a PDU only the next headers are read, ahead bytes: data that
// comes along has to be copied.
const (
	inSize    = 512 << 10
	directMin = 32 << 10
	ahead     = 4 << 10
)

func dialTCP(ctx context.Context, s *Session) (mover, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", s.url.Address)
	if err != nil {
		return nil, err
	}
	m := &tcp{s: s, conn: c.(*net.TCPConn), in: make([]byte, inSize)}
	if m.sock, err = stream.Open(m.conn); err == nil {
		m.raw, err = m.conn.SyscallConn()
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	m.once, m.passes = m.readOnce, m.passOnce
	m.sock.OnRoom(m.onWritable, func(error) {}) // an error ends the reader, too
	return m, nil
}

// receive implements mover.
func (m *tcp) receive(ctx context.Context) (pdu.Header, []byte, error) {
	stop := context.AfterFunc(ctx, func() { _ = m.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		h, data, n, err := m.next()
		if err != nil {
			return nil, nil, err
		}
		if n > 0 {
			m.r += n
			return h, data, nil
		}
		if err := m.more(); err != nil {
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return nil, nil, fmt.Errorf("login: %w", err)
		}
	}
}

// errBroken is what a stream is that ends where it should not.
var errBroken = errors.New("the target has closed the connection")

// more reads once.
func (m *tcp) more() error {
	switch {
	case m.r == m.w:
		m.r, m.w = 0, 0
	case len(m.in)-m.w < len(m.in)/4:
		m.w = copy(m.in, m.in[m.r:m.w])
		m.r = 0
	}
	room := m.in[m.w:]
	if m.large {
		room = room[:min(len(room), ahead)]
	}
	n, err := m.readTo(room, nil)
	m.w += n
	m.large = m.large && n < len(room)
	return err
}

// readTo waits for bytes and reads once, to a and then to b. It may return without any: it was poked.
func (m *tcp) readTo(a, b []byte) (int, error) {
	m.into[0], m.intoN = iov.Of(a), 1
	if len(b) > 0 {
		m.into[1], m.intoN = iov.Of(b), 2
	}
	err := m.await(m.once)
	clear(m.into[:])
	return m.got, err
}

// await has the poller call f, which sets got and gotErr. It may return without any bytes: it was poked.
func (m *tcp) await(f func(uintptr) bool) error {
	err := m.raw.Read(f)
	if err == nil {
		if err = m.gotErr; err == nil {
			return nil
		}
	}
	m.got = 0
	switch {
	case errors.Is(err, io.EOF):
		return errBroken
	case m.reading && errors.Is(err, os.ErrDeadlineExceeded):
		return m.conn.SetReadDeadline(time.Time{})
	}
	return err
}

// readOnce is what the poller calls.
func (m *tcp) readOnce(uintptr) bool {
	m.reads.Add(1)
	m.got, m.gotErr = iov.Readv(m.sock.FD, m.into[:m.intoN])
	return m.got > 0 || m.gotErr != nil
}

// layout is where the parts of a PDU are, in bytes from its start.
type layout struct{ head, data, end int }

func (m *tcp) layout(h pdu.Header) layout {
	l := layout{head: pdu.BHSLen + h.TotalAHSLen()}
	l.data = l.head
	if m.headerDigest {
		l.data += pdu.DigestLen
	}
	l.end = l.data + pdu.PaddedLen(h.DataSegmentLen())
	if m.dataDigest && h.DataSegmentLen() > 0 {
		l.end += pdu.DigestLen
	}
	return l
}

// header returns the next header, checked, or nil if it is not all there.
func (m *tcp) header() (pdu.Header, layout, error) {
	b := m.in[m.r:m.w]
	if len(b) < pdu.BHSLen {
		return nil, layout{}, nil
	}
	h := pdu.Header(b)
	l := m.layout(h)
	if len(b) < l.data {
		return nil, l, nil
	}
	if m.headerDigest && !pdu.Digest(0).Update(b[:l.head]).Matches(b[l.head:]) {
		return nil, l, errors.New("header digest error")
	}
	if h.DataSegmentLen() > tcpSegment {
		return nil, l, fmt.Errorf("a %v with %d bytes of data, over the %d we take", h.Opcode(), h.DataSegmentLen(), tcpSegment)
	}
	return h[:l.head], l, nil
}

// next returns the next PDU and its length; 0: it is not all there.
func (m *tcp) next() (h pdu.Header, data []byte, n int, err error) {
	h, l, err := m.header()
	if err != nil || h == nil || m.w-m.r < l.end {
		return nil, nil, 0, err
	}
	b := m.in[m.r:]
	if err := m.checkData(b[l.data:l.end]); err != nil {
		return nil, nil, 0, err
	}
	return h, b[l.data : l.data+h.DataSegmentLen()], l.end, nil
}

// checkData checks a data segment with its padding and digest.
func (m *tcp) checkData(b []byte) error {
	if !m.dataDigest || len(b) == 0 {
		return nil
	}
	n := len(b) - pdu.DigestLen
	if !pdu.Digest(0).Update(b[:n]).Matches(b[n:]) {
		return errDataDigest
	}
	return nil
}

var errDataDigest = errors.New("data digest error")

// enable implements mover.
func (m *tcp) enable(p *text.Params) {
	_ = m.conn.SetReadDeadline(time.Time{})
	m.reading = true
	m.s.mu.Lock()
	m.headerDigest, m.dataDigest = p.HeaderDigest, p.DataDigest
	m.enabled = true
	m.s.mu.Unlock()
	go func() {
		err := m.read()
		m.shut()
		m.sock.Close()
		m.s.lost(err)
	}()
}

// read takes what comes until the connection ends.
func (m *tcp) read() error {
	for {
		m.s.begin()
		large, err := m.batch()
		m.s.end()
		switch {
		case err != nil:
		case large:
			err = m.direct()
		default:
			err = m.more()
		}
		if err != nil {
			return err
		}
	}
}

// batch takes the PDUs that are all there. large: the next is to be read by direct.
func (m *tcp) batch() (large bool, err error) {
	for {
		h, l, err := m.header()
		if err != nil || h == nil {
			return false, err
		}
		whole := m.w-m.r >= l.end
		if !whole {
			return h.Opcode() == pdu.OpDataIn && h.DataSegmentLen() >= directMin, nil
		}
		b := m.in[m.r : m.r+l.end]
		m.r += l.end
		if err := m.checkData(b[l.data:]); err != nil {
			return false, err
		}
		if err := m.take(h, b[l.data:l.data+h.DataSegmentLen()]); err != nil {
			return false, err
		}
	}
}

// take takes a PDU.
func (m *tcp) take(h pdu.Header, data []byte) error {
	m.count.pdusIn++
	m.count.bytesIn += uint64(len(data))
	switch h.Opcode() {
	case pdu.OpDataIn:
		d, err := pdu.ParseDataIn(h)
		if err != nil {
			return err
		}
		c, into, err := m.place(d)
		if err != nil {
			return err
		}
		m.large = len(data) >= directMin
		m.count.bytesMoved += uint64(copy(into, data))
		m.arrived(c, d)
		return nil
	case pdu.OpR2T:
		r, err := pdu.ParseR2T(h)
		if err != nil {
			return err
		}
		return m.readyToTransfer(r)
	}
	return m.s.take(h, data)
}

// place finds where the data of d belongs.
func (m *tcp) place(d pdu.DataIn) (*Command, []byte, error) {
	c := m.s.find(d.ITT())
	if c == nil {
		return nil, nil, fmt.Errorf("data for the ITT %#x, which is not under way", d.ITT())
	}
	n := d.DataSegmentLen()
	// DataPDUInOrder and DataSequenceInOrder are Yes.
	if int(d.BufferOffset()) != c.got || n > len(c.In)-c.got {
		return nil, nil, fmt.Errorf("LUN %d: %d bytes of data at %d, after %d of %d", c.LUN, n, d.BufferOffset(), c.got, len(c.In))
	}
	return c, c.In[c.got : c.got+n], nil
}

// arrived notes that the data of d is in its place.
func (m *tcp) arrived(c *Command, d pdu.DataIn) {
	c.got += d.DataSegmentLen()
	if d.HasStatus() {
		m.s.numbers(d.Header, true)
		c.more = d.Overflow()
		m.s.status(c, d.Status(), d.Underflow(), d.ResidualCount())
		return
	}
	m.s.numbers(d.Header, false)
}

// direct reads the data of a Data-In to its place, the lock not being held.
func (m *tcp) direct() error {
	h, l, err := m.header()
	if err != nil {
		return err
	}
	m.head = append(m.head[:0], h...) // in is about to be read over
	d, err := pdu.ParseDataIn(m.head)
	if err != nil {
		return err
	}
	m.s.mu.Lock()
	c, into, err := m.place(d)
	m.s.mu.Unlock()
	if err != nil {
		return err
	}
	if m.offers(c, d, m.in[m.r+l.data:m.w]) {
		return m.pass(c, d)
	}
	have := m.in[m.r+l.data : m.w]
	n := copy(into, have)
	moved := uint64(n)
	m.r, m.w = 0, copy(m.in, have[n:]) // the data may be there as a whole, and not what follows it
	for n < len(into) {
		k, err := m.readTo(into[n:], m.in[:ahead])
		switch {
		case err != nil:
			return err
		case k == 0: // somebody else has ended commands
			m.s.begin()
			m.s.end()
		}
		n += k
		m.w = max(0, n-len(into))
	}
	m.large = true
	for m.w < l.end-l.data-len(into) { // padding and digest
		if err := m.more(); err != nil {
			return err
		}
	}
	tail := m.in[:l.end-l.data-len(into)]
	m.r = len(tail)
	if m.dataDigest && !pdu.Digest(0).Update(into).Update(tail[:len(tail)-pdu.DigestLen]).Matches(tail[len(tail)-pdu.DigestLen:]) {
		return errDataDigest
	}
	m.s.begin()
	m.count.pdusIn++
	m.count.bytesIn += uint64(len(into))
	m.count.bytesMoved += moved
	m.arrived(c, d)
	m.s.end()
	return nil
}

// offers reports whether the sink of c takes the data of d, of which first has come.
func (m *tcp) offers(c *Command, d pdu.DataIn, first []byte) bool {
	n := d.DataSegmentLen()
	whole := d.HasStatus() && d.Status() == StatusGood && d.BufferOffset() == 0 && n == len(c.In)
	plain := !m.dataDigest && n == pdu.PaddedLen(n) && !c.joined
	return c.Sink != nil && whole && plain && c.Sink.Accept(first)
}

// pass has the sink of c take the data of d.
func (m *tcp) pass(c *Command, d pdu.DataIn) error {
	m.sink = c.Sink
	for {
		err := m.await(m.passes)
		if err != nil {
			return err
		}
		if m.got > 0 {
			break
		}
		m.s.begin() // somebody else has ended commands
		m.s.end()
	}
	m.sink = nil
	m.r, m.w, m.large = 0, 0, true
	m.s.begin()
	m.count.pdusIn++
	m.count.bytesIn += uint64(d.DataSegmentLen())
	m.arrived(c, d)
	m.s.end()
	return nil
}

// passOnce is what the poller calls.
func (m *tcp) passOnce(uintptr) bool {
	var all bool
	m.got = 0
	if all, m.gotErr = m.sink.Take(m.sock.FD); all {
		m.got = 1
	}
	m.reads.Add(1)
	return all || m.gotErr != nil
}

// answered implements mover: the memory of commands is nobody else's.
func (m *tcp) answered(c *Command) {
	switch {
	case slices.Contains(m.out.late, c): // answered twice
		return
	case m.out.holds(c):
		m.out.late = append(m.out.late, c)
		return
	}
	m.s.finish(c)
}

// shut closes the socket.
func (m *tcp) shut() {
	m.s.mu.Lock()
	was := m.closed
	m.closed = true
	m.s.mu.Unlock()
	if !was {
		_ = m.conn.Close()
	}
}

// stop implements mover.
func (m *tcp) stop(err error) {
	m.s.mu.Lock()
	enabled := m.enabled
	m.s.mu.Unlock()
	m.shut()
	if !enabled { // there is no reader that would notice
		m.sock.Close()
		m.s.lost(err)
	}
}

// memoryOf implements mover.
func (*tcp) memoryOf() rdma.Device { return nil }

// adopt implements mover: sockets take any memory.
func (m *tcp) adopt(*Memory) (func() rdma.Region, error) { return nil, nil }

// counters implements mover.
func (m *tcp) counters() Counters {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	return Counters{
		{"writes", m.count.writes},
		{"reads", m.reads.Load()},
		{"messages_out", m.count.pdusOut},
		{"messages_in", m.count.pdusIn},
		{"bytes_out", m.count.bytesOut},
		{"bytes_in", m.count.bytesIn},
		{"bytes_moved", m.count.bytesMoved},
	}
}
