package iser

import (
	"testing"

	"oneshot/iscsi/pdu"
	"oneshot/transport/rdma"
)

// A message that no receive can hold ends its connection, but takes nothing from the queue of receives
// that connections share.
func TestSharedReceivesComeBack(t *testing.T) {
	b := newBench(t)
	for range 3 {
		c := b.dial(false)
		posted, messages := b.device.Counters().Receives, b.device.Counters().MessagesIn
		memory := rdma.SGE{Bytes: c.buf[:slotLen+1], Region: c.region}
		_, err := c.qp.Post([]rdma.Work{{Op: rdma.OpSend, SGL: []rdma.SGE{memory}}})
		check(t, err)
		if a, ok := c.receive(); ok {
			t.Fatalf("an answer to a message that is too long: % x", a.h)
		}
		b.target.conns.Wait()
		if n := b.device.Counters().Receives - posted; n != 1 {
			t.Errorf("%d receives were posted again after one was used (%d messages)", n, b.device.Counters().MessagesIn-messages)
		}
	}
}

// An initiator that asks and does not take the answers is given up.
func TestAnswersNotTaken(t *testing.T) {
	b := newBench(t)
	m := &Mover{target: b.target, qp: new(fakePair), peer: "peer", here: "here", recv: b.target.shared}
	m.queue.Init(16)
	if !b.node.Admit() {
		t.Fatal("no connection is admitted")
	}
	m.conn = b.node.NewRDMAConn(m, &b.target.offer)
	m.conn.Lock()
	for range maxControls {
		m.SendControl(make([]byte, pdu.BHSLen), nil)
	}
	alive := !m.dead
	m.SendControl(make([]byte, pdu.BHSLen), nil)
	dead := m.dead
	m.conn.Lost(nil)
	m.conn.Unlock()
	if !alive || !dead {
		t.Errorf("alive with %d PDUs that wait: %v; dead with one more: %v", maxControls, alive, dead)
	}
}
