package iser

import (
	"testing"

	"oneshot/iscsi"
	"oneshot/iscsi/pdu"
	"oneshot/transport/rdma/rdmatest"
)

// An initiator that asks and does not take the answers is given up.
func TestAnswersNotTaken(t *testing.T) {
	d := rdmatest.NewFake()
	d.Says.MaxInline = 256 // so that nothing of an answer is needed once it is posted
	b := newBenchOn(t, 64<<20, d, "")
	m, p := b.mover()
	m.conn.Lock()
	for range maxControls {
		m.SendControl(make([]byte, pdu.BHSLen), nil, iscsi.Ending{})
		m.Flush() // posted is not taken
	}
	alive := !m.Dead()
	m.SendControl(make([]byte, pdu.BHSLen), nil, iscsi.Ending{})
	dead := m.Dead()
	m.conn.Unlock()
	b.end(p)
	if !alive || !dead {
		t.Errorf("alive with %d PDUs that wait: %v; dead with one more: %v", maxControls, alive, dead)
	}
}
