package nvmetcp

import (
	"fmt"

	"oneshot/mem"
	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
	"oneshot/transport/bytestream"
)

const (
	// inLen is the length of the buffer, and so how much is read at once besides data that go straight to their place.
	inLen = 128 << 10
	// minRead is how much room is made for a read.
	minRead = 4 << 10
	// maxH2CData is the most data in one H2CData PDU, MAXH2CDATA: that of any command.
	maxH2CData = mem.MaxLease
)

var sizes = bytestream.Sizes{Len: inLen, Read: inLen, Room: minRead}

// Parse implements bytestream.Mover.
func (m *Mover) Parse() error {
	for {
		switch m.Step() {
		case bytestream.Wait:
			return nil
		case bytestream.Data:
			if t, good := m.In.Done(); t != nil {
				m.arrived(t, good)
			}
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
	if len(b) < pdu.CommonLen {
		return false, nil
	}
	h := pdu.Header(b)
	m.offender = b[:min(len(b), pdu.MaxTermData)]
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
	m.offender = b[:n]
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
	case pdu.CapsuleCmd: // whose command is not known yet; see command
		return max(m.params.CapsuleData, Transport.AdminCapsule)
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
	m.In.Skip(s.End)
	m.initialized, m.align = true, c.Align
	m.headerDigest, m.dataDigest = c.HeaderDigest, c.DataDigest
	if c.HeaderDigest {
		m.flags = pdu.FlagHeaderDigest
	}
	answer := pdu.IC{HeaderDigest: c.HeaderDigest, DataDigest: c.DataDigest, Max: maxH2CData}
	control := m.Out.Control()
	control.Buf = answer.AppendTo(control.Buf, pdu.ICResp)
	m.Send(control)
	return nil
}

// begin begins the data of a PDU, whose header is in the buffer. Of its bytes the first place go to t, the rest nowhere.
func (m *Mover) begin(s pdu.Shape, t *task, place int) {
	g := bytestream.Segment{Head: s.Head, Lead: s.Data - s.Head, Len: s.Len, Digest: s.End > s.Data+s.Len}
	if s.Len == 0 {
		m.In.Skip(s.Head)
		return
	}
	var sink *bytestream.Sink
	if t != nil {
		sink = &t.in.Sink
	}
	m.In.Begin(g, t, sink, place)
}
