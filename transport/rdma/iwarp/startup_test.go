package iwarp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"oneshot/ddp"
	"oneshot/internal/hexdump"
	"oneshot/transport/rdma"
)

var unhex = hexdump.Parse

// rawClient sends a Request to an end that accepts with p, and returns the Reply.
func rawClient(t *testing.T, e *end, p rdma.ConnParams, request []byte) (net.Conn, []byte, error) {
	t.Helper()
	l, err := e.dev.Listen("127.0.0.1:0")
	check(t, err)
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	check(t, err)
	t.Cleanup(func() { c.Close() })
	_, err = c.Write(request)
	check(t, err)
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept()
		if err == nil {
			err = r.Accept(e.qp, p)
		}
		accepted <- err
	}()
	head := make([]byte, ddp.StartFrameHeader)
	_, err = io.ReadFull(c, head)
	check(t, err)
	n, err := ddp.StartFrameLen(head, true)
	check(t, err)
	reply := make([]byte, n)
	copy(reply, head)
	_, err = io.ReadFull(c, reply[len(head):])
	check(t, err)
	if reply[16]&0x20 != 0 && reply[16]&0x80 == 0 && request[16]&0x80 != 0 {
		return c, reply, nil // refused before anybody was asked
	}
	return c, reply, <-accepted
}

// iwarp.md §8 E1 and E2, one-shot.md §8 O1 and O2, and the variants of RFC 5044 and RFC 6581.
func TestReply(t *testing.T) {
	const req, rep = "4d50412049442052657120 4672616d65", "4d50412049442052657020 4672616d65"
	cm := []byte{0x80, 0, 0, 0}
	shot := offer()
	shot.Window = 128
	for _, x := range []struct {
		name, request, reply string
		p                    rdma.ConnParams
	}{
		{"siw and ib_iser", "10 02 0008 0080 0001 80000000", "50 02 0008 0001 0020 80000000", rdma.ConnParams{PrivateData: cm, InitiatorDepth: 32}},
		{
			"one-shot", "50 02 0018 0010 0010 80000000 4f535231 0104007f 00000100 1c65dcbc",
			"50 02 0018 0010 0010 80000000 4f535231 01040036 00000080 80c8afe7",
			rdma.ConnParams{PrivateData: cm, OneShot: shot},
		},
		{
			"one-shot not wanted", "50 02 0018 0010 0010 80000000 4f535231 0104007f 00000100 1c65dcbc",
			"50 02 0008 0010 0010 80000000",
			rdma.ConnParams{PrivateData: cm},
		},
		{"revision 1", "40 01 0002 6869", "40 01 0001 79", rdma.ConnParams{PrivateData: []byte("y")}},
		{"peer to peer", "50 02 0004 8010 c010", "50 02 0004 8010 c010", rdma.ConnParams{}},
		{"peer to peer with Send only", "50 02 0004 c010 0010", "50 02 0004 8010 c010", rdma.ConnParams{}},
		{"more Reads than are served", "50 02 0004 0010 0010", "50 02 0004 0004 0010", rdma.ConnParams{ResponderResources: 4}},
		{"markers", "d0 02 0004 0010 0010", "70 02 0004 0000 0000", rdma.ConnParams{}},
	} {
		t.Run(x.name, func(t *testing.T) {
			e := newEnd(t, setup{})
			defer e.close()
			c, reply, err := rawClient(t, e, x.p, unhex(t, req+x.request))
			check(t, err)
			if want := unhex(t, rep+x.reply); x.name == "markers" {
				if reply[16]&0x20 == 0 {
					t.Errorf("not refused: % x", reply)
				}
			} else if !bytes.Equal(reply, want) {
				t.Errorf("Reply\n% x, want\n% x", reply, want)
			}
			c.Close()
		})
	}
}

// RFC 5044 §7.1.1: CRCs are used if either end asks. We do, unless told not to.
func TestCRC(t *testing.T) {
	for _, x := range []struct{ noCRC, asked, want bool }{
		{false, false, true}, {false, true, true}, {true, false, false}, {true, true, true},
	} {
		e := newEnd(t, setup{})
		tl, err := net.Listen("tcp", "127.0.0.1:0")
		check(t, err)
		l := e.dev.(*Device).ListenOn(tl.(*net.TCPListener), x.noCRC)
		c, err := net.Dial("tcp", l.Addr().String())
		check(t, err)
		request := ddp.StartFrame{CRC: x.asked, Revision: 1}
		_, err = c.Write(request.AppendTo(nil))
		check(t, err)
		r, err := l.Accept()
		check(t, err)
		check(t, r.Accept(e.qp, rdma.ConnParams{}))
		reply, err := readFrame(c, true)
		check(t, err)
		if used := e.qp.(*queuePair).crc; reply.CRC != x.want || used != x.want {
			t.Errorf("%+v: the Reply says %v, and CRCs are used: %v", x, reply.CRC, used)
		}
		check(t, c.Close())
		check(t, l.Close())
		e.close()
	}
}

// RFC 5044 §7.1.2: a responder sends nothing before an FPDU has come.
func TestResponderWaits(t *testing.T) {
	e := newEnd(t, setup{})
	defer e.close()
	c, _, err := rawClient(t, e, rdma.ConnParams{}, unhex(t, "4d504120494420526571204672616d65 50 02 0004 0010 0010"))
	check(t, err)
	e.post(rdma.Work{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Solicited, SGL: e.sge(0, 4)})
	q := e.qp.(*queuePair)
	q.mu.Lock()
	early := q.tx.out.Queued
	q.mu.Unlock()
	if early != 0 {
		t.Fatal("it sends at once")
	}
	var f ddp.Format // a Write of no octets
	b := ddp.AppendFPDUTrailer(ddp.AppendTagged(nil, ddp.Tagged{Control: f.Control(ddp.Write, true)}), 0)
	_, err = c.Write(b)
	check(t, err)
	got := make([]byte, ddp.FPDULen(ddp.UntaggedLen+4))
	_, err = io.ReadFull(c, got)
	check(t, err)
	if want := unhex(t, "0016 4145 00000000 00000000 00000001 00000000"); !bytes.HasPrefix(got, want) {
		t.Fatalf("% x", got)
	}
	e.want(rdma.OpSend, 1)
}

// The Request that an initiator sends, and its answer to a Reply that it cannot accept.
func TestRequest(t *testing.T) {
	const rep = "4d504120494420526570204672616d65"
	const req = "4d504120494420526571204672616d65"
	terminate := func(code string) string { return "0016 4147 00000000 00000002 00000001 00000000" + code }
	for _, x := range []struct {
		name, request, reply, after string
		c                           Config
		p                           rdma.ConnParams
	}{
		{"no RTR that fits", "50 02 0004 8010 c010", "50 02 0004 c010 0010", terminate("20070000"), Config{MaxReads: 16}, rdma.ConnParams{}},
		{
			"wants too many Reads", "50 02 0004 0010 0010", "50 02 0004 0010 0011", terminate("20060000"),
			Config{MaxReads: 16, ClientServer: true},
			rdma.ConnParams{},
		},
		{
			"container not asked for", "50 02 0004 0010 0010",
			"50 02 0018 0010 0010 80000000 4f535231 01040076 00000080 2ea2fed0", terminate("20040000"),
			Config{MaxReads: 16, ClientServer: true},
			rdma.ConnParams{},
		},
		{
			"revision 1 to revision 2", "50 02 0004 0010 0010", "40 01 0000", terminate("20040000"),
			Config{MaxReads: 16, ClientServer: true},
			rdma.ConnParams{},
		},
		{
			"markers", "40 01 0002 6869", "c0 01 0000", terminate("20040000"),
			Config{PlainMPA: true},
			rdma.ConnParams{PrivateData: []byte("hi")},
		},
	} {
		t.Run(x.name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			check(t, err)
			defer l.Close()
			request, after := unhex(t, req+x.request), unhex(t, x.after)
			heard := make(chan []byte, 2)
			go func() {
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				b := make([]byte, len(request))
				_, _ = io.ReadFull(c, b)
				heard <- b
				_, _ = c.Write(unhex(t, rep+x.reply))
				rest, _ := io.ReadAll(c)
				heard <- rest
			}()
			e := newEnd(t, setup{device: x.c})
			defer e.close()
			err = e.dev.Connect(context.Background(), e.qp, l.Addr().String(), x.p)
			if _, ok := errors.AsType[*ddp.Error](err); !ok {
				t.Errorf("Connect: %v", err)
			}
			if b := <-heard; !bytes.Equal(b, request) {
				t.Errorf("Request % x, want % x", b, request)
			}
			if b := <-heard; !bytes.HasPrefix(b, after) {
				t.Errorf("after the Reply % x, want % x", b, after)
			}
		})
	}
}

// A peer that requests much data and does not read it delays only itself.
func TestPeerStopsReading(t *testing.T) {
	s := setup{reads: 16}
	dev, err := Open(Config{LingerTime: 50 * time.Millisecond})
	check(t, err)
	victim, other, client := newEndOn(t, dev, s), newEndOn(t, dev, s), newEnd(t, s)
	c, _, err := rawClient(t, victim, rdma.ConnParams{}, unhex(t, "4d504120494420526571204672616d65 50 02 0004 0010 0010"))
	check(t, err)
	var b []byte
	for i := range 16 {
		start := len(b)
		b = ddp.AppendReadRequest(b, uint32(i+1), ddp.RDMARead{SinkSTag: 1, Size: memLen, SrcSTag: uint32(victim.mem.STag())})
		b = ddp.AppendFPDUTrailer(b, start)
	}
	_, err = c.Write(b)
	check(t, err)
	connect(t, client, other, s)
	for i := range 100 {
		other.recv(uint64(i), 0, 100)
		client.post(rdma.Work{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Signaled, SGL: client.sge(0, 100)})
		other.want(rdma.OpReceive, uint64(i))
		client.want(rdma.OpSend, uint64(i))
	}
	// One Request more than the IRD is an offence. The connection ends although the Terminate cannot be sent.
	b = ddp.AppendFPDUTrailer(ddp.AppendReadRequest(nil, 17, ddp.RDMARead{}), 0)
	_, err = c.Write(b)
	check(t, err)
	victim.qp.Abort(nil)
	if err := <-victim.gone; err == nil {
		t.Error("no error")
	}
	check(t, victim.qp.Close())
	check(t, victim.mem.Deregister())
	check(t, victim.cq.Close())
	client.close()
	other.close()
}
