package nvmetcp

import (
	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
	"oneshot/nvmf"
	"oneshot/transport/bytestream"
)

// maxHeavy is how many bytes of control PDUs may wait for the socket before no more input is taken.
const maxHeavy = 64 << 10

// sendHeader queues a control PDU that is a header only, without digest yet.
func (m *Mover) sendHeader(c *bytestream.Control) {
	if m.headerDigest {
		c.Buf = pdu.Digest(0).Update(c.Buf).AppendTo(c.Buf)
	}
	m.Send(c)
}

// Answer implements nvmf.Mover.
func (m *Mover) Answer(nt *nvmf.Task) {
	t := of(nt)
	m.Forget(nt)
	if m.mute || m.Shut() {
		m.queue.AnswerLost(nt)
		return
	}
	m.Link.Answer(t)
}

// Fill implements bytestream.Mover.
func (m *Mover) Fill() {
	for t := m.Out.Next(); t != nil; t = m.Out.Next() {
		m.cut(t)
		m.Out.Made()
	}
}

// cut queues the answer of t: its data in one PDU, and its completion, which a flag of the data stands for if nobody looks
// at what else it has.
func (m *Mover) cut(t *task) {
	n := 0
	for _, s := range t.In {
		n += len(s)
	}
	b := t.buf[:0]
	collapse := n > 0 && m.params.Collapse && t.CQE.Status == nvme.Success && t.CQE.DW0 == 0 && t.CQE.DW1 == 0
	if n > 0 {
		b = m.dataIn(t, b, n, collapse)
	}
	if !collapse {
		start := len(b)
		b = pdu.AppendResponse(b, m.flags, &t.CQE)
		if m.headerDigest {
			b = pdu.Digest(0).Update(b[start:]).AppendTo(b)
		}
		m.Out.Add(b[start:])
	}
}

// dataIn queues a C2HData PDU with the n bytes of t.In (NVMe/TCP 1.0 §3.6.2.7), with headers in b.
func (m *Mover) dataIn(t *task, b []byte, n int, collapse bool) []byte {
	flags := m.flags | pdu.FlagLast
	if m.dataDigest {
		flags |= pdu.FlagDataDigest
	}
	if collapse {
		flags |= pdu.FlagSuccess
	}
	at := pdu.DataStart(pdu.DataLen, m.headerDigest, m.align)
	d := pdu.Data{CID: t.CQE.CID, Len: uint32(n)}
	b = d.AppendTo(b, pdu.C2HData, flags, at)
	if m.headerDigest {
		b = pdu.Digest(0).Update(b).AppendTo(b)
	}
	for len(b) < at {
		b = append(b, 0)
	}
	m.Out.Add(b)
	var sum pdu.Digest
	for _, s := range t.In {
		if len(s) == 0 {
			continue
		}
		m.Out.Add(s)
		if m.dataDigest {
			sum = sum.Update(s)
		}
	}
	if m.dataDigest {
		b = sum.AppendTo(b)
		m.Out.Add(b[at:])
	}
	return b
}

// Release implements bytestream.Mover.
func (m *Mover) Release() {
	for t := m.Out.Left(); t != nil; t = m.Out.Left() {
		m.queue.Sent(&t.Task)
	}
}

// Abandon implements bytestream.Mover.
func (m *Mover) Abandon() {
	for t := m.Out.Drop(); t != nil; t = m.Out.Drop() {
		m.queue.AnswerLost(&t.Task)
	}
}
