package nic

import (
	"context"
	"errors"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/nic/shm"
	"oneshot/transport/rdma/soft"
)

// Lasting is a device that outlives its card. When the card has gone, NewDomain turns to the next one that answers at the
// socket. What was made before ends with its card, as that of a Device does. Memory of Alloc stays as it is, and each next
// card maps it, too.
type Lasting struct {
	cfg    Config
	limits rdma.Limits

	mu     sync.Mutex // held over calls of the card
	now    *Device
	past   []*Device // whose cards have gone, and of which something may be in use
	blocks []block
	count  rdma.Counters // of devices that are closed
	closed bool
}

// block is memory of Alloc. The descriptor is for the next card.
type block struct {
	seg *shm.Segment
	fd  int
}

var (
	_ rdma.Device    = (*Lasting)(nil)
	_ rdma.Allocator = (*Lasting)(nil)
)

// OpenLasting connects to a card.
func OpenLasting(c Config) (*Lasting, error) {
	d, err := Open(c)
	if err != nil {
		return nil, err
	}
	return &Lasting{cfg: c, limits: d.Limits(), now: d}, nil
}

// Limits implements rdma.Device. They are those of the first card.
func (l *Lasting) Limits() rdma.Limits { return l.limits }

// isLost reports whether the card has gone.
func (d *Device) isLost() bool {
	select {
	case <-d.lost:
		return true
	default:
		return false
	}
}

// device returns the device of now.
func (l *Lasting) device() *Device {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// NewDomain implements rdma.Device.
func (l *Lasting) NewDomain() (rdma.Domain, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bury()
	if !l.now.isLost() || l.closed {
		return l.now.NewDomain()
	}
	d, err := Open(l.cfg)
	if err != nil {
		return nil, err
	}
	for i := range l.blocks {
		b := &l.blocks[i]
		if err := d.lend(b.seg, b.fd, false); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	l.past, l.now = append(l.past, l.now), d
	return d.NewDomain()
}

// bury closes devices of which nothing is in use any more. The lock is held.
func (l *Lasting) bury() {
	l.past = slices.DeleteFunc(l.past, func(d *Device) bool {
		c := d.Counters()
		if d.Close() != nil {
			return false
		}
		l.count = l.count.Add(c)
		return true
	})
}

// NewCompletionQueue implements rdma.Device.
func (l *Lasting) NewCompletionQueue(n int, event func()) (rdma.CompletionQueue, error) {
	return l.device().NewCompletionQueue(n, event)
}

// NewReceiveQueue implements rdma.Device.
func (l *Lasting) NewReceiveQueue(d rdma.Domain, depth int) (rdma.ReceiveQueue, error) {
	x, ok := d.(*domain)
	if !ok {
		return nil, soft.ErrForeign
	}
	return x.dev.NewReceiveQueue(d, depth)
}

// NewQueuePair implements rdma.Device. All that c names is of one card: if that has gone meanwhile, the caller begins again with
// NewDomain.
func (l *Lasting) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	x, ok := c.Domain.(*domain)
	if !ok {
		return nil, soft.ErrForeign
	}
	return x.dev.NewQueuePair(c)
}

// Connect implements rdma.Device.
func (l *Lasting) Connect(ctx context.Context, qp rdma.QueuePair, addr string, p rdma.ConnParams) error {
	q, ok := qp.(*queuePair)
	if !ok {
		return soft.ErrForeign
	}
	return q.dev.Connect(ctx, qp, addr, p)
}

// Listen implements rdma.Device. The listener ends with the card.
func (l *Lasting) Listen(at string) (rdma.Listener, error) { return l.device().Listen(at) }

// Alloc implements rdma.Allocator. It needs no card.
func (l *Lasting) Alloc(n int) ([]byte, error) {
	seg, fd, err := newArena(n)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errors.Join(l.now.lostErr, seg.Close(), unix.Close(fd))
	}
	if err := notLost(l.now.lend(seg, fd, false)); err != nil {
		return nil, errors.Join(err, seg.Close(), unix.Close(fd))
	}
	l.blocks = append(l.blocks, block{seg, fd})
	return seg.Bytes()[:n:n], nil
}

// Free implements rdma.Allocator.
func (l *Lasting) Free(b []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.blocks, func(x block) bool { return address(x.seg.Bytes()) == address(b) })
	if i < 0 {
		return errNotAlloc
	}
	for _, d := range append(l.past, l.now) {
		if a, _ := d.memory.find(b); a != nil {
			if err := d.takeBack(a); err != nil {
				return err
			}
		}
	}
	x := l.blocks[i]
	l.blocks = slices.Delete(l.blocks, i, i+1)
	return errors.Join(x.seg.Close(), unix.Close(x.fd))
}

// Counters implements rdma.Device: of all cards so far.
func (l *Lasting) Counters() rdma.Counters {
	l.mu.Lock()
	defer l.mu.Unlock()
	sum := l.count
	for _, d := range append(l.past, l.now) {
		sum = sum.Add(d.Counters())
	}
	return sum
}

// Close implements rdma.Device. Memory that is not freed goes with it.
func (l *Lasting) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bury()
	if l.closed {
		return nil
	}
	if len(l.past) > 0 {
		return soft.ErrInUse
	}
	c := l.now.Counters()
	if err := l.now.Close(); err != nil {
		return err
	}
	l.closed = true
	l.count = l.count.Add(c)
	var errs []error
	for _, x := range l.blocks {
		errs = append(errs, x.seg.Close(), unix.Close(x.fd))
	}
	l.blocks = nil
	return errors.Join(errs...)
}
