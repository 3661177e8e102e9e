// Package isertest is an initiator over RDMA for tests, made of octets: it sends what it is told, right or wrong, answers the target's
// Read Requests or not, and sees each segment that comes. It speaks iSER, and unmodified iSCSI over one-shot RDMA.
package isertest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"oneshot/ddp"
	"oneshot/internal/iserhdr"
	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
)

// patience is how long a peer waits for anything; only a hang reaches it.
const patience = 2 * time.Minute

// EveryOffer is the offer of one-shot RDMA of a peer that leaves nothing out.
const EveryOffer = ddp.OfferFlags | ddp.OfferEvery | ddp.OfferAdvertise | ddp.OfferClose

// window is how many STags a peer may have advertised.
const window = 16

// Peer is a connection. One goroutine uses it.
type Peer struct {
	T      testing.TB
	Conn   *net.TCPConn
	Format ddp.Format
	Direct bool // PDUs have no iSER header
	CmdSN  serial.SN
	ISID   byte
	LUN    int    // of commands
	In     []byte // the last FPDU, without its trailer

	msn, readMSN uint32
	silent       bool // the last Read has ended because nothing came
}

// Connect connects to a portal and exchanges the MPA frames; offer is that of one-shot, or 0. The connection ends with the test.
func Connect(t testing.TB, address string, direct bool, offer ddp.OneShotFlags) *Peer {
	t.Helper()
	nc, err := net.DialTimeout("tcp", address, patience)
	check(t, err)
	t.Cleanup(func() { _ = nc.Close() })
	check(t, nc.SetDeadline(time.Now().Add(patience)))
	p := &Peer{T: t, Conn: nc.(*net.TCPConn), Direct: direct, CmdSN: 1}
	private := []byte{iserhdr.NoZBVA, 0, 0, 0}
	if offer != 0 {
		private = ddp.OneShot{Flags: offer, Window: window}.AppendTo(private)
	}
	req := ddp.StartFrame{
		CRC: true, Revision: 2, HasEnhanced: true, Enhanced: ddp.Enhanced{IRD: 16, ORD: 16}, PrivateData: private,
	}
	_, err = nc.Write(req.AppendTo(nil))
	check(t, err)
	head := make([]byte, ddp.StartFrameHeader)
	_, err = io.ReadFull(nc, head)
	check(t, err)
	n, err := ddp.StartFrameLen(head, true)
	check(t, err)
	head = append(head, make([]byte, n-len(head))...)
	_, err = io.ReadFull(nc, head[ddp.StartFrameHeader:])
	check(t, err)
	reply, err := ddp.ParseStartFrame(head, true)
	check(t, err)
	if sel, ok := ddp.FindOneShot(reply.PrivateData); ok {
		p.Format = sel.Format(ddp.Host1)
	}
	return p
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Write sends FPDUs, each given from its ULPDU Length to the end of its ULPDU.
func (p *Peer) Write(ulpdus ...[]byte) {
	p.T.Helper()
	check(p.T, p.TryWrite(ulpdus...))
}

// TryWrite is Write to a target that may have ended the connection.
func (p *Peer) TryWrite(ulpdus ...[]byte) error {
	var b []byte
	for _, u := range ulpdus {
		b = append(b, ddp.AppendFPDUTrailer(bytes.Clone(u), 0)...)
	}
	_, err := p.Conn.Write(b)
	return err
}

// Message makes a Send of one segment. s, if it is not 0, is advertised.
func (p *Peer) Message(s uint32, parts ...[]byte) []byte {
	m := ddp.Send
	if s != 0 {
		m = ddp.SendAdvertise
	}
	payload := bytes.Join(parts, nil)
	p.msn++
	return append(p.Format.AppendUntagged(nil, ddp.Untagged{
		Control: p.Format.Control(m, true), STag: s, MSN: p.msn, Payload: len(payload),
	}), payload...)
}

// PDU makes the message of a PDU. write and read are the STags of its buffers, or 0.
func (p *Peer) PDU(bhs, data []byte, write, read uint32) []byte {
	if p.Direct {
		return p.Message(write|read, bhs, data)
	}
	h := iserhdr.Header{Write: write, Read: read}
	if write != 0 {
		h.WriteOffset = uint64(len(data))
	}
	return p.Message(0, h.AppendTo(nil), bhs, data)
}

// Read reads an FPDU. False: the stream has ended, or nothing comes.
func (p *Peer) Read() (seg ddp.Segment, ok bool) {
	p.T.Helper()
	head := make([]byte, 2)
	_, err := io.ReadFull(p.Conn, head)
	b := make([]byte, ddp.FPDULen(int(binary.BigEndian.Uint16(head))))
	copy(b, head)
	if err == nil {
		_, err = io.ReadFull(p.Conn, b[2:])
	}
	if err != nil {
		p.silent = errors.Is(err, os.ErrDeadlineExceeded)
		return seg, false
	}
	p.In, _, err = ddp.SplitFPDU(b, true)
	check(p.T, err)
	seg, err = p.Format.Parse(p.In)
	check(p.T, err)
	return seg, true
}

// Payload is that of the segment that Read has returned.
func (p *Peer) Payload(seg ddp.Segment) []byte { return p.In[seg.PayloadOffset():] }

// Answer reads the next PDU of the target.
func (p *Peer) Answer() (h pdu.Header, data []byte) {
	p.T.Helper()
	seg, ok := p.Read()
	if !ok || !seg.Message.IsSend() {
		p.T.Fatalf("no PDU: %v %v", seg.Message, ok)
	}
	b := p.withoutHeader(seg)
	if len(b) < pdu.BHSLen || len(b) < pdu.BHSLen+pdu.Header(b).DataSegmentLen() {
		p.T.Fatalf("short PDU: % x", b)
	}
	h = pdu.Header(b[:pdu.BHSLen])
	return h, b[pdu.BHSLen:][:h.DataSegmentLen()]
}

// withoutHeader is the PDU in a Send.
func (p *Peer) withoutHeader(seg ddp.Segment) []byte {
	b := p.Payload(seg)
	if !p.Direct {
		b = b[iserhdr.Len:]
	}
	return b
}

// LogIn logs in to a target, and takes the unit attentions of a LUN.
func (p *Peer) LogIn(target string) {
	p.T.Helper()
	text := "InitiatorName=iqn.2026-11.example:raw\x00TargetName=" + target + "\x00ImmediateData=Yes\x00"
	if !p.Direct {
		text += "RDMAExtensions=Yes\x00"
	}
	f := pdu.LoginRequestFields{
		Transit: true, CSG: pdu.StageLoginOperationalNegotiation, NSG: pdu.StageFullFeaturePhase,
		ISID: pdu.ISID{0x80, 1, 0, 0, 0, p.ISID}, CmdSN: p.CmdSN, ITT: 1, DataSegmentLength: len(text),
	}
	p.Write(p.PDU(f.AppendTo(nil), []byte(text), 0, 0))
	if h, _ := p.Answer(); h.Opcode() != pdu.OpLoginResponse || h[36] != 0 {
		p.T.Fatalf("login: % x", h)
	}
	for range 2 { // a unit attention or two
		p.Command(make([]byte, 6), nil, 0, 0, 0)
		if h, _ := p.Answer(); h.Opcode() != pdu.OpSCSIResponse {
			p.T.Fatalf("TEST UNIT READY: % x", h)
		}
	}
}

// Command sends a SCSI command whose data-out of n octets, except for what is immediate, or whose
// data-in is to be had with an STag.
func (p *Peer) Command(cdb, immediate []byte, write, read uint32, n int) (itt uint32) {
	p.T.Helper()
	itt = 100 + uint32(p.CmdSN)
	f := pdu.SCSICommandFields{
		Final: true, Write: write != 0 || len(immediate) > 0, Read: read != 0, LUN: p.lun(), ITT: itt, CmdSN: p.CmdSN, CDB: cdb,
		EDTL: uint32(n), DataSegmentLength: len(immediate),
	}
	p.CmdSN++
	p.Write(p.PDU(f.AppendTo(nil), immediate, write, read))
	return itt
}

func (p *Peer) lun() uint64 { return uint64(p.LUN) << 48 }

// ReadRequest waits for a Read Request.
func (p *Peer) ReadRequest() ddp.RDMARead {
	p.T.Helper()
	seg, ok := p.Read()
	if !ok || seg.Message != ddp.ReadRequest {
		p.T.Fatalf("%v, %v; want a Read Request", seg.Message, ok)
	}
	return ddp.ParseReadRequest(p.Payload(seg))
}

// Response makes a segment of the Response to r with the octets b.
func (p *Peer) Response(r ddp.RDMARead, b []byte, last bool) []byte {
	return p.Tagged(ddp.ReadResponse, r.SinkSTag, r.SinkTO, b, last)
}

// Tagged makes a segment of a tagged message for memory of the target.
func (p *Peer) Tagged(m ddp.Message, stag uint32, at uint64, b []byte, last bool) []byte {
	return append(ddp.AppendTagged(nil, ddp.Tagged{
		Control: p.Format.Control(m, last), STag: stag, TO: at, Payload: len(b),
	}), b...)
}

// Manage sends a task management request.
func (p *Peer) Manage(fn pdu.TaskFunction, itt, task uint32, immediate bool, cmdSN uint32) {
	p.T.Helper()
	f := pdu.TaskManagementRequestFields{
		Immediate: immediate, Function: fn, LUN: p.lun(), ITT: itt, ReferencedTaskTag: task, CmdSN: p.CmdSN.Add(cmdSN),
	}
	if fn != pdu.TaskAbortTask {
		f.ReferencedTaskTag = pdu.ReservedTag
	}
	p.Write(p.PDU(f.AppendTo(nil), nil, 0, 0))
}

// Ping sends a NOP-Out in the order of commands.
func (p *Peer) Ping(itt uint32) {
	p.T.Helper()
	f := pdu.NOPOutFields{ITT: itt, TTT: pdu.ReservedTag, CmdSN: p.CmdSN}
	p.CmdSN++
	p.Write(p.PDU(f.AppendTo(nil), nil, 0, 0))
}

// Want reads the next message, which is to be a kind of Send with a PDU of a kind for an ITT.
func (p *Peer) Want(m ddp.Message, op pdu.Opcode, itt, stag uint32) pdu.Header {
	p.T.Helper()
	seg, ok := p.Read()
	if !ok || !seg.Message.IsSend() {
		p.T.Fatalf("%v, %v; want a %v with a %v", seg.Message, ok, m, op)
	}
	h := pdu.Header(p.withoutHeader(seg))
	if got := seg.Header.STag(); seg.Message != m || h.Opcode() != op || h.ITT() != itt || got != stag && m != ddp.Send {
		p.T.Fatalf("%v with a %v for ITT %#x and STag %#x, want a %v with a %v for ITT %#x and STag %#x",
			seg.Message, h.Opcode(), h.ITT(), got, m, op, itt, stag)
	}
	return h
}

// WantEnd reads the next message, which is to be a Terminate, unless the connection has ended.
func (p *Peer) WantEnd(what string) {
	p.T.Helper()
	seg, ok := p.Read()
	if !ok && p.silent {
		p.T.Errorf("%s: nothing comes; want the end of the connection", what)
	}
	if ok && seg.Message != ddp.Terminate {
		p.T.Errorf("%s: %v % x; want the end of the connection", what, seg.Message, p.In)
	}
}

// RW16 is the CDB of READ(16), WRITE(16) or another command of their form.
func RW16(op byte, lba uint64, blocks uint32) []byte {
	cdb := make([]byte, 16)
	cdb[0] = op
	binary.BigEndian.PutUint64(cdb[2:], lba)
	binary.BigEndian.PutUint32(cdb[10:], blocks)
	return cdb
}
