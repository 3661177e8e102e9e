package iser

import (
	"oneshot/iscsi/pdu"
	"oneshot/mem"
	"oneshot/transport/rdma"
)

// Receive implements queuepair.Mover.
func (m *Mover) Receive(b []byte, c *rdma.Completion) {
	if !m.begun {
		m.begin(b)
	}
	var h header
	if !m.direct {
		ok := false
		if h, ok = parseHeader(b); !ok {
			if len(b) > 0 && b[0]>>4 == opHello {
				m.violation("an iSER Hello, which was not asked for (iSERHelloRequired=No)")
			} else {
				m.violation("a message of %d octets without an iSER header", len(b))
			}
			return
		}
		b = b[headerLen:]
	}
	if m.advertised(b, c, &h); m.Dead() {
		return
	}
	head, data, ok := split(b)
	if !ok && !m.direct && unsent(b, h) {
		head, ok = pdu.Header(b), true
	}
	if !ok {
		m.violation("a message of %d octets, which is shorter than its PDU", len(b))
		return
	}
	switch {
	case len(data) > maxSegment:
		m.violation("PDU %v with %d octets of data, over the %d agreed", head.Opcode(), len(data), maxSegment)
	case head.Opcode() == pdu.OpSCSICommand:
		m.scsiCommand(head, data, h)
	case head.Opcode() == pdu.OpDataOut:
		m.violation("a Data-Out PDU, though InitialR2T=Yes was negotiated")
	default:
		m.conn.Receive(head, data)
	}
}

// begin decides on the framing: an iSER header begins with 0001b, an iSCSI login request with
// an opcode of 0x43 or 0x03.
func (m *Mover) begin(b []byte) {
	m.begun = true
	if len(b) == 0 || b[0]>>4 == opControl || b[0]>>4 == opHello {
		return
	}
	m.direct = true
	if m.QueuePair().OneShot() == nil {
		m.violation("an iSCSI PDU without iSER header, on a connection that has not agreed to one-shot RDMA")
	}
}

// split finds the parts of a PDU without digests. What follows the data, such as padding, is
// not looked at.
func split(b []byte) (h pdu.Header, data []byte, ok bool) {
	if len(b) < pdu.BHSLen {
		return nil, nil, false
	}
	h = pdu.Header(b)
	n := pdu.BHSLen + h.TotalAHSLen()
	if len(b) < n || len(b)-n < h.DataSegmentLen() {
		return nil, nil, false
	}
	return h[:n], b[n : n+h.DataSegmentLen()], true
}

// unsent reports whether b is a command that announces immediate data and has none, while its
// buffer is there to be read. libiscsi before 1.20 sends each WRITE so: what has not come is
// fetched, all of it, and the Base Offset is that of the first octet.
func unsent(b []byte, buffers header) bool {
	if len(b) < pdu.BHSLen || buffers.write == 0 {
		return false
	}
	h := pdu.Header(b)
	return h.Opcode() == pdu.OpSCSICommand && len(b) == pdu.BHSLen+h.TotalAHSLen()
}

// advertised notes the STag that the DDP header of a message advertises. In iSCSI-direct that is the
// command's buffer, from tagged offset 0 on; in iSER the iSER header says the same of it once more
// (one-shot.md §3, profiles P1 and P2).
func (m *Mover) advertised(b []byte, c *rdma.Completion, h *header) {
	if c.Flags&rdma.Advertised == 0 {
		return
	}
	if len(b) < pdu.BHSLen || pdu.Header(b).Opcode() != pdu.OpSCSICommand {
		m.violation("an STag advertised by a PDU that is no SCSI Command")
		return
	}
	switch {
	case !m.direct:
		if h.write|h.read != c.STag || h.write&h.read != 0 {
			m.violation("the DDP header advertises STag %#x, the iSER header %#x to be read and %#x to be written", c.STag, h.write, h.read)
			return
		}
	case b[1]&0x20 != 0: // the W bit (RFC 7143 §11.3.1)
		h.write = c.STag
	default:
		h.read = c.STag
	}
	h.held = true
}

// scsiCommand takes a SCSI Command PDU.
func (m *Mover) scsiCommand(head pdu.Header, data []byte, buffers header) {
	h, err := pdu.ParseSCSICommand(head)
	if err != nil {
		m.violation("%v", err)
		return
	}
	if h.Write() && len(data) > 0 {
		switch {
		case m.enabled && !m.p.ImmediateData:
			m.violation("immediate data, though ImmediateData=No was negotiated")
			return
		case m.enabled && len(data) > int(m.p.FirstBurstLength):
			m.violation("%d octets of immediate data, over FirstBurstLength=%d", len(data), m.p.FirstBurstLength)
			return
		case uint64(len(data)) > uint64(h.EDTL()):
			m.violation("%d octets of immediate data for a transfer of %d", len(data), h.EDTL())
			return
		}
	}
	t := m.newTask()
	t.header, t.immediate, t.came = buffers, len(data), data
	taken := m.conn.Command(&t.Task, h)
	t.came = nil
	switch {
	case !taken:
		held := t.header.held
		m.FreeTask(&t.Task)
		if held {
			m.violation("a SCSI command outside of the window, whose STag will never be closed")
		}
	case len(data) > 0 && t.Outstanding() && t.Write && !t.taken:
		m.keep(t, data)
	}
}

// keep puts data-out aside that the session has not asked for yet.
func (m *Mover) keep(t *task, data []byte) {
	var l *mem.Lease
	if l = m.conn.TryLease(&t.Task, len(data)); l == nil {
		m.conn.Refuse(&t.Task)
		return
	}
	copy(l.Bytes(), data)
	t.stash = l
}
