//go:build !race

package local_test

import (
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/internal/rounds"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/local"
)

// A work allocates nothing, whether it is done at once or later, and only a store in memory costs copies.
func TestNoAllocation(t *testing.T) {
	for name, c := range map[string]struct {
		store  backend.Store
		copies uint64 // for each transfer
	}{
		"memory": {newMemory(t, 1<<20), 1},
		"file":   {newFile(t, 1<<20, false), 0},
		"direct": {newFile(t, 1<<20, true), 0},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVolume(t, c.store)
			d := open(t, local.Config{Open: opener(v, rdma.DurabilityMedium), Parallel: 64 << 10})
			for _, order := range orders {
				u := use(t, d, "disk/log", order, nil)
				var ws []rdma.Work
				for i := range 32 {
					w := rdma.Work{Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: u.sge(i*4096, 4096), RemoteSTag: u.e.STag, RemoteOffset: uint64(i) * 4096}
					if i%2 == 1 {
						w.Op = rdma.OpRead
					}
					ws = append(ws, w)
				}
				ws[5].Op, ws[5].SGL = rdma.OpFetchAdd, u.sge(0, 8)
				ws[7].SGL = u.sge(256<<10, 256<<10) // in pieces
				ws[9].Flags |= rdma.Fence
				ws[11].Op, ws[12].Flags = rdma.OpRead, ws[12].Flags|rdma.Durable
				ws[31].Op, ws[31].SGL, ws[31].Flags = rdma.OpFlush, nil, ws[31].Flags|rdma.Fence
				cs := make([]rdma.Completion, len(ws))
				round := func() {
					if n, err := u.qp.Post(ws); err != nil || n != len(ws) {
						t.Fatalf("Post: %d, %v", n, err)
					}
					for n := 0; n < len(ws); {
						k := u.cq.Poll(cs[n:])
						for _, c := range cs[n : n+k] {
							if c.Status != rdma.StatusOK {
								t.Fatalf("%+v", c)
							}
						}
						if n += k; k == 0 {
							time.Sleep(20 * time.Microsecond) // with one processor the others have to run meanwhile
						}
					}
				}
				for range 20 {
					round()
				}
				if n := rounds.Allocations(50, round); n >= 1 {
					t.Errorf("order %d: %v allocations for %d works", order, n, len(ws))
				}
				before := u.qp.Counters()
				round()
				if n := u.qp.Counters().Sub(before); n.Copies != 30*c.copies || n.BytesCopied != c.copies*(29*4096+256<<10) {
					t.Errorf("order %d: %d copies of %d bytes for 30 transfers, want %d each", order, n.Copies, n.BytesCopied, c.copies)
				}
			}
		})
	}
}
