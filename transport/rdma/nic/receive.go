package nic

import (
	"errors"
	"slices"
	"sync"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/shm"
	"oneshot/transport/rdma/soft"
)

// receives is a queue of receives, of one queue pair or shared.
type receives struct {
	dev    *Device
	dom    *domain
	number uint32
	depth  int
	maxSGE int

	mu    sync.Mutex // taken after queuePair.mu
	mem   *shm.Queue
	tail  uint32
	hint  uint64 // guarded by Device.hintMu
	ids   []uint64
	lens  []uint32 // octets, by token
	seq   []uint32 // the order in which the tokens in use were posted; 0: not in use
	free  []uint32 // tokens
	next  uint32   // of seq
	users int
	ended bool
}

// open makes the queue's half here.
func (r *receives) open(d *Device, dom *domain, number uint32, depth, maxSGE int, seg *shm.Segment) {
	r.dev, r.dom, r.number, r.depth, r.maxSGE = d, dom, number, depth, maxSGE
	r.mem = shm.NewQueue(seg, depth)
	r.ids, r.lens, r.seq = make([]uint64, depth), make([]uint32, depth), make([]uint32, depth)
	for i := range depth {
		r.free = append(r.free, uint32(depth-1-i))
	}
}

// NewReceiveQueue implements rdma.Device.
func (d *Device) NewReceiveQueue(rd rdma.Domain, depth int) (rdma.ReceiveQueue, error) {
	dom, ok := rd.(*domain)
	if !ok || dom.dev != d {
		return nil, soft.ErrForeign
	}
	if depth < 0 || depth > d.limits.MaxWork {
		return nil, rdma.ErrUnsupported
	}
	n, err := d.takeQueues()
	if err != nil {
		return nil, err
	}
	segs, err := d.share(&shm.Message{Op: shm.OpReceives, Number: n, Domain: dom.number, Depth: depth}, depth)
	if err != nil {
		d.giveQueues(n)
		return nil, err
	}
	r := new(receives)
	r.open(d, dom, n, depth, d.limits.MaxSGE, segs[0])
	return r, nil
}

// share has the card make queues of some depths, and maps them.
func (d *Device) share(m *shm.Message, depths ...int) ([]*shm.Segment, error) {
	_, fds, err := d.call(m)
	defer shm.CloseAll(fds)
	if err != nil {
		return nil, err
	}
	if len(fds) != len(depths) {
		d.lose(errLies)
		return nil, errLies
	}
	var segs []*shm.Segment
	for i, n := range depths {
		s, err := shm.Map(fds[i], shm.QueueLen(n))
		if err != nil {
			for _, s := range segs {
				_ = s.Close()
			}
			return nil, err
		}
		segs = append(segs, s)
	}
	return segs, nil
}

// takeQueues takes numbers for two queues: the one that is returned and the next.
func (d *Device) takeQueues() (uint32, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, ok := d.queues.take()
	if !ok {
		return 0, errMany
	}
	return 2 * n, nil
}

func (d *Device) giveQueues(n uint32) {
	d.mu.Lock()
	d.queues.give(n / 2)
	d.mu.Unlock()
}

// PostReceive implements rdma.ReceiveQueue.
func (r *receives) PostReceive(rs []rdma.Receive) (n int, err error) {
	r.mu.Lock()
	if r.ended {
		r.mu.Unlock()
		return 0, rdma.ErrDisconnected
	}
	for n < len(rs) && err == nil {
		if err = r.post(rs, n); err == nil {
			n++
		}
	}
	if n > 0 {
		r.mem.Tail.Store(r.tail)
	}
	r.mu.Unlock()
	if n > 0 {
		r.dev.hint(r.number, &r.hint)
	}
	return n, err
}

func (r *receives) post(rs []rdma.Receive, i int) error {
	if len(r.free) == 0 {
		return rdma.ErrFull
	}
	slot, spill := r.mem.Slot(r.tail), r.mem.Spill(r.tail)
	var l list
	if what := l.gather(rs[i].SGL, r.dom, rdma.AccessLocalWrite, r.maxSGE); what != "" {
		return &rdma.WorkError{Index: i, Op: rdma.OpReceive, What: what}
	}
	token := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	if r.next++; r.next == 0 {
		r.next++
	}
	r.ids[token], r.lens[token], r.seq[token] = rs[i].ID, uint32(l.octets), r.next
	d := shm.Descriptor{Op: uint8(rdma.OpReceive), SGL: uint8(l.n), Token: uint64(token)}
	d.Put(slot)
	l.put(slot, spill)
	r.tail++
	return nil
}

// taken gives a token back, of a receive that has got n octets, and returns what its owner calls it. False: it is not in use, or has
// no room for so many.
func (r *receives) taken(token uint64, n uint32) (id uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if token >= uint64(len(r.seq)) || r.seq[token] == 0 || n > r.lens[token] {
		return 0, false
	}
	r.seq[token] = 0
	r.free = append(r.free, uint32(token))
	return r.ids[token], true
}

// inOrder returns the tokens in use in the order in which they were posted.
func (r *receives) inOrder() (tokens []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for t, s := range r.seq {
		if s != 0 {
			tokens = append(tokens, uint64(t))
		}
	}
	slices.SortFunc(tokens, func(a, b uint64) int { return int(int32(r.seq[a] - r.seq[b])) })
	return tokens
}

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
	if r.users > 0 {
		r.mu.Unlock()
		return soft.ErrInUse
	}
	again := r.ended
	r.ended = true
	r.mu.Unlock()
	if again {
		return nil
	}
	_, err := r.dev.ask(&shm.Message{Op: shm.OpCloseReceives, Number: r.number})
	r.dev.giveQueues(r.number)
	return errors.Join(notLost(err), r.mem.Close())
}
