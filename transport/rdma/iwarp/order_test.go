package iwarp

import (
	"testing"

	"oneshot/ddp"
	"oneshot/transport/rdma"
)

// Messages that come together complete in the order in which they have come, and are counted by the time that their
// owner is called, however many there are.
func TestCompletionsInOrder(t *testing.T) {
	const reads, sends, size = 3, 100, 40
	e, p := withPeer(t, setup{depth: sends}, 0, true)
	for i := range sends {
		e.recv(uint64(i), 0, size)
	}
	var responses [reads][]byte
	for i := range reads {
		e.post(rdma.Work{ID: uint64(i), Op: rdma.OpRead, Flags: rdma.Signaled, SGL: e.sge(4096, size), RemoteSTag: 0x5100})
		at := p.read().PayloadOffset()
		r := ddp.ParseReadRequest(p.in[at:])
		responses[i] = append(ddp.AppendTagged(nil, ddp.Tagged{
			Control: p.f.Control(ddp.ReadResponse, true), STag: r.SinkSTag, TO: r.SinkTO, Payload: size,
		}), make([]byte, size)...)
	}
	var wire [][]byte
	var want []rdma.Opcode
	msn, read := uint32(0), 0
	for i := range sends + reads {
		if i == 2 || i == 3 || i == 50 {
			wire = append(wire, responses[read])
			want = append(want, rdma.OpRead)
			read++
			continue
		}
		msn++
		wire = append(wire, p.send(ddp.Send, 0, msn, string(make([]byte, size))))
		want = append(want, rdma.OpReceive)
	}
	p.write(wire...)
	next := map[rdma.Opcode]uint64{}
	for i, op := range want {
		e.want(op, next[op])
		next[op]++
		if c := e.qp.Counters(); c.MessagesIn < uint64(i+1) || c.BytesIn < uint64(i+1)*size {
			t.Fatalf("%d messages and %d bytes have come, when %d have completed", c.MessagesIn, c.BytesIn, i+1)
		}
	}
}
