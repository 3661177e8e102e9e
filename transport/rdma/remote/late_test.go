package remote_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/mem"
	"oneshot/partition/service"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/rdmatest"
	"oneshot/transport/rdma/remote"
)

// late is a device whose queue pairs take long to close: until then it may use all memory that it was given.
type late struct {
	rdma.Device
	closing chan struct{} // gets an element when a queue pair is to be closed
	done    chan struct{} // closed when they may be closed
	let     func()        // closes it
}

type lateQueuePair struct {
	rdma.QueuePair
	d      *late
	closed bool
}

func (d *late) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	qp, err := d.Device.NewQueuePair(c)
	return &lateQueuePair{QueuePair: qp, d: d}, err
}

func (d *late) Connect(ctx context.Context, qp rdma.QueuePair, addr string, p rdma.ConnParams) error {
	return d.Device.Connect(ctx, qp.(*lateQueuePair).QueuePair, addr, p)
}

func (q *lateQueuePair) Close() error {
	if !q.closed {
		q.closed = true
		q.d.closing <- struct{}{}
		<-q.d.done
	}
	return q.QueuePair.Close()
}

// attached returns how often the partition was opened.
func (f *far) attached() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.told)
}

// The device below forgets memory before anything else happens to it: before works complete, before they are sent
// again, before the memory of messages is given back, and before Close returns.
func TestMemoryUntilDeviceIsDone(t *testing.T) {
	s := newStore(t)
	f := newFar(t, kept{s}, newLocal(t), "pair:0", service.Config{})
	addr := f.l.Addr().String() + "/disk/log"
	begin := func(t *testing.T, patience time.Duration) (*user, *late, *mem.Pool, func()) {
		below := &late{Device: newLocal(t), closing: make(chan struct{}, 8), done: make(chan struct{})}
		pool := mem.NewPool(8 << 20)
		d := remote.Open(remote.Config{Device: below, Pool: pool, Patience: patience})
		t.Cleanup(func() {
			check(t, d.Close())
			if st := pool.Stats(); st.Leases != 0 {
				t.Errorf("%d leases are left of the device", st.Leases)
			}
			pool.Close()
		})
		u := use(t, d, addr, rdma.OrderStrict)
		below.let = sync.OnceFunc(func() { close(below.done) })
		t.Cleanup(below.let)
		await, release := s.Hold(func(op *backend.Op) bool { return op.Kind == backend.Write })
		u.post(u.work(rdma.OpWrite, 1, 0, 0, 64<<10, 0))
		await(1)
		return u, below, pool, release
	}
	quiet := func(u *user, pool *mem.Pool, what string) {
		t.Helper()
		var one [1]rdma.Completion
		if u.cq.Poll(one[:]) > 0 {
			t.Errorf("%s: a work completes though the device is not done: %+v", what, one[0])
		}
		if pool.Stats().Leases == 0 {
			t.Errorf("%s: the memory of messages is given back though the device is not done", what)
		}
	}
	t.Run("the connection is lost for good", func(t *testing.T) {
		u, below, pool, release := begin(t, -1)
		remote.Cut(u.qp)
		<-below.closing
		quiet(u, pool, "lost")
		release()
		below.let()
		u.want(1, rdma.StatusFlushed)
	})
	t.Run("the connection comes back", func(t *testing.T) {
		u, below, pool, release := begin(t, 0)
		opened := f.attached()
		remote.Cut(u.qp)
		<-below.closing
		quiet(u, pool, "back")
		if f.attached() != opened {
			t.Error("there is another connection though the device is not done with the one before")
		}
		release()
		below.let()
		u.want(1, rdma.StatusOK)
	})
	t.Run("Close", func(t *testing.T) {
		u, below, pool, release := begin(t, 0)
		remote.Cut(u.qp)
		<-below.closing // another connection is about to be made
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			check(t, u.qp.Close())
		}()
		<-remote.Ending(u.qp)
		for range 1000 { // in which it would end
			runtime.Gosched()
		}
		quiet(u, pool, "Close")
		select {
		case <-closed:
			t.Error("Close returns though the device is not done")
		default:
		}
		release()
		below.let()
		<-closed
		u.want(1, rdma.StatusFlushed)
	})
}

// What an atomic operation has found does not come into memory that its owner has deregistered meanwhile: it may be anybody's by then.
func TestAtomicOfMemoryThatIsGone(t *testing.T) {
	over(t, func(t *testing.T, s *rdmatest.Volatile, _ *far, d rdma.Device, addr string) {
		u := use(t, d, addr, rdma.OrderStrict)
		b, free, err := rdma.Alloc(d, mem.PageSize)
		check(t, err)
		defer func() { check(t, free(b)) }()
		r, err := u.dom.Register(b, rdma.AccessLocalWrite)
		check(t, err)
		await, release := s.Hold(func(*backend.Op) bool { return true })
		add := u.work(rdma.OpFetchAdd, 1, 0, 0, 8, 64)
		add.SGL = []rdma.SGE{{Bytes: b[:8], Region: r}}
		u.post(add)
		await(1)
		check(t, r.Deregister())
		b[0] = 1
		release()
		u.want(1, rdma.StatusLocalProtection)
		if b[0] != 1 {
			t.Error("memory is written to that is not registered any more")
		}
	})
}
