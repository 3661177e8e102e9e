package mirror

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/backend"
	"oneshot/ha/replica"
)

// stalling is a store whose next read waits, once, where it is submitted: as does a process that is stopped there.
type stalling struct {
	backend.Store
	next *atomic.Pointer[chan struct{}]
}

func (s *stalling) Submit(op *backend.Op) bool {
	if op.Kind == backend.Read {
		if c := s.next.Swap(nil); c != nil {
			<-*c
		}
	}
	return s.Store.Submit(op)
}

// TestReadIsProvenLater: the primary stands still between a beat and a read of the same wake-up, for so long that the other
// node takes over and takes a write. The answer to the beat does not prove what is read then.
func TestReadIsProvenLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		var next atomic.Pointer[chan struct{}]
		l.wrap = func(s backend.Store) backend.Store { return &stalling{s, &next} }
		l.begin()
		former, other := l.nodes[0], l.nodes[1]
		l.write(former, 0, bytesOf(4096, 1))

		// A tick, which sends a beat, and the read are taken together.
		busy, still := make(chan struct{}), make(chan struct{})
		former.mirror.push(item{call: func() { <-busy }})
		time.Sleep(2 * former.mirror.cfg.Heartbeat)
		got, done := make([]byte, 4096), make(waiter, 1)
		op := backend.Op{Kind: backend.Read, Len: 4096, Segs: [][]byte{got}, Done: done}
		former.mirror.Submit(&op)
		next.Store(&still)
		close(busy)

		l.await(other, "it takes over", func(s replica.State) bool { return s.Role == replica.Primary })
		if next.Load() != nil {
			t.Fatal("the read has not come to the copy")
		}
		l.write(other, 0, bytesOf(4096, 2))
		close(still)
		<-done
		if op.Err == nil && string(got) != string(bytesOf(4096, 2)) {
			t.Error("the former primary has answered with what was there before another one's write")
		}
		for _, n := range l.nodes {
			n.kill()
		}
	})
}
