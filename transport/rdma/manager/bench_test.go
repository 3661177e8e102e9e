package manager

import (
	"testing"

	"oneshot/transport/rdma"
)

// BenchmarkRequest cuts transfers of typical shapes into descriptors, with the manager and
// without it, that is one descriptor per element. The descriptors are a metric.
func BenchmarkRequest(b *testing.B) {
	memory := make([]byte, 4<<20)
	reg := &region{b: memory}
	elements := func(n, size, stride int) (l []rdma.SGE) {
		for i := range n {
			l = append(l, rdma.SGE{Bytes: memory[i*stride:][:size:size], Region: reg})
		}
		return l
	}
	for _, s := range []struct {
		name   string
		locals []rdma.SGE
	}{
		{"one page", elements(1, 4<<10, 4<<10)},
		{"64 pages side by side", elements(64, 4<<10, 4<<10)},
		{"64 pages apart", elements(64, 4<<10, 8<<10)},
		{"512 sectors apart", elements(512, 512, 1<<10)},
		{"one element of 4 MiB", elements(1, 4<<20, 0)},
	} {
		total := uint64(0)
		for _, e := range s.locals {
			total += uint64(len(e.Bytes))
		}
		remotes := []Remote{{STag: 1, Len: total}}
		limits := Limits{Bytes: 1 << 20, Elements: 32}
		ws, sgl := make([]rdma.Work, 1024), make([]rdma.SGE, 1024)
		b.Run(s.name+"/manager", func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				var r Request
				if err := r.Init(rdma.OpWrite, limits, s.locals, remotes); err != nil {
					b.Fatal(err)
				}
				n, _ = r.Fill(ws, sgl)
			}
			b.ReportMetric(float64(n), "descriptors/op")
		})
		b.Run(s.name+"/without", func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n = 0
				to := uint64(0)
				for _, e := range s.locals {
					for rest := e.Bytes; len(rest) > 0; n++ {
						k := min(len(rest), int(limits.Bytes))
						sgl[n] = rdma.SGE{Bytes: rest[:k], Region: e.Region}
						ws[n] = rdma.Work{Op: rdma.OpWrite, SGL: sgl[n : n+1], RemoteSTag: 1, RemoteOffset: to}
						rest, to = rest[k:], to+uint64(k)
					}
				}
			}
			b.ReportMetric(float64(n), "descriptors/op")
		})
	}
}
