package iwarp

import (
	"testing"

	"oneshot/transport/rdma"
)

// BenchmarkStream measures many operations at a time.
func BenchmarkStream(b *testing.B) {
	for _, x := range []struct {
		name  string
		op    rdma.Opcode
		n     int
		depth int
	}{
		{"write/256K", rdma.OpWrite, 256 << 10, 16},
		{"read/256K", rdma.OpRead, 256 << 10, 16},
		{"read/4K", rdma.OpRead, 4096, 32},
		{"write/4K", rdma.OpWrite, 4096, 32},
	} {
		b.Run(x.name, func(b *testing.B) {
			c, s := pair(b, setup{})
			works := []rdma.Work{{
				Op: x.op, Flags: rdma.Signaled, SGL: c.sge(0, x.n), RemoteSTag: s.mem.STag(),
			}}
			b.SetBytes(int64(x.n))
			b.ReportAllocs()
			out := 0
			for b.Loop() {
				if out == x.depth {
					c.next()
					out--
				}
				c.post(works...)
				out++
			}
			for ; out > 0; out-- {
				c.next()
			}
		})
	}
}

// BenchmarkEcho measures a server that answers in its event, as a target does: depth requests
// of 48 octets outstanding at a time.
func BenchmarkEcho(b *testing.B) {
	for _, depth := range []int{1, 32} {
		b.Run(map[int]string{1: "depth1", 32: "depth32"}[depth], func(b *testing.B) {
			s := setup{depth: 64}
			c, srv := newEnd(b, s), newEnd(b, s)
			cq := srv.cq.(*completionQueue)
			cq.event = echo(srv)
			cq.Arm()
			for i := range 64 {
				srv.recv(uint64(i), i*64, 64)
				c.recv(uint64(i), i*64, 64)
			}
			connect(b, c, srv, s)
			work := []rdma.Work{{Op: rdma.OpSend, SGL: c.sge(0, 48)}}
			rs := []rdma.Receive{{SGL: c.sge(0, 64)}}
			b.ReportAllocs()
			out := 0
			for b.Loop() {
				if out == depth {
					c.next()
					_, _ = c.qp.PostReceive(rs)
					out--
				}
				c.post(work...)
				out++
			}
			for ; out > 0; out-- {
				c.next()
			}
			c.close()
			srv.qp.Close()
			srv.cq.Close()
		})
	}
}

func echo(e *end) func() {
	var cs [64]rdma.Completion
	var ws [64]rdma.Work
	var rs [64]rdma.Receive
	for i := range ws {
		ws[i] = rdma.Work{Op: rdma.OpSend, SGL: e.sge(0, 48)}
		rs[i] = rdma.Receive{SGL: e.sge(64, 64)}
	}
	return func() {
		for {
			n := e.cq.Poll(cs[:])
			if n == 0 {
				if e.cq.Arm() {
					return
				}
				continue
			}
			if cs[0].Status != rdma.StatusOK {
				continue
			}
			_, _ = e.qp.PostReceive(rs[:n])
			_, _ = e.qp.Post(ws[:n])
		}
	}
}
