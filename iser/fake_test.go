package iser

import (
	"testing"

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
