package iser

import (
	"oneshot/iscsi"
	"oneshot/iscsi/pdu"
	"oneshot/transport/rdma"
)

// Answer implements iscsi.Datamover: RDMA Writes of the data-in, and the SCSI Response, in one
// post (RFC 7145 §7.3.5, §7.3.6).
func (m *Mover) Answer(it *iscsi.Task) {
	t := of(it)
	n := 0
	for _, s := range it.In {
		n += len(s)
	}
	if n > 0 && t.header.read == 0 {
		m.violation("a command with ITT %#x has no buffer for its data: its Read STag is not valid", it.ITT)
		n = 0
	}
	if n == 0 {
		t.ans.Clear()
	} else if !m.dataIn(t, n) {
		// As for other commands for which there is no memory: initiators send it again.
		it.Untold()
		it.Status, it.Sense, it.In, it.Transfer = taskSetFull, nil, nil, 0
		t.ans.Clear()
	}
	m.response(t)
	m.Push(&t.ans)
}

// taskSetFull is the status TASK SET FULL (SAM-5 §5.3.1).
const taskSetFull = 0x28

// response makes the SCSI Response PDU of t the message of its answer.
func (m *Mover) response(t *task) {
	res := t.Residual()
	f := pdu.SCSIResponseFields{
		Response: pdu.ResponseCommandCompleted, Status: uint8(t.Status), ITT: t.ITT,
		Overflow: res.Overflow, Underflow: res.Underflow, ResidualCount: res.Count,
		Sequence: m.conn.Status(),
	}
	if n := len(t.Sense); n > 0 {
		f.DataSegmentLength = 2 + n
	}
	b := m.frame(t.small[:0])
	b = f.AppendTo(b)
	if n := len(t.Sense); n > 0 {
		// RFC 7143 §11.4.7: the sense data follows its length.
		b = append(b, byte(n>>8), byte(n))
		b = append(b, t.Sense...)
		b = append(b, zeroes[:pdu.PaddedLen(2+n)-2-n]...)
	}
	w := &t.ans.Message
	*w = rdma.Work{Op: rdma.OpSend}
	m.end(w, t)
	t.ans.HasMessage = true
	m.Attach(w, b, &t.long, &t.sgl)
}

// end has the response take the initiator's STag back, where that was agreed.
func (m *Mover) end(w *rdma.Work, t *task) {
	s := t.header.read
	if s == 0 {
		s = t.header.write
	}
	switch {
	case s == 0:
	case t.header.held:
		m.takeBack(w, s)
	case m.invalidate && m.enabled:
		w.Flags, w.STag = rdma.Invalidate, s
	}
}

// takeBack has w end an STag that the initiator has advertised: with a Close or, if only advertising
// was agreed, by invalidating it (one-shot.md §5.4, R6).
func (m *Mover) takeBack(w *rdma.Work, s rdma.STag) {
	if w.Flags, w.STag = rdma.Close, s; !m.QueuePair().OneShot().Close {
		w.Flags = rdma.Invalidate
	}
}

// frame appends what precedes a PDU.
func (m *Mover) frame(b []byte) []byte {
	if m.direct {
		return b
	}
	return appendHeader(b)
}

var zeroes [4]byte

// SendControl implements iscsi.Datamover.
func (m *Mover) SendControl(bhs, data []byte, end iscsi.Ending) {
	most := maxWaiting
	if m.controls >= lightControls && !m.conn.Proved() {
		most = lightWaiting
	}
	if m.controls >= maxControls || m.waiting+len(data) > most {
		m.violation("%d PDUs with %d bytes wait for the initiator to take them: it asks for more than it takes", m.controls, m.waiting)
		return
	}
	c := m.newControl()
	c.data = len(data)
	m.waiting += c.data
	c.buf = m.frame(c.buf[:0])
	c.buf = append(c.buf, bhs...)
	c.buf = append(c.buf, data...)
	c.buf = append(c.buf, zeroes[:pdu.PaddedLen(len(data))-len(data)]...)
	w := &c.Message
	*w = rdma.Work{Op: rdma.OpSend}
	c.HasMessage = true
	c.Clear()
	if s := m.over(end); s != 0 {
		m.takeBack(w, s)
	}
	m.Attach(w, c.buf, &c.memory, &c.sgl)
	m.Push(&c.Entry)
}

// over returns the STag that a control PDU closes, or 0: that of a command that it refuses, or of the
// task whose ABORT TASK it answers (one-shot.md §5.4, R1 and R4).
func (m *Mover) over(end iscsi.Ending) (s rdma.STag) {
	switch {
	case end.Command != nil:
		if t := of(end.Command); t.header.held {
			s = t.header.read | t.header.write
			t.header = header{}
		}
	case end.Abort:
		s = m.orphans[end.ITT]
		delete(m.orphans, end.ITT)
	}
	return s
}

// maxControls bounds the PDUs of the session's own, answers to NOP-Outs among them, that have not been sent: an
// initiator may ask without end, and where its Sends wait for receives (rdma.Limits.ReceiveWait), so do ours.
// Answers of commands are bounded by the session (iscsi.Conn.Command). maxWaiting bounds the data in these PDUs. Of an initiator that has
// proved nothing no more than lightControls of them may have more data than lightWaiting.
const (
	maxControls   = 512
	maxWaiting    = 256 << 10
	lightControls = 2 // a piece of a list of targets, and the one before, of which the device has not told yet that it was sent
	lightWaiting  = 16 << 10
)

func (m *Mover) newControl() *control {
	m.controls++
	if n := len(m.spare); n > 0 {
		c := m.spare[n-1]
		m.spare = m.spare[:n-1]
		return c
	}
	c := new(control)
	c.Owner, c.Counted = c, true
	m.Enter(&c.Entry)
	return c
}

func (m *Mover) freeControl(c *control) {
	m.controls--
	m.waiting -= c.data
	m.GiveBack(&c.memory)
	if cap(c.buf) > keptBuffer {
		c.buf = nil
	}
	m.spare = append(m.spare, c)
}

// keptBuffer is the longest buffer that is kept for the next control PDU.
const keptBuffer = 1 << 10
