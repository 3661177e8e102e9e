package nvmetcp

import (
	"fmt"
	"math/bits"
	"sync"

	"oneshot/internal/invariant"
	"oneshot/internal/iov"
	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
	"oneshot/nvmf"
)

// data are those of one command: what has come, what is to come, and where they go. They come in the order of their
// offsets, so that one cursor is enough.
type data struct {
	dst     iov.Cursor // the rest of the memory to fill
	unit    int        // not 0: they go to the store in whole blocks of so many bytes, not to dst
	part    *block     // the beginning of such a block, whose rest is to come; nil: there was none yet
	partN   int        // bytes of it that are there: got modulo unit
	want    int
	got     int  // of these, bytes placed
	pulling bool // the queue waits for them
	bad     bool // a digest did not match
	tag     int  // of its transfer in Mover.transfers, or -1
}

func (d *data) reset() {
	if d.part != nil {
		blocks.Put(d.part)
	}
	*d = data{tag: -1}
}

// block is as large as blocks get (nvmf.NamespaceConfig.BlockSize).
type block [4096]byte

// blocks are those that no command has. A command has at most one.
var blocks = sync.Pool{New: func() any { return new(block) }}

// put takes the next bytes of the data of t.
func (d *data) put(t *task, b []byte) {
	if d.unit == 0 {
		n := d.dst.CopyIn(b)
		invariant.Check(n == len(b), "a command takes data and has memory for them")
		d.got += n
		return
	}
	if d.partN > 0 {
		n := copy(d.part[d.partN:d.unit], b)
		d.gathered(t, n)
		b = b[n:]
	}
	if n := len(b) / d.unit * d.unit; n > 0 {
		t.Place(d.got, b[:n])
		d.got += n
		b = b[n:]
	}
	if len(b) > 0 {
		d.gather(b)
	}
}

// gather keeps b, the first bytes of a block.
func (d *data) gather(b []byte) {
	if d.part == nil {
		d.part = blocks.Get().(*block)
	}
	d.partN = copy(d.part[:], b)
	d.got += d.partN
}

// gathered notes that n more bytes of the block in part are there, which goes to the store when all are.
func (d *data) gathered(t *task, n int) {
	d.partN += n
	d.got += n
	if n > 0 && d.partN == d.unit {
		t.Place(d.got-d.unit, d.part[:d.unit])
		d.partN = 0
	}
}

// digest adds the next n bytes of memory to sum.
func (d *data) digest(sum pdu.Digest, n int) pdu.Digest {
	for c := d.dst; n > 0; {
		b := c.Next(n)
		sum = sum.Update(b)
		n -= len(b)
	}
	return sum
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
	t := m.newTask()
	t.NoLend = m.dataDigest
	t.in.tag = -1
	if inCapsule {
		m.rx.t = t // until its data are in, or it is forgotten
	}
	if !m.queue.Command(&t.Task, e) {
		m.rx.t = nil
		m.FreeTask(&t.Task)
		return &pdu.Error{Fatal: pdu.LimitExceeded, What: "more commands than the queue has entries"}
	}
	if m.rx.t == nil {
		m.begin(s, nil, 0)
		return nil
	}
	// Whoever has data in the capsule wants them at once, or not at all.
	place := 0
	if t.in.pulling {
		place = min(s.Len, t.in.want)
	} else {
		m.rx.t = nil
		t = nil
	}
	m.begin(s, t, place)
	return nil
}

// GetData implements nvmf.Mover.
func (m *Mover) GetData(nt *nvmf.Task) {
	t := of(nt)
	d := &t.in
	d.dst, d.unit, d.want, d.pulling = iov.At(nt.Out, 0), nt.PlaceUnit, nt.OutLen, true
	if m.rx.t != t {
		m.ask(t)
	}
}

// ask sends the R2T for the data of t: one for all of them.
func (m *Mover) ask(t *task) {
	i := m.freeTransfer()
	if i < 0 {
		m.broken()
		m.queue.Violation(errTransfers)
		return
	}
	x := &m.transfers[i]
	x.t, x.used, x.next, x.end, x.cid = t, true, 0, uint32(t.in.want), t.CQE.CID
	x.tag = x.tag&^(maxTransfers-1) | uint16(i)
	t.in.tag = i
	c := m.tx.control()
	r := pdu.Ready{CID: x.cid, Tag: x.tag, Len: x.end}
	c.buf = r.AppendTo(c.buf, m.flags)
	m.enqueueHeader(c)
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
	d.bad = d.bad || !good
	if d.got < d.want || d.tag >= 0 || !d.pulling {
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
func (m *Mover) Forget(nt *nvmf.Task) {
	t := of(nt)
	t.in.pulling = false
	if i := t.in.tag; i >= 0 {
		m.transfers[i].t = nil
		t.in.tag = -1
	}
	if x := &m.rx; x.t == t {
		x.t = nil
		x.skip += x.place
		x.place = 0
	}
}
