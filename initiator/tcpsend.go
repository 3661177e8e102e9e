package initiator

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"oneshot/internal/iov"
	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
)

// sender is what is to be written: headers of its own, and data where it lies.
type sender struct {
	iov.Batch
	head    []byte
	mine    bool       // the last piece lies in head
	blocked bool       // the socket is full; onWritable goes on
	late    []*Command // answered before all of their data was written
	control uint64     // Queued behind the last PDU that is no command and no data of one
}

// push adds b, which must stay as it is until it is written.
func (o *sender) push(b []byte) {
	if len(b) > 0 {
		o.Add(b)
		o.mine = false
	}
}

// own adds what was appended to head from start on, to the last piece if that lies in head as well.
func (o *sender) own(start int) {
	b := o.head[start:]
	switch {
	case len(b) == 0:
	case o.mine && o.Continues(b): // head may have moved
		o.Extend(len(b))
	default:
		o.Add(b)
		o.mine = true
	}
}

// holds reports whether data of c is still to be written.
func (o *sender) holds(c *Command) bool {
	if len(c.Out) == 0 {
		return false
	}
	from := uintptr(unsafe.Pointer(unsafe.SliceData(c.Out)))
	for _, v := range o.Pending() {
		if at := uintptr(unsafe.Pointer(v.Base)); at >= from && at < from+uintptr(len(c.Out)) {
			return true
		}
	}
	return false
}

// sendHeader adds the digest to the header that was appended to head from start on, and queues both.
func (m *tcp) sendHeader(start int) {
	o := &m.out
	if m.headerDigest {
		o.head = pdu.Digest(0).Update(o.head[start:]).AppendTo(o.head)
	}
	o.own(start)
	m.count.pdusOut++
}

// data adds a data segment with its padding and digest.
func (m *tcp) data(data []byte) {
	if len(data) == 0 {
		return
	}
	m.count.bytesOut += uint64(len(data))
	m.out.push(data)
	start := len(m.out.head)
	m.out.head = append(m.out.head, pdu.Padding(len(data))...)
	if m.dataDigest {
		m.out.head = pdu.Digest(0).Update(data).Update(pdu.Padding(len(data))).AppendTo(m.out.head)
	}
	m.out.own(start)
}

// control implements mover.
func (m *tcp) control(bhs, data []byte) {
	if m.closed {
		return
	}
	start := len(m.out.head)
	m.out.head = append(m.out.head, bhs...)
	m.sendHeader(start)
	m.data(append([]byte(nil), data...))
	m.out.control = m.out.Queued
}

// command implements mover.
func (m *tcp) command(c *Command, immediate int) {
	if m.closed {
		return // Session.lost ends it
	}
	burst := min(len(c.Out), m.s.burst)
	c.fields.Final = burst == immediate
	start := len(m.out.head)
	m.out.head = c.fields.AppendTo(m.out.head)
	m.sendHeader(start)
	m.data(c.Out[:immediate])
	if !c.fields.Final {
		m.dataOut(c, pdu.ReservedTag, immediate, burst)
	}
}

// dataOut sends bytes from up to to of c's data, as one sequence.
func (m *tcp) dataOut(c *Command, ttt uint32, from, to int) {
	for n := serial.SN(0); from < to; n++ {
		k := min(to-from, int(m.s.p.MaxRecvDataSegmentLength))
		f := pdu.DataOutFields{
			Final: from+k == to, DataSegmentLength: k, LUN: wireLUN(c.LUN), ITT: c.itt, TTT: ttt,
			ExpStatSN: m.s.expStatSN, DataSN: n, BufferOffset: uint32(from),
		}
		start := len(m.out.head)
		m.out.head = f.AppendTo(m.out.head)
		m.sendHeader(start)
		m.data(c.Out[from : from+k])
		from += k
	}
}

// readyToTransfer sends what the target asks for (RFC 7143 §11.8).
func (m *tcp) readyToTransfer(r pdu.R2T) error {
	m.s.numbers(r.Header, false)
	c := m.s.find(r.ITT())
	if c == nil {
		return fmt.Errorf("an R2T for the ITT %#x, which is not under way", r.ITT())
	}
	from, n := int(r.BufferOffset()), int(r.DesiredDataTransferLength())
	if n == 0 || n > int(m.s.p.MaxBurstLength) || from > len(c.Out) || n > len(c.Out)-from {
		return fmt.Errorf("LUN %d: an R2T for %d bytes at %d of %d", c.LUN, n, from, len(c.Out))
	}
	// Without error recovery no byte is asked for twice (RFC 7143 §7.1.5).
	if c.asked += n; c.asked > len(c.Out) {
		return fmt.Errorf("LUN %d: R2Ts for %d bytes of %d", c.LUN, c.asked, len(c.Out))
	}
	m.dataOut(c, r.TTT(), from, from+n)
	return nil
}

// flush implements mover.
func (m *tcp) flush() {
	if m.out.blocked || m.closed {
		return
	}
	if !m.send() {
		m.out.blocked = true
		m.sock.AwaitRoom()
	}
	m.poke()
}

// poke has the reader call Done of what has ended without its doing.
func (m *tcp) poke() {
	if m.s.finished.head != nil && !m.s.incoming {
		_ = m.conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// send writes as much as the socket takes. False: not all.
func (m *tcp) send() bool {
	for {
		for !m.out.Empty() {
			n, errno := iov.Writev(m.sock.FD, m.out.Next())
			m.count.writes++
			switch errno {
			case 0:
				if m.out.Advance(n); m.out.Written >= m.out.control {
					m.s.echoes = 0
				}
			case unix.EINTR:
			case unix.EAGAIN:
				return false
			case unix.EPIPE, unix.ECONNRESET:
				return true // the reader learns of it
			default:
				m.unsendable(errno)
				return true
			}
		}
		m.out.head = m.out.head[:0]
		if len(m.out.late) == 0 {
			return true
		}
		for _, c := range m.out.late {
			m.s.finish(c)
		}
		m.out.late = m.out.late[:0]
		m.s.issue() // what a unit attention has put back
	}
}

// unsendable ends the connection: nobody but the kernel and we know that it does not take what is to be sent, memory that is none, say.
func (m *tcp) unsendable(errno unix.Errno) {
	if m.s.err == nil {
		m.s.err = fmt.Errorf("sending: %w", errno)
	}
	_ = unix.Shutdown(m.sock.FD, unix.SHUT_RDWR) // which the reader notices
}

// onWritable goes on when the socket was full. False: it is full again.
func (m *tcp) onWritable() bool {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	done := m.closed || m.send()
	if done {
		m.out.blocked = false
	}
	m.poke()
	return done
}
