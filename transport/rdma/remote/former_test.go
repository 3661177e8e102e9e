package remote_test

import (
	"bytes"
	"testing"

	"oneshot/partition/service"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/remote"
)

// A queue pair that follows one which was closed goes on with its session: the service waits for what that has under way. Of its own
// works it takes none for one of the other's when they are repeated, also if between the two there was one that could not be connected.
func TestFormer(t *testing.T) {
	for _, fails := range []bool{false, true} {
		testFormer(t, fails, 40, func(rdma.QueuePair) {})
	}
	for range 10 { // the positions of tags have not been used equally often, and tags have come round
		testFormer(t, false, 2, remote.Spread)
	}
}

func testFormer(t *testing.T, fails bool, rounds int, begin func(rdma.QueuePair)) {
	s := newStore(t)
	f := newFar(t, s, newIWARP(t), "127.0.0.1:0", service.Config{})
	d := open(t, remote.Config{Device: newIWARP(t)})
	addr := f.l.Addr().String() + "/disk/log"
	u := use(t, d, addr, 0)
	for round := range rounds {
		former := u.qp
		check(t, former.Close())
		if fails {
			former = unconnected(t, d, former)
		}
		if u = follow(t, d, addr, 0, former); round == 0 {
			begin(u.qp)
		}
		fill := []byte{byte(round)}
		copy(u.mem.Bytes(), bytes.Repeat(fill, 512))
		var ws []rdma.Work
		for i := range 64 { // as many as there are tags
			ws = append(ws, u.work(rdma.OpWrite, uint64(i), 0, 0, 512, 512*i))
		}
		u.post(ws...)
		remote.Cut(u.qp)
		for i := range uint64(64) {
			u.want(i, rdma.StatusOK)
		}
		u.post(u.work(rdma.OpRead, 99, 0, 512, 64*512, 0))
		u.want(99, rdma.StatusOK)
		if got := u.bytes(512, 64*512); !bytes.Equal(got, bytes.Repeat(fill, 64*512)) {
			t.Fatalf("round %d, %v: a Write was taken for one of a queue pair before", round, fails)
		}
	}
}

// unconnected returns a closed queue pair that follows former, and for which there was no service.
func unconnected(t *testing.T, d rdma.Device, former rdma.QueuePair) rdma.QueuePair {
	t.Helper()
	dom, err := d.NewDomain()
	check(t, err)
	cq, err := d.NewCompletionQueue(1, nil)
	check(t, err)
	qp, err := d.NewQueuePair(rdma.QueuePairConfig{Domain: dom, SendCQ: cq, RecvCQ: cq, MaxWork: 1})
	check(t, err)
	if err := d.Connect(t.Context(), qp, "127.0.0.1:1/disk/log", rdma.ConnParams{Former: former}); err == nil {
		t.Error("somebody listens on port 1")
	}
	check(t, qp.Close())
	check(t, cq.Close())
	check(t, dom.Close())
	return qp
}
