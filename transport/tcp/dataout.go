package tcp

import (
	"fmt"

	"oneshot/internal/serial"
	"oneshot/iscsi"
	"oneshot/iscsi/pdu"
	"oneshot/mem"
	"oneshot/transport/bytestream"
)

// maxR2T is the most R2Ts outstanding for one task, whatever is negotiated.
const maxR2T = 16

// dataOut is the data-out of one task: what has come, what is to come, and where it goes.
// Bytes come in the order of their offsets (DataPDUInOrder and DataSequenceInOrder are
// always Yes).
type dataOut struct {
	bytestream.Sink
	want    int    // bytes of the command; the initiator may offer more. Got counts those of them that were placed
	recv    uint32 // bytes received, wanted or not: the next BufferOffset
	pulling bool   // the session waits for the data
	thrown  bool   // there is no memory: nothing is placed
	failed  iscsi.DataFault

	// Unsolicited data (RFC 7143 §11.7.4).
	unsolicited   bool // Data-Out PDUs without R2T are to come, until one has the F bit
	unsolicitedSN serial.SN
	stash         *mem.Lease // what came before the session asked for it
	one           [1][]byte  // the memory of stash

	// R2Ts, oldest first.
	r2ts  [maxR2T]r2t
	nR2T  int
	asked uint32 // bytes asked for or come on their own: the offset of the next R2T
	r2tSN serial.SN
}

// r2t is an R2T whose data is to come (RFC 7143 §11.8).
type r2t struct {
	ttt    uint32
	end    uint32 // offset behind its last byte
	dataSN serial.SN
}

func (o *dataOut) reset() {
	if o.stash != nil {
		o.stash.Release()
	}
	o.Reset()
	*o = dataOut{}
}

// command takes a SCSI Command PDU (RFC 7143 §11.3) whose header b, whole bytes with its
// digest, is in the buffer.
func (m *Mover) command(b []byte, whole int) error {
	h, err := pdu.ParseSCSICommand(b)
	if err != nil {
		return err
	}
	dsl := h.DataSegmentLen()
	if h.Write() {
		if err := m.checkImmediate(h, dsl); err != nil {
			return err
		}
	}
	m.commands++
	t := m.newTask()
	if h.Write() {
		m.In.Task = t // until its data is in, or it is detached
	}
	if !m.conn.Command(&t.Task, h) {
		m.In.Task = nil
		m.FreeTask(&t.Task)
	}
	if m.In.Task == nil {
		m.begin(h.Header, whole, nil, 0)
		return nil
	}
	o := &t.out
	o.unsolicited = !h.Final()
	if o.unsolicited && m.p.InitialR2T {
		o.failed = iscsi.UnexpectedUnsolicitedData
	}
	if dsl == 0 {
		m.In.Task = nil
		m.In.Skip(whole)
		m.proceed(t)
		return nil
	}
	o.recv = uint32(dsl)
	m.begin(h.Header, whole, t, m.room(t, dsl))
	return nil
}

// checkImmediate holds immediate data against what was negotiated (RFC 7143 §11.3.4, §13.11).
func (m *Mover) checkImmediate(h pdu.SCSICommand, dsl int) error {
	switch {
	case dsl == 0:
		return nil
	case !m.p.ImmediateData:
		return &dataError{itt: h.ITT(), what: "immediate data, though ImmediateData=No was negotiated"}
	case dsl > int(m.p.FirstBurstLength):
		return &dataError{itt: h.ITT(), what: fmt.Sprintf("%d bytes of immediate data, over FirstBurstLength=%d", dsl, m.p.FirstBurstLength)}
	case uint32(dsl) > h.EDTL():
		return &dataError{itt: h.ITT(), what: fmt.Sprintf("%d bytes of immediate data for a transfer of %d", dsl, h.EDTL())}
	}
	return nil
}

// room says how many of the next n bytes of t are to be placed, and sees that there is
// memory for them: the session's, or, as long as it has not asked, a stash.
func (m *Mover) room(t *task, n int) int {
	o := &t.out
	switch {
	case o.thrown:
		return 0
	case o.pulling:
		return min(n, o.want-o.Got)
	}
	if o.stash == nil {
		size := int(min(m.p.FirstBurstLength, t.EDTL))
		if o.stash = m.conn.TryLease(&t.Task, size); o.stash == nil {
			o.thrown = true
			m.conn.Refuse(&t.Task)
			return 0
		}
		o.one[0] = o.stash.Bytes()
		o.Fill(o.one[:])
	}
	return n
}

// GetData implements iscsi.Datamover.
func (m *Mover) GetData(it *iscsi.Task) {
	t := of(it)
	o := &t.out
	got := o.Got
	if it.PlaceUnit != 0 {
		o.Place(t, it.PlaceUnit)
	} else {
		o.Fill(it.Out)
	}
	if o.stash != nil { // what has come goes to where it belongs
		o.Put(o.stash.Bytes()[:min(got, it.OutLen)])
		o.stash.Release()
		o.stash = nil
	}
	o.pulling, o.want = true, it.OutLen
	if m.In.Task == t { // a data segment is half in; proceed follows when its PDU is
		m.In.Limit(o.want - o.Got)
	} else {
		m.proceed(t)
	}
}

// dataOut takes a Data-Out PDU (RFC 7143 §11.7).
func (m *Mover) dataOut(b []byte, whole int) error {
	h, err := pdu.ParseDataOut(b)
	if err != nil {
		return err
	}
	if !m.enabled {
		return &dataError{itt: h.ITT(), what: "Data-Out before the login was complete"}
	}
	it := m.conn.Find(h.ITT())
	if it == nil || !it.Write {
		m.begin(h.Header, whole, nil, 0) // of a task that has ended early
		return nil
	}
	t := of(it)
	o, dsl := &t.out, h.DataSegmentLen()
	var sn *serial.SN
	var end uint32
	if h.TTT() == pdu.ReservedTag {
		if !o.unsolicited {
			return &dataError{itt: h.ITT(), what: "unsolicited data after the last of it"}
		}
		sn, end = &o.unsolicitedSN, min(m.p.FirstBurstLength, t.EDTL)
	} else {
		r := &o.r2ts[0]
		if o.nR2T == 0 || r.ttt != h.TTT() {
			m.begin(h.Header, whole, nil, 0) // answers an R2T of a task that was aborted
			return nil
		}
		sn, end = &r.dataSN, r.end
	}
	switch {
	case h.DataSN() != *sn, h.BufferOffset() != o.recv:
		// RFC 7143 §7.9: a PDU is missing. Without recovery the command fails, once the
		// initiator has ended the sequence.
		o.failed, o.thrown = iscsi.MissingData, true
	case uint32(dsl) > end-min(end, o.recv):
		return &dataError{itt: h.ITT(), what: fmt.Sprintf("%d bytes at %d, beyond the %d bytes asked for", dsl, o.recv, end)}
	}
	*sn++
	place := m.room(t, dsl)
	o.recv += uint32(dsl)
	m.begin(h.Header, whole, t, place)
	return nil
}

// arrived says that a PDU's data of t is in. last is its F bit; good: its digest matched.
func (m *Mover) arrived(t *task, last, good bool) {
	o := &t.out
	m.conn.DataCame(&t.Task)
	if !good {
		o.failed = iscsi.DataDigestMismatch
	}
	if last {
		switch {
		case o.unsolicited:
			o.unsolicited = false
		case o.nR2T > 0:
			if o.recv != o.r2ts[0].end && o.failed == 0 {
				o.failed = iscsi.NotEnoughData
			}
			copy(o.r2ts[:], o.r2ts[1:o.nR2T])
			o.nR2T--
		}
	}
	m.proceed(t)
}

// proceed ends the data-out of t if all is in, and asks for more otherwise.
func (m *Mover) proceed(t *task) {
	o := &t.out
	switch {
	case !o.pulling || o.unsolicited:
	case o.failed != 0:
		if o.nR2T == 0 {
			o.pulling = false
			m.conn.DataFailed(&t.Task, o.failed)
		}
	case o.Got == o.want && o.nR2T == 0:
		o.pulling = false
		m.conn.GotData(&t.Task)
	default:
		m.ask(t)
	}
}

// ask sends the R2Ts that are allowed (RFC 7143 §11.8).
func (m *Mover) ask(t *task) {
	o := &t.out
	o.asked = max(o.asked, o.recv)
	limit := min(maxR2T, int(m.p.MaxOutstandingR2T))
	for o.nR2T < limit && o.asked < uint32(o.want) {
		n := min(m.p.MaxBurstLength, uint32(o.want)-o.asked)
		m.ttt++
		if m.ttt == pdu.ReservedTag {
			m.ttt = 0
		}
		c := m.Out.Control()
		f := pdu.R2TFields{
			LUN: t.LUN, ITT: t.ITT, TTT: m.ttt, Sequence: m.conn.Sequence(), R2TSN: o.r2tSN,
			BufferOffset: o.asked, DesiredDataTransferLength: n,
		}
		c.Buf = f.AppendTo(c.Buf)
		m.queueHeader(c)
		o.asked += n
		o.r2ts[o.nR2T] = r2t{ttt: m.ttt, end: o.asked}
		o.nR2T++
		o.r2tSN++
	}
}

// Forget implements iscsi.Datamover.
func (m *Mover) Forget(it *iscsi.Task) bool {
	m.In.Forget(of(it))
	return true
}
