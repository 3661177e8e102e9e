package tcp

import (
	"oneshot/iscsi/pdu"
	"oneshot/transport/bytestream"
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
)

var sizes = bytestream.Sizes{Len: inLen, Read: readLen, Room: readLen}

// Parse implements bytestream.Mover.
func (m *Mover) Parse() error {
	for {
		switch m.Step() {
		case bytestream.Wait:
			return nil
		case bytestream.Data:
			m.segmentDone()
		case bytestream.Header:
			if more, err := m.header(); err != nil || !more {
				return err
			}
		}
	}
}

// header takes the next PDU's header. False: it has not come as a whole.
func (m *Mover) header() (bool, error) {
	b := m.In.Bytes()
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
	m.pdusIn++
	switch h.Opcode() {
	case pdu.OpSCSICommand:
		return true, m.command(b[:n], whole)
	case pdu.OpDataOut:
		return true, m.dataOut(b[:n], whole)
	}
	came, err := m.control(b, h, n, whole)
	if !came {
		m.pdusIn-- // it is looked at again
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
	m.In.Skip(end)
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
	dsl := h.DataSegmentLen()
	m.last = h.Final()
	if m.dataDigest && dsl > 0 {
		copy(m.hdr[:], h)
	}
	g := bytestream.Segment{Head: whole, Len: dsl, Pad: len(pdu.Padding(dsl)), Digest: m.dataDigest}
	var s *bytestream.Sink
	if t != nil {
		s = &t.out.Sink
	}
	m.In.Begin(g, t, s, place)
}

func (m *Mover) segmentDone() {
	t, good := m.In.Done()
	if !good {
		m.conn.BadDigest(m.hdr[:])
	}
	if t != nil {
		m.arrived(t, m.last, good)
	}
}
