package tcp

import (
	"oneshot/internal/iov"
	"oneshot/internal/serial"
	"oneshot/iscsi"
	"oneshot/iscsi/pdu"
	"oneshot/transport/bytestream"
)

const (
	// maxHeavy is how many bytes of control PDUs may wait for the socket before no more input is taken. One who has
	// proved nothing may have maxLight.
	maxHeavy = 256 << 10
	maxLight = 16 << 10
	// maxHeaders is how many Data-In PDUs of one answer are made at a time. How many an answer
	// has, the initiator decides: 4 MiB in segments of 512 bytes are 8192.
	maxHeaders = 64
)

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

// SendControl implements iscsi.Datamover.
func (m *Mover) SendControl(bhs, data []byte, _ iscsi.Ending) {
	c := m.Out.Control()
	c.Buf = append(c.Buf, bhs...)
	if m.headerDigest {
		c.Buf = pdu.Digest(0).Update(bhs).AppendTo(c.Buf)
	}
	c.Buf = m.appendSegment(c.Buf, data)
	m.Send(c)
}

// appendSegment appends a data segment with its padding and digest.
func (m *Mover) appendSegment(b, data []byte) []byte {
	if len(data) == 0 {
		return b
	}
	start := len(b)
	b = append(b, data...)
	b = append(b, pdu.Padding(len(data))...)
	if m.dataDigest {
		b = pdu.Digest(0).Update(b[start:]).AppendTo(b)
	}
	return b
}

// queueHeader queues a control PDU that is a header only, without digest yet.
func (m *Mover) queueHeader(c *bytestream.Control) {
	if m.headerDigest {
		c.Buf = pdu.Digest(0).Update(c.Buf).AppendTo(c.Buf)
	}
	m.Send(c)
}

// Answer implements iscsi.Datamover.
func (m *Mover) Answer(it *iscsi.Task) {
	t := of(it)
	m.In.Forget(t)
	n := 0
	for _, s := range it.In {
		n += len(s)
	}
	// PDUs with status leave in the order of their numbers, and so do items.
	t.ans.statSN = m.conn.Status().StatSN
	t.ans.src, t.ans.left, t.ans.off, t.ans.dataSN, t.ans.pdus = iov.At(it.In, 0), n, 0, 0, 0
	m.Link.Answer(t)
}

// Fill implements bytestream.Mover.
func (m *Mover) Fill() {
	for t := m.Out.Next(); t != nil && m.cut(t); t = m.Out.Next() {
		m.Out.Made()
	}
}

// cut queues the next PDUs of t's answer. False: the rest has to wait until these have left,
// for its headers take their place.
func (m *Mover) cut(t *task) bool {
	a := &t.ans
	if a.off > 0 && !m.Out.Empty() {
		return false
	}
	m.pdusOut += a.pdus
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
	m.Out.Add(t.ans.buf[start:])
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
	pad := pdu.Padding(n)
	var d pdu.Digest
	for n > 0 {
		b := src.Next(n)
		n -= len(b)
		m.Out.Add(b)
		if m.dataDigest {
			d = d.Update(b)
		}
	}
	start := len(t.ans.buf)
	t.ans.buf = append(t.ans.buf, pad...)
	if m.dataDigest {
		t.ans.buf = d.Update(pad).AppendTo(t.ans.buf)
	}
	if len(t.ans.buf) > start {
		m.Out.Add(t.ans.buf[start:])
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
		t.ans.buf = append(t.ans.buf, pdu.Padding(2+n)...)
		if m.dataDigest {
			t.ans.buf = pdu.Digest(0).Update(t.ans.buf[start:]).AppendTo(t.ans.buf)
		}
		m.Out.Add(t.ans.buf[start:])
	}
}

// Release implements bytestream.Mover.
func (m *Mover) Release() {
	for t := m.Out.Left(); t != nil; t = m.Out.Left() {
		m.pdusOut += t.ans.pdus
		m.conn.Sent(&t.Task)
	}
}

// Abandon implements bytestream.Mover.
func (m *Mover) Abandon() {
	for t := m.Out.Drop(); t != nil; t = m.Out.Drop() {
		m.conn.AnswerLost(&t.Task)
	}
}
