package local_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/backend/file"
	"oneshot/backend/memory"
	"oneshot/mem"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/local"
	"oneshot/volume"
)

// opener opens one volume under every name.
func opener(v *volume.Volume, d rdma.Durability) local.Opener {
	return func(_ context.Context, name string, want rdma.Rights, gone func(error)) (local.Opened, error) {
		if want == 0 {
			want = rdma.AllRights
		}
		h := v.Open(func() { gone(errChanged) })
		return local.Opened{
			Medium: h, Memory: v.Lends(), Close: h.Close,
			Info: rdma.Endpoint{Name: name, Rights: want, Durability: d},
		}, nil
	}
}

// user is the user of a queue pair to an endpoint.
var errChanged = errors.New("the volume has another size")

type user struct {
	t   testing.TB
	dom rdma.Domain
	cq  rdma.CompletionQueue
	qp  rdma.QueuePair
	mem rdma.Region
	buf []byte
	e   *rdma.Endpoint
	one [1]rdma.Completion
}

func newVolume(t testing.TB, s backend.Store) *volume.Volume {
	t.Helper()
	v, err := volume.New(volume.Config{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

func newMemory(t testing.TB, size int64) backend.Store {
	t.Helper()
	s, err := memory.New(size)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// use connects a queue pair to an endpoint. The event of its queue is the caller's, or nil.
func use(t testing.TB, d rdma.Device, name string, order rdma.Order, event func()) *user {
	t.Helper()
	u := &user{t: t}
	var err error
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	u.dom, err = d.NewDomain()
	must(err)
	u.cq, err = d.NewCompletionQueue(256, event)
	must(err)
	u.qp, err = d.NewQueuePair(rdma.QueuePairConfig{Domain: u.dom, SendCQ: u.cq, RecvCQ: u.cq, MaxWork: 256, Order: order})
	must(err)
	must(d.Connect(t.Context(), u.qp, name, rdma.ConnParams{}))
	pool := mem.NewPool(16 << 20)
	lease := pool.Lease(mem.MaxLease)
	u.buf = lease.Bytes()
	u.mem, err = u.dom.Register(u.buf, rdma.AccessLocalWrite)
	must(err)
	u.e = u.qp.Endpoint()
	t.Cleanup(func() {
		must(u.qp.Close())
		must(u.cq.Close())
		must(u.mem.Deregister())
		must(u.dom.Close())
		lease.Release()
	})
	return u
}

func (u *user) sge(off, n int) []rdma.SGE {
	return []rdma.SGE{{Bytes: u.buf[off : off+n], Region: u.mem}}
}

// do posts w and waits for its completion.
func (u *user) do(w rdma.Work) rdma.Completion {
	u.t.Helper()
	w.RemoteSTag, w.Flags = u.e.STag, w.Flags|rdma.Signaled
	if n, err := u.qp.Post([]rdma.Work{w}); n != 1 || err != nil {
		u.t.Fatalf("Post: %d, %v", n, err)
	}
	for u.cq.Poll(u.one[:]) == 0 {
		time.Sleep(20 * time.Microsecond) // with one processor the store has to run meanwhile
	}
	return u.one[0]
}

// An endpoint that goes while it is being opened is let go although its user posts nothing: who has called gone may wait for that.
func TestGoneEarly(t *testing.T) {
	v := newVolume(t, newMemory(t, 1<<20))
	inner := opener(v, rdma.DurabilityNone)
	var closed atomic.Bool
	d := open(t, local.Config{Open: func(ctx context.Context, name string, want rdma.Rights, gone func(error)) (local.Opened, error) {
		o, err := inner(ctx, name, want, gone)
		shut := o.Close
		o.Close = func() { closed.Store(true); shut() }
		gone(errChanged)
		return o, err
	}})
	u := use(t, d, "disk/log", 0, nil)
	if err := d.Close(); err == nil { // it waits for what the device does by itself
		t.Error("the device is closed under a queue pair")
	}
	if !closed.Load() {
		t.Error("nobody has let the endpoint go")
	}
	if c := u.do(rdma.Work{Op: rdma.OpRead, SGL: u.sge(0, 4096)}); c.Status != rdma.StatusRemoteAccess {
		t.Errorf("a Read afterwards: %+v", c)
	}
}

func TestMemoryEndpoint(t *testing.T) {
	v := newVolume(t, newMemory(t, 1<<20))
	d := open(t, local.Config{Open: opener(v, rdma.DurabilityNone)})
	u := use(t, d, "disk/log", 0, nil)
	if e := u.e; e.Name != "disk/log" || e.Size != 1<<20 || e.Unit != 512 || e.STag == 0 {
		t.Errorf("%+v", e)
	}
	copy(u.buf, "to the store and back")
	for _, w := range []rdma.Work{
		{Op: rdma.OpWrite, SGL: u.sge(0, 4096), RemoteOffset: 8192},
		{Op: rdma.OpFlush},
		{Op: rdma.OpRead, SGL: u.sge(4096, 4096), RemoteOffset: 8192},
	} {
		if c := u.do(w); c.Status != rdma.StatusOK {
			t.Fatalf("%v: %+v", w.Op, c)
		}
	}
	if string(u.buf[:4096]) != string(u.buf[4096:8192]) {
		t.Error("other bytes come back")
	}
}

var orders = []rdma.Order{rdma.OrderStrict, rdma.FreeStart, rdma.FreeFinish, rdma.FreeStart | rdma.FreeFinish}

func newFile(t testing.TB, size int64, direct bool) backend.Store {
	t.Helper()
	s, err := file.Open(file.Config{Path: filepath.Join(t.TempDir(), "store"), Size: size, Direct: direct})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// BenchmarkMemory tells nanoseconds of processor time too: others may use the machine.
func BenchmarkMemory(b *testing.B) {
	const area = 2 << 20
	for name, batch := range map[string]int{"depth 1": 1, "batch 32": 32} {
		for _, order := range []rdma.Order{rdma.OrderStrict, rdma.FreeStart | rdma.FreeFinish} {
			label := name + ", strict"
			if order != 0 {
				label = name + ", free"
			}
			for _, op := range []rdma.Opcode{rdma.OpRead, rdma.OpWrite} {
				b.Run(label+"/"+op.String(), func(b *testing.B) {
					v := newVolume(b, newMemory(b, area))
					d := open(b, local.Config{Open: opener(v, rdma.DurabilityNone)})
					u := use(b, d, "disk/log", order, nil)
					for off := 0; off < area; off += 1 << 20 {
						u.do(rdma.Work{Op: rdma.OpWrite, SGL: u.sge(0, 1<<20), RemoteOffset: uint64(off)})
					}
					ws := make([]rdma.Work, batch)
					cs := make([]rdma.Completion, batch)
					for i := range ws {
						ws[i] = rdma.Work{Op: op, Flags: rdma.Signaled, SGL: u.sge(i*4096, 4096), RemoteSTag: u.e.STag}
					}
					at, start := uint64(0), processor()
					b.ReportAllocs()
					for n := 0; b.Loop(); n += batch {
						for i := range ws {
							at = (at + 7919*4096) % area
							ws[i].RemoteOffset = at
						}
						if _, err := u.qp.Post(ws); err != nil {
							b.Fatal(err)
						}
						for got := 0; got < batch; {
							got += u.cq.Poll(cs[got:])
						}
					}
					b.ReportMetric(float64(processor()-start)/float64(b.N*batch), "cpu-ns/work")
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/work")
				})
			}
		}
	}
}

// processor is the processor time of the process, in nanoseconds.
func processor() int64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return r.Utime.Nano() + r.Stime.Nano()
}
