package local_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/local"
)

// shown is an Exposed of memory.
type shown struct {
	mu  sync.Mutex
	b   []byte
	err error // of all calls
}

func (s *shown) ReadAt(b []byte, off int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	copy(b, s.b[off:])
	return s.err
}

func (s *shown) WriteAt(b []byte, off int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	copy(s.b[off:], b)
	return s.err
}

// What is exposed is read and written by the peer with the rights that were given, within its bounds, and not any more when it was
// withdrawn. The end that exposes may hold a lock then that its calls take.
func TestExposed(t *testing.T) {
	const n = 8192
	const both = rdma.AccessRemoteRead | rdma.AccessRemoteWrite
	for name, c := range map[string]struct {
		access rdma.Access
		op     rdma.Opcode
		off    uint64
		alter  func(x *shown, q rdma.Exposer, s rdma.STag)
		good   bool
	}{
		"a Read":                      {both, rdma.OpRead, 4096, nil, true},
		"a Write":                     {both, rdma.OpWrite, 4096, nil, true},
		"a Read without the right":    {rdma.AccessRemoteWrite, rdma.OpRead, 0, nil, false},
		"a Write without the right":   {rdma.AccessRemoteRead, rdma.OpWrite, 0, nil, false},
		"a Read beyond the end":       {both, rdma.OpRead, n - 4095, nil, false},
		"a Write before the start":    {both, rdma.OpWrite, 1<<64 - 4096, nil, false},
		"what the owner refuses":      {both, rdma.OpRead, 0, func(x *shown, _ rdma.Exposer, _ rdma.STag) { x.err = errors.New("refused") }, false},
		"what is withdrawn, a Read":   {both, rdma.OpRead, 0, withdraw, false},
		"what is withdrawn, a Write":  {both, rdma.OpWrite, 0, withdraw, false},
		"what is withdrawn, two ways": {both, rdma.OpRead, 0, func(x *shown, q rdma.Exposer, s rdma.STag) { withdraw(x, q, s); withdraw(x, q, s) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			here, there, mem := exposing(t)
			x := &shown{b: bytes.Repeat([]byte{7}, n)}
			s, err := there.(rdma.Exposer).Expose(x, n, c.access)
			if err != nil {
				t.Fatal(err)
			}
			if c.alter != nil {
				c.alter(x, there.(rdma.Exposer), s)
			}
			work := rdma.Work{ID: 1, Op: c.op, Flags: rdma.Signaled, SGL: []rdma.SGE{{Bytes: mem.Bytes()[:4096], Region: mem}}, RemoteSTag: s, RemoteOffset: c.off}
			if _, err := here.qp.Post([]rdma.Work{work}); err != nil {
				t.Fatal(err)
			}
			var cs [1]rdma.Completion
			if here.cq.Poll(cs[:]) != 1 || (cs[0].Status == rdma.StatusOK) != c.good || !c.good && cs[0].Status != rdma.StatusRemoteAccess {
				t.Fatalf("%+v", cs[0])
			}
			want := bytes.Repeat([]byte{7}, n)
			switch {
			case c.good && c.op == rdma.OpRead:
				if !bytes.Equal(mem.Bytes()[:4096], want[:4096]) {
					t.Error("other octets are read")
				}
			case c.good:
				copy(want[c.off:], mem.Bytes()[:4096])
			}
			if !bytes.Equal(x.b, want) {
				t.Error("other octets are written, or elsewhere")
			}
		})
	}
	_, there, _ := exposing(t)
	if _, err := there.(rdma.Exposer).Expose(&shown{}, 1, rdma.AccessLocalWrite); err == nil {
		t.Error("a right that no peer has is given")
	}
}

// stuck is an Exposed of which a call does not return before it is let go.
type stuck struct{ called, letGo chan struct{} }

func (s stuck) ReadAt([]byte, int64) error {
	s.called <- struct{}{}
	<-s.letGo
	return nil
}

func (s stuck) WriteAt(b []byte, off int64) error { return s.ReadAt(b, off) }

// While a call for one end does not return, the other end posts, and may end the connection: that has ended, and what was posted has
// completed, when the call has returned, and not before. What is posted behind it waits.
func TestExposedHeldUp(t *testing.T) {
	for name, aborts := range map[string]bool{"and goes on": false, "and the other end aborts": true} {
		t.Run(name, func(t *testing.T) {
			here, there, mem := exposing(t)
			x := stuck{make(chan struct{}), make(chan struct{})}
			s, err := there.(rdma.Exposer).Expose(x, 1<<20, rdma.AccessRemoteRead)
			if err != nil {
				t.Fatal(err)
			}
			sge := []rdma.SGE{{Bytes: mem.Bytes()[:16], Region: mem}}
			if _, err := here.qp.PostReceive([]rdma.Receive{{ID: 7, SGL: sge}}); err != nil {
				t.Fatal(err)
			}
			posted := make(chan error, 1)
			read := rdma.Work{ID: 1, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: sge, RemoteSTag: s}
			go func() {
				_, err := here.qp.Post([]rdma.Work{read})
				posted <- err
			}()
			<-x.called
			behind := rdma.Work{ID: 2, Op: rdma.OpWrite, Flags: rdma.Signaled}
			for range 20 { // the queue grows
				if _, err := here.qp.Post([]rdma.Work{behind}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := there.Post([]rdma.Work{{ID: 3, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: sge[:0]}}); err != nil {
				t.Fatal(err)
			}
			var cs [32]rdma.Completion
			if n := here.cq.Poll(cs[:]); n != 2 || cs[0].ID != 7 || cs[1].ID != 3 { // both ends have this queue
				t.Errorf("%d completions while the Exposed holds a work up: %+v", n, cs[:n])
			}
			want := rdma.StatusOK
			if aborts {
				there.Abort(nil)
				want = rdma.StatusFlushed
				if _, err := here.qp.Post([]rdma.Work{behind}); !errors.Is(err, rdma.ErrDisconnected) {
					t.Errorf("Post after the end: %v", err)
				}
				if n := here.cq.Poll(cs[:]); n != 0 {
					t.Errorf("%d works have completed, though memory of one is in use", n)
				}
			}
			close(x.letGo)
			if err := <-posted; err != nil {
				t.Error(err)
			}
			n := here.cq.Poll(cs[:])
			if n != 21 {
				t.Errorf("%d completions, want 21", n)
			}
			for i, c := range cs[:n] {
				if c.Status != want || (c.ID == 1) != (i == 0) {
					t.Errorf("completion %d: %+v", i, c)
				}
			}
		})
	}
}

func withdraw(x *shown, q rdma.Exposer, s rdma.STag) {
	x.mu.Lock()
	defer x.mu.Unlock()
	q.Withdraw(s)
}

// asker is the end that reads and writes.
type asker struct {
	qp rdma.QueuePair
	cq rdma.CompletionQueue
}

// exposing connects two queue pairs, and returns the one that asks, with memory of it, and the other one.
func exposing(t *testing.T) (here asker, there rdma.QueuePair, mem rdma.Region) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	d := local.Open(local.Config{})
	dom, err := d.NewDomain()
	check(err)
	cq, err := d.NewCompletionQueue(8, nil)
	check(err)
	pair := func() rdma.QueuePair {
		q, err := d.NewQueuePair(rdma.QueuePairConfig{Domain: dom, SendCQ: cq, RecvCQ: cq, MaxWork: 32, MaxRecv: 4})
		check(err)
		return q
	}
	here, there = asker{pair(), cq}, pair()
	mem, err = dom.Register(make([]byte, 4096), rdma.AccessLocalWrite)
	check(err)
	l, err := d.Listen("pair:0")
	check(err)
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept()
		if err == nil {
			err = r.Accept(there, rdma.ConnParams{})
		}
		accepted <- err
	}()
	check(d.Connect(t.Context(), here.qp, l.Addr().String(), rdma.ConnParams{}))
	check(<-accepted)
	t.Cleanup(func() {
		check(errors.Join(here.qp.Close(), there.Close(), l.Close(), mem.Deregister(), cq.Close(), dom.Close(), d.Close()))
	})
	return here, there, mem
}
