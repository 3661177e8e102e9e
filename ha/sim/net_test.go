package sim

import (
	"testing"
	"time"
)

// TestDatagrams: some are lost, late and doubled; when the network is at its best all come, and soon.
func TestDatagrams(t *testing.T) {
	for _, atBest := range []bool{false, true} {
		r := newRun(Options{Seed: 1})
		r.nodes = []*node{{run: r}, {run: r, id: 1}}
		r.atBest = atBest
		const sent = 5000
		came := map[int]int{}
		late, doubled := 0, 0
		for i := range sent {
			began := r.now
			r.datagram(0, 1, func() {
				if came[i]++; came[i] > 1 {
					doubled++
				}
				if r.now-began > time.Millisecond {
					late++
				}
			})
		}
		for r.world.step(time.Second) {
		}
		lost := sent - len(came)
		if atBest != (lost == 0 && late == 0) || doubled == 0 {
			t.Errorf("at its best: %v; of %d datagrams %d were lost, %d late and %d doubled", atBest, sent, lost, late, doubled)
		}
	}
}
