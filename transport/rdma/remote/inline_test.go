package remote_test

import (
	"bytes"
	"testing"

	"oneshot/partition/service"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/remote"
)

// Writes of up to 16 KiB travel with their requests, each in one piece: the service reads nothing of the client's memory.
func TestTravelsAlong(t *testing.T) {
	for _, c := range below {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t)
			dev := c.away(t)
			f := newFar(t, s, dev, c.listen, service.Config{})
			u := use(t, open(t, remote.Config{Device: c.here(t)}), f.l.Addr().String()+"/disk/log", rdma.FreeStart)
			before := dev.Counters().Reads
			for i, x := range []struct {
				n     int
				flags rdma.Flags
				reads uint64
			}{
				{512, 0, 0},
				{16 << 10, 0, 0},
				{16 << 10, rdma.Fence | rdma.Durable, 0},
				{16<<10 + 512, 0, 1},
			} {
				b := u.bytes(0, x.n)
				for k := range b {
					b[k] = byte(k>>9) + byte(i)
				}
				u.post(u.work(rdma.OpWrite, 1, x.flags, 0, x.n, 4096))
				if c := u.want(1, rdma.StatusOK); c.Seq == 0 {
					t.Errorf("%d octets: no number", x.n)
				}
				if n := dev.Counters().Reads - before; n != x.reads {
					t.Errorf("%d octets, flags %x: the service has read %d times, want %d", x.n, x.flags, n, x.reads)
				}
				before = dev.Counters().Reads
				u.post(u.work(rdma.OpRead, 2, 0, 64<<10, x.n, 4096), u.work(rdma.OpFlush, 3, rdma.Fence, 0, 0, 0))
				u.want(2, rdma.StatusOK)
				u.want(3, rdma.StatusOK)
				if !bytes.Equal(u.bytes(64<<10, x.n), b) || !bytes.Equal(s.Crash(4096 + x.n)[4096:], b) {
					t.Errorf("%d octets: others are there", x.n)
				}
			}
		})
	}
}
