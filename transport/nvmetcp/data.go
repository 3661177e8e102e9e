package nvmetcp

import (
	"fmt"
	"math/bits"

	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
	"oneshot/nvmf"
	"oneshot/transport/bytestream"
)

// data are those of one command: what has come, what is to come, and where they go.
type data struct {
	bytestream.Sink
	want    int  // bytes of the command, of which Got counts those that were placed
	pulling bool // the queue waits for them
	bad     bool // a digest did not match
	tag     int  // of its transfer in Mover.transfers, or -1
}

func (d *data) reset() {
	d.Reset()
	*d = data{tag: -1}
}

// transfer is an R2T whose data are to come.
type transfer struct {
	t    *task // nil: they are thrown away
	used bool
	tag  uint16
	next uint32 // offset of the next byte
	end  uint32 // offset behind the last one
	cid  uint16
}

// maxTransfers bounds those of a connection, and says how many bits of a tag name one. The others are counted on, so that a tag does not
// come again soon.
const (
	transferBits = 11
	maxTransfers = 1 << transferBits
)

// command takes a CapsuleCmd whose entry is e (NVMe/TCP 1.0 §3.6.2.4).
func (m *Mover) command(e nvme.SQE, s pdu.Shape) error {
	const offPLen = 4
	sgl := e.SGL()
	inCapsule := sgl.Type == nvme.SGLInCapsule && sgl.Length > 0
	if inCapsule && uint32(s.Len) != sgl.Length || !inCapsule && s.Len > 0 {
		return &pdu.Error{
			Fatal: pdu.InvalidHeaderField, Info: offPLen,
			What: fmt.Sprintf("a capsule with %d bytes of data, and an SGL of type %#02x that says %d", s.Len, sgl.Type, sgl.Length),
		}
	}
	if s.Len > m.params.CapsuleData && e.Opcode() != nvme.Fabrics { // these have as much on every queue (§3.5.1.3)
		return &pdu.Error{Fatal: pdu.LimitExceeded, What: fmt.Sprintf("%d bytes of data in a capsule, and %d are allowed", s.Len, m.params.CapsuleData)}
	}
	t := m.newTask()
	t.Objection = nvme.Success
	if !inCapsule && sgl.Length > 0 && sgl.Type != nvme.SGLTransport {
		t.Objection = nvme.SGLType
	}
	t.NoLend = m.dataDigest
	t.in.tag = -1
	if inCapsule {
		m.In.Task, m.capsule = t, s // until its data are in, or it is forgotten
	}
	if !m.queue.Command(&t.Task, e) {
		m.In.Task = nil
		m.FreeTask(&t.Task)
		return &pdu.Error{Fatal: pdu.LimitExceeded, What: "more commands than the queue has entries"}
	}
	if m.In.Task == nil {
		m.begin(s, nil, 0)
		return nil
	}
	switch {
	case m.Held(t):
	case t.in.pulling:
		m.begin(s, t, min(s.Len, t.in.want))
	default: // it has failed
		m.begin(s, nil, 0)
	}
	return nil
}

// Hold implements nvmf.Mover.
func (m *Mover) Hold(nt *nvmf.Task) bool {
	if m.In.Task != of(nt) { // the connection ends
		return false
	}
	m.Link.Hold()
	return true
}

// GetData implements nvmf.Mover.
func (m *Mover) GetData(nt *nvmf.Task) {
	t := of(nt)
	d := &t.in
	if nt.PlaceUnit != 0 {
		d.Place(t, nt.PlaceUnit)
	} else {
		d.Fill(nt.Out)
	}
	d.want, d.pulling = nt.OutLen, true
	switch {
	case m.Held(t):
		m.GoOn()
		m.begin(m.capsule, t, min(m.capsule.Len, d.want))
	case !nt.InCapsule:
		m.ask(t)
	}
}

// ask sends the R2T for the data of t: one for all of them.
func (m *Mover) ask(t *task) {
	i := m.freeTransfer()
	if i < 0 {
		m.Link.Terminate(true)
		m.queue.Violation(errTransfers)
		return
	}
	x := &m.transfers[i]
	x.t, x.used, x.next, x.end, x.cid = t, true, 0, uint32(t.in.want), t.CQE.CID
	x.tag = x.tag&^(maxTransfers-1) | uint16(i)
	t.in.tag = i
	c := m.Out.Control()
	r := pdu.Ready{CID: x.cid, Tag: x.tag, Len: x.end}
	c.Buf = r.AppendTo(c.Buf, m.flags)
	m.sendHeader(c)
}

var errTransfers = fmt.Errorf("the host leaves %d transfers of aborted commands open", maxTransfers)

// freeTransfer returns one that is not in use, or -1.
func (m *Mover) freeTransfer() int {
	for w := range m.idle {
		if free := m.idle[w]; free != 0 {
			i := w*64 + bits.TrailingZeros64(free)
			m.idle[w] &^= 1 << (i % 64)
			return i
		}
	}
	if n := len(m.transfers); n < maxTransfers {
		m.transfers = append(m.transfers, transfer{})
		if n%64 == 0 {
			m.idle = append(m.idle, 0)
		}
		return n
	}
	return -1
}

// dataOut takes an H2CData PDU (NVMe/TCP 1.0 §3.6.2.6).
func (m *Mover) dataOut(h pdu.Data, s pdu.Shape) error {
	i := int(h.Tag) % maxTransfers
	if i >= len(m.transfers) || !m.transfers[i].used || m.transfers[i].tag != h.Tag {
		return &pdu.Error{Fatal: pdu.SequenceError, What: fmt.Sprintf("data for the transfer tag %#04x, which waits for none", h.Tag)}
	}
	x := &m.transfers[i]
	switch {
	case h.CID != x.cid:
		return &pdu.Error{Fatal: pdu.InvalidHeaderField, Info: pdu.OffDataCID, What: fmt.Sprintf("data of command %#04x with a transfer tag of command %#04x", h.CID, x.cid)}
	case h.Len != uint32(s.Len):
		return &pdu.Error{Fatal: pdu.InvalidHeaderField, Info: pdu.OffDataLen, What: fmt.Sprintf("%d bytes of data in a PDU that says %d", s.Len, h.Len)}
	case h.Offset != x.next || h.Len > x.end-x.next:
		return &pdu.Error{Fatal: pdu.DataOutOfRange, What: fmt.Sprintf("%d bytes at %d, and those from %d to %d were asked for", h.Len, h.Offset, x.next, x.end)}
	}
	x.next += h.Len
	t := x.t
	if x.next == x.end {
		if t != nil {
			t.in.tag = -1
		}
		m.endTransfer(i)
	}
	if t == nil {
		m.begin(s, nil, 0)
		return nil
	}
	m.begin(s, t, s.Len)
	return nil
}

// endTransfer has the next one in its place have another tag.
func (m *Mover) endTransfer(i int) {
	x := &m.transfers[i]
	x.t, x.used = nil, false
	x.tag += maxTransfers
	m.idle[i/64] |= 1 << (i % 64)
}

// arrived says that the data of a PDU of t are in; good: their digest matched.
func (m *Mover) arrived(t *task, good bool) {
	d := &t.in
	m.queue.DataCame(&t.Task)
	d.bad = d.bad || !good
	if d.Got < d.want || d.tag >= 0 || !d.pulling {
		return
	}
	d.pulling = false
	if d.bad {
		m.queue.DataFailed(&t.Task, nvmf.DigestMismatch)
		return
	}
	m.queue.GotData(&t.Task)
}

// Forget implements nvmf.Mover.
func (m *Mover) Forget(nt *nvmf.Task) bool {
	t := of(nt)
	t.in.pulling = false
	if i := t.in.tag; i >= 0 {
		m.transfers[i].t = nil
		t.in.tag = -1
	}
	if m.Held(t) {
		m.GoOn()
		m.begin(m.capsule, nil, 0)
	}
	m.In.Forget(t)
	return true
}
