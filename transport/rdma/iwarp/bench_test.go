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
