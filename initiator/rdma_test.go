package initiator

import (
	"testing"

	"oneshot/iscsi/pdu"
	"oneshot/transport/rdma"
)

// closingTarget is the completion queue of a connection whose target answers, and closes the connection, while the
// initiator is about to wait.
type closingTarget struct {
	rdma.CompletionQueue
	m    *conn
	left []rdma.Completion
	told bool
}

func (c *closingTarget) Poll(into []rdma.Completion) int {
	n := copy(into, c.left)
	c.left = c.left[n:]
	return n
}

func (c *closingTarget) Arm() bool {
	if !c.told {
		c.told = true
		c.left = append(c.left, rdma.Completion{ID: idReceive, Op: rdma.OpReceive, Bytes: pdu.BHSLen})
		c.m.event()
		c.m.disconnected(nil)
	}
	return true
}

// endedPair is a queue pair whose connection has ended.
type endedPair struct{ rdma.QueuePair }

func (endedPair) PostReceive([]rdma.Receive) (int, error) { return 0, rdma.ErrDisconnected }

// TestLastAnswerOfALogin: a Login Response is read although the target has closed the connection after it.
func TestLastAnswerOfALogin(t *testing.T) {
	refusal := pdu.LoginResponseFields{Status: pdu.LoginInitiatorError}
	m := &conn{flow: FlowOneShot, wake: make(chan struct{}, 1), sgl: []rdma.SGE{{Bytes: refusal.AppendTo(nil)}}, qp: endedPair{}}
	m.cq = &closingTarget{m: m}
	h, _, err := m.receive(t.Context())
	if err != nil || h.Opcode() != pdu.OpLoginResponse {
		t.Errorf("%v, %v instead of the answer", h, err)
	}
	if _, _, err = m.receive(t.Context()); err == nil {
		t.Error("another answer")
	}
}
