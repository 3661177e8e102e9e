package local

import (
	"oneshot/stag"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// exposure is what keeps the octets of an STag that is no memory: the STag's Keeper.
type exposure struct{ to rdma.Exposed }

var _ rdma.Exposer = (*queuePair)(nil)

// Expose implements rdma.Exposer. What the peer reads and writes goes straight between its memory and x, a call for each piece of that.
// The memory may change while x has it, if it is that of another process. What the peer posts waits while a call of x does not return; what this
// end posts does not.
func (q *queuePair) Expose(x rdma.Exposed, size int64, a rdma.Access) (rdma.STag, error) {
	if a&^(rdma.AccessRemoteRead|rdma.AccessRemoteWrite) != 0 || size < 0 {
		return 0, soft.ErrBadAccess
	}
	s, err := q.dev.memory.Table.Register(q.domain.Tag, q.stream, stag.Region{
		Length: uint64(size), Access: soft.TagAccess(a), Keeper: &exposure{x},
	})
	return rdma.STag(s), err
}

// Withdraw implements rdma.Exposer. The caller may hold locks that are taken by calls of an Exposed. The STag is freed with the stream.
func (q *queuePair) Withdraw(s rdma.STag) {
	_, _ = q.dev.memory.Table.Invalidate(stag.STag(s))
}

// pass has x read or written by a work of which the memory is segs, from octet off on.
func (e *exposure) pass(op stag.Op, segs [][]byte, off int64) error {
	for _, b := range segs {
		var err error
		if op == stag.RemoteWrite {
			err = e.to.WriteAt(b, off)
		} else {
			err = e.to.ReadAt(b, off)
		}
		if err != nil {
			return err
		}
		off += int64(len(b))
	}
	return nil
}
