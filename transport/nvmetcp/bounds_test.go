//go:build !race

package nvmetcp

import (
	"runtime"
	"testing"

	"oneshot/nvme"
	"oneshot/nvme/tcp/pdu"
	"oneshot/transport/nvmetcp/nvmetest"
)

// heap is how much memory of the heap is in use, bytes.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools keep goes with the second
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// Connections that have proved nothing hold little, whatever they send: with the most commands that they may have outstanding,
// whose data do not come, and a part of another one. 10,000 of them hold 200 MB at most, and none of the I/O memory.
func TestBoundBeforeConnect(t *testing.T) {
	const connections, each = 100, 20 << 10
	r := newRig(t, rigConfig{connections: 2 * connections})
	leases := r.pool.Stats().Leases
	before := heap()
	for range connections {
		h := r.dial(pdu.IC{})
		for i := range 4 {
			h.CID++
			c := nvmetest.ConnectCommand(0, 31, 0, 0)
			c.CID, c.SGL = h.CID, nvme.SGL{Length: nvme.ConnectDataLen, Type: nvme.SGLTransport}
			b := h.Capsule(&c, nil)
			if whole := h.Capsule(&c, nil); i == 3 {
				b = append(b, whole[:len(whole)-1]...)
			}
			h.Send(b)
			if b, _ := h.PDU(); pdu.Header(b).Type() != pdu.R2T {
				t.Fatalf("% x", b)
			}
		}
	}
	held := (heap() - before) / connections // the host's part of it included
	t.Logf("a connection holds %d bytes", held)
	if held > each {
		t.Errorf("a connection that has proved nothing holds %d bytes", held)
	}
	if n := r.pool.Stats().Leases; n != leases {
		t.Errorf("%d leases of I/O memory", n-leases)
	}
}
