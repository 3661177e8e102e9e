package iwarp_test

import (
	"testing"

	"oneshot/ddp"
	"oneshot/transport/rdma"
)

const (
	remoteRead  = rdma.AccessRemoteRead
	remoteWrite = rdma.AccessRemoteWrite | rdma.AccessLocalWrite
	remoteBoth  = remoteRead | remoteWrite
	invalidate  = rdma.AccessRemoteInvalidate
)

type fpdus = [][]byte

// one is an offence of one FPDU that needs nothing from the end under test.
func one(f func(p *peer) []byte) func(*subject, *peer) fpdus {
	return func(s *subject, p *peer) fpdus {
		s.receive(100)
		return fpdus{f(p)}
	}
}

// changed is an offence of one message with a changed control word.
func changed(fpdu func(p *peer) []byte, f func(uint16) uint16) func(*subject, *peer) fpdus {
	return one(func(p *peer) []byte { return withControl(fpdu(p), f) })
}

// inParts is the length of payloads, in octets, that are too large to be read at once, so that they
// are placed piece by piece.
const inParts = 60000

func plainSend(p *peer) []byte    { return p.message(ctlSend, 0, 1, 10) }
func plainWrite(*peer) []byte     { return tagged(ctlWrite, 0x100, 0, 10) }
func plainRequest(*peer) []byte   { return request(1, 0x100, 0, 10) }
func clearing(m uint16) bitChange { return func(c uint16) uint16 { return c &^ m } }
func setting(m uint16) bitChange  { return func(c uint16) uint16 { return c | m } }
func opcode(op uint16) bitChange  { return func(c uint16) uint16 { return c&^0xf | op } }

type bitChange = func(uint16) uint16

// The rows of iwarp.md §6 that concern the stream and its headers.
func TestHeaderOffences(t *testing.T) {
	list := []offence{
		{name: "1 shorter than its untagged header", cause: ddp.NoTerminate, bytes: one(func(*peer) []byte {
			return append([]byte{0, 17, 0x41, 0x43}, make([]byte, 15)...)
		})},
		{name: "1 shorter than its tagged header", cause: ddp.NoTerminate, bytes: one(func(*peer) []byte {
			return append([]byte{0, 13, 0xc1, 0x40}, make([]byte, 11)...)
		})},
		{name: "1 empty", cause: ddp.NoTerminate, bytes: one(func(*peer) []byte { return []byte{0, 0} })},
		{name: "2 CRC", cause: ddp.MPACRC, bytes: func(s *subject, p *peer) fpdus {
			s.receive(100)
			p.write(badCRC(plainSend(p)))
			return nil
		}},
		{name: "2 CRC of what is placed in parts", cause: ddp.MPACRC, bytes: func(s *subject, p *peer) fpdus {
			r := s.register(s.dom, inParts, remoteWrite)
			p.send(tagged(ctlWrite, r.STag(), 0, inParts)) // which is good
			p.write(badCRC(tagged(ctlWrite, r.STag(), 0, inParts)))
			return nil
		}},
		{name: "2 CRC of another offence", cause: ddp.MPACRC, bytes: func(_ *subject, p *peer) fpdus {
			p.write(badCRC(tagged(ctlWrite, 0x100, 0, inParts))) // maybe it was sent to another STag
			return nil
		}},
		{name: "3 DV 0 tagged", cause: ddp.TaggedVersion, bytes: changed(plainWrite, clearing(0x0300))},
		{name: "3 DV 3 tagged", cause: ddp.TaggedVersion, bytes: changed(plainWrite, setting(0x0300))},
		{name: "3 DV 0 untagged", cause: ddp.UntaggedVersion, bytes: changed(plainSend, clearing(0x0300))},
		{name: "3 DV 2 untagged", cause: ddp.UntaggedVersion, bytes: changed(plainRequest, func(c uint16) uint16 { return c&^0x0300 | 0x0200 })},
		{name: "4 RV 0 tagged", cause: ddp.OpVersion, bytes: changed(plainWrite, clearing(0x00c0))},
		{name: "4 RV 2 untagged", cause: ddp.OpVersion, bytes: changed(plainSend, func(c uint16) uint16 { return c&^0x00c0 | 0x0080 })},
		{name: "5 Send is tagged", cause: ddp.OpUnexpectedOpcode, bytes: changed(plainWrite, opcode(3))},
		{name: "5 Terminate is tagged", cause: ddp.OpUnexpectedOpcode, bytes: changed(plainWrite, opcode(7))},
		{name: "5 Write is untagged", cause: ddp.OpUnexpectedOpcode, bytes: changed(plainSend, opcode(0))},
		{name: "5 Read Response is untagged", cause: ddp.OpUnexpectedOpcode, bytes: changed(plainSend, opcode(2))},
		{name: "6 Send QN 1", cause: ddp.UntaggedQN, bytes: one(func(p *peer) []byte { return p.untagged(ctlSend, 0, 1, 1, 0, 10) })},
		{name: "6 Send QN 4", cause: ddp.UntaggedQN, bytes: one(func(p *peer) []byte { return p.untagged(ctlSend, 0, 4, 1, 0, 10) })},
		{name: "6 Read Request QN 0", cause: ddp.UntaggedQN, bytes: one(func(p *peer) []byte {
			b := plainRequest(p)
			b[11] = 0
			return b
		})},
		{name: "7 MSN 0", cause: ddp.UntaggedMSN, bytes: one(func(p *peer) []byte { return p.message(ctlSend, 0, 0, 10) })},
		{name: "7 MSN 2", cause: ddp.UntaggedMSN, bytes: one(func(p *peer) []byte { return p.message(ctlSend, 0, 2, 10) })},
		{name: "7 MSN of the second segment", cause: ddp.UntaggedMSN, bytes: func(s *subject, p *peer) fpdus {
			s.receive(100)
			return fpdus{p.untagged(ctlSend&^notLast, 0, 0, 1, 0, 10), p.untagged(ctlSend, 0, 0, 2, 10, 10)}
		}},
		{name: "8 MO at first", cause: ddp.UntaggedMO, bytes: one(func(p *peer) []byte { return p.untagged(ctlSend, 0, 0, 1, 1, 10) })},
		{name: "8 MO behind a gap", cause: ddp.UntaggedMO, bytes: func(s *subject, p *peer) fpdus {
			s.receive(100)
			return fpdus{p.untagged(ctlSend&^notLast, 0, 0, 1, 0, 10), p.untagged(ctlSend, 0, 0, 1, 11, 10)}
		}},
		{name: "8 MO twice", cause: ddp.UntaggedMO, bytes: func(s *subject, p *peer) fpdus {
			s.receive(100)
			return fpdus{p.untagged(ctlSend&^notLast, 0, 0, 1, 0, 10), p.untagged(ctlSend, 0, 0, 1, 0, 10)}
		}},
		{name: "9 no receive", cause: ddp.UntaggedNoBuffer, bytes: func(_ *subject, p *peer) fpdus { return fpdus{plainSend(p)} }},
		{name: "10 too long", cause: ddp.UntaggedTooLong, bytes: one(func(p *peer) []byte { return p.message(ctlSend, 0, 1, 101) })},
		{name: "10 second segment too long", cause: ddp.UntaggedTooLong, bytes: func(s *subject, p *peer) fpdus {
			s.receive(100)
			return fpdus{p.untagged(ctlSend&^notLast, 0, 0, 1, 0, 60), p.untagged(ctlSend, 0, 0, 1, 60, 41)}
		}},
		{name: "10 too long, in parts", cause: ddp.UntaggedTooLong, bytes: one(func(p *peer) []byte { return p.message(ctlSend, 0, 1, inParts) })},
		{name: "9 no receive, in parts", cause: ddp.UntaggedNoBuffer, bytes: func(_ *subject, p *peer) fpdus {
			return fpdus{p.message(ctlSend, 0, 1, inParts)}
		}},
		{name: "5 opcode, in parts", cause: ddp.OpUnexpectedOpcode, bytes: one(func(p *peer) []byte {
			return withControl(p.message(ctlSend, 0, 1, inParts), opcode(0xd))
		})},
		{name: "23 tagged messages interleaved", cause: ddp.NoTerminate, bytes: func(s *subject, _ *peer) fpdus {
			r := s.region(remoteWrite)
			return fpdus{tagged(ctlWrite&^notLast, r.STag(), 0, 10), tagged(ctlResponse, r.STag(), 10, 10)}
		}},
		{name: "23 untagged messages interleaved", cause: ddp.NoTerminate, bytes: func(s *subject, p *peer) fpdus {
			s.receive(100)
			return fpdus{p.untagged(ctlSend&^notLast, 0, 0, 1, 0, 10), request(1, s.mem.STag(), 0, 10)}
		}},
	}
	for _, op := range []uint16{0x8, 0x9, 0xa, 0xb, 0xc, 0xd, 0xe, 0xf} {
		list = append(list, offence{
			name: "5 untagged opcode " + string("0123456789abcdef"[op]), cause: ddp.OpUnexpectedOpcode, bytes: changed(plainSend, opcode(op)),
		}, offence{
			name: "5 tagged opcode " + string("0123456789abcdef"[op]), cause: ddp.OpUnexpectedOpcode, bytes: changed(plainWrite, opcode(op)),
		})
	}
	for i := range list {
		list[i].setup.depth = 4
	}
	runOffences(t, responder, list)
}

func badCRC(fpdu []byte) []byte {
	b := ddp.AppendFPDUTrailer(fpdu, 0)
	b[len(b)-1] ^= 0x10
	return b
}

// access makes the octets of a Read Request or Write of n octets.
type access func(stag rdma.STag, to uint64, n uint32) []byte

func writeTo(stag rdma.STag, to uint64, n uint32) []byte  { return tagged(ctlWrite, stag, to, int(n)) }
func readFrom(stag rdma.STag, to uint64, n uint32) []byte { return request(1, stag, to, n) }

// Forged, stale, foreign and forbidden STags (rows 11 to 14 and 18).
func TestAccessOffences(t *testing.T) {
	for _, op := range []struct {
		name                                  string
		do                                    access
		right, wrong                          rdma.Access
		invalid, stream, rights, bounds, wrap ddp.Cause
	}{
		{
			"11-14 Write", writeTo, remoteWrite, remoteRead,
			ddp.TaggedInvalidSTag, ddp.TaggedStream, ddp.TaggedInvalidSTag, ddp.TaggedBounds, ddp.TaggedTOWrap,
		},
		{
			"18 Read", readFrom, remoteRead, remoteWrite,
			ddp.ProtInvalidSTag, ddp.ProtStream, ddp.ProtAccess, ddp.ProtBounds, ddp.ProtTOWrap,
		},
	} {
		at := func(change rdma.STag, to uint64, n uint32) func(*subject, *peer) fpdus {
			return func(s *subject, _ *peer) fpdus { return fpdus{op.do(s.mem.STag()^change, to, n)} }
		}
		list := []offence{
			{name: "index unknown", cause: op.invalid, bytes: at(0x00555500, 0, 10)},
			{name: "STag 0", cause: op.invalid, bytes: func(*subject, *peer) fpdus { return fpdus{op.do(0, 0, 10)} }},
			{name: "key", cause: op.invalid, bytes: at(0x01, 0, 10)},
			{name: "old key", cause: op.invalid, bytes: at(0x80, 0, 10)},
			{name: "deregistered", cause: op.invalid, bytes: func(s *subject, _ *peer) fpdus {
				r := s.region(op.right)
				must(s.t, r.Deregister())
				return fpdus{op.do(r.STag(), 0, 10)}
			}},
			{name: "domain", cause: op.stream, bytes: func(s *subject, _ *peer) fpdus {
				return fpdus{op.do(s.other(op.right).STag(), 0, 10)}
			}},
			{name: "rights", cause: op.rights, bytes: func(s *subject, _ *peer) fpdus {
				return fpdus{op.do(s.region(op.wrong).STag(), 0, 10)}
			}},
			{name: "no remote access", cause: op.rights, bytes: func(s *subject, _ *peer) fpdus {
				return fpdus{op.do(s.region(rdma.AccessLocalWrite).STag(), 0, 10)}
			}},
			{name: "over the end", cause: op.bounds, bytes: at(0, 8183, 10)},
			{name: "behind the end", cause: op.bounds, bytes: at(0, 8192, 1)},
			{name: "far away", cause: op.bounds, bytes: at(0, 1<<40, 1)},
			{name: "wrap", cause: op.wrap, bytes: at(0, ^uint64(0)-8, 10)},
		}
		if op.right == remoteWrite {
			list = append(list,
				offence{name: "over the end, in parts", cause: op.bounds, bytes: at(0, 0, inParts)},
				offence{name: "key, in parts", cause: op.invalid, bytes: at(1, 0, inParts)})
		}
		for i := range list {
			list[i].setup.depth = 1
		}
		t.Run(op.name, func(t *testing.T) { runOffences(t, responder, list) })
	}
}

func TestReadOffences(t *testing.T) {
	const huge = 16 << 20
	flood := func(depth int) func(*subject, *peer) fpdus {
		return func(s *subject, p *peer) (b fpdus) { // more than sockets hold
			r := s.register(s.dom, huge, remoteRead)
			for i := range depth + 1 {
				b = append(b, request(uint32(i+1), r.STag(), 0, huge))
			}
			return b
		}
	}
	bounds := request(2, 0, 8190, 10)
	runOffences(t, responder, []offence{
		{name: "15 STag changes", cause: ddp.TaggedInvalidSTag, bytes: func(s *subject, _ *peer) fpdus {
			a, b := s.region(remoteWrite), s.region(remoteWrite)
			return fpdus{tagged(ctlWrite&^notLast, a.STag(), 0, 10), tagged(ctlWrite, b.STag(), 10, 10)}
		}},
		{name: "15 TO has a gap", cause: ddp.TaggedBounds, bytes: func(s *subject, _ *peer) fpdus {
			a := s.region(remoteWrite)
			return fpdus{tagged(ctlWrite&^notLast, a.STag(), 0, 10), tagged(ctlWrite, a.STag(), 11, 10)}
		}},
		{name: "15 over the end in the second segment", cause: ddp.TaggedBounds, bytes: func(s *subject, _ *peer) fpdus {
			a := s.region(remoteWrite)
			return fpdus{tagged(ctlWrite&^notLast, a.STag(), 4000, 96), tagged(ctlWrite, a.STag(), 4096, 1)}
		}},
		{name: "16 MSN", setup: setup{depth: 4}, cause: ddp.UntaggedMSN, bytes: func(s *subject, _ *peer) fpdus {
			return fpdus{request(2, s.mem.STag(), 0, 10)}
		}},
		{name: "16 MSN again", setup: setup{depth: 4}, cause: ddp.UntaggedMSN, bytes: func(s *subject, _ *peer) fpdus {
			return fpdus{request(1, s.mem.STag(), 0, 10), request(1, s.mem.STag(), 0, 10)}
		}},
		{name: "17 IRD 0", cause: ddp.OpCatastrophicStream, bytes: func(s *subject, _ *peer) fpdus {
			return fpdus{request(1, s.mem.STag(), 0, 10)}
		}},
		{name: "17 IRD 2", blocked: true, setup: setup{depth: 2}, cause: ddp.OpCatastrophicStream, bytes: flood(2)},
		{name: "17 IRD 8", blocked: true, setup: setup{depth: 8}, cause: ddp.OpCatastrophicStream, bytes: flood(8)},
		{name: "18 behind a good one", setup: setup{depth: 2}, cause: ddp.ProtBounds, bytes: func(s *subject, _ *peer) fpdus {
			b := append([]byte(nil), bounds...)
			copy(b[36:], be32(s.mem.STag()))
			return fpdus{request(1, s.mem.STag(), 0, 4096), b}
		}},
		{name: "19 Response to nothing", cause: ddp.DDPLocalCatastrophic, bytes: func(s *subject, _ *peer) fpdus {
			return fpdus{tagged(ctlResponse, s.mem.STag(), 0, 10)}
		}},
		{name: "21 index unknown", cause: ddp.OpCannotInvalidate, bytes: func(s *subject, p *peer) fpdus {
			s.receive(100)
			return fpdus{p.message(ctlSendInv, uint32(s.mem.STag())^0x00555500, 1, 10)}
		}},
		{name: "22 domain", cause: ddp.ProtCannotInvalidate, bytes: func(s *subject, p *peer) fpdus {
			s.receive(100)
			return fpdus{p.message(ctlSEInv, uint32(s.other(remoteWrite|invalidate).STag()), 1, 10)}
		}},
		{name: "22 not allowed", cause: ddp.ProtCannotInvalidate, bytes: func(s *subject, p *peer) fpdus {
			s.receive(100)
			return fpdus{p.message(ctlSendInv, uint32(s.mem.STag()), 1, 10)}
		}},
		{name: "24 trailing data", setup: setup{depth: 4}, cause: ddp.NoTerminate, bytes: func(s *subject, _ *peer) fpdus {
			b := append(request(1, s.mem.STag(), 0, 10), 0, 0, 0, 0)
			b[1] += 4
			return fpdus{b}
		}},
		{name: "peer's own Terminate", cause: ddp.NoTerminate, bytes: func(*subject, *peer) fpdus {
			return fpdus{ddp.AppendTerminate(nil, &ddp.TerminateMessage{Cause: ddp.LocalCatastrophic})}
		}},
	})
}

func be32(s rdma.STag) []byte { return []byte{byte(s >> 24), byte(s >> 16), byte(s >> 8), byte(s)} }

// Row 20: answers that are not what was asked for. Sink is that of the Read of 100 octets.
func TestResponseOffences(t *testing.T) {
	type seg struct {
		c    ddp.Control
		stag rdma.STag
		to   uint64
		n    int
	}
	for _, c := range []struct {
		name  string
		segs  []seg // STag and TO are added to those of the request
		cause ddp.Cause
	}{
		{"STag", []seg{{ctlResponse, 1, 0, 100}}, ddp.TaggedInvalidSTag},
		{"STag of other memory", []seg{{ctlResponse, 0x100, 0, 100}}, ddp.TaggedInvalidSTag},
		{"TO", []seg{{ctlResponse, 0, 1, 100}}, ddp.TaggedBounds},
		{"TO before", []seg{{ctlResponse, 0, ^uint64(0), 100}}, ddp.TaggedBounds},
		{"too long", []seg{{ctlResponse, 0, 0, 101}}, ddp.TaggedBounds},
		{"too short", []seg{{ctlResponse, 0, 0, 99}}, ddp.TaggedBounds},
		{"no end", []seg{{ctlResponse &^ notLast, 0, 0, 100}}, ddp.TaggedBounds},
		{"gap", []seg{{ctlResponse &^ notLast, 0, 0, 50}, {ctlResponse, 0, 51, 49}}, ddp.TaggedBounds},
		{"STag changes", []seg{{ctlResponse &^ notLast, 0, 0, 50}, {ctlResponse, 1, 50, 50}}, ddp.TaggedInvalidSTag},
		{"second segment too long", []seg{{ctlResponse &^ notLast, 0, 0, 50}, {ctlResponse, 0, 50, 51}}, ddp.TaggedBounds},
		{"Write between", []seg{{ctlResponse &^ notLast, 0, 0, 50}, {ctlWrite, 0, 50, 50}}, ddp.NoTerminate},
		{"twice", []seg{{ctlResponse, 0, 0, 100}, {ctlResponse, 0, 0, 100}}, ddp.DDPLocalCatastrophic},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, p := initiator(t, setup{})
			s.post(rdma.Work{ID: 1, Op: rdma.OpRead, SGL: s.sge(5000, 100), RemoteSTag: 0x5100})
			f := p.fpdu()
			r := ddp.ParseReadRequest(f[20:])
			var b fpdus
			for _, x := range c.segs {
				b = append(b, tagged(x.c, rdma.STag(r.SinkSTag)+x.stag, r.SinkTO+x.to, x.n))
			}
			p.send(b...)
			p.answer(c.cause, false)
			s.over()
		})
	}
}

// closing is the FPDU that closes an STag.
func (p *peer) closing(stag, msn uint32) []byte {
	if p.f.Encoding == ddp.EncodingOpcodes {
		return p.message(0x414c, stag, msn, 48)
	}
	return p.message(ctlSendSE|markClose, stag, msn, 48)
}

func (p *peer) advertising(stag, msn uint32) []byte {
	if p.f.Encoding == ddp.EncodingOpcodes {
		return p.message(0x4148, stag, msn, 48)
	}
	return p.message(ctlSendSE|markAdvertise, stag, msn, 48)
}

// one-shot.md §6 as Host 2 sees it: F1 to F4, A1 to A3.
func TestHost2Offences(t *testing.T) {
	flags, opcodes := setup{shot: byFlags, depth: 4}, setup{shot: byOpcodes, depth: 4}
	send := func(c ddp.Control, stag uint32) func(*subject, *peer) fpdus {
		return one(func(p *peer) []byte { return p.message(c, stag, 1, 48) })
	}
	segments := func(c1, c2 ddp.Control, s1, s2 uint32) func(*subject, *peer) fpdus {
		return func(s *subject, p *peer) fpdus {
			s.receive(100)
			return fpdus{p.untagged(c1&^notLast, s1, 0, 1, 0, 24), p.untagged(c2, s2, 0, 1, 24, 24)}
		}
	}
	held := func(f func(p *peer) []byte) func(*subject, *peer) fpdus {
		return func(s *subject, p *peer) fpdus {
			s.receive(100, 100, 100, 100)
			p.send(p.advertising(0x500, 1), p.advertising(0x600, 2))
			s.delivered()
			if c := s.delivered(); c.Flags != rdma.Advertised || c.STag != 0x600 {
				s.t.Fatalf("%+v", c)
			}
			return fpdus{f(p)}
		}
	}
	const stag = 0x4711
	list := []offence{
		{name: "F1 opcode advertise, nothing agreed", cause: ddp.OpUnexpectedOpcode, bytes: send(0x4148, stag)},
		{name: "F1 opcode close, nothing agreed", cause: ddp.OpUnexpectedOpcode, bytes: send(0x414c, stag)},
		{name: "F1 opcode advertise, flags agreed", setup: flags, cause: ddp.OpUnexpectedOpcode, bytes: send(0x4148, stag)},
		{name: "F1 opcode close, flags agreed", setup: flags, cause: ddp.OpUnexpectedOpcode, bytes: send(0x414c, stag)},
		{name: "F2 both bits", setup: flags, cause: ddp.OpUnexpectedOpcode, bytes: send(ctlSendSE|markAdvertise|markClose, stag)},
		{name: "F2 bit on a Write", setup: flags, cause: ddp.OpUnexpectedOpcode, bytes: changed(plainWrite, setting(markAdvertise))},
		{name: "F2 bit on a Read Response", setup: flags, cause: ddp.OpUnexpectedOpcode, bytes: changed(plainWrite, func(uint16) uint16 { return ctlResponse | markClose })},
		{name: "F2 bit on a Read Request", setup: flags, cause: ddp.OpUnexpectedOpcode, bytes: changed(plainRequest, setting(markAdvertise))},
		{name: "F2 bit with Invalidate", setup: flags, cause: ddp.OpUnexpectedOpcode, bytes: send(ctlSendInv|markAdvertise, stag)},
		{name: "F2 bit with SE and Invalidate", setup: flags, cause: ddp.OpUnexpectedOpcode, bytes: send(ctlSEInv|markAdvertise, stag)},
		{name: "F2 bit on QN 1", setup: flags, cause: ddp.OpUnexpectedOpcode, bytes: one(func(p *peer) []byte {
			return p.untagged(ctlSendSE|markAdvertise, stag, 1, 1, 0, 48)
		})},
		{name: "F2 opcode on QN 1", setup: opcodes, cause: ddp.OpUnexpectedOpcode, bytes: one(func(p *peer) []byte {
			return p.untagged(0x4148, stag, 1, 1, 0, 48)
		})},
		{name: "F2 opcode on QN 2", setup: opcodes, cause: ddp.OpUnexpectedOpcode, bytes: one(func(p *peer) []byte {
			return p.untagged(0x4148, stag, 2, 1, 0, 48)
		})},
		{name: "F2 opcode tagged", setup: opcodes, cause: ddp.OpUnexpectedOpcode, bytes: changed(plainWrite, opcode(8))},
		{name: "F3 Host 1 closes, flags", setup: flags, cause: ddp.OpUnexpectedOpcode, bytes: send(ctlSendSE|markClose, stag)},
		{name: "F3 Host 1 closes, opcodes", setup: opcodes, cause: ddp.OpUnexpectedOpcode, bytes: send(0x414c, stag)},
		{name: "F3 advertise not agreed", setup: setup{shot: closeAlone}, cause: ddp.OpUnexpectedOpcode, bytes: send(ctlSendSE|markAdvertise, stag)},
		{name: "F4 mark is gone", setup: flags, cause: ddp.OpCatastrophicStream, bytes: segments(ctlSendSE|markAdvertise, ctlSendSE, stag, stag)},
		{name: "F4 mark appears", setup: flags, cause: ddp.OpCatastrophicStream, bytes: segments(ctlSendSE, ctlSendSE|markAdvertise, 0, stag)},
		{name: "F4 STag changes", setup: flags, cause: ddp.OpCatastrophicStream, bytes: segments(ctlSendSE|markAdvertise, ctlSendSE|markAdvertise, stag, stag+1)},
		{name: "F4 opcode changes", setup: opcodes, cause: ddp.OpCatastrophicStream, bytes: segments(0x4148, ctlSendSE, stag, stag)},
		{name: "F4 opcode changes, nothing agreed", cause: ddp.OpCatastrophicStream, bytes: segments(ctlSend, ctlSendSE, 0, 0)},
		{name: "F4 STag changes, nothing agreed", cause: ddp.OpCatastrophicStream, bytes: segments(ctlSendInv, ctlSendInv, stag, stag+1)},
		{name: "A1", setup: flags, cause: ddp.ProtInvalidSTag, bytes: send(ctlSendSE|markAdvertise, 0)},
		{name: "A1 opcode", setup: opcodes, cause: ddp.ProtInvalidSTag, bytes: send(0x4148, 0)},
		{name: "A2", setup: setup{shot: byFlags, window: 4}, cause: ddp.OpCatastrophicStream, bytes: held(func(p *peer) []byte { return p.advertising(0x500, 3) })},
		{name: "A2 opcode", setup: setup{shot: byOpcodes, window: 4}, cause: ddp.OpCatastrophicStream, bytes: held(func(p *peer) []byte { return p.advertising(0x600, 3) })},
		{name: "A3", setup: flags, cause: ddp.OpCatastrophicStream, bytes: held(func(p *peer) []byte { return p.advertising(0x700, 3) })},
	}
	runOffences(t, responder, list)
}

// Flags that were not agreed on are reserved bits of RFC 5041, which the receiver ignores.
func TestFlagsIgnored(t *testing.T) {
	for _, x := range []setup{{}, {shot: byOpcodes}} {
		s, p := responder(t, x)
		s.receive(100, 100)
		p.send(p.message(ctlSendSE|markAdvertise, 0x4711, 1, 20), p.message(ctlSendSE|markClose|markAdvertise, 0x4711, 2, 20))
		for range 2 {
			if c := s.delivered(); c.Flags != 0 || c.STag != 0 || c.Bytes != 20 {
				t.Errorf("%+v; want a plain message", c)
			}
		}
	}
}

// one-shot.md §6 as Host 1 sees it: F3, C1 to C6, X1 to X3.
func TestHost1Offences(t *testing.T) {
	for name, x := range map[string]setup{
		"flags":     {shot: byFlags, depth: 4},
		"opcodes":   {shot: byOpcodes, depth: 4},
		"validated": {shot: byFlags&^ddp.OfferEvery | ddp.OfferValidated, depth: 4},
	} {
		t.Run(name, func(t *testing.T) { host1Offences(t, x) })
	}
}

// advertised has the end under test advertise memory, and waits until the peer has the message.
func advertised(s *subject, p *peer, a rdma.Access) uint32 {
	s.t.Helper()
	s.receive(100, 100, 100)
	stag := s.advertise(a)
	if f := p.fpdu(); f == nil || ddp.Header(f[2:20]).STag() != stag {
		s.t.Fatalf("%x does not advertise %08x", f, stag)
	}
	return stag
}

func host1Offences(t *testing.T, x setup) {
	// valid is an offence against an STag that is advertised, closed one against an STag that was
	// advertised and is closed.
	valid := func(a rdma.Access, f func(p *peer, stag rdma.STag) []byte) func(*subject, *peer) fpdus {
		return func(s *subject, p *peer) fpdus { return fpdus{f(p, rdma.STag(advertised(s, p, a)))} }
	}
	closed := func(f func(p *peer, stag rdma.STag) []byte) func(*subject, *peer) fpdus {
		return func(s *subject, p *peer) fpdus {
			stag := advertised(s, p, rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
			p.send(p.closing(stag, 1))
			if c := s.delivered(); c.Flags != rdma.Closed || c.STag != rdma.STag(stag) || c.Bytes != 48 {
				s.t.Fatalf("%+v; want %08x closed", c, stag)
			}
			return fpdus{f(p, rdma.STag(stag))}
		}
	}
	closing := func(change uint32) func(p *peer, stag rdma.STag) []byte {
		return func(p *peer, stag rdma.STag) []byte { return p.closing(uint32(stag)^change, 1) }
	}
	const read, write = rdma.AccessRemoteRead, rdma.AccessRemoteWrite
	reading := func(to uint64, n uint32) func(*peer, rdma.STag) []byte {
		return func(_ *peer, stag rdma.STag) []byte { return readFrom(stag, to, n) }
	}
	writing := func(to uint64, n uint32) func(*peer, rdma.STag) []byte {
		return func(_ *peer, stag rdma.STag) []byte { return writeTo(stag, to, n) }
	}
	list := []offence{
		{name: "F3 Host 2 advertises", cause: ddp.OpUnexpectedOpcode, bytes: one(func(p *peer) []byte { return p.advertising(0x4711, 1) })},
		{name: "C1 index unknown", cause: ddp.ProtInvalidSTag, bytes: valid(read, closing(0x00555500))},
		{name: "C1 key", cause: ddp.ProtInvalidSTag, bytes: valid(read, closing(1))},
		{name: "C2 closed twice", cause: ddp.ProtInvalidSTag, bytes: closed(func(p *peer, stag rdma.STag) []byte {
			return p.closing(uint32(stag), 2)
		})},
		{name: "C3 another connection", cause: ddp.ProtCannotInvalidate, bytes: func(s *subject, p *peer) fpdus {
			s2, p2 := initiatorOn(s.t, newSubject(s.t, s.dev), x)
			stag := advertised(s2, p2, read)
			s.receive(100)
			return fpdus{p.closing(stag, 1)}
		}},
		{name: "C4 conventional memory", cause: ddp.OpCannotInvalidate, bytes: func(s *subject, p *peer) fpdus {
			s.receive(100)
			return fpdus{p.closing(uint32(s.mem.STag()), 1)}
		}},
		{name: "C5 not sent yet", blocked: true, cause: ddp.OpCannotInvalidate, bytes: func(s *subject, p *peer) fpdus {
			big := s.register(s.dom, 32<<20, rdma.AccessLocalWrite)
			s.receive(100)
			s.post(rdma.Work{Op: rdma.OpWrite, SGL: []rdma.SGE{{Bytes: big.Bytes(), Region: big}}, RemoteSTag: 0x5100})
			return fpdus{p.closing(s.advertise(read), 1)}
		}},
		{name: "X1 Read from what is closed", cause: ddp.ProtInvalidSTag, bytes: closed(reading(0, 10))},
		{name: "X2 Write to what is closed", cause: ddp.TaggedInvalidSTag, bytes: closed(writing(0, 10))},
		{name: "X3 Read over the end", cause: ddp.ProtBounds, bytes: valid(read, reading(4090, 7))},
		{name: "X3 Read without rights", cause: ddp.ProtAccess, bytes: valid(write, reading(0, 1))},
		{name: "X3 Read with another key", cause: ddp.ProtInvalidSTag, bytes: valid(read, func(_ *peer, s rdma.STag) []byte { return readFrom(s^1, 0, 1) })},
		{name: "X3 Write over the end", cause: ddp.TaggedBounds, bytes: valid(write, writing(4090, 7))},
		{name: "X3 Write wraps", cause: ddp.TaggedTOWrap, bytes: valid(write, writing(^uint64(0), 2))},
		{name: "X3 Write without rights", cause: ddp.TaggedInvalidSTag, bytes: valid(read, writing(0, 1))},
		{name: "X3 Write from another connection", cause: ddp.TaggedStream, bytes: func(s *subject, _ *peer) fpdus {
			s2, p2 := initiatorOn(s.t, newSubject(s.t, s.dev), x)
			return fpdus{writeTo(rdma.STag(advertised(s2, p2, write)), 0, 10)}
		}},
		{name: "revoked", cause: ddp.ProtInvalidSTag, bytes: valid(read, nil)},
	}
	list[len(list)-1].bytes = func(s *subject, p *peer) fpdus {
		stag := advertised(s, p, read)
		must(s.t, s.qp.Revoke(rdma.STag(stag), func() {}))
		return fpdus{readFrom(rdma.STag(stag), 0, 10)}
	}
	for i := range list {
		list[i].setup = x
	}
	runOffences(t, initiator, list)

	t.Run("F3 close not agreed", func(t *testing.T) {
		runOffences(t, initiator, []offence{{
			name: "F3", setup: setup{shot: tellAlone}, cause: ddp.OpUnexpectedOpcode, bytes: valid(read, func(p *peer, stag rdma.STag) []byte {
				return p.message(ctlSendSE|markClose, uint32(stag), 1, 48)
			}),
		}})
	})
	t.Run("C6 found by the owner", func(t *testing.T) {
		s, p := initiator(t, x)
		stag := advertised(s, p, read)
		p.send(p.closing(stag, 1))
		s.delivered()
		s.qp.Abort(wrongReference{})
		p.terminate(ddp.OpCatastrophicStream, nil)
		p.c.Close()
		s.over()
	})
}

// wrongReference is the error of an owner whose close names another command (C6).
type wrongReference struct{}

func (wrongReference) Error() string                         { return "the closing message is about another command" }
func (wrongReference) Terminate() (layer, etype, code uint8) { return 0, 2, 7 }
