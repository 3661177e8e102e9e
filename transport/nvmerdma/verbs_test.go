//go:build verbs && !guest && cgo && linux

package nvmerdma

import (
	"bytes"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/nvme"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/verbs"
	verbsfake "oneshot/transport/rdma/verbs/fake"
)

func init() {
	verbsfake.Install()
	for name, c := range map[string]verbsfake.Config{
		"InfiniBand": {}, "InfiniBand, cleans": {Clean: true}, "iWARP card": {IWARP: true}, "siw": {IWARP: true, Siw: true},
	} {
		devices[name] = deviceKind{"127.0.0.1:0", func(t testing.TB) rdma.Device {
			verbsfake.BeginTest(t, c)
			d, err := verbs.Open(verbs.Config{Name: verbsfake.Name, LingerTime: 50 * time.Millisecond})
			check(t, err)
			return d
		}}
	}
}

// If an iWARP card does not end the access of a host to memory that it has let it write to, for a Read, that memory is nobody else's
// before the queue has ended. Then the card is asked once more.
func TestSinkStays(t *testing.T) {
	const n = 64 << 10
	d := devices["iWARP card"]
	t.Cleanup(func() {
		if n := verbsfake.End(); n != 0 {
			t.Errorf("%d objects of the libraries are left", n)
		}
	})
	r := newRig(t, d.open(t), d.addr, rigConfig{})
	a := r.admin()
	h := a.queue(1)
	verbsfake.HoldReads()
	t.Cleanup(verbsfake.Release)
	copy(h.data, pattern(n, 1))
	h.send(h.capsule(rw(nvme.Write, 0, n), h.key(n), nil))
	verbsfake.Sinks(n)
	leases := r.pool.Stats().Leases
	verbsfake.Fail("ibv_dereg_mr", unix.EIO, 0)
	verbsfake.KeepQueuePairs()
	t.Cleanup(verbsfake.Forget)
	verbsfake.Release()
	verbsfake.AwaitKept() // the target ends the queue
	r.Quiesce()           // who ends it has let go of it
	if got := r.pool.Stats().Leases; got != leases {
		t.Errorf("%d leases, want %d: memory that a host can write to was given back", got, leases)
	}
	verbsfake.Fail("ibv_dereg_mr", nil, 0)
	verbsfake.Forget()
	h.over()
	until(t, "the queue is gone", func() bool { return r.Connections() == 1 && r.pool.Stats().Leases < leases })
	if !bytes.Equal(r.contents(0, n), make([]byte, n)) {
		t.Error("what a host could change has been written")
	}
}
