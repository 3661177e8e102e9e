package iwarp

import (
	"sync"

	"oneshot/internal/invariant"
	"oneshot/internal/ring"
	"oneshot/transport/rdma"
)

// receives is a queue of receives, of one queue pair or shared.
type receives struct {
	domain *domain
	depth  int
	maxSGE int

	mu      sync.Mutex // taken after queuePair.mu
	ring    ring.Ring[receive]
	waiting []*queuePair // readers that found the queue empty, in order
	users   int
	ended   bool // own receives only: the connection has ended

	posts, posted uint64
}

// receive is memory for one message.
type receive struct {
	id      uint64
	n       int // octets
	segs    [][]byte
	regions []*region
}

var _ rdma.ReceiveQueue = (*receives)(nil)

// NewReceiveQueue implements rdma.Device.
func (d *Device) NewReceiveQueue(rd rdma.Domain, depth int) (rdma.ReceiveQueue, error) {
	dom, ok := rd.(*domain)
	if !ok || dom.dev != d {
		return nil, errForeign
	}
	return &receives{domain: dom, depth: depth, maxSGE: maxSGE}, nil
}

// PostReceive implements rdma.ReceiveQueue.
func (r *receives) PostReceive(rs []rdma.Receive) (int, error) {
	n, err := r.post(rs)
	r.wake(n)
	return n, err
}

func (r *receives) post(rs []rdma.Receive) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.posts++
	for i := range rs {
		switch {
		case r.ended:
			return i, rdma.ErrDisconnected
		case r.ring.Len() >= r.depth:
			return i, rdma.ErrFull
		}
		slot := r.ring.Next()
		if what := slot.set(&rs[i], r.domain, r.maxSGE); what != "" {
			return i, &rdma.WorkError{Index: i, Op: rdma.OpReceive, What: what}
		}
		r.ring.Tail++
		r.posted++
	}
	return len(rs), nil
}

// set takes over what was posted; it says what is wrong with it.
func (r *receive) set(w *rdma.Receive, d *domain, most int) string {
	r.id = w.ID
	var what string
	r.segs, r.regions, r.n, what = appendSGL(r.segs[:0], r.regions[:0], w.SGL, d, rdma.AccessLocalWrite, most)
	return what
}

// take moves the oldest receive to into. False: there is none, and q, if set, will be woken
// when there is one.
func (r *receives) take(into *receive, q *queuePair) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ring.Len() == 0 {
		if q != nil && !q.waits {
			q.waits = true
			r.waiting = append(r.waiting, q)
		}
		return false
	}
	slot := r.ring.At(r.ring.Head)
	*into, *slot = *slot, *into // the lists change places, so that their memory is used again
	r.ring.Head++
	return true
}

// scarce reports whether less than half of the receives are here, so that none may be kept for a
// message of which the rest may never come.
func (r *receives) scarce() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ring.Len() < r.depth/2
}

// putBack makes a receive that was taken the oldest one again.
func (r *receives) putBack(from *receive) {
	r.mu.Lock()
	slot := r.ring.Back()
	*from, *slot = *slot, *from
	invariant.Check(r.ring.Len() <= r.depth, "iwarp: more receives in a queue than were posted")
	r.mu.Unlock()
	r.wake(1)
}

// wake wakes as many readers as there are new receives.
func (r *receives) wake(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n = min(n, len(r.waiting))
	for _, q := range r.waiting[:n] {
		q.waits = false
		q.wakeReader()
	}
	k := copy(r.waiting, r.waiting[n:])
	clear(r.waiting[k:])
	r.waiting = r.waiting[:k]
}

// leave takes a queue pair off the list of those that wait. Whoever was to be woken by the
// receive that woke it is woken instead.
func (r *receives) leave(q *queuePair) {
	r.mu.Lock()
	k := 0
	for _, w := range r.waiting {
		if w != q {
			r.waiting[k] = w
			k++
		}
	}
	clear(r.waiting[k:])
	r.waiting = r.waiting[:k]
	n := r.ring.Len()
	r.mu.Unlock()
	r.wake(n)
}

// end refuses further receives.
func (r *receives) end() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
}

func (r *receives) use(n int) {
	r.mu.Lock()
	r.users += n
	r.mu.Unlock()
}

// Close implements rdma.ReceiveQueue.
func (r *receives) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users > 0 {
		return errInUse
	}
	r.ended = true
	return nil
}

// appendSGL checks a scatter/gather list, and appends its memory and regions, and the sum of
// its octets. What is not empty says what is wrong.
func appendSGL(segs [][]byte, regions []*region, sgl []rdma.SGE, d *domain, need rdma.Access, most int,
) (_ [][]byte, _ []*region, n int, what string) {
	if len(sgl) > most {
		return segs, regions, 0, "scatter/gather list is too long"
	}
	for i := range sgl {
		b := sgl[i].Bytes
		if len(b) == 0 {
			continue
		}
		r, what := registered(&sgl[i], d, need)
		if what == "" && len(b) > maxMessage-n {
			what = "message is too long"
		}
		if what != "" {
			return segs, regions, 0, what
		}
		segs = append(segs, b)
		regions = append(regions, r)
		n += len(b)
	}
	return segs, regions, n, ""
}

// registered returns the region of an element, which has to be of d and to allow need, or says what is
// wrong with it.
func registered(e *rdma.SGE, d *domain, need rdma.Access) (r *region, what string) {
	r, ok := e.Region.(*region)
	switch {
	case !ok:
		return nil, "memory without a region of this device"
	case r.domain != d:
		return nil, "region of another protection domain"
	case r.access&need != need:
		return nil, "region does not allow local writes"
	}
	if _, ok := r.offset(e.Bytes); !ok {
		return nil, "memory is not inside of its region"
	}
	return r, ""
}
