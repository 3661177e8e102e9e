package iser

import (
	"testing"

	"oneshot/iscsi/pdu"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/rdmatest"
)

// newFakeBench returns a bench with so many bytes of I/O memory, whose peers are the test.
func newFakeBench(t testing.TB, limit int64) (*bench, *rdmatest.Fake) {
	t.Helper()
	d := rdmatest.NewFake()
	return newBenchOn(t, limit, d, ""), d
}

// mover returns one of a connection with an initiator of the test's.
func (b *bench) mover() (*Mover, *rdmatest.FakePair) {
	b.t.Helper()
	return b.moverOf(b.t, new(rdmatest.FakeRequest))
}

func (b *bench) moverOf(t testing.TB, r *rdmatest.FakeRequest) (*Mover, *rdmatest.FakePair) {
	t.Helper()
	if !b.node.Admit() {
		t.Fatal("no connection is admitted")
	}
	m := b.target.newMover(r)
	check(t, m.accept(r, nil, nil))
	return m, r.Pair
}

// end ends a connection, as the network tells it.
func (b *bench) end(p *rdmatest.FakePair) {
	p.End()
	wait(func() bool { return b.node.Connections() == 0 && !b.target.Busy() })
}

// logInAs logs in over p, as the port with that ISID.
func logInAs(t testing.TB, p *rdmatest.FakePair, isid byte, keys ...string) {
	t.Helper()
	text := []byte("InitiatorName=iqn.2026-11.example:fake\x00")
	for _, k := range keys {
		text = append(append(text, k...), 0)
	}
	f := pdu.LoginRequestFields{
		Transit: true, CSG: pdu.StageLoginOperationalNegotiation, NSG: pdu.StageFullFeaturePhase,
		ISID: pdu.ISID{0x80, 5: isid}, ITT: 1, CmdSN: 1, DataSegmentLength: len(text),
	}
	p.Say(append(f.AppendTo(appendHeader(nil)), text...))
	ws := p.Next()
	if len(ws) != 1 || len(ws[0].SGL) != 1 {
		t.Fatalf("a login has %d answers", len(ws))
	}
	if h, _, ok := split(ws[0].SGL[0].Bytes[headerLen:]); !ok || h.Opcode() != pdu.OpLoginResponse || h[36] != 0 {
		t.Fatalf("a login is answered with % x", ws[0].SGL[0].Bytes)
	}
	p.Finish(ws, rdma.StatusOK)
}
