//go:build !race

package nic_test // allocations are counted without the race detector, which allocates itself

import (
	"testing"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/card"
)

// Commands allocate nothing, in the driver or in the card: here both are in this process.
func TestNoAllocations(t *testing.T) {
	socket := serve(t, card.Config{})
	a, b := newEnd(t, open(t, socket)), newEnd(t, open(t, socket))
	connect(t, a, b, oneShot())
	ra, rb := []rdma.Receive{{ID: 5, SGL: a.sge(4096, 64)}}, []rdma.Receive{{ID: 6, SGL: b.sge(4096, 64)}}
	receive := func(e *end, rs []rdma.Receive) {
		if _, err := e.qp.PostReceive(rs); err != nil {
			t.Fatal(err)
		}
	}
	post := func(e *end, ws []rdma.Work) {
		if _, err := e.qp.Post(ws); err != nil {
			t.Fatal(err)
		}
	}
	send := []rdma.Work{{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.sge(0, 48)}}
	advertise := []rdma.Work{{
		Op: rdma.OpSend, Flags: rdma.Advertise, SGL: a.sge(0, 48), Access: rdma.AccessRemoteWrite, Memory: a.sge(8192, 4096),
	}}
	push := []rdma.Work{
		{Op: rdma.OpWrite, SGL: b.sge(8192, 4096)},
		{ID: 3, Op: rdma.OpSend, Flags: rdma.Close | rdma.Signaled, SGL: b.sge(0, 48)},
	}
	for name, trip := range map[string]func(){
		"message": func() {
			receive(b, rb)
			post(a, send)
			b.want(rdma.OpReceive, 6)
			a.want(rdma.OpSend, 1)
		},
		"one-shot read": func() {
			receive(b, rb)
			receive(a, ra)
			post(a, advertise)
			b.want(rdma.OpReceive, 6)
			push[0].RemoteSTag, push[1].STag = advertise[0].STag, advertise[0].STag
			post(b, push)
			a.want(rdma.OpReceive, 5)
			b.want(rdma.OpSend, 3)
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 300 { // until rings have grown to what is needed
				trip()
			}
			// Pools of the device may be emptied by the collector now and then.
			if n := testing.AllocsPerRun(500, trip); n >= 1 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}
