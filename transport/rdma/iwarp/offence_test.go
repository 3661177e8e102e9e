package iwarp_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"

	"oneshot/ddp"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
)

// The other end of these tests is a TCP socket, from which anything can come.

// subject is the end under test.
type subject struct {
	t    *testing.T
	dev  rdma.Device
	dom  rdma.Domain
	cq   rdma.CompletionQueue
	wake chan struct{}
	qp   rdma.QueuePair
	mem  rdma.Region
	want []byte // what mem is to hold after an offence
	gone chan error
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newSubject(t *testing.T, dev rdma.Device) *subject {
	t.Helper()
	s := &subject{t: t, dev: dev, wake: make(chan struct{}, 1), gone: make(chan error, 1)}
	var err error
	s.dom, err = dev.NewDomain()
	must(t, err)
	s.cq, err = dev.NewCompletionQueue(64, func() {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	})
	must(t, err)
	s.qp, err = dev.NewQueuePair(rdma.QueuePairConfig{
		Domain: s.dom, SendCQ: s.cq, RecvCQ: s.cq, MaxWork: 32, MaxRecv: 32,
		Disconnected: func(err error) { s.gone <- err },
	})
	must(t, err)
	s.mem = s.register(s.dom, 2*4096, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
	for i := range s.mem.Bytes() {
		s.mem.Bytes()[i] = byte(i * 7)
	}
	s.want = bytes.Clone(s.mem.Bytes())
	t.Cleanup(func() {
		must(t, s.qp.Close())
		must(t, s.cq.Close())
	})
	return s
}

func (s *subject) register(d rdma.Domain, n int, a rdma.Access) rdma.Region {
	s.t.Helper()
	r, err := d.Register(make([]byte, n), a)
	must(s.t, err)
	s.t.Cleanup(func() { _ = r.Deregister() }) // some tests have done so
	return r
}

// region registers 4 KiB of memory with the access a.
func (s *subject) region(a rdma.Access) rdma.Region { return s.register(s.dom, 4096, a) }

// other registers 4 KiB of memory with the access a, in another protection domain.
func (s *subject) other(a rdma.Access) rdma.Region {
	s.t.Helper()
	d, err := s.dev.NewDomain()
	must(s.t, err)
	return s.register(d, 4096, a)
}

// receive posts receives for n bytes; memory from 4096 on is for them.
func (s *subject) receive(ns ...int) {
	s.t.Helper()
	for i, n := range ns {
		_, err := s.qp.PostReceive([]rdma.Receive{{ID: uint64(i), SGL: s.sge(4096, n)}})
		must(s.t, err)
	}
}

func (s *subject) sge(off, n int) []rdma.SGE {
	return []rdma.SGE{{Bytes: s.mem.Bytes()[off : off+n], Region: s.mem}}
}

func (s *subject) post(w rdma.Work) rdma.Work {
	s.t.Helper()
	ws := []rdma.Work{w}
	_, err := s.qp.Post(ws)
	must(s.t, err)
	return ws[0]
}

func (s *subject) next() rdma.Completion {
	var c [1]rdma.Completion
	for s.cq.Poll(c[:]) == 0 {
		if s.cq.Arm() {
			<-s.wake
		}
	}
	return c[0]
}

// delivered waits for a message.
func (s *subject) delivered() rdma.Completion {
	s.t.Helper()
	c := s.next()
	if c.Op != rdma.OpReceive || c.Status != rdma.StatusOK {
		s.t.Fatalf("%+v; want a message", c)
	}
	return c
}

// advertise posts a Send that advertises the first 4 KiB of memory.
func (s *subject) advertise(a rdma.Access) uint32 {
	s.t.Helper()
	w := s.post(rdma.Work{Op: rdma.OpSend, Flags: rdma.Advertise, Access: a, Memory: s.sge(0, 4096), SGL: s.sge(0, 8)})
	return uint32(w.STag)
}

// over checks that the connection has ended with an error, that no further message was delivered, and
// that memory is unchanged.
func (s *subject) over() {
	s.t.Helper()
	if err := <-s.gone; err == nil {
		s.t.Error("the connection ends as if in good order")
	}
	var c [1]rdma.Completion
	for s.cq.Poll(c[:]) > 0 {
		if c[0].Status == rdma.StatusOK && c[0].Op == rdma.OpReceive {
			s.t.Errorf("delivered: %+v", c[0])
		}
	}
	if !bytes.Equal(s.mem.Bytes()[:4096], s.want[:4096]) {
		s.t.Error("memory was reached")
	}
}

// peer is the socket.
type peer struct {
	t    *testing.T
	c    *net.TCPConn
	f    ddp.Format // for its headers
	sent []byte     // the last FPDU
}

// setup says how the end under test and the peer connect.
type setup struct {
	config iwarp.Config
	shot   ddp.OneShotFlags // what is agreed, 0: standard RDMAP
	window uint32           // 0: 2
	depth  uint16           // Reads that the peer may have outstanding; 0: none
}

const (
	every      = ddp.OfferEvery | ddp.OfferAdvertise | ddp.OfferClose
	byFlags    = every | ddp.OfferFlags
	byOpcodes  = every | ddp.OfferOpcodes
	closeAlone = byFlags &^ ddp.OfferAdvertise
	tellAlone  = byFlags &^ ddp.OfferClose
)

func (s setup) agreed() ddp.OneShot {
	if s.window == 0 {
		s.window = 2
	}
	return ddp.OneShot{Flags: s.shot, Window: s.window}
}

// frame is the peer's Request or Reply.
func (s setup) frame(reply bool) ddp.StartFrame {
	f := ddp.StartFrame{Reply: reply, CRC: true, Revision: 2, HasEnhanced: true}
	f.Enhanced = ddp.Enhanced{IRD: 8, ORD: s.depth}
	if s.shot != 0 {
		f.PrivateData = s.agreed().AppendTo(make([]byte, ddp.CMHeaderLen))
	}
	return f
}

// offer returns what the end under test offers or accepts: exactly what both ends have to agree on.
func (s setup) offer() *rdma.OneShotOffer {
	if s.shot == 0 {
		return nil
	}
	return &rdma.OneShotOffer{
		Flags: s.shot&ddp.OfferFlags != 0, Opcodes: s.shot&ddp.OfferOpcodes != 0,
		Validated: s.shot&ddp.OfferValidated != 0,
		Advertise: s.shot&ddp.OfferAdvertise != 0, Close: s.shot&ddp.OfferClose != 0, Window: s.agreed().Window,
	}
}

func newPeer(t *testing.T, c net.Conn) *peer {
	p := &peer{t: t, c: c.(*net.TCPConn)}
	t.Cleanup(func() { c.Close() })
	return p
}

// dial connects a socket with a listening device.
func dial(t *testing.T, l rdma.Listener) *peer {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	return newPeer(t, c)
}

func listen(t *testing.T, d rdma.Device) rdma.Listener {
	t.Helper()
	l, err := d.Listen("127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	return l
}

// responder is an end that has accepted the peer, Host 2 in one-shot.
func responder(t *testing.T, x setup) (*subject, *peer) {
	t.Helper()
	dev := open(t, x.config)
	return accepted(t, newSubject(t, dev), x, (*peer).write)
}

func accepted(t *testing.T, s *subject, x setup, write func(*peer, []byte)) (*subject, *peer) {
	t.Helper()
	l := listen(t, s.dev)
	p := dial(t, l)
	f := x.frame(false)
	write(p, f.AppendTo(nil))
	r, err := l.Accept()
	must(t, err)
	must(t, r.Accept(s.qp, rdma.ConnParams{OneShot: x.offer()}))
	reply := p.startFrame(true)
	if reply.Reject || !reply.CRC || reply.Enhanced.IRD != x.depth {
		t.Fatalf("Reply %+v", reply)
	}
	if got, ok := ddp.FindOneShot(reply.PrivateData); ok != (x.shot != 0) || ok && got != x.agreed() {
		t.Fatalf("Reply selects %+v, %v", got, ok)
	}
	if x.shot != 0 {
		p.f = x.agreed().Format(ddp.Host1)
	}
	return s, p
}

// initiator is an end that has connected to the peer, Host 1 in one-shot.
func initiator(t *testing.T, x setup) (*subject, *peer) {
	t.Helper()
	x.config.ClientServer = true
	return initiatorOn(t, newSubject(t, open(t, x.config)), x)
}

func initiatorOn(t *testing.T, s *subject, x setup) (*subject, *peer) {
	t.Helper()
	p, done := connecting(t, s, x, nil)
	f := x.frame(true)
	p.write(f.AppendTo(nil))
	must(t, <-done)
	if x.shot != 0 {
		p.f = x.agreed().Format(ddp.Host2)
	}
	return s, p
}

// connecting is an end that waits for the peer's Reply.
func connecting(t *testing.T, s *subject, x setup, req *ddp.StartFrame) (*peer, <-chan error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		err := s.dev.Connect(context.Background(), s.qp, l.Addr().String(), rdma.ConnParams{
			OneShot: x.offer(), ResponderResources: max(int(x.depth), 1), InitiatorDepth: 8,
		})
		_ = l.Close() // no further connection is expected
		done <- err
	}()
	c, err := l.Accept()
	must(t, err)
	p := newPeer(t, c)
	f := p.startFrame(false)
	if f.Revision != 2 || !f.HasEnhanced {
		t.Fatalf("Request %+v", f)
	}
	if req != nil {
		*req = f
	}
	return p, done
}

func (p *peer) startFrame(reply bool) ddp.StartFrame {
	p.t.Helper()
	b := p.read(ddp.StartFrameHeader)
	n, err := ddp.StartFrameLen(b, reply)
	must(p.t, err)
	f, err := ddp.ParseStartFrame(append(b, p.read(n-len(b))...), reply)
	must(p.t, err)
	return f
}

func (p *peer) read(n int) []byte {
	p.t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(p.c, b); err != nil {
		p.t.Fatalf("reading %d octets: %v", n, err)
	}
	return b
}

// write writes octets. It ignores errors: the device may close the connection before the last octet.
func (p *peer) write(b []byte) {
	p.t.Helper()
	if _, err := p.c.Write(b); err != nil && !reset(err) {
		p.t.Fatal(err)
	}
}

func reset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func (p *peer) bytewise(b []byte) {
	must(p.t, p.c.SetNoDelay(true))
	for i := range b {
		p.write(b[i : i+1])
	}
}

// send sends FPDUs, given from their ULPDU Length to the end of their ULPDU, at once.
func (p *peer) send(fpdus ...[]byte) {
	p.t.Helper()
	var b []byte
	for _, f := range fpdus {
		b = append(b, ddp.AppendFPDUTrailer(bytes.Clone(f), 0)...)
		p.sent = f
	}
	p.write(b)
}

// Control words of last segments (iwarp.md §3); notLast takes L away.
const (
	ctlWrite    = 0xc140
	ctlResponse = 0xc142
	ctlRequest  = 0x4141
	ctlSend     = 0x4143
	ctlSendInv  = 0x4144
	ctlSendSE   = 0x4145
	ctlSEInv    = 0x4146
	ctlTerm     = 0x4147
	notLast     = 0x4000

	markAdvertise = 0x1000
	markClose     = 0x2000
)

func (p *peer) untagged(c ddp.Control, stag, qn, msn, mo uint32, n int) []byte {
	b := p.f.AppendUntagged(nil, ddp.Untagged{Control: c, STag: stag, QN: qn, MSN: msn, MO: mo, Payload: n})
	return append(b, make([]byte, n)...)
}

// message is a Send of one segment.
func (p *peer) message(c ddp.Control, stag, msn uint32, n int) []byte {
	return p.untagged(c, stag, 0, msn, 0, n)
}

func tagged(c ddp.Control, stag rdma.STag, to uint64, n int) []byte {
	b := ddp.AppendTagged(nil, ddp.Tagged{Control: c, STag: uint32(stag), TO: to, Payload: n})
	return append(b, make([]byte, n)...)
}

func request(msn uint32, stag rdma.STag, to uint64, n uint32) []byte {
	return ddp.AppendReadRequest(nil, msn, ddp.RDMARead{
		SinkSTag: 0x5100, SinkTO: 0x1000, Size: n, SrcSTag: uint32(stag), SrcTO: to,
	})
}

// withControl is fpdu with other bits in its control word.
func withControl(fpdu []byte, f func(uint16) uint16) []byte {
	b := bytes.Clone(fpdu)
	binary.BigEndian.PutUint16(b[2:], f(binary.BigEndian.Uint16(b[2:])))
	return b
}

// fpdu reads the next FPDU, from its ULPDU Length to the end of its ULPDU, checks its CRC, and
// returns nil at the end of the stream.
func (p *peer) fpdu() []byte {
	p.t.Helper()
	b := make([]byte, ddp.LengthLen)
	if _, err := io.ReadFull(p.c, b); err == io.EOF || reset(err) {
		return nil
	} else if err != nil {
		p.t.Fatal(err)
	}
	n := int(binary.BigEndian.Uint16(b))
	b = append(b, p.read(ddp.FPDULen(n)-len(b))...)
	f, rest, err := ddp.SplitFPDU(b, true)
	if err != nil || len(rest) > 0 {
		p.t.Fatalf("FPDU %x: %v", b, err)
	}
	return f
}

// quiet checks that the stream ends without a Terminate.
func (p *peer) quiet() {
	p.t.Helper()
	if f := p.fpdu(); f != nil {
		p.t.Errorf("answered with %x; want the end of the connection", f)
	}
}

// terminate skips messages until a Terminate comes, checks that it has the cause and quotes the offending
// FPDU as iwarp.md §5 says, and checks that it is the last message.
func (p *peer) terminate(cause ddp.Cause, offending []byte) {
	p.t.Helper()
	var f []byte
	for {
		if f = p.fpdu(); f == nil {
			p.t.Fatalf("the connection ends without a word; want Terminate %v", cause)
		}
		if binary.BigEndian.Uint16(f[2:]) == ctlTerm {
			break
		}
	}
	want := wantTerminate(cause, offending)
	if !bytes.Equal(f, want) {
		p.t.Errorf("Terminate\n%x, want\n%x (%v)", f, want, cause)
	}
	if f := p.fpdu(); f != nil {
		p.t.Errorf("behind the Terminate comes %x", f)
	}
}

// answer checks the answer to the last FPDU that was sent, and closes.
func (p *peer) answer(cause ddp.Cause, blocked bool) {
	p.t.Helper()
	if cause == ddp.NoTerminate {
		p.quiet()
	} else {
		if !blocked { // an end that overlooks the offence then sees the end of the stream
			_ = p.c.CloseWrite()
		}
		p.terminate(cause, p.sent)
	}
	p.c.Close()
}

// wantTerminate lays out the Terminate by hand, as iwarp.md §5 says.
func wantTerminate(cause ddp.Cause, offending []byte) []byte {
	b := make([]byte, 20, 80)
	binary.BigEndian.PutUint16(b[2:], ctlTerm)
	b[11], b[15] = 2, 1 // QN, MSN
	b = append(b, cause.Layer()<<4|cause.Etype(), cause.Code(), 0, 0)
	local := cause.Layer() == 2 || cause.Layer() == 0 && cause.Etype() == 0 // MPA's, or RDMAP's own: of no message
	if offending != nil && !local {
		header := 18
		if offending[2]&0x80 != 0 {
			header = 14
		}
		b[22] |= 0xc0 // M, D
		b = append(b, offending[:2+header]...)
		if cause.Layer() == 0 && cause.Etype() == 1 && offending[3]&0x0f == 1 {
			b[22] |= 0x20 // R
			b = append(b, offending[20:48]...)
		}
	}
	binary.BigEndian.PutUint16(b, uint16(len(b)-2))
	return b
}

// offence is an offence of a peer, and the expected answer.
type offence struct {
	name  string
	setup setup
	cause ddp.Cause
	// blocked: the socket is full, and the answer has to wait for the peer to read.
	blocked bool
	// bytes returns what the peer sends; the last FPDU is the offence. A nil result: it was sent already.
	bytes func(s *subject, p *peer) [][]byte
}

func runOffences(t *testing.T, connect func(*testing.T, setup) (*subject, *peer), list []offence) {
	for _, o := range list {
		t.Run(o.name, func(t *testing.T) {
			s, p := connect(t, o.setup)
			if fpdus := o.bytes(s, p); fpdus != nil {
				p.send(fpdus...)
			}
			p.answer(o.cause, o.blocked)
			s.over()
		})
	}
}
