package iwarp

import (
	"fmt"
	"sync"

	"oneshot/ddp"
	"oneshot/stag"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/soft"
)

// exposure is what keeps the octets of an STag that is no memory. It is the STag's Keeper, and its Owner as long
// as the STag has to be freed.
type exposure struct{ to rdma.Exposed }

var _ rdma.Exposer = (*queuePair)(nil)

// Expose implements rdma.Exposer.
func (q *queuePair) Expose(x rdma.Exposed, size int64, a rdma.Access) (rdma.STag, error) {
	if a&^(rdma.AccessRemoteRead|rdma.AccessRemoteWrite) != 0 || size < 0 {
		return 0, soft.ErrBadAccess
	}
	e := &exposure{x}
	q.mu.Lock()
	defer q.unlock()
	s, err := q.dev.memory.Table.Register(q.domain.Tag, q.stream, stag.Region{
		Length: uint64(size), Access: soft.TagAccess(a), Keeper: e, Owner: e,
	})
	return rdma.STag(s), err
}

// Withdraw implements rdma.Exposer. The caller may hold locks that are taken by calls of an Exposed, which are
// made with mu held.
func (q *queuePair) Withdraw(t rdma.STag) {
	s := stag.STag(t)
	if quiet, err := q.dev.memory.Table.Invalidate(s); err != nil || !quiet {
		return // the last reference frees it, or the end of the stream has
	}
	q.dev.work.Go(func() {
		q.mu.Lock()
		defer q.unlock()
		if e, ok := q.stream.Owner(s).(*exposure); ok {
			q.hide(s, e)
		}
	})
}

// hide frees the STag of an exposure, to which nothing refers any more. The lock is held.
func (q *queuePair) hide(s stag.STag, _ *exposure) {
	q.stream.Disown(s)
	_ = q.dev.memory.Table.Deregister(s) // fails if the end of the stream has freed it
}

// errGather says that an FPDU has to be in the buffer as a whole before anything of it may be placed. It is no error
// of anybody.
var errGather = fmt.Errorf("%w for the rest of an FPDU", errStall)

// exposed is where the payload of a Write goes that is no memory.
func exposed(r *stag.Ref) (rdma.Exposed, int64) {
	k, off := r.Keeper()
	if e, ok := k.(*exposure); ok {
		return e.to, int64(off)
	}
	return nil, 0
}

// refused is the offence of who was refused by an Exposed.
func refused(op stag.Op, s stag.STag, err error) error {
	return fmt.Errorf("%w: %w", &stag.Error{Op: op, Fault: stag.AccessRights, STag: s}, err)
}

// copies holds octets of an Exposed on their way: those of a Read Response have to stay what they were when the CRC
// was made.
type copies [64 << 10]byte

var copiesPool = sync.Pool{New: func() any { return new(copies) }}

// copy returns memory for n octets until what is queued has left. Nil: there is not as much now.
func (x *tx) copy(n int) []byte {
	if x.copies == nil {
		x.copies = copiesPool.Get().(*copies)
	}
	if n > len(x.copies)-x.copied {
		return nil
	}
	b := x.copies[x.copied : x.copied+n : x.copied+n]
	x.copied += n
	return b
}

// fetch reads n octets of an answer from an Exposed. Nil: not now, or never.
func (q *queuePair) fetch(x *answer, to rdma.Exposed, off int64, n int) []byte {
	b := q.tx.copy(n)
	if b == nil {
		return nil
	}
	if err := to.ReadAt(b, off+int64(x.off)); err != nil {
		err = refused(stag.RemoteRead, x.ref.STag(), err)
		q.stop(err, &ddp.TerminateMessage{Cause: causeOf(err)})
		q.wakeReader()
		return nil
	}
	return b
}
