package nic

import (
	"errors"
	"net"
	"testing"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/shm"
)

// A card that goes right after it has said that a connection has begun: the owner learns of the end either because the connection is
// not made, or because Disconnected is called.
func TestCardGoesAtTheBeginning(t *testing.T) {
	lost := &LostError{net.ErrClosed}
	for _, goneFirst := range []bool{false, true} {
		q := &queuePair{
			dev: &Device{lostErr: lost, lost: make(chan struct{})},
			cfg: rdma.QueuePairConfig{Disconnected: func(error) {}},
		}
		told := false
		gone := func() {
			close(q.dev.lost)
			q.mu.Lock()
			told = q.ends(true)
			q.mu.Unlock()
		}
		if goneFirst {
			gone()
		}
		if err := q.begins(new(shm.Message)); goneFirst != errors.Is(err, lost) {
			t.Errorf("the card has gone is %v: begins returns %v", goneFirst, err)
		}
		if !goneFirst {
			gone()
		}
		if told == goneFirst {
			t.Errorf("the card has gone is %v: that Disconnected is to be called is %v", goneFirst, told)
		}
	}
}
