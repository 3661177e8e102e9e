package iwarp

import (
	"testing"

	"oneshot/ddp"
	"oneshot/transport/rdma"
)

// Messages, bytes and Terminates count when they have left. Flushed work does not count.
func TestCountsWhatHasLeft(t *testing.T) {
	const n, size = 256, 4096 // more than a socket holds
	e := newEnd(t, setup{})
	q := e.qp.(*queuePair)
	ours, theirs := socketPair(t)
	check(t, q.claim())
	check(t, q.start(ours, &agreed{initiator: true, crc: true, ird: 16, ord: 16}))
	ws := make([]rdma.Work, n)
	for i := range ws {
		ws[i] = rdma.Work{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Signaled, SGL: []rdma.SGE{{Bytes: e.mem.Bytes()[:size], Region: e.mem}}}
	}
	if k, err := q.Post(ws); k != n || err != nil {
		t.Fatalf("%d posted, %v", k, err)
	}
	e.want(rdma.OpSend, 0)
	q.Abort(&ddp.Error{Cause: ddp.OpCatastrophicStream}) // a Terminate that finds no room
	check(t, theirs.Close())
	left := uint64(1)
	for range n - 1 {
		if c := e.next(); c.Status == rdma.StatusOK {
			left++
		}
	}
	<-e.gone
	c := q.Counters()
	if left == n {
		t.Fatal("all have left: nothing is tried here")
	}
	if c.MessagesOut != left || c.BytesOut != left*size || c.Terminates != 0 {
		t.Errorf("%d messages, %d bytes and %d Terminates count as sent; %d messages have left", c.MessagesOut, c.BytesOut, c.Terminates, left)
	}
	e.close()
}
