package rdmatest

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"

	"oneshot/transport/rdma"
)

// samePrivate compares private data. There are connection managers that pad it with zeros.
func samePrivate(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if !bytes.HasPrefix(got, want) || len(bytes.Trim(got[len(want):], "\x00")) > 0 {
		t.Errorf("%s: private data %q, want %q", what, got, want)
	}
}

// private returns n bytes without trailing zero, which are a part of something with pointers, as an owner's may be.
func private(n int, seed uint64) []byte {
	owner := &struct {
		b    [512]byte
		next *int
	}{next: new(int)}
	b := owner.b[:copy(owner.b[:n], filled(n, seed))]
	if n > 0 {
		b[n-1] = 'x'
	}
	return b
}

func testPrivateData(t *testing.T, p Pair) {
	most := min(p.Client.Limits().MaxPrivate, p.Server.Limits().MaxPrivate)
	for _, n := range []int{0, 1, 5, most} {
		client, server := newEnd(t, p.Client, options{}), newEnd(t, p.Server, options{})
		l := listen(t, p)
		ask, answer := private(n, 1), private(most-n, 2)
		done := make(chan error, 1)
		go func() {
			r, err := l.Accept()
			if err == nil {
				samePrivate(t, "Request", r.PeerData(), ask)
				if r.Device() != p.Server || r.LocalAddr() == nil || r.RemoteAddr() == nil {
					t.Errorf("Request of device %v from %v to %v", r.Device(), r.RemoteAddr(), r.LocalAddr())
				}
				err = r.Accept(server.qp, rdma.ConnParams{PrivateData: answer})
			}
			done <- err
		}()
		check(t, p.Client.Connect(context.Background(), client.qp, l.Addr().String(), rdma.ConnParams{PrivateData: ask}))
		check(t, <-done)
		client.started, server.started = true, true
		samePrivate(t, "client", client.qp.PeerData(), answer)
		samePrivate(t, "server", server.qp.PeerData(), ask)
		if client.qp.Context() != client || server.qp.Context() != server {
			t.Error("Context is not the owner's")
		}
		for _, e := range []*end{client, server} {
			if e.qp.LocalAddr() == nil || e.qp.RemoteAddr() == nil {
				t.Errorf("connected from %v to %v", e.qp.LocalAddr(), e.qp.RemoteAddr())
			}
		}
	}
}

func testPrivateDataTooLong(t *testing.T, p Pair) {
	client := newEnd(t, p.Client, options{})
	l := listen(t, p)
	data := make([]byte, p.Client.Limits().MaxPrivate+1)
	if p.Client.Connect(context.Background(), client.qp, l.Addr().String(), rdma.ConnParams{PrivateData: data}) == nil {
		client.started = true
		t.Error("connected with too much private data")
	}
}

func testReject(t *testing.T, p Pair) {
	most := min(p.Client.Limits().MaxPrivate, p.Server.Limits().MaxPrivate)
	for _, n := range []int{0, 2, most} {
		client := newEnd(t, p.Client, options{})
		l := listen(t, p)
		done := make(chan error, 1)
		why := private(n, 3)
		go func() {
			r, err := l.Accept()
			if err == nil {
				err = r.Reject(why)
			}
			done <- err
		}()
		err := p.Client.Connect(context.Background(), client.qp, l.Addr().String(), rdma.ConnParams{})
		check(t, <-done)
		e, ok := errors.AsType[*rdma.RejectedError](err)
		if !ok {
			t.Fatalf("Connect: %v, want a RejectedError", err)
		}
		samePrivate(t, "RejectedError", e.PrivateData, why)
		if e.Addr != l.Addr().String() {
			t.Errorf("RejectedError of %q, want %q", e.Addr, l.Addr())
		}
		if _, err := client.qp.Post([]rdma.Work{client.send(1, 0, 0, 1)}); !errors.Is(err, rdma.ErrDisconnected) {
			t.Errorf("Post after that: %v", err)
		}
		if p.Client.Connect(context.Background(), client.qp, l.Addr().String(), rdma.ConnParams{}) == nil {
			t.Error("a queue pair connects that can only be closed")
		}
	}
}

func testNobodyListens(t *testing.T, p Pair) {
	client := newEnd(t, p.Client, options{})
	l, err := p.Server.Listen(p.Listen)
	check(t, err)
	check(t, l.Close())
	if p.Client.Connect(context.Background(), client.qp, l.Addr().String(), rdma.ConnParams{}) == nil {
		client.started = true
		t.Error("connected with nobody")
	}
}

// A context ends Connect before it begins, and while the other end considers it.
func testConnectCancelled(t *testing.T, p Pair) {
	l := listen(t, p)
	ctx, cancel := context.WithCancel(context.Background())
	requests := make(chan rdma.Request, 1)
	go func() {
		r, err := l.Accept()
		if err != nil {
			t.Error(err)
		}
		requests <- r
		cancel()
	}()
	for range 2 {
		client := newEnd(t, p.Client, options{})
		err := p.Client.Connect(ctx, client.qp, l.Addr().String(), rdma.ConnParams{})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("Connect: %v, want %v", err, context.Canceled)
		}
	}
	_ = (<-requests).Reject(nil) // whether it notices that nobody is there is its own affair
}

func testListenerClose(t *testing.T, p Pair) {
	l, err := p.Server.Listen(p.Listen)
	check(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		done <- err
	}()
	check(t, l.Close())
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v, want %v", err, net.ErrClosed)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept again: %v, want %v", err, net.ErrClosed)
	}
}

// Before it is connected a queue pair takes receives and nothing else; they are flushed.
func testNotConnected(t *testing.T, p Pair) {
	e := newEnd(t, p.Client, options{})
	if n, err := e.qp.Post([]rdma.Work{e.send(1, 0, 0, 1)}); n != 0 || !errors.Is(err, rdma.ErrDisconnected) {
		t.Errorf("Post: %d, %v; want %v", n, err, rdma.ErrDisconnected)
	}
	e.receive(7, 0, 10)
	check(t, e.qp.Close())
	if c := e.recvs.next(); c.Status != rdma.StatusFlushed || c.ID != 7 {
		t.Errorf("%+v", c)
	}
}

// Each end has no more Reads outstanding than the other serves.
func testDepths(t *testing.T, p Pair) {
	for _, c := range []struct{ ask, serve, want int }{{3, 2, 2}, {2, 3, 2}, {1, 1, 1}} {
		client, server := newEnd(t, p.Client, options{}), newEnd(t, p.Server, options{})
		l := listen(t, p)
		done := make(chan error, 1)
		go func() {
			r, err := l.Accept()
			if err == nil {
				err = r.Accept(server.qp, rdma.ConnParams{InitiatorDepth: c.ask, ResponderResources: c.serve})
			}
			done <- err
		}()
		check(t, p.Client.Connect(context.Background(), client.qp, l.Addr().String(),
			rdma.ConnParams{InitiatorDepth: c.ask, ResponderResources: c.serve}))
		check(t, <-done)
		client.started, server.started = true, true
		for _, e := range []*end{client, server} {
			if n := e.qp.Reads(); n < 1 || n > c.want {
				t.Errorf("asked %d, served %d: %d Reads outstanding, want %d", c.ask, c.serve, n, c.want)
			}
		}
		client.post(client.read(1, rdma.Signaled, 0, 100, server, 0))
		client.sends.want(rdma.OpRead, 1)
		server.post(server.read(1, rdma.Signaled, 0, 100, client, 0))
		server.sends.want(rdma.OpRead, 1)
	}
}

// The end that has accepted may be the first to speak.
func testServerFirst(t *testing.T, p Pair) {
	client, server := newEnd(t, p.Client, options{}), newEnd(t, p.Server, options{})
	client.receive(1, 0, 100)
	link(t, p, client, server, options{})
	server.post(server.send(2, rdma.Signaled, 0, 100))
	client.recvs.want(rdma.OpReceive, 1)
	server.sends.want(rdma.OpSend, 2)
}
