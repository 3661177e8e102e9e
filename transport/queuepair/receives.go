package queuepair

import (
	"fmt"
	"slices"
	"sync"

	"oneshot/mem"
	"oneshot/transport/rdma"
)

// poster is where receives are posted: a queue pair or a shared queue.
type poster interface {
	PostReceive(rs []rdma.Receive) (int, error)
}

// receives is the memory of receives: slots in leases.
type receives struct {
	target *Target
	queue  rdma.ReceiveQueue // nil: of a queue pair
	leases []*mem.Lease
	// regions, where connections are isolated, are those of leases.
	regions []rdma.Region
	sgl     []rdma.SGE // by slot

	mu      sync.Mutex // a leaf
	refused []int      // slots that the queue has not taken
}

// slots leases memory for n messages.
func (t *Target) slots(n int) (list [][]byte, leases []*mem.Lease, err error) {
	size := t.cfg.Message
	for left := n; left > 0; {
		bytes := min(left*size, mem.MaxLease)
		l := t.cfg.Pool.Keep(bytes)
		if l == nil {
			release(leases)
			return nil, nil, fmt.Errorf("%s: no memory for %d messages of %d bytes: those of all connections have half of the buffer memory, or commands have all of it; raise limits.memory", t.cfg.Name, n, size)
		}
		leases = append(leases, l)
		for off := 0; off+size <= bytes && left > 0; off += size {
			list = append(list, l.Bytes()[off:off+size:off+size])
			left--
		}
	}
	return list, leases, nil
}

func release(leases []*mem.Lease) {
	for _, l := range leases {
		l.Release()
	}
}

// newReceives makes n slots of d and, if it is a shared queue, posts them.
func (t *Target) newReceives(d *domain, n int, q rdma.ReceiveQueue) (*receives, error) {
	r := &receives{target: t, queue: q}
	list, leases, err := t.slots(n)
	if err != nil {
		return nil, err
	}
	r.leases = leases
	if err = r.register(d, list); err == nil && q != nil {
		err = r.postAll(q)
	}
	if err != nil {
		r.release()
		return nil, err
	}
	return r, nil
}

// register names the slots. Where connections are isolated it registers no more than these, for the peer has proved nothing
// yet.
func (r *receives) register(d *domain, slots [][]byte) error {
	if r.target.isolated {
		for _, l := range r.leases {
			region, err := d.pd.Register(l.Bytes(), rdma.AccessLocalWrite)
			if err != nil {
				return r.target.refused(l.Bytes(), err)
			}
			r.regions = append(r.regions, region)
		}
	}
	for _, b := range slots {
		s := rdma.SGE{Bytes: b}
		if i := slices.IndexFunc(r.regions, func(x rdma.Region) bool { return within(b, x.Bytes()) }); i >= 0 {
			s.Region = r.regions[i]
		} else {
			var err error
			if s, err = d.sge(b); err != nil {
				return err
			}
		}
		r.sgl = append(r.sgl, s)
	}
	return nil
}

func (r *receives) postAll(q poster) error {
	slots := make([]int, len(r.sgl))
	for i := range slots {
		slots[i] = i
	}
	return r.post(q, slots, make([]rdma.Receive, len(slots)))
}

// post returns slots to their queue. batch is memory for the call. What the queue does not take is left for again.
func (r *receives) post(q poster, slots []int, batch []rdma.Receive) error {
	for len(slots) > 0 {
		n := min(len(slots), len(batch))
		for i, s := range slots[:n] {
			batch[i] = rdma.Receive{ID: receiveID | uint64(s), SGL: r.sgl[s : s+1]}
		}
		if k, err := q.PostReceive(batch[:n]); err != nil {
			r.mu.Lock()
			r.refused = append(r.refused, slots[k:]...)
			r.mu.Unlock()
			return fmt.Errorf("%s: post receives: %w", r.target.cfg.Name, err)
		}
		slots = slots[n:]
	}
	return nil
}

// again posts what a shared queue has not taken. The connection that had it is broken; others go on with the rest.
func (r *receives) again() error {
	r.mu.Lock()
	slots := r.refused
	r.refused = nil
	r.mu.Unlock()
	return r.post(r.queue, slots, make([]rdma.Receive, len(slots)))
}

func (r *receives) release() {
	for _, region := range r.regions {
		_ = region.Deregister()
	}
	r.regions = nil
	release(r.leases)
	r.leases = nil
}

func (r *receives) close() error {
	err := r.queue.Close()
	r.release()
	return err
}
