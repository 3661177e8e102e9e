package remote_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"oneshot/backend"
	"oneshot/partition/service"
	"oneshot/partition/wire"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/rdmatest"
	"oneshot/transport/rdma/remote"
)

const (
	storeSize = 4 << 20
	userLen   = 4 << 20 // bytes of a user
)

// user is the user of a queue pair.
type user struct {
	t    testing.TB
	dom  rdma.Domain
	cq   rdma.CompletionQueue
	qp   rdma.QueuePair
	mem  rdma.Region
	gone chan error
	wake chan struct{}
}

func use(t testing.TB, d rdma.Device, addr string, order rdma.Order) *user {
	t.Helper()
	return follow(t, d, addr, order, nil)
}

// follow is use with a queue pair that the new one follows; nil: there is none.
func follow(t testing.TB, d rdma.Device, addr string, order rdma.Order, former rdma.QueuePair) *user {
	t.Helper()
	u := &user{t: t, gone: make(chan error, 2), wake: make(chan struct{}, 1)}
	dom, err := d.NewDomain()
	check(t, err)
	u.dom = dom
	u.cq, err = d.NewCompletionQueue(256, func() {
		select {
		case u.wake <- struct{}{}:
		default:
		}
	})
	check(t, err)
	u.qp, err = d.NewQueuePair(rdma.QueuePairConfig{
		Domain: dom, SendCQ: u.cq, RecvCQ: u.cq, MaxWork: 256, Order: order, Disconnected: func(err error) { u.gone <- err },
	})
	check(t, err)
	b, free, err := rdma.Alloc(d, userLen)
	check(t, err)
	u.mem, err = dom.Register(b, rdma.AccessLocalWrite)
	check(t, err)
	t.Cleanup(func() {
		check(t, u.qp.Close())
		check(t, u.cq.Close())
		check(t, u.mem.Deregister())
		check(t, dom.Close())
		check(t, free(b))
	})
	check(t, d.Connect(t.Context(), u.qp, addr, rdma.ConnParams{Former: former}))
	return u
}

func (u *user) bytes(off, n int) []byte { return u.mem.Bytes()[off : off+n] }

func (u *user) work(op rdma.Opcode, id uint64, f rdma.Flags, off, n, to int) rdma.Work {
	w := rdma.Work{ID: id, Op: op, Flags: f | rdma.Signaled, RemoteSTag: u.qp.Endpoint().STag, RemoteOffset: uint64(to)}
	switch op {
	case rdma.OpFlush:
	case rdma.OpDiscard:
		w.Length = int64(n)
	default:
		w.SGL = []rdma.SGE{{Bytes: u.bytes(off, n), Region: u.mem}}
	}
	return w
}

func (u *user) post(ws ...rdma.Work) {
	u.t.Helper()
	if n, err := u.qp.Post(ws); err != nil {
		u.t.Fatalf("%d of %d: %v", n, len(ws), err)
	}
}

func (u *user) next() rdma.Completion {
	u.t.Helper()
	var one [1]rdma.Completion
	for deadline := time.After(2 * time.Minute); ; { // only a hang reaches it
		if u.cq.Poll(one[:]) > 0 {
			return one[0]
		}
		if !u.cq.Arm() {
			continue
		}
		select {
		case <-u.wake:
		case <-deadline:
			u.t.Fatal("nothing completes")
		}
	}
}

func (u *user) want(id uint64, s rdma.Status) rdma.Completion {
	u.t.Helper()
	c := u.next()
	if c.ID != id || c.Status != s {
		u.t.Fatalf("work %d ends with %v (%v), want %d with %v", c.ID, c.Status, c.Err, id, s)
	}
	return c
}

// kept is a store that outlives its volume.
type kept struct{ backend.Store }

func (kept) Close() error { return nil }

func newStore(t testing.TB) *rdmatest.Volatile {
	s := rdmatest.NewVolatile(storeSize, 1)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

// over runs a test over iWARP, over pairs inside of the process, and through a card.
func over(t *testing.T, test func(t *testing.T, s *rdmatest.Volatile, f *far, d rdma.Device, addr string)) {
	for _, c := range below {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t)
			f := newFar(t, kept{s}, c.away(t), c.listen, service.Config{})
			test(t, s, f, open(t, remote.Config{Device: c.here(t)}), f.l.Addr().String()+"/disk/log")
		})
	}
}

// A queue pair ends with the card below it: there is no other way to the service, and nobody waits for one.
func TestCardGone(t *testing.T) {
	card, stop := newCardOf(t)
	f := newFar(t, newStore(t), newIWARP(t), "127.0.0.1:0", service.Config{})
	u := use(t, open(t, remote.Config{Device: card, Patience: time.Hour}), f.l.Addr().String()+"/disk/log", rdma.OrderStrict)
	u.post(u.work(rdma.OpWrite, 1, 0, 0, 512, 0))
	u.want(1, rdma.StatusOK)
	stop()
	if err := <-u.gone; !errors.Is(err, rdma.ErrDeviceLost) {
		t.Errorf("the queue pair ends with %v, want %v", err, rdma.ErrDeviceLost)
	}
	if _, err := u.qp.Post([]rdma.Work{u.work(rdma.OpFlush, 2, 0, 0, 0, 0)}); !errors.Is(err, rdma.ErrDisconnected) {
		t.Errorf("Post: %v, want %v", err, rdma.ErrDisconnected)
	}
}

// Works without a response are repeated when a connection is lost: each work completes once, and nothing is missing
// in the end.
func TestComesBack(t *testing.T) {
	over(t, func(t *testing.T, s *rdmatest.Volatile, f *far, d rdma.Device, addr string) {
		const cells, cell, works, cuts = 24, 64 << 10, 400, 12
		u := use(t, d, addr, rdma.FreeStart|rdma.FreeFinish)
		r := rand.New(rand.NewPCG(rand.Uint64(), 1))
		want := make([]byte, cells*cell)
		busy := make([]bool, cells)
		posted, done := 0, 0
		for done < works {
			for range 8 {
				c := r.IntN(cells)
				if posted == works || busy[c] {
					continue
				}
				n := cell
				if r.IntN(3) > 0 {
					n = 512 // inline
				}
				b := u.bytes(c*cell, n)
				for i := range b {
					b[i] = byte(posted + 1)
				}
				copy(want[c*cell:], b)
				busy[c] = true
				posted++
				u.post(u.work(rdma.OpWrite, uint64(c), 0, c*cell, n, c*cell))
			}
			if r.IntN(works/cuts) == 0 {
				remote.Cut(u.qp)
			}
			if done < posted {
				c := u.next()
				if c.Status != rdma.StatusOK || !busy[c.ID] {
					t.Fatalf("%+v", c)
				}
				busy[c.ID] = false
				done++
			}
		}
		u.post(u.work(rdma.OpFlush, 1, rdma.Fence, 0, 0, 0))
		u.want(1, rdma.StatusOK)
		if !bytes.Equal(s.Crash(len(want)), want) {
			t.Error("what is durable is not what was written")
		}
	})
}

// An atomic operation is done once, whenever the connection is lost: before it has come, while the store is at it, and
// when its response is on the way. So is a Write that another client has overwritten meanwhile.
func TestOnce(t *testing.T) {
	over(t, func(t *testing.T, s *rdmatest.Volatile, f *far, d rdma.Device, addr string) {
		const users, adds = 4, 60
		var us []*user
		for i := range users {
			us = append(us, use(t, d, addr, []rdma.Order{rdma.OrderStrict, rdma.FreeStart}[i%2]))
		}
		r := rand.New(rand.NewPCG(rand.Uint64(), 1))
		seen := make(map[uint64]bool)
		for range adds {
			for _, u := range us {
				for k := range uint64(3) {
					add := u.work(rdma.OpFetchAdd, k, 0, int(k)*8, 8, 64)
					add.Operand = 1
					u.post(add)
				}
				if r.IntN(3) == 0 {
					remote.Cut(u.qp)
				}
			}
			for _, u := range us {
				for k := range uint64(3) {
					u.want(k, rdma.StatusOK)
					old := binary.NativeEndian.Uint64(u.bytes(int(k)*8, 8))
					if seen[old] {
						t.Fatalf("two have found the sum %d", old)
					}
					seen[old] = true
				}
			}
		}
		// A read is answered by a connection that was not cut: the additions may have been, before that.
		for _, u := range us {
			u.post(u.work(rdma.OpRead, 9, 0, 512, 512, 0))
			u.want(9, rdma.StatusOK)
		}
		u := us[0]
		if n := binary.NativeEndian.Uint64(u.bytes(512+64, 8)); n != users*adds*3 {
			t.Errorf("the sum is %d after %d additions", n, users*adds*3)
		}
		// A Write whose response is lost, and that somebody else overwrites.
		await, release := s.Hold(func(op *backend.Op) bool { return op.Off == 4096 })
		u.bytes(1024, 1)[0] = 1
		u.post(u.work(rdma.OpWrite, 10, 0, 1024, 512, 4096))
		await(1)
		f.hang(u.qp) // the client does not come back before the other has written
		release()
		other := us[1]
		other.bytes(1024, 1)[0] = 2
		other.post(other.work(rdma.OpWrite, 11, 0, 1024, 512, 4096))
		other.want(11, rdma.StatusOK)
		f.goOn()
		u.want(10, rdma.StatusOK)
		other.post(other.work(rdma.OpRead, 12, 0, 1024, 512, 4096))
		other.want(12, rdma.StatusOK)
		if other.bytes(1024, 1)[0] != 2 {
			t.Error("a Write that was done is done again, over that of another client")
		}
	})
}

// If the service does not know the session any more, it is not known whether an atomic operation was done, and so it
// ends. A fence behind it, too, may have been executed or not, and what has a fence behind that must not be executed without it (O6).
func TestAtomicNotRepeated(t *testing.T) {
	over(t, func(t *testing.T, s *rdmatest.Volatile, f *far, d rdma.Device, addr string) {
		u := use(t, d, addr, rdma.FreeStart)
		await, release := s.Hold(func(op *backend.Op) bool { return op.Kind == backend.Write })
		add := u.work(rdma.OpFetchAdd, 1, 0, 0, 8, 64)
		add.Operand = 3
		u.bytes(512, 1)[0] = 1
		u.post(add, u.work(rdma.OpWrite, 2, rdma.Fence, 512, 512, 4096), u.work(rdma.OpWrite, 3, rdma.Fence, 512, 512, 8192))
		await(1)
		f.hideAway()
		remote.Cut(u.qp)
		release()
		f.end()
		f.start(service.Config{}, f.l.Addr().String())
		u.want(1, rdma.StatusTransport)
		u.want(2, rdma.StatusTransport)
		u.want(3, rdma.StatusTransport)
		u.post(u.work(rdma.OpRead, 4, rdma.Fence, 1024, 512, 0))
		u.want(4, rdma.StatusFenced)
		u.post(u.work(rdma.OpRead, 5, rdma.Fence, 1024, 512, 0), u.work(rdma.OpRead, 6, 0, 1536, 512, 4096), u.work(rdma.OpRead, 7, 0, 2048, 512, 8192))
		u.want(5, rdma.StatusOK)
		u.want(6, rdma.StatusOK)
		u.want(7, rdma.StatusOK)
		if n := binary.NativeEndian.Uint64(u.bytes(1024+64, 8)); n != 3 {
			t.Errorf("3 was added, and the sum is %d", n)
		}
		if u.bytes(2048, 1)[0] == 1 && u.bytes(1536, 1)[0] != 1 { // the service may have done both before it noticed the end
			t.Error("what has a fence behind another work is there without that")
		}
	})
}

// A fence that had not been sent when the connection was lost, for want of credits, knows how those before it have ended: the service that
// gets it then does not.
func TestUnsentFence(t *testing.T) {
	s := newStore(t)
	few := service.Config{Credits: 2}
	f := newFar(t, kept{s}, newLocal(t), "pair:0", few)
	u := use(t, open(t, remote.Config{Device: newLocal(t)}), f.l.Addr().String()+"/disk/log", rdma.FreeStart)
	await, release := s.Hold(func(*backend.Op) bool { return true })
	u.bytes(512, 1)[0] = 1
	u.post(u.work(rdma.OpFetchAdd, 1, 0, 0, 8, 64), u.work(rdma.OpWrite, 2, rdma.Fence, 512, 512, 4096), u.work(rdma.OpWrite, 3, rdma.Fence, 512, 512, 8192))
	await(1)
	f.hideAway()
	remote.Cut(u.qp)
	release()
	f.end()
	f.start(few, f.l.Addr().String())
	u.want(1, rdma.StatusTransport)
	u.want(2, rdma.StatusTransport)
	u.want(3, rdma.StatusFenced)
	u.post(u.work(rdma.OpRead, 4, rdma.Fence, 1024, 512, 8192))
	u.want(4, rdma.StatusOK)
	if u.bytes(1024, 1)[0] != 0 {
		t.Error("what is behind a work that is not there has been written")
	}
}

// A Write behind which a fence may have let others know that it is done is not done again over what they have written since: the service
// does not know the session any more, and so not that it has done it.
func TestToldOfNotRepeated(t *testing.T) {
	for name, c := range map[string]struct {
		behind func(u *user) []rdma.Work
		want   []rdma.Status // of these
	}{
		"a Write with a fence": {func(u *user) []rdma.Work {
			return []rdma.Work{u.work(rdma.OpWrite, 2, rdma.Fence, 0, 512, 4096)}
		}, []rdma.Status{rdma.StatusTransport}},
		"an atomic operation": {func(u *user) []rdma.Work {
			return []rdma.Work{u.work(rdma.OpFetchAdd, 2, 0, 0, 8, 4096)}
		}, []rdma.Status{rdma.StatusTransport}},
		"a Write behind a flush": {func(u *user) []rdma.Work {
			return []rdma.Work{u.work(rdma.OpFlush, 2, 0, 0, 0, 0), u.work(rdma.OpWrite, 3, 0, 0, 512, 8192)}
		}, []rdma.Status{rdma.StatusOK, rdma.StatusOK}},
	} {
		asked, goOn := make(chan struct{}), make(chan struct{})
		var ask sync.Once
		again := make(map[uint64]bool)
		s := lie(t, nil, truth, func(r wire.Request, p *wire.Response) []byte {
			first := false
			ask.Do(func() {
				first = true
				close(asked)
				<-goOn // and nobody hears of it
			})
			again[r.Offset] = again[r.Offset] || r.Length > 0 && !first
			return p.AppendTo(nil)
		})
		u := use(t, open(t, remote.Config{Device: newLocal(t)}), s.l.Addr().String()+"/disk/log", rdma.OrderStrict)
		u.post(append([]rdma.Work{u.work(rdma.OpWrite, 1, 0, 0, 512, 0)}, c.behind(u)...)...)
		<-asked
		remote.Cut(u.qp)
		close(goOn)
		u.want(1, rdma.StatusTransport)
		for i, status := range c.want {
			u.want(uint64(2+i), status)
		}
		u.post(u.work(rdma.OpRead, 4, rdma.Fence, 0, 512, 16384))
		u.want(4, rdma.StatusFenced)
		u.post(u.work(rdma.OpWrite, 5, 0, 0, 512, 16384))
		u.want(5, rdma.StatusOK)
		if again[0] || again[4096] {
			t.Errorf("behind it %s: what was sent again is %v", name, again)
		}
	}
}

// A work that ends because it cannot be repeated lets those be retired that have waited for it only. What is behind these is
// repeated all the same.
func TestRepeatedBehindComplete(t *testing.T) {
	over(t, func(t *testing.T, s *rdmatest.Volatile, f *far, d rdma.Device, addr string) {
		u := use(t, d, addr, rdma.FreeStart)
		await, release := s.Hold(func(op *backend.Op) bool { return op.Off != 1<<20 })
		u.post(
			u.work(rdma.OpFetchAdd, 1, 0, 0, 8, 0), u.work(rdma.OpRead, 2, 0, 1024, 512, 1<<20),
			u.work(rdma.OpRead, 3, 0, 1536, 512, 2<<20), u.work(rdma.OpWrite, 4, 0, 2048, 512, 3<<20),
		)
		await(3)
		for u.qp.Counters().Reads == 0 { // the second work is complete, and waits for the first
			runtime.Gosched()
		}
		f.hideAway()
		remote.Cut(u.qp)
		release()
		f.end()
		f.start(service.Config{}, f.l.Addr().String())
		u.want(1, rdma.StatusTransport)
		u.want(2, rdma.StatusOK)
		u.want(3, rdma.StatusOK)
		u.want(4, rdma.StatusOK)
	})
}

// A fence knows of works that failed before the connection was lost, whether it is posted before that or afterwards.
func TestFenceOverCut(t *testing.T) {
	over(t, func(t *testing.T, s *rdmatest.Volatile, f *far, d rdma.Device, addr string) {
		u := use(t, d, addr, rdma.FreeStart|rdma.FreeFinish)
		fails := func(op *backend.Op) error {
			if op.Kind == backend.Write && op.Off == 0 {
				return &backend.MediumError{Kind: op.Kind, Off: op.Off, Err: errBroken}
			}
			return nil
		}
		for _, n := range []int{512, 3 << 20} { // in one request, and in several
			s.Fail(fails)
			u.post(u.work(rdma.OpWrite, 1, 0, 0, 512, 0))
			u.want(1, rdma.StatusMedium)
			s.Fail(nil)
			remote.Cut(u.qp)
			u.post(u.work(rdma.OpRead, 5, 0, 0, 512, 0)) // when it is complete there is another connection
			u.want(5, rdma.StatusOK)
			u.post(u.work(rdma.OpWrite, 2, rdma.Fence, 0, n, 512))
			u.want(2, rdma.StatusFenced)
			u.post(u.work(rdma.OpWrite, 3, rdma.Fence, 0, n, 512))
			u.want(3, rdma.StatusOK)

			s.Fail(fails)
			await, release := s.Hold(func(op *backend.Op) bool { return op.Off == 1<<20 })
			u.post(
				u.work(rdma.OpWrite, 1, 0, 0, 512, 1<<20), u.work(rdma.OpWrite, 2, 0, 0, 512, 0),
				u.work(rdma.OpWrite, 3, rdma.Barrier, 0, n, 512), u.work(rdma.OpWrite, 4, rdma.Fence, 0, n, 512),
			)
			await(1)
			u.want(2, rdma.StatusMedium)
			s.Fail(nil)
			remote.Cut(u.qp)
			release()
			u.want(1, rdma.StatusOK)
			// The second fence may have been executed on the connection before, and is answered at once.
			for range 2 {
				want := map[uint64]rdma.Status{3: rdma.StatusFenced, 4: rdma.StatusOK}
				if c := u.next(); c.Status != want[c.ID] || c.ID < 3 {
					t.Errorf("work %d ends with %v", c.ID, c.Status)
				}
			}
		}
	})
}

// A part of a long work has failed, and the connection is lost before the rest of it has an answer. The service does not hear of that part again,
// so the client sees to it that a fence behind the work is not executed.
func TestFenceBehindPartThatFailed(t *testing.T) {
	over(t, func(t *testing.T, s *rdmatest.Volatile, f *far, d rdma.Device, addr string) {
		u := use(t, d, addr, rdma.FreeStart|rdma.FreeFinish)
		u.bytes(3<<20, 1)[0] = 1
		for _, op := range []rdma.Opcode{rdma.OpWrite, rdma.OpRead} {
			s.Fail(func(op *backend.Op) error {
				if op.Off == 0 {
					return &backend.MediumError{Kind: op.Kind, Off: op.Off, Err: errBroken}
				}
				return nil
			})
			await, release := s.Hold(func(op *backend.Op) bool { return op.Off == 1<<20 })
			u.post(u.work(op, 1, 0, 0, 2<<20, 0), u.work(rdma.OpWrite, 2, rdma.Fence, 3<<20, 512, 3<<20), u.work(rdma.OpWrite, 3, rdma.Fence, 2<<20, 512, 2<<20))
			await(1)
			for !remote.HasFailed(u.qp) {
				u.post(u.work(rdma.OpRead, 4, 0, 2<<20, 512, 2<<20))
				u.want(4, rdma.StatusOK)
			}
			s.Fail(nil)
			remote.Cut(u.qp)
			release()
			u.want(1, rdma.StatusMedium)
			u.want(2, rdma.StatusFenced)
			u.want(3, rdma.StatusOK)
			u.post(u.work(rdma.OpRead, 5, 0, 2<<20, 512, 3<<20))
			u.want(5, rdma.StatusOK)
			if u.bytes(2<<20, 1)[0] != 0 {
				t.Errorf("what has a fence is executed behind a %v of which a part has failed", op)
			}
		}
	})
}

// hang is where a service hangs until its connection is cut.
type hang struct{ hangs, goOn chan struct{} }

func newHang() *hang { return &hang{make(chan struct{}), make(chan struct{})} }

func (h *hang) hang() {
	h.hangs <- struct{}{}
	<-h.goOn
}

func (h *hang) cut(u *user) {
	<-h.hangs
	remote.Cut(u.qp)
	h.goOn <- struct{}{}
}

// A Write with a fence may have been done on a connection that was lost, and a Read before it that went well there fails on the next one. If that
// is lost, too, the Write does not end as one that was not executed: its end is what the service remembers.
func TestDoneBehindReadThatFails(t *testing.T) {
	for what, c := range map[string]struct {
		forgets int // the connection of which the service knows nothing
		cut     int // this connection is lost, too
		gone    int // from this one on there is no partition
		status  wire.Status
		value   uint64
		want    rdma.Status
	}{
		"done":                      {value: 7, want: rdma.StatusOK},
		"failed":                    {status: wire.NoSpace, want: rdma.StatusSpace},
		"fenced":                    {status: wire.Fenced, want: rdma.StatusFenced},
		"it has not come":           {want: rdma.StatusFenced},
		"forgotten":                 {forgets: 3, want: rdma.StatusTransport},
		"forgotten before the Read": {forgets: 2, want: rdma.StatusTransport},
		"forgotten when asked":      {forgets: 4, cut: 3, want: rdma.StatusTransport},
		"asked twice":               {cut: 3, value: 7, want: rdma.StatusOK},
		"gone when asked":           {gone: 4, cut: 3, want: rdma.StatusTransport},
	} {
		t.Run(what, func(t *testing.T) {
			connections := 0
			h := newHang()
			var tag uint32
			s := lie(t, nil, func(m *wire.AttachedMessage) {
				connections++
				m.Session, m.Known = 1, connections > 1 && connections != c.forgets
				if connections == c.gone {
					m.Status = wire.NoHandle
				}
			}, func(r wire.Request, p *wire.Response) []byte {
				isRead := r.Op == wire.Read && r.Length > 0
				switch connections {
				case 1: // the client hears of neither, and cannot know whether they were done
					if isRead {
						h.hang()
					}
				case 2:
					if tag = r.Tag; isRead {
						p.Status = wire.Medium
					} else {
						h.hang()
					}
				default:
					if r.Length > 0 || r.Flags&wire.Fence == 0 {
						t.Errorf("behind the failure there is %+v", r)
					}
					if r.Flags&wire.Again != 0 {
						if r.Tag != tag || r.Op != wire.Write || connections == c.forgets || c.forgets == 2 {
							t.Errorf("what is asked for is %+v", r)
						}
						if connections == c.cut {
							h.hang()
						}
						p.Status, p.Value = c.status, c.value
					}
				}
				return p.AppendTo(nil)
			})
			u := use(t, open(t, remote.Config{Device: newLocal(t)}), s.l.Addr().String()+"/disk/log", rdma.FreeStart)
			u.post(u.work(rdma.OpRead, 1, 0, 0, 512, 0), u.work(rdma.OpWrite, 2, rdma.Fence, 0, 512, 512))
			h.cut(u)
			u.want(1, rdma.StatusMedium)
			h.cut(u)
			if c.cut > 0 {
				h.cut(u)
			}
			if got := u.want(2, c.want); got.Seq != c.value {
				t.Errorf("its number is %d, want %d", got.Seq, c.value)
			}
		})
	}
}

// A Write with a fence that may have been done on a connection of which the service knows nothing does not end as one that was not executed,
// because a Read before it fails now.
func TestFencedThoughForgotten(t *testing.T) {
	connections := 0
	h := newHang()
	s := lie(t, nil, func(*wire.AttachedMessage) { connections++ }, func(r wire.Request, p *wire.Response) []byte {
		switch {
		case connections == 1:
			if r.Op == wire.Read {
				h.hang()
			}
		case r.Op == wire.Read:
			p.Status = wire.Medium
		default:
			p.Status = wire.Fenced
		}
		return p.AppendTo(nil)
	})
	u := use(t, open(t, remote.Config{Device: newLocal(t)}), s.l.Addr().String()+"/disk/log", rdma.FreeStart)
	u.post(u.work(rdma.OpRead, 1, 0, 0, 512, 0), u.work(rdma.OpWrite, 2, rdma.Fence, 0, 512, 512))
	h.cut(u)
	u.want(1, rdma.StatusMedium)
	u.want(2, rdma.StatusTransport)
}

// Then what has a fence behind that one is not executed either, though the service would do it: a commit record does not follow what may be lost.
func TestFenceBehindForgotten(t *testing.T) {
	for _, op := range []rdma.Opcode{rdma.OpWrite, rdma.OpRead, rdma.OpFlush} {
		for _, sent := range []bool{false, true} { // before the connection was lost
			if sent && op == rdma.OpWrite {
				continue // then the Write with a fence before it is not done again
			}
			connections := 0
			h := newHang()
			s := lie(t, nil, func(m *wire.AttachedMessage) {
				if connections++; connections == 1 && !sent {
					m.Credits = 2
				}
			}, func(r wire.Request, p *wire.Response) []byte {
				switch {
				case connections == 1:
					h.hang()
				case r.Flags&wire.Fence == 0:
					p.Status = wire.Medium
				case r.Op == wire.Write && r.Offset == 512:
					p.Status = wire.Fenced
				case r.Op == wire.Write && r.Length > 0:
					t.Errorf("a Write behind one that may be lost is sent: %+v", r)
				}
				return p.AppendTo(nil)
			})
			u := use(t, open(t, remote.Config{Device: newLocal(t)}), s.l.Addr().String()+"/disk/log", rdma.FreeStart)
			u.post(
				u.work(rdma.OpRead, 1, 0, 0, 512, 0), u.work(rdma.OpWrite, 2, rdma.Fence, 0, 512, 512), u.work(op, 3, rdma.Fence, 512, 512, 1024),
				u.work(rdma.OpRead, 4, rdma.Fence, 512, 512, 1024),
			)
			h.cut(u)
			u.want(1, rdma.StatusMedium)
			u.want(2, rdma.StatusTransport)
			u.want(3, rdma.StatusFenced)
			u.want(4, rdma.StatusOK)
		}
	}
}

// Nor does an atomic operation with a fence: its old value is not to be had by asking, so it is not known whether it was done, nor whether what
// has a fence behind it may be done (O6).
func TestAtomicBehindReadThatFails(t *testing.T) {
	connections := 0
	h := newHang()
	s := lie(t, nil, func(m *wire.AttachedMessage) {
		connections++
		m.Session, m.Known = 1, connections > 1
	}, func(r wire.Request, p *wire.Response) []byte {
		switch isRead := r.Op == wire.Read && r.Length > 0; {
		case connections < 3 && isRead == (connections == 1): // the client does not hear of the operation
			h.hang()
		case connections == 2:
			p.Status = wire.Medium
		case connections == 3 && (r.Op != wire.Read || r.Length > 0 || r.Flags&wire.Fence == 0):
			t.Errorf("behind the failure there is %+v", r)
		}
		return p.AppendTo(nil)
	})
	u := use(t, open(t, remote.Config{Device: newLocal(t)}), s.l.Addr().String()+"/disk/log", rdma.FreeStart)
	add := u.work(rdma.OpFetchAdd, 2, rdma.Fence, 512, 8, 512)
	add.Operand = 1
	u.post(u.work(rdma.OpRead, 1, 0, 0, 512, 0), add, u.work(rdma.OpWrite, 3, rdma.Fence, 0, 512, 512))
	h.cut(u)
	u.want(1, rdma.StatusMedium)
	h.cut(u)
	u.want(2, rdma.StatusTransport)
	u.want(3, rdma.StatusTransport)
}

// A fence that the client knows to be behind a failure is told to the service as a request of no octets, which needs no right.
func TestFenceOverCutWithAtomicsAlone(t *testing.T) {
	over(t, func(t *testing.T, s *rdmatest.Volatile, f *far, d rdma.Device, addr string) {
		f.set(func(e *rdma.Endpoint) { e.Rights = rdma.RightAtomics })
		u := use(t, d, addr, rdma.OrderStrict)
		add := func(id uint64, f rdma.Flags, to int) rdma.Work {
			w := u.work(rdma.OpFetchAdd, id, f, 0, 8, to)
			w.Operand = 1
			return w
		}
		s.Fail(func(op *backend.Op) error {
			if op.Kind == backend.Write && op.Off == 0 {
				return &backend.MediumError{Kind: op.Kind, Off: op.Off, Err: errBroken}
			}
			return nil
		})
		u.post(add(1, 0, 0))
		u.want(1, rdma.StatusMedium)
		s.Fail(nil)
		remote.Cut(u.qp)
		u.post(add(2, 0, 512)) // when it is complete there is another connection
		u.want(2, rdma.StatusOK)
		u.post(add(3, rdma.Fence, 512), add(4, rdma.Fence, 512))
		u.want(3, rdma.StatusFenced)
		u.want(4, rdma.StatusOK)
	})
}

// A Read that a fence has kept before a Write does not return what the Write has written.
func TestReadOvertaken(t *testing.T) {
	over(t, func(t *testing.T, s *rdmatest.Volatile, f *far, d rdma.Device, addr string) {
		u := use(t, d, addr, rdma.OrderStrict)
		await, release := s.Hold(func(op *backend.Op) bool { return op.Kind == backend.Read })
		u.bytes(512, 1)[0] = 9
		u.post(
			u.work(rdma.OpRead, 1, 0, 0, 512, 0), u.work(rdma.OpRead, 2, 0, 1024, 512, 512),
			u.work(rdma.OpWrite, 3, rdma.Fence, 512, 512, 0), u.work(rdma.OpWrite, 4, 0, 512, 512, 512),
		)
		await(2)
		remote.Cut(u.qp)
		release()
		u.want(1, rdma.StatusTransport)
		u.want(2, rdma.StatusTransport)
		u.want(3, rdma.StatusOK) // the Read is no failure of the medium
		u.want(4, rdma.StatusOK)
	})
}

// Nor does one on a strict queue pair return what was changed by a Discard or an atomic operation behind it, or by a Write behind that one.
func TestReadOvertakenInOrder(t *testing.T) {
	for _, c := range []struct {
		order rdma.Order
		ops   []rdma.Opcode
		want  rdma.Status
	}{
		{rdma.OrderStrict, []rdma.Opcode{rdma.OpDiscard}, rdma.StatusTransport},
		{rdma.FreeFinish, []rdma.Opcode{rdma.OpFetchAdd}, rdma.StatusTransport},
		{rdma.OrderStrict, []rdma.Opcode{rdma.OpCompareSwap, rdma.OpWrite}, rdma.StatusTransport},
		{rdma.OrderStrict, []rdma.Opcode{rdma.OpWrite}, rdma.StatusOK},
		{rdma.FreeStart, []rdma.Opcode{rdma.OpFetchAdd, rdma.OpDiscard}, rdma.StatusOK},
	} {
		connections := 0
		h := newHang()
		s := lie(t, nil, func(m *wire.AttachedMessage) {
			connections++
			m.Session, m.Known = 1, connections > 1
		}, func(r wire.Request, p *wire.Response) []byte {
			if connections == 1 { // it may have done all of them
				h.hang()
			} else if r.Op == wire.Read && c.want != rdma.StatusOK {
				t.Errorf("%v: the Read is done again", c.ops)
			}
			return p.AppendTo(nil)
		})
		u := use(t, open(t, remote.Config{Device: newLocal(t)}), s.l.Addr().String()+"/disk/log", c.order)
		ws := []rdma.Work{u.work(rdma.OpRead, 0, 0, 0, 512, 0)}
		for i, op := range c.ops {
			n := 512
			if to := 512 * (i + 1 - len(c.ops)); op == rdma.OpFetchAdd || op == rdma.OpCompareSwap {
				ws = append(ws, u.work(op, uint64(i+1), 0, 1024, 8, -to)) // elsewhere, if it is not the last
			} else {
				ws = append(ws, u.work(op, uint64(i+1), 0, 1024, n, 0))
			}
		}
		u.post(ws...)
		h.cut(u)
		u.want(0, c.want)
		for i := range c.ops {
			u.want(uint64(i+1), rdma.StatusOK)
		}
	}
}

// A Write behind an atomic operation that is given up comes behind the Read before that one all the same (O1): it waits for that, though it was not sent, for want
// of credits, when the connection was lost, or is posted later.
func TestBehindGivenUp(t *testing.T) {
	for _, isLater := range []bool{false, true} {
		connections := 0
		h := newHang()
		var u *user
		var write rdma.Work
		s := lie(t, nil, func(m *wire.AttachedMessage) {
			connections++
			m.Session, m.Credits = uint64(connections), 2
		}, func(r wire.Request, p *wire.Response) []byte {
			switch {
			case connections == 1:
				h.hang()
			case r.Op == wire.Read:
				if isLater {
					u.post(write)
				}
				if !remote.IsUnsent(u.qp) {
					t.Errorf("later: %v: a Write is sent before the answer of a Read that it must not pass", isLater)
				}
			}
			return p.AppendTo(nil)
		})
		u = use(t, open(t, remote.Config{Device: newLocal(t)}), s.l.Addr().String()+"/disk/log", rdma.OrderStrict)
		write = u.work(rdma.OpWrite, 3, 0, 512, 512, 0)
		u.post(u.work(rdma.OpRead, 1, 0, 0, 512, 0), u.work(rdma.OpFetchAdd, 2, 0, 1024, 8, 4096))
		if !isLater {
			u.post(write)
		}
		h.cut(u)
		u.want(1, rdma.StatusOK)
		u.want(2, rdma.StatusTransport)
		u.want(3, rdma.StatusOK)
	}
}

// A Read that is not done again, and has a fence, is one for the service all the same: what fails before it is not held against the fence behind it.
func TestOvertakenReadWithFence(t *testing.T) {
	connections, fences := 0, 0
	h := newHang()
	s := lie(t, nil, func(m *wire.AttachedMessage) {
		connections++
		m.Session, m.Known = 1, connections > 1
	}, func(r wire.Request, p *wire.Response) []byte {
		switch {
		case connections == 1:
			if r.Flags&wire.Fence == 0 {
				h.hang()
			}
		case r.Flags&wire.Fence == 0:
			p.Status = wire.Medium
		case fences == 0:
			if fences++; r.Op != wire.Read || r.Length > 0 {
				t.Errorf("behind what fails there is %+v", r)
			}
			p.Status = wire.Fenced
		}
		return p.AppendTo(nil)
	})
	u := use(t, open(t, remote.Config{Device: newLocal(t)}), s.l.Addr().String()+"/disk/log", rdma.FreeStart)
	u.post(
		u.work(rdma.OpWrite, 1, 0, 0, 512, 0), u.work(rdma.OpRead, 2, rdma.Fence, 512, 512, 512),
		u.work(rdma.OpWrite, 3, rdma.Fence, 0, 512, 512),
	)
	h.cut(u)
	u.want(1, rdma.StatusMedium)
	u.want(2, rdma.StatusTransport)
	u.want(3, rdma.StatusOK)
}

// When the service begins anew, works go on if nothing can have been lost; otherwise the queue pair ends.
func TestRestart(t *testing.T) {
	s := newStore(t)
	dev := newLocal(t)
	f := newFar(t, kept{s}, dev, "pair:0", service.Config{})
	d := open(t, remote.Config{Device: newLocal(t)})
	addr := f.l.Addr().String()
	u := use(t, d, addr+"/disk/log", rdma.OrderStrict)
	u.post(u.work(rdma.OpWrite, 1, 0, 0, 512, 0), u.work(rdma.OpFetchAdd, 2, rdma.Durable, 512, 8, 4096), u.work(rdma.OpFlush, 3, 0, 0, 0, 0))
	first := u.want(1, rdma.StatusOK).Seq
	u.want(2, rdma.StatusOK)
	u.want(3, rdma.StatusOK)
	f.restart(addr)
	u.post(u.work(rdma.OpWrite, 4, 0, 0, 512, 0))
	c := u.want(4, rdma.StatusOK)
	if rdma.Generation(c.Seq) == rdma.Generation(first) || rdma.Generation(c.Durable) != rdma.Generation(c.Seq) {
		t.Errorf("number %#x, watermark %#x, and before %#x", c.Seq, c.Durable, first)
	}
	// Write 4 is not durable.
	f.restart(addr)
	err := <-u.gone
	if lost, ok := errors.AsType[*remote.LostError](err); !ok || lost.From != c.Durable+1 {
		t.Errorf("%v", err)
	}
	if _, err := u.qp.Post([]rdma.Work{u.work(rdma.OpRead, 5, 0, 0, 512, 0)}); !errors.Is(err, rdma.ErrDisconnected) {
		t.Errorf("Post after the end: %v", err)
	}
	// Nor is an atomic operation that has no number.
	u = use(t, d, addr+"/disk/log", rdma.OrderStrict)
	u.post(u.work(rdma.OpFetchAdd, 1, 0, 0, 8, 0))
	u.want(1, rdma.StatusOK)
	f.restart(addr)
	if _, ok := errors.AsType[*remote.LostError](<-u.gone); !ok {
		t.Error("an atomic operation that may be lost is not told of")
	}
	// One before a barrier is durable.
	for _, n := range []int{512, 3 << 20} { // in one request, and in several
		u = use(t, d, addr+"/disk/log", rdma.OrderStrict)
		u.post(u.work(rdma.OpFetchAdd, 1, 0, 0, 8, 0))
		u.want(1, rdma.StatusOK)
		u.post(u.work(rdma.OpWrite, 2, rdma.Barrier, 0, n, 512))
		u.want(2, rdma.StatusOK)
		f.restart(addr)
		u.post(u.work(rdma.OpRead, 3, 0, 0, 512, 0))
		u.want(3, rdma.StatusOK)
		u.post(u.work(rdma.OpFetchAdd, 4, 0, 0, 8, 0)) // behind it
		u.want(4, rdma.StatusOK)
		f.restart(addr)
		if _, ok := errors.AsType[*remote.LostError](<-u.gone); !ok {
			t.Error("an atomic operation behind a barrier, which may be lost, is not told of")
		}
	}
}

// A service that comes back with fewer credits, and takes shorter requests, gets no more than that, and everything is done. What is longer and
// was sent before cannot be repeated.
func TestComesBackWithLess(t *testing.T) {
	for _, long := range []bool{false, true} {
		s := newStore(t)
		f := newFar(t, s, newLocal(t), "pair:0", service.Config{})
		addr := f.l.Addr().String()
		u := use(t, open(t, remote.Config{Device: newLocal(t)}), addr+"/disk/log", rdma.FreeStart)
		await, release := s.Hold(func(op *backend.Op) bool { return true })
		var ws []rdma.Work
		for i := range 80 { // some of them are not sent before
			n := 8 << 10
			if i > 64 || long {
				n = 256 << 10
			}
			for k := range u.bytes(i*16<<10, n) {
				u.bytes(i*16<<10, n)[k] = 1
			}
			ws = append(ws, u.work(rdma.OpWrite, uint64(i), 0, i*16<<10, n, i*16<<10))
		}
		u.post(ws...)
		await(1)
		f.hideAway()
		remote.Cut(u.qp)
		release()
		f.end()
		f.start(service.Config{Credits: 3, Memory: 64 << 10}, addr)
		if long {
			if err := <-u.gone; err == nil {
				t.Error("a good end")
			}
			continue
		}
		for i := range ws {
			u.want(uint64(i), rdma.StatusOK)
		}
		u.post(u.work(rdma.OpRead, 99, 0, 2<<20, 1<<20, 0))
		u.want(99, rdma.StatusOK)
		for i := range ws {
			if !bytes.Equal(u.bytes(2<<20+i*16<<10, 8<<10), bytes.Repeat([]byte{1}, 8<<10)) && i < 64 {
				t.Errorf("work %d was not done", i)
			}
		}
	}
}

// The queue pair ends if the name now stands for another partition, or if the connection does not come back.
func TestEnds(t *testing.T) {
	s := newStore(t)
	f := newFar(t, kept{s}, newLocal(t), "pair:0", service.Config{})
	addr := f.l.Addr().String() + "/disk/log"
	d := open(t, remote.Config{Device: newLocal(t)})
	for what, change := range map[string]func(*rdma.Endpoint){
		"another partition": func(e *rdma.Endpoint) { e.UUID = "0b7f4c1a-53d2-4e8f-a9c6-71e2d8b40f15" },
		"fewer rights":      func(e *rdma.Endpoint) { e.Rights = rdma.RightRead },
	} {
		u := use(t, d, addr, rdma.OrderStrict)
		await, release := s.Hold(func(op *backend.Op) bool { return true })
		u.post(u.work(rdma.OpWrite, 1, 0, 0, 512, 0))
		await(1)
		f.set(change)
		remote.Cut(u.qp)
		release()
		u.want(1, rdma.StatusFlushed)
		if err := <-u.gone; err == nil {
			t.Errorf("%s: a good end", what)
		}
		f.set(nil)
	}
	d = open(t, remote.Config{Device: newLocal(t), Patience: -1})
	u := use(t, d, addr, rdma.OrderStrict)
	await, release := s.Hold(func(op *backend.Op) bool { return true })
	u.post(u.work(rdma.OpWrite, 1, 0, 0, 512, 0))
	await(1)
	remote.Cut(u.qp)
	u.want(1, rdma.StatusFlushed)
	if err := <-u.gone; err == nil {
		t.Error("a good end")
	}
	release()
	u = use(t, d, addr, rdma.OrderStrict)
	u.post(u.work(rdma.OpWrite, 1, 0, 0, 512, 0))
	u.qp.Disconnect()
	u.want(1, rdma.StatusOK)
	if err := <-u.gone; err != nil {
		t.Errorf("Disconnect ends with %v", err)
	}
}

// A long work with a fence is one work: all of its parts wait for what is before, and if one fails the next fence
// knows.
func TestLongFence(t *testing.T) {
	over(t, func(t *testing.T, s *rdmatest.Volatile, f *far, d rdma.Device, addr string) {
		u := use(t, d, addr, rdma.FreeStart)
		s.Fail(func(op *backend.Op) error {
			if op.Kind == backend.Write && op.Off == 0 {
				return &backend.MediumError{Kind: op.Kind, Off: op.Off, Err: errBroken}
			}
			return nil
		})
		const long = 1280 << 10
		await, release := s.Hold(func(op *backend.Op) bool { return op.Off == 3<<20 })
		for i := range u.bytes(0, long) {
			u.bytes(0, long)[i] = 1
		}
		u.post(
			u.work(rdma.OpWrite, 1, 0, 0, 512, 3<<20), u.work(rdma.OpWrite, 2, rdma.Barrier, 0, long, 0),
			u.work(rdma.OpWrite, 3, rdma.Fence, 0, long, long), u.work(rdma.OpRead, 4, rdma.Fence, 2<<20, long, long),
		)
		await(1)
		other := use(t, d, addr, rdma.OrderStrict)
		for range 50 { // so that what is sent too early comes
			other.post(other.work(rdma.OpRead, 1, 0, 0, 512, 0))
			other.want(1, rdma.StatusOK)
		}
		if !bytes.Equal(s.Crash(long), make([]byte, long)) {
			t.Error("a part of a barrier is written before what comes before it")
		}
		release()
		u.want(1, rdma.StatusOK)
		u.want(2, rdma.StatusMedium)
		u.want(3, rdma.StatusFenced)
		u.want(4, rdma.StatusOK)
		if !bytes.Equal(u.bytes(2<<20, long), make([]byte, long)) {
			t.Error("a part of what was fenced is written")
		}
	})
}
