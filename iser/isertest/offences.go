package isertest

import (
	"testing"

	"oneshot/ddp"
	"oneshot/internal/iserhdr"
	"oneshot/iscsi/pdu"
)

// An Offence is a peer of one connection that breaks a rule of one-shot RDMA or of iSER, or keeps it in a way that a target may get
// wrong. Do fails the test if the target does not do what it should.
type Offence struct {
	Name string
	Do   func(t testing.TB, d Dial)
}

// Dial connects a peer, which has not logged in yet. It has an ISID of its own, and a LUN that the test may reset and write to.
type Dial func(direct bool, offer ddp.OneShotFlags) *Peer

// Offences are in the order of one-shot.md.
func Offences(target string) []Offence {
	in := func(d Dial, direct bool, offer ddp.OneShotFlags) *Peer {
		p := d(direct, offer)
		p.LogIn(target)
		return p
	}
	var list []Offence
	add := func(name string, do func(t testing.TB, d Dial)) { list = append(list, Offence{name, do}) }

	// one-shot.md §5.4, R4: a function that ends many tasks lets the initiator use their buffers again
	// after its response. An ABORT TASK for one of them that runs later, or is second, closes nothing.
	const stag, abort, reset, hole = 0x4711, 900, 901, 902
	direct := func(d Dial) *Peer { return in(d, true, EveryOffer) }
	write := func(p *Peer) uint32 { return p.Command(RW16(0x8a, 0, 8), nil, stag, 0, 4096) }
	add("ABORT TASK behind a reset, not run yet", func(_ testing.TB, d Dial) {
		p := direct(d)
		itt := write(p)
		r := p.ReadRequest()
		p.Manage(pdu.TaskAbortTask, abort, itt, false, 1) // a command is missing before it
		p.Manage(pdu.TaskLogicalUnitReset, reset, 0, true, 0)
		p.Write(p.Response(r, make([]byte, 4096), true))
		p.Want(ddp.Send, pdu.OpTaskManagementResponse, reset, 0)
		p.Ping(hole)
		p.Want(ddp.Send, pdu.OpNOPIn, hole, 0)
		p.Want(ddp.Send, pdu.OpTaskManagementResponse, abort, 0)
	})
	both := func(first func(p *Peer, itt uint32)) func(testing.TB, Dial) {
		return func(t testing.TB, d Dial) {
			p := direct(d)
			itt := write(p)
			r := p.ReadRequest()
			first(p, itt)
			p.Write(p.Response(r, make([]byte, 4096), true))
			for range 2 { // in either order
				seg, ok := p.Read()
				if !ok || seg.Message != ddp.Send || pdu.Header(p.Payload(seg)).Opcode() != pdu.OpTaskManagementResponse {
					t.Fatalf("%v, %v", seg.Message, ok)
				}
			}
		}
	}
	add("ABORT TASK behind a reset, second", both(func(p *Peer, itt uint32) {
		p.Manage(pdu.TaskLogicalUnitReset, reset, 0, true, 0)
		p.Manage(pdu.TaskAbortTask, abort, itt, true, 0)
	}))
	add("ABORT TASK behind a reset, first, and not over", both(func(p *Peer, itt uint32) {
		p.Manage(pdu.TaskAbortTask, abort, itt, true, 0)
		p.Manage(pdu.TaskLogicalUnitReset, reset, 0, true, 0)
	}))
	add("ABORT TASK before a reset", func(_ testing.TB, d Dial) {
		p := direct(d)
		itt := write(p)
		r := p.ReadRequest()
		p.Manage(pdu.TaskAbortTask, abort, itt, true, 0)
		p.Write(p.Response(r, make([]byte, 4096), true))
		p.Want(ddp.SendClose, pdu.OpTaskManagementResponse, abort, stag)
		p.Manage(pdu.TaskAbortTask, abort, itt, true, 0) // R1: what is closed is not closed again
		p.Want(ddp.Send, pdu.OpTaskManagementResponse, abort, 0)
		p.Manage(pdu.TaskLogicalUnitReset, reset, 0, true, 0)
		p.Want(ddp.Send, pdu.OpTaskManagementResponse, reset, 0)
	})
	add("ABORT TASK with the LUN of another unit, and then with its own", func(_ testing.TB, d Dial) {
		const again = 903
		p := direct(d)
		itt := write(p)
		r := p.ReadRequest()
		own := p.LUN
		p.LUN = 0xff // where there is none
		p.Manage(pdu.TaskAbortTask, abort, itt, true, 0)
		p.LUN = own
		p.Want(ddp.Send, pdu.OpTaskManagementResponse, abort, 0)
		p.Manage(pdu.TaskAbortTask, again, itt, true, 0)
		p.Write(p.Response(r, make([]byte, 4096), true))
		p.Want(ddp.SendClose, pdu.OpTaskManagementResponse, again, stag)
	})
	add("a reset together with the end of a command that ABORT TASK has waited for", func(t testing.TB, d Dial) {
		p := direct(d)
		itt := write(p)
		r := p.ReadRequest()
		p.Manage(pdu.TaskAbortTask, abort, itt, true, 0)
		f := pdu.TaskManagementRequestFields{
			Immediate: true, Function: pdu.TaskLogicalUnitReset, LUN: p.lun(), ITT: reset, ReferencedTaskTag: pdu.ReservedTag, CmdSN: p.CmdSN,
		}
		b := ddp.AppendFPDUTrailer(p.Response(r, make([]byte, 4096), true), 0)
		b = append(b, ddp.AppendFPDUTrailer(p.PDU(f.AppendTo(nil), nil, 0, 0), 0)...)
		_, err := p.Conn.Write(b)
		check(p.T, err)
		given := false // the initiator may use the buffer
		for range 2 {
			seg, ok := p.Read()
			if !ok || !seg.Message.IsSend() {
				t.Fatalf("%v, %v; want a response", seg.Message, ok)
			}
			if given && seg.Message != ddp.Send {
				t.Errorf("%v with STag %#x after the response to the reset", seg.Message, seg.Header.STag())
			}
			given = pdu.Header(p.Payload(seg)).ITT() == reset
		}
	})
	add("ABORT TASK of a command whose turn has not come", func(t testing.TB, d Dial) {
		p := direct(d)
		p.CmdSN++ // a command is missing
		itt := write(p)
		p.CmdSN -= 2
		p.Manage(pdu.TaskAbortTask, abort, itt, true, 0)
		p.Want(ddp.SendClose, pdu.OpTaskManagementResponse, abort, stag)
		p.Ping(hole)
		p.Want(ddp.Send, pdu.OpNOPIn, hole, 0)
		p.CmdSN++
		itt = p.Command(RW16(0x88, 0, 8), nil, 0, stag, 4096) // the name can be used again
		for {
			seg, ok := p.Read()
			if !ok || seg.Message != ddp.Write {
				t.Fatalf("%v, %v", seg.Message, ok)
			}
			if seg.Header.Control().Last() {
				break
			}
		}
		p.Want(ddp.SendClose, pdu.OpSCSIResponse, itt, stag)
	})

	// one-shot.md §5.4, R6: who advertises without having agreed to close hears of the end of its
	// buffers with Send with Invalidate.
	add("advertising without having agreed to close", func(t testing.TB, d Dial) {
		p := in(d, true, ddp.OfferFlags|ddp.OfferEvery|ddp.OfferAdvertise)
		for i := range uint32(2*window + 8) { // more than the window
			m, s := p.inquire(0x100+i, func(bhs []byte) []byte { return p.PDU(bhs, nil, 0, 0x100+i) })
			if m != ddp.SendInvalidate || s != 0x100+i {
				t.Fatalf("the answer is a %v with STag %#x", m, s)
			}
		}
	})

	// one-shot.md §3, profile P2: over iSER the STag may stand in the DDP header as well. It is closed
	// then, whether Send with Invalidate was agreed or not.
	framed := func(p *Peer, inDDP, inISER uint32, bhs []byte) []byte {
		return p.Message(inDDP, iserhdr.Header{Read: inISER}.AppendTo(nil), bhs)
	}
	add("an STag in the DDP header over iSER", func(t testing.TB, d Dial) {
		p := in(d, false, EveryOffer)
		for i := range uint32(2*window + 8) {
			m, s := p.inquire(0x100+i, func(bhs []byte) []byte { return framed(p, 0x100+i, 0x100+i, bhs) })
			if m != ddp.SendClose || s != 0x100+i {
				t.Fatalf("the answer is a %v with STag %#x", m, s)
			}
		}
	})
	add("two STags for one buffer", func(_ testing.TB, d Dial) {
		p := in(d, false, EveryOffer)
		f := pdu.SCSICommandFields{Final: true, Read: true, LUN: p.lun(), ITT: 1, CmdSN: p.CmdSN, CDB: []byte{0x12, 0, 0, 1, 0, 0}, EDTL: 256}
		p.Write(framed(p, 0x200, 0x201, f.AppendTo(nil)))
		p.WantEnd("two STags for one buffer")
	})

	// one-shot.md §5.4, R1: what advertises an STag is a command that will be answered, or nobody would close it.
	add("an STag that a NOP-Out advertises", func(_ testing.TB, d Dial) {
		p := direct(d)
		f := pdu.NOPOutFields{ITT: hole, TTT: pdu.ReservedTag, CmdSN: p.CmdSN}
		p.Write(p.Message(stag, f.AppendTo(nil)))
		p.WantEnd("an STag that a NOP-Out advertises")
	})
	add("an STag that a command outside of the window advertises", func(_ testing.TB, d Dial) {
		p := direct(d)
		next := p.CmdSN
		p.CmdSN = next.Add(1 << 20)
		write(p)
		f := pdu.NOPOutFields{ITT: hole, TTT: pdu.ReservedTag, CmdSN: next}
		_ = p.TryWrite(p.PDU(f.AppendTo(nil), nil, 0, 0)) // whoever goes on answers it
		p.WantEnd("an STag that a command outside of the window advertises")
	})

	// A buffer that goes beyond the last tagged offset is an error now, not TASK SET FULL for ever.
	wraps := func(h iserhdr.Header, op byte) func(testing.TB, Dial) {
		return func(_ testing.TB, d Dial) {
			p := in(d, false, 0)
			f := pdu.SCSICommandFields{
				Final: true, Read: h.Read != 0, Write: h.Write != 0, LUN: p.lun(), ITT: 77, CmdSN: p.CmdSN, CDB: RW16(op, 0, 8), EDTL: 4096,
			}
			p.Write(p.Message(0, h.AppendTo(nil), f.AppendTo(nil)))
			p.WantEnd("a buffer that wraps")
		}
	}
	add("a READ whose buffer wraps", wraps(iserhdr.Header{Read: 7, ReadOffset: 1<<64 - 1}, 0x88))
	add("a WRITE whose buffer wraps", wraps(iserhdr.Header{Write: 7, WriteOffset: 1<<64 - 1}, 0x8a))

	// The STag of its Read Request is of use to nobody: not to the peer that it was sent to, nor to another, whether it writes or reads.
	for _, m := range []ddp.Message{ddp.Write, ddp.ReadRequest} {
		for _, own := range []bool{true, false} {
			name := "a peer that uses the sink of its Read Request: "
			if !own {
				name = "a peer that uses the sink of another's Read Request: "
			}
			add(name+m.String(), func(_ testing.TB, d Dial) {
				p := in(d, false, 0)
				write(p)
				r := p.ReadRequest()
				q := p
				if !own {
					q = d(false, 0)
					q.LogIn(target)
				}
				if m == ddp.Write {
					q.Write(q.Tagged(ddp.Write, r.SinkSTag, r.SinkTO, make([]byte, 512), true))
				} else {
					q.Write(q.AskFor(r.SinkSTag, r.SinkTO, 512))
				}
				q.WantEnd("a peer uses memory of the target")
				if !own {
					p.Write(p.Response(r, make([]byte, 4096), true))
					if h, _ := p.Answer(); h.Opcode() != pdu.OpSCSIResponse || h[3] != 0 {
						p.T.Errorf("the WRITE whose sink another peer wants: % x", h)
					}
				}
			})
		}
	}
	return list
}

// AskFor makes a Read Request for memory of the target.
func (p *Peer) AskFor(stag uint32, at uint64, n uint32) []byte {
	p.readMSN++
	return ddp.AppendReadRequest(nil, p.readMSN, ddp.RDMARead{SinkSTag: 0x77, SrcSTag: stag, SrcTO: at, Size: n})
}

// inquire reads 256 octets with INQUIRY, into the buffer of an STag, and returns how the answer
// ends that.
func (p *Peer) inquire(stag uint32, message func(bhs []byte) []byte) (ddp.Message, uint32) {
	p.T.Helper()
	f := pdu.SCSICommandFields{
		Final: true, Read: true, LUN: p.lun(), ITT: 100 + uint32(p.CmdSN), CmdSN: p.CmdSN, CDB: []byte{0x12, 0, 0, 1, 0, 0}, EDTL: 256,
	}
	p.CmdSN++
	p.Write(message(f.AppendTo(nil)))
	seg, ok := p.Read()
	if !ok || seg.Message != ddp.Write || seg.Header.STag() != stag {
		p.T.Fatalf("%v, %v; want an RDMA Write to STag %#x", seg.Message, ok, stag)
	}
	seg, ok = p.Read()
	if !ok || !seg.Message.IsSend() {
		p.T.Fatalf("%v, %v; want the response", seg.Message, ok)
	}
	return seg.Message, seg.Header.STag()
}
