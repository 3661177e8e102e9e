//go:build !race

package remote_test

import (
	"testing"
	"time"

	"oneshot/backend/memory"
	"oneshot/internal/rounds"
	"oneshot/mem"
	"oneshot/partition/service"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/remote"
)

// A work allocates nothing at either end, with a request and without.
func TestNoAllocation(t *testing.T) {
	for _, direct := range []bool{false, true} {
		noAllocation(t, direct)
	}
}

func noAllocation(t *testing.T, direct bool) {
	s, err := memory.New(4 << 20)
	check(t, err)
	f := newFar(t, s, newIWARP(t), "127.0.0.1:0", service.Config{})
	f.direct = direct
	d := open(t, remote.Config{Device: newIWARP(t)})
	for _, order := range []rdma.Order{rdma.OrderStrict, rdma.FreeStart | rdma.FreeFinish} {
		u := use(t, d, f.l.Addr().String()+"/disk/log", order)
		var ws []rdma.Work
		for i := range 32 {
			w := u.work(rdma.OpWrite, uint64(i), 0, i*16384, 4096, i*16384)
			switch i % 4 {
			case 1:
				w = u.work(rdma.OpRead, uint64(i), 0, i*16384, 4096, i*16384)
			case 2:
				w = u.work(rdma.OpWrite, uint64(i), 0, i*16384, 32768, i*16384)
			}
			ws = append(ws, w)
		}
		ws[3] = u.work(rdma.OpFetchAdd, 3, 0, 0, 8, 0)
		ws[31] = u.work(rdma.OpFlush, 31, rdma.Fence, 0, 0, 0)
		cs := make([]rdma.Completion, len(ws))
		round := func() {
			u.post(ws...)
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
		for range 50 {
			round()
		}
		if n := rounds.Allocations(100, round); n >= 1 {
			t.Errorf("direct %v, order %d: %v allocations for %d works", direct, order, n, len(ws))
		}
	}
}

// BenchmarkRemote measures both ends on one core, over iWARP on loopback.
func BenchmarkRemote(b *testing.B) {
	for name, c := range map[string]struct {
		op       rdma.Opcode
		n, depth int
		f        rdma.Flags
	}{
		"read 4K depth 1": {rdma.OpRead, 4096, 1, 0}, "read 4K depth 32": {rdma.OpRead, 4096, 32, 0},
		"write 4K inline depth 1": {rdma.OpWrite, 4096, 1, 0}, "write 4K inline depth 32": {rdma.OpWrite, 4096, 32, 0},
		"write 64K depth 32": {rdma.OpWrite, 65536, 32, 0}, "durable write 4K depth 1": {rdma.OpWrite, 4096, 1, rdma.Durable},
	} {
		for way, direct := range map[string]bool{"requests": false, "direct": true} {
			b.Run(name+" "+way, func(b *testing.B) {
				s, err := memory.New(8 << 20)
				check(b, err)
				f := newFar(b, s, newIWARP(b), "127.0.0.1:0", service.Config{})
				f.direct = direct
				u := use(b, open(b, remote.Config{Device: newIWARP(b)}), f.l.Addr().String()+"/disk/log", rdma.FreeStart|rdma.FreeFinish)
				ws := make([]rdma.Work, c.depth)
				for i := range ws {
					ws[i] = u.work(c.op, uint64(i), c.f, i*c.n%(mem.MaxLease/2), c.n, i*c.n)
				}
				b.ReportAllocs()
				b.SetBytes(int64(c.n * c.depth))
				for b.Loop() {
					u.post(ws...)
					for range ws {
						if x := u.next(); x.Status != rdma.StatusOK {
							b.Fatalf("%+v", x)
						}
					}
				}
			})
		}
	}
}
