package remote_test

import (
	"bytes"
	"testing"

	"oneshot/partition/service"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/remote"
)

// A queue pair that follows one which was closed goes on with its session: the service waits for what that has under way. Of its own
// works it takes none for one of the other's when they are repeated.
func TestFormer(t *testing.T) {
	s := newStore(t)
	f := newFar(t, s, newIWARP(t), "127.0.0.1:0", service.Config{})
	d := open(t, remote.Config{Device: newIWARP(t)})
	addr := f.l.Addr().String() + "/disk/log"
	u := use(t, d, addr, 0)
	for round := range 40 {
		former := u.qp
		check(t, former.Close())
		u = follow(t, d, addr, 0, former)
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
			t.Fatalf("round %d: a Write was taken for one of a queue pair before", round)
		}
	}
}
