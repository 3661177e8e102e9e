package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"oneshot/ddp"
	"oneshot/transport/rdma"
)

// A peer that sends one octet at a time is slow, but served correctly.
func TestBytewise(t *testing.T) {
	x := setup{shot: byFlags, depth: 4}
	s, p := accepted(t, newSubject(t, open(t, x.config)), x, (*peer).bytewise)
	s.receive(100, 100)
	r := s.region(remoteWrite)
	wire := func(fpdu []byte) []byte { return ddp.AppendFPDUTrailer(bytes.Clone(fpdu), 0) }
	write := tagged(ctlWrite, r.STag(), 4, 30)
	copy(write[16:], "what is written byte by byte..")
	p.bytewise(wire(p.untagged((ctlSendSE|markAdvertise)&^notLast, 0x500, 0, 1, 0, 5)))
	p.bytewise(wire(p.untagged(ctlSendSE|markAdvertise, 0x500, 0, 1, 5, 6)))
	p.bytewise(wire(write))
	p.bytewise(wire(p.message(ctlSend, 0, 2, 0)))
	if c := s.delivered(); c.Bytes != 11 || c.Flags != rdma.Advertised || c.STag != 0x500 {
		t.Errorf("%+v", c)
	}
	if c := s.delivered(); c.Bytes != 0 || c.Flags != 0 {
		t.Errorf("%+v", c)
	}
	if !bytes.Equal(r.Bytes()[4:34], write[16:]) || !bytes.Equal(r.Bytes()[34:], make([]byte, 4096-34)) {
		t.Errorf("written: %q", r.Bytes()[:40])
	}
	p.bytewise(wire(request(1, s.mem.STag(), 0, 50)))
	if f := p.fpdu(); f == nil || binary.BigEndian.Uint16(f[2:]) != ctlResponse || !bytes.Equal(f[16:], s.want[:50]) {
		t.Errorf("%x; want the Read Response", f)
	}
}

// Zero-length Reads and Writes reach no memory, so that nothing is checked (RFC 5040 §5.2).
func TestZeroLength(t *testing.T) {
	s, p := responder(t, setup{depth: 4})
	p.send(tagged(ctlWrite, 0xdead, 1<<63, 0), request(1, 0xbeef, 1<<62, 0))
	f := p.fpdu()
	if want := tagged(ctlResponse, 0x5100, 0x1000, 0); !bytes.Equal(f, want) {
		t.Errorf("%x, want %x", f, want)
	}
	s.receive(100)
	p.send(p.message(ctlSend, 0, 1, 1))
	s.delivered()
}

// A peer that sends Read Requests and never reads costs others nothing, and can be dropped at once.
func TestPeerNeverReads(t *testing.T) {
	const huge = 16 << 20
	x := setup{depth: 2}
	s, p := responder(t, x)
	r := s.register(s.dom, huge, remoteRead)
	s.receive(100)
	p.send(request(1, r.STag(), 0, huge), request(2, r.STag(), 0, huge), p.message(ctlSend, 0, 1, 10))
	s.delivered() // which is behind the Requests

	s2, p2 := accepted(t, newSubject(t, s.dev), x, (*peer).write)
	for i := range uint32(10) {
		s2.receive(100)
		p2.send(p2.message(ctlSend, 0, i+1, 10), request(i+1, s2.mem.STag(), 0, 4096))
		s2.delivered()
		if f := p2.fpdu(); f == nil || !bytes.Equal(f[16:], s2.want[:4096]) {
			t.Fatalf("Read Response %d of another connection: %.40x", i, f)
		}
	}
	must(t, s.qp.Close())
	must(t, r.Deregister()) // nothing refers to it any more
}

// A flood of valid requests is served in order, as fast as the peer takes the answers, with no more
// memory than the agreed number of Reads needs.
func TestFlood(t *testing.T) {
	const n = 500
	s, p := responder(t, setup{depth: 1})
	for i := range uint32(n) {
		p.send(request(i+1, s.mem.STag(), uint64(i), 100))
		if f := p.fpdu(); f == nil || !bytes.Equal(f[16:], s.want[i:i+100]) {
			t.Fatalf("Read Response %d: %x", i, f)
		}
	}
	must(t, s.qp.Close()) // until then, what has left may be there before it is counted
	if c := s.qp.Counters(); c.MessagesIn != n || c.MessagesOut != n {
		t.Errorf("%d messages in, %d out, want %d", c.MessagesIn, c.MessagesOut, n)
	}
}

// If a peer dies between Read Request and Response, or within a message, everything posted completes, and
// no part of the message is delivered.
func TestPeerDies(t *testing.T) {
	for name, last := range map[string]func(p *peer, r ddp.RDMARead) []byte{
		"before the Response": func(*peer, ddp.RDMARead) []byte { return nil },
		"within the Response": func(_ *peer, r ddp.RDMARead) []byte {
			return ddp.AppendFPDUTrailer(tagged(ctlResponse&^notLast, rdma.STag(r.SinkSTag), r.SinkTO, 50), 0)
		},
		"within an FPDU": func(_ *peer, r ddp.RDMARead) []byte {
			return tagged(ctlResponse, rdma.STag(r.SinkSTag), r.SinkTO, 100)[:60]
		},
		"within a message": func(p *peer, _ ddp.RDMARead) []byte {
			return ddp.AppendFPDUTrailer(p.untagged(ctlSend&^notLast, 0, 0, 1, 0, 50), 0)
		},
		"after a good FPDU and a bit": func(p *peer, _ ddp.RDMARead) []byte {
			return append(ddp.AppendFPDUTrailer(tagged(ctlWrite, 0, 0, 0), 0), 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, p := initiator(t, setup{})
			s.receive(100)
			s.post(rdma.Work{ID: 1, Op: rdma.OpRead, SGL: s.sge(5000, 100), RemoteSTag: 0x5100})
			s.post(rdma.Work{ID: 2, Op: rdma.OpSend, Flags: rdma.Fence, SGL: s.sge(0, 10)})
			f := p.fpdu()
			p.write(last(p, ddp.ParseReadRequest(f[20:])))
			p.c.Close()
			seen := make(map[rdma.Opcode]rdma.Status)
			for range 3 {
				c := s.next()
				seen[c.Op] = c.Status
			}
			for _, op := range []rdma.Opcode{rdma.OpRead, rdma.OpSend, rdma.OpReceive} {
				if st, ok := seen[op]; !ok || st != rdma.StatusFlushed {
					t.Errorf("%v: %v, want %v", op, st, rdma.StatusFlushed)
				}
			}
			// Between two FPDUs it is an end like any other: the peer may do that.
			if err := <-s.gone; (err == nil) != (name == "before the Response") {
				t.Errorf("the connection ends with %v", err)
			}
		})
	}
}
