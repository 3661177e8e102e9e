package iwarp

import (
	"bytes"
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"oneshot/ddp"
	"oneshot/stag"
	"oneshot/transport/rdma"
)

// gonePeer waits for the end of the connection, and checks the cause in the peer's Terminate.
func (e *end) gonePeer(want ddp.Cause) {
	e.t.Helper()
	err := <-e.gone
	p, ok := errors.AsType[*PeerError](err)
	if !ok || p.Cause != want {
		e.t.Fatalf("the connection ends with %v, want the peer's Terminate %v", err, want)
	}
}

// goneCause waits for the end of the connection and checks which offence ended it.
func (e *end) goneCause(want ddp.Cause) {
	e.t.Helper()
	if err := <-e.gone; causeOf(err) != want {
		e.t.Fatalf("the connection ends with %v, want %v", err, want)
	}
}

func TestNoReceive(t *testing.T) {
	a, b := pair(t, setup{})
	a.post(rdma.Work{ID: 1, Op: rdma.OpSend, SGL: a.sge(0, 10)})
	b.goneCause(ddp.UntaggedNoBuffer)
	a.gonePeer(ddp.UntaggedNoBuffer)
}

func TestTooLong(t *testing.T) {
	a, b := pair(t, setup{})
	b.recv(7, 0, 9)
	a.post(rdma.Work{ID: 1, Op: rdma.OpSend, SGL: a.sge(0, 10)})
	if c := b.next(); c.Status != rdma.StatusLocalLength || c.ID != 7 {
		t.Fatalf("%+v", c)
	}
	b.goneCause(ddp.UntaggedTooLong)
	a.gonePeer(ddp.UntaggedTooLong)
}

// A Send to an empty shared queue waits, and so do the Sends after it. Nothing is lost.
func TestReceiveWait(t *testing.T) {
	a, b := pair(t, setup{shared: true})
	const n = 100
	for i := range n {
		a.fill(i*100, 100, byte(i))
		a.post(rdma.Work{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.sge(i*100, 100)})
		a.want(rdma.OpSend, uint64(i))
	}
	for i := range n {
		b.recv(uint64(i), i*100, 100)
		b.want(rdma.OpReceive, uint64(i))
	}
	if !bytes.Equal(a.mem.Bytes()[:n*100], b.mem.Bytes()[:n*100]) {
		t.Fatal("others arrive")
	}
}

// A connection that waits for a receive can be ended by either side.
func TestReceiveWaitEnds(t *testing.T) {
	a, b := pair(t, setup{shared: true, device: Config{LingerTime: time.Millisecond}})
	a.post(rdma.Work{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.sge(0, 10)})
	a.want(rdma.OpSend, 1)
	b.qp.Disconnect()
	if err := <-b.gone; !errors.Is(err, errLinger) {
		t.Fatal(err)
	}
	<-a.gone
}

func TestRevoke(t *testing.T) {
	a, b := pair(t, setup{client: offer(), server: offer()})
	b.recv(1, 0, 100)
	ws := []rdma.Work{{
		Op: rdma.OpSend, Flags: rdma.Advertise, SGL: a.sge(0, 48), Access: rdma.AccessRemoteRead, Memory: a.sge(4096, 4096),
	}}
	a.post(ws...)
	s := b.want(rdma.OpReceive, 1).STag
	done := make(chan struct{})
	check(t, a.qp.Revoke(s, func() { close(done) }))
	<-done
	if err := a.qp.Revoke(s, func() {}); err == nil {
		t.Fatal("revoked twice")
	}
	b.post(rdma.Work{ID: 2, Op: rdma.OpRead, SGL: b.sge(0, 100), RemoteSTag: s})
	a.goneCause(ddp.ProtInvalidSTag)
	if c := b.next(); c.Status != rdma.StatusRemoteAccess || c.ID != 2 {
		t.Fatalf("%+v", c)
	}
	b.gonePeer(ddp.ProtInvalidSTag)
}

// Host 2 forgets the STags that Host 1 revokes, so that the window has room again.
func TestForget(t *testing.T) {
	a, b := pair(t, setup{client: offer(), server: offer()})
	for i := range 20 {
		b.recv(1, 0, 100)
		a.post(rdma.Work{
			Op: rdma.OpSend, Flags: rdma.Advertise, SGL: a.sge(0, 48), Access: rdma.AccessRemoteRead, Memory: a.sge(4096, 4096),
		})
		s := b.want(rdma.OpReceive, 1).STag
		n := 0
		check(t, b.qp.Revoke(s, func() { n++ }))
		check(t, a.qp.Revoke(s, func() { n++ }))
		if n != 2 {
			t.Fatalf("%d: %d calls of done", i, n)
		}
	}
}

func TestWindowFull(t *testing.T) {
	a, b := pair(t, setup{client: offer(), server: offer()})
	w := rdma.Work{
		Op: rdma.OpSend, Flags: rdma.Advertise, SGL: a.sge(0, 48), Access: rdma.AccessRemoteRead, Memory: a.sge(4096, 4096),
	}
	ws := []rdma.Work{w, w, w, w, w}
	for i := range ws {
		b.recv(uint64(i), 0, 100)
	}
	if n, err := a.qp.Post(ws); n != 4 || !errors.Is(err, rdma.ErrWindow) {
		t.Fatalf("Post: %d, %v", n, err)
	}
	a.recv(9, 0, 100)
	s := b.want(rdma.OpReceive, 0).STag
	b.post(rdma.Work{Op: rdma.OpSend, Flags: rdma.Close, STag: s})
	a.want(rdma.OpReceive, 9)
	a.post(ws[4])
}

// Without Advertise, or at the wrong end, the flags are refused.
func TestFlagsRefused(t *testing.T) {
	a, b := pair(t, setup{client: offer(), server: offer()})
	c, d := pair(t, setup{})
	adv := rdma.Work{Op: rdma.OpSend, Flags: rdma.Advertise, Access: rdma.AccessRemoteRead}
	for _, x := range []struct {
		name string
		e    *end
		w    rdma.Work
	}{
		{"Host 2 advertises", b, adv},
		{"nothing agreed, client", c, adv},
		{"nothing agreed, server", d, rdma.Work{Op: rdma.OpSend, Flags: rdma.Close, STag: 5}},
		{"Host 1 closes", a, rdma.Work{Op: rdma.OpSend, Flags: rdma.Close, STag: 5}},
		{"not held", b, rdma.Work{Op: rdma.OpSend, Flags: rdma.Close, STag: 5}},
		{"two flags", a, rdma.Work{Op: rdma.OpSend, Flags: rdma.Close | rdma.Advertise, STag: 5}},
		{"a Write", a, rdma.Work{Op: rdma.OpWrite, Flags: rdma.Advertise}},
		{"no region", a, rdma.Work{Op: rdma.OpSend, SGL: []rdma.SGE{{Bytes: make([]byte, 4)}}}},
		{"other domain", a, rdma.Work{Op: rdma.OpSend, SGL: b.sge(0, 4)}},
		{"outside", a, rdma.Work{Op: rdma.OpSend, SGL: []rdma.SGE{{Bytes: make([]byte, 4), Region: a.mem}}}},
		{"inline too long", a, rdma.Work{Op: rdma.OpSend, Flags: rdma.Inline, SGL: a.sge(0, maxInline+1)}},
		{"Receive", a, rdma.Work{Op: rdma.OpReceive}},
	} {
		w := x.w
		if x.w.Flags&rdma.Advertise != 0 && x.e != nil {
			w.Memory = x.e.sge(0, 10)
		}
		n, err := x.e.qp.Post([]rdma.Work{w})
		if _, ok := errors.AsType[*rdma.WorkError](err); !ok || n != 0 {
			t.Errorf("%s: Post: %d, %v", x.name, n, err)
		}
	}
}

func TestMemoryWindow(t *testing.T) {
	a, b := pair(t, setup{})
	w, err := a.dom.NewWindow()
	check(t, err)
	for i := range 5 {
		ws := []rdma.Work{{
			ID: 1, Op: rdma.OpBind, Flags: rdma.Signaled, Window: w, SGL: a.sge(4096, 4096),
			Access: rdma.AccessRemoteWrite | rdma.AccessRemoteRead,
		}}
		a.post(ws...)
		a.want(rdma.OpBind, 1)
		if ws[0].STag == 0 || ws[0].STag != w.STag() {
			t.Fatalf("STag %x and %x", ws[0].STag, w.STag())
		}
		b.fill(0, 100, byte(i))
		a.recv(2, 0, 100)
		works := []rdma.Work{
			{Op: rdma.OpWrite, SGL: b.sge(0, 100), RemoteSTag: w.STag(), RemoteOffset: a.mem.Base() + 4096},
			{Op: rdma.OpSend, SGL: b.sge(0, 1), Flags: rdma.Invalidate, STag: w.STag()},
		}
		if i%2 == 1 {
			works[1] = rdma.Work{Op: rdma.OpSend}
		}
		b.post(works...)
		c := a.want(rdma.OpReceive, 2)
		if !bytes.Equal(a.mem.Bytes()[4096:4196], b.mem.Bytes()[:100]) {
			t.Fatal("others were written")
		}
		if i%2 == 0 {
			if c.Flags != rdma.Invalidated || c.STag != w.STag() {
				t.Fatalf("%+v", c)
			}
			continue
		}
		a.post(rdma.Work{ID: 3, Op: rdma.OpLocalInvalidate, Flags: rdma.Signaled, STag: w.STag()})
		a.want(rdma.OpLocalInvalidate, 3)
	}
	b.post(rdma.Work{Op: rdma.OpWrite, SGL: b.sge(0, 100), RemoteSTag: w.STag(), RemoteOffset: 4096})
	a.goneCause(ddp.TaggedInvalidSTag)
	b.gonePeer(ddp.TaggedInvalidSTag)
	check(t, w.Free())
}

// A chain of invalidation and binding may be posted at once; a bound window is not bound again.
func TestRebind(t *testing.T) {
	a, _ := pair(t, setup{})
	w, err := a.dom.NewWindow()
	check(t, err)
	bind := rdma.Work{ID: 1, Op: rdma.OpBind, Flags: rdma.Signaled, Window: w, SGL: a.sge(0, 10), Access: rdma.AccessRemoteRead}
	a.post(bind)
	a.want(rdma.OpBind, 1)
	if _, err := a.qp.Post([]rdma.Work{bind}); err == nil {
		t.Fatal("bound twice")
	}
	old := w.STag()
	a.post(rdma.Work{Op: rdma.OpLocalInvalidate, STag: old}, bind)
	a.want(rdma.OpBind, 1)
	if w.STag() == old {
		t.Fatal("the STag is the old one")
	}
	check(t, w.Free())
}

func TestRegionInvalidated(t *testing.T) {
	a, b := pair(t, setup{})
	r, err := a.dom.Register(make([]byte, 4096), rdma.AccessLocalWrite|rdma.AccessRemoteWrite|rdma.AccessRemoteInvalidate)
	check(t, err)
	a.recv(1, 0, 10)
	b.post(rdma.Work{Op: rdma.OpSend, Flags: rdma.Invalidate | rdma.Solicited, STag: r.STag()})
	if c := a.want(rdma.OpReceive, 1); c.Flags != rdma.Invalidated || c.STag != r.STag() {
		t.Fatalf("%+v", c)
	}
	check(t, r.Deregister())
	a.recv(2, 0, 10)
	b.post(rdma.Work{Op: rdma.OpSend, Flags: rdma.Invalidate, STag: a.mem.STag()})
	a.goneCause(ddp.ProtCannotInvalidate)
}

func TestDeregistered(t *testing.T) {
	a, b := pair(t, setup{})
	r, err := b.dom.Register(make([]byte, 4096), rdma.AccessLocalWrite)
	check(t, err)
	_, err = b.qp.PostReceive([]rdma.Receive{{ID: 3, SGL: []rdma.SGE{{Bytes: r.Bytes(), Region: r}}}})
	check(t, err)
	check(t, r.Deregister())
	a.post(rdma.Work{Op: rdma.OpSend, SGL: a.sge(0, 10)})
	if c := b.next(); c.Status != rdma.StatusLocalProtection || c.ID != 3 {
		t.Fatalf("%+v", c)
	}
	a.gonePeer(ddp.DDPLocalCatastrophic)
}

func TestAbort(t *testing.T) {
	a, b := pair(t, setup{})
	b.recv(1, 0, 10)
	a.post(rdma.Work{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled})
	b.want(rdma.OpReceive, 1)
	b.qp.Abort(&ddpError{ddp.OpCatastrophicStream})
	a.gonePeer(ddp.OpCatastrophicStream)
	if err := <-b.gone; err == nil {
		t.Fatal("no error")
	}
	if _, err := b.qp.Post([]rdma.Work{{Op: rdma.OpSend}}); !errors.Is(err, rdma.ErrDisconnected) {
		t.Fatal(err)
	}

	c, d := pair(t, setup{})
	c.qp.Abort(nil)
	if err := <-d.gone; err == nil {
		t.Fatal("an abort looks like a good end")
	}
	<-c.gone
}

// ddpError is an error of the owner that has a Terminate cause.
type ddpError struct{ c ddp.Cause }

func (e *ddpError) Error() string { return e.c.String() }
func (e *ddpError) Terminate() (layer, etype, code uint8) {
	return e.c.Layer(), e.c.Etype(), e.c.Code()
}

func TestReject(t *testing.T) {
	a, b := newEnd(t, setup{}), newEnd(t, setup{})
	defer a.close()
	defer b.close()
	l, err := b.dev.Listen("127.0.0.1:0")
	check(t, err)
	defer l.Close()
	go func() {
		if r, err := l.Accept(); err == nil && string(r.PeerData()) == "hello" {
			_ = r.Reject([]byte("no"))
		}
	}()
	err = a.dev.Connect(context.Background(), a.qp, l.Addr().String(), rdma.ConnParams{PrivateData: []byte("hello")})
	if e, ok := errors.AsType[*rdma.RejectedError](err); !ok || string(e.PrivateData) != "no" || e.Addr != l.Addr().String() {
		t.Fatalf("%v", err)
	}
}

func TestPrivateData(t *testing.T) {
	for _, shot := range []*rdma.OneShotOffer{nil, offer()} {
		a, b := pair(t, setup{
			clientPrivate: []byte("what the client says"), serverPrivate: []byte("what the server says"),
			client: shot, server: offer(),
		})
		if string(a.qp.PeerData()) != "what the server says" || string(b.qp.PeerData()) != "what the client says" {
			t.Errorf("%q, %q", a.qp.PeerData(), b.qp.PeerData())
		}
		if (a.qp.OneShot() != nil) != (shot != nil) {
			t.Error("one-shot agreed or not")
		}
	}
}

// The peer does not answer, answers too slowly, or answers in another protocol.
func TestConnectFails(t *testing.T) {
	for _, answer := range []string{"", "SSH-2.0-OpenSSH_9.2p1 and more than twenty octets"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		check(t, err)
		conns := make(chan net.Conn, 1)
		go func() {
			defer close(conns)
			if c, err := l.Accept(); err == nil {
				_, _ = c.Write([]byte(answer))
				conns <- c
			}
		}()
		e := newEnd(t, setup{device: Config{StartupTimeout: 50 * time.Millisecond}})
		err = e.dev.Connect(context.Background(), e.qp, l.Addr().String(), rdma.ConnParams{})
		if err == nil {
			t.Fatal("connected")
		}
		if answer == "" && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		l.Close()
		if c := <-conns; c != nil { // on a busy machine StartupTimeout may be over before the connection is made
			c.Close()
		}
		e.close()
	}
}

// TestConnectToAnother: that a port is another service's, which takes the MPA Request and says nothing, is said.
func TestConnectToAnother(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan struct{})
	go func() {
		defer close(served)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = c.Read(make([]byte, 1))
		cancel()
		_, _ = c.Read(make([]byte, 4096)) // the rest; then Connect closes the connection
	}()
	e := newEnd(t, setup{device: Config{StartupTimeout: 5 * time.Minute}})
	err = e.dev.Connect(ctx, e.qp, l.Addr().String(), rdma.ConnParams{})
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "does not answer the MPA Request") {
		t.Error(err)
	}
	<-served
	e.close()
}

// A peer that sends only a part of a Request is dropped after StartupTimeout, and a Request that
// nobody accepts after AcceptTimeout.
func TestHalfOpen(t *testing.T) {
	dev, err := Open(Config{StartupTimeout: 20 * time.Millisecond, AcceptTimeout: 20 * time.Millisecond})
	check(t, err)
	l, err := dev.Listen("127.0.0.1:0")
	check(t, err)
	frame := ddp.StartFrame{Revision: 1}
	whole := frame.AppendTo(nil)
	for _, b := range [][]byte{nil, whole[:7], whole} {
		c, err := net.Dial("tcp", l.Addr().String())
		check(t, err)
		_, err = c.Write(b)
		check(t, err)
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Fatal("answered")
		}
		c.Close()
	}
	check(t, l.Close())
	check(t, dev.Close())
}

func TestQueueFull(t *testing.T) {
	a, _ := pair(t, setup{reads: 1})
	rs := make([]rdma.Receive, 65)
	if n, err := a.qp.PostReceive(rs); n != 64 || !errors.Is(err, rdma.ErrFull) {
		t.Fatalf("PostReceive: %d, %v", n, err)
	}
}

// Many goroutines post on one connection while its events post, too.
func TestManyPosters(t *testing.T) {
	const posters, each = 8, 200
	a, b := pair(t, setup{shared: true, depth: posters * each})
	for i := range posters * each {
		b.recv(uint64(i), 0, 64)
	}
	var wg sync.WaitGroup
	for p := range posters {
		wg.Go(func() {
			for i := 0; i < each; {
				ws := []rdma.Work{
					{Op: rdma.OpSend, SGL: a.sge(p*64, 64)},
					{Op: rdma.OpWrite, SGL: a.sge(p*100000, 100000), RemoteSTag: b.mem.STag(), RemoteOffset: uint64(p * 100000)},
				}
				n, err := a.qp.Post(ws)
				if n > 0 {
					i++
				}
				if err != nil && !errors.Is(err, rdma.ErrFull) {
					t.Error(err)
					return
				}
				if err != nil {
					runtime.Gosched()
				}
			}
		})
	}
	for i := range posters * each {
		b.want(rdma.OpReceive, uint64(i))
	}
	wg.Wait()
}

// Idle queue pairs take little memory.
func TestIdleMemory(t *testing.T) {
	const n = 500 // connections, of two queue pairs each
	dev, err := Open(Config{})
	check(t, err)
	l, err := dev.Listen("127.0.0.1:0")
	check(t, err)
	dom, err := dev.NewDomain()
	check(t, err)
	cq, err := dev.NewCompletionQueue(1, nil)
	check(t, err)
	mem, err := dom.Register(make([]byte, 4096), rdma.AccessLocalWrite)
	check(t, err)
	srq, err := dev.NewReceiveQueue(dom, 2*n)
	check(t, err)
	newQP := func() rdma.QueuePair {
		q, err := dev.NewQueuePair(rdma.QueuePairConfig{Domain: dom, SendCQ: cq, RecvCQ: cq, MaxWork: 512, Receives: srq})
		check(t, err)
		return q
	}
	before := inUse()
	var qps []rdma.QueuePair
	for i := range n {
		x, y := newQP(), newQP()
		done := make(chan error, 1)
		go func() {
			r, err := l.Accept()
			if err == nil {
				err = r.Accept(y, rdma.ConnParams{OneShot: offer()})
			}
			done <- err
		}()
		check(t, dev.Connect(context.Background(), x, l.Addr().String(), rdma.ConnParams{OneShot: offer()}))
		check(t, <-done)
		_, err := srq.PostReceive([]rdma.Receive{{SGL: []rdma.SGE{{Bytes: mem.Bytes()[i : i+1], Region: mem}}}})
		check(t, err)
		_, err = x.Post([]rdma.Work{{Op: rdma.OpSend, SGL: []rdma.SGE{{Bytes: mem.Bytes()[n : n+1], Region: mem}}}})
		check(t, err)
		qps = append(qps, x, y)
	}
	var c [n]rdma.Completion
	for got := 0; got < n; got += cq.Poll(c[:]) {
		runtime.Gosched()
	}
	used := inUse() - before
	t.Logf("%d idle queue pairs take %d KiB", len(qps), used>>10)
	if used > 150<<20 {
		t.Error("that is more than 150 MiB")
	}
	for _, q := range qps {
		check(t, q.Close())
	}
	check(t, cq.Close())
	check(t, srq.Close())
	check(t, mem.Deregister())
	check(t, l.Close())
	check(t, dev.Close())
}

func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

var _ terminator = (*stag.Error)(nil)
