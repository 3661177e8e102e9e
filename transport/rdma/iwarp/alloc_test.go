//go:build !race

package iwarp // sync.Pool forgets at random when the race detector is on

import (
	"testing"

	"oneshot/transport/rdma"
)

// trip is an operation and its answer.
type trip struct {
	name string
	run  func()
}

// trips returns round trips of all kinds over a connection. They allocate nothing themselves.
func trips(a, b *end, n int) []trip {
	memory := a.sge(1<<20, n)
	send := []rdma.Work{{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.sge(0, 48)}}
	reply := []rdma.Work{{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: b.sge(0, 48)}}
	write := []rdma.Work{{
		ID: 1, Op: rdma.OpWrite, SGL: a.sge(1<<20, n), RemoteSTag: b.mem.STag(),
	}, send[0]}
	read := []rdma.Work{{
		ID: 2, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: a.sge(1<<20, n), RemoteSTag: b.mem.STag(),
	}}
	advertise := []rdma.Work{{
		Op: rdma.OpSend, Flags: rdma.Advertise, SGL: a.sge(0, 48), Access: rdma.AccessRemoteRead, Memory: memory,
	}}
	pull := []rdma.Work{{ID: 2, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: b.sge(1<<20, n)}}
	shut := []rdma.Work{{ID: 3, Op: rdma.OpSend, Flags: rdma.Close, SGL: b.sge(0, 48)}}
	push := []rdma.Work{
		{ID: 3, Op: rdma.OpWrite, SGL: b.sge(1<<20, n)},
		{ID: 3, Op: rdma.OpSend, Flags: rdma.Close, SGL: b.sge(0, 48)},
	}
	ra := []rdma.Receive{{ID: 5, SGL: a.sge(4096, 4096)}}
	rb := []rdma.Receive{{ID: 6, SGL: b.sge(4096, 4096)}}
	receive := func() {
		_, _ = a.qp.PostReceive(ra)
		_, _ = b.qp.PostReceive(rb)
	}
	return []trip{
		{"send", func() {
			receive()
			a.post(send...)
			b.want(rdma.OpReceive, 6)
			a.want(rdma.OpSend, 1)
			b.post(reply...)
			a.want(rdma.OpReceive, 5)
			b.want(rdma.OpSend, 1)
		}},
		{"write", func() {
			_, _ = b.qp.PostReceive(rb)
			a.post(write...)
			b.want(rdma.OpReceive, 6)
			a.want(rdma.OpSend, 1)
		}},
		{"read", func() {
			a.post(read...)
			a.want(rdma.OpRead, 2)
		}},
		{"one-shot pull", func() {
			receive()
			advertise[0].Access = rdma.AccessRemoteRead
			a.post(advertise...)
			s := b.want(rdma.OpReceive, 6).STag
			pull[0].RemoteSTag, shut[0].STag = s, s
			b.post(pull...)
			b.want(rdma.OpRead, 2)
			b.post(shut...)
			a.want(rdma.OpReceive, 5)
		}},
		{"one-shot push", func() {
			receive()
			advertise[0].Access = rdma.AccessRemoteWrite
			a.post(advertise...)
			s := b.want(rdma.OpReceive, 6).STag
			push[0].RemoteSTag, push[1].STag = s, s
			b.post(push...)
			a.want(rdma.OpReceive, 5)
		}},
	}
}

func TestAllocs(t *testing.T) {
	a, b := pair(t, setup{client: offer(), server: offer()})
	for _, n := range []int{4096, 256 << 10} {
		for _, p := range trips(a, b, n) {
			for range 100 {
				p.run()
			}
			if got := testing.AllocsPerRun(300, p.run); got != 0 {
				t.Errorf("%s of %d octets: %v allocations", p.name, n, got)
			}
		}
	}
}

func BenchmarkTrips(b *testing.B) {
	x, y := pair(b, setup{client: offer(), server: offer()})
	for _, n := range []int{4096, 256 << 10} {
		for _, p := range trips(x, y, n) {
			b.Run(p.name+"/"+map[int]string{4096: "4K", 256 << 10: "256K"}[n], func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(n))
				for b.Loop() {
					p.run()
				}
			})
		}
	}
}
