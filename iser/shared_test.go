package iser

import (
	"testing"

	"oneshot/iscsi"
	"oneshot/iscsi/pdu"
	"oneshot/transport/rdma"
)

// A message that no receive can hold ends its connection, but takes nothing from the queue of receives
// that connections share.
func TestSharedReceivesComeBack(t *testing.T) {
	b := newBench(t)
	for _, status := range []rdma.Status{rdma.StatusOK, rdma.StatusLocalLength, rdma.StatusFlushed} {
		q := new(fakePair)
		m := b.mover(q)
		m.conn.Lock()
		m.completed(&rdma.Completion{ID: receiveID | 3, Op: rdma.OpReceive, Status: status})
		if len(m.returns) != 1 || m.returns[0] != 3 {
			t.Errorf("%v: the receives %v go back to the queue, want 3", status, m.returns)
		}
		m.conn.Lost(nil)
		m.conn.Unlock()
	}
}

// mover returns one of a connection over q.
func (b *bench) mover(q *fakePair) *Mover {
	b.t.Helper()
	m := &Mover{target: b.target, domain: b.target.domain, qp: q, peer: "peer", here: "here", recv: b.target.shared}
	m.queue.Init(16)
	if !b.node.Admit() {
		b.t.Fatal("no connection is admitted")
	}
	m.conn = b.node.NewRDMAConn(m, &b.target.offer)
	return m
}

// An initiator that asks and does not take the answers is given up.
func TestAnswersNotTaken(t *testing.T) {
	b := newBench(t)
	m := b.mover(new(fakePair))
	m.conn.Lock()
	for range maxControls {
		m.SendControl(make([]byte, pdu.BHSLen), nil, iscsi.Ending{})
	}
	alive := !m.dead
	m.SendControl(make([]byte, pdu.BHSLen), nil, iscsi.Ending{})
	dead := m.dead
	m.conn.Lost(nil)
	m.conn.Unlock()
	if !alive || !dead {
		t.Errorf("alive with %d PDUs that wait: %v; dead with one more: %v", maxControls, alive, dead)
	}
}
