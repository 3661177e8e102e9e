package object_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"oneshot/backend"
	"oneshot/backend/memory"
	"oneshot/endpoint/object"
	"oneshot/ha/heap"
	"oneshot/ha/heap/service"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// cluster is nodes that serve one store, one at a time.
type cluster struct {
	t     *testing.T
	store backend.Store
	heap  *heap.Heap
	nodes []*node
	now   int // the primary; -1: none
	mu    sync.Mutex
}

type node struct {
	c   *cluster
	s   *service.Service
	dev rdma.Device
	l   rdma.Listener
	way *way
	wg  sync.WaitGroup
}

// way is the network before a node: it can lose what the node answers, and end connections.
type way struct {
	l     net.Listener
	to    string
	deaf  atomic.Bool   // what the node sends is lost
	lost  chan struct{} // holds one element if something was
	wg    sync.WaitGroup
	mu    sync.Mutex
	conns []net.Conn
	over  bool
}

func newWay(t *testing.T, to string) *way {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	w := &way{l: l, to: to, lost: make(chan struct{}, 1)}
	w.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", to)
			if err != nil {
				_ = c.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, c, s)
			if w.over {
				_ = c.Close()
				_ = s.Close()
			}
			w.mu.Unlock()
			w.wg.Go(func() { _, _ = io.Copy(s, c); _ = s.Close(); _ = c.Close() })
			w.wg.Go(func() {
				b := make([]byte, 64<<10)
				for {
					n, err := s.Read(b)
					if err != nil {
						break
					}
					if w.deaf.Load() {
						w.cut() // the client has sent its request, and gets no answer
						select {
						case w.lost <- struct{}{}:
						default:
						}
						break
					}
					if _, err = c.Write(b[:n]); err != nil {
						break
					}
				}
				_ = c.Close()
				_ = s.Close()
			})
		}
	})
	return w
}

// cut ends all connections.
func (w *way) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

func (w *way) close() {
	_ = w.l.Close()
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	w.cut()
	w.wg.Wait()
}

func newCluster(t *testing.T, n int) *cluster {
	t.Helper()
	store, err := memory.New(8 << 20)
	check(t, err)
	c := &cluster{t: t, store: store, now: -1}
	for range n {
		x := &node{c: c}
		x.dev, err = iwarp.Open(iwarp.Config{})
		check(t, err)
		x.s, err = service.New(service.Config{Device: x.dev, Nodes: func() []string { return c.others(x) }, Penalty: time.Millisecond, Secret: func(name string) ([]byte, bool) {
			return []byte("secret"), name == "app"
		}})
		check(t, err)
		x.l, err = x.dev.Listen("127.0.0.1:0")
		check(t, err)
		x.wg.Go(func() { _ = x.s.Serve(x.l) })
		x.way = newWay(t, x.l.Addr().String())
		c.nodes = append(c.nodes, x)
	}
	t.Cleanup(func() {
		c.moveTo(-1)
		for _, x := range c.nodes {
			x.way.close()
			check(t, x.l.Close())
			x.wg.Wait()
			check(t, errors.Join(x.s.Close(), x.dev.Close()))
		}
		check(t, store.Close())
	})
	c.moveTo(0)
	return c
}

// others returns the addresses of the other nodes, the primary first.
func (c *cluster) others(x *node) (list []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, o := range c.nodes {
		switch at := o.way.l.Addr().String(); {
		case o == x:
		case i == c.now:
			list = append([]string{at}, list...)
		default:
			list = append(list, at)
		}
	}
	return list
}

// moveTo has another node serve the heap, which it opens anew; -1: none.
func (c *cluster) moveTo(i int) {
	c.t.Helper()
	c.mu.Lock()
	was := c.now
	c.now = -1
	c.mu.Unlock()
	if was >= 0 {
		c.heap.Fail(errors.New("it moves"))
		check(c.t, c.nodes[was].s.SetHeap(nil))
		check(c.t, c.heap.Close())
	}
	if i < 0 {
		return
	}
	var err error
	c.heap, err = heap.Open(c.store)
	check(c.t, err)
	check(c.t, c.nodes[i].s.SetHeap(c.heap))
	c.mu.Lock()
	c.now = i
	c.mu.Unlock()
}

func (c *cluster) client(o object.Options) *object.Client {
	c.t.Helper()
	if o.Nodes == nil {
		o.Nodes = []string{c.nodes[len(c.nodes)-1].way.l.Addr().String()} // which tells of the others
	}
	o.Name, o.Secret = "app", []byte("secret")
	x, err := object.Open(c.t.Context(), o)
	check(c.t, err)
	c.t.Cleanup(func() { check(c.t, x.Close()) })
	return x
}

// TestObjects: all operations, and their errors.
func TestObjects(t *testing.T) {
	c := newCluster(t, 1)
	x, ctx := c.client(object.Options{}), t.Context()
	for _, n := range []int{0, 1, 31, 32, 33, 4064, 4065, 100000, object.MaxObject} {
		b := bytes.Repeat([]byte{byte(n)}, n)
		p, err := x.Insert(ctx, b)
		check(t, err)
		for what, get := range map[string]func(context.Context, object.Pointer) ([]byte, error){"read": x.Read, "peek": x.Peek} {
			if got, err := get(ctx, p); err != nil || !bytes.Equal(got, b) {
				t.Errorf("%s of %d octets: %d, %v", what, n, len(got), err)
			}
		}
		if again, err := object.ParsePointer(p.String()); err != nil || again != p {
			t.Errorf("%v, %v", again, err)
		}
	}
	p, err := x.Insert(ctx, []byte("small"))
	check(t, err)
	same, err := x.Update(ctx, p, []byte("still small"))
	if err != nil || same != p {
		t.Errorf("%v, %v", same, err)
	}
	moved, err := x.Update(ctx, p, make([]byte, 5000))
	if err != nil || moved == p {
		t.Errorf("%v, %v", moved, err)
	}
	check(t, x.Delete(ctx, moved))
	for _, bad := range []struct {
		p    object.Pointer
		want error
	}{
		{p, object.ErrStale},
		{moved, object.ErrStale},
		{object.Pointer{Addr: p.Addr, Key: p.Key + 1, Generation: 1}, object.ErrKey},
		{object.Pointer{Addr: p.Addr + 8, Key: p.Key, Generation: 1}, object.ErrRange},
		{object.Pointer{Addr: 64, Key: p.Key, Generation: 1}, object.ErrRange},
		{object.Pointer{Addr: p.Addr | 1<<63, Key: p.Key, Generation: 1}, object.ErrRange},
	} {
		_, err1 := x.Read(ctx, bad.p)
		_, err2 := x.Peek(ctx, bad.p)
		_, err3 := x.Update(ctx, bad.p, nil)
		for i, err := range []error{err1, err2, err3, x.Delete(ctx, bad.p)} {
			if !errors.Is(err, bad.want) {
				t.Errorf("%v, operation %d: %v, want %v", bad.p, i, err, bad.want)
			}
		}
	}
	if _, err := x.Insert(ctx, make([]byte, object.MaxObject+1)); !errors.Is(err, object.ErrTooLong) {
		t.Error(err)
	}
	for err = nil; err == nil; _, err = x.Insert(ctx, make([]byte, object.MaxObject)) {
	}
	if !errors.Is(err, object.ErrFull) {
		t.Error(err)
	}
	_, err = object.Open(ctx, object.Options{Nodes: []string{c.nodes[0].way.l.Addr().String()}, Name: "app", Secret: []byte("x")})
	if !errors.Is(err, object.ErrDenied) {
		t.Error(err)
	}
	for _, text := range []string{"", "os1:", "os1:1:2", "os1:1:2:3:4", "os2:1:2:3", "os1:1:2:-3", "os1:01:2:3", "os1:g:2:3", "os1:1:100000000:3", "os1:1:2:3 "} {
		if p, err := object.ParsePointer(text); err == nil {
			t.Errorf("%q is %v", text, p)
		}
	}
}

// TestLostAnswers: the answer to each change is lost, and the change takes place once, with the answer of the first time.
func TestLostAnswers(t *testing.T) {
	c := newCluster(t, 2)
	x, ctx := c.client(object.Options{}), t.Context()
	first, err := x.Insert(ctx, []byte("first"))
	check(t, err)
	// The primary answers nobody any more; when the client has lost an answer, the other node takes over.
	during := func(change func() error) {
		t.Helper()
		w := c.nodes[0].way
		w.deaf.Store(true)
		done := make(chan error, 1)
		go func() { done <- change() }()
		<-w.lost // the client is connected, so it was the answer to its request
		c.moveTo(1)
		check(t, <-done)
		w.deaf.Store(false)
		select { // or those to its questions afterwards
		case <-w.lost:
		default:
		}
		c.moveTo(0)
		_, err := x.Read(ctx, first) // it finds the first node again
		check(t, err)
	}
	var p, q object.Pointer
	during(func() (err error) { p, err = x.Insert(ctx, []byte("one")); return err })
	next, err := x.Insert(ctx, []byte("two"))
	check(t, err)
	if next.Addr != p.Addr+64 || p.Addr != first.Addr+64 {
		t.Errorf("the insert was done more than once: %v, %v, %v", first, p, next)
	}
	during(func() (err error) { q, err = x.Update(ctx, p, make([]byte, 100)); return err })
	if q.Addr != next.Addr+64 {
		t.Errorf("the update was done more than once: %v behind %v", q, next)
	}
	during(func() error { return x.Delete(ctx, q) })
	if _, err := x.Read(ctx, q); !errors.Is(err, object.ErrStale) {
		t.Error(err)
	}
	if b, err := x.Read(ctx, next); err != nil || string(b) != "two" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestFinds: a client is told of one node, and finds whichever serves the heap; it waits while none does.
func TestFinds(t *testing.T) {
	c := newCluster(t, 3)
	x, ctx := c.client(object.Options{}), t.Context()
	p, err := x.Insert(ctx, []byte("hello"))
	check(t, err)
	for i := range 9 {
		c.moveTo(-1)
		got := make(chan error, 1)
		go func() {
			get := x.Read
			if i%2 == 0 {
				get = x.Peek
			}
			b, err := get(ctx, p)
			if err == nil && string(b) != "hello" {
				err = errors.New("other bytes")
			}
			got <- err
		}()
		c.moveTo((i*2 + 1) % 3)
		check(t, <-got)
		if at := x.Primary(); at != c.nodes[(i*2+1)%3].way.l.Addr().String() {
			t.Errorf("the primary is said to be %s", at)
		}
	}
	c.moveTo(-1)
	short, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := x.Read(short, p); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := x.Delete(short, p); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestPeekChanges: a place that is written all the time is read as one of the objects that it had.
func TestPeekChanges(t *testing.T) {
	c := newCluster(t, 1)
	writer, reader, ctx := c.client(object.Options{}), c.client(object.Options{}), t.Context()
	object1 := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 20000+i) }
	p, err := writer.Insert(ctx, object1(0))
	check(t, err)
	stop, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for i := 0; ; i = (i + 1) % 256 {
			select {
			case <-stop:
				return
			default:
			}
			if q, err := writer.Update(ctx, p, object1(i)); err != nil || q != p {
				t.Errorf("%v, %v", q, err)
				return
			}
		}
	}()
	for range 300 {
		b, err := reader.Peek(ctx, p)
		if err != nil || len(b) < 20000 || !bytes.Equal(b, object1(int(b[0]))) {
			t.Errorf("%d octets, %v", len(b), err)
			break
		}
	}
	close(stop)
	<-over
}
