package iser

import (
	"testing"

	"oneshot/iscsi"
	"oneshot/iscsi/pdu"
)

// An initiator that asks and does not take the answers is given up.
func TestAnswersNotTaken(t *testing.T) {
	b, _ := newFakeBench(t, 64<<20)
	m, p := b.mover()
	m.conn.Lock()
	for range maxControls {
		m.SendControl(make([]byte, pdu.BHSLen), nil, iscsi.Ending{})
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
