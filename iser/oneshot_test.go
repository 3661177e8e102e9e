package iser

import (
	"testing"
	"time"

	"oneshot/ddp"
	"oneshot/iscsi/pdu"
	"oneshot/transport/rdma/iwarp"
)

// manage sends a task management request.
func (p *rawPeer) manage(fn pdu.TaskFunction, itt, task uint32, immediate bool, cmdSN uint32) {
	p.t.Helper()
	f := pdu.TaskManagementRequestFields{
		Immediate: immediate, Function: fn, ITT: itt, ReferencedTaskTag: task, CmdSN: p.cmdSN.Add(cmdSN),
	}
	if fn != pdu.TaskAbortTask {
		f.ReferencedTaskTag = pdu.ReservedTag
	}
	p.write(p.pdu(f.AppendTo(nil), nil, 0, 0))
}

// ping sends a NOP-Out in the order of commands.
func (p *rawPeer) ping(itt uint32) {
	p.t.Helper()
	f := pdu.NOPOutFields{ITT: itt, TTT: pdu.ReservedTag, CmdSN: p.cmdSN}
	p.cmdSN++
	p.write(p.pdu(f.AppendTo(nil), nil, 0, 0))
}

// want reads the next message, which is to be a kind of Send with a PDU of a kind for an ITT.
func (p *rawPeer) want(m ddp.Message, op pdu.Opcode, itt, stag uint32) pdu.Header {
	p.t.Helper()
	seg, ok := p.read()
	if !ok || !seg.Message.IsSend() {
		p.t.Fatalf("%v, %v; want a %v with a %v", seg.Message, ok, m, op)
	}
	b := p.payload(seg)
	if !p.direct {
		b = b[headerLen:]
	}
	h := pdu.Header(b)
	if got := seg.Header.STag(); seg.Message != m || h.Opcode() != op || h.ITT() != itt || got != stag && m != ddp.Send {
		p.t.Fatalf("%v with a %v for ITT %#x and STag %#x, want a %v with a %v for ITT %#x and STag %#x",
			seg.Message, h.Opcode(), h.ITT(), got, m, op, itt, stag)
	}
	return h
}

// one-shot.md §5.4, R4: a function that ends many tasks lets the initiator use their buffers again
// after its response. An ABORT TASK for one of them that runs later, or is second, closes nothing.
func TestAbortBehindReset(t *testing.T) {
	const stag, abort, reset, hole = 0x4711, 900, 901, 902
	t.Run("not run yet", func(t *testing.T) {
		p := newBench(t).raw(true, 1)
		itt := p.command(rw16(0x8a, 0, 8), nil, stag, 0, 4096)
		r := p.readRequest()
		p.manage(pdu.TaskAbortTask, abort, itt, false, 1) // a command is missing before it
		p.manage(pdu.TaskLogicalUnitReset, reset, 0, true, 0)
		p.write(p.response(r, make([]byte, 4096), true))
		p.want(ddp.Send, pdu.OpTaskManagementResponse, reset, 0)
		p.ping(hole)
		p.want(ddp.Send, pdu.OpNOPIn, hole, 0)
		p.want(ddp.Send, pdu.OpTaskManagementResponse, abort, 0)
	})
	both := func(first func(p *rawPeer, itt uint32)) func(*testing.T) {
		return func(t *testing.T) {
			p := newBench(t).raw(true, 1)
			itt := p.command(rw16(0x8a, 0, 8), nil, stag, 0, 4096)
			r := p.readRequest()
			first(p, itt)
			p.write(p.response(r, make([]byte, 4096), true))
			for range 2 { // in either order
				seg, ok := p.read()
				if !ok || seg.Message != ddp.Send || pdu.Header(p.payload(seg)).Opcode() != pdu.OpTaskManagementResponse {
					t.Fatalf("%v, %v", seg.Message, ok)
				}
			}
		}
	}
	t.Run("second", both(func(p *rawPeer, itt uint32) {
		p.manage(pdu.TaskLogicalUnitReset, reset, 0, true, 0)
		p.manage(pdu.TaskAbortTask, abort, itt, true, 0)
	}))
	t.Run("first, and not over", both(func(p *rawPeer, itt uint32) {
		p.manage(pdu.TaskAbortTask, abort, itt, true, 0)
		p.manage(pdu.TaskLogicalUnitReset, reset, 0, true, 0)
	}))
	t.Run("first", func(t *testing.T) {
		p := newBench(t).raw(true, 1)
		itt := p.command(rw16(0x8a, 0, 8), nil, stag, 0, 4096)
		r := p.readRequest()
		p.manage(pdu.TaskAbortTask, abort, itt, true, 0)
		p.write(p.response(r, make([]byte, 4096), true))
		p.want(ddp.SendClose, pdu.OpTaskManagementResponse, abort, stag)
		p.manage(pdu.TaskLogicalUnitReset, reset, 0, true, 0)
		p.want(ddp.Send, pdu.OpTaskManagementResponse, reset, 0)
	})
	t.Run("of a command whose turn has not come", func(t *testing.T) {
		p := newBench(t).raw(true, 1)
		p.cmdSN++ // a command is missing
		itt := p.command(rw16(0x8a, 0, 8), nil, stag, 0, 4096)
		p.cmdSN -= 2
		p.manage(pdu.TaskAbortTask, abort, itt, true, 0)
		p.want(ddp.SendClose, pdu.OpTaskManagementResponse, abort, stag)
		p.ping(hole)
		p.want(ddp.Send, pdu.OpNOPIn, hole, 0)
		p.cmdSN++
		itt = p.command(rw16(0x88, 0, 8), nil, 0, stag, 4096) // the name can be used again
		for {
			seg, ok := p.read()
			if !ok || seg.Message != ddp.Write {
				t.Fatalf("%v, %v", seg.Message, ok)
			}
			if seg.Header.Control().Last() {
				break
			}
		}
		p.want(ddp.SendClose, pdu.OpSCSIResponse, itt, stag)
	})
}

// read256 reads 256 octets with INQUIRY, into the buffer of an STag, and returns how the answer
// ends that.
func (p *rawPeer) read256(stag uint32, message func(itt uint32, bhs []byte) []byte) (ddp.Message, uint32) {
	p.t.Helper()
	itt := 100 + uint32(p.cmdSN)
	f := pdu.SCSICommandFields{Final: true, Read: true, ITT: itt, CmdSN: p.cmdSN, CDB: []byte{0x12, 0, 0, 1, 0, 0}, EDTL: 256}
	p.cmdSN++
	p.write(message(itt, f.AppendTo(nil)))
	seg, ok := p.read()
	if !ok || seg.Message != ddp.Write || seg.Header.STag() != stag {
		p.t.Fatalf("%v, %v; want an RDMA Write to STag %#x", seg.Message, ok, stag)
	}
	seg, ok = p.read()
	if !ok || !seg.Message.IsSend() {
		p.t.Fatalf("%v, %v; want the response", seg.Message, ok)
	}
	return seg.Message, seg.Header.STag()
}

// one-shot.md §5.4, R6: who advertises without having agreed to close hears of the end of its
// buffers with Send with Invalidate.
func TestAdvertiseWithoutClose(t *testing.T) {
	p := newBench(t).connect(true, ddp.OfferFlags|ddp.OfferEvery|ddp.OfferAdvertise)
	p.logIn()
	for i := range uint32(40) { // more than the window
		m, s := p.read256(0x100+i, func(_ uint32, bhs []byte) []byte { return p.pdu(bhs, nil, 0, 0x100+i) })
		if m != ddp.SendInvalidate || s != 0x100+i {
			t.Fatalf("the answer is a %v with STag %#x", m, s)
		}
	}
}

// one-shot.md §3, profile P2: over iSER the STag may stand in the DDP header as well. It is closed
// then, whether Send with Invalidate was agreed or not.
func TestAdvertisedOverISER(t *testing.T) {
	framed := func(p *rawPeer, inDDP, inISER uint32, bhs []byte) []byte {
		h := appendHeader(nil)
		h[0] |= flagRSV
		h[18], h[19] = byte(inISER>>8), byte(inISER)
		return p.message(inDDP, h, bhs)
	}
	b := newBenchOf(t, 64<<20, iwarp.Config{LingerTime: 10 * time.Millisecond})
	p := b.connect(false, everyOffer)
	p.logIn()
	for i := range uint32(40) { // more than the window
		m, s := p.read256(0x100+i, func(_ uint32, bhs []byte) []byte { return framed(p, 0x100+i, 0x100+i, bhs) })
		if m != ddp.SendClose || s != 0x100+i {
			t.Fatalf("the answer is a %v with STag %#x", m, s)
		}
	}
	f := pdu.SCSICommandFields{Final: true, Read: true, ITT: 1, CmdSN: p.cmdSN, CDB: []byte{0x12, 0, 0, 1, 0, 0}, EDTL: 256}
	p.write(framed(p, 0x200, 0x201, f.AppendTo(nil)))
	if seg, ok := p.read(); ok && seg.Message != ddp.Terminate {
		t.Errorf("two STags for one buffer: %v", seg.Message)
	}
}

// A buffer that goes beyond the last tagged offset is an error now, not TASK SET FULL for ever.
func TestBufferWraps(t *testing.T) {
	b := newBenchOf(t, 64<<20, iwarp.Config{LingerTime: 10 * time.Millisecond})
	for name, c := range map[string]struct {
		op        byte
		flag      byte
		at        int
		direction func(*pdu.SCSICommandFields)
	}{
		"READ":  {0x88, flagRSV, 16, func(f *pdu.SCSICommandFields) { f.Read = true }},
		"WRITE": {0x8a, flagWSV, 4, func(f *pdu.SCSICommandFields) { f.Write = true }},
	} {
		t.Run(name, func(t *testing.T) {
			p := b.raw(false, 1)
			h := appendHeader(nil)
			h[0] |= c.flag
			h[c.at+3] = 7
			for i := range 8 {
				h[c.at+4+i] = 0xff
			}
			f := pdu.SCSICommandFields{Final: true, ITT: 77, CmdSN: p.cmdSN, CDB: rw16(c.op, 0, 8), EDTL: 4096}
			c.direction(&f)
			p.write(p.message(0, h, f.AppendTo(nil)))
			if seg, ok := p.read(); ok && seg.Message != ddp.Terminate {
				t.Errorf("%v % x; want the end of the connection", seg.Message, p.in)
			}
		})
	}
}
