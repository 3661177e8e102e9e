package iser

import (
	"oneshot/iscsi/pdu"
	"oneshot/mem"
	"oneshot/transport/rdma"
)

// receive takes one message.
func (m *Mover) receive(b []byte, c *rdma.Completion) {
	if !m.begun {
		m.begin(b)
	}
	var h header
	if m.direct {
		h = m.advertised(b, c)
	} else {
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
	if m.dead {
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
		if head.Opcode() == pdu.OpTaskManagementRequest {
			m.noteAbort(head)
		}
		if !m.dead {
			m.conn.Receive(head, data)
		}
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
	if m.qp.OneShot() == nil {
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

// advertised says which buffer a message of iSCSI-direct comes with: the one whose STag is in
// its header, from tagged offset 0 on.
func (m *Mover) advertised(b []byte, c *rdma.Completion) (h header) {
	if c.Flags&rdma.Advertised == 0 {
		return header{}
	}
	if len(b) < pdu.BHSLen || pdu.Header(b).Opcode() != pdu.OpSCSICommand {
		m.violation("an STag advertised by a PDU that is no SCSI Command")
		return header{}
	}
	if b[1]&0x20 != 0 { // the W bit (RFC 7143 §11.3.1)
		h.write = c.STag
	} else {
		h.read = c.STag
	}
	return h
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
	c := &m.command
	c.busy, c.header, c.immediate = true, buffers, data
	it := m.conn.Command(h)
	t := c.task
	c.busy, c.task, c.header, c.immediate = false, nil, header{}, nil
	if it == nil {
		if m.direct && buffers != (header{}) && !m.rejected {
			m.violation("a SCSI command outside of the window, whose STag will never be closed")
		}
		m.rejected = false
		return
	}
	if len(data) > 0 && it.Outstanding() && it.Write && !t.taken {
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

// noteAbort remembers which task an ABORT TASK is about: its response closes the task's STag
// (one-shot.md §5.4, R4).
func (m *Mover) noteAbort(head pdu.Header) {
	h := pdu.TaskManagementRequest{Header: head}
	if !m.direct || h.Function() != pdu.TaskAbortTask {
		return
	}
	if len(m.aborting) >= m.target.cfg.Commands+extraSlots {
		m.violation("%d ABORT TASK requests that have no response, more than the command window takes", len(m.aborting))
		return
	}
	m.aborting[h.ITT()] = h.ReferencedTaskTag()
}
