package iser

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/ddp"
	"oneshot/internal/iostat"
	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
	"oneshot/mem"
	"oneshot/transport/rdma/iwarp"
)

// rawPeer is an initiator made of octets: it answers Read Requests or not, as the test wants.
type rawPeer struct {
	t      testing.TB
	tc     *net.TCPConn
	f      ddp.Format
	direct bool
	msn    uint32
	cmdSN  serial.SN
	isid   byte
	in     []byte // the last FPDU, without its trailer
}

// raw connects a rawPeer, and logs in.
func (b *bench) raw(direct bool, isid byte) *rawPeer {
	b.t.Helper()
	offer := ddp.OneShotFlags(0)
	if direct {
		offer = everyOffer
	}
	p := b.connect(direct, offer)
	p.isid = isid
	p.logIn()
	return p
}

const everyOffer = ddp.OfferFlags | ddp.OfferEvery | ddp.OfferAdvertise | ddp.OfferClose

// connect exchanges the MPA frames; offer is that of one-shot, or 0.
func (b *bench) connect(direct bool, offer ddp.OneShotFlags) *rawPeer {
	b.t.Helper()
	nc, err := net.Dial("tcp", b.l.Addr().String())
	check(b.t, err)
	b.t.Cleanup(func() { _ = nc.Close() })
	p := &rawPeer{t: b.t, tc: nc.(*net.TCPConn), direct: direct, cmdSN: 1}
	private := []byte{noZBVA, 0, 0, 0}
	if offer != 0 {
		private = ddp.OneShot{Flags: offer, Window: 16}.AppendTo(private)
	}
	req := ddp.StartFrame{
		CRC: true, Revision: 2, HasEnhanced: true, Enhanced: ddp.Enhanced{IRD: 16, ORD: 16}, PrivateData: private,
	}
	_, err = nc.Write(req.AppendTo(nil))
	check(b.t, err)
	head := make([]byte, ddp.StartFrameHeader)
	_, err = io.ReadFull(nc, head)
	check(b.t, err)
	n, err := ddp.StartFrameLen(head, true)
	check(b.t, err)
	head = append(head, make([]byte, n-len(head))...)
	_, err = io.ReadFull(nc, head[ddp.StartFrameHeader:])
	check(b.t, err)
	reply, err := ddp.ParseStartFrame(head, true)
	check(b.t, err)
	if sel, ok := ddp.FindOneShot(reply.PrivateData); ok {
		p.f = sel.Format(ddp.Host1)
	}
	return p
}

// write sends FPDUs, each given from its ULPDU Length to the end of its ULPDU.
func (p *rawPeer) write(ulpdus ...[]byte) {
	p.t.Helper()
	check(p.t, p.tryWrite(ulpdus...))
}

// tryWrite is write to a target that may have ended the connection.
func (p *rawPeer) tryWrite(ulpdus ...[]byte) error {
	var b []byte
	for _, u := range ulpdus {
		b = append(b, ddp.AppendFPDUTrailer(bytes.Clone(u), 0)...)
	}
	_, err := p.tc.Write(b)
	return err
}

// message makes a Send of one segment. s, if it is not 0, is advertised.
func (p *rawPeer) message(s uint32, parts ...[]byte) []byte {
	m := ddp.Send
	if s != 0 {
		m = ddp.SendAdvertise
	}
	payload := bytes.Join(parts, nil)
	p.msn++
	return append(p.f.AppendUntagged(nil, ddp.Untagged{
		Control: p.f.Control(m, true), STag: s, MSN: p.msn, Payload: len(payload),
	}), payload...)
}

// pdu makes the message of a PDU. write and read are the STags of its buffers, or 0.
func (p *rawPeer) pdu(bhs, data []byte, write, read uint32) []byte {
	if p.direct {
		return p.message(write|read, bhs, data)
	}
	h := appendHeader(nil)
	if write != 0 {
		h[0] |= flagWSV
		binary.BigEndian.PutUint32(h[4:], write)
		binary.BigEndian.PutUint64(h[8:], uint64(len(data)))
	}
	if read != 0 {
		h[0] |= flagRSV
		binary.BigEndian.PutUint32(h[16:], read)
	}
	return p.message(0, h, bhs, data)
}

// read reads an FPDU. False: the stream has ended.
func (p *rawPeer) read() (seg ddp.Segment, ok bool) {
	p.t.Helper()
	head := make([]byte, 2)
	if _, err := io.ReadFull(p.tc, head); err != nil {
		return seg, false
	}
	b := make([]byte, ddp.FPDULen(int(binary.BigEndian.Uint16(head))))
	copy(b, head)
	if _, err := io.ReadFull(p.tc, b[2:]); err != nil {
		return seg, false
	}
	var err error
	p.in, _, err = ddp.SplitFPDU(b, true)
	check(p.t, err)
	seg, err = p.f.Parse(p.in)
	check(p.t, err)
	return seg, true
}

// payload is that of the segment that read has returned.
func (p *rawPeer) payload(seg ddp.Segment) []byte { return p.in[seg.PayloadOffset():] }

// answer reads the next PDU of the target.
func (p *rawPeer) answer() (h pdu.Header, data []byte) {
	p.t.Helper()
	seg, ok := p.read()
	if !ok || !seg.Message.IsSend() {
		p.t.Fatalf("no PDU: %v %v", seg.Message, ok)
	}
	b := p.payload(seg)
	if !p.direct {
		b = b[headerLen:]
	}
	h, data, ok = split(b)
	if !ok {
		p.t.Fatalf("short PDU: % x", b)
	}
	return h, data
}

func (p *rawPeer) logIn() {
	p.t.Helper()
	text := "InitiatorName=iqn.2026-11.example:raw\x00TargetName=" + iqn + "\x00ImmediateData=Yes\x00"
	if !p.direct {
		text += "RDMAExtensions=Yes\x00"
	}
	f := pdu.LoginRequestFields{
		Transit: true, CSG: pdu.StageLoginOperationalNegotiation, NSG: pdu.StageFullFeaturePhase,
		ISID: pdu.ISID{0x80, 1, 0, 0, 0, p.isid}, CmdSN: p.cmdSN, ITT: 1, DataSegmentLength: len(text),
	}
	p.write(p.pdu(f.AppendTo(nil), []byte(text), 0, 0))
	if h, _ := p.answer(); h.Opcode() != pdu.OpLoginResponse || h[36] != 0 {
		p.t.Fatalf("login: % x", h)
	}
	for range 2 { // a unit attention or two
		p.command(make([]byte, 6), nil, 0, 0, 0)
		if h, _ := p.answer(); h.Opcode() != pdu.OpSCSIResponse {
			p.t.Fatalf("TEST UNIT READY: % x", h)
		}
	}
}

// command sends a SCSI command whose data-out of n octets, except for what is immediate, or whose
// data-in is to be had with an STag.
func (p *rawPeer) command(cdb, immediate []byte, write, read uint32, n int) (itt uint32) {
	p.t.Helper()
	itt = 100 + uint32(p.cmdSN)
	f := pdu.SCSICommandFields{
		Final: true, Write: write != 0 || len(immediate) > 0, Read: read != 0, ITT: itt, CmdSN: p.cmdSN, CDB: cdb,
		EDTL: uint32(n), DataSegmentLength: len(immediate),
	}
	p.cmdSN++
	p.write(p.pdu(f.AppendTo(nil), immediate, write, read))
	return itt
}

// readRequest waits for a Read Request.
func (p *rawPeer) readRequest() ddp.RDMARead {
	p.t.Helper()
	seg, ok := p.read()
	if !ok || seg.Message != ddp.ReadRequest {
		p.t.Fatalf("%v, %v; want a Read Request", seg.Message, ok)
	}
	return ddp.ParseReadRequest(p.payload(seg))
}

// response makes a segment of the Response to r: n octets of b, from off on.
func (p *rawPeer) response(r ddp.RDMARead, b []byte, last bool) []byte {
	return append(ddp.AppendTagged(nil, ddp.Tagged{
		Control: p.f.Control(ddp.ReadResponse, last), STag: r.SinkSTag, TO: r.SinkTO, Payload: len(b),
	}), b...)
}

// wait returns when cond holds, which the target's goroutines see to.
func wait(cond func() bool) {
	for !cond() {
		time.Sleep(50 * time.Microsecond) // those have to run whom cond waits for
	}
}

// endings are the ways in which a connection ends while a Read Request waits for its Response.
var endings = []struct {
	name string
	end  func(b *bench, p *rawPeer, r ddp.RDMARead)
}{
	{"FIN", func(_ *bench, p *rawPeer, _ ddp.RDMARead) { _ = p.tc.Close() }},
	{"RST", func(_ *bench, p *rawPeer, _ ddp.RDMARead) {
		_ = p.tc.SetLinger(0)
		_ = p.tc.Close()
	}},
	{"half-close", func(_ *bench, p *rawPeer, _ ddp.RDMARead) { _ = p.tc.CloseWrite() }},
	{"half a Response, then FIN", func(_ *bench, p *rawPeer, r ddp.RDMARead) {
		p.write(p.response(r, make([]byte, min(r.Size/2, 32<<10)), false))
		_ = p.tc.Close()
	}},
	{"half an FPDU, then FIN", func(_ *bench, p *rawPeer, r ddp.RDMARead) {
		f := ddp.AppendFPDUTrailer(p.response(r, make([]byte, min(r.Size, 32<<10)), r.Size <= 32<<10), 0)
		_, err := p.tc.Write(f[:len(f)-4])
		check(p.t, err)
		_ = p.tc.Close()
	}},
	{"bad CRC", func(_ *bench, p *rawPeer, r ddp.RDMARead) {
		f := ddp.AppendFPDUTrailer(p.response(r, make([]byte, min(r.Size, 32<<10)), r.Size <= 32<<10), 0)
		f[len(f)-1] ^= 1
		_, err := p.tc.Write(f)
		check(p.t, err)
	}},
	{"Response to another STag", func(_ *bench, p *rawPeer, r ddp.RDMARead) {
		r.SinkSTag ^= 0x100
		p.write(p.response(r, make([]byte, min(r.Size, 32<<10)), r.Size <= 32<<10))
	}},
	{"Response too long", func(_ *bench, p *rawPeer, r ddp.RDMARead) {
		p.write(p.response(r, make([]byte, min(r.Size, 32<<10)+4), true))
	}},
	{"Terminate: no access", terminated(ddp.MakeCause(0, 1, 2))},
	{"Terminate: catastrophic", terminated(ddp.OpCatastrophicStream)},
	{"Terminate: local catastrophic", terminated(ddp.LocalCatastrophic)},
	{"Terminate: tagged", terminated(ddp.TaggedInvalidSTag)},
	{"Terminate: untagged", terminated(ddp.UntaggedNoBuffer)},
	{"Terminate: CRC", terminated(ddp.MakeCause(2, 0, 2))},
	{"the target drops the session", func(b *bench, _ *rawPeer, _ ddp.RDMARead) {
		for _, s := range b.node.Sessions() {
			b.node.DropSession(s.TSIH, "for a test")
		}
	}},
}

func terminated(c ddp.Cause) func(*bench, *rawPeer, ddp.RDMARead) {
	return func(_ *bench, p *rawPeer, _ ddp.RDMARead) {
		p.write(ddp.AppendTerminate(nil, &ddp.TerminateMessage{Cause: c}))
	}
}

// poison fills the free memory of the pool that serves leases of n octets with what would do
// harm, as another session may have left it there.
func (b *bench) poison(data []byte, n int) {
	harm := bytes.Repeat(data, (n+len(data)-1)/len(data))
	var leases []*mem.Lease
	for {
		l := b.pool.Lease(n)
		if l == nil {
			break
		}
		copy(l.Bytes(), harm)
		leases = append(leases, l)
	}
	for _, l := range leases {
		l.Release()
	}
}

// contents reads all of the store.
func (b *bench) contents() []byte {
	all := make([]byte, storeSize)
	op := backend.Op{Kind: backend.Read, Len: storeSize, Segs: [][]byte{all}}
	if !b.store.Submit(&op) { // memory is at hand
		b.t.Fatal("the store reads later")
	}
	check(b.t, op.Err)
	return all
}

// counted returns how many commands were answered, and how many ended without.
func (b *bench) counted() (answered, aborted uint64) {
	for _, s := range b.disk.Stats() {
		for i := range s.Commands {
			answered += s.Commands[i].Count()
		}
		aborted += s.Failed[iostat.AbortedCommand]
	}
	return answered, aborted
}

// A command whose data-out could not be fetched is not executed, whatever ended the connection:
// the memory for it holds what another session has left there.
func TestLostConnectionExecutesNothing(t *testing.T) {
	for framing, direct := range map[string]bool{"iSER": false, "iSCSI-direct": true} {
		t.Run(framing, func(t *testing.T) {
			b := newBenchOf(t, 16<<20, iwarp.Config{LingerTime: 10 * time.Millisecond})
			want := b.contents()
			sessions := uint64(0)
			for _, c := range fetched {
				b.poison(c.data, c.n)
				for _, e := range endings {
					p := b.raw(direct, 1)
					sessions++
					p.command(c.cdb, nil, 0x4711, 0, c.n)
					seg, ok := p.read()
					if !ok || seg.Message != ddp.ReadRequest {
						t.Fatalf("%s: %v, % x; want a Read Request", c.name, seg.Message, p.in)
					}
					r := ddp.ParseReadRequest(p.payload(seg))
					e.end(b, p, r)
					wait(func() bool { return b.node.Connections() == 0 })
					_ = p.tc.Close()
					if answered, aborted := b.counted(); answered != 2*sessions || aborted != sessions {
						t.Fatalf("%s, %s: %d commands answered, %d aborted; want %d and %d", c.name, e.name, answered, aborted, 2*sessions, sessions)
					}
				}
			}
			if !bytes.Equal(b.contents(), want) {
				t.Error("the disk has changed")
			}
		})
	}
}
