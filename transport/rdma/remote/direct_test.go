package remote_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"oneshot/backend"
	"oneshot/backend/memory"
	"oneshot/partition/service"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/rdmatest"
	"oneshot/transport/rdma/remote"
)

// newDirect serves s, which is memory, so that clients reach it without requests.
func newDirect(t testing.TB, s backend.Store) *far {
	t.Helper()
	f := newFar(t, s, newIWARP(t), "127.0.0.1:0", service.Config{})
	f.direct = true
	return f
}

func newMemory(t testing.TB) *memory.Store {
	t.Helper()
	s, err := memory.New(storeSize)
	check(t, err)
	return s
}

// keptMemory is memory that outlives its volume.
type keptMemory struct{ *memory.Store }

func (keptMemory) Close() error { return nil }

// The suite for stores that do not fail on purpose, over RDMA Reads and Writes of memory.
func TestDirectStores(t *testing.T) {
	rdmatest.RunStore(t, func(t *testing.T) rdmatest.Endpoint {
		f := newDirect(t, newMemory(t))
		d := open(t, remote.Config{Device: newIWARP(t)})
		return rdmatest.Endpoint{Device: d, Address: f.l.Addr().String() + "/disk/log", Revoke: f.revoke, Wire: true, Quick: true, Cut: remote.Cut, Forget: f.forget(service.Config{})}
	})
}

// The same for a program of this machine.
func TestDirectStoresOfProgram(t *testing.T) {
	rdmatest.RunStore(t, func(t *testing.T) rdmatest.Endpoint {
		f := newFar(t, newMemory(t), newLocal(t), "pair:0", service.Config{})
		f.direct = true
		d := open(t, remote.Config{Device: f.newProgram(t)})
		return rdmatest.Endpoint{Device: d, Address: "here/disk/log", Revoke: f.revoke, Wire: true, Quick: true, Cut: remote.Cut}
	})
}

// A Read or Write that is behind no request needs none itself.
func TestDirectWithoutRequest(t *testing.T) {
	f := newDirect(t, newMemory(t))
	dev := newIWARP(t)
	u := use(t, open(t, remote.Config{Device: dev}), f.l.Addr().String()+"/disk/log", rdma.OrderStrict)
	if !u.qp.Endpoint().Direct {
		t.Fatalf("%+v", u.qp.Endpoint())
	}
	before := dev.Counters()
	var ws []rdma.Work
	for i := range 32 {
		ws = append(ws, u.work(rdma.OpWrite, uint64(i), 0, i*4096, 4096, i*4096))
	}
	u.post(ws...)
	for i := range ws {
		if c := u.want(uint64(i), rdma.StatusOK); c.Seq != 0 {
			t.Errorf("a Write without a request has the number %d", c.Seq)
		}
	}
	for i := range ws {
		ws[i] = u.work(rdma.OpRead, uint64(i), 0, i*4096, 4096, i*4096)
	}
	u.post(ws...)
	for i := range ws {
		u.want(uint64(i), rdma.StatusOK)
	}
	n := dev.Counters()
	if sent, got := n.MessagesOut-before.MessagesOut, n.MessagesIn-before.MessagesIn; sent != 32+1+32 || got != 1+32 {
		t.Errorf("%d messages to the service and %d from it, want 32 Writes with one request and its response, and 32 Reads", sent, got)
	}
}

// Works without requests that had no answer when a connection is lost are repeated, with those that have requests: each
// completes once, in order, and in the end everything is there.
func TestDirectComesBack(t *testing.T) {
	const cells, cell, works, cuts = 16, 64 << 10, 400, 12
	for _, order := range []rdma.Order{rdma.OrderStrict, rdma.FreeStart} {
		s := newMemory(t)
		f := newDirect(t, s)
		u := use(t, open(t, remote.Config{Device: newIWARP(t)}), f.l.Addr().String()+"/disk/log", order)
		r := rand.New(rand.NewPCG(rand.Uint64(), 1))
		want := make([]byte, cells*cell)
		posted := 0
		for done := 0; done < works; {
			for ; posted < min(works, done+8); posted++ {
				c := posted % cells
				w := u.work(rdma.OpRead, uint64(posted), 0, 2<<20+c*cell, cell, c*cell)
				switch n := []int{512, cell}[r.IntN(2)]; r.IntN(4) {
				case 0:
				case 1: // with a request
					w = u.work(rdma.OpWrite, uint64(posted), rdma.Durable, c*cell, n, c*cell)
				default:
					w = u.work(rdma.OpWrite, uint64(posted), 0, c*cell, n, c*cell)
				}
				if w.Op == rdma.OpWrite {
					for i := range w.SGL[0].Bytes {
						w.SGL[0].Bytes[i] = byte(posted + 1)
					}
					copy(want[c*cell:], w.SGL[0].Bytes)
				}
				u.post(w)
			}
			if r.IntN(works/cuts) == 0 {
				remote.Cut(u.qp)
			}
			c := u.want(uint64(done), rdma.StatusOK)
			at := done % cells * cell
			if c.Op == rdma.OpRead && !bytes.Equal(u.bytes(2<<20+at, cell), want[at:at+cell]) {
				t.Fatalf("work %d has read other octets than were written before", done)
			}
			done++
		}
		got := make([]byte, len(want))
		op := backend.Op{Kind: backend.Read, Len: int64(len(got)), Segs: [][]byte{got}}
		if s.Submit(&op); op.Err != nil || !bytes.Equal(got, want) {
			t.Errorf("order %d: what is there is not what was written, %v", order, op.Err)
		}
	}
}

// However often a connection is lost while a Write waits, no credit and no memory is lost.
func TestDirectManyCuts(t *testing.T) {
	f := newDirect(t, newMemory(t))
	u := use(t, open(t, remote.Config{Device: newIWARP(t)}), f.l.Addr().String()+"/disk/log", rdma.OrderStrict)
	for i := range uint64(80) { // more than there are credits
		u.post(u.work(rdma.OpWrite, i, 0, 0, 4096, 0))
		remote.Cut(u.qp)
		if c := u.want(i, rdma.StatusOK); c.Seq != 0 {
			t.Fatalf("Write %d went with a request", i)
		}
	}
}

// A right that is revoked ends the queue pair, with the work that was refused, and so does a partition that is lost
// with its service.
func TestDirectEnds(t *testing.T) {
	for _, o := range []rdma.Opcode{rdma.OpRead, rdma.OpWrite} {
		f := newDirect(t, newMemory(t))
		u := use(t, open(t, remote.Config{Device: newIWARP(t)}), f.l.Addr().String()+"/disk/log", rdma.OrderStrict)
		u.post(u.work(o, 1, 0, 0, 4096, 0))
		u.want(1, rdma.StatusOK)
		f.revoke(errBroken)
		u.post(u.work(o, 2, 0, 0, 4096, 0), u.work(o, 3, 0, 0, 4096, 0))
		u.want(2, rdma.StatusRemoteAccess)
		u.want(3, rdma.StatusFlushed)
		if err := <-u.gone; !errors.Is(err, rdma.ErrRemoteAccess) {
			t.Errorf("%v: the queue pair ends with %v", o, err)
		}
	}
	s := newMemory(t)
	t.Cleanup(func() { check(t, s.Close()) })
	f := newDirect(t, keptMemory{s})
	addr := f.l.Addr().String()
	u := use(t, open(t, remote.Config{Device: newIWARP(t)}), addr+"/disk/log", rdma.OrderStrict)
	u.post(u.work(rdma.OpWrite, 1, 0, 0, 4096, 0))
	u.want(1, rdma.StatusOK)
	u.post(u.work(rdma.OpFlush, 2, 0, 0, 0, 0)) // which makes nothing durable
	u.want(2, rdma.StatusOK)
	f.restart(addr)
	if err := <-u.gone; !isLost(err) {
		t.Errorf("a Write of memory that is gone is not told of: %v", err)
	}
}

func isLost(err error) bool {
	_, ok := errors.AsType[*remote.LostError](err)
	return ok
}

// Works that may not pass those before them do not: an atomic operation on a strict queue pair, and a work with a
// fence, do not change what a Read before them reads, and see the Writes before them.
func TestDirectOrder(t *testing.T) {
	f := newDirect(t, newMemory(t))
	d := open(t, remote.Config{Device: newIWARP(t)})
	for _, order := range []rdma.Order{rdma.OrderStrict, rdma.FreeStart} {
		u := use(t, d, f.l.Addr().String()+"/disk/log", order)
		fence := rdma.Fence
		if order == rdma.OrderStrict {
			fence = 0
		}
		for i := range 50 {
			const n = 256 << 10
			first := u.bytes(0, n)
			for k := range first {
				first[k] = byte(2*i + 1)
			}
			clear(u.bytes(n, n))
			u.post(
				u.work(rdma.OpWrite, 1, rdma.Fence, 0, n, 0),
				u.work(rdma.OpRead, 2, fence, 2*n, n, 0),
				u.work(rdma.OpDiscard, 3, fence, 0, n, 0),
				u.work(rdma.OpRead, 4, fence, 3*n, n, 0),
				u.work(rdma.OpFetchAdd, 5, fence, 4*n, 8, 0),
				u.work(rdma.OpWrite, 6, fence, n, 4096, 0),
			)
			for id := range uint64(6) {
				u.want(id+1, rdma.StatusOK)
			}
			if !bytes.Equal(u.bytes(2*n, n), first) {
				t.Fatalf("order %d: a Read finds what was done after it, or not what was written before", order)
			}
			if !bytes.Equal(u.bytes(3*n, n), u.bytes(n, n)) {
				t.Fatalf("order %d: a Read does not find what was discarded before it", order)
			}
		}
	}
}

// tap is a device that keeps what is posted to its newest queue pair, and loses it while deaf is set.
type tap struct {
	rdma.Device
	mu     sync.Mutex
	deaf   bool        // guarded by mu, as is
	posted []rdma.Work // what
}

type tapQueuePair struct {
	rdma.QueuePair
	d *tap
}

func (d *tap) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	qp, err := d.Device.NewQueuePair(c)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.posted = nil
	return &tapQueuePair{qp, d}, err
}

func (d *tap) Connect(ctx context.Context, qp rdma.QueuePair, addr string, p rdma.ConnParams) error {
	return d.Device.Connect(ctx, qp.(*tapQueuePair).QueuePair, addr, p)
}

func (q *tapQueuePair) Post(ws []rdma.Work) (int, error) {
	q.d.mu.Lock()
	deaf := q.d.deaf
	q.d.posted = append(q.d.posted, ws...)
	q.d.mu.Unlock()
	if deaf {
		return len(ws), nil
	}
	return q.QueuePair.Post(ws)
}

func (d *tap) setDeaf(is bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.deaf = is
}

// What is sent behind an atomic operation that is given up has the fence that this one had: an RDMA Read is not passed by a Write that must
// not (O1).
func TestDirectBehindGivenUp(t *testing.T) {
	for _, sent := range []int{3, 2} { // works, when the connection is lost
		f := newDirect(t, newMemory(t))
		d := &tap{Device: newIWARP(t)}
		u := use(t, open(t, remote.Config{Device: d}), f.l.Addr().String()+"/disk/log", rdma.OrderStrict)
		ws := []rdma.Work{u.work(rdma.OpRead, 1, 0, 0, 512, 0), u.work(rdma.OpFetchAdd, 2, 0, 1024, 8, 4096), u.work(rdma.OpWrite, 3, 0, 512, 512, 0)}
		d.setDeaf(true)
		u.post(ws[:sent]...)
		d.setDeaf(false)
		f.forget(service.Config{})(u.qp)
		u.want(1, rdma.StatusOK)
		u.want(2, rdma.StatusTransport)
		u.post(ws[sent:]...)
		u.want(3, rdma.StatusOK)
		d.mu.Lock()
		read := slices.IndexFunc(d.posted, func(w rdma.Work) bool { return w.Op == rdma.OpRead })
		if read < 0 || read+1 == len(d.posted) || d.posted[read+1].Flags&rdma.Fence == 0 {
			t.Errorf("%d were sent: behind the RDMA Read %d nothing waits for it: %+v", sent, read, d.posted)
		}
		d.mu.Unlock()
	}
}

// An atomic operation behind a Write of the same octets is done once and on top of it, whenever the connection is
// lost: the Write is repeated, and the operation is not.
func TestDirectOnce(t *testing.T) {
	f := newDirect(t, newMemory(t))
	u := use(t, open(t, remote.Config{Device: newIWARP(t)}), f.l.Addr().String()+"/disk/log", rdma.OrderStrict)
	for i := range uint64(200) {
		binary.NativeEndian.PutUint64(u.bytes(0, 8), 1000*i)
		add := u.work(rdma.OpFetchAdd, 2, 0, 4096, 8, 0)
		add.Operand = 1
		u.post(u.work(rdma.OpWrite, 1, 0, 0, 4096, 0), add)
		for range i % 20 {
			runtime.Gosched()
		}
		remote.Cut(u.qp)
		u.want(1, rdma.StatusOK)
		u.want(2, rdma.StatusOK)
		u.post(u.work(rdma.OpRead, 3, 0, 8192, 512, 0))
		u.want(3, rdma.StatusOK)
		if n := binary.NativeEndian.Uint64(u.bytes(8192, 8)); n != 1000*i+1 {
			t.Fatalf("%d was written and 1 added, and there is %d", 1000*i, n)
		}
	}
}

// Who has a lock writes, and releases it by an atomic operation, or by what has a fence. If his connection is lost then, the Write is not repeated
// on top of what the next owner of the lock has written.
func TestDirectLock(t *testing.T) {
	for name, c := range map[string]struct {
		order rdma.Order
		op    rdma.Opcode
		flags rdma.Flags
	}{
		"atomic":         {rdma.OrderStrict, rdma.OpFetchAdd, 0},
		"direct Write":   {rdma.OrderStrict, rdma.OpWrite, rdma.Fence},
		"free":           {rdma.FreeStart | rdma.FreeFinish, rdma.OpWrite, rdma.Fence},
		"request":        {rdma.OrderStrict, rdma.OpWrite, rdma.Fence | rdma.Durable},
		"barrier":        {rdma.FreeStart, rdma.OpWrite, rdma.Barrier},
		"discard":        {rdma.FreeStart, rdma.OpDiscard, rdma.Fence},
		"several pieces": {rdma.FreeStart, rdma.OpWrite, rdma.Fence},
	} {
		t.Run(name, func(t *testing.T) {
			n := 512
			if name == "several pieces" {
				n = 2 << 20
			}
			f := newDirect(t, newMemory(t))
			d := open(t, remote.Config{Device: newIWARP(t)})
			addr := f.l.Addr().String() + "/disk/log"
			u, next := use(t, d, addr, c.order), use(t, d, addr, rdma.OrderStrict)
			for i := range 60 {
				// The lock is held while its octet is 1.
				next.bytes(0, 1)[0] = 1
				next.post(next.work(rdma.OpWrite, 1, 0, 0, 512, 4096))
				next.want(1, rdma.StatusOK)
				u.bytes(0, 1)[0] = 1
				release := u.work(c.op, 2, c.flags, 1<<20, n, 4096)
				if release.Operand = 1; c.op == rdma.OpFetchAdd {
					release.SGL[0].Bytes = u.bytes(1<<20, 8)
				}
				u.bytes(1<<20, 1)[0] = 2
				u.post(u.work(rdma.OpWrite, 1, 0, 0, 512, 0), release)
				for range i % 20 {
					runtime.Gosched()
				}
				f.hang(u.qp)
				next.post(next.work(rdma.OpRead, 3, 0, 8192, 512, 4096))
				next.want(3, rdma.StatusOK)
				owns := next.bytes(8192, 1)[0] != 1
				if owns {
					next.bytes(0, 1)[0] = 2
					next.post(next.work(rdma.OpWrite, 4, 0, 0, 512, 0))
					next.want(4, rdma.StatusOK)
				}
				f.goOn()
				for range 2 {
					if c := u.next(); c.Status != rdma.StatusOK {
						t.Fatal(c.Status, c.Err)
					}
				}
				next.post(next.work(rdma.OpRead, 5, 0, 8192, 512, 0))
				next.want(5, rdma.StatusOK)
				if owns && next.bytes(8192, 1)[0] != 2 {
					t.Fatal("what the next owner of the lock has written is gone")
				}
			}
		})
	}
}
