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
		told := 0
		q := &queuePair{
			dev: &Device{lostErr: lost}, shared: true,
			cfg: rdma.QueuePairConfig{Disconnected: func(error) { told++ }},
		}
		if goneFirst {
			q.hasEnded(lost)
		}
		if err := q.begins(new(shm.Message)); goneFirst != errors.Is(err, lost) {
			t.Errorf("the card has gone is %v: begins returns %v", goneFirst, err)
		}
		if !goneFirst {
			q.hasEnded(lost)
		}
		if (told == 1) == goneFirst {
			t.Errorf("the card has gone is %v: Disconnected is called %d times", goneFirst, told)
		}
	}
}
